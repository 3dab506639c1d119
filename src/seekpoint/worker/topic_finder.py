"""Finds topics that a pipeline's pattern matches while its worker runs, without waiting for the brokers."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from time import monotonic
from typing import Any

from seekpoint.errors import KafkaUnavailable
from seekpoint.kafka.identity import Identity
from seekpoint.kafka.questions import in_background
from seekpoint.pipeline.pipeline import Pipeline

EVERY = "topic.metadata.refresh.interval.ms"  # librdkafka's key, and its default of five minutes


class TopicFinder:
    """Lists the brokers' topics every ``topic.metadata.refresh.interval.ms``; never if that is 0 or less.

    The worker matches them itself, and subscribes to names. A pattern given to the client is matched by the C library
    under the classic protocol, and by the brokers under KIP-848: in two syntaxes, which both differ from Python's.
    """

    def __init__(self, identity: Identity, pipeline: Pipeline, config: Mapping[str, Any]) -> None:
        self._identity, self._pipeline = identity, pipeline
        self._every = int(config.get(EVERY, 300_000)) / 1000
        self._due = monotonic() + self._every
        self._answer: Future[list[str]] | None = None

    def new_topics(self, now: float) -> list[str]:
        """New topics in the last answer that match the pattern; asks again when due."""
        pattern = self._pipeline.pattern
        if pattern is None or self._every <= 0:
            return []
        if self._answer is None and now >= self._due:
            self._due, self._answer = now + self._every, in_background(self._identity.names)
        if self._answer is None or not self._answer.done():
            return []
        answer, self._answer = self._answer, None
        try:
            names = answer.result()
        except KafkaUnavailable:  # asks again when due; another check notices silent brokers
            return []
        return pattern.matching(set(names) - self._pipeline.codecs.keys())
