"""Ids of topics asked by librdkafka's own call and through the Python client: the same answers, the same errors."""

from __future__ import annotations

import gc
import json
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any, cast

import psutil
import pytest

from seekpoint.errors import KafkaUnavailable
from seekpoint.kafka import librdkafka
from seekpoint.kafka.config import make_admin
from seekpoint.kafka.identity import Identity, KafkaRefused
from seekpoint.testing.servers.kafka import KafkaServer
from support.kafka_postgres import QUICK, Scene

NO_BROKER = "127.0.0.1:1"
# librdkafka's texts for one cause: which of its two timers ends first, and whether its threads have begun until then.
TIMED_OUT = (
    "Failed while waiting for controller: Local: Timed out",
    "Timed out waiting for controller",
    "Timed out initializing",
)

NewIdentity = Callable[..., Identity]

known_build = pytest.mark.skipif(
    not librdkafka.is_known(), reason="this build of confluent-kafka is asked through the Python client"
)
Both = tuple[Identity, Identity]


@pytest.fixture
def new_identity(topic_id_way: str) -> NewIdentity:
    """``new_identity(brokers, timeout)`` asks by one of the two ways."""

    def make(brokers: str, timeout: float = 20.0) -> Identity:
        return Identity({**QUICK, "bootstrap.servers": brokers}, timeout)

    return make


def both(monkeypatch: pytest.MonkeyPatch, brokers: str, timeout: float = 20.0) -> Both:
    """One that asks by librdkafka's call, and one that asks through the Python client."""
    config = {**QUICK, "bootstrap.servers": brokers}
    by_call = Identity(config, timeout)
    monkeypatch.setattr(librdkafka, "is_known", lambda: False)
    return by_call, Identity(config, timeout)


def error_of(identity: Identity, topics: set[str]) -> tuple[type[KafkaUnavailable], str]:
    with pytest.raises(KafkaUnavailable) as raised:
        identity.ask(topics).result()
    return type(raised.value), str(raised.value)


