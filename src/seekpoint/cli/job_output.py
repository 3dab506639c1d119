"""Runs of reloads and batches on a terminal and for programs: their progress, and what can be done next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import typer

from seekpoint.cli.errors import masked, plain
from seekpoint.cli.output import cut, field, moment, numbered, print_table
from seekpoint.cli.progress_bar import ago_of, lasting
from seekpoint.jobs.reload import Report, Run
from seekpoint.jobs.run_progress import PartitionProgress, RunProgress
from seekpoint.ledger.tables import BATCHES

WIDTH = 100  # characters of a line
_COLUMNS = ("id", "strategy", "state", "opened", "tables")
QUIET = timedelta(minutes=2)  # a driver that says nothing for so long, and is in no step, may be gone
_OF_A_RUN = (
    *("id", "strategy", "state", "is_open", "swept", "groups", "pipelines", "tables", "version_from"),
    *("version_to", "driver", "driver_epoch", "opened_at", "actor", "reason"),
)
_PLACES = ("group", "topic", "partition", "first", "next", "end", "live", "left")
_NUMERIC = frozenset({"partition", "first", "next", "end", "live", "left"})


def print_list(runs: Sequence[Run]) -> None:
    """Runs, one per line of a hundred characters; below, what ended those that failed."""
    rows = [(str(run.id), run.strategy, state(run), ago_of(run.opened_at)) for run in runs]
    widths = [max(map(len, column)) for column in zip(_COLUMNS[:-1], *rows, strict=True)]
    room = WIDTH - sum(width + 2 for width in widths) - 2
    tables = (cut(", ".join(run.tables), room) for run in runs)
    print_table("runs", _COLUMNS, [(*row, its) for row, its in zip(rows, tables, strict=True)], numeric=())
    for run in runs:
        if run.error:
            typer.echo(plain(f"{run.id}: {cut(run.error, WIDTH - len(str(run.id)) - 2)}"))
    typer.echo("`seekpoint reload status ID` has one run's groups, driver, partitions and whole error")


def state(run: Run) -> str:
    """The state, and whether something is left to sweep."""
    return run.state if run.is_open or run.swept else f"{run.state}, not swept"


def as_dict(run: Run) -> dict[str, Any]:
    """One run for programs."""
    return {name: getattr(run, name) for name in _OF_A_RUN} | {
        "heard_of_at": run.changed_at,
        "error": None if run.error is None else masked(run.error),
    }


def differences(report: Report) -> Iterator[str]:
    """What a merge is going to change, a line for each table."""
    for one in report.tables:
        yield (
            f"{plain(one.table)}: {one.equal:,} rows are equal; {one.missing:,} are missing and will be added, "
            f"{one.extra:,} are extra and will be deleted, {one.different:,} are different and will be changed"
        )


def progress_as_dict(at: RunProgress) -> dict[str, Any]:
    """One run with its partitions for programs."""
    return as_dict(at.run) | {
        "in_step": at.in_step,
        "silent_seconds": round(at.silent.total_seconds(), 3),
        "left": at.left,
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
                "left": place.left(at.run.strategy) if at.run.is_open else None,
            }
            for place in at.places
        ],
        "next": list(choices(at)),
    }


def shown(at: RunProgress) -> Iterator[str]:
    """One run, line by line."""
    run = at.run
    yield f"{run.kind} {run.id}: {state(run)}"
    yield field("strategy", run.strategy)
    yield field("tables", ", ".join(run.tables))
    for group, name, old, new in zip(run.groups, run.pipelines, run.version_from, run.version_to, strict=True):
        versions = f"version {old}" if old == new else f"version {old} → {new}"
        yield field("group", f"{group}, {versions}{f', {name}' if name else ''}")
    yield field("opened", f"{moment(run.opened_at)} by {run.actor}: {run.reason}")
    yield field("driver", f"{run.driver} (epoch {run.driver_epoch}), {_heard(at)}")
    if at.left is not None:
        yield field("left", f"{numbered(at.left, 'offset')} in {numbered(len(at.places), 'partition')}")
    if run.error:
        yield field("error", masked(run.error))


def print_places(at: RunProgress) -> None:
    """Its partitions."""
    print_table("", _PLACES, (_row(place, at) for place in at.places), numeric=_NUMERIC)


def _row(place: PartitionProgress, at: RunProgress) -> Sequence[object]:
    done = place.next + place.staged  # of what is staged and not consolidated, there is no one offset before all
    left = place.left(at.run.strategy) if at.run.is_open else None
    where = (place.group, place.partition.topic, place.partition.number)
    return (*where, place.first, done, place.end, place.live, left)


def choices(at: RunProgress) -> Iterator[str]:
    """What can be done next, as commands with their reason."""
    run = at.run
    if run.is_open:
        if run.strategy != "verify":
            alone = "" if _is_quiet(at) else ", if its driver has ended"
            yield f"resume{alone}: {resume(run)}"
        yield f"abort: {abort(run)}"
    elif not run.swept:
        yield "drop what it left: seekpoint reload sweep"
    elif run.state != "cut_over" and run.strategy != "verify":
        yield f"begin again: {begin(at)}"


def begin(at: RunProgress) -> str:
    """The command that opens one like it."""
    if at.run.strategy == "reprocess":
        [place] = at.places
        topic, number = place.partition
        return f"{_command(at.run)} --range {topic}:{number}:{place.first}..{place.end} --reason '…'"
    return _command(at.run) + ("" if at.run.strategy in {"batch", "merge"} else f" --strategy {at.run.strategy}")


def resume(run: Run) -> str:
    """The command that resumes it."""
    return f"{_command(run)} --resume {run.id}"


def _command(run: Run) -> str:
    names = " ".join(shlex.quote(name or "MODULE:NAME") for name in run.pipelines)
    return f"seekpoint {'batch' if run.strategy in BATCHES else 'reload run'} {names}"


def abort(run: Run) -> str:
    """The command that gives it up."""
    return f"seekpoint reload abort {run.id} --reason '…'"


def left_open(run: Run) -> str:
    """What is said of a run whose driver ends here."""
    workers = "" if run.strategy == "batch" else ", workers continue"
    return f"{run.id} is left open ({run.state}){workers}; to resume: {resume(run)}; to abort: {abort(run)}"


def _heard(at: RunProgress) -> str:
    if not at.run.is_open:
        return f"last heard of at {moment(at.run.changed_at)}"
    if at.in_step:
        return "in a step right now"
    missed = ": it may be gone" if _is_quiet(at) else ""
    return f"last heard of {lasting(at.silent.total_seconds())} ago{missed}"


def _is_quiet(at: RunProgress) -> bool:
    return at.silent > QUIET and not at.in_step
