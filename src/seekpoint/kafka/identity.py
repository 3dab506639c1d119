"""Ids of the topics and of the cluster, asked for each time and never cached (I4).

A topic that was deleted and created again is read at the old offset without an error under every protocol; only
its id differs. An id is never used twice, so asking between the last read and COMMIT proves that everything in the
batch was read under that id.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, TypeVar
from uuid import UUID

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from seekpoint.errors import ConfigError, KafkaUnavailable
from seekpoint.kafka import librdkafka
from seekpoint.kafka.questions import Question, Questions, Wait, in_background

T = TypeVar("T")
NO_ID = UUID(int=0)  # what brokers answer that know the topic and not (or not yet) its id


_NO_RIGHT = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_EXCEPTION,  # no topic can have this name
}


CHECK_KAFKA = "check that the brokers run, bootstrap.servers and the security settings"


class KafkaRefused(KafkaUnavailable):
    """The brokers have answered, and refuse this client: waiting does not help."""


class Answer:
    """A request for the ids of topics that was sent; ``result()`` waits for the answer."""

    def __init__(self, waits: Mapping[str, Wait[UUID]], timeout: float) -> None:
        self._waits, self._timeout = waits, timeout

    def result(self) -> dict[str, UUID | None]:
        """The id of each topic, None for one that the broker asked does not know. Raises KafkaUnavailable.

        None is a retriable answer: a broker that has just started, or whose metadata lags, gives it for a topic that
        exists.
        """
        return {topic: self._one(topic, wait) for topic, wait in self._waits.items()}

    def known(self) -> dict[str, UUID | None]:
        """As ``result()``, for decisions that are final: raises KafkaUnavailable also for an id not known yet."""
        found = self.result()
        if unknown := sorted(topic for topic, topic_id in found.items() if topic_id == NO_ID):
            raise KafkaUnavailable(f"the broker knows topic {unknown[0]!r}, and not its id yet: try again")
        return found

    def _one(self, topic: str, wait: Wait[UUID]) -> UUID | None:
        return _described(topic, wait, self._timeout)


class _Reason:
    """The last error that the client reported: refused, not resolved, no handshake ...

    It has no reference to the client. With one, a cycle would leave the client to the garbage collector, which may run
    on the client's own thread, and a client that is ended there ends the process.
    """

    def __init__(self) -> None:
        self.text, self.is_refusal = "", False

    def note(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001 -- its name; the other errors say more
            return
        self.text = error.str()
        # A token that could not be fetched has the same code: its issuer may be unreachable.
        refuses = error.code() == KafkaError._AUTHENTICATION and "acquire" not in self.text.lower()  # noqa: SLF001
        self.is_refusal = refuses or "certificate verify failed" in self.text


class Identity:
    """Asks the brokers for ids of topics and cluster. Its client has a thread of its own, and ends with this object.

    After a question that no broker answers, the next one is asked by a new client.
    """

    def __init__(self, config: Mapping[str, Any], timeout: float) -> None:
        self._why = _Reason()
        self._questions = Questions(config, self._why.note)
        self.timeout = timeout
        self._servers = config.get("bootstrap.servers") or config.get("metadata.broker.list")

    @property
    def admin(self) -> AdminClient:
        """The client of now."""
        return self._questions.ask().admin

    def question(self) -> Question:
        """Another question to the brokers, through :meth:`Question.answer`."""
        return self._questions.ask()

    def connect(self, topics: Collection[str]) -> float:
        """Wait for the first answer of a broker, about these topics; returns the seconds that are left of ``timeout``.

        A request that goes to the leaders of partitions needs it: without a connection the client looks for them a
        second time only after 3 s. A failure is not raised: that request fails, too.
        """
        deadline = monotonic() + self.timeout
        if not self._questions.is_connected:
            with suppress(KafkaUnavailable):
                self.known(topics)
        return max(deadline - monotonic(), 0.1)

    def ask(self, topics: Collection[str]) -> Answer:
        """Send the question for the topics' ids; do something else until the answer is needed (about 1 ms)."""
        question, waits = self._questions.ask(), dict[str, Wait[UUID]]()
        if question.handle is None:
            waits |= {topic: partial(_topic_id, future) for topic, future in self._describe(question, topics).items()}
        else:
            asked = question.handle.ask(sorted(topics), self.timeout)
            waits |= {topic: partial(asked.wait, topic) for topic in sorted(topics)}
        return Answer({topic: partial(question.answer, wait) for topic, wait in waits.items()}, self.timeout + 1)

    def _describe(self, question: Question, topics: Collection[str]) -> Mapping[str, Future[Any]]:
        return question.admin.describe_topics(TopicCollection(sorted(topics)), request_timeout=self.timeout)

    def cluster_id(self) -> str:
        """The id of the cluster. Raises KafkaUnavailable."""
        self._why.text, self._why.is_refusal = "", False
        question = self._questions.ask()
        try:
            # Never describe_cluster: librdkafka 2.16 aborts the process when a broker that is just let in again
            # answers that it knows no brokers.
            listed = in_background(question.admin.list_topics, timeout=self.timeout)
            described = question.answer(listed.result, self.timeout + 1)
        except (KafkaException, TimeoutError) as error:
            question.admin.poll(0)  # calls error_cb with what the client has reported meanwhile
            why = self._why.text or (error.args[0].str() if isinstance(error, KafkaException) else "no answer")
            kind = KafkaRefused if self._why.is_refusal else KafkaUnavailable
            raise kind(f"no broker answered at {self._servers} within {self.timeout:g} s: {why}") from error
        question.admin.poll(0)
        return str(described.cluster_id)

    def partitions(self, topics: Collection[str]) -> dict[str, int]:
        """How many partitions each topic has; a topic that does not exist is a ConfigError. Raises KafkaUnavailable."""
        counts = self.known(topics)
        if missing := sorted(set(topics) - counts.keys()):
            raise ConfigError(
                f"topic {missing[0]!r} does not exist on the brokers {self._servers}: create it, or correct topics="
            )
        return counts

    def known(self, topics: Collection[str]) -> dict[str, int]:
        """How many partitions each topic has, without those that the broker does not know. Raises KafkaUnavailable."""
        question = self._questions.ask()
        described = {
            topic: _described(topic, partial(question.answer, future.result), self.timeout + 1)
            for topic, future in self._describe(question, topics).items()
        }
        return {topic: len(found.partitions) for topic, found in described.items() if found is not None}


def _topic_id(described: Future[Any], timeout: float) -> UUID:
    found = described.result(timeout).topic_id
    return librdkafka.uuid_of(found.get_most_significant_bits(), found.get_least_significant_bits())


def _described(topic: str, wait: Wait[T], timeout: float) -> T | None:
    """What the brokers answer about a topic, None for one that does not exist. Raises KafkaUnavailable."""
    try:
        return wait(timeout)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return None
        kind = KafkaRefused if error.args[0].code() in _NO_RIGHT else KafkaUnavailable
        raise kind(f"no answer about topic {topic!r}: {error.args[0].str()}") from error
    except TimeoutError as error:
        raise KafkaUnavailable(f"no answer about topic {topic!r} within {timeout} s") from error
