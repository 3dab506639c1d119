"""The hot row stays hot: every advance is a HOT update, and the table does not grow."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, create_engine, make_url, text

from seekpoint import schema
from seekpoint.ledger import Attempt, Expected, Ledger, Move
from seekpoint.testing.servers.postgres import PostgresServer, start_postgres
from support.ledger_desk import Desk, make_table, scalar

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
def alone(server: PostgresServer) -> Iterator[Engine]:
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


def advance(desk: Desk, transactions: int) -> None:
    """So many transactions, each over every claimed partition; on one connection, as a worker has it."""
    with desk.ledger.engine.connect() as connection:
        for _ in range(transactions):
            with connection.begin():
                claims = list(desk.claims.values())
                transaction = desk.ledger.hold(connection, [Expected(c, c.next_offset) for c in claims])
                moves = [Move(c, c.next_offset, c.next_offset + 1, leader_epoch=1) for c in claims]
                moved = desk.ledger.advance(connection, moves, transaction)
            desk.accept(moved)
        connection.exec_driver_sql("SELECT pg_stat_force_next_flush()")
        connection.commit()


def updates(engine: Engine) -> tuple[int, ...]:
    with engine.connect() as tx:
        return tuple(tx.execute(text(UPDATES)).one())


@pytest.mark.long
def test_advances_are_hot_and_the_table_does_not_grow(alone: Engine) -> None:
    """I3's price: 20,000 advances touch no index, and leave the table within a few pages."""
    desk = Desk(Ledger(alone, "g", synchronous_commit=False))
    desk.claim(*range(10))
    advance(desk, 1)
    size, index = scalar(alone, SIZE), scalar(alone, INDEX)
    before = updates(alone)
    advance(desk, 2_000)
    updated, hot, _ = (after - b for after, b in zip(updates(alone), before, strict=True))
    assert updated == 20_000
    assert hot == updated
    assert scalar(alone, SIZE) <= max(size, 2 * PAGE)
    assert scalar(alone, INDEX) == index


def test_claims_moves_and_releases_are_hot_too(alone: Engine) -> None:
    """I5's price: a restart loop does not bloat the ledger either."""
    desk = Desk(Ledger(alone, "g"))
    desk.claim(*range(6))
    before, index = updates(alone), scalar(alone, INDEX)
    for _ in range(50):
        desk.claim(*range(6))
        desk.commit(dict.fromkeys(range(6), desk.claims[0].next_offset + 1))
        attempt = Attempt(desk.claims[0].next_offset, 1, "ValueError: of some length", wait=1.0)
        desk.ledger.record_attempts_alone([(claim, attempt) for claim in desk.claims.values()])
        desk.ledger.release(desk.claims.values())
        desk.ledger.pause(reason="x")
        desk.ledger.resume()
    with alone.connect() as tx:
        tx.exec_driver_sql("SELECT pg_stat_force_next_flush()")
        tx.commit()
    alone.dispose()  # sessions tell what they counted when they end
    updated, hot, _ = (after - b for after, b in zip(updates(alone), before, strict=True))
    assert updated >= 50 * 6 * 5  # a claim, a move, a release, a pause, and a resumption
    assert hot == updated
    assert scalar(alone, INDEX) == index


@pytest.mark.long
def test_a_long_snapshot_costs_pages_once(alone: Engine) -> None:
    """I3's price: while an old snapshot is open nothing can be cleaned; afterwards growth ends."""
    desk = Desk(Ledger(alone, "g", synchronous_commit=False))
    desk.claim(*range(6))
    with alone.connect().execution_options(isolation_level="REPEATABLE READ") as reader:
        reader.exec_driver_sql("SELECT count(*) FROM seekpoint.partition_offset")
        advance(desk, 300)
    grown = scalar(alone, SIZE)
    assert grown > 2 * PAGE, "the snapshot was to keep 1,800 row versions"
    advance(desk, 1_000)
    assert scalar(alone, SIZE) <= grown + 2 * PAGE
