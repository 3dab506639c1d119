"""Tests take over sessions that earlier ones have closed: what those had set is gone, and none is lent twice."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy import Engine, NullPool, create_engine, text

from seekpoint.testing.idle_sessions import IdleSessions
from support.waiting import until


@pytest.fixture
def sessions() -> Iterator[IdleSessions]:
    sessions = IdleSessions()
    yield sessions
    sessions.close()


@pytest.fixture
def engine(seekpoint_dsn: str, sessions: IdleSessions) -> Engine:
    engine = create_engine(seekpoint_dsn, poolclass=NullPool)
    sessions.lend_to(engine)
    return engine


def use(engine: Engine, *statements: str) -> int:
    """Run these in a transaction, close the connection, and return the number of the server's process."""
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
        return int(connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one())


def test_a_session_is_for_the_next_test(engine: Engine, sessions: IdleSessions) -> None:
    first, second = use(engine), use(engine)
    assert first != second, "within one test each connection has a session of its own"
    sessions.next_test()
    assert {use(engine), use(engine)} == {first, second}


def test_a_test_that_closes_many_sessions_ends_them(
    engine: Engine, sessions: IdleSessions, seekpoint_engine: Engine
) -> None:
    """Kept until its end, they were more than the server has."""
    closed = [use(engine) for _ in range(30)]

    def left() -> set[int]:
        with seekpoint_engine.connect() as connection:
            asked = text("SELECT pid FROM pg_stat_activity WHERE pid = ANY(:closed)")
            return set(connection.execute(asked, {"closed": closed}).scalars())

    until(lambda: len(left()) == 12, "the other sessions to end")
    kept = left()
    sessions.next_test()
    assert {use(engine) for _ in range(12)} == kept


def test_nothing_is_left_of_the_test_before(engine: Engine, sessions: IdleSessions) -> None:
    before = use(
        engine,
        "SET application_name = 'before'",
        "SET search_path = pg_catalog",
        "CREATE TEMPORARY TABLE kept (id int)",
        "PREPARE kept AS SELECT 1",
        "LISTEN kept",
        "SELECT pg_advisory_lock(4712)",
    )
    sessions.next_test()
    with engine.connect() as connection:
        state = connection.exec_driver_sql(
            "SELECT pg_backend_pid(), current_setting('application_name'), current_setting('search_path'),"
            " (SELECT count(*) FROM pg_prepared_statements), (SELECT count(*) FROM pg_listening_channels()),"
            " (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()),"
            " to_regclass('pg_temp.kept') IS NULL"
        ).one()
    assert tuple(state) == (before, "", '"$user", public', 0, 0, 0, True)


def test_a_connection_that_was_closed_stays_closed(engine: Engine) -> None:
    raw = engine.raw_connection()
    driver = raw.driver_connection
    assert isinstance(driver, psycopg.Connection)
    driver.rollback()
    driver.close()
    assert driver.closed
    with pytest.raises(psycopg.OperationalError):
        driver.execute("SELECT 1")


def test_a_session_in_a_transaction_ends(engine: Engine, sessions: IdleSessions) -> None:
    raw = engine.raw_connection()
    driver = raw.driver_connection
    assert isinstance(driver, psycopg.Connection)
    driver.execute("SELECT 1")
    left = driver.info.backend_pid
    driver.close()
    sessions.next_test()
    assert use(engine) != left


def test_a_session_that_was_ended_meanwhile_is_not_lent(
    engine: Engine, sessions: IdleSessions, seekpoint_dsn: str
) -> None:
    ended = use(engine)
    sessions.next_test()
    other = create_engine(seekpoint_dsn)
    with other.connect() as connection:  # returns when the session is gone
        connection.exec_driver_sql(f"SELECT pg_terminate_backend({ended}, 10_000)")
    other.dispose()
    assert use(engine) != ended
