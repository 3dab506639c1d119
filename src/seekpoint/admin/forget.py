"""Forgets a group that has ended: plans the deletion, carries it out, and undoes it.

The group's row and history stay. The row gets the positions, and the undo restores them from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb
from sqlalchemy import Row

from seekpoint import remedies
from seekpoint.admin.attribution import Attribution
from seekpoint.admin.export_group import Exported, export_group
from seekpoint.admin.groups import known_group
from seekpoint.admin.purges import by_state
from seekpoint.errors import ConfigError, Fenced
from seekpoint.ledger import GroupLedger
from seekpoint.ledger.admin_actions import record_action
from seekpoint.ledger.repeats import tables_with_sums
from seekpoint.ledger.schema_connection import GroupConnection, SchemaConnection
from seekpoint.ledger.sql import FORGET, GROUPS, PURGE, RESETS
from seekpoint.records import numbered


@dataclass(frozen=True, slots=True)
class ForgottenGroup:
    """A forgotten group, with its number of partitions; ``run --accept-forgotten`` takes ``forgotten_at``."""

    name: str
    by: str
    reason: str
    forgotten_at: str
    partitions: int


@dataclass(frozen=True, slots=True)
class ForgetPlan:
    """A plan to forget a group, or to undo that (``undo``); ``consequences`` in words.

    ``dead_letters`` counts dead letters by state, ``run_dead_letters`` those of reprocesses, ``requests`` replay
    requests. Dead letters and lost ranges are first written to the file ``export_to``, unless it is None.
    ``forgotten_at`` is when the group was forgotten, if it is.
    """

    group: str
    undo: bool
    paused_by: str | None
    paused_reason: str | None
    forgotten_at: str | None
    partitions: int
    dead_letters: Mapping[str, int]
    lost_ranges: int
    export_to: Path | None
    consequences: tuple[str, ...]
    run_dead_letters: int = 0
    requests: int = 0

    @property
    def is_done(self) -> bool:
        """Whether there is nothing to do."""
        return self.undo == (self.forgotten_at is None)


@dataclass(frozen=True, slots=True)
class ForgetResult:
    """How many rows were deleted or restored; ``run_dead_letters`` are those of reprocesses.

    ``file`` has the deleted dead letters and lost ranges, if it was written.
    """

    partitions: int
    dead_letters: int = 0
    lost_ranges: int = 0
    file: Path | None = None
    run_dead_letters: int = 0


def forgotten_groups(tx: SchemaConnection) -> list[ForgottenGroup]:
    """The forgotten groups, by name."""
    return [_forgotten(row.name, row.forgotten) for row in tx.execute(FORGET["forgotten"])]


def _forgotten(name: str, stored: Mapping[str, Any]) -> ForgottenGroup:
    return ForgottenGroup(name, stored["by"], stored["reason"], stored["at"], len(stored["positions"]))


_COUNTS = {
    "partitions": FORGET["count_positions"],
    "lost_ranges": FORGET["count_losses"],
    "run_dead_letters": FORGET["count_run_dead_letters"],
    "requests": FORGET["count_requests"],
}


def plan_forget(ledger: GroupLedger, export_to: Path | None) -> ForgetPlan:
    """A plan to forget the group. Raises ConfigError if it is unknown; Fenced if it is not paused, or a run is open."""
    with ledger.begin() as tx:
        row = known_group(tx)
        if row.forgotten is not None:
            return _plan(ledger, row, undo=False)
        _require_stopped(tx, row)
        counts = {count.state: int(count.n) for count in tx.execute(FORGET["count_dead_letters"])}
        numbers = {name: int(tx.execute(statement).scalar_one()) for name, statement in _COUNTS.items()}
    file = export_to if counts or numbers["lost_ranges"] or numbers["run_dead_letters"] else None
    if file is not None and file.exists():
        raise ConfigError(f"{file} already exists, and is not overwritten: name another file with --export")
    return _plan(ledger, row, undo=False, dead_letters=counts, export_to=file, **numbers)


def plan_undo(ledger: GroupLedger) -> ForgetPlan:
    """A plan to restore the group. Raises ConfigError if it is unknown."""
    with ledger.begin() as tx:
        row = known_group(tx)
    return _plan(ledger, row, undo=True, partitions=len((row.forgotten or {}).get("positions", ())))


def _plan(ledger: GroupLedger, row: Row[Any], *, undo: bool, **details: Any) -> ForgetPlan:
    stored = row.forgotten or {}
    counts = {"dead_letters": {}, "export_to": None, **dict.fromkeys(_COUNTS, 0), **details}
    consequences = tuple(_undo_in_words(row, counts["partitions"]) if undo else _in_words(row, **counts))
    return ForgetPlan(
        group=ledger.group,
        undo=undo,
        paused_by=row.paused_by,
        paused_reason=row.paused_reason,
        forgotten_at=stored.get("at"),
        consequences=consequences,
        **counts,
    )


def _in_words(
    row: Row[Any],
    *,
    partitions: int,
    dead_letters: Mapping[str, int],
    lost_ranges: int,
    run_dead_letters: int,
    requests: int,
    export_to: Path | None,
) -> Iterator[str]:
    positions = f"the positions of {numbered(partitions, 'partition')}"
    yield f"{positions} are removed from the ledger's views; --undo restores them"
    if dead_letters:
        yield f"{_deleted(sum(dead_letters.values()), 'dead letter')}: {by_state(dead_letters)}"
    if lost_ranges:
        yield _deleted(lost_ranges, "lost range")
    if run_dead_letters:
        yield _deleted(run_dead_letters, "dead letter", " of reprocesses")
    if dead_letters or lost_ranges or run_dead_letters:
        yield "no copy of these is written" if export_to is None else f"a copy of these is written to {export_to} first"
    if requests:
        yield _deleted(requests, "replay request")
    if row.tables:
        yield f"rows stay in {', '.join(sorted(row.tables))}"
    if sums := sorted({table for topic in row.declared or {} for table in tables_with_sums(row.declared, topic)}):
        yield f"a group that begins again adds its records again to the sums in {', '.join(sums)}: empty these first"
    yield "workers of this group end, and are refused until --undo, or a start with --accept-forgotten"
    yield "the history of the group stays"


def _deleted(count: int, noun: str, which: str = "") -> str:
    return f"{numbered(count, noun)}{which} {'is' if count == 1 else 'are'} deleted"


def _undo_in_words(row: Row[Any], partitions: int) -> Iterator[str]:
    if row.forgotten is not None:
        positions = f"the positions of {numbered(partitions, 'partition')}"
        yield f"{positions} are restored; the group is paused, until it is resumed"
        yield "deleted dead letters and lost ranges stay deleted"


def _require_stopped(tx: GroupConnection, row: Row[Any]) -> None:
    """Raise Fenced if workers or jobs may write in the group's name."""
    if not row.paused:
        raise Fenced(f"group {row.name!r} is not paused, so its workers may be running: {remedies.pause(row.name)}")
    if runs := tx.execute(RESETS["open_runs_of_group"]).all():
        raise Fenced(
            f"group {row.name!r} has an open run, {runs[0].id} ({runs[0].strategy}, {runs[0].state}): let it end, or "
            f"seekpoint reload abort {runs[0].id} --reason WHY"
        )


