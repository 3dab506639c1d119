"""What a transaction of ours is like at the server: its durability, its bounds, its name; and odd but legal names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.schema import DropSchema

from seekpoint import schema
from seekpoint.ledger import GroupLedger, Move
from seekpoint.ledger.advance import Settings, hold
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.pipeline.policy import Limits
from seekpoint.records import Partition
from support.fixtures import NewEngine
from support.ledger_worker import LedgerWorker, make_table

NewLedgerWorker = Callable[..., LedgerWorker]


@pytest.fixture
def unsynced_engine(seekpoint_engine: Engine, new_engine: NewEngine) -> Engine:
    """An engine whose sessions do not wait for the disk, whatever ours say."""
    return new_engine(seekpoint_engine.url, connect_args={"options": "-c synchronous_commit=off"})


@contextmanager
def at_commit(engine: Engine, setting: str) -> Iterator[list[str]]:
    """The setting's value at the moment of each COMMIT."""
    seen: list[str] = []

    def look(connection: Connection) -> None:
        driver: Any = connection.connection.driver_connection
        seen.append(driver.execute(f"SHOW {setting}").fetchone()[0])

    event.listen(engine, "commit", look)
    try:
        yield seen
    finally:
        event.remove(engine, "commit", look)


def show(tx: Connection, setting: str) -> str:
    return str(tx.execute(text("SELECT current_setting(:s)"), {"s": setting}).scalar_one())


@pytest.mark.parametrize("durable", [True, False])
def test_a_batch_commits_as_the_pipeline_says(
    new_worker: NewLedgerWorker, unsynced_engine: Engine, durable: bool
) -> None:
    """I1: rows and offset vanish together, so both settings are right; COMMIT runs under the one that was asked for."""
    worker = new_worker(engine=unsynced_engine, synchronous_commit=durable, positions={0: 0})
    with at_commit(unsynced_engine, "synchronous_commit") as seen:
        worker.commit({0: 2})
    assert seen == ["on" if durable else "off"]
    with at_commit(unsynced_engine, "synchronous_commit") as seen:
        worker.ledger.advance_alone([Move(worker.claims[0], 2, 3)])
    assert len(seen) == 1
    with unsynced_engine.connect() as tx:  # and the session is as it was
        assert show(tx, "synchronous_commit") == "off"
        assert "seekpoint" not in show(tx, "application_name")


ORDERS: dict[str, Callable[[GroupLedger], object]] = {
    "claim": lambda ledger: ledger.claim(
        [Partition("t", 9)], {"t": uuid4()}, cluster_id="cluster-1", start=lambda _: {}
    ),
    "look": lambda ledger: ledger.positions_of([Partition("t", 0)]),
    "move": lambda ledger: ledger.reset_offset("t", 0, to=1, log=None, reason="x"),
    "pause": lambda ledger: ledger.pause(reason="x"),
    "resume": lambda ledger: ledger.resume(),
    "record_action": lambda ledger: ledger.record_action("rolled back", Partition("t", 0), 1, 0, reason="x"),
    "release": lambda ledger: ledger.release([]),
}


@pytest.mark.parametrize("order", ORDERS)
def test_claims_and_moves_are_durable_whatever_the_batches_are(
    new_worker: NewLedgerWorker, unsynced_engine: Engine, order: str
) -> None:
    """I5: a crash may take a batch back, never an order: its token would be good again."""
    worker = new_worker(engine=unsynced_engine, synchronous_commit=False, positions={0: 0})
    with at_commit(unsynced_engine, "synchronous_commit") as seen:
        ORDERS[order](worker.ledger)
    assert seen
    assert set(seen) == {"on"}


