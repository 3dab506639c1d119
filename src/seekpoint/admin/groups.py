"""A group that the ledger knows, and those of its positions that a caller names."""

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
    """The group's row. Raises ConfigError, which names the groups that the ledger knows."""
    if (row := tx.execute(GROUPS["read"]).one_or_none()) is None:
        known = ", ".join(one.name for one in tx.execute(STATUS["groups"]))
        have = f"it knows {known}" if known else "no worker has claimed anything yet"
        raise ConfigError(f"the ledger in schema {tx.schema!r} has no group {tx.group!r}; {have}")
    return row


def within(group: str, rows: Any, topics: Topics | None) -> dict[Partition, Position]:
    """The positions of these partitions, in the order of their locks. Raises ConfigError for unknown ones."""
    stored: dict[Partition, Position] = {row.partition: row for row in rows}
    known = sorted({at.topic for at in stored})
    found: dict[Partition, Position] = {}
    for topic, numbers in (dict.fromkeys(known) if topics is None else topics).items():
        if topic not in known:
            have = ", ".join(known) or "none"
            raise ConfigError(f"group {group!r} has no stored offset for topic {topic!r}; its topics are {have}")
        own = {at.number: at for at in stored if at.topic == topic}
        if unknown := sorted(set(own if numbers is None else numbers) - own.keys()):
            have = ", ".join(map(str, sorted(own)))
            raise ConfigError(
                f"group {group!r} has no stored offset for {topic}/{unknown[0]}; the partitions that it has are {have}"
            )
        found |= {own[number]: stored[own[number]] for number in (own if numbers is None else numbers)}
    return dict(sorted(found.items()))
