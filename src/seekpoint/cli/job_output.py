"""Prints runs of reloads and batches, on a terminal or as JSON: their progress and the next steps."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import typer

from seekpoint.cli.masking import masked, plain
from seekpoint.cli.output import ago, cut, field, moment, print_table
from seekpoint.durations import format_duration
from seekpoint.jobs.reload import Report, Run
from seekpoint.jobs.run_progress import PartitionProgress, RunProgress
from seekpoint.ledger.tables import BATCHES
from seekpoint.records import numbered

WIDTH = 100  # characters of a line
_COLUMNS = ("id", "strategy", "state", "opened", "tables")
QUIET = timedelta(minutes=2)  # a driver without a heartbeat for this long, and without a running step, may have ended
_OF_A_RUN = (
    *("id", "strategy", "state", "is_open", "swept", "groups", "pipelines", "tables", "version_from"),
    *("version_to", "driver", "driver_epoch", "opened_at", "actor", "reason"),
)
_PLACES = ("group", "topic", "partition", "first", "next", "end", "live", "left")
_NUMERIC = frozenset({"partition", "first", "next", "end", "live", "left"})


def print_list(runs: Sequence[Run]) -> None:
    """Print runs, one per line of a hundred characters, then the errors of failed runs."""
    rows = [(str(run.id), run.strategy, state(run), ago(run.opened_at)) for run in runs]
    widths = [max(map(len, column)) for column in zip(_COLUMNS[:-1], *rows, strict=True)]
    room = WIDTH - sum(width + 2 for width in widths) - 2
    tables = (cut(", ".join(run.tables), room) for run in runs)
    print_table("runs", _COLUMNS, [(*row, names) for row, names in zip(rows, tables, strict=True)], numeric=())
    for run in runs:
        if run.error:
            typer.echo(plain(f"{run.id}: {cut(run.error, WIDTH - len(str(run.id)) - 2)}"))
    typer.echo("`seekpoint reload status ID` shows one run's groups, driver, partitions and whole error")


def state(run: Run) -> str:
    """The state of a run, and whether a sweep has something to drop."""
    return run.state if run.is_open or run.swept else f"{run.state}, not swept"


def as_dict(run: Run) -> dict[str, Any]:
    """One run for JSON."""
    return {name: getattr(run, name) for name in _OF_A_RUN} | {
        "heard_of_at": run.changed_at,
        "error": None if run.error is None else masked(run.error),
    }


def differences(report: Report) -> Iterator[str]:
    """The changes that a merge will make, one line per table."""
    for difference in report.tables:
        yield (
            f"{plain(difference.table)}: {difference.equal:,} rows are equal; {difference.missing:,} are missing and "
            f"will be added, {difference.extra:,} are extra and will be deleted, {difference.different:,} are "
            "different and will be changed"
        )


def progress_as_dict(progress: RunProgress) -> dict[str, Any]:
    """One run with its partitions for JSON."""
    return as_dict(progress.run) | {
        "in_step": progress.in_step,
        "silent_seconds": round(progress.silent.total_seconds(), 3),
        "left": progress.left,
        "partitions": [
            {
                "group": place.group,
                "topic": place.partition.topic,
                "partition": place.partition.number,
                "first": place.first,
                "next": place.next,
                "staged": place.staged,
                "end": place.end,
                "live": place.live,
                "left": place.left(progress.run.strategy) if progress.run.is_open else None,
            }
            for place in progress.places
        ],
        "next": list(choices(progress)),
    }


def shown(progress: RunProgress) -> Iterator[str]:
    """One run, line by line."""
    run = progress.run
    yield f"{run.kind} {run.id}: {state(run)}"
    yield field("strategy", run.strategy)
    yield field("tables", ", ".join(run.tables))
    for group, name, old, new in zip(run.groups, run.pipelines, run.version_from, run.version_to, strict=True):
        versions = f"version {old}" if old == new else f"version {old} → {new}"
        yield field("group", f"{group}, {versions}{f', {name}' if name else ''}")
    yield field("opened", f"{moment(run.opened_at)} by {run.actor}: {run.reason}")
    yield field("driver", f"{run.driver} (epoch {run.driver_epoch}), {_heard(progress)}")
    if progress.left is not None:
        yield field("left", f"{numbered(progress.left, 'offset')} in {numbered(len(progress.places), 'partition')}")
    if run.error:
        yield field("error", masked(run.error))


def print_places(progress: RunProgress) -> None:
    """Print the run's partitions."""
    print_table("", _PLACES, (_row(place, progress) for place in progress.places), numeric=_NUMERIC)


def _row(place: PartitionProgress, progress: RunProgress) -> Sequence[object]:
    offset = place.next + place.staged  # staged ranges that are not consolidated have no single end offset
    remaining = place.left(progress.run.strategy) if progress.run.is_open else None
    where = (place.group, place.partition.topic, place.partition.number)
    return (*where, place.first, offset, place.end, place.live, remaining)


def choices(progress: RunProgress) -> Iterator[str]:
    """The next steps for a run: commands, each with its reason."""
    run = progress.run
    if run.is_open:
        if run.strategy != "verify":
            alone = "" if _is_quiet(progress) else ", if its driver has ended"
            yield f"resume{alone}: {resume(run)}"
        yield f"abort: {abort(run)}"
    elif not run.swept:
        yield "drop its remaining tables: seekpoint reload sweep"
    elif run.state != "cut_over" and run.strategy != "verify":
        yield f"begin again: {begin(progress)}"


def begin(progress: RunProgress) -> str:
    """The command that opens a run like this one."""
    if progress.run.strategy == "reprocess":
        [place] = progress.places
        topic, number = place.partition
        return f"{_command(progress.run)} --range {topic}:{number}:{place.first}..{place.end} --reason '…'"
    return _command(progress.run) + (
        "" if progress.run.strategy in {"batch", "merge"} else f" --strategy {progress.run.strategy}"
    )


def resume(run: Run) -> str:
    """The command that resumes the run."""
    return f"{_command(run)} --resume {run.id}"


def _command(run: Run) -> str:
    names = " ".join(shlex.quote(name or "MODULE:NAME") for name in run.pipelines)
    reload = "spark reload" if run.is_of_frames else "reload run"
    return f"seekpoint {'batch' if run.strategy in BATCHES else reload} {names}"


def abort(run: Run) -> str:
    """The command that aborts the run."""
    return f"seekpoint reload abort {run.id} --reason '…'"


def left_open(run: Run) -> str:
    """The message for a run that this process leaves open."""
    workers = "" if run.strategy == "batch" else ", workers continue"
    return f"{run.id} is left open ({run.state}){workers}; to resume: {resume(run)}; to abort: {abort(run)}"


def _heard(progress: RunProgress) -> str:
    if not progress.run.is_open:
        return f"last heartbeat at {moment(progress.run.changed_at)}"
    if progress.in_step:
        return "in a step right now"
    missed = ": the driver may have ended" if _is_quiet(progress) else ""
    return f"last heartbeat {format_duration(progress.silent)} ago{missed}"


def _is_quiet(progress: RunProgress) -> bool:
    return progress.silent > QUIET and not progress.in_step
