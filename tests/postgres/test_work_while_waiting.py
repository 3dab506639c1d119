"""Work while the server has not answered: it ends with the answer, and the answer is the statement's."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from functools import partial

import psycopg
import pytest
from sqlalchemy import Engine, text

from seekpoint.postgres.session import CommitRefused, ConnectionSocket, Session
from seekpoint.worker.waiting import Stopwatch, Work, waiting, work_while_waiting
from support.databases import libpq
from support.ledger_worker import backend, scalar
from support.waiting import until

SLEEPS = "$$ BEGIN PERFORM pg_sleep(0.2); RETURN NULL; END $$"


class Counted:
    """Counts its calls; there is work for the first ``most`` of them."""

    def __init__(self, most: float) -> None:
        self.calls, self.most = 0, most

    def __call__(self) -> bool:
        self.calls += 1
        return self.calls <= self.most


@pytest.fixture
def driver(seekpoint_engine: Engine) -> Iterator[psycopg.Connection]:
    url = libpq(seekpoint_engine.url)
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


def working(driver: psycopg.Connection, most: float) -> Counted:
    work = Counted(most)
    driver.wait = partial(work_while_waiting, driver, Work(lambda: True, work))  # type: ignore[method-assign]
    return work


def test_work_is_done_until_the_answer_is_there(driver: psycopg.Connection) -> None:
    work = working(driver, float("inf"))
    assert driver.execute("SELECT pg_sleep(0.2), 7").fetchone() == ("", 7)
    assert work.calls > 10


def test_the_answer_is_waited_for_when_no_work_is_left(driver: psycopg.Connection) -> None:
    work = working(driver, 3)
    assert driver.execute("SELECT pg_sleep(0.2), 7").fetchone() == ("", 7)
    assert work.calls == 4


def test_errors_of_the_server_and_of_the_work_are_raised(driver: psycopg.Connection) -> None:
    working(driver, float("inf"))
    with pytest.raises(psycopg.errors.DivisionByZero):
        driver.execute("SELECT 1 / 0")
    driver.execute("CREATE TEMPORARY TABLE t (v int)")
    with driver.cursor() as cursor, cursor.copy("COPY t FROM STDIN") as copy:
        for value in range(10_000):
            copy.write_row([value])
    assert driver.execute("SELECT count(*), sum(v) FROM t").fetchone() == (10_000, 49_995_000)

    def raises() -> bool:
        raise RuntimeError("work")

    driver.wait = partial(work_while_waiting, driver, Work(lambda: True, raises))  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="work"):
        driver.execute("SELECT pg_sleep(0.1)")
    driver.close()  # its statement still runs


def test_a_lost_connection_is_an_error(driver: psycopg.Connection) -> None:
    working(driver, float("inf"))
    with pytest.raises(psycopg.OperationalError):
        driver.execute("SELECT pg_terminate_backend(pg_backend_pid())")


def test_a_connection_that_is_lost_in_a_pipeline_leaves_nothing_to_print(
    driver: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python prints "Exception ignored in" for a generator of psycopg's that raises when it is collected."""
    printed: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    working(driver, float("inf"))

    def lose() -> None:
        with driver.pipeline():
            driver.execute("SELECT 1")
            driver.close()

    with pytest.raises(psycopg.OperationalError, match="is closed"):
        lose()
    gc.collect()
    assert printed == []


def test_an_interruption_cancels_the_statement(driver: psycopg.Connection, seekpoint_engine: Engine) -> None:
    """As in psycopg's own wait: the server does not run on for a client that has left."""

    pid = driver.info.backend_pid

    def interrupted() -> bool:
        if other.execute(state, {"pid": pid}).scalar() == "active":  # a request to cancel does nothing before
            raise KeyboardInterrupt
        return True

    driver.wait = partial(work_while_waiting, driver, Work(lambda: True, interrupted))  # type: ignore[method-assign]
    state = text("SELECT state FROM pg_stat_activity WHERE pid = :pid")
    with seekpoint_engine.connect() as other:
        other.execution_options(isolation_level="AUTOCOMMIT")
        with pytest.raises(KeyboardInterrupt):
            driver.execute("SELECT pg_sleep(300)")
        until(lambda: other.execute(state, {"pid": pid}).scalar() == "idle", "the statement is cancelled")
    driver.close()  # its answer was not read


def test_an_error_of_the_work_while_commit_is_awaited_says_refused_although_it_may_have_taken_effect(
    seekpoint_engine: Engine, seekpoint_schema: str
) -> None:
    """No work raises such an error: the reader keeps its own. If one did, the worker would end, and hold compares.

    The server is asked to end the COMMIT; it may be done, or not have begun.
    """
    is_committing, pids = [False], list[int]()

    def raises() -> bool:
        raise RuntimeError("work")

    wire = ConnectionSocket(waiting(Stopwatch(), Work(lambda: is_committing[0], raises)))
    session = Session(seekpoint_engine, wire=wire)
    table, slow = f'"{seekpoint_schema}".while_committing', f'"{seekpoint_schema}".slow'

    def create() -> None:
        with session.transaction() as tx:
            tx.execute(text(f"CREATE TABLE {table} (v int)"))
            tx.execute(text(f"CREATE FUNCTION {slow}() RETURNS trigger LANGUAGE plpgsql AS {SLEEPS}"))
            tx.execute(
                text(
                    f"CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON {table} DEFERRABLE INITIALLY DEFERRED "
                    f"FOR EACH ROW EXECUTE FUNCTION {slow}()"
                )
            )
            tx.execute(text(f"INSERT INTO {table} VALUES (1)"))
            pids.append(backend(tx))
            is_committing[0] = True

    with pytest.raises(CommitRefused) as refused:
        create()
    session.close()
    assert isinstance(refused.value.error, RuntimeError)
    is_there = "SELECT count(*) FROM pg_stat_activity WHERE pid = :pid"
    until(lambda: not scalar(seekpoint_engine, is_there, pid=pids[0]), "the session's end")
