"""Checks whether any broker answers again while a worker backs off, and whether brokers answer its consumer.

:mod:`seekpoint.kafka.questions` says why brokers may answer one client and not another.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import Future
from time import monotonic
from typing import Any

from seekpoint.kafka.client import Client
from seekpoint.kafka.identity import Identity
from seekpoint.kafka.questions import in_background

EVERY = 10.0  # seconds without a message after which the consumer is checked
DOUBT = 1.0  # the same, once the client has reported an error


def answer_timeout(config: Mapping[str, Any]) -> float:
    """The time limit, in seconds, of each of two questions to the consumer's brokers.

    Two timeouts outlast the client's longest wait before it reconnects (jitter adds at most half). Each question may
    also have to wait until its broker has answered a fetch.
    """
    reconnects = float(config["reconnect.backoff.max.ms"]) / 1000
    return 1.0 + reconnects + int(config.get("fetch.wait.max.ms", 500)) / 1000


class ConsumerUnanswered(Exception):  # noqa: N818 -- control: the consumer is closed, and another one opened
    """No broker answers the consumer, although brokers answer another client."""


class BrokersBack:
    """Notices that a broker answers again. Poll :attr:`is_answered`, which does not wait."""

    def __init__(self, identity: Identity, topics: Collection[str]) -> None:
        self._identity, self._topics = identity, topics
        self._answer = self._ask()

    @property
    def is_answered(self) -> bool:
        """Whether a broker has answered. Asks again if there was no answer."""
        if not self._answer.done():
            return False
        if self._answer.exception() is None:
            return True
        self._answer = self._ask()
        return False

    def _ask(self) -> Future[object]:
        return in_background(lambda: self._identity.ask(self._topics).result())


class ConsumerCheck:
    """Detects that no broker answers the consumer, although brokers answer another client.

    A consumer that has returned a message lately is not checked.
    """

    def __init__(self, client: Client, identity: Identity, topics: Collection[str], timeout: float) -> None:
        self._client, self._identity, self._topics, self._timeout = client, identity, topics, timeout
        self._answer: Future[bool] | None = None
        self._asked_at = self._answered_at = self._doubted_at = 0.0
        self._failures = 0  # unanswered questions in a row

    def doubt(self) -> None:
        """Check the consumer soon: its client has reported an error."""
        self._doubted_at = monotonic()

    def maintain(self) -> None:
        """Ask when due, and handle the answer. Raises ConsumerUnanswered, or KafkaUnavailable if no broker answers."""
        if self._answer is not None:
            if self._answer.done():
                self._take(self._answer)
            return
        last = max(self._client.heard, self._answered_at)
        # A message does not end a doubt: the client may have fetched it before it forgot its brokers.
        if monotonic() - last >= (DOUBT if self._doubted_at > self._answered_at else EVERY):
            self._ask()

    def _ask(self) -> None:
        """Ask the consumer's brokers after they have answered another client: otherwise silence would prove nothing."""
        failures, self._failures = self._failures, 0
        self._identity.ask(self._topics).result()
        self._failures, self._asked_at = failures, monotonic()
        self._answer = in_background(self._client.is_answered, min(self._topics), self._timeout)

    def _take(self, answer: Future[bool]) -> None:
        self._answer = None
        if answer.result():
            self._answered_at, self._failures = monotonic(), 0
            return
        if self._client.heard > self._asked_at:  # the consumer was only busy; a doubt asks again
            self._failures = 0
            return
        self._failures += 1
        if self._failures == 1:  # the brokers may have been down only during this question
            self._ask()
            return
        self._identity.ask(self._topics).result()
        raise ConsumerUnanswered(
            f"no broker has answered two requests of the consumer within {self._timeout:g} s each, although brokers "
            "answer another client: the consumer is closed, and a new one joins the group"
        )
