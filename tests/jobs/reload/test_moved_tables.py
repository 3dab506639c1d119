"""Generations enabled or disabled at a bad moment: between a sink's check and its rows, before a busy reader."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, Engine, NullPool, QueuePool, create_engine, text

from seekpoint import Append, Upsert
from seekpoint.jobs.reload import Generations
from seekpoint.sinks.dedupe import Deleted
from support.before_cutover import FIRST
from support.ledger_desk import backend, wait_until_blocked
from support.reload_orders import Shop, doubled

COLUMNS = ["id", "amount", "at", "topic_offset"]
MANY = 200  # rows: they go by the stage


@contextmanager
def an_engine(shop: Shop, pool: type[NullPool | QueuePool]) -> Iterator[Engine]:
    engine = create_engine(shop.engine.url, poolclass=pool)
    try:
        yield engine
    finally:
        engine.dispose()


def move(shop: Shop, table: str) -> None:
    """Enable generations for it, or disable them where they are enabled."""
    kept, path = Generations(shop.engine, schema=shop.schema), (shop.schema, table)
    if kept.list():
        kept.disable(path)
    else:
        kept.enable(path)


def sink_of(shop: Shop, table: str) -> Any:
    if table == "orders":
        return Upsert((shop.schema, table), key=["id"], columns=COLUMNS[:3])
    return Append((shop.schema, table), columns=COLUMNS)


def rows_of(table: str) -> list[Any]:
    if table == "orders":
        return [Deleted((n,)) for n in range(10)] + [(n, 1, 1) for n in range(MANY)]
    return [(n, 1, 1, n) for n in range(MANY)]


# -- sinks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", [NullPool, QueuePool])
@pytest.mark.parametrize("table", ["orders", "entries"])
@pytest.mark.parametrize("moves", [1, 2])
def test_a_table_that_moves_between_the_first_look_and_the_rows(
    shop: Shop, table: str, pool: type[NullPool | QueuePool], moves: int
) -> None:
    """The session has never looked before: the transaction is run again, once, and then finds what is there."""
    if moves == 2:
        move(shop, table)
    sink = sink_of(shop, table)
    with an_engine(shop, pool) as engine:
        with _begun(engine, sink, rows_of(table)) as write:
            move(shop, table)
            with pytest.raises(psycopg.errors.SerializationFailure, match="it will be read again"):
                write()
        with engine.begin() as tx, sink.open(tx) as writer:
            writer.write(rows_of(table))
    assert shop.execute(f"SELECT count(*) FROM {{schema}}.{table}") == [(MANY,)]


def test_sessions_that_all_looked_before_it_moved(shop: Shop) -> None:
    """What one of them has met says nothing against the others' second try."""
    with an_engine(shop, QueuePool) as engine, ExitStack() as stack:
        sinks = [sink_of(shop, "entries") for _ in range(3)]
        writes = [stack.enter_context(_begun(engine, sink, rows_of("entries"))) for sink in sinks]
        move(shop, "entries")
        for write in writes:
            with pytest.raises(psycopg.errors.SerializationFailure):
                write()
        for n, sink in enumerate(sinks):
            with engine.begin() as tx, sink.open(tx) as rows:
                rows.write([(n, 1, 1, n)])
    assert len(shop.rows("entries")) == 3


@contextmanager
def _begun(engine: Engine, sink: Any, rows: list[Any]) -> Iterator[Callable[[], None]]:
    """A transaction whose sink has looked; calling it writes the rows, and closes the sink."""
    with engine.connect() as tx:
        opened = sink.open(tx)
        writer = opened.__enter__()

        def write() -> None:
            try:
                writer.write(rows)
            except psycopg.Error as error:
                opened.__exit__(type(error), error, error.__traceback__)
                raise
            opened.__exit__(None, None, None)

        yield write


