"""Sends questions to the brokers with an admin client; a new client repeats a question that is not answered soon.

A broker that was away for longer than ``broker.session.timeout.ms`` answers that there are no brokers, until it has
rejoined. librdkafka (2.10 and later) then forgets all brokers, and may never connect to one again (its issue 5301). A
client does not report this state, and only a new client helps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from time import monotonic
from typing import Any, Generic, TypeVar

from confluent_kafka import KafkaError, KafkaException

from seekpoint.kafka.config import make_admin

K = TypeVar("K")
T = TypeVar("T")
Wait = Callable[[float], T]  # waits at most this many seconds; raises KafkaException, or TimeoutError

PATIENCE = 2.0  # seconds for a client that was answered before; a broker's answer takes milliseconds
GRACE = 1.0  # further seconds for the client to report that no broker answered
NO_RIGHT = {  # errors for a client whose user lacks a right
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}
_LOADING = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
}
PAUSE = 0.2  # seconds before the next question to a coordinator that loads its groups


def is_answer(error: KafkaException | TimeoutError) -> bool:
    """Whether a broker returned this error; otherwise it is the client's own: no broker answered."""
    return isinstance(error, KafkaException) and error.args[0].code() >= KafkaError.NO_ERROR


def in_background(call: Callable[..., T], *arguments: Any, **options: Any) -> Future[T]:
    """Run the call on a new thread, because on this one a call into the client would delay signals until it returns."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(call(*arguments, **options))
        except Exception as error:  # noqa: BLE001 -- raised where the answer is asked for
            answer.set_exception(error.with_traceback(None))  # frames in the traceback would keep the client alive

    threading.Thread(target=run, name="seekpoint-metadata", daemon=True).start()
    return answer


def answers(futures: Mapping[K, Future[T]], timeout: float) -> dict[K, T | KafkaException | TimeoutError]:
    """The value or the error of each part of a question.

    Raises the first error if no broker answered any part, and the error of a coordinator that is not ready.
    """
    deadline = monotonic() + timeout
    values: dict[K, T | KafkaException | TimeoutError] = {}
    for key, future in futures.items():
        try:
            values[key] = future.result(max(deadline - monotonic(), 0.0))
        except (KafkaException, TimeoutError) as error:
            values[key] = error
    errors = [value for value in values.values() if isinstance(value, KafkaException | TimeoutError)]
    if loading := next(filter(_is_loading, errors), None):
        raise loading
    if errors and len(errors) == len(values) and not any(map(is_answer, errors)):
        raise errors[0]
    return values


def each_answer(question: Question[dict[K, Any]], keys: Iterable[K]) -> dict[K, Any]:
    """The value or the error of each part; if no broker answered, that error for each key."""
    try:
        return question.answer()
    except (KafkaException, TimeoutError) as error:
        return dict.fromkeys(keys, error)


def _is_loading(error: KafkaException | TimeoutError) -> bool:
    """Whether a coordinator answered that it is not ready: its groups are loading, or move to another broker."""
    return isinstance(error, KafkaException) and error.args[0].code() in _LOADING


class AskingClient:
    """One admin client, and whether a broker answered it."""

    def __init__(self, config: Mapping[str, Any], on_error: Callable[[KafkaError], None]) -> None:
        callbacks: Mapping[str, Any] = {"error_cb": on_error}
        self.admin = make_admin(config, **callbacks)
        self.is_connected = False


Send = Callable[[AskingClient, float], Wait[T]]  # sends a question, and gives the brokers these seconds


class Question(Generic[T]):
    """A question that was sent to the brokers, which have ``timeout`` seconds from the call of :meth:`answer`.

    A client that was answered before gets ``PATIENCE`` seconds, because it may have forgotten its brokers. After that,
    a new client gets the remaining time, in which it may have to resolve names and to authenticate.
    """

    def __init__(self, questions: Questions, send: Send[T], timeout: float) -> None:
        self._questions, self._send, self._timeout = questions, send, timeout
        self._ask(timeout)

    def _ask(self, remaining: float) -> None:
        self._client = self._questions.client
        self._patience = min(PATIENCE, remaining / 2) if self._client.is_connected else remaining
        self._wait = self._send(self._client, self._patience)

    def answer(self) -> T:
        """The brokers' answer. Raises their error as KafkaException; KafkaException or TimeoutError if none answers."""
        deadline, pause = monotonic() + self._timeout, threading.Event()
        while True:
            try:
                value = self._wait(self._patience + GRACE)
            except (KafkaException, TimeoutError) as error:
                remaining = deadline - monotonic()
                if not is_answer(error):
                    self._questions.replace(self._client)
                elif not _is_loading(error):
                    raise
                else:
                    pause.wait(min(PAUSE, max(remaining, 0.0)))
                if remaining <= 0:
                    raise
                self._ask(remaining)
                continue
            self._client.is_connected = True
            return value


class Questions:
    """Sends questions. ``on_error`` gets the errors that the client reports, and must not refer to this object.

    A client that is freed on one of its own threads ends the process. Its last reference may be in a traceback, which
    the garbage collector may free on any thread. So a replaced client is kept until the next one is replaced.
    """

    def __init__(self, config: Mapping[str, Any], on_error: Callable[[KafkaError], None]) -> None:
        self._config, self._on_error = config, on_error
        self._replacing = threading.Lock()
        self.client = AskingClient(config, on_error)
        self._replaced: AskingClient | None = None

    def ask(self, send: Send[T], timeout: float) -> Question[T]:
        """Send a question."""
        return Question(self, send, timeout)

    def replace(self, client: AskingClient) -> None:
        """Make a new client for the next question, unless another thread has done so."""
        with self._replacing:
            if client is self.client:
                with suppress(RuntimeError):  # it was closed
                    client.admin.poll(0)  # calls on_error for errors that the client has queued
                self._replaced = client
                self.client = AskingClient(self._config, self._on_error)
