"""Topics of a group that a reload's pipeline does not read: omitted if their rows are in other tables."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Row

from seekpoint.jobs.tables.targets import PipelineSource, Target, resolve
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import GROUPS
from seekpoint.runs.run import Tx


def other_topics(source: PipelineSource, offsets: Sequence[Row[Any]]) -> list[str]:
    """The topics that the group has read and this pipeline does not, sorted."""
    read = {row.topic for row in offsets if row.consumer_group == source.group}
    return sorted(read - {*source.pipeline.topics})


def of_other_topics(
    tx: Tx,
    source: PipelineSource,
    topics: Collection[str],
    rebuilt: Sequence[Target],
    version: int,
    *,
    may_be_apart: bool = True,
) -> list[str]:
    """Return why a reload cannot omit these topics; empty if their rows are in other tables.

    ``version`` is the group's present handler version, which the cut-over would raise for all topics.
    ``may_be_apart=False``: no topic can be omitted.
    """
    if not topics:
        return []
    group_tx = GroupConnection(tx.connection, tx.schema, source.group)
    stored = {row.topic: row for row in group_tx.execute(GROUPS["tables_of_topics"], topics=sorted(topics))}
    paths = {target.path for target in rebuilt}

    def is_apart(topic: str) -> bool:
        """Whether all rows of the topic are in tables that are known and not rebuilt."""
        if not may_be_apart or topic not in stored or not stored[topic].tables or stored[topic].replaced:
            return False
        return all(resolve(tx.connection, table) not in paths for table in stored[topic].tables)

    group, shared = source.group, [topic for topic in topics if not is_apart(topic)]
    if shared:
        reason = (
            f"group {group!r} has applied records of {', '.join(shared)}, which this pipeline does not read, so their "
            "rows would be lost: add them to topics= again"
        )
        return [reason]
    if version < source.pipeline.version:
        reason = (
            f"group {group!r} is at handler version {version}, and a reload of {', '.join(source.pipeline.topics)} "
            f"alone cannot raise it to {source.pipeline.version}: reload all topics, or keep the version"
        )
        return [reason]
    return []


def of_sources(offsets: Sequence[Row[Any]], sources: Sequence[PipelineSource]) -> Sequence[Row[Any]]:
    """The rows of the topics that the pipelines read."""
    topics = {source.group: {*source.pipeline.topics} for source in sources}
    return [row for row in offsets if row.topic in topics[row.consumer_group]]
