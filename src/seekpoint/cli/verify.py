"""``seekpoint verify``: compares tables with rows rebuilt from the log; changes nothing, and workers continue."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import typer

from seekpoint.cli.errors import terminable
from seekpoint.cli.exit_codes import FAILED
from seekpoint.cli.masking import plain
from seekpoint.cli.options import ArchiveRoot, AsJson, ReadOptions, ServerOptions, Targets, Topics, command
from seekpoint.cli.output import answer, print_table
from seekpoint.cli.progress_bar import Shown
from seekpoint.cli.reload import reload_of
from seekpoint.jobs.reload import Difference, Report, Sample

SHOWN = 5  # rows of each kind
_COUNTS = ("equal", "missing", "extra", "different")


@command
def verify(
    context: typer.Context,
    targets: Targets,
    *,
    read: ReadOptions,
    servers: ServerOptions,
    topic: Topics = None,
    archive: ArchiveRoot = None,
    as_json: AsJson = False,
) -> None:
    """Rebuild pipelines' tables from the log, compare with the live ones at the same offsets, and drop the rebuild.

    Shows how many rows are equal, missing, extra and different, with up to five rows of each kind of difference. Does
    not change or lock live tables. Exits with 1 if any row differs.
    """
    with (
        servers.job(context, *targets, topics=topic or ()) as of,
        terminable(),
        Shown(terminal_only=as_json) as progress,
        reload_of(of, progress, read, archive) as reload,
    ):
        report = reload.verify()
    print_report(report, as_json=as_json)


def print_report(report: Report, paths: Mapping[str, str] | None = None, *, as_json: bool) -> None:
    """Print the differences, and the paths of files with all of them, by table. Exits with 1 if there are any."""
    if as_json:
        answer(report.as_dict() | ({} if paths is None else {"differences": dict(paths)}), as_json=True)
    else:
        _print(report)
        for table, path in (paths or {}).items():
            typer.echo(f"{plain(table)}: all differing rows are in {plain(path)}")
    if not report.is_empty:
        raise typer.Exit(FAILED)


def _print(report: Report) -> None:
    rows = [(difference.table, *(f"{getattr(difference, name):,}" for name in _COUNTS)) for difference in report.tables]
    print_table("", ("table", *_COUNTS), rows, numeric=_COUNTS)
    for difference in report.tables:
        for kind in _COUNTS[1:]:
            _print_some(difference, kind)
        if difference.inputs and not difference.is_empty:
            typer.echo(
                f"{plain(difference.table)}: rebuilt rows are joined with {', '.join(difference.inputs)} as it is now, "
                "live rows with its values when they were applied"
            )
    offsets = ", ".join(f"{where} at {offset}" for where, offset in report.offsets.items())
    typer.echo(f"compared at {plain(offsets)}")
    if report.dead_letters:
        typer.echo(f"this code cannot apply {report.dead_letters} records: they have no rows in the rebuild")


def _print_some(of: Difference, kind: str) -> None:
    for sample in [sample for sample in of.samples if sample.kind == kind][:SHOWN]:
        typer.echo(f"{plain(of.table)} {kind}: {_row(sample.key)}")
        for line in _sides(sample):
            typer.echo(f"  {line}")
    if (unshown := getattr(of, kind) - SHOWN) > 0:
        typer.echo(f"{plain(of.table)} {kind}: {unshown:,} more (--json has up to 20 of them)")


def _sides(sample: Sample) -> Iterator[str]:
    """Both rows; if both exist, only the columns that differ, including those of provenance."""
    live, rebuilt = sample.live, sample.rebuilt
    if live is None or rebuilt is None:
        yield f"{'rebuilt' if live is None else 'live':<8}{_texts(live or rebuilt or {})}"
        return
    names = [name for name in live if live[name] != rebuilt.get(name)]
    yield f"{'live':<8}{_texts({name: live[name] for name in names})}"
    yield f"{'rebuilt':<8}{_texts({name: rebuilt[name] for name in names})}"


def _texts(row: Mapping[str, str | None]) -> str:
    return plain(", ".join(f"{name}={'NULL' if value is None else value}" for name, value in row.items()))


def _row(row: Mapping[str, Any]) -> str:
    return plain(
        ", ".join(f"{name}={json.dumps(value, ensure_ascii=False, default=str)}" for name, value in row.items())
    )
