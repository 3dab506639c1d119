"""A worker's life: made without I/O, run once, drained by a signal or at the end of a block, loud when it dies."""

from __future__ import annotations

import asyncio
import gc
import logging
import queue
import signal
import socket
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from time import monotonic
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import OperationalError, ProgrammingError

from seekpoint import Batch, Ledger, Limits, Partition, Pipeline, Poison, Text, Worker, events
from seekpoint.errors import ConfigError, HandlerOutdated, KafkaUnavailable, PoisonStop, SchemaMismatch, StopTimeout
from seekpoint.kafka.config import make_consumer
from seekpoint.kafka.identity import Identity
from seekpoint.testing.servers.kafka import KafkaServer
from seekpoint.testing.servers.postgres import PostgresServer
from seekpoint.worker import loop
from support.events import Gate, Recorder
from support.kafka_postgres import PROTOCOLS, QUICK, Scene
from support.waiting import until

pytestmark = pytest.mark.usefixtures("short_backoff")


def nothing(tx: Connection, batch: Batch[str, Any]) -> None:
    """A handler that writes nothing."""


def test_making_a_worker_does_no_io_and_its_repr_hides_the_password() -> None:
    worker = Worker(
        Pipeline("g", topics="t", value=Text(), handle=nothing),
        engine="postgresql://nobody:secret@192.0.2.1:1/none",
        kafka={"bootstrap.servers": "192.0.2.1:1"},
    )
    assert "nobody" in repr(worker)
    assert "secret" not in repr(worker)


# -- a process of its own -------------------------------------------------------------------------------------


@pytest.mark.repeats("number")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_the_batch_in_hand_and_gives_the_partitions_back(scene: Scene, number: int) -> None:
    name, stored = scene.log(100, 2)
    process = scene.worker_process(name, stop_at=("Applied", 1))
    process.wait_until_stopped()  # inside its transaction
    process.signal(number)
    process.thaw()
    assert (process.ended(), process.errors) == (0, "")
    assert process.all("Committed")
    assert [row.owner for row in scene.ledger.read()] == [None, None]
    assert sum(row.unreleased_claims for row in scene.ledger.read()) == 0
    committed = {f"{topic}/{number}": at for (topic, number), at in scene.positions().items()}
    scene.book.assert_holds(name, [at for at in stored if at[1] < committed[f"{name}/{at[0]}"]])


def test_a_second_signal_throws_the_open_transaction_away(scene: Scene) -> None:
    name, stored = scene.log(100)
    process = scene.worker_process(name, handle="blocks")
    process.wait_for("handler entered")
    process.signal(signal.SIGTERM)
    process.wait_for("signal seen")
    process.signal(signal.SIGTERM)
    assert process.ended() != 0
    assert "second SIGTERM: aborted" in process.errors
    assert not process.all("Committed")
    assert scene.book.written(name) == []
    assert [row.owner for row in scene.ledger.read()] == [None]
    heir = scene.worker(name)
    heir.finish(name, 100)
    scene.book.assert_holds(name, stored)


# -- inside a service -----------------------------------------------------------------------------------------


def make(scene: Scene, pipeline: Pipeline, *, kafka: Mapping[str, Any] = QUICK, **options: Any) -> Worker:
    """A worker that the test runs itself."""
    given = {"engine": scene.engine, "schema": scene.schema, **options}
    return Worker(pipeline, kafka={"bootstrap.servers": scene.broker, **kafka}, **given)


def test_i2_a_worker_is_another_owner_in_each_process_that_runs_it(scene: Scene) -> None:
    """A server that forks after it has made its worker has one in each process: their claims must not be the same."""
    seen = Recorder()
    worker = make(scene, scene.pipeline(scene.topic()), observe=[seen])
    made = worker._ledger.owner.hex
    with worker.running():
        assert seen.wait_for(events.Started).owner == worker._ledger.owner.hex != made


@pytest.mark.pins("batch")
def test_a_with_block_runs_the_worker_and_drains_it(scene: Scene) -> None:
    name, seen = scene.topic(), Recorder()
    stored = scene.produce(name, 10)
    worker = make(scene, scene.pipeline(name), observe=[seen])
    assert not worker.health().live
    with worker.running() as running:
        assert running.health().live
        seen.wait_for(events.Committed)
        assert worker.health().ready
    assert not worker.health().live
    assert worker.health().error is None
    assert [type(e) for e in seen.events[-1:]] == [events.WorkerStopped]
    assert [row.owner for row in scene.ledger.read()] == [None]
    scene.book.assert_holds(name, stored)