@pytest.mark.parametrize("order", ORDERS)
def test_an_order_waits_as_long_as_a_batch_may_take(
    new_worker: NewLedgerWorker, seekpoint_engine: Engine, order: str
) -> None:
    """I5: a claim gives up soon and comes again; what an operator orders waits for the open batch."""
    worker = new_worker(limits=Limits(claim_wait=3.0, transaction_age=90.0), positions={0: 0})
    with at_commit(seekpoint_engine, "lock_timeout") as seen:
        ORDERS[order](worker.ledger)
    assert set(seen) - {"3s"} == ({"90s"} if order in {"move", "pause", "resume"} else set()), seen


def test_a_transaction_is_bounded_and_named(new_worker: NewLedgerWorker, seekpoint_engine: Engine) -> None:
    """I2: what its successor, and an operator in pg_stat_activity, finds it by; and when the server ends it."""
    worker = new_worker(limits=Limits(transaction_age=12.5), positions={0: 0})
    with seekpoint_engine.begin() as tx:
        worker.hold(tx)
        assert show(tx, "application_name") == f"seekpoint {worker.ledger.owner.hex[:8]} g"
        assert show(tx, "idle_in_transaction_session_timeout") == "12500ms"
        if (tx.dialect.server_version_info or (0,)) >= (17,):
            assert show(tx, "transaction_timeout") == "12501ms"


def test_a_transaction_without_an_age_is_not_bounded(new_worker: NewLedgerWorker, seekpoint_engine: Engine) -> None:
    """A batch job's last transaction takes as long as its rows need."""
    worker = new_worker(positions={0: 0})
    with seekpoint_engine.begin() as tx:
        scope = GroupConnection(tx, worker.ledger.schema, worker.ledger.group)
        hold(scope, worker.expected(0), Settings("seekpoint-batch", True, None))
        assert show(tx, "idle_in_transaction_session_timeout") == "0"
        if (tx.dialect.server_version_info or (0,)) >= (17,):
            assert show(tx, "transaction_timeout") == "0"


ODD = """O'Dd "group" %s %(x)s :y \\ {z} ü 漢"""


@pytest.fixture
def odd_schema(seekpoint_engine: Engine) -> Iterator[str]:
    """A schema whose name needs all the quoting that there is."""
    name = f"Od\"d 'S' %(x)s :y {uuid4().hex[:12]}"
    schema.upgrade(seekpoint_engine, schema=name)
    make_table(seekpoint_engine, name)
    yield name
    with seekpoint_engine.begin() as tx:
        tx.execute(DropSchema(name, cascade=True))


def test_odd_names_are_names(seekpoint_engine: Engine, odd_schema: str) -> None:
    """I1..I5: group and schema with quotes, percent signs, colons and upper case: all of the protocol works."""

    def new_worker(version: int) -> LedgerWorker:
        ledger = GroupLedger(seekpoint_engine, ODD, schema=odd_schema, version=version, tables=['a "t"', "b'c"])
        return LedgerWorker(ledger, topic_id=topic_id)

    topic_id = uuid4()
    worker, successor = new_worker(1), new_worker(2)
    worker.claim(0, 1)
    worker.commit({0: 2, 1: 3})
    worker.ledger.positions_of([worker.topic_partition(0)])
    worker.ledger.pause(reason=ODD, actor=ODD)
    worker.ledger.resume()
    worker.ledger.reset_offset("t", 0, to=3, log=None, reason=ODD, lost=ODD)
    successor.claim(0, 1)
    successor.commit({0: 5})
    successor.ledger.release(successor.claims.values())
    assert successor.positions() == {0: 5, 1: 3}
    with seekpoint_engine.connect() as tx:
        schema.check(tx, odd_schema)


def test_a_long_group_has_a_name_too(new_worker: NewLedgerWorker, seekpoint_engine: Engine) -> None:
    """I2: the server cuts names at 63 bytes; its successor finds it all the same."""
    worker = new_worker("ü" * 200, positions={0: 0})
    with seekpoint_engine.begin() as tx:
        worker.hold(tx)
        assert show(tx, "application_name").startswith(f"seekpoint {worker.ledger.owner.hex[:8]} ")
    worker.commit({0: 1})
    worker.exactly({0: 1})
