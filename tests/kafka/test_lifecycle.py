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
from sqlalchemy import Connection, create_engine, event, text
from sqlalchemy.exc import OperationalError, ProgrammingError

from seekpoint import Batch, Limits, Partition, Pipeline, Poison, Text, Worker, events
from seekpoint.errors import ConfigError, HandlerOutdated, KafkaUnavailable, PoisonStop, SchemaMismatch, StopTimeout
from seekpoint.kafka.config import make_consumer
from seekpoint.kafka.identity import Identity
from seekpoint.ledger import GroupLedger
from seekpoint.testing.servers.kafka import KafkaServer
from seekpoint.testing.servers.postgres import PostgresServer
from seekpoint.worker import loop
from support.events import Gate, Recorder
from support.fixtures import NewEngine
from support.waiting import until
from support.worker_group import PROTOCOLS, QUICK, WorkerGroup

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
def test_a_signal_drains_the_batch_in_hand_and_gives_the_partitions_back(
    worker_group: WorkerGroup, number: int
) -> None:
    name, stored = worker_group.log(100, 2)
    process = worker_group.worker_process(name, stop_at=("Applied", 1))
    process.wait_until_stopped()  # inside its transaction
    process.signal(number)
    process.thaw()
    assert (process.ended(), process.errors) == (0, "")
    assert process.all("Committed")
    assert [row.owner for row in worker_group.ledger.read()] == [None, None]
    assert sum(row.unreleased_claims for row in worker_group.ledger.read()) == 0
    committed = {f"{topic}/{number}": position for (topic, number), position in worker_group.positions().items()}
    worker_group.record_table.assert_holds(
        name, [place for place in stored if place[1] < committed[f"{name}/{place[0]}"]]
    )


@pytest.mark.parametrize("handle", ["blocks", "awaits"])
def test_a_second_signal_throws_the_open_transaction_away(worker_group: WorkerGroup, handle: str) -> None:
    """A statement of it is ended at the server, too: until then the partition's row would be locked."""
    name, stored = worker_group.log(100)
    process = worker_group.worker_process(name, handle=handle)
    process.wait_for("handler entered")
    process.signal(signal.SIGTERM)
    process.wait_for("signal seen")
    process.signal(signal.SIGTERM)
    assert process.ended() != 0
    assert "second SIGTERM: aborted" in process.errors
    assert not process.all("Committed")
    assert worker_group.record_table.written(name) == []
    assert [row.owner for row in worker_group.ledger.read()] == [None]
    heir = worker_group.worker(name)
    heir.finish(name, 100)
    worker_group.record_table.assert_holds(name, stored)


# -- inside a service -----------------------------------------------------------------------------------------


def make(worker_group: WorkerGroup, pipeline: Pipeline, *, kafka: Mapping[str, Any] = QUICK, **options: Any) -> Worker:
    """A worker that the test runs itself."""
    arguments = {"engine": worker_group.engine, "schema": worker_group.schema, **options}
    return Worker(pipeline, kafka={"bootstrap.servers": worker_group.broker, **kafka}, **arguments)


def test_i2_a_worker_is_another_owner_in_each_process_that_runs_it(worker_group: WorkerGroup) -> None:
    """A server that forks after it has made its worker has one in each process: their claims must not be the same."""
    seen = Recorder()
    worker = make(worker_group, worker_group.pipeline(worker_group.topic()), observe=[seen])
    owner = worker._ledger.owner.hex
    with worker.running():
        assert seen.wait_for(events.Started).owner == worker._ledger.owner.hex != owner


@pytest.mark.pins("batch")
def test_a_with_block_runs_the_worker_and_drains_it(worker_group: WorkerGroup) -> None:
    name, seen = worker_group.topic(), Recorder()
    stored = worker_group.produce(name, 10)
    worker = make(worker_group, worker_group.pipeline(name), observe=[seen])
    assert not worker.health().live
    with worker.running() as running:
        assert running.health().live
        seen.wait_for(events.Committed)
        assert worker.health().ready
    assert not worker.health().live
    assert worker.health().error is None
    assert [type(e) for e in seen.events[-1:]] == [events.WorkerStopped]
    assert [row.owner for row in worker_group.ledger.read()] == [None]
    worker_group.record_table.assert_holds(name, stored)


