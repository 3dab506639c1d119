"""A pipeline's declaration as plain values, which its workers store for operators who do not have the code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from seekpoint.pipeline.handler import shown_handler
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.pipeline.policy import OnPoison
from seekpoint.pipeline.sink import Sink


def declared(
    pipeline: Pipeline,
    *,
    read_uncommitted: bool = False,
    synchronous_commit: bool = True,
    most_waiting: int | None = None,
) -> dict[str, dict[str, Any]]:
    """Describe each topic: sinks and their kind, handler, version, policies, and sentences on weaker guarantees.

    ``read_uncommitted``: the Kafka client also reads records of aborted transactions. Without ``synchronous_commit`` a
    worker's COMMIT does not wait for the disk. ``most_waiting`` is its ``Limits.waiting``.
    """
    weakens = [*_weakens_all(pipeline, read_uncommitted, synchronous_commit)]
    limit = {} if most_waiting is None or pipeline.retry_order == "partition" else {"most_waiting": most_waiting}
    return {topic: _of_topic(pipeline, topic, weakens) | limit for topic in pipeline.topics}


def declared_sums(pipeline: Pipeline) -> dict[str, dict[str, Any]]:
    """Describe, as :func:`declared` does, the topics whose records are added to sums."""
    return {
        topic: declaration
        for topic, declaration in declared(pipeline).items()
        if any("aggregates" in sink for sink in declaration["sinks"])
    }


def _of_topic(pipeline: Pipeline, topic: str, weakens: Sequence[str]) -> dict[str, Any]:
    sinks = pipeline.sinks_of(topic)
    return {
        "version": pipeline.version,
        "sinks": [_sink(sink) for sink in sinks],
        "handler": None if pipeline.handle is None else shown_handler(pipeline.handle).removeprefix("the handler "),
        "writes": list(pipeline.writes),
        "on_poison": pipeline.on_poison.value,
        "attempts": pipeline.retry.attempts,
        "retry_order": pipeline.retry_order,
        "keep_key_order": pipeline.keep_key_order,
        "delay_seconds": None if pipeline.delay is None else pipeline.delay.total_seconds(),
        "weakens": [*weakens, *_weakens(sinks)],
    }


def _sink(sink: Sink) -> dict[str, Any]:
    declaration: dict[str, Any] = {"kind": type(sink).__name__, "tables": list(sink.tables)}
    if sink.aggregates:
        declaration |= {"key": list(sink.key), "aggregates": True}
    elif sink.guarded is not None:
        declaration |= {"key": list(sink.key), "guarded": sink.guarded}
        if sink.keeps_first:
            declaration["keeps_first"] = True
    return declaration


def _weakens_all(pipeline: Pipeline, read_uncommitted: bool, synchronous_commit: bool) -> Iterator[str]:
    """Sentences about limits of the guarantee for all topics."""
    if read_uncommitted:
        yield "records of aborted transactions are applied: isolation.level is read_uncommitted"
    if pipeline.on_poison is OnPoison.SKIP:
        yield "a record that cannot be applied is skipped, and its value is not kept: on_poison is skip"
    if not synchronous_commit:
        yield "a crash of Postgres takes back the last commits, rows and offsets together: synchronous_commit is off"
    if pipeline.handle is not None:
        yield "effects of the handler outside its transaction may happen more than once"


def _weakens(sinks: list[Sink]) -> Iterator[str]:
    """Sentences about the effects of a reset on these sinks' tables."""
    for sink in sinks:
        if sink.aggregates:
            yield f"a backward reset is refused, because sums would count records twice: {', '.join(sink.tables)}"
        elif sink.guarded is None:
            yield f"records that are read again after a backward reset are written twice: {', '.join(sink.tables)}"
        elif not sink.guarded and not sink.keeps_first:
            yield f"a backward reset overwrites newer rows until they are read again: {', '.join(sink.tables)}"
