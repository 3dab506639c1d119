"""Checks, for compacted topics, whether each key's newest record is enough to rebuild a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Row

from seekpoint.jobs.tables.targets import COMPARED, PipelineSource
from seekpoint.kafka.topic_config import compacted
from seekpoint.sinks.base import TableSink
from seekpoint.sinks.upsert.upsert import Upsert


def of_compaction(
    kafka: Mapping[str, Any],
    sources: Sequence[PipelineSource],
    offsets: Sequence[Row[Any]],
    dead_letters: Mapping[tuple[str, str], int],
    strategy: str,
) -> list[str]:
    """Return why tables cannot be rebuilt from these groups' compacted topics; empty if they can.

    ``dead_letters`` counts the open dead letters of a group and topic. Raises KafkaUnavailable.
    """
    read = {(row.consumer_group, row.topic) for row in offsets}
    topics = [
        (source, topic) for source in sources for topic in source.pipeline.topics if (source.group, topic) in read
    ]
    if not topics:
        return []
    answers = compacted(kafka, {topic for _, topic in topics})
    reasons = []
    for source, topic in topics:
        if answers[topic] is not False:
            unfit = list(_made_of_every_record(source, topic))
            if unfit:
                reasons.append(_reason(source.group, topic, unfit, answers[topic]))
            elif any(sink.takes(topic) for sink in source.pipeline.sinks):
                reasons += _of_declared(source.group, topic, dead_letters.get((source.group, topic), 0), strategy)
    return reasons


def _of_declared(group: str, topic: str, dead_letters: int, strategy: str) -> Iterator[str]:
    if dead_letters:
        yield (
            f"topic {topic!r} is compacted, and group {group!r} has {dead_letters} open dead letters of it: if the "
            "newest record of a key is one of them, the record that made its row may be gone; replay or discard them "
            "first (`seekpoint dead-letters`)"
        )
    if strategy not in COMPARED:
        yield (
            f"topic {topic!r} is compacted, and strategy {strategy!r} compares nothing: a row whose record is gone "
            "would be lost silently; use strategy 'merge', which refuses that"
        )


def _made_of_every_record(source: PipelineSource, topic: str) -> Iterator[str]:
    for sink in source.pipeline.sinks:
        is_declared = isinstance(sink, Upsert) and sink.compacted
        if not is_declared and not (isinstance(sink, TableSink) and not sink.takes(topic)):
            yield repr(sink)


def _reason(group: str, topic: str, sinks: Sequence[str], is_compacted: bool | None) -> str:
    declare = "an Upsert whose key is the record's key can be declared with compacted=True"
    if is_compacted is None:
        return (
            f"topic {topic!r}: this client may not read whether it is compacted, and {', '.join(sinks)} may need every "
            f"record: allow the client DescribeConfigs on the topic; {declare}"
        )
    return (
        f"topic {topic!r} is compacted (cleanup.policy), and {', '.join(sinks)} may need every record that group "
        f"{group!r} has applied, not only the newest of each key: {declare}; otherwise set the topic's cleanup.policy "
        "to 'delete' before records are gone, and do not reload tables whose records are gone"
    )
