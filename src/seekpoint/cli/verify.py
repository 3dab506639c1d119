"""``seekpoint verify``: are the tables what the log says? Nothing is changed, and workers continue."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import typer

from seekpoint.cli.errors import FAILED, plain, terminable
from seekpoint.cli.options import ArchiveRoot, AsJson, ReadOptions, ServerOptions, Targets, command
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
    archive: ArchiveRoot = None,
    as_json: AsJson = False,
) -> None:
    """Rebuild the tables of these pipelines from the log beside the live ones, compare at the same offsets, drop it.

    Shows how many rows are equal, missing, extra and different, and some of them. Nothing live is touched or locked.
    Exits with 1 if one row differs.
    """
    with (
        servers.job(context, *targets) as of,
        terminable(),
        Shown(as_json=as_json) as progress,
        reload_of(of, progress, read, archive) as reload,
    ):
        report = reload.verify()
    if as_json:
        answer(report.as_dict(), as_json=True)
    else:
        _print(report)
    if not report.is_empty:
        raise typer.Exit(FAILED)


def _print(report: Report) -> None:
    rows = [(one.table, *(f"{getattr(one, name):,}" for name in _COUNTS)) for one in report.tables]
    print_table("", ("table", *_COUNTS), rows, numeric=_COUNTS)
    for one in report.tables:
        for kind in _COUNTS[1:]:
            _print_some(one, kind)
    at = ", ".join(f"{where} at {offset}" for where, offset in report.offsets.items())
    typer.echo(f"compared at {plain(at)}")
    if report.dead_letters:
        typer.echo(f"{report.dead_letters} records cannot be applied by this code: they have no rows in the rebuild")


def _print_some(of: Difference, kind: str) -> None:
    for sample in [each for each in of.samples if each.kind == kind][:SHOWN]:
        typer.echo(f"{plain(of.table)} {kind}: {_row(sample.key)}")
        for line in _sides(sample):
            typer.echo(f"  {line}")
    if (more := getattr(of, kind) - SHOWN) > 0:
        typer.echo(f"{plain(of.table)} {kind}: {more:,} more (--json has up to 20 of them)")


def _sides(sample: Sample) -> Iterator[str]:
    """Both rows; of two, the columns that differ, among them its provenance."""
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
