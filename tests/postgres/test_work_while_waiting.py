"""Work while the server has not answered: it ends with the answer, and the answer is the statement's."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import psycopg
import pytest
from sqlalchemy import Engine

from seekpoint.postgres.work_while_waiting import Work, work_while_waiting


class Counted:
    """Counts its calls; there is work for the first ``most`` of them."""

    def __init__(self, most: float) -> None:
        self.calls, self.most = 0, most

    def __call__(self) -> bool:
        self.calls += 1
        return self.calls <= self.most


@pytest.fixture
def driver(seekpoint_engine: Engine) -> Iterator[psycopg.Connection]:
    url = seekpoint_engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
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
