"""Behind a pooler in transaction mode: every way of writing rows, and nothing is left in the server's sessions.

Each test runs through the tests' own pooler, and through the real PgBouncer where the machine has one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import psycopg
import pytest
from sqlalchemy import BigInteger, Connection, Engine, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from seekpoint import Append, Json, Limits, Pipeline, Upsert, events
from seekpoint.errors import Poison
from seekpoint.ledger import GroupLedger
from seekpoint.pipeline.sink import Sink
from seekpoint.postgres import pooler
from seekpoint.records import Partition
from seekpoint.sinks.arrow import AppendArrow
from seekpoint.sinks.upsert import strategy as strategies
from seekpoint.sinks.upsert import upsert as upsert_module
from seekpoint.sinks.upsert.strategy import WriteStrategy, Wrote
from support.batch_process import batch
from support.before_cutover import settled
from support.events import Run
from support.reload_orders import OrdersGroup, doubled, gone, of
from support.sink_tables import SinkTables
from support.transaction_pooler import POOL_SIZE, POOLERS, in_each_session, pgbouncer


@pytest.fixture(scope="module", params=["own", pytest.param("pgbouncer", marks=pytest.mark.long("the other pooler"))])
def seekpoint_dsn(request: pytest.FixtureRequest, seekpoint_dsn: str) -> Iterator[str]:
    """All fixtures of this module reach the server through a pooler."""
    if request.param == "pgbouncer" and pgbouncer() is None:
        missing = "PgBouncer is not here: `make pgbouncer` gets Debian's package of it, where there is apt"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(missing)
    with POOLERS[request.param](seekpoint_dsn) as url:
        yield url


@pytest.fixture
def orders_group(request: pytest.FixtureRequest) -> OrdersGroup:
    return OrdersGroup.on_shared_servers(request.getfixturevalue)


@pytest.fixture(autouse=True)
def nothing_is_left(seekpoint_engine: Engine) -> Iterator[None]:
    """No session of the pooler's has a prepared statement or a temporary table of ours after the test.

    Before it, all of them are opened: transactions use one after the other.
    """
    dsn = seekpoint_engine.url.render_as_string(hide_password=False)
    assert len(set(in_each_session(dsn, "SELECT pg_backend_pid()"))) == POOL_SIZE
    yield
    left = in_each_session(
        dsn,
        "SELECT (SELECT count(*) FROM pg_prepared_statements), (SELECT count(*) FROM pg_class "
        "WHERE relnamespace = pg_my_temp_schema() AND relname LIKE 'seekpoint%')",
    )
    assert left == [(0, 0)] * POOL_SIZE


def test_it_is_detected_and_nothing_is_prepared(seekpoint_engine: Engine, seekpoint_schema: str) -> None:
    with GroupLedger(seekpoint_engine, "g", schema=seekpoint_schema).engine.connect() as connection:
        detected, driver = pooler.detect(connection), connection.connection.driver_connection
        assert detected is not None
        assert isinstance(driver, psycopg.Connection)
        assert detected.announced == driver.info.backend_pid
        assert driver.prepare_threshold is None
        assert driver.info.transaction_status == psycopg.pq.TransactionStatus.IDLE, "no transaction was begun"
        assert not driver.autocommit


# -- sinks ----------------------------------------------------------------------------------------------------------

BATCHES = 10  # psycopg prepares what one connection has run five times

Apply = Callable[..., Run]


@pytest.fixture
def apply(
    sink_tables: SinkTables,
    group: str,
    topic: Callable[..., str],
    produce: Callable[..., list[tuple[int, int]]],
    run_worker: Callable[..., Run],
) -> Apply:
    """``apply(values, size, **pipeline)`` has one worker apply these values in transactions of so many records."""

    def run(values: Sequence[bytes], size: int, **options: Any) -> Run:
        name = topic()
        produce(name, values, partition=0)
        pipeline = Pipeline(group, topics=name, value=Json(), **options)
        worker = run_worker(pipeline, limits=Limits(batch_records=size))
        worker.finish(name, len(values))
        assert sink_tables.positions(pipeline) == {Partition(name, 0): len(values)}
        return worker

    return run


def values(count: int, ids: int) -> list[bytes]:
    return [b'{"id": %d, "v": "v%d"}' % (n % ids, n) for n in range(count)]


@pytest.mark.repeats("size")
@pytest.mark.parametrize("size", [3, 30], ids=["insert", "copy"])
@pytest.mark.parametrize("kind", [Append, AppendArrow])
def test_append(sink_tables: SinkTables, apply: Apply, kind: Any, size: int) -> None:
    count = BATCHES * size
    apply(values(count, count), size, sinks=[kind(sink_tables.create("id int, v text"), columns=["id", "v"])])
    assert sink_tables.rows("id") == [(n,) for n in range(count)]


@pytest.mark.parametrize("strategy", list(WriteStrategy))
def test_upsert(
    sink_tables: SinkTables, apply: Apply, strategy: WriteStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strategies, "SMALL", 100 if strategy is WriteStrategy.UNNEST else 0)
    sink = Upsert(sink_tables.create("id int PRIMARY KEY, v text"), key=["id"], columns=["id", "v"])
    used: set[WriteStrategy] = set()

    class Forced(strategies.WriteStrategies):
        def __init__(self) -> None:
            super().__init__()
            self._wait = 10**9 if strategy is WriteStrategy.TEMP_TABLE else 0

        def wrote(self, what: Wrote) -> None:
            used.add(what.strategy)
            super().wrote(what)

    monkeypatch.setattr(upsert_module, "WriteStrategies", Forced)
    count, size = BATCHES * 40, 40
    ids = size if strategy is WriteStrategy.TEMP_TABLE else count
    apply(values(count, ids), size, sinks=[sink])
    assert used == {strategy}
    assert sink_tables.rows("id", "v") == [(n, f"v{count - ids + n}") for n in range(ids)]


@pytest.mark.pins("batch")
def test_several_sinks_and_a_handler_in_one_transaction(sink_tables: SinkTables, apply: Apply) -> None:
    log, wide = sink_tables.create("id int, v text", "log"), sink_tables.create("id int PRIMARY KEY, v text")
    sink_tables.create("n int", "counted")

    def count(tx: Connection, records: Any) -> None:
        tx.execute(text(f'INSERT INTO "{sink_tables.schema}".counted VALUES (:n)'), {"n": len(records)})

    sinks: list[Sink] = [Append(log, columns=["id", "v"]), Upsert(wide, key=["id"], columns=["id", "v"])]
    apply(values(BATCHES * 5, 5), 5, sinks=sinks, handle=count)
    assert len(sink_tables.rows("id", name="log")) == BATCHES * 5
    assert len(sink_tables.rows("id")) == 5
    assert sink_tables.rows("n", name="counted") == [(5,)] * BATCHES


def test_bad_rows_are_found_and_kept_as_dead_letters(sink_tables: SinkTables, apply: Apply) -> None:
    sink = sink_tables.append("id int CHECK (id % 50 <> 7), v text", columns=["id", "v"])
    worker = apply(values(600, 600), 200, sinks=[sink], on_poison="dead_letter")
    assert [aside.offset % 50 for aside in worker.seen.all(events.DeadLettered)] == [7] * 12
    assert len(sink_tables.rows("id")) == 588


# -- handlers -------------------------------------------------------------------------------------------------------


def core(tx: Connection, schema: str, rows: Sequence[Mapping[str, Any]]) -> None:
    for row in rows:
        with tx.begin_nested():
            tx.execute(text(f'INSERT INTO "{schema}".t VALUES (:id, :v)'), row)
        tx.execute(text(f'SELECT v FROM "{schema}".t WHERE id = :id'), {"id": row["id"]}).scalar_one()


def executemany(tx: Connection, schema: str, rows: Sequence[Mapping[str, Any]]) -> None:
    driver: Any = tx.connection.driver_connection
    with driver.cursor() as cursor:
        cursor.executemany(f'INSERT INTO "{schema}".t VALUES (%(id)s, %(v)s)', rows)
        cursor.execute(f'UPDATE "{schema}".t SET v = v WHERE id = %s', (rows[0]["id"],), prepare=True)
        assert cursor.rowcount == 1


def cursors(tx: Connection, schema: str, rows: Sequence[Mapping[str, Any]]) -> None:
    executemany(tx, schema, rows)
    streaming = {"stream_results": True}
    result = tx.execute(text(f'SELECT id FROM "{schema}".t'), execution_options=streaming)
    assert {row["id"] for row in rows} <= {row.id for row in result}


def orm(tx: Connection, schema: str, rows: Sequence[Mapping[str, Any]]) -> None:
    class Base(DeclarativeBase):
        pass

    class Row(Base):
        __tablename__ = "t"
        __table_args__ = {"schema": schema}  # noqa: RUF012
        id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
        v: Mapped[str]

    with Session(tx, join_transaction_mode="create_savepoint") as session:
        session.add_all([Row(**row) for row in rows])
        session.commit()


@pytest.mark.repeats("write")
@pytest.mark.parametrize("write", [core, executemany, cursors, orm], ids=lambda write: write.__name__)
def test_handlers(sink_tables: SinkTables, apply: Apply, write: Any) -> None:
    sink_tables.create("id int PRIMARY KEY, v text")

    def handle(tx: Connection, records: Any) -> None:
        if bad := [record for record in records if record.value["id"] == 11]:
            raise Poison("eleven", *bad)
        write(tx, sink_tables.schema, [record.value for record in records])

    count = BATCHES * 5
    apply(values(count, count), 5, handle=handle, on_poison="dead_letter")
    assert sink_tables.rows("id") == [(n,) for n in range(count) if n != 11]


def test_settings_of_other_clients_are_not_the_handlers(
    sink_tables: SinkTables, apply: Apply, seekpoint_engine: Engine
) -> None:
    sink_tables.create("id int PRIMARY KEY, v text")
    dsn = seekpoint_engine.url.render_as_string(hide_password=False)
    in_each_session(dsn, "SELECT set_config('statement_timeout', (60000 + pg_backend_pid() % 1000) || 'ms', false)")
    try:
        worker = apply(
            values(BATCHES * 5, BATCHES * 5),
            5,
            handle=lambda tx, records: core(tx, sink_tables.schema, [record.value for record in records]),
        )
    finally:
        in_each_session(dsn, "SELECT set_config('statement_timeout', '0', false)")
    assert not worker.seen.all(events.SessionReplaced)


# -- workers, and the ledger ----------------------------------------------------------------------------------------


@pytest.mark.long
def test_workers_share_a_topic_through_moves_and_pauses(orders_group: OrdersGroup) -> None:
    records = [of(n % 50, n, n) for n in range(600)]
    workers = [orders_group.worker()]
    workers[0].placed(2)
    workers.append(orders_group.worker())
    for worker in workers:
        seen = worker.seen.all(events.PoolerDetected)
        assert len(seen) == 1
        assert seen[0].announced != seen[0].answering
    for start in range(0, 600, 60):  # many transactions
        some = records[start : start + 60]
        orders_group.produce(orders_group.topic, some, partition=0)
        if start == 180:
            orders_group.ledger().pause(reason="a test")
            orders_group.ledger().resume()
        assert orders_group.ledger().wait_until_applied(orders_group.topic, 0, start + 59, timeout=30).applied
    orders_group.ledger().reset_offset(orders_group.topic, 0, to=0, log=None, reason="again")
    assert orders_group.ledger().wait_until_applied(orders_group.topic, 0, 599, timeout=30).applied
    for worker in workers:
        worker.stop()
    assert orders_group.rows() == doubled(records, by=1)


# -- reloads and batches --------------------------------------------------------------------------------------------

FIRST = [of(n % 60, n, n) for n in range(300)] + [gone(3)]


@pytest.mark.parametrize("strategy", ["merge", "swap"])
def test_reloads(orders_group: OrdersGroup, strategy: str) -> None:
    settled(orders_group, FIRST)
    reload = orders_group.reload(range_records=40)
    reload.run(reload.open(strategy=strategy))
    assert orders_group.rows() == doubled(FIRST)
    assert orders_group.schemas() == []


def test_verify_and_batches(orders_group: OrdersGroup) -> None:
    orders_group.produce(orders_group.topic, FIRST, partition=0)
    done = batch(orders_group, range_records=40).run()
    assert done.records == len(FIRST)
    assert orders_group.rows() == doubled(FIRST, by=1)
    assert orders_group.reload(version=1).verify().is_empty