def apply_forget(ledger: GroupLedger, plan: ForgetPlan, attribution: Attribution) -> ForgetResult:
    """Carry out the plan in one transaction. Raises Fenced if the group has changed since planning."""
    with ledger.begin(lock_wait=ledger.limits.transaction_age) as tx:
        row = tx.execute(GROUPS["lock"]).one_or_none()
        if row is None:
            raise Fenced(f"there is no group {plan.group!r} in the ledger any more: nothing was done")
        _require_same(row, plan)
        if plan.undo:
            result = _restore(tx, row)
        else:
            _require_stopped(tx, row)
            result = _forget(tx, plan, attribution)
        action = "undo forget" if plan.undo else "forget"
        runs = f", {numbered(result.run_dead_letters, 'dead letter')} of reprocesses" if result.run_dead_letters else ""
        deleted = f"{numbered(result.dead_letters, 'dead letter')}, {numbered(result.lost_ranges, 'lost range')}{runs}"
        numbers = "" if plan.undo else f" ({deleted})"
        record_action(tx, action, actor=attribution.actor, reason=f"{attribution.reason}{numbers}")
        return result


def _require_same(row: Row[Any], plan: ForgetPlan) -> None:
    forgotten_at = (row.forgotten or {}).get("at")
    if (row.paused_by, row.paused_reason, forgotten_at) != (plan.paused_by, plan.paused_reason, plan.forgotten_at):
        state = "forgotten" if forgotten_at else f"paused by {row.paused_by}" if row.paused else "not paused"
        raise Fenced(
            f"group {plan.group!r} has changed since the plan was made, and is {state} now: nothing was done; "
            "make another plan"
        )


