"""The driver's catch-up passes: bounded, resumed after the last committed one, consistent with the group's records."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Connection

from seekpoint import Append, Batch, Json, Pipeline
from seekpoint.jobs.reload.handlers import MOST, _next_size
from support.before_cutover import diffed, staged, started
from support.handler_reload import Books, Handle, booked, by_core
from support.reload_orders import Order, OrderKey, Shop, of
from support.reload_process import Reloader

FIRST = [of(n % 9, n) for n in range(120)]
LATER = [of(n % 11, n) for n in range(40)]


def core(books: Books, version: int = 2) -> Handle:
    return by_core(books.shop.schema, version)


@pytest.mark.repeats("at")
@pytest.mark.parametrize("at", ["staged", "offset 70", "turn indexed", "indexed", "compared", "turn cut_over"])
def test_another_driver_resumes_after_one_that_was_killed(books: Books, at: str) -> None:
    books.applied(FIRST, lambda version: core(books, version))
    reload = books.reload(core(books), range_records=50)
    run = reload.open().run.id
    Reloader(books.shop, run, at=at, width=50, handled=True).kill_where_it_waits()
    if at == "offset 70":
        assert {p.partition.number: p.next_offset for p in reload.runs.positions(run)}[0] == 50, "one round of three"
    assert books.rows() == booked(FIRST), "nothing was published"
    books.applied(LATER, lambda version: core(books, version))
    reload.run(reload.take_over(run))
    assert books.rows() == booked(FIRST + LATER, by=2)
    assert books.shop.schemas() == []


def test_catch_up_passes_are_bounded_and_end_at_the_snapshot_offset_first(books: Books) -> None:
    """Records written after the snapshot offset meanwhile are read once everything before it is there."""
    books.applied(FIRST, lambda version: core(books, version))
    sizes: list[list[int]] = []

    def handle(tx: Connection, batch: Any) -> None:
        sizes.append([record.offset for record in batch])

    reload, driver = started(books.reload(handle, range_records=50))
    books.applied(FIRST, lambda version: core(books, version))
    reload.stage(driver)
    assert [(size[0], size[-1]) for size in sizes] == [(0, 49), (50, 99), (100, 119), (120, 169), (170, 219)]
    assert [p.next_offset for p in reload.runs.positions(driver.run.id)] == [220, 0], "the rest is less than a round"
    reload.runs.abort(driver.run.id, "enough")


def test_live_workers_continue_and_the_run_catches_up(books: Books) -> None:
    books.shop.produce(books.shop.topic, FIRST, partition=0)
    worker = books.worker(core(books, 1))
    worker.reached(books.shop.topic, len(FIRST))
    reload, driver = staged(books.reload(core(books), range_records=50))
    books.shop.produce(books.shop.topic, LATER, partition=0)
    worker.reached(books.shop.topic, len(FIRST + LATER))
    with diffed(reload, driver=driver) as (_, _, rounds):
        books.shop.produce(books.shop.topic, LATER, partition=0)  # after the difference
        worker.reached(books.shop.topic, len(FIRST + LATER + LATER))
        reload.cut_over(driver, rounds)
    assert books.rows() == booked(FIRST + LATER + LATER, by=2)


def test_dead_letters_have_no_rows_and_replayed_ones_have_theirs(books: Books) -> None:
    """Also one that was replayed while its range was still to be rebuilt."""
    refused = {20, 60, 100}

    def make(refusing: bool, version: int) -> Handle:
        handle = core(books, version)

        def refuse(tx: Connection, batch: Any) -> None:
            if refusing and (bad := [record for record in batch if record.offset in refused]):
                raise ValueError(f"not {bad[0].offset}")
            handle(tx, batch)

        return refuse

    from seekpoint import Retry

    options = {"on_poison": "dead_letter", "retry": Retry(attempts=1)}
    books.applied(FIRST, lambda version: make(True, version), **options)
    reload, driver = started(books.reload(make(False, 2), range_records=50, pipeline=options))
    from seekpoint.admin import DeadLetterReplay

    ids = dict(books.shop.execute("SELECT record_offset, id FROM {schema}.dead_letter"))
    assert set(ids) == refused
    from seekpoint.jobs.staging.stage import begin_staging

    begin_staging(driver, reload.sources)
    redrive = DeadLetterReplay(books.pipeline(make(False, 1), 1, **options), books.engine, schema=books.shop.schema)
    redrive.replay(ids[60])
    reload.run(driver)
    rows, _ = books.rows()
    assert [row[0] for row in rows] == [n for n in range(120) if n not in {20, 100}]


def test_sinks_and_a_handler_of_one_pipeline(books: Books) -> None:
    """The handler sees what the sinks wrote, and both are rebuilt together."""

    def make(version: int) -> Pipeline:
        def row(record: Any) -> dict[str, Any]:
            order = record.value
            return {"id": order.id, "amount": order.amount * version, "at": 0, "topic_offset": record.offset}

        def handle(tx: Connection, batch: Any) -> None:
            from sqlalchemy import text

            found = tx.execute(text("SELECT count(*) FROM entries WHERE topic_offset = :at"), {"at": batch[-1].offset})
            assert found.scalar() == 1
            core(books, version)(tx, batch)

        return Pipeline(
            books.shop.group,
            topics=books.shop.topic,
            value=Json(Order),
            key=Json(OrderKey),
            sinks=[Append((books.shop.schema, "entries"), columns=["id", "amount", "at", "topic_offset"], row=row)],
            handle=handle,
            writes=[f"{books.shop.schema}.{name}" for name in ("bookings", "totals")],
            version=version,
        )

    books.shop.execute("ALTER TABLE {schema}.entries ADD note text")
    books.shop.produce(books.shop.topic, FIRST, partition=0)
    books.shop.apply(make(1), len(FIRST), engine=books.engine)
    books.shop.execute("UPDATE {schema}.entries SET note = 'of others'")
    from seekpoint.jobs.reload import Reload

    reload = Reload([make(2)], books.engine, {"bootstrap.servers": books.shop.brokers}, schema=books.shop.schema)
    reload.run(reload.open())
    assert books.rows() == booked(FIRST, by=2)
    amounts = [row[0] for row in books.shop.rows("entries", "amount, topic_offset, id")]
    assert amounts == sorted(n * 2 for n in range(120))
    assert books.shop.execute("SELECT DISTINCT note FROM {schema}.entries") == [("of others",)], (
        "only the sinks' columns"
    )


def test_long_catch_up_passes_are_followed_by_shorter_ones() -> None:
    """An abort or a takeover of the run waits for the current catch-up pass."""
    assert _next_size(50_000, MOST, 2.0) == 50_000
    assert _next_size(50_000, MOST, 100.0) == 10_000
    assert _next_size(5_000, MOST, 0.0) == 10_000
    assert _next_size(1, MOST, 100.0) == 1


def test_a_group_with_sinks_and_one_with_a_handler_in_one_run(books: Books, topic: Any) -> None:
    books.applied(FIRST, lambda version: core(books, version))
    other = Shop(**{**vars(books.shop), "group": f"{books.shop.group}-sinks"})
    other.work(len(FIRST))
    reload = books.shop.reload([books.pipeline(core(books)), other.pipeline(version=2)], range_records=50)
    told: list[tuple[str, int, int]] = []
    reload._progress = lambda *step: told.append(step)
    reload.run(reload.open())
    assert books.rows() == booked(FIRST, by=2)
    assert len(other.rows()) == 9
    assert {max(step[1] for step in told if step[0] == "staging")} == {120}


def test_deletions_after_the_difference_reach_the_live_table(books: Books) -> None:
    """The copies note which keys are touched, whatever the statement is."""
    from sqlalchemy import text

    def make(version: int) -> Handle:
        inner = core(books, version)

        def handle(tx: Connection, batch: Any) -> None:
            for record in batch:
                if record.value.at == 0:
                    inner(tx, Batch([record]))
                if record.value.at == 1:
                    tx.execute(text("DELETE FROM totals WHERE account = :id"), {"id": record.value.id})
                if record.value.at == 2:
                    tx.execute(text("TRUNCATE totals"))

        return handle

    books.applied(FIRST, make)
    with diffed(books.reload(make(2))) as (reload, driver, rounds):
        books.applied([of(3, 1, 1)], make)
        assert reload.catch_up(driver, rounds) == 1
        assert books.shop.execute(
            f"SELECT account FROM {driver.run.staging_schema}.touched_{rounds.targets[1].staged}"
        ) == [(3,)]
        books.applied([of(0, 1, 2), of(5, 7)], make)
        reload.cut_over(driver, rounds)
    assert books.rows()[1] == [(5, 14, 1)]
