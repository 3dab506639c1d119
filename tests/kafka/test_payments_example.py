"""The example of effects outside: workers and relays that are killed around a call, and a provider that pays once.

Run as a script, this file is a worker in a process of its own, as one line of JSON says.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from sqlalchemy import Engine, text

from seekpoint import Partition, Worker, events
from seekpoint.testing import process, raw
from support.fixtures import NewEngine
from support.ledger_worker import wait_until_blocked
from support.waiting import until
from support.worker_group import QUICK, WorkerGroup

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.append(str(EXAMPLES))  # as `seekpoint run payments.call:payouts` finds it in that folder
call, outbox, relay, provider = (
    importlib.import_module(f"payments.{name}") for name in ("call", "outbox", "relay", "provider")
)
SECONDS = 30.0
ORDERS = ['{"account": "ada", "cents": 100}', '{"account": "bob", "cents": 200}', '{"account": "eve", "cents": 300}']
PAID = [("ada", 100), ("bob", 200), ("eve", 300)]

Start = Callable[..., subprocess.Popen[bytes]]


class Provider:
    """The receiver on a real socket. Notes each call when its work is done; may keep its caller waiting."""

    def __init__(self, engine: Engine) -> None:
        self.calls: list[tuple[str, bytes]] = []
        self._news, self._opened, self._held = threading.Condition(), threading.Event(), 0
        self._server = provider.serve(engine, self._told)
        self._server.handle_error = lambda *_: None  # a caller that was killed hears no answer
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def _told(self, key: str, body: bytes) -> None:
        with self._news:
            self.calls.append((key, body))
            number = len(self.calls)
            self._news.notify_all()
        if number == self._held:
            assert self._opened.wait(2 * SECONDS), "the gate was not opened"

    def hold(self, number: int) -> None:
        """Do the work of this call (from 1), and do not answer it."""
        self._held = number

    def go_on(self) -> None:
        """Answer what was held."""
        self._held = 0
        self._opened.set()

    def heard(self, count: int) -> None:
        """Wait until so many calls were made."""
        with self._news:
            assert self._news.wait_for(lambda: len(self.calls) >= count, SECONDS), self.calls

    def keys(self) -> list[str]:
        return [key for key, _ in self.calls]

    def close(self) -> None:
        self.go_on()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def url(worker_group: WorkerGroup) -> str:
    """The database, with the test's own tables first in the search path."""
    url = worker_group.engine.url.update_query_dict({"options": f"-csearch_path={worker_group.schema}"})
    return url.render_as_string(hide_password=False)


@pytest.fixture
def engine(url: str, new_engine: NewEngine) -> Engine:
    """The example's tables, made."""
    engine = new_engine(url)
    with engine.begin() as tx:
        tx.exec_driver_sql((EXAMPLES / "payments" / "tables.sql").read_text(encoding="utf-8"))
    return engine


@pytest.fixture
def bank(engine: Engine) -> Iterator[Provider]:
    """The provider."""
    bank = Provider(engine)
    yield bank
    bank.close()


