"""Compacted topics: the log has the newest record of each key, which is enough for some tables and not for others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Row

from seekpoint.kafka.policies import compacted
from seekpoint.reload.targets import Source
from seekpoint.sinks.table import TableSink
from seekpoint.sinks.upsert import Upsert


def of_compaction(kafka: Mapping[str, Any], sources: Sequence[Source], offsets: Sequence[Row[Any]]) -> list[str]:
    """Why tables that need every record cannot be rebuilt from these groups' topics. Raises KafkaAway."""
    read = {(row.consumer_group, row.topic) for row in offsets}
    need = {
        (source.group, topic): made
        for source in sources
        for topic in source.pipeline.topics
        if (source.group, topic) in read and (made := list(_made_of_every_record(source, topic)))
    }
    if not need:
        return []
    answers = compacted(kafka, {topic for _, topic in need})
    unfit = {key: made for key, made in need.items() if answers[key[1]] is not False}
    return [_reason(group, topic, made, answers[topic]) for (group, topic), made in unfit.items()]


def _made_of_every_record(source: Source, topic: str) -> Iterator[str]:
    if source.has_handler:
        yield f"the handler of group {source.group!r}"
    for sink in source.pipeline.sinks:
        if not isinstance(sink, Upsert) and not (isinstance(sink, TableSink) and not sink.takes(topic)):
            yield repr(sink)


def _reason(group: str, topic: str, made: Sequence[str], is_compacted: bool | None) -> str:
    if is_compacted is None:
        return (
            f"topic {topic!r}: whether it is compacted may not be asked, and {', '.join(made)} needs every record: "
            "allow this client DescribeConfigs on the topic"
        )
    return (
        f"topic {topic!r} is compacted (cleanup.policy), and {', '.join(made)} needs every record that group {group!r} "
        "has applied, not only the newest of each key: write that table by Upsert; or set the topic's cleanup.policy "
        "to 'delete' before records are gone, and leave tables alone whose records are"
    )