def test_a_worker_that_has_ended_is_kept_by_nothing(worker_group: WorkerGroup) -> None:
    """A host that starts and stops workers has no more threads and connections for each: not even for the grace."""
    worker = make(worker_group, worker_group.pipeline(worker_group.topic()))
    with worker.running(grace=600):
        pass
    kept = weakref.ref(worker)
    del worker

    def is_gone() -> bool:
        gc.collect()
        return kept() is None

    until(is_gone, "the end of everything that the worker had")


@pytest.mark.pins("batch")
def test_an_async_with_block_does_the_same_without_blocking_the_loop(worker_group: WorkerGroup) -> None:
    name, seen = worker_group.topic(), Recorder()
    stored = worker_group.produce(name, 10)
    gate = Gate(events.Advanced)
    worker = make(worker_group, worker_group.pipeline(name), observe=[seen, gate])

    async def serve() -> None:
        async with worker.running() as running:
            await asyncio.to_thread(gate.wait)
            left = asyncio.create_task(asyncio.to_thread(gate.open))
            assert running.health().live
            await left

    asyncio.run(serve())
    assert seen.all(events.Committed)
    worker_group.record_table.assert_holds(name, stored)


def test_an_error_in_the_block_drains_the_worker_and_passes(worker_group: WorkerGroup) -> None:
    worker = make(worker_group, worker_group.pipeline(worker_group.topic()))
    with pytest.raises(ZeroDivisionError), worker.running():
        _ = 1 / 0
    assert not worker.health().live


def test_an_error_of_the_release_does_not_hide_the_first_error(
    worker_group: WorkerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_tx: Connection, _batch: Batch[str, Any]) -> None:
        raise Poison("no")

    def no_release(*_: object) -> None:
        raise RuntimeError("no release")

    monkeypatch.setattr(GroupLedger, "release", no_release)
    name, seen = worker_group.log(1)[0], Recorder()
    worker = make(worker_group, worker_group.pipeline(name, handle=refuse), strict=True, observe=[seen])
    with pytest.raises(PoisonStop):
        worker.run()
    assert isinstance(seen.wait_for(events.WorkerStopped).error, PoisonStop)
    assert "no release" in str(seen.all(events.DatabaseTrouble)[-1].error)


def test_an_error_of_closing_the_connection_keeps_no_claim_and_no_thread(
    worker_group: WorkerGroup, new_engine: NewEngine
) -> None:
    """A pool's listener of the application raises when the worker returns the connection of its batches."""
    engine, refuses = new_engine(worker_group.dsn), threading.Event()

    def refuse(*_: object) -> None:
        if threading.current_thread().name != "seekpoint-status" and refuses.is_set():
            refuses.clear()
            raise RuntimeError("not returned")

    def observe(event: events.Event) -> None:
        if isinstance(event, events.Draining):
            refuses.set()

    event.listen(engine, "checkin", refuse)
    name, stored = worker_group.log(1)
    run = worker_group.worker(name, engine=engine, observe=[observe])
    worker_group.wait_until_caught_up(name, stored)
    with pytest.raises(RuntimeError, match="not returned"):
        run.stop()
    assert [row.owner for row in worker_group.ledger.read()] == [None]
    names = [thread.name for thread in threading.enumerate()]
    assert "seekpoint-status" not in names


