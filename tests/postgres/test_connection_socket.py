"""The wire: a connection's socket in the hands of another thread."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine

from seekpoint.postgres.session import ConnectionSocket
from seekpoint.worker.waiting import Stopwatch, waiting
from support.databases import libpq
from support.ledger_worker import scalar
from support.waiting import until


@pytest.fixture
def driver(seekpoint_engine: Engine) -> Iterator[psycopg.Connection[Any]]:
    """A connection of psycopg's own."""
    url = libpq(seekpoint_engine.url)
    with psycopg.connect(url) as connection:
        yield connection


def test_a_wait_for_the_server_ends_when_the_wire_is_cut(driver: psycopg.Connection[Any]) -> None:
    stopwatch = Stopwatch()
    wire = ConnectionSocket(waiting(stopwatch))
    wire.connected(driver)
    with ThreadPoolExecutor(1) as threads:
        waits = threads.submit(driver.execute, "SELECT pg_sleep(60)")
        wire.cut()
        with pytest.raises(psycopg.OperationalError):
            waits.result(30)
    with pytest.raises(psycopg.OperationalError):
        driver.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError, match="the worker has ended"):
        wire.connected(driver)
    wire.disconnected()
    wire.cut()  # twice, and without a connection: nothing


def test_the_statement_of_a_connection_that_is_cut_ends_at_the_server(
    driver: psycopg.Connection[Any], seekpoint_engine: Engine
) -> None:
    """Else it would hold its locks until it is done: a server that runs a statement does not look at the socket."""
    wire, pid = ConnectionSocket(), driver.info.backend_pid
    wire.connected(driver)
    is_running = "SELECT count(*) FROM pg_stat_activity WHERE pid = :pid AND query LIKE 'SELECT pg_sleep%'"
    with ThreadPoolExecutor(1) as threads:
        waits = threads.submit(driver.execute, "SELECT pg_sleep(600)")
        until(lambda: scalar(seekpoint_engine, is_running, pid=pid), "the statement")
        wire.cut()
        with pytest.raises(psycopg.Error):
            waits.result(30)
    until(lambda: not scalar(seekpoint_engine, is_running, pid=pid), "the end of the statement")
    wire.disconnected()
    driver.close()


def test_a_connection_that_is_given_back_is_as_it_was(driver: psycopg.Connection[Any]) -> None:
    wire = ConnectionSocket(waiting(Stopwatch()))
    wire.connected(driver)
    first = wire._socket
    wire.connected(driver)  # its session did not say that it was given back
    second = wire._socket
    assert "wait" in vars(driver)
    wire.disconnected()
    wire.disconnected()
    assert "wait" not in vars(driver)
    wire.cut()
    assert driver.execute("SELECT 1").fetchone() == (1,)
    assert first is not None
    assert second is not None
    assert (first.fileno(), second.fileno()) == (-1, -1)
