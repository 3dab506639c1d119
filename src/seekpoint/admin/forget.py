"""Forgetting a group that has ended: a plan that counts what goes, its execution, and the undo.

The group's row and its history stay. Its positions move into that row: the undo puts them back.
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

from seekpoint.admin.by import By
from seekpoint.admin.export_group import Exported, export_group
from seekpoint.admin.groups import known_group
from seekpoint.errors import ConfigError, Fenced
from seekpoint.ledger import Ledger
from seekpoint.ledger.admin_actions import record_action
from seekpoint.ledger.schema_connection import GroupConnection, SchemaConnection
from seekpoint.ledger.sql import FORGET, GROUPS, PURGE, RESETS


@dataclass(frozen=True, slots=True)
class ForgottenGroup:
    """A group that was forgotten, and the number of its partitions; ``at`` as a start that accepts it names it."""

    name: str
    by: str
    reason: str
    at: str
    partitions: int


@dataclass(frozen=True, slots=True)
class ForgetPlan:
    """To forget a group, or to undo that (``undo``), as it was when the plan was made; ``consequences`` in words.

    ``dead_letters`` are their numbers by state; they and ``lost_ranges`` are written to ``export_to`` first, None: to
    no file. ``forgotten_at`` is when the group was forgotten, None where it is not. ``run_dead_letters`` are those of
    reprocesses, and are written to the file, too. ``requests`` are those of replays.
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
    """What went, or came back: partitions, dead letters, lost ranges; and the file with the last two, if any."""

    partitions: int
    dead_letters: int = 0
    lost_ranges: int = 0
    file: Path | None = None


def forgotten_groups(tx: SchemaConnection) -> list[ForgottenGroup]:
    """The groups that are forgotten, by name."""
    return [_forgotten(row.name, row.forgotten) for row in tx.execute(FORGET["forgotten"])]


def _forgotten(name: str, stored: Mapping[str, Any]) -> ForgottenGroup:
    return ForgottenGroup(name, stored["by"], stored["reason"], stored["at"], len(stored["positions"]))


_COUNTS = {
    "partitions": FORGET["count_positions"],
    "lost_ranges": FORGET["count_losses"],
    "run_dead_letters": FORGET["count_run_dead_letters"],
    "requests": FORGET["count_requests"],
}


def plan_forget(ledger: Ledger, export_to: Path | None) -> ForgetPlan:
    """Raises ConfigError for an unknown group, Fenced for one that is not paused or has an open run."""
    with ledger.begin() as tx:
        row = known_group(tx)
        if row.forgotten is not None:
            return _plan(ledger, row, undo=False)
        _require_stopped(tx, row)
        counts = {each.state: int(each.n) for each in tx.execute(FORGET["count_dead_letters"])}
        numbers = {name: int(tx.execute(each).scalar_one()) for name, each in _COUNTS.items()}
    file = export_to if counts or numbers["lost_ranges"] or numbers["run_dead_letters"] else None
    if file is not None and file.exists():
        raise ConfigError(f"{file} is there already, and is not written over: name another file with --export")
    return _plan(ledger, row, undo=False, dead_letters=counts, export_to=file, **numbers)


def plan_undo(ledger: Ledger) -> ForgetPlan:
    """Raises ConfigError for an unknown group."""
    with ledger.begin() as tx:
        row = known_group(tx)
    return _plan(ledger, row, undo=True, partitions=len((row.forgotten or {}).get("positions", ())))


