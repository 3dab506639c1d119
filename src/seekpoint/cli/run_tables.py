"""Runs of reloads and batches on a terminal and for programs: where they stand, and what can be done next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

from rich.table import Table

from seekpoint.cli.dead_letter_tables import moment, numbered, plain, table
from seekpoint.cli.errors import masked
from seekpoint.cli.progress import lasting
from seekpoint.jobs.reload import Difference, Report, Run
from seekpoint.jobs.runs.progress import PartitionProgress, RunProgress

QUIET = timedelta(minutes=2)  # a driver that says nothing for so long, and is in no step, is looked for
_PLACES = ("group", "topic", "partition", "first", "next", "end", "live", "left")
_NUMERIC = frozenset({"partition", "first", "next", "end", "live", "left"})


def listed(runs: Sequence[Run]) -> Table:
    """Runs, one per line."""
    return table(
        "runs",
        ("id", "strategy", "state", "tables", "groups", "opened at", "heard of", "error"),
        (
            (
                *(run.id, run.strategy, state(run), ", ".join(run.tables), ", ".join(run.groups)),
                *(moment(run.opened_at), moment(run.changed_at), shortened(None if run.is_verified else run.error)),
            )
            for run in runs
        ),
        numeric=(),
    )


def shortened(error: str | None) -> str:
    """The first line of an error, without passwords."""
    said = masked(error or "").replace("\n", " ")
    return said if len(said) <= 80 else f"{said[:79]}…"


def state(run: Run) -> str:
    """The state, and what is left behind; of a verify that came to its end, that it did."""
    word = "verified" if run.is_verified else run.state
    return word if run.is_open or run.swept else f"{word}, not swept"


def as_dict(run: Run) -> dict[str, Any]:
    """One run for programs."""
    return {
        "id": str(run.id),
        "strategy": run.strategy,
        "state": run.state,
        "is_verified": run.is_verified,
        "is_open": run.is_open,
        "swept": run.swept,
        "groups": list(run.groups),
        "pipelines": list(run.pipelines),
        "tables": list(run.tables),
        "version_from": list(run.version_from),
        "version_to": list(run.version_to),
        "driver": run.driver,
        "driver_epoch": run.driver_epoch,
        "opened_at": run.opened_at.isoformat(),
        "heard_of_at": run.changed_at.isoformat(),
        "actor": run.actor,
        "reason": run.reason,
        "error": None if run.error is None else masked(run.error),
    }


def difference(found: Difference) -> dict[str, Any]:
    """The counts of one table's comparison for programs."""
    return {name: getattr(found, name) for name in ("table", "equal", "missing", "extra", "different")}


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
    yield f"{run.strategy if run.strategy in {'batch', 'verify'} else 'reload'} {run.id}: {state(run)}"
    yield _field("strategy", run.strategy)
    yield _field("tables", ", ".join(run.tables))
    for group, name, old, new in zip(run.groups, run.pipelines, run.version_from, run.version_to, strict=True):
        versions = f"version {old}" if old == new else f"version {old} → {new}"
        yield _field("group", f"{group}, {versions}{f', {name}' if name else ''}")
    yield _field("opened", f"{moment(run.opened_at)} by {run.actor}: {run.reason}")
    yield _field("driver", f"{run.driver} (epoch {run.driver_epoch}), {_heard(at)}")
    if at.left is not None:
        yield _field("left", f"{numbered(at.left, 'offset')} in {numbered(len(at.places), 'partition')}")
    if run.error and not run.is_verified:
        yield _field("error", masked(run.error))


def places(at: RunProgress) -> Table:
    """Its partitions."""
    return table("", _PLACES, (_row(place, at) for place in at.places), numeric=_NUMERIC)


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
            yield f"go on{alone}: {resume(run)}"
        yield f"give it up: {abort(run)}"
    elif not run.swept:
        yield "drop what it left behind: seekpoint reload sweep"
    elif run.state != "cut_over" and run.strategy != "verify":
        yield f"begin again: {begin(run)}"


def begin(run: Run) -> str:
    """The command that opens one like it."""
    names = " ".join(shlex.quote(name or "MODULE:NAME") for name in run.pipelines)
    if run.strategy == "batch":
        return f"seekpoint batch {names}"
    strategy = "" if run.strategy == "merge" else f" --strategy {run.strategy}"
    return f"seekpoint reload run {names}{strategy}"


def resume(run: Run) -> str:
    """The command that goes on with it."""
    names = " ".join(shlex.quote(name or "MODULE:NAME") for name in run.pipelines)
    return f"seekpoint {'batch' if run.strategy == 'batch' else 'reload run'} {names} --resume {run.id}"


def abort(run: Run) -> str:
    """The command that gives it up."""
    return f"seekpoint reload abort {run.id} --reason '…'"


def left_open(run: Run) -> str:
    """What is said of a run whose driver ends here."""
    workers = "" if run.strategy == "batch" else ", workers go on"
    return f"{run.id} is left open ({run.state}){workers}; to go on: {resume(run)}; to give it up: {abort(run)}"


def _heard(at: RunProgress) -> str:
    if not at.run.is_open:
        return f"last heard of at {moment(at.run.changed_at)}"
    if at.in_step:
        return "in a step right now"
    missed = ": it may be gone" if _is_quiet(at) else ""
    return f"last heard of {lasting(at.silent.total_seconds())} ago{missed}"


def _is_quiet(at: RunProgress) -> bool:
    return at.silent > QUIET and not at.in_step


def _field(name: str, said: str) -> str:
    return f"  {name:<9} {plain(said)}"
