"""Refuses resets after which workers would apply records again, because sums would count them twice (I1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Any

from seekpoint.errors import ConfigError
from seekpoint.ledger.positions import Position
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import GROUPS


def tables_with_sums(declared: Mapping[str, Any] | None, topic: str) -> tuple[str, ...]:
    """The tables with sums of a topic's records, as the group's workers have declared."""
    sinks = ((declared or {}).get(topic) or {}).get("sinks", ())
    return tuple(sorted({table for sink in sinks if sink.get("aggregates") for table in sink["tables"]}))


def is_applied_again(tx: GroupConnection, row: Position, to: int, rewritten_from: int | None) -> bool:
    """Whether a reset to ``to`` makes workers apply records again.

    From ``rewritten_from`` on, offsets now belong to other records; None if they do not, or if that is not certain.
    Records before the first offset were never applied. Nor were those that the last reset skipped, if the partition is
    still at that reset's target.
    """
    end = row.next_offset if rewritten_from is None else rewritten_from
    if max(to, row.first_offset) >= end:
        return False
    topic, number = row.partition
    last = tx.execute(GROUPS["last_reset"], topic=topic, partition=number).one_or_none()
    return last is None or last.to_offset != row.next_offset or last.from_offset is None or to < last.from_offset


def require_counted_once(tx: GroupConnection, row: Position, to: int, rewritten_from: int | None) -> None:
    """Raise ConfigError for a reset after which sums would count records twice (I1)."""
    group = tx.execute(GROUPS["read"]).one_or_none()
    tables = () if group is None else tables_with_sums(group.declared, row.partition.topic)
    if tables and is_applied_again(tx, row, to, rewritten_from):
        refusal = f"{row.partition} is not reset from {row.next_offset} to {to}"
        raise ConfigError(
            f"{refusal}: {counted_twice(tx.group, tables)}. If its log was truncated, pass "
            f"expected={row.next_offset}, and a log= that the brokers reported after you read that position"
        )


def counted_twice(group: str, tables: Sequence[str]) -> str:
    """The reason and the remedy in the message of a refused reset."""
    return (
        f"sums in {', '.join(tables)} would count records twice. Rebuild the tables in the same plan: "
        f"`seekpoint offsets reset {quote(group)} … --rebuild MODULE:NAME`, or Reload([pipeline], …).reset(plan)"
    )