@pytest.fixture
def start(url: str) -> Iterator[Start]:
    """``start(*arguments)``: a Python process with the example in reach; ended after the test."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(*arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        env = {**os.environ, "DATABASE_URL": url, **environment}
        started.append(subprocess.Popen([sys.executable, *arguments], env=env))
        return started[-1]

    yield begin
    for child in started:
        kill(child)


def kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(SECONDS)


@pytest.fixture
def start_worker(worker_group: WorkerGroup, url: str, start: Start) -> Start:
    """``start_worker(example, topic, …)``: a worker of the example in a process of its own."""

    def begin(example: str, topic: str, **what: Any) -> subprocess.Popen[bytes]:
        servers = {"bootstrap.servers": worker_group.broker, **QUICK}
        variables = {
            "example": example,
            "url": url,
            "schema": worker_group.schema,
            "group": worker_group.group,
            "topic": topic,
        }
        return start(__file__, json.dumps({**variables, "kafka": servers, **what}))

    return begin


def rows(engine: Engine, query: str) -> list[tuple[Any, ...]]:
    with engine.connect() as tx:
        return [tuple(row) for row in tx.execute(text(query))]


def paid(engine: Engine) -> list[tuple[Any, ...]]:
    """What the provider did, in the order of amounts."""
    return rows(engine, "SELECT account, cents FROM paid ORDER BY cents")


def expected_keys(worker_group: WorkerGroup, topic: str, count: int = 3) -> list[str]:
    return [f"{worker_group.topic_id(topic)}/0/{n}" for n in range(count)]


# -- by call ----------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_call_before_a_kill_is_paid_once(
    worker_group: WorkerGroup, engine: Engine, bank: Provider, start_worker: Start
) -> None:
    """SIGKILL between call and COMMIT: the same key twice at the provider, one effect, one receipt, one offset."""
    name, _ = worker_group.log(ORDERS)
    bank.hold(2)
    first = start_worker("call", name, provider=bank.url)
    bank.heard(2)  # both are paid; the handler waits for the second answer, in its open transaction
    kill(first)
    assert rows(engine, "SELECT * FROM receipts") == []
    assert worker_group.positions() == {Partition(name, 0): 0}
    bank.go_on()
    start_worker("call", name, provider=bank.url)
    worker_group.wait_for_position(name, 3)
    keys = expected_keys(worker_group, name)
    assert bank.keys() == [keys[0], keys[1], *keys]
    assert len(set(bank.calls)) == 3  # a key never came with another body
    assert paid(engine) == PAID
    kept = rows(engine, "SELECT key, receipt FROM receipts ORDER BY cents")
    assert kept == rows(engine, "SELECT key, receipt FROM inbox JOIN paid USING (receipt) ORDER BY cents")
    assert [key for key, _ in kept] == keys


def test_a_recreated_topic_brings_equal_record_ids_and_other_keys(
    worker_group: WorkerGroup, engine: Engine, bank: Provider
) -> None:
    """Other records come under the old topic/partition/offset: they are paid all the same."""
    name = worker_group.topic()
    pipeline = call.make(worker_group.group, topic=name, provider=bank.url, schema=worker_group.schema)
    old = expected_keys(worker_group, name, 1)
    worker_group.produce(name, ORDERS[:1])
    run = worker_group.worker(pipeline, engine=engine)
    run.finish(name, 1)
    worker_group.delete_topic(name)
    worker_group.topic(name=name)
    worker_group.produce(name, ORDERS[1:2])
    worker_group.ledger.reset_offset(name, 0, 0, topic_id=worker_group.topic_id(name), log=None, reason="restart")
    worker_group.worker(pipeline, engine=engine).reached(name, 1)
    new = expected_keys(worker_group, name, 1)
    assert bank.keys() == [*old, *new]
    assert old != new
    assert paid(engine) == PAID[:2]


def test_what_the_provider_refuses_for_good_is_poison(
    worker_group: WorkerGroup, engine: Engine, bank: Provider
) -> None:
    pipeline = call.make(worker_group.group, topic="payouts", provider=bank.url, schema=worker_group.schema)
    with engine.begin() as tx:  # the key of the second record, used for something else
        provider.accept(tx, "seen", ORDERS[0].encode())
    done = process(pipeline, engine, [raw(ORDERS[0].encode(), topic="payouts")], schema=worker_group.schema)
    (key,) = [key for (key,) in rows(engine, "SELECT key FROM receipts")]
    assert done.records == 1
    assert bank.keys() == [key]
    with engine.begin() as tx:
        tx.execute(text("UPDATE inbox SET key = replace(key, '/0/0', '/0/1')"))
    done = process(
        pipeline, engine, [raw(ORDERS[1].encode(), topic="payouts", offset=1)], schema=worker_group.schema, collect=True
    )
    stop = done.stopped[Partition("payouts", 0)]
    assert stop.offset == 1
    assert "was used for another payout" in str(stop)


# -- by outbox --------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_what_was_rolled_back_is_never_sent(
    worker_group: WorkerGroup, engine: Engine, bank: Provider, start_worker: Start
) -> None:
    """SIGKILL when the outbox is written and not committed: nothing is sent; then everything, with its own key."""
    name, _ = worker_group.log(ORDERS)
    first = start_worker("outbox", name, stop_at="Applied")
    wait_until_stopped(first)
    with httpx.Client(base_url=bank.url) as http:
        assert not relay.send_next(engine, http)
        kill(first)
        assert not relay.send_next(engine, http)
        assert bank.calls == []
        start_worker("outbox", name)
        worker_group.wait_for_position(name, 3)
        assert [relay.send_next(engine, http) for _ in range(4)] == [True, True, True, False]
    assert sorted(bank.keys()) == expected_keys(worker_group, name)
    assert paid(engine) == PAID
    assert rows(engine, "SELECT count(*) FROM outbox WHERE sent_at IS NULL OR receipt IS NULL") == [(0,)]


@pytest.mark.long
def test_a_relay_that_is_killed_around_a_call_makes_it_again_with_its_key(
    worker_group: WorkerGroup, engine: Engine, bank: Provider, start_worker: Start, start: Start
) -> None:
    """SIGKILL between the provider's answer and the mark: sent twice, paid once; a rewind sends nothing again."""
    name, _ = worker_group.log(ORDERS)
    start_worker("outbox", name)
    worker_group.wait_for_position(name, 3)
    bank.hold(2)
    first = start("-m", "payments.relay", PROVIDER=bank.url)
    bank.heard(2)
    kill(first)
    bank.go_on()
    start("-m", "payments.relay", PROVIDER=bank.url)
    worker_group.wait(lambda: rows(engine, "SELECT count(*) FROM outbox WHERE sent_at IS NOT NULL") == [(3,)])
    keys = expected_keys(worker_group, name)
    assert Counter(bank.keys()) == Counter([*keys, bank.keys()[1]])
    assert paid(engine) == PAID
    worker_group.ledger.reset_offset(name, 0, 0, log=None, reason="read again")
    worker_group.wait_for_position(name, 3)
    with httpx.Client(base_url=bank.url) as http:
        assert not relay.send_next(engine, http)
    assert len(bank.calls) == 4


