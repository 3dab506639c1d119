"""Asks for the ids of topics and cluster. A topic id requested after a read proves which topic was read (I4).

Under every protocol, a topic that was deleted and created again is read at the old offset without an error; only its id
differs. Ids are never used twice, so if the brokers report an id after a read, all records up to that read have that
id.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from time import monotonic
from typing import Any, TypeVar
from uuid import UUID

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from seekpoint.errors import ConfigError, KafkaUnavailable
from seekpoint.kafka.questions import (
    GRACE,
    NO_RIGHT,
    AskingClient,
    Question,
    Questions,
    Send,
    Wait,
    answers,
    each_answer,
    in_background,
)

T = TypeVar("T")
Described = dict[str, Any]  # the brokers' answer about each topic, or their error
NO_ID = UUID(int=0)  # the answer of brokers that know the topic, but not (yet) its id
_REFUSALS = {*NO_RIGHT, KafkaError.TOPIC_EXCEPTION}  # the last one: no topic can have this name
SHORT_TIMEOUT = 3.0  # seconds to wait where an outage is to be reported soon, and the request is repeated
CHECK_KAFKA = "check that the brokers run, and check bootstrap.servers and the security settings"


class KafkaRefused(KafkaUnavailable):
    """The brokers have answered, but refuse this client, so waiting does not help."""


class Answer:
    """A sent request for topics' ids (by default none); ``result()`` waits for the answer.

    ``asked_at`` is a time (``time.monotonic``) before the request was sent.
    """

    def __init__(
        self, topics: Collection[str] = (), question: Question[Described] | None = None, asked_at: float = -math.inf
    ) -> None:
        self.topics, self.asked_at, self._question = frozenset(topics), asked_at, question

    def result(self) -> dict[str, UUID | None]:
        """The id of each topic, None for one that the broker does not know. Raises KafkaUnavailable.

        None is not final: a broker that has just started, or whose metadata lags, does not know existing topics.
        """
        try:
            return {} if self._question is None else _existing(sorted(self.topics), self._question)
        except KafkaUnavailable:
            self.asked_at = -math.inf  # so that no other transaction uses this answer
            raise

    def known(self) -> dict[str, UUID | None]:
        """As ``result()``, for final decisions: raises KafkaUnavailable if the broker does not know an id yet."""
        ids = self.result()
        if unknown := sorted(topic for topic, topic_id in ids.items() if topic_id == NO_ID):
            raise KafkaUnavailable(f"the broker knows topic {unknown[0]!r}, but not its id yet: try again")
        return ids


class _Reason:
    """The last error that the client reported: refused, name not resolved, no handshake ...

    It has no reference to the client: in a reference cycle, the garbage collector would free the client, perhaps on one
    of the client's own threads, and that ends the process.
    """

    def __init__(self) -> None:
        self.text, self.is_refusal = "", False

    def note(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001 -- its own name; the other errors say more
            return
        self.text = error.str()
        # A failure to fetch a token has the same code, but may be temporary: its issuer may be unreachable.
        refuses = error.code() == KafkaError._AUTHENTICATION and "acquire" not in self.text.lower()  # noqa: SLF001
        self.is_refusal = refuses or "certificate verify failed" in self.text


class Identity:
    """Asks the brokers for the ids of topics and cluster, with an admin client that is freed with this object.

    A question that no broker answers is asked again by a new client.
    """

    def __init__(self, config: Mapping[str, Any], timeout: float) -> None:
        self._why = _Reason()
        self._questions = Questions(config, self._why.note)
        self._last = Answer()  # the last result of ask_after()
        self.timeout = timeout
        self._servers = config.get("bootstrap.servers") or config.get("metadata.broker.list")

    @property
    def admin(self) -> AdminClient:
        """The current client; later questions may be sent by another."""
        return self._questions.client.admin

    def question(self, send: Send[T], timeout: float | None = None) -> Question[T]:
        """Send a question to the brokers, which have ``timeout`` seconds to answer it."""
        return self._questions.ask(send, self.timeout if timeout is None else timeout)

    def question_to_leaders(self, topics: Collection[str], send: Send[T]) -> Question[T]:
        """Send a question to the leaders of these topics' partitions.

        A client that no broker has answered yet first describes the topics: if it looked for leaders while connecting,
        it would look again only after 3 s.
        """
        names = sorted(topics)

        def send_when_connected(client: AskingClient, timeout: float) -> Wait[T]:
            if client.is_connected:
                return send(client, timeout)
            described, deadline = _describe(client, names, timeout), monotonic() + timeout

            def wait(seconds: float) -> T:
                described(seconds)
                client.is_connected = True
                remaining = max(deadline - monotonic(), 0.1)
                return send(client, remaining)(remaining + GRACE)

            return wait

        return self.question(send_when_connected)

    def ask(self, topics: Collection[str], timeout: float | None = None) -> Answer:
        """Send the request for the topics' ids; does not wait for the answer, which takes about 1 ms."""
        names, asked_at = sorted(topics), monotonic()

        def send(client: AskingClient, timeout: float) -> Wait[Described]:
            described = _describe(client, names, timeout)
            return lambda seconds: {topic: _topic_id(answer) for topic, answer in described(seconds).items()}

        return Answer(names, self.question(send, timeout), asked_at)

    def ask_after(self, read_by: float, topics: Collection[str], also: Collection[str] = ()) -> Answer:
        """An answer about these topics, requested after ``read_by``, when their records had been read.

        Reuses the last answer if it was requested late enough and has the topics; otherwise asks again, also about
        ``also``.
        """
        if self._last.asked_at <= read_by or not self._last.topics.issuperset(topics):
            self._last = self.ask({*topics, *also})
        return self._last

    def cluster_id(self) -> str:
        """The id of the cluster. Raises KafkaUnavailable."""
        return str(self._listed().cluster_id)

    def names(self) -> list[str]:
        """The names of all topics that the client may describe. Raises KafkaUnavailable."""
        return list(self._listed().topics)

    def _listed(self) -> Any:
        """The cluster's metadata."""
        self._why.text, self._why.is_refusal = "", False

        def send(client: AskingClient, timeout: float) -> Wait[Any]:
            # Never describe_cluster: librdkafka 2.16 aborts the process when a broker that has just rejoined its
            # cluster answers that it knows no brokers.
            return in_background(client.admin.list_topics, timeout=timeout).result

        try:
            listed = self.question(send).answer()
        except (KafkaException, TimeoutError) as error:
            why = self._why.text or (error.args[0].str() if isinstance(error, KafkaException) else "no answer")
            kind = KafkaRefused if self._why.is_refusal else KafkaUnavailable
            raise kind(f"no broker answered at {self._servers} within {self.timeout:g} s: {why}") from error
        self.admin.poll(0)  # runs error_cb: errors before this answer must not explain a later failure
        return listed

    def partitions(self, topics: Collection[str]) -> dict[str, int]:
        """How many partitions each topic has.

        Raises ConfigError for a topic that does not exist, KafkaUnavailable if the brokers do not answer.
        """
        counts = self.known(topics)
        if missing := sorted(set(topics) - counts.keys()):
            raise ConfigError(
                f"topic {missing[0]!r} does not exist on the brokers {self._servers}: create it, or correct topics="
            )
        return counts

    def known(self, topics: Collection[str]) -> dict[str, int]:
        """How many partitions each topic has; omits topics that the broker does not know. Raises KafkaUnavailable."""
        names = sorted(topics)
        question = self.question(lambda client, timeout: _describe(client, names, timeout))
        return {
            topic: len(answer.partitions) for topic, answer in _existing(names, question).items() if answer is not None
        }


