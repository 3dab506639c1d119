"""Makes the plan of a reset: every target becomes an absolute offset, with its direction and what follows."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from seekpoint.admin.groups import Topics, known_group, within
from seekpoint.admin.history import last_resets
from seekpoint.admin.logs import Logs
from seekpoint.admin.mirror import require_empty
from seekpoint.admin.reset_consequences import consequences
from seekpoint.admin.reset_plan import Direction, Reset, ResetPlan
from seekpoint.admin.reset_to import ResetTo
from seekpoint.errors import ConfigError, Fenced
from seekpoint.ledger import Ledger, Position
from seekpoint.ledger.admin_actions import is_rewritten, unknown_truncation
from seekpoint.ledger.claim import DELAYED, refuse_forgotten
from seekpoint.ledger.positions import position
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import GROUPS, RESETS, arrays, asking_for
from seekpoint.records import Partition

_MOVED = ("moved_topic_id", "moved_partition", "moved_to_offset")
Targets = dict[Partition, int]


def plan_reset(
    ledger: Ledger, target: ResetTo, topics: Topics | None, *, kafka: Mapping[str, Any], timeout: float
) -> ResetPlan:
    """See :meth:`seekpoint.admin.Admin.plan_reset`."""
    # The positions are read before the logs' ends: a worker that commits in between is not past an end.
    with ledger.begin() as tx:
        group = known_group(tx)
        refuse_forgotten(group)
        forgotten = tx.execute(RESETS["last_forget"]).scalar_one()
        last = last_resets(tx)
        found = within(ledger.group, map(position, tx.execute(GROUPS["positions"])), topics)
        stored = _stored_targets(tx, target, found)
        runs = tx.execute(RESETS["open_runs_of_group"]).all()
    ids = {at: row.topic_id for at, row in found.items()}
    logs = Logs(kafka, timeout, group=ledger.group, cluster_id=group.cluster_id, topic_ids=ids)
    ranges = logs.ranges() if found else {}
    wanted = _targets(target, found, logs, ranges) if stored is None else stored
    _require(target, wanted, found, has_all=topics is None)
    resets = tuple(
        _reset(target, row, wanted[at], ranges.get(at), last.get(at)) for at, row in found.items() if at in wanted
    )
    for each in resets:
        if each.direction != "none" and each.target >= each.position and is_rewritten(found[each.at], each.log):
            raise Fenced(unknown_truncation(ledger.group, found[each.at]))
    moved = [(each.topic_id, each.partition, each.target) for each in resets if each.direction != "none"]
    with ledger.begin() as tx:
        dead = {row.state: int(row.n) for row in tx.execute(RESETS["dead_letters_from"], **arrays(moved, *_MOVED))}
    said = consequences(resets, group, runs, dead, logs.doubt)
    return ResetPlan(ledger.group, group.cluster_id, forgotten, str(target), datetime.now(UTC), resets, said)


def _stored_targets(tx: GroupConnection, target: ResetTo, found: Mapping[Partition, Position]) -> Targets | None:
    """The targets that the ledger itself has; None for those of other kinds."""
    match target.kind:
        case "group":
            other = GroupConnection(tx.connection, tx.schema, target.group)
            known_group(other)
            rows = {row.partition: row for row in map(position, other.execute(GROUPS["positions"]))}
            return {at: rows[at].next_offset for at, row in found.items() if _same(rows.get(at), row)}
        case "processed":
            asked = asking_for(list(found))
            before = tx.execute(RESETS["samples_before"], moment=target.at, **asked)
            samples = {Partition(row.topic, row.partition): row for row in before}
            return {at: samples[at].next_offset for at, row in found.items() if _same(samples.get(at), row)}
        case _:
            return None


def _same(other: Any, row: Position) -> bool:
    """Whether the other row is there, and of the same topic id."""
    return other is not None and other.topic_id == row.topic_id


def _targets(
    target: ResetTo, found: Mapping[Partition, Position], logs: Logs, ranges: Mapping[Partition, tuple[int, int]]
) -> Targets:
    match target.kind:
        case "offset":
            return dict.fromkeys(found, target.number)
        case "current":
            return {at: row.next_offset for at, row in found.items()}
        case "shift":
            return {at: max(0, row.next_offset + target.number) for at, row in found.items()}
        case "offsets":
            return dict(target.given)
        case "after-failed":
            return {at: failed + 1 for at, row in found.items() if (failed := _failed(row)) is not None}
        case _:
            return _asked(target, found, logs, ranges)


def _asked(
    target: ResetTo, found: Mapping[Partition, Position], logs: Logs, ranges: Mapping[Partition, tuple[int, int]]
) -> Targets:
    """The targets that the brokers answer."""
    if target.kind == "kafka":
        return _committed(found, logs, target.group)
    if target.at is None:
        return logs.edges(found, target.kind)
    # Records of that time may have been removed: what the group began with is the most that it can miss.
    return {
        at: min(found[at].first_offset, offset) if at in ranges and offset == ranges[at][0] else offset
        for at, offset in logs.at_time(found, target.at).items()
    }


def _committed(found: Mapping[Partition, Position], logs: Logs, group: str) -> Targets:
    """Kafka's commits. Raises Fenced for a mirror's that is not the position: it may be older, or of lost rows.

    Raises Fenced, too, where another group has members: they may commit before the plan is applied.
    """
    if found and group != logs.group:
        require_empty(logs.identity, group)
    commits = logs.commits(found, group)
    for at, commit in commits.items():
        if commit.is_mirror and commit.offset != found[at].next_offset:
            raise Fenced(
                f"the commit of group {group!r} for {at} was mirrored from a ledger, and may be older than the "
                "position there: `--to-group` takes the positions of another group of this ledger, `--from-file` "
                "those of `seekpoint offsets export`"
            )
    return {at: commit.offset for at, commit in commits.items()}


def _failed(row: Position) -> int | None:
    """The offset of the failed record that is read first from the position, None where there is none.

    Offsets before it are of no record: compaction has removed it, or it is a transaction's marker.
    """
    if row.stop is not None and row.stop.kind == "PoisonStop":
        at: int | None = row.stop.offset
    else:
        at = row.attempt_offset if row.attempt_error is not None and row.attempt_policy != DELAYED else None
    return at if at is not None and at >= row.next_offset else None


_MISSING = {
    "group": "group {0.group!r} has no position of this topic for",
    "processed": "there is no sample before {0.at} of",
    "kafka": "group {0.group!r} has no commit in Kafka for",
    "after-failed": "no failed record is at the position of",
}


def _require(target: ResetTo, wanted: Targets, found: Mapping[Partition, Position], *, has_all: bool) -> None:
    """Raise ConfigError for partitions without a target, unless the others can be reset without them."""
    if unknown := sorted(wanted.keys() - found.keys()):
        raise ConfigError(f"{target}: {unknown[0]} is not among the partitions to reset, or has no stored offset")
    missing = sorted(found.keys() - wanted.keys())
    if missing and target.kind in _MISSING and not (target.kind == "after-failed" and has_all):
        said = _MISSING[target.kind].format(target)
        raise ConfigError(
            f"{said} {', '.join(map(str, missing))}: leave them out with --topic, or choose another target"
        )


def _reset(target: ResetTo, row: Position, wanted: int, log: tuple[int, int] | None, last: int | None) -> Reset:
    """One partition's part. Raises ConfigError for a target after the end of the log."""
    at, offset = row.partition, wanted
    if log is not None:
        if wanted > log[1]:
            raise ConfigError(
                f"{at}: {wanted} is past the end of the log ({target}); the log has offsets {log[0]} to {log[1]}"
            )
        offset = max(wanted, log[0])
    return Reset(
        topic=at.topic,
        partition=at.number,
        topic_id=row.topic_id,
        position=row.next_offset,
        target=offset,
        wanted=wanted,
        last_reset=last,
        log=log,
        direction=_direction(target, row.next_offset, offset),
        is_exact=target.kind == "after-failed",
    )


def _direction(target: ResetTo, at: int, offset: int) -> Direction:
    if offset == at:
        return "backward" if target.kind == "current" else "none"
    return "forward" if offset > at else "backward"