@known_build
def test_both_ways_give_the_same_ids(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Existing topics, one of them with 1,000 partitions, and a missing one."""
    small, wide = scene.topic(), scene.topic(1000)
    by_call, by_client = both(monkeypatch, scene.broker)
    topics = {small, wide, f"{small}-missing"}
    expected = {small: scene.topic_id(small), wide: scene.topic_id(wide), f"{small}-missing": None}
    assert by_call.ask(topics).result() == by_client.ask(topics).result() == expected
    assert by_call.ask(set()).result() == by_client.ask(set()).result() == {}


@known_build
def test_both_ways_raise_the_same_errors(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that no topic can have, and brokers that do not answer in time."""
    by_call, by_client = both(monkeypatch, scene.broker)
    refused = error_of(by_call, {"no such/name"})
    assert refused == error_of(by_client, {"no such/name"})
    assert refused[0] is KafkaRefused
    monkeypatch.undo()
    by_call, by_client = both(monkeypatch, NO_BROKER, 0.5)
    for identity in (by_call, by_client):
        kind, message = error_of(identity, {"a", "b"})
        assert kind is KafkaUnavailable
        reason = message.removeprefix("no answer about topic 'a': ")
        assert reason in TIMED_OUT, "the brokers' time to answer is the request's own"


def test_a_recreated_topic_has_another_id(scene: Scene, new_identity: NewIdentity) -> None:
    name = scene.topic()
    identity = new_identity(scene.broker)
    old = identity.ask({name}).result()[name]
    scene.delete_topic(name)
    assert identity.ask({name}).result() == {name: None}
    scene.topic(name=name)
    new = identity.ask({name}).result()[name]
    assert new == scene.topic_id(name)
    assert None not in (old, new)
    assert old != new


def test_an_answer_can_be_read_twice(scene: Scene, new_identity: NewIdentity) -> None:
    name = scene.topic()
    identity = new_identity(scene.broker)
    answer = identity.ask({name})
    assert answer.result() == answer.result() == {name: scene.topic_id(name)}


def test_questions_for_other_topics_alternate(scene: Scene, new_identity: NewIdentity) -> None:
    """Each answer is about the topics of its own question, though a request is kept and sent again."""
    first, second, identity = scene.topic(), scene.topic(), new_identity(scene.broker)
    for topics in ({first}, {second}, {first, second}, {first}):
        assert identity.ask(topics).result() == {name: scene.topic_id(name) for name in topics}


@known_build
def test_an_open_question_keeps_its_client(scene: Scene) -> None:
    """librdkafka's queue must end before its client does."""
    name = scene.topic()
    answer = Identity({"bootstrap.servers": scene.broker}, 20.0).ask({name})
    gc.collect()
    assert answer.result() == {name: scene.topic_id(name)}


CLOSED = """
import sys

from confluent_kafka import KafkaException, TopicCollection

from seekpoint.kafka import librdkafka
from seekpoint.kafka.questions import AskingClient

librdkafka.is_known = lambda: sys.argv[2] == "librdkafka"
client = AskingClient({"bootstrap.servers": sys.argv[1], "log_level": 0}, lambda error: None)


def ask():
    if client.handle is not None:
        return client.handle.ask(["a"], 20.0).wait
    return client.admin.describe_topics(TopicCollection(["a"]), request_timeout=20.0)["a"].result


wait = ask()
if not hasattr(client.admin, "__exit__"):
    sys.exit("this client cannot be closed")
with client.admin:
    pass
if client.handle is not None:
    librdkafka._library().queue_poll = lambda *_: sys.exit("freed memory is read")
try:
    wait(20.0)
except KafkaException as error:
    print(error.args[0].str())
try:
    ask()
except RuntimeError as error:
    print(error)
"""


def test_a_client_that_is_closed_while_a_question_is_open(topic_id_way: str) -> None:
    """The open question fails, and a later one does not reach the freed handle. In a process that it could end."""
    command = [sys.executable, "-c", CLOSED, NO_BROKER, topic_id_way]
    child = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if "cannot be closed" in child.stderr:
        pytest.skip(child.stderr)
    assert child.returncode == 0, child.stderr
    first, second = child.stdout.splitlines()
    assert "Handle is terminating" in first or "Broker handle destroyed" in first  # librdkafka's texts for one cause
    assert second == "AdminClient has been closed"


@known_build
def test_what_was_not_made_whole_ends_without_an_error() -> None:
    """A timeout that librdkafka refuses, which would leave its own; a signal handler that raises in __init__."""
    handle = librdkafka.handle_of(make_admin({**QUICK, "bootstrap.servers": NO_BROKER}))
    assert handle is not None
    with pytest.raises(ValueError, match=r"expecting integer in range 0\.\.3600000"):
        handle.ask(["a"], 3601.0)
    for kind in (librdkafka.TopicIds, librdkafka._Request):
        kind.__new__(kind).__del__()  # type: ignore[attr-defined]


@known_build
def test_a_queue_is_destroyed_once_though_a_signal_handler_raises() -> None:
    """A handler may raise as soon as the call that destroys the queue has returned."""
    handle = librdkafka.handle_of(make_admin({**QUICK, "bootstrap.servers": NO_BROKER}))
    assert handle is not None
    question, destroyed = handle.ask(["a"], 20.0), []

    class SignalError(Exception):
        pass

    class Interrupted:
        """The library, with a signal after the call."""

        def queue_destroy(self, queue: int) -> None:
            destroyed.append(queue)
            raise SignalError

    question._library = cast("Any", Interrupted())
    with pytest.raises(SignalError):
        question._close()
    question._close()
    del question
    assert len(destroyed) == 1
    librdkafka._library().queue_destroy(destroyed[0])


@pytest.mark.long
def test_a_broker_killed_between_question_and_answer(
    scene_on: Callable[..., Scene], own_kafka: KafkaServer, new_identity: NewIdentity
) -> None:
    """Each answer is the topic's id or KafkaUnavailable; the client answers again after the broker has restarted."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    scene = scene_on(kafka=own_kafka)
    name = scene.topic()
    expected = {name: scene.topic_id(name)}
    identity = new_identity(scene.broker, 2.0)
    answered = random.Random(seed).randrange(5, 100)
    for _ in range(answered):
        assert identity.ask({name}).result() == expected
    pending = [identity.ask({name}) for _ in range(50)]
    own_kafka.kill()
    failed = 0
    for answer in pending:
        try:
            assert answer.result() == expected
        except KafkaUnavailable:
            failed += 1
    print(f"{failed} of {len(pending)} failed")
    assert issubclass(error_of(identity, {name})[0], KafkaUnavailable)
    own_kafka.start()

    def answers() -> bool:
        try:
            return identity.ask({name}).result() == expected
        except KafkaUnavailable:
            return False

    scene.wait(answers)


def test_a_signal_is_handled_while_an_answer_is_awaited(new_identity: NewIdentity) -> None:
    class SignalError(Exception):
        pass

    def handler(*_: object) -> None:
        raise SignalError

    before = signal.signal(signal.SIGUSR1, handler)
    timer = threading.Timer(0.2, signal.pthread_kill, (threading.get_ident(), signal.SIGUSR1))
    try:
        identity = new_identity(NO_BROKER, 20.0)
        answer = identity.ask({"a"})
        timer.start()
        began = monotonic()
        with pytest.raises(SignalError):
            answer.result()
        assert monotonic() - began < 10
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.long
@known_build
def test_memory_does_not_grow_with_questions(scene: Scene) -> None:
    """40,000 questions, of which every second is of another topic, and given up without reading its answer."""
    name, other = scene.topic(), scene.topic()
    identity, process = Identity({"bootstrap.servers": scene.broker}, 20.0), psutil.Process()

    def ask(questions: int) -> int:
        for _ in range(questions // 100):
            answers = [identity.ask({(name, other)[n % 2]}) for n in range(100)]
            assert all(answer.result()[name] is not None for answer in answers[::2])
        gc.collect()
        return process.memory_info().rss

    first = ask(10_000)
    assert ask(30_000) - first < 1_500_000, "bytes: 50 a question"


# -- unknown builds -----------------------------------------------------------------------------------------------

CHILD = """
import json, os, platform, sys
from types import SimpleNamespace

import confluent_kafka

from seekpoint.kafka import librdkafka
from seekpoint.kafka.identity import Identity

class Pointer(librdkafka.c_void_p):
    @classmethod
    def from_address(cls, address):
        os._exit(3)

librdkafka.c_void_p = Pointer
brokers, topic, change = sys.argv[1:]
exec(change)
identity = Identity({"bootstrap.servers": brokers}, 20.0)
found = identity.ask({topic}).result()
print(json.dumps({topic: str(id_) for topic, id_ in found.items()}))
"""

UNKNOWN = {
    "version": "confluent_kafka.version = lambda: '99.0.0'",
    "library": "confluent_kafka.libversion = lambda: ('99.0.0', 0x630000FF)",
    "system": "sys.platform = 'darwin'",
    "machine": "platform.machine = lambda: 'aarch64'",
    "size": "librdkafka.cimpl = SimpleNamespace(_AdminClientImpl=SimpleNamespace(__basicsize__=8))",
    "interpreter": "sys.implementation = SimpleNamespace(name='pypy')",
}


def run_child(scene: Scene, topic: str, change: str) -> subprocess.CompletedProcess[str]:
    """Ask in a process that ends with code 3 where a pointer is read."""
    command = [sys.executable, "-c", CHILD, scene.broker, topic, change]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.repeats("change")
@pytest.mark.parametrize("change", UNKNOWN.values(), ids=UNKNOWN)
def test_no_pointer_is_read_in_an_unknown_build(scene: Scene, change: str) -> None:
    name = scene.topic()
    child = run_child(scene, name, change)
    assert child.returncode == 0, child.stderr
    assert json.loads(child.stdout) == {name: str(scene.topic_id(name))}


def test_the_way_in_an_unknown_build_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(librdkafka, "KNOWN", frozenset())
    librdkafka._log_fallback.cache_clear()
    with caplog.at_level("INFO", "seekpoint.kafka"):
        for _ in range(3):
            Identity({**QUICK, "bootstrap.servers": NO_BROKER}, 1.0)
    (line,) = [record.getMessage() for record in caplog.records if record.name == "seekpoint.kafka"]
    assert line.startswith(f"confluent-kafka {librdkafka.this_build().version} with librdkafka ")
    assert "was not compared: topic ids are asked for through the Python client" in line


@known_build
def test_the_pointer_is_read_in_a_known_build(scene: Scene) -> None:
    """That the test above would notice."""
    assert run_child(scene, scene.topic(), "").returncode == 3