def _describe(client: AskingClient, topics: Sequence[str], timeout: float) -> Wait[Described]:
    futures = client.admin.describe_topics(TopicCollection(list(topics)), request_timeout=timeout)
    return lambda seconds: answers(futures, seconds)


def _topic_id(answer: Any) -> Any:
    """The id in a topic's description; an error is returned, not raised."""
    if isinstance(answer, KafkaException | TimeoutError):
        return answer
    high, low = answer.topic_id.get_most_significant_bits(), answer.topic_id.get_least_significant_bits()  # signed
    return UUID(int=(high % 2**64 << 64) | low % 2**64)


def _existing(topics: Collection[str], question: Question[Described]) -> dict[str, Any]:
    """The brokers' answer about each topic, None for one that does not exist. Raises KafkaUnavailable."""
    described = each_answer(question, topics)
    return {topic: _unless_missing(topic, described[topic]) for topic in topics}


def _unless_missing(topic: str, answer: Any) -> Any:
    """The answer about a topic, None for one that does not exist. Raises KafkaUnavailable."""
    if isinstance(answer, TimeoutError):
        raise KafkaUnavailable(f"no answer about topic {topic!r} in time") from answer
    if not isinstance(answer, KafkaException):
        return answer
    error = answer.args[0]
    if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return None
    kind = KafkaRefused if error.code() in _REFUSALS else KafkaUnavailable
    raise kind(f"no answer about topic {topic!r}: {error.str()}") from answer
