"""The hot row stays hot: every advance is a HOT update, and the table does not grow."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, create_engine, make_url, text

from seekpoint import schema
from seekpoint.ledger import Attempt, Expected, GroupLedger, Move
from seekpoint.testing.servers.postgres import PostgresServer, start_postgres
from support.ledger_worker import LedgerWorker, make_table, scalar

PAGE = 8192
SIZE = "SELECT pg_relation_size('seekpoint.partition_offset')"
INDEX = "SELECT pg_relation_size('seekpoint.partition_offset_pkey')"
UPDATES = """
    SELECT n_tup_upd, n_tup_hot_upd, n_tup_newpage_upd FROM pg_stat_user_tables
    WHERE schemaname = 'seekpoint' AND relname = 'partition_offset'"""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server of this module's own: any snapshot, also autovacuum's, keeps dead rows from being pruned."""
    with start_postgres({"autovacuum": "off"}, own=True) as server:
        yield server


@pytest.fixture
def own_engine(server: PostgresServer) -> Iterator[Engine]:
    """The ledger in its default schema, in a database of the test's own."""
    name = f"storage_{secrets.token_hex(6)}"
    outside = create_engine(server.url, isolation_level="AUTOCOMMIT")
    with outside.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    outside.dispose()
    engine = create_engine(make_url(server.url).set(database=name))
    schema.upgrade(engine)
    make_table(engine, "seekpoint")
    yield engine
    engine.dispose()


def advance(worker: LedgerWorker, transactions: int) -> None:
    """So many transactions, each over every claimed partition; on one connection, as a worker has it."""
    with worker.ledger.engine.connect() as connection:
        for _ in range(transactions):
            with connection.begin():
                claims = list(worker.claims.values())
                transaction = worker.ledger.hold(connection, [Expected(c, c.next_offset) for c in claims])
                moves = [Move(c, c.next_offset, c.next_offset + 1, leader_epoch=1) for c in claims]
                moved = worker.ledger.advance(connection, moves, transaction)
            worker.accept(moved)
        connection.exec_driver_sql("SELECT pg_stat_force_next_flush()")
        connection.commit()


def updates(engine: Engine) -> tuple[int, ...]:
    with engine.connect() as tx:
        return tuple(tx.execute(text(UPDATES)).one())


@pytest.mark.long
def test_advances_are_hot_and_the_table_does_not_grow(own_engine: Engine) -> None:
    """I3's price: 20,000 advances touch no index, and leave the table within a few pages."""
    worker = LedgerWorker(GroupLedger(own_engine, "g", synchronous_commit=False))
    worker.claim(*range(10))
    advance(worker, 1)
    size, index = scalar(own_engine, SIZE), scalar(own_engine, INDEX)
    before = updates(own_engine)
    advance(worker, 2_000)
    updated, hot, _ = (after - b for after, b in zip(updates(own_engine), before, strict=True))
    assert updated == 20_000
    assert hot == updated
    assert scalar(own_engine, SIZE) <= max(size, 2 * PAGE)
    assert scalar(own_engine, INDEX) == index


def test_claims_moves_and_releases_are_hot_too(own_engine: Engine) -> None:
    """I5's price: a restart loop does not bloat the ledger either."""
    worker = LedgerWorker(GroupLedger(own_engine, "g"))
    worker.claim(*range(6))
    before, index = updates(own_engine), scalar(own_engine, INDEX)
    for _ in range(50):
        worker.claim(*range(6))
        worker.commit(dict.fromkeys(range(6), worker.claims[0].next_offset + 1))
        attempt = Attempt(worker.claims[0].next_offset, 1, "ValueError: of some length", wait=1.0)
        worker.ledger.record_attempts_alone([(claim, attempt) for claim in worker.claims.values()])
        worker.ledger.release(worker.claims.values())
        worker.ledger.pause(reason="x")
        worker.ledger.resume()
    with own_engine.connect() as tx:
        tx.exec_driver_sql("SELECT pg_stat_force_next_flush()")
        tx.commit()
    own_engine.dispose()  # sessions tell what they counted when they end
    updated, hot, _ = (after - b for after, b in zip(updates(own_engine), before, strict=True))
    assert updated >= 50 * 6 * 5  # a claim, a move, a release, a pause, and a resumption
    assert hot == updated
    assert scalar(own_engine, INDEX) == index


@pytest.mark.long
def test_a_long_snapshot_costs_pages_once(own_engine: Engine) -> None:
    """I3's price: while an old snapshot is open nothing can be cleaned; afterwards growth ends."""
    worker = LedgerWorker(GroupLedger(own_engine, "g", synchronous_commit=False))
    worker.claim(*range(6))
    with own_engine.connect().execution_options(isolation_level="REPEATABLE READ") as reader:
        reader.exec_driver_sql("SELECT count(*) FROM seekpoint.partition_offset")
        advance(worker, 300)
    grown = scalar(own_engine, SIZE)
    assert grown > 2 * PAGE, "the snapshot was to keep 1,800 row versions"
    advance(worker, 1_000)
    assert scalar(own_engine, SIZE) <= grown + 2 * PAGE