def test_a_worker_that_has_ended_is_kept_by_nothing(scene: Scene) -> None:
    """A host that starts and stops workers has no more threads and connections for each: not even for the grace."""
    worker = make(scene, scene.pipeline(scene.topic()))
    with worker.running(grace=600):
        pass
    kept = weakref.ref(worker)
    del worker

    def is_gone() -> bool:
        gc.collect()
        return kept() is None

    until(is_gone, "the end of everything that the worker had")


@pytest.mark.pins("batch")
def test_an_async_with_block_does_the_same_without_blocking_the_loop(scene: Scene) -> None:
    name, seen = scene.topic(), Recorder()
    stored = scene.produce(name, 10)
    gate = Gate(events.Advanced)
    worker = make(scene, scene.pipeline(name), observe=[seen, gate])

    async def serve() -> None:
        async with worker.running() as running:
            await asyncio.to_thread(gate.wait)
            left = asyncio.create_task(asyncio.to_thread(gate.open))
            assert running.health().live
            await left

    asyncio.run(serve())
    assert seen.all(events.Committed)
    scene.book.assert_holds(name, stored)


def test_an_error_in_the_block_drains_the_worker_and_passes(scene: Scene) -> None:
    worker = make(scene, scene.pipeline(scene.topic()))
    with pytest.raises(ZeroDivisionError), worker.running():
        _ = 1 / 0
    assert not worker.health().live


def test_an_error_of_the_release_does_not_hide_the_first_error(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_tx: Connection, _batch: Batch[str, Any]) -> None:
        raise Poison("no")

    def no_release(*_: object) -> None:
        raise RuntimeError("no release")

    monkeypatch.setattr(Ledger, "release", no_release)
    name, seen = scene.log(1)[0], Recorder()
    worker = make(scene, scene.pipeline(name, handle=refuse, strict=True), observe=[seen])
    with pytest.raises(PoisonStop):
        worker.run()
    assert isinstance(seen.wait_for(events.WorkerStopped).error, PoisonStop)
    assert "no release" in str(seen.all(events.DatabaseTrouble)[-1].error)


@pytest.mark.pins("batch")
def test_a_fatal_error_turns_live_false_at_once_and_is_raised_on_leaving(scene: Scene) -> None:
    name, seen = scene.topic(), Recorder()

    def fails(tx: Connection, batch: Batch[str, Any]) -> None:
        tx.execute(text("SELECT FROM no_such_table"))  # a mistake in the program: no record is at fault

    scene.produce(name, 3)
    worker = make(scene, scene.pipeline(name, handle=fails), observe=[seen])

    def serve() -> None:
        with worker.running():
            seen.wait_for(events.WorkerStopped)
            assert not worker.health().live
            assert isinstance(worker.health().error, ProgrammingError)

    with pytest.raises(ProgrammingError, match="no_such_table") as caught:
        serve()
    assert f"while applying {name}/0 [0, 3)" in caught.value.__notes__[0]
    assert scene.positions() == dict.fromkeys(scene.positions(), 0)


# -- the start ------------------------------------------------------------------------------------------------