@pytest.mark.pins("batch")
def test_a_fatal_error_turns_live_false_at_once_and_is_raised_on_leaving(worker_group: WorkerGroup) -> None:
    name, seen = worker_group.topic(), Recorder()

    def fails(tx: Connection, batch: Batch[str, Any]) -> None:
        tx.execute(text("SELECT FROM no_such_table"))  # a mistake in the program: no record is at fault

    worker_group.produce(name, 3)
    worker = make(worker_group, worker_group.pipeline(name, handle=fails), observe=[seen])

    def serve() -> None:
        with worker.running():
            seen.wait_for(events.WorkerStopped)
            assert not worker.health().live
            assert isinstance(worker.health().error, ProgrammingError)

    with pytest.raises(ProgrammingError, match="no_such_table") as caught:
        serve()
    assert f"while applying {name}/0 [0, 3)" in caught.value.__notes__[0]
    assert worker_group.positions() == dict.fromkeys(worker_group.positions(), 0)


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
    worker_group: WorkerGroup,
    what: str,
    error: type[Exception],
    says: str,
    wait: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Even if no broker answers: what the client does not know is refused before it waits for them."""
    kafka = {"bootstrap.servers": NOBODY, "no.such.option": "1"} if what == "option" else QUICK
    pipeline = worker_group.pipeline("no-such-topic" if what == "topic" else worker_group.topic())
    url = worker_group.engine.url.set(database="no_such_database") if what == "database" else worker_group.engine.url
    schema = "elsewhere" if what == "schema" else worker_group.schema
    worker = make(worker_group, pipeline, engine=url, kafka=kafka, schema=schema, limits=Limits(kafka_timeout=2))
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
def test_a_start_waits_as_long_as_it_may_and_then_says_what_is_away(worker_group: WorkerGroup, away: str) -> None:
    kafka = {"bootstrap.servers": NOBODY, **QUICK} if away == "brokers" else QUICK
    url = worker_group.engine.url.set(host="127.0.0.1", port=1) if away == "database" else worker_group.engine.url
    limits, seen = Limits(start_wait=2, kafka_timeout=0.5), Recorder()
    worker = make(
        worker_group,
        worker_group.pipeline(worker_group.topic()),
        engine=url,
        kafka=kafka,
        limits=limits,
        observe=[seen],
    )
    kind, says = (
        (KafkaUnavailable, "check that the brokers run") if away == "brokers" else (OperationalError, "refused")
    )
    with pytest.raises(kind, match=says), worker.running():
        raise AssertionError("it must not have started")
    trouble = events.KafkaTrouble if away == "brokers" else events.DatabaseTrouble
    assert len(seen.all(trouble)) >= 2
    (delayed,) = seen.all(events.StartDelayed)
    assert str(delayed).endswith("the worker waits, 2 s at most")
    assert delayed.limit == 2
    assert "check that the brokers run" in delayed.reason or "check that the server runs" in delayed.reason
    assert all(event.wait > 0 for event in seen.all(trouble)[:-1])  # type: ignore[attr-defined]


@pytest.mark.long
def test_a_start_reports_brokers_that_are_away_before_a_request_times_out(worker_group: WorkerGroup) -> None:
    seen, kafka = Recorder(), {"bootstrap.servers": NOBODY, **QUICK}
    worker = make(worker_group, worker_group.pipeline(worker_group.topic()), kafka=kafka, observe=[seen])
    with worker.running(wait=False):
        delayed = seen.wait_for(events.StartDelayed)
    assert "within 3 s" in delayed.reason, "the first request; later ones may take Limits.kafka_timeout"


@pytest.mark.long
@pytest.mark.pins("batch")
def test_an_embedding_service_starts_while_brokers_and_database_are_away(
    worker_group_on: Callable[..., WorkerGroup], own_kafka: KafkaServer, own_postgres: PostgresServer
) -> None:
    worker_group = worker_group_on(kafka=own_kafka, postgres=own_postgres)
    name, seen = worker_group.topic(), Recorder()
    stored = worker_group.produce(name, 10)
    own_kafka.kill()
    own_postgres.kill()
    worker = make(worker_group, worker_group.pipeline(name), observe=[seen], limits=Limits(kafka_timeout=1))
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
        worker_group.wait(lambda: running.health().ready)
        assert running.health().trouble is None
    worker_group.record_table.assert_holds(name, stored)


def test_a_worker_that_waits_for_its_servers_can_be_left(worker_group: WorkerGroup) -> None:
    seen, away = Recorder(), {"bootstrap.servers": NOBODY}
    worker = make(
        worker_group,
        worker_group.pipeline(worker_group.topic()),
        kafka=away,
        limits=Limits(kafka_timeout=0.5),
        observe=[seen],
    )
    with worker.running(wait=False):
        seen.wait_for(events.KafkaTrouble)
    assert worker.health().error is None
    assert not worker.health().live


def test_a_topic_that_a_broker_does_not_know_yet_is_awaited(
    worker_group: WorkerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = worker_group.topic()
    answers: list[dict[str, int]] = [{}, {}]
    known = Identity.known
    monkeypatch.setattr(Identity, "known", lambda self, topics: answers.pop() if answers else known(self, topics))
    run = worker_group.worker(name)
    run.placed()
    run.stop()
    assert not answers


def test_an_embedded_worker_that_dies_is_reported(worker_group: WorkerGroup, caplog: pytest.LogCaptureFixture) -> None:
    name, deaths = worker_group.topic(), []

    def fails(tx: Connection, batch: Batch[str, Any]) -> None:
        raise SystemExit("enough")

    def on_error(error: BaseException) -> None:
        deaths.append(error)
        died.set()

    def serve() -> None:
        with make(worker_group, worker_group.pipeline(name, handle=fails)).running(on_error=on_error):
            worker_group.produce(name, 3)
            assert died.wait(30)

    died = threading.Event()
    with pytest.raises(SystemExit):
        serve()
    assert [type(death) for death in deaths] == [SystemExit]
    (logged,) = [r for r in caplog.records if r.levelno == logging.ERROR and r.name == "seekpoint.events"]
    assert "enough" in logged.getMessage()
    assert logged.exc_info is not None
    assert logged.exc_info[1] is deaths[0]


def test_stop_may_be_called_from_any_thread(worker_group: WorkerGroup) -> None:
    name, seen = worker_group.topic(), Recorder()
    worker = make(worker_group, worker_group.pipeline(name), observe=[seen])
    runner = threading.Thread(target=worker.run)  # run() outside the main thread installs no signal handler
    runner.start()
    seen.wait_for(events.Activated)
    before = signal.getsignal(signal.SIGTERM)
    threading.Thread(target=worker.stop).start()
    runner.join(30)
    assert not runner.is_alive()
    assert signal.getsignal(signal.SIGTERM) is before
    assert worker.health().error is None


def test_run_in_the_main_thread_puts_the_signal_handlers_back(worker_group: WorkerGroup) -> None:
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("this runner runs its tests outside the main thread")
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)

    def stop(event: events.Event) -> None:
        if isinstance(event, events.Started):
            worker.stop()

    worker = make(worker_group, worker_group.pipeline(worker_group.topic()), observe=[stop])
    worker.run()
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


# -- handlers that do not return ------------------------------------------------------------------------------


class BlockingHandler:
    """A handler that writes its records, and then does not return before the test lets it."""

    def __init__(self, worker_group: WorkerGroup) -> None:
        self._worker_group = worker_group
        self.entered, self.released, self.left = threading.Event(), threading.Event(), threading.Event()
        self.late: list[BaseException] = []

    def __call__(self, tx: Connection, batch: Batch[str, Any]) -> None:
        self._worker_group.record_table.enter(tx, batch)
        self.entered.set()
        assert self.released.wait(60)
        try:
            self._worker_group.record_table.enter(tx, batch)
        except BaseException as error:
            self.late.append(error)
            raise
        finally:
            self.left.set()


@pytest.fixture
def blocking_handler(worker_group: WorkerGroup) -> Iterator[BlockingHandler]:
    """Let go at the end of the test."""
    handler = BlockingHandler(worker_group)
    yield handler
    handler.released.set()


@pytest.mark.repeats("shutdown")
@pytest.mark.parametrize("shutdown", ["leave", "stop"])
def test_i2_a_worker_whose_handler_never_returns_is_given_up_after_the_grace(
    worker_group: WorkerGroup, blocking_handler: BlockingHandler, shutdown: str, protocol: Mapping[str, Any]
) -> None:
    """I2: leaving is bounded, a successor takes over at once, and what the thread does later is refused."""
    name, seen = worker_group.topic(), Recorder()
    stored = worker_group.produce(name, 10)
    worker_group.expire_sessions_after(60_000)  # only a member that leaves is gone before
    kafka = {**protocol, "max.poll.interval.ms": 60_000}
    if "session.timeout.ms" in protocol:
        kafka["session.timeout.ms"] = 60_000
    worker = make(worker_group, worker_group.pipeline(name, handle=blocking_handler), kafka=kafka, observe=[seen])
    running = worker.running(grace=0.5 if shutdown == "leave" else None).__enter__()
    assert blocking_handler.entered.wait(30)
    began = monotonic()
    if shutdown == "stop":
        worker.stop(grace=0.5)
    with pytest.raises(
        StopTimeout, match=r"the handler .*BlockingHandler.* has not returned within 0.5 s .* is at .*:\d+ in "
    ) as e:
        running.__exit__(None, None, None)
    assert 0.5 <= monotonic() - began < 25, "the default grace"
    health = worker.health()
    assert (health.live, health.error) == (False, e.value)
    assert isinstance(seen.events[-1], events.WorkerStopped)
    (row,) = worker_group.ledger.read()
    assert row.owner is not None
    groups = worker_group.admin.describe_consumer_groups
    worker_group.wait(lambda: not groups([worker_group.group])[worker_group.group].result(10).members)

    heir = worker_group.worker(name, kafka=protocol)
    heir.reached(name, 10)
    assert heir.seen.all(events.Activated)[0].offset == 0
    mark = seen.mark()
    blocking_handler.released.set()
    assert blocking_handler.left.wait(30)
    stored += worker_group.produce(name, 10)
    heir.finish(name, 20)
    assert blocking_handler.late
    assert seen.mark() == mark
    worker_group.record_table.assert_holds(name, stored)


def test_a_start_that_is_given_up_raises_at_once(worker_group: WorkerGroup) -> None:
    """A server that accepts connections and never answers keeps the worker's thread, and nothing else."""
    name, seen, raised = worker_group.topic(), Recorder(), queue.SimpleQueue[BaseException]()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        engine = create_engine(worker_group.engine.url.set(host="127.0.0.1", port=silent.getsockname()[1]))
        worker = make(worker_group, worker_group.pipeline(name), engine=engine, kafka={}, observe=[seen])

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


