"""A rebuild's handler among live listeners and writers, and tasks of a driver that was there before."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, text

from seekpoint.errors import HandlerMisuse
from seekpoint.jobs.staging.stage import stage_range
from seekpoint.kafka.ranges import Range
from seekpoint.records import Partition
from support.before_cutover import reloaded, settled, started
from support.handler_reload import Books, Handle, booked, by_core
from support.reload_orders import Shop, doubled, of

RECORDS = [of(n % 7, n) for n in range(60)]


def test_live_listeners_hear_nothing_of_a_rebuild(books: Books) -> None:
    """By the statement, by the function, and by a function of the host's that calls it."""
    channel = f"of_{books.shop.schema}"
    books.shop.execute(
        "CREATE FUNCTION {schema}.tell(channel text) RETURNS void LANGUAGE plpgsql AS "
        "$$BEGIN PERFORM pg_notify(channel, 'by a function'); END$$"
    )

    def make(version: int) -> Handle:
        book = by_core(None, version)

        def handle(tx: Connection, batch: Any) -> None:
            book(tx, batch)
            tx.execute(text(f"NOTIFY {channel}, 'by the statement'"))
            tx.exec_driver_sql(f"  -- said\n notify {channel}, 'by the driver'")
            tx.execute(text("SELECT pg_notify(:channel, 'by pg_notify')"), {"channel": channel})
            tx.execute(text("SELECT tell(:channel)"), {"channel": channel})

        return handle

    url = books.shop.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url, autocommit=True) as listener:
        listener.execute(f"LISTEN {channel}")
        books.applied(RECORDS, make)
        heard = {one.payload for one in listener.notifies(timeout=5, stop_after=4)}
        assert heard == {"by the statement", "by the driver", "by pg_notify", "by a function"}
        reload = books.reload(make(2))
        for _ in listener.notifies(timeout=0.2):
            pass
        driver = reload.open()
        reload.run(driver)
        listener.execute("SELECT pg_notify(%s, 'the end')", [channel])
        assert [one.payload for one in listener.notifies(timeout=5, stop_after=1)] == ["the end"]
    assert books.rows() == booked(RECORDS, by=2)
    assert books.shop.schemas() == [], "the silent pg_notify was dropped, too"


def test_a_notification_by_the_drivers_cursor_is_refused(books: Books) -> None:
    """It would leave with the COMMIT, and nothing here can hold it back."""

    def make(version: int) -> Handle:
        book = by_core(None, version)

        def handle(tx: Connection, batch: Any) -> None:
            book(tx, batch)
            driver: Any = tx.connection.driver_connection
            driver.execute("NOTIFY somebody")

        return handle

    books.applied(RECORDS, make)
    with pytest.raises(HandlerMisuse, match=r"sent NOTIFY by psycopg's own cursor, .*: send it by tx.execute"):
        reloaded(books.reload(make(2)))
    assert books.rows() == booked(RECORDS)


def test_a_row_that_others_write_may_be_locked(books: Books) -> None:
    """As fast as they can."""

    def make(version: int) -> Handle:
        book = by_core(None, version)

        def handle(tx: Connection, batch: Any) -> None:
            tx.execute(text("SELECT factor FROM rates FOR UPDATE")).one()
            book(tx, batch)

        return handle

    books.applied(RECORDS, make)
    over = threading.Event()

    def write() -> None:
        while not over.wait(0.005):
            books.shop.execute("UPDATE {schema}.rates SET factor = 1")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        reloaded(books.reload(make(2)))
    finally:
        over.set()
        writer.join()
    assert books.rows() == booked(RECORDS, by=2)


@pytest.mark.repeats("late")
@pytest.mark.parametrize("late", [(0, 60), (20, 70), (30, 120), (0, 110)])
def test_a_late_attempt_of_another_width_is_none_that_counts(shop: Shop, late: tuple[int, int]) -> None:
    """The driver before had cut its ranges otherwise, and a task of it commits after all others."""
    records = [of(n, n, n) for n in range(120)]
    settled(shop, records)
    done: list[object] = []

    def commit_late(what: str, at: int, total: int) -> None:
        if what == "staging" and at == total and not done:
            kafka, source = {"bootstrap.servers": shop.brokers}, reload.sources[0]
            (staged,) = [one for one in reload.runs.positions(driver.run.id) if one.partition.number == 0]
            for _ in range(3):  # whatever their names: which comes first is chance
                range_ = Range(Partition(shop.topic, 0), staged.topic_id, *late)
                done.append(
                    stage_range(shop.engine, shop.schema, kafka, driver.run.id, pipeline=source.pipeline, range_=range_)
                )

    reload, driver = started(shop.reload(range_records=40, progress=commit_late))
    reload.run(driver)
    assert len(done) == 3
    assert shop.rows() == doubled(records)
