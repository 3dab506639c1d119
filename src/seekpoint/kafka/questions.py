"""Questions to the brokers, by one admin client; after a question that no broker answers, the next is a new client's.

A broker that was away for longer than ``broker.session.timeout.ms`` answers that there are no brokers, until it is let
in again. librdkafka (2.10 and later) then forgets all that it knew, and may never connect to one again (its issue
5301). A client does not show that it is in this state: only another one helps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from seekpoint.kafka import librdkafka
from seekpoint.kafka.config import make_admin

T = TypeVar("T")
Wait = Callable[[float], T]  # waits at most so many seconds; raises KafkaException, or TimeoutError


def is_answer(error: KafkaException | TimeoutError) -> bool:
    """Whether a broker has answered with this error; if not, the client itself reports that none did."""
    return isinstance(error, KafkaException) and error.args[0].code() >= KafkaError.NO_ERROR


def in_background(call: Callable[..., T], *arguments: Any, **options: Any) -> Future[T]:
    """Call it on a thread of its own: a call into the client would delay signals until it returns."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(call(*arguments, **options))
        except Exception as error:  # noqa: BLE001 -- raised where the answer is asked for
            answer.set_exception(error.with_traceback(None))  # its frames would keep the client, and this future them

    threading.Thread(target=run, name="seekpoint-metadata", daemon=True).start()
    return answer


class _Client:
    """One admin client, with librdkafka's handle of it where this build has one."""

    def __init__(self, config: Mapping[str, Any], on_error: Callable[[KafkaError], None]) -> None:
        callbacks: Mapping[str, Any] = {"error_cb": on_error}
        self.admin = make_admin(config, **callbacks)
        self.handle = librdkafka.handle_of(self.admin)
        self.is_connected = False  # a broker has answered it


class Question:
    """One question, asked by ``admin`` or ``handle``; it keeps its client until it is dropped."""

    def __init__(self, questions: Questions, client: _Client) -> None:
        self._questions, self._client = questions, client

    @property
    def admin(self) -> AdminClient:
        """The client that asks it."""
        return self._client.admin

    @property
    def handle(self) -> librdkafka.Handle | None:
        """librdkafka's handle of the client; None in a build that is not known."""
        return self._client.handle

    def answer(self, wait: Wait[T], timeout: float) -> T:
        """What the brokers answer. Raises KafkaException and TimeoutError; replaces the client where none answers."""
        try:
            found = wait(timeout)
        except (KafkaException, TimeoutError) as error:
            if not is_answer(error):
                self._questions.replace(self._client)
            raise
        self._client.is_connected = True
        return found


class Questions:
    """Makes questions. ``on_error`` gets the errors that the client reports; it must not refer to this object.

    A client that is freed on one of its own threads ends the process. A reference to it may be left in a traceback that
    the garbage collector finds on any thread, so the one that was replaced is kept until the next is.
    """

    def __init__(self, config: Mapping[str, Any], on_error: Callable[[KafkaError], None]) -> None:
        self._config, self._on_error = config, on_error
        self._replacing = threading.Lock()
        self._client = _Client(config, on_error)
        self._replaced: _Client | None = None

    def ask(self) -> Question:
        """A new question, for the client of now."""
        return Question(self, self._client)

    @property
    def is_connected(self) -> bool:
        """Whether a broker has answered the client of now."""
        return self._client.is_connected

    def replace(self, client: _Client) -> None:
        """Make a new client for the next question, unless another thread has done so."""
        with self._replacing:
            if client is self._client:
                self._replaced = client
                self._client = _Client(self._config, self._on_error)
