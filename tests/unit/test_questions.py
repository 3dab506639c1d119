"""Questions to brokers: who is asked again, by which client, and when a question has failed. No broker is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic

import pytest
from confluent_kafka import KafkaError, KafkaException

from seekpoint.kafka import questions
from seekpoint.kafka.questions import AskingClient, Questions, Wait

NO_ANSWER = KafkaException(KafkaError(KafkaError._TIMED_OUT))
LOADING = KafkaException(KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS))
REFUSED = KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))


class AnsweredRequest:
    """Gives these results, one to each time the question is sent, and notes by which client, and for how long."""

    def __init__(self, *results: str | Exception) -> None:
        self._results: Iterator[str | Exception] = iter(results)
        self.clients: list[AskingClient] = []
        self.timeouts: list[float] = []

    def __call__(self, client: AskingClient, timeout: float) -> Wait[str]:
        self.clients.append(client)
        self.timeouts.append(timeout)
        result = next(self._results)

        def wait(_seconds: float) -> str:
            if isinstance(result, Exception):
                raise result
            return result

        return wait


@pytest.fixture
def asked_by() -> Callable[[], Questions]:
    """Questions whose client was answered once."""

    def make() -> Questions:
        known = Questions({"bootstrap.servers": "127.0.0.1:1", "log_level": 0}, lambda _: None)
        known.client.is_connected = True
        return known

    return make


def test_a_client_that_was_answered_before_is_replaced_when_it_is_not(asked_by: Callable[[], Questions]) -> None:
    known, asked = asked_by(), AnsweredRequest(NO_ANSWER, "value")
    first = known.client
    assert known.ask(asked, 10.0).answer() == "value"
    assert asked.clients == [first, known.client]
    assert known.client is not first
    assert asked.timeouts[0] == questions.PATIENCE
    assert asked.timeouts[1] == pytest.approx(10.0, abs=1.0), "a new client may have to prove who it is"


def test_a_client_that_was_never_answered_has_the_whole_time(asked_by: Callable[[], Questions]) -> None:
    new, asked = asked_by(), AnsweredRequest("value")
    new.client.is_connected = False
    assert new.ask(asked, 10.0).answer() == "value"
    assert asked.timeouts == [10.0]
    assert new.client.is_connected


def test_a_question_without_an_answer_fails_when_its_time_is_over(asked_by: Callable[[], Questions]) -> None:
    known, asked = asked_by(), AnsweredRequest(*[NO_ANSWER] * 3)
    with pytest.raises(KafkaException):
        known.ask(asked, 0.0).answer()
    assert len(asked.clients) == 1


def test_a_coordinator_that_loads_is_asked_again_by_the_same_client(asked_by: Callable[[], Questions]) -> None:
    known, asked = asked_by(), AnsweredRequest(LOADING, LOADING, "value")
    assert known.ask(asked, 10.0).answer() == "value"
    assert asked.clients == [known.client] * 3


def test_a_coordinator_that_loads_for_too_long_is_reported(asked_by: Callable[[], Questions]) -> None:
    began = monotonic()
    with pytest.raises(KafkaException) as raised:
        asked_by().ask(AnsweredRequest(*[LOADING] * 100), 0.5).answer()
    assert raised.value.args[0].code() == KafkaError.COORDINATOR_LOAD_IN_PROGRESS
    assert monotonic() - began >= 0.5


def test_what_a_broker_refuses_is_raised_at_once(asked_by: Callable[[], Questions]) -> None:
    known, asked = asked_by(), AnsweredRequest(REFUSED)
    first = known.client
    with pytest.raises(KafkaException) as raised:
        known.ask(asked, 10.0).answer()
    assert raised.value is REFUSED
    assert known.client is first