def _plan(ledger: Ledger, row: Row[Any], *, undo: bool, **found: Any) -> ForgetPlan:
    stored = row.forgotten or {}
    counts = {"dead_letters": {}, "export_to": None, **dict.fromkeys(_COUNTS, 0), **found}
    said = tuple(_undo_in_words(row, counts["partitions"]) if undo else _in_words(row, **counts))
    return ForgetPlan(
        group=ledger.group,
        undo=undo,
        paused_by=row.paused_by,
        paused_reason=row.paused_reason,
        forgotten_at=stored.get("at"),
        consequences=said,
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
    yield f"the positions of {partitions} partitions leave the ledger's views; --undo puts them back"
    if dead_letters:
        by_state = ", ".join(f"{count:,} {state}" for state, count in sorted(dead_letters.items()))
        yield f"{sum(dead_letters.values()):,} dead letters are deleted: {by_state}"
    if lost_ranges:
        yield f"{lost_ranges:,} lost ranges are deleted"
    if run_dead_letters:
        yield f"{run_dead_letters:,} dead letters of reprocesses are deleted"
    if dead_letters or lost_ranges or run_dead_letters:
        yield "no copy of these is written" if export_to is None else f"a copy of these is written to {export_to} first"
    if requests:
        yield f"{requests:,} replay requests are deleted"
    if row.tables:
        yield f"rows stay in {', '.join(sorted(row.tables))}"
    yield "workers under this name end, and are refused until --undo, or a start with --accept-forgotten"
    yield "the history of the group stays"


def _undo_in_words(row: Row[Any], partitions: int) -> Iterator[str]:
    if row.forgotten is not None:
        yield f"the positions of {partitions} partitions are as they were; the group is paused, until it is resumed"
        yield "deleted dead letters and lost ranges stay deleted"


def _require_stopped(tx: GroupConnection, row: Row[Any]) -> None:
    """Raise Fenced where workers or jobs may write in the group's name."""
    if not row.paused:
        raise Fenced(
            f"group {row.name!r} is not paused, and its workers may run: seekpoint groups pause {row.name} --apply "
            "--reason WHY"
        )
    if runs := tx.execute(RESETS["open_runs_of_group"]).all():
        raise Fenced(
            f"group {row.name!r} has an open run, {runs[0].id} ({runs[0].strategy}, {runs[0].state}): let it end, or "
            f"seekpoint reload abort {runs[0].id} --reason WHY"
        )


def apply_forget(ledger: Ledger, plan: ForgetPlan, by: By) -> ForgetResult:
    """Carry the plan out, in one transaction. Raises Fenced where the group is not as it was when it was made."""
    with ledger.begin(lock_wait=ledger.limits.transaction_age) as tx:
        row = tx.execute(GROUPS["lock"]).one_or_none()
        if row is None:
            raise Fenced(f"there is no group {plan.group!r} in the ledger any more: nothing was done")
        _require_same(row, plan)
        if plan.undo:
            result = _restore(tx, row)
        else:
            _require_stopped(tx, row)
            result = _forget(tx, plan, by)
        action = "undo forget" if plan.undo else "forget"
        gone = "" if plan.undo else f" ({result.dead_letters} dead letters, {result.lost_ranges} lost ranges)"
        record_action(tx, action, actor=by.actor, reason=f"{by.reason}{gone}")
        return result


def _require_same(row: Row[Any], plan: ForgetPlan) -> None:
    at = (row.forgotten or {}).get("at")
    if (row.paused_by, row.paused_reason, at) != (plan.paused_by, plan.paused_reason, plan.forgotten_at):
        now = "forgotten" if at else f"paused by {row.paused_by}" if row.paused else "not paused"
        raise Fenced(f"group {plan.group!r} is {now} since the plan was made: nothing was done; make another plan")


def _forget(tx: GroupConnection, plan: ForgetPlan, by: By) -> ForgetResult:
    """Move the positions into the group's row, and delete the rest; nothing that is not in the file (I4)."""
    positions = [_position(each) for each in tx.execute(FORGET["lock_positions"])]
    topics = [{name: getattr(each, name) for name in _TOPIC} for each in tx.execute(FORGET["topics"])]
    exported = None if plan.export_to is None else export_group(tx, plan.export_to)
    deletes = (FORGET["delete_dead_letters"], FORGET["delete_losses"], FORGET["delete_run_dead_letters"])
    deleted = Exported(*(tx.execute(each).rowcount for each in deletes))
    planned = Exported(sum(plan.dead_letters.values()), plan.lost_ranges, plan.run_dead_letters)
    if exported not in {None, deleted}:
        raise Fenced(f"the file has {exported}, and {deleted} would be deleted: nothing was done; make another plan")
    if deleted != planned:  # while a group is paused it can be reset
        raise Fenced(f"the plan has {planned}, and {deleted} would be deleted: nothing was done; make another plan")
    rest = (FORGET["delete_requests"], FORGET["delete_samples"], FORGET["delete_workers"])
    for each in (FORGET["delete_positions"], FORGET["delete_topics"], *rest):
        tx.execute(each)
    at = tx.execute(PURGE["clock"]).scalar_one().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    found = {"at": at, "by": by.actor, "reason": by.reason, "positions": positions, "topics": topics}
    tx.execute(FORGET["forget"], forgotten=Jsonb(found))
    return ForgetResult(len(positions), deleted.dead_letters, deleted.lost_ranges, plan.export_to)


def _restore(tx: GroupConnection, row: Row[Any]) -> ForgetResult:
    stored = row.forgotten
    if positions := [_of_position(each) for each in stored["positions"]]:
        tx.execute(FORGET["restore_position"], positions)
    if topics := [{name: each[name] for name in _TOPIC} for each in stored["topics"]]:
        tx.execute(FORGET["restore_topic"], topics)
    tx.execute(FORGET["remember"])
    return ForgetResult(len(positions))


# What is kept of a row. The names are those of the JSON: where a migration renames a column, they stay.
_POSITION = ("topic", "partition", "topic_id", "first_offset", "next_offset", "leader_epoch", "epoch")
_TIMES = ("committed_at", "record_time")
_TOPIC = ("topic", "version", "tables", "replaced")


def _position(row: Row[Any]) -> dict[str, Any]:
    kept = {name: getattr(row, name) for name in _POSITION} | {"topic_id": str(row.topic_id)}
    return kept | {name: None if (at := getattr(row, name)) is None else at.isoformat() for name in _TIMES}


def _of_position(stored: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: stored[name] for name in _POSITION} | {"topic_id": UUID(stored["topic_id"])}
    kept["epoch"] += 1  # it counts tokens, and the row gets a new one
    times = {name: None if stored[name] is None else datetime.fromisoformat(stored[name]) for name in _TIMES}
    return kept | times
