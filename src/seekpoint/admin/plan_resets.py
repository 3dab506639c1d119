"""Plans a reset: turns targets into absolute offsets, with directions and consequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from seekpoint.admin.groups import Topics, known_group, within
from seekpoint.admin.history import last_resets
from seekpoint.admin.logs import Logs
from seekpoint.admin.mirror import require_empty
from seekpoint.admin.reset_consequences import consequences
from seekpoint.admin.reset_plan import Direction, Reset, ResetPlan
from seekpoint.admin.reset_to import ResetTo
from seekpoint.admin.samples import positions_at
from seekpoint.errors import ConfigError, Fenced
from seekpoint.ledger import GroupLedger, Position
from seekpoint.ledger.admin_actions import is_rewritten, unknown_truncation
from seekpoint.ledger.claim import DELAYED, refuse_forgotten
from seekpoint.ledger.positions import position
from seekpoint.ledger.repeats import is_applied_again, tables_with_sums
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import GROUPS, RESETS, arrays
from seekpoint.records import Partition

_MOVED = ("moved_topic_id", "moved_partition", "moved_to_offset")
Targets = dict[Partition, int]


def plan_reset(
    ledger: GroupLedger, target: ResetTo, topics: Topics | None, *, kafka: Mapping[str, Any], timeout: float
) -> ResetPlan:
    """See :meth:`seekpoint.admin.Admin.plan_reset`."""
    # Positions first, then the logs' ends: otherwise a worker's commit in between would put a position past an end.
    with ledger.begin() as tx:
        group = known_group(tx)
        refuse_forgotten(group)
        forgotten = tx.execute(RESETS["last_forget"]).scalar_one()
        last = last_resets(tx)
        positions = within(ledger.group, map(position, tx.execute(GROUPS["positions"])), topics)
        stored = _stored_targets(tx, target, positions)
        runs = tx.execute(RESETS["open_runs_of_group"]).all()
    ids = {partition: row.topic_id for partition, row in positions.items()}
    logs = Logs(kafka, timeout, group=ledger.group, cluster_id=group.cluster_id, topic_ids=ids)
    ranges = logs.ranges() if positions else {}
    targets = _targets(target, positions, logs, ranges) if stored is None else stored
    _require(target, targets, positions, has_all=topics is None)
    resets = tuple(
        _reset(target, row, targets[partition], ranges.get(partition), last.get(partition))
        for partition, row in positions.items()
        if partition in targets
    )
    for reset in resets:
        if (
            reset.direction != "none"
            and reset.target >= reset.position
            and is_rewritten(positions[reset.topic_partition], reset.log)
        ):
            raise Fenced(unknown_truncation(ledger.group, positions[reset.topic_partition]))
    moved = [(reset.topic_id, reset.partition, reset.target) for reset in resets if reset.direction != "none"]
    with ledger.begin() as tx:
        twice = _counted_twice(tx, resets, positions, group.declared)
        dead = {row.state: int(row.n) for row in tx.execute(RESETS["dead_letters_from"], **arrays(moved, *_MOVED))}
    sentences = consequences(resets, group, runs, dead, logs.doubt, twice=twice)
    return ResetPlan(
        ledger.group, group.cluster_id, forgotten, str(target), datetime.now(UTC), resets, sentences, counts_twice=twice
    )


def _counted_twice(
    tx: GroupConnection,
    resets: Sequence[Reset],
    positions: Mapping[Partition, Position],
    declared: Mapping[str, Any] | None,
) -> tuple[str, ...]:
    """The tables whose sums would count records twice."""
    tables: set[str] = set()
    for reset in resets:
        end = reset.log[1] if reset.log is not None and reset.is_past_end else None
        if reset.direction == "backward" and is_applied_again(tx, positions[reset.topic_partition], reset.target, end):
            tables.update(tables_with_sums(declared, reset.topic))
    return tuple(sorted(tables))


def _stored_targets(tx: GroupConnection, target: ResetTo, positions: Mapping[Partition, Position]) -> Targets | None:
    """Targets that are in the ledger; None for other kinds of targets."""
    match target.kind:
        case "group":
            other = GroupConnection(tx.connection, tx.schema, target.group)
            known_group(other)
            rows = {row.partition: row for row in map(position, other.execute(GROUPS["positions"]))}
            return {
                partition: rows[partition].next_offset
                for partition, row in positions.items()
                if _same(rows.get(partition), row)
            }
        case "processed":
            return positions_at(tx, {partition: row.topic_id for partition, row in positions.items()}, target.moment)
        case _:
            return None


def _same(other: Any, row: Position) -> bool:
    """Whether the other row exists and has the same topic id."""
    return other is not None and other.topic_id == row.topic_id


def _targets(
    target: ResetTo, positions: Mapping[Partition, Position], logs: Logs, ranges: Mapping[Partition, tuple[int, int]]
) -> Targets:
    match target.kind:
        case "offset":
            return dict.fromkeys(positions, target.number)
        case "current":
            return {partition: row.next_offset for partition, row in positions.items()}
        case "shift":
            return {partition: max(0, row.next_offset + target.number) for partition, row in positions.items()}
        case "offsets":
            return dict(target.targets)
        case "after-failed":
            return {
                partition: failed + 1 for partition, row in positions.items() if (failed := _failed(row)) is not None
            }
        case _:
            return _asked(target, positions, logs, ranges)


def _asked(
    target: ResetTo, positions: Mapping[Partition, Position], logs: Logs, ranges: Mapping[Partition, tuple[int, int]]
) -> Targets:
    """Targets that only the brokers know."""
    if target.kind == "kafka":
        return _committed(positions, logs, target.group)
    if target.moment is None:
        return logs.edges(positions, target.kind)
    # If this is the log's start, retention may have removed records of that time: use the group's first offset.
    return {
        partition: min(positions[partition].first_offset, offset)
        if partition in ranges and offset == ranges[partition][0]
        else offset
        for partition, offset in logs.at_time(positions, target.moment).items()
    }


def _committed(positions: Mapping[Partition, Position], logs: Logs, group: str) -> Targets:
    """Kafka's commits. Raises Fenced if another group has members: they may commit before the plan is applied.

    Also raises it for a mirror's commit that is not the position: it may be outdated, or its rows may be lost.
    """
    if positions and group != logs.group:
        require_empty(logs.identity, group)
    commits = logs.commits(positions, group)
    for partition, commit in commits.items():
        if commit.is_mirror and commit.offset != positions[partition].next_offset:
            raise Fenced(
                f"the commit of group {group!r} for {partition} was mirrored from a ledger, and may be older than "
                "that ledger's position: if the group is in this ledger, use `--to-group`; if not, run "
                "`seekpoint offsets export` on its ledger and use `--from-file`"
            )
    return {partition: commit.offset for partition, commit in commits.items()}


def _failed(row: Position) -> int | None:
    """The offset of the failed record that the partition will read next; None if there is none.

    Offsets between the position and this record have no record: compaction, or a transaction's marker.
    """
    if row.stop is not None and row.stop.kind == "PoisonStop":
        offset: int | None = row.stop.offset
    else:
        offset = row.attempt_offset if row.attempt_error is not None and row.attempt_policy != DELAYED else None
    return offset if offset is not None and offset >= row.next_offset else None


_MISSING = {
    "group": "group {0.group!r} has no position of this topic for",
    "processed": "there is no sample before {0.moment} for",
    "kafka": "group {0.group!r} has no commit in Kafka for",
    "after-failed": "no failed record is at the position of",
}


def _require(target: ResetTo, targets: Targets, positions: Mapping[Partition, Position], *, has_all: bool) -> None:
    """Raise ConfigError for partitions without a target, unless the others can be reset alone."""
    if unknown := sorted(targets.keys() - positions.keys()):
        raise ConfigError(f"{target}: {unknown[0]} is not among the partitions to reset, or has no stored offset")
    missing = sorted(positions.keys() - targets.keys())
    if missing and target.kind in _MISSING and not (target.kind == "after-failed" and has_all):
        problem = _MISSING[target.kind].format(target)
        raise ConfigError(
            f"{problem} {', '.join(map(str, missing))}: select other partitions with --topic, or choose another target"
        )


def _reset(target: ResetTo, row: Position, requested: int, log: tuple[int, int] | None, last: int | None) -> Reset:
    """The reset of one partition. Raises ConfigError for a target past the end of the log."""
    partition, offset = row.partition, requested
    if log is not None:
        if requested > log[1]:
            raise ConfigError(
                f"{partition}: {requested} is past the end of the log ({target}); the log has offsets {log[0]} to "
                f"{log[1]}"
            )
        offset = max(requested, log[0])
    return Reset(
        topic=partition.topic,
        partition=partition.number,
        topic_id=row.topic_id,
        position=row.next_offset,
        target=offset,
        wanted=requested,
        last_reset=last,
        log=log,
        direction=_direction(target, row.next_offset, offset),
        is_exact=target.kind == "after-failed",
    )


def _direction(target: ResetTo, next_offset: int, offset: int) -> Direction:
    if offset == next_offset:
        return "backward" if target.kind == "current" else "none"
    return "forward" if offset > next_offset else "backward"
