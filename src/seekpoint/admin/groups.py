"""Finds a group in the ledger, and positions of named partitions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Row

from seekpoint.errors import ConfigError
from seekpoint.ledger import Position
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import GROUPS, STATUS
from seekpoint.records import Partition

Topics = Mapping[str, Collection[int] | None]
"""Partitions by topic; None: all of the topic."""


def known_group(tx: GroupConnection) -> Row[Any]:
    """The group's row. Raises ConfigError, which names the groups, for an unknown group."""
    if (row := tx.execute(GROUPS["read"]).one_or_none()) is None:
        names = ", ".join(group.name for group in tx.execute(STATUS["groups"]))
        hint = f"its groups are {names}" if names else "no worker has claimed anything yet"
        raise ConfigError(f"the ledger in schema {tx.schema!r} has no group {tx.group!r}; {hint}")
    return row


def within(group: str, rows: Any, topics: Topics | None) -> dict[Partition, Position]:
    """The positions of these partitions, in lock order. Raises ConfigError for an unknown one."""
    stored: dict[Partition, Position] = {row.partition: row for row in rows}
    stored_topics = sorted({partition.topic for partition in stored})
    positions: dict[Partition, Position] = {}
    for topic, numbers in (dict.fromkeys(stored_topics) if topics is None else topics).items():
        if topic not in stored_topics:
            listing = ", ".join(stored_topics) or "none"
            raise ConfigError(f"group {group!r} has no stored offset for topic {topic!r}; its topics are {listing}")
        by_number = {partition.number: partition for partition in stored if partition.topic == topic}
        if unknown := sorted(set(by_number if numbers is None else numbers) - by_number.keys()):
            listing = ", ".join(map(str, sorted(by_number)))
            raise ConfigError(
                f"group {group!r} has no stored offset for {topic}/{unknown[0]}; the topic's partitions are {listing}"
            )
        positions |= {
            by_number[number]: stored[by_number[number]] for number in (by_number if numbers is None else numbers)
        }
    return dict(sorted(positions.items()))