NOBODY = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("what", "error", "says"),
    [
        ("topic", ConfigError, "does not exist"),
        ("option", ConfigError, 'No such configuration property: "no.such.option"'),
        ("schema", SchemaMismatch, "has no ledger tables"),
        ("database", OperationalError, 'database "no_such_database" does not exist'),
    ],
)
@pytest.mark.parametrize("wait", [True, False])
def test_what_is_wrong_for_good_is_not_waited_for(  # noqa: PLR0917 -- fixtures
    scene: Scene, what: str, error: type[Exception], says: str, wait: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where brokers are away: what the client does not know is refused before it waits for them."""
    kafka = {"bootstrap.servers": NOBODY, "no.such.option": "1"} if what == "option" else QUICK
    pipeline = scene.pipeline("no-such-topic" if what == "topic" else scene.topic())
    url = scene.engine.url.set(database="no_such_database") if what == "database" else scene.engine.url
    schema = "elsewhere" if what == "schema" else scene.schema
    worker = make(scene, pipeline, engine=url, kafka=kafka, schema=schema, limits=Limits(kafka_timeout=2))
    deaths: list[BaseException] = []
    died = threading.Event()

    def on_error(error: BaseException) -> None:
        deaths.append(error)
        died.set()
        raise ValueError("the alarm is broken")

    def serve() -> None:
        with worker.running(wait=wait, on_error=on_error):
            assert not wait, "it must not have started"
            assert died.wait(30)

    with pytest.raises(error, match=says) as raised:
        serve()
    assert worker.health().error is raised.value
    assert deaths == ([] if wait else [raised.value])
    assert ("on_error= raised; ignored" in caplog.text) is not wait
    logged = [r for r in caplog.records if r.levelno == logging.ERROR and r.name == "seekpoint.events"]
    assert [r.exc_info[1] for r in logged if r.exc_info] == [raised.value]
    assert says in caplog.text


@pytest.mark.long
@pytest.mark.parametrize("away", ["brokers", "database"])
def test_a_start_waits_as_long_as_it_may_and_then_says_what_is_away(scene: Scene, away: str) -> None:
    kafka = {"bootstrap.servers": NOBODY, **QUICK} if away == "brokers" else QUICK
    url = scene.engine.url.set(host="127.0.0.1", port=1) if away == "database" else scene.engine.url
    limits, seen = Limits(start_wait=2, kafka_timeout=0.5), Recorder()
    worker = make(scene, scene.pipeline(scene.topic()), engine=url, kafka=kafka, limits=limits, observe=[seen])
    kind, says = (
        (KafkaUnavailable, "check that the brokers run") if away == "brokers" else (OperationalError, "refused")
    )
    with pytest.raises(kind, match=says), worker.running():
        raise AssertionError("it must not have started")
    trouble = events.KafkaTrouble if away == "brokers" else events.DatabaseTrouble
    assert len(seen.all(trouble)) >= 2
    (delayed,) = seen.all(events.StartDelayed)
    assert str(delayed).endswith("waiting for it, 2 s at most")
    assert delayed.limit == 2
    assert delayed.reason
    assert all(each.wait > 0 for each in seen.all(trouble)[:-1])  # type: ignore[attr-defined]


@pytest.mark.long
@pytest.mark.pins("batch")
def test_an_embedding_service_starts_while_brokers_and_database_are_away(
    scene_on: Callable[..., Scene], own_kafka: KafkaServer, own_postgres: PostgresServer
) -> None:
    scene = scene_on(kafka=own_kafka, postgres=own_postgres)
    name, seen = scene.topic(), Recorder()
    stored = scene.produce(name, 10)
    own_kafka.kill()
    own_postgres.kill()
    worker = make(scene, scene.pipeline(name), observe=[seen], limits=Limits(kafka_timeout=1))
    with worker.running(wait=False) as running:
        seen.wait_for(events.DatabaseTrouble)
        health = running.health()
        assert (health.live, health.ready, health.error) == (True, False, None)
        assert health.trouble is not None
        own_postgres.start()
        seen.wait_for(events.KafkaTrouble)
        own_kafka.start()
        seen.wait_for(events.Recovered)
        seen.wait_for(events.Committed)
        scene.wait(lambda: running.health().ready)
        assert running.health().trouble is None
    scene.book.assert_holds(name, stored)


def test_a_worker_that_waits_for_its_servers_can_be_left(scene: Scene) -> None:
    seen, away = Recorder(), {"bootstrap.servers": NOBODY}
    worker = make(scene, scene.pipeline(scene.topic()), kafka=away, limits=Limits(kafka_timeout=0.5), observe=[seen])
    with worker.running(wait=False):
        seen.wait_for(events.KafkaTrouble)
    assert worker.health().error is None
    assert not worker.health().live


def test_a_topic_that_a_broker_does_not_know_yet_is_awaited(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    name = scene.topic()
    answers: list[dict[str, int]] = [{}, {}]
    known = Identity.known
    monkeypatch.setattr(Identity, "known", lambda self, topics: answers.pop() if answers else known(self, topics))
    run = scene.worker(name)
    run.placed()
    run.stop()
    assert not answers


def test_an_embedded_worker_that_dies_is_reported(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    name, deaths = scene.topic(), []

    def fails(tx: Connection, batch: Batch[str, Any]) -> None:
        raise SystemExit("enough")

    def on_error(error: BaseException) -> None:
        deaths.append(error)
        died.set()

    def serve() -> None:
        with make(scene, scene.pipeline(name, handle=fails)).running(on_error=on_error):
            scene.produce(name, 3)
            assert died.wait(30)

    died = threading.Event()
    with pytest.raises(SystemExit):
        serve()
    assert [type(each) for each in deaths] == [SystemExit]
    (logged,) = [r for r in caplog.records if r.levelno == logging.ERROR and r.name == "seekpoint.events"]
    assert "enough" in logged.getMessage()
    assert logged.exc_info is not None
    assert logged.exc_info[1] is deaths[0]


def test_stop_may_be_called_from_any_thread(scene: Scene) -> None:
    name, seen = scene.topic(), Recorder()
    worker = make(scene, scene.pipeline(name), observe=[seen])
    runner = threading.Thread(target=worker.run)  # run() outside the main thread installs no signal handler
    runner.start()
    seen.wait_for(events.Activated)
    before = signal.getsignal(signal.SIGTERM)
    threading.Thread(target=worker.stop).start()
    runner.join(30)
    assert not runner.is_alive()
    assert signal.getsignal(signal.SIGTERM) is before
    assert worker.health().error is None


def test_run_in_the_main_thread_puts_the_signal_handlers_back(scene: Scene) -> None:
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("this runner runs its tests outside the main thread")
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)

    def stop(event: events.Event) -> None:
        if isinstance(event, events.Started):
            worker.stop()

    worker = make(scene, scene.pipeline(scene.topic()), observe=[stop])
    worker.run()
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


# -- handlers that do not return ------------------------------------------------------------------------------


class Endless:
    """A handler that books its records, and then does not return before the test lets it."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.entered, self.released, self.left = threading.Event(), threading.Event(), threading.Event()
        self.late: list[BaseException] = []

    def __call__(self, tx: Connection, batch: Batch[str, Any]) -> None:
        self._scene.book.enter(tx, batch)
        self.entered.set()
        assert self.released.wait(60)
        try:
            self._scene.book.enter(tx, batch)
        except BaseException as error:
            self.late.append(error)
            raise
        finally:
            self.left.set()


@pytest.fixture
def endless(scene: Scene) -> Iterator[Endless]:
    """Let go at the end of the test."""
    made = Endless(scene)
    yield made
    made.released.set()


@pytest.mark.parametrize("way", ["leave", "stop"])
def test_i2_a_worker_whose_handler_never_returns_is_given_up_after_the_grace(
    scene: Scene, endless: Endless, way: str, protocol: Mapping[str, Any]
) -> None:
    """I2: leaving is bounded, a successor takes over at once, and what the thread does later is refused."""
    name, seen = scene.topic(), Recorder()
    stored = scene.produce(name, 10)
    worker = make(scene, scene.pipeline(name, handle=endless), kafka=protocol, observe=[seen])
    running = worker.running(grace=0.5 if way == "leave" else None).__enter__()
    assert endless.entered.wait(30)
    began = monotonic()
    if way == "stop":
        worker.stop(grace=0.5)
    with pytest.raises(
        StopTimeout, match=r"the handler .*Endless.* has not returned within 0.5 s .* is at .*:\d+ in "
    ) as e:
        running.__exit__(None, None, None)
    assert 0.5 <= monotonic() - began < 8
    health = worker.health()
    assert (health.live, health.error) == (False, e.value)
    assert isinstance(seen.events[-1], events.WorkerStopped)
    (row,) = scene.ledger.read()
    assert row.owner is not None
    groups = scene.admin.describe_consumer_groups
    scene.wait(lambda: not groups([scene.group])[scene.group].result(10).members, 4)  # no session has expired by then

    heir = scene.worker(name, kafka=protocol)
    heir.reached(name, 10)
    assert heir.seen.all(events.Activated)[0].offset == 0
    mark = seen.mark()
    endless.released.set()
    assert endless.left.wait(30)
    stored += scene.produce(name, 10)
    heir.finish(name, 20)
    assert endless.late
    assert seen.mark() == mark
    scene.book.assert_holds(name, stored)


def test_a_start_that_is_given_up_raises_at_once(scene: Scene) -> None:
    """A server that accepts connections and never answers keeps the worker's thread, and nothing else."""
    name, seen, raised = scene.topic(), Recorder(), queue.SimpleQueue[BaseException]()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        engine = create_engine(scene.engine.url.set(host="127.0.0.1", port=silent.getsockname()[1]))
        worker = make(scene, scene.pipeline(name), engine=engine, kafka={}, observe=[seen])

        def serve() -> None:
            try:
                with worker.running():
                    pass
            except StopTimeout as error:
                raised.put(error)

        entering = threading.Thread(target=serve)
        entering.start()
        client, _ = silent.accept()
        with client:
            worker.stop(grace=0.1)
            entering.join(20)
            assert not entering.is_alive()
    engine.dispose()
    assert raised.get_nowait() is worker.health().error


def test_a_handler_that_never_returns_is_a_crash_to_the_next_owner(scene: Scene, endless: Endless) -> None:
    name, _ = scene.log(10)
    gate = Gate(events.Activated)
    deaths: list[BaseException] = []
    worker = make(scene, scene.pipeline(name, handle=endless))
    with pytest.raises(StopTimeout) as given_up, worker.running(grace=0.1, on_error=deaths.append):
        assert endless.entered.wait(30)
    assert deaths == [given_up.value]
    heir = scene.worker(name, observe=[gate])
    gate.wait()
    assert owners(scene) == [(True, 1)]
    heir.stop()


def wait_for_its_end(scene: Scene) -> None:
    """Until the thread of the scene's worker has ended."""
    for thread in threading.enumerate():
        if thread.name == f"seekpoint-{scene.group}":
            thread.join(30)
            assert not thread.is_alive()


def test_i2_a_worker_that_was_given_up_releases_no_claim_later(scene: Scene, endless: Endless) -> None:
    """To the next owner it is a crash, however late the handler comes back."""
    name, _ = scene.log(10)
    with pytest.raises(StopTimeout), make(scene, scene.pipeline(name, handle=endless)).running(grace=0.1):
        assert endless.entered.wait(30)
    endless.released.set()
    wait_for_its_end(scene)
    assert owners(scene) == [(True, 0)]


def test_a_worker_given_up_before_it_joins_leaves_no_member(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client is made after that, and closed by its own thread."""
    looking, answered = threading.Event(), threading.Event()
    clients: list[Any] = []
    differs = Ledger.differs

    def slow(ledger: Ledger, topics: Any) -> Any:
        looking.set()
        assert answered.wait(30)
        return differs(ledger, topics)

    def made(*args: Any, **options: Any) -> Any:
        clients.append(make_consumer(*args, **options))
        return clients[-1]

    monkeypatch.setattr(Ledger, "differs", slow)
    monkeypatch.setattr(loop, "make_consumer", made)
    with pytest.raises(StopTimeout), make(scene, scene.pipeline(scene.topic())).running(wait=False, grace=0.1):
        assert looking.wait(30)
    answered.set()
    wait_for_its_end(scene)
    for client in clients:
        with pytest.raises(RuntimeError, match="closed"):
            client.assignment()
    assert clients


def test_live_is_false_while_a_handler_runs_for_too_long(scene: Scene, endless: Endless) -> None:
    name, seen = scene.topic(), Recorder()
    scene.produce(name, 10)
    worker = make(scene, scene.pipeline(name, handle=endless), limits=Limits(transaction_age=0.3), observe=[seen])
    with worker.running():
        assert endless.entered.wait(30)
        scene.wait(lambda: not worker.health().live)
        health = worker.health()
        assert health.stuck is not None
        assert health.stuck > 0.3
        assert (health.ready, health.error) == (False, None)
        endless.released.set()
        seen.wait_for(events.Committed)  # its transaction had come to its end: it ran again
        assert worker.health().live
        assert worker.health().stuck is None
    assert seen.all(events.DatabaseTrouble)


def test_what_a_handler_waits_for_in_the_database_does_not_count_as_running(scene: Scene) -> None:
    name, seconds = scene.topic(), []

    def locks(tx: Connection, batch: Batch[str, Any]) -> None:
        tx.execute(text("SELECT pg_sleep(0.5)"))
        seconds.append(worker._stopwatch.seconds())
        scene.book.enter(tx, batch)

    stored, seen = scene.produce(name, 1), Recorder()
    worker = make(scene, scene.pipeline(name, handle=locks), observe=[seen])
    with worker.running():
        seen.wait_for(events.Committed)
    assert 0 < seconds[0] < 0.4
    assert worker._stopwatch.seconds() == 0
    scene.book.assert_holds(name, stored)


# -- what is left behind --------------------------------------------------------------------------------------


def owners(scene: Scene) -> list[tuple[bool, int]]:
    """Of each partition: whether it has an owner, and the claims that were not released."""
    return [(row.owner is not None, row.unreleased_claims) for row in scene.ledger.read()]


def raise_version(scene: Scene, name: str, *numbers: int) -> Ledger:
    """What a worker of version 2 does when it claims these partitions."""
    newer = Ledger(scene.engine, scene.group, schema=scene.schema, version=2)
    cluster = str(scene.admin.list_topics(timeout=10).cluster_id)
    wanted = [Partition(name, number) for number in numbers]
    newer.claim(wanted, {name: scene.topic_id(name)}, cluster_id=cluster, start=lambda _: {})
    return newer


@pytest.mark.long
def test_a_stop_while_paused_is_counted_as_no_crash(scene: Scene) -> None:
    """I5: a pause draws new tokens and keeps the owner: the owner still says that it leaves."""
    name = scene.topic(2)
    stored = scene.produce(name, 10)
    for _ in range(3):
        run = scene.worker(name, limits=Limits(idle_check=0.1))
        run.placed(2)
        scene.wait_until_caught_up(name, stored)
        scene.ledger.pause(reason="a test")
        run.seen.wait_for(events.Paused)
        run.stop()
        assert owners(scene) == [(False, 0), (False, 0)]
        scene.ledger.resume()
        stored += scene.produce(name, 10)
    heir = scene.worker(name)
    scene.finish(heir, name, stored)
    assert not heir.seen.all(events.CrashSuspected)
    scene.book.assert_holds(name, stored)


def test_a_worker_that_ends_as_outdated_is_counted_as_no_crash(scene: Scene) -> None:
    """I5: so does a new version; what its worker has claimed stays its own."""
    name = scene.topic(2)
    run = scene.worker(name, limits=Limits(idle_check=0.1))
    run.placed(2)
    newer = raise_version(scene, name, 1)
    run.seen.wait_for(events.WorkerStopped, lambda e: isinstance(e.error, HandlerOutdated))
    with pytest.raises(HandlerOutdated):
        run.stop()
    assert [row.owner for row in scene.ledger.read()] == [None, newer.owner]
    assert owners(scene) == [(False, 0), (True, 1)]  # it claimed over an owner that lived


def test_an_outdated_worker_without_a_partition_hears_of_the_new_version(scene: Scene) -> None:
    name, gate = scene.topic(), Gate(events.ChunkRead)
    busy = scene.worker(name, kafka=PROTOCOLS["848"], observe=[gate])
    busy.placed()
    idle = scene.worker(name, kafka=PROTOCOLS["848"], limits=Limits(idle_check=0.1))
    scene.produce(name, 1)
    gate.wait()  # it keeps the partition, and has no transaction yet
    raise_version(scene, name, 0)
    # Sooner than max.poll.interval.ms, after which it would be given the partition.
    idle.seen.wait_for(events.WorkerStopped, lambda e: isinstance(e.error, HandlerOutdated), timeout=5.0)
    assert not idle.seen.all(events.Activated)
    with pytest.raises(HandlerOutdated):
        idle.stop()
    busy.stop()


def test_a_worker_runs_once(scene: Scene) -> None:
    worker = make(scene, scene.pipeline(scene.topic()))
    with worker.running():
        pass
    with pytest.raises(ConfigError, match="runs once"), worker.running():
        raise AssertionError("it must not have started")


@pytest.mark.pins("batch")
@pytest.mark.parametrize("strict", [False, True])
def test_a_stopped_partition_ends_the_worker_only_if_it_is_strict(scene: Scene, strict: bool) -> None:
    name, seen = scene.topic(2), Recorder()
    stored = scene.produce(name, ["fine"], partition=0)
    scene.produce(name, [b"\xff\xfe"], partition=0)  # not UTF-8
    worker = make(scene, scene.pipeline(name, strict=strict), observe=[seen])
    if strict:
        with pytest.raises(PoisonStop) as caught, worker.running():
            seen.wait_for(events.WorkerStopped)
        assert (caught.value.partition, caught.value.offset) == ((name, 0), 1)
        stop = scene.ledger.read()[0].stop
        assert stop is not None, "it is stored before the worker ends"
        assert (stop.kind, stop.offset) == ("PoisonStop", 1)
    else:
        with worker.running():
            seen.wait_for(events.PartitionStopped)
            stored += scene.produce(name, ["the other partition goes on"], partition=1)
            seen.wait_for(events.Committed, lambda e: e.spans[0].partition.number == 1)
            assert list(worker.health().stopped) == [(name, 0)]
            assert worker.health().live
    scene.book.assert_holds(name, stored)
    assert [row.owner for row in scene.ledger.read()] == [None, None], "a parked partition is given back too"
