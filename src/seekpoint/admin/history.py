"""The actions on a group and its positions: who did what, when and why."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row

from seekpoint.errors import ConfigError
from seekpoint.ledger.schema_connection import GroupConnection, SchemaConnection
from seekpoint.ledger.sql import GROUPS, RESETS
from seekpoint.records import Partition


@dataclass(frozen=True, slots=True)
class Action:
    """A recorded action; ``topic`` and the fields after it are None if it concerned the whole group."""

    id: int
    at: datetime
    action: str
    actor: str
    reason: str
    topic: str | None
    partition: int | None
    from_offset: int | None
    to_offset: int | None


@dataclass(frozen=True, slots=True)
class ActionFilter:
    """Selects actions of one kind, by one actor, older than the action ``before_id``; None: any."""

    action: str | None = None
    actor: str | None = None
    before_id: int | None = None

    def parameters(self) -> dict[str, Any]:
        """The filter as parameters of a statement."""
        return {"action": self.action, "actor": self.actor, "before_id": self.before_id}


def history(
    tx: GroupConnection, topics: Collection[str] | None, partition: int | None, limit: int, only: ActionFilter
) -> list[Action]:
    """The actions on these topics, or on one of their partition numbers; None: on the group and all topics. Newest
    first.

    Raises ConfigError for a topic without a position or an action.
    """
    named = None if topics is None else sorted(topics)
    stored = {row.topic for row in tx.execute(GROUPS["positions"])} if named else set()
    for topic in set(named or ()) - stored:
        if (
            tx.execute(RESETS["history"], topics=[topic], partition=None, most=1, **ActionFilter().parameters()).first()
            is None
        ):
            listing = ", ".join(sorted(stored)) or "none"
            raise ConfigError(f"group {tx.group!r} has no stored offset for topic {topic!r}; its topics are {listing}")
    return list(
        map(_action, tx.execute(RESETS["history"], topics=named, partition=partition, most=limit, **only.parameters()))
    )


def recent_actions(tx: SchemaConnection, limit: int, only: ActionFilter) -> list[tuple[str, Action]]:
    """The actions on all groups, each with the group's name; newest first."""
    rows = tx.execute(RESETS["recent_actions"], most=limit, **only.parameters())
    return [(row.consumer_group, _action(row)) for row in rows]


def last_resets(tx: GroupConnection) -> dict[Partition, int]:
    """The id of each partition's last reset."""
    return {Partition(row.topic, row.partition): row.id for row in tx.execute(RESETS["last_resets"])}


def _action(row: Row[Any]) -> Action:
    where = (row.topic, row.partition, row.from_offset, row.to_offset)
    return Action(row.id, row.at, row.action, row.actor, row.reason, *where)