def test_a_handler_that_never_returns_is_a_crash_to_the_next_owner(
    worker_group: WorkerGroup, blocking_handler: BlockingHandler
) -> None:
    name, _ = worker_group.log(10)
    gate = Gate(events.Activated)
    deaths: list[BaseException] = []
    worker = make(worker_group, worker_group.pipeline(name, handle=blocking_handler))
    with pytest.raises(StopTimeout) as given_up, worker.running(grace=0.1, on_error=deaths.append):
        assert blocking_handler.entered.wait(30)
    assert deaths == [given_up.value]
    worker_group.wait(lambda: states(worker_group) == ["ended"])  # although its thread is in the handler
    heir = worker_group.worker(name, observe=[gate])
    gate.wait()
    assert owners(worker_group) == [(True, 1)]
    heir.stop()


def states(worker_group: WorkerGroup) -> list[str]:
    """The states of the group's workers, as they have stored them."""
    query = f"SELECT state FROM {{schema}}.worker WHERE consumer_group = '{worker_group.group}'"
    return [row.state for row in worker_group.sql(query)]


def wait_for_its_end(worker_group: WorkerGroup) -> None:
    """Until the thread of the group's worker has ended."""
    for thread in threading.enumerate():
        if thread.name == f"seekpoint-{worker_group.group}":
            thread.join(30)
            assert not thread.is_alive()