def _forget(tx: GroupConnection, plan: ForgetPlan, attribution: Attribution) -> ForgetResult:
    """Move the positions into the group's row, and delete the other rows. Raises Fenced if the file lacks one (I4)."""
    positions = [_position(row) for row in tx.execute(FORGET["lock_positions"])]
    topics = [{name: getattr(row, name) for name in _TOPIC} for row in tx.execute(FORGET["topics"])]
    exported = None if plan.export_to is None else export_group(tx, plan.export_to)
    deletes = (FORGET["delete_dead_letters"], FORGET["delete_losses"], FORGET["delete_run_dead_letters"])
    deleted = Exported(*(tx.execute(statement).rowcount for statement in deletes))
    planned = Exported(sum(plan.dead_letters.values()), plan.lost_ranges, plan.run_dead_letters)
    # A reset since the plan may have added lost ranges.
    for source, count in (("the file", exported), ("the plan", planned)):
        if count not in {None, deleted}:
            if plan.export_to is not None:  # remove the file: the next plan may use its name
                plan.export_to.unlink(missing_ok=True)
            raise Fenced(f"{source} has {count}, but {deleted} would be deleted: nothing was done; make another plan")
    other_deletes = (FORGET["delete_requests"], FORGET["delete_samples"], FORGET["delete_workers"])
    for delete in (FORGET["delete_positions"], FORGET["delete_topics"], *other_deletes):
        tx.execute(delete)
    now = tx.execute(PURGE["clock"]).scalar_one().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    forgotten = {
        "at": now,
        "by": attribution.actor,
        "reason": attribution.reason,
        "positions": positions,
        "topics": topics,
    }
    tx.execute(FORGET["forget"], forgotten=Jsonb(forgotten))
    return ForgetResult(
        len(positions), deleted.dead_letters, deleted.lost_ranges, plan.export_to, deleted.run_dead_letters
    )


def _restore(tx: GroupConnection, row: Row[Any]) -> ForgetResult:
    stored = row.forgotten
    if positions := [_of_position(position) for position in stored["positions"]]:
        tx.execute(FORGET["restore_position"], positions)
    if topics := [{name: topic[name] for name in _TOPIC} for topic in stored["topics"]]:
        tx.execute(FORGET["restore_topic"], topics)
    tx.execute(FORGET["remember"])
    return ForgetResult(len(positions))


# The columns of a row in the JSON, which keeps these names even if a migration renames a column.
_POSITION = ("topic", "partition", "topic_id", "first_offset", "next_offset", "leader_epoch", "epoch")
_TIMES = ("committed_at", "record_time")
_TOPIC = ("topic", "version", "tables", "replaced")


def _position(row: Row[Any]) -> dict[str, Any]:
    columns = {name: getattr(row, name) for name in _POSITION} | {"topic_id": str(row.topic_id)}
    return columns | {name: None if (time := getattr(row, name)) is None else time.isoformat() for name in _TIMES}


def _of_position(stored: Mapping[str, Any]) -> dict[str, Any]:
    columns = {name: stored[name] for name in _POSITION} | {"topic_id": UUID(stored["topic_id"])}
    columns["epoch"] += 1  # the epoch counts tokens, and the row gets a new one
    times = {name: None if stored[name] is None else datetime.fromisoformat(stored[name]) for name in _TIMES}
    return columns | times