def test_a_relay_retries_what_may_pass_and_keeps_what_never_will(
    worker_group: WorkerGroup, engine: Engine, bank: Provider
) -> None:
    pipeline = outbox.make(worker_group.group, topic="payouts", schema=worker_group.schema)
    process(pipeline, engine, [raw(ORDERS[0].encode(), topic="payouts")], schema=worker_group.schema)
    with engine.begin() as tx:
        tx.execute(text("UPDATE outbox SET attempts = 8"))  # the next pause is of minutes, the first one of a second
    with httpx.Client(base_url="http://127.0.0.1:1") as refusing:
        assert relay.send_next(engine, refusing)
        assert not relay.send_next(engine, refusing)  # it is not due yet
    [(attempts, error, later)] = rows(engine, "SELECT attempts, error, due_at > clock_timestamp() FROM outbox")
    assert (attempts, later) == (9, True)
    assert error.startswith("ConnectError")
    with httpx.Client(base_url=bank.url) as http:
        with engine.begin() as tx:
            tx.execute(text("UPDATE outbox SET due_at = now(), body = '{\"account\": 7}'"))
        assert relay.send_next(engine, http)
    [(sent, due, error)] = rows(engine, "SELECT sent_at, due_at, error FROM outbox")
    assert (sent, due) == (None, None)
    assert error.startswith("422")
    assert paid(engine) == []


# -- the inbox --------------------------------------------------------------------------------------------------


def test_the_receiver_refuses_a_key_twice(engine: Engine) -> None:
    def accept(key: str | None, body: str) -> tuple[int, dict[str, Any]]:
        with engine.begin() as tx:
            answer: tuple[int, dict[str, Any]] = provider.accept(tx, key, body.encode())
            return answer

    status, first = accept("k", ORDERS[0])
    assert status == 200
    assert accept("k", ORDERS[0]) == (200, first)
    assert accept("k", ORDERS[1])[0] == 422
    assert accept(None, ORDERS[1])[0] == 400
    assert accept("l", "no payout")[0] == 422
    assert paid(engine) == PAID[:1]


def test_two_calls_of_one_key_at_once_have_one_effect(engine: Engine) -> None:
    """The second waits for the first one's transaction, and answers what it answered."""
    answers: list[Any] = []

    def second() -> None:
        with engine.begin() as tx:
            answers.append(provider.accept(tx, "k", ORDERS[0].encode()))

    thread = threading.Thread(target=second)
    with engine.begin() as tx:
        answers.append(provider.accept(tx, "k", ORDERS[0].encode()))
        mine = tx.execute(text("SELECT pg_backend_pid()")).scalar_one()
        thread.start()
        wait_until_blocked(engine, mine)
    thread.join(SECONDS)
    assert answers[0] == answers[1]
    assert paid(engine) == PAID[:1]


# -- the worker's process ---------------------------------------------------------------------------------------


def wait_until_stopped(process: subprocess.Popen[bytes]) -> None:
    until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED, "a process that has stopped itself")


def main(*, example: str, url: str, schema: str, group: str, topic: str, kafka: dict[str, str], **what: str) -> None:
    """A worker of the example; with ``stop_at`` it stops itself (SIGSTOP) at the first such event."""

    def observe(event: events.Event) -> None:
        if type(event).__name__ == what.get("stop_at"):
            os.kill(os.getpid(), signal.SIGSTOP)

    if example == "call":
        pipeline = call.make(group, topic=topic, provider=what["provider"], schema=schema)
    else:
        pipeline = outbox.make(group, topic=topic, schema=schema)
    worker = Worker(pipeline, engine=url, kafka=kafka, schema=schema, partitions=[(topic, 0)], observe=[observe])
    worker.run()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