def test_i2_a_worker_that_was_given_up_releases_no_claim_later(
    worker_group: WorkerGroup, blocking_handler: BlockingHandler
) -> None:
    """To the next owner it is a crash, however late the handler comes back."""
    name, _ = worker_group.log(10)
    with (
        pytest.raises(StopTimeout),
        make(worker_group, worker_group.pipeline(name, handle=blocking_handler)).running(grace=0.1),
    ):
        assert blocking_handler.entered.wait(30)
    blocking_handler.released.set()
    wait_for_its_end(worker_group)
    assert owners(worker_group) == [(True, 0)]


def test_a_worker_given_up_before_it_joins_leaves_no_member(
    worker_group: WorkerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client is made after that, and closed by its own thread."""
    looking, answered = threading.Event(), threading.Event()
    clients: list[Any] = []
    differs = GroupLedger.differs

    def slow(ledger: GroupLedger, topics: Any) -> Any:
        looking.set()
        assert answered.wait(30)
        return differs(ledger, topics)

    def produced(*args: Any, **options: Any) -> Any:
        clients.append(make_consumer(*args, **options))
        return clients[-1]

    monkeypatch.setattr(GroupLedger, "differs", slow)
    monkeypatch.setattr(loop, "make_consumer", produced)
    with (
        pytest.raises(StopTimeout),
        make(worker_group, worker_group.pipeline(worker_group.topic())).running(wait=False, grace=0.1),
    ):
        assert looking.wait(30)
    answered.set()
    wait_for_its_end(worker_group)
    for client in clients:
        with pytest.raises(RuntimeError, match="closed"):
            client.assignment()
    assert clients


def test_live_is_false_while_a_handler_runs_for_too_long(
    worker_group: WorkerGroup, blocking_handler: BlockingHandler
) -> None:
    name, seen = worker_group.topic(), Recorder()
    worker_group.produce(name, 10)
    worker = make(
        worker_group,
        worker_group.pipeline(name, handle=blocking_handler),
        limits=Limits(transaction_age=0.3),
        observe=[seen],
    )
    with worker.running():
        assert blocking_handler.entered.wait(30)
        worker_group.wait(lambda: not worker.health().live)
        health = worker.health()
        assert health.stuck is not None
        assert health.stuck > 0.3
        assert (health.ready, health.error) == (False, None)
        blocking_handler.released.set()
        seen.wait_for(events.Committed)  # its transaction had come to its end: it ran again
        assert worker.health().live
        assert worker.health().stuck is None
    assert seen.all(events.DatabaseTrouble)


def test_what_a_handler_waits_for_in_the_database_does_not_count_as_running(worker_group: WorkerGroup) -> None:
    name, seconds = worker_group.topic(), []

    def locks(tx: Connection, batch: Batch[str, Any]) -> None:
        tx.execute(text("SELECT pg_sleep(2)"))
        seconds.append(worker._stopwatch.seconds())
        worker_group.record_table.enter(tx, batch)

    stored, seen = worker_group.produce(name, 1), Recorder()
    worker = make(worker_group, worker_group.pipeline(name, handle=locks), observe=[seen])
    with worker.running():
        seen.wait_for(events.Committed)
    assert 0 < seconds[0] < 1.9
    assert worker._stopwatch.seconds() == 0
    worker_group.record_table.assert_holds(name, stored)


# -- what is left behind --------------------------------------------------------------------------------------


def owners(worker_group: WorkerGroup) -> list[tuple[bool, int]]:
    """Of each partition: whether it has an owner, and the claims that were not released."""
    return [(row.owner is not None, row.unreleased_claims) for row in worker_group.ledger.read()]


def raise_version(worker_group: WorkerGroup, name: str, *numbers: int) -> GroupLedger:
    """What a worker of version 2 does when it claims these partitions."""
    newer = GroupLedger(worker_group.engine, worker_group.group, schema=worker_group.schema, version=2)
    cluster = str(worker_group.admin.list_topics(timeout=10).cluster_id)
    wanted = [Partition(name, number) for number in numbers]
    newer.claim(wanted, {name: worker_group.topic_id(name)}, cluster_id=cluster, start=lambda _: {})
    return newer


@pytest.mark.long
def test_a_stop_while_paused_is_counted_as_no_crash(worker_group: WorkerGroup) -> None:
    """I5: a pause draws new tokens and keeps the owner: the owner still says that it leaves."""
    name = worker_group.topic(2)
    stored = worker_group.produce(name, 10)
    for _ in range(3):
        run = worker_group.worker(name, limits=Limits(idle_check=0.1))
        run.placed(2)
        worker_group.wait_until_caught_up(name, stored)
        worker_group.ledger.pause(reason="a test")
        run.seen.wait_for(events.Paused)
        run.stop()
        assert owners(worker_group) == [(False, 0), (False, 0)]
        worker_group.ledger.resume()
        stored += worker_group.produce(name, 10)
    heir = worker_group.worker(name)
    worker_group.finish(heir, name, stored)
    assert not heir.seen.all(events.CrashSuspected)
    worker_group.record_table.assert_holds(name, stored)


def test_a_worker_that_ends_as_outdated_is_counted_as_no_crash(worker_group: WorkerGroup) -> None:
    """I5: a new version ends it; what the new version's worker has claimed stays its own."""
    name = worker_group.topic(2)
    run = worker_group.worker(name, limits=Limits(idle_check=0.1))
    run.placed(2)
    newer = raise_version(worker_group, name, 1)
    run.ends_with(HandlerOutdated)
    assert [row.owner for row in worker_group.ledger.read()] == [None, newer.owner]
    assert owners(worker_group) == [(False, 0), (True, 1)]  # it claimed over an owner that lived


def test_an_outdated_worker_without_a_partition_hears_of_the_new_version(worker_group: WorkerGroup) -> None:
    name, gate = worker_group.topic(), Gate(events.ChunkRead)
    kafka = {**PROTOCOLS["848"], "max.poll.interval.ms": 300_000}  # after it, idle would be given the partition
    busy = worker_group.worker(name, kafka=kafka, observe=[gate])
    busy.placed()
    idle = worker_group.worker(name, kafka=kafka, limits=Limits(idle_check=0.1))
    worker_group.produce(name, 1)
    gate.wait()  # it keeps the partition, and has no transaction yet
    raise_version(worker_group, name, 0)
    idle.seen.wait_for(events.WorkerStopped, lambda e: isinstance(e.error, HandlerOutdated))
    assert not idle.seen.all(events.Activated)
    with pytest.raises(HandlerOutdated):
        idle.stop()
    busy.stop()


def test_a_worker_runs_once(worker_group: WorkerGroup) -> None:
    worker = make(worker_group, worker_group.pipeline(worker_group.topic()))
    with worker.running():
        pass
    with pytest.raises(ConfigError, match="runs once"), worker.running():
        raise AssertionError("it must not have started")


@pytest.mark.pins("batch")
@pytest.mark.parametrize("strict", [False, True])
def test_a_stopped_partition_ends_the_worker_only_if_it_is_strict(worker_group: WorkerGroup, strict: bool) -> None:
    name, seen = worker_group.topic(2), Recorder()
    stored = worker_group.produce(name, ["fine"], partition=0)
    worker_group.produce(name, [b"\xff\xfe"], partition=0)  # not UTF-8
    worker = make(worker_group, worker_group.pipeline(name), strict=strict, observe=[seen])
    if strict:
        with pytest.raises(PoisonStop) as caught, worker.running():
            seen.wait_for(events.WorkerStopped)
        assert (caught.value.partition, caught.value.offset) == ((name, 0), 1)
        stop = worker_group.ledger.read()[0].stop
        assert stop is not None, "it is stored before the worker ends"
        assert (stop.kind, stop.offset) == ("PoisonStop", 1)
    else:
        with worker.running():
            seen.wait_for(events.PartitionStopped)
            stored += worker_group.produce(name, ["the other partition is read on"], partition=1)
            seen.wait_for(events.Committed, lambda e: e.spans[0].partition.number == 1)
            assert list(worker.health().stopped) == [(name, 0)]
            assert worker.health().live
    worker_group.record_table.assert_holds(name, stored)
    assert [row.owner for row in worker_group.ledger.read()] == [None, None], "a parked partition is given back too"