@pytest.mark.parametrize("pool", [NullPool, QueuePool])
@pytest.mark.parametrize("state", ["42P01", "55000", "42809"])
def test_what_only_looks_like_a_move_ends_in_its_own_error(
    shop: Shop, pool: type[NullPool | QueuePool], state: str
) -> None:
    """A trigger that raises the same: at the second look the table is in the state in which it failed."""
    shop.execute(
        "CREATE FUNCTION {schema}.refuse() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$BEGIN RAISE EXCEPTION 'not this one' USING ERRCODE = '{state}'; END$$"
    )
    sink, many = sink_of(shop, "entries"), rows_of("entries")
    with an_engine(shop, pool) as engine:
        with engine.begin() as tx, sink.open(tx) as writer:
            writer.write(many[:1])
        shop.execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON {schema}.entries FOR EACH ROW EXECUTE FUNCTION {schema}.refuse()"
        )
        raised: list[BaseException] = []
        while not raised or isinstance(raised[-1], psycopg.errors.SerializationFailure):
            assert len(raised) < 3
            with pytest.raises(psycopg.Error) as refused, engine.begin() as tx, sink.open(tx) as writer:
                writer.write(many[1:])
            raised.append(refused.value)
    assert getattr(raised[-1], "sqlstate") == state  # noqa: B009
    assert len(raised) == (2 if pool is NullPool else 3)  # what was known from before the trigger is another state


def test_a_view_that_is_nobodys_ends_in_its_own_error(shop: Shop) -> None:
    """At once: such a view is no table with generations."""
    shop.execute("CREATE VIEW {schema}.told AS SELECT DISTINCT id, amount, at, topic_offset FROM {schema}.entries")
    with (
        pytest.raises(psycopg.errors.WrongObjectType, match="cannot copy to view"),
        shop.engine.begin() as tx,
        sink_of(shop, "told").open(tx) as writer,
    ):
        writer.write(rows_of("entries"))


# -- locks -----------------------------------------------------------------------------------------------------


@contextmanager
def moving(shop: Shop, behind: Connection) -> Iterator[Future[None]]:
    """The orders, moved on another thread; the block begins when that waits for this transaction."""
    with ThreadPoolExecutor(1) as pool:
        moved = pool.submit(move, shop, "orders")
        try:
            wait_until_blocked(shop.engine, by=backend(behind))
            yield moved
        finally:
            behind.rollback()


@pytest.mark.parametrize("moves", [1, 2])
def test_workers_are_waited_for_before_anything_that_readers_want(
    full: Shop, moves: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long a batch is: one try is enough, and readers continue meanwhile."""
    if moves == 2:
        move(full, "orders")
    monkeypatch.setattr("seekpoint.jobs.tables.generations.manage_generations.TRIES", 1)
    where = "orders" if moves == 1 else "orders_g1"
    with full.holding("SELECT FROM {schema}.partition_offset FOR NO KEY UPDATE") as worker:
        worker.execute(text(f"DELETE FROM {full.schema}.{where} WHERE id < 0"))
        with moving(full, worker) as moved:
            assert not threading.Event().wait(0.6)  # twice as long as it waits for a table
            full.execute("SELECT count(*) FROM {schema}.orders")
            assert not moved.done()
        moved.result(30)
    assert full.rows() == doubled(FIRST, by=1)


def test_a_table_is_given_up_in_the_order_in_which_readers_lock_it(full: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks the view first and its tables then, as readers do: the other order could deadlock with a busy reader."""
    move(full, "orders")
    monkeypatch.setattr("seekpoint.jobs.tables.generations.manage_generations.TRIES", 1)
    monkeypatch.setattr("seekpoint.jobs.tables.generations.manage_generations.DDL_WAIT", 30_000)
    with full.engine.connect() as reader:
        # Parsed, and not planned: it has the view's lock, and not yet those of the view's tables.
        reader.execute(text(f"CREATE TEMPORARY VIEW parsed AS SELECT * FROM {full.schema}.orders"))
        with moving(full, reader) as moved:
            assert reader.execute(text(f"SELECT count(*) FROM {full.schema}.orders")).scalar() == len(doubled(FIRST))
        moved.result(30)
    assert full.rows() == doubled(FIRST, by=1)
