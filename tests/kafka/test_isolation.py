"""What is no record's fault, and what is too many of them: retried apart, in smaller parts, or the worker's end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import OperationalError

from seekpoint import Batch, Json, Limits, Partition, Pipeline, Text, Upsert, events
from seekpoint.errors import TooManyDeadLetters
from seekpoint.pipeline.policy import DeadLetterLimits, Retry
from seekpoint.worker.parts import ONE_TOO_LONG
from support.events import Gate
from support.fixtures import NewEngine
from support.sink_tables import TOPIC, SinkTables, orders
from support.worker_group import QUICK, WorkerGroup

Handler = Callable[[Connection, Batch[Any, Any]], Any]
TWICE = Retry(attempts=2, wait_initial=0.05, jitter=0)


def fixed(name: str, partitions: int = 1, **options: Any) -> dict[str, Any]:
    """Without a group: there is no rebalance to wait for."""
    return {"partitions": [(name, n) for n in range(partitions)], "kafka": QUICK, **options}


def raised(tx: Connection, sqlstate: str) -> None:
    """Have the server raise this."""
    tx.exec_driver_sql(f"DO $$ BEGIN RAISE EXCEPTION 'as told' USING ERRCODE = '{sqlstate}'; END $$")


# -- errors that pass --------------------------------------------------------------------------------------------


@pytest.mark.pins("batch")
@pytest.mark.repeats("sqlstate")
@pytest.mark.parametrize("sqlstate", ["40P01", "40001", "55P03", "53200"])
def test_errors_that_pass_use_up_no_attempts(worker_group: WorkerGroup, sqlstate: str) -> None:
    """Deadlock, serialization, lock timeout, memory: the transaction is run again, in the end by parts."""
    name, left = worker_group.topic(), [5]

    def handle(tx: Connection, batch: Batch[str, Any]) -> None:
        worker_group.record_table.enter(tx, batch)
        if left[0]:
            left[0] -= 1
            raised(tx, sqlstate)

    stored = worker_group.produce(name, 10)
    run = worker_group.worker(
        worker_group.pipeline(name, handle=handle, retry=TWICE, on_poison="dead_letter"), **fixed(name)
    )
    run.finish(name, 10)
    assert len(run.seen.all(events.DatabaseTrouble)) >= 3
    assert not run.seen.all(events.RetryScheduled)
    worker_group.record_table.assert_holds(name, stored)
    assert worker_group.dead_letters("cause") == []


# -- statement_timeout -------------------------------------------------------------------------------------------


def sleepy(worker_group: WorkerGroup, milliseconds: int, most: int) -> tuple[Handler, list[int]]:
    """A handler with one statement that takes so long per record, and may take ``most`` milliseconds."""
    sizes: list[int] = []

    def handle(tx: Connection, batch: Batch[str, Any]) -> None:
        tx.exec_driver_sql(f"SET LOCAL statement_timeout = '{most}ms'")
        tx.exec_driver_sql(f"SELECT pg_sleep({milliseconds * len(batch) / 1000})")
        tx.exec_driver_sql("SET LOCAL statement_timeout = 0")
        sizes.append(len(batch))
        worker_group.record_table.enter(tx, batch)

    return handle, sizes


@pytest.mark.long
@pytest.mark.pins("batch")
def test_what_takes_too_long_is_written_in_smaller_parts_from_then_on(worker_group: WorkerGroup) -> None:
    name = worker_group.topic(2)
    stored = worker_group.produce(name, 120) + worker_group.produce(name, 30, partition=1)
    handle, sizes = sleepy(worker_group, 20, 600)  # a stall of so much more than half of it is rare
    run = worker_group.worker(
        worker_group.pipeline(name, handle=handle, retry=TWICE, on_poison="dead_letter"), **fixed(name, 2)
    )
    worker_group.wait_until_caught_up(name, stored)
    mark = run.seen.mark()
    stored += worker_group.produce(name, 60)
    run.finish(name, 180)
    assert run.seen.all(events.DatabaseTrouble)
    assert not [e for e in run.seen.all(events.DatabaseTrouble) if e.wait], "no batch was given back"
    assert not run.seen.all(events.DatabaseTrouble, since=mark), "what was learned is kept"
    assert 5 < max(sizes) <= 30
    worker_group.record_table.assert_holds(name, stored)
    assert worker_group.dead_letters("cause") == []


def test_one_record_that_takes_too_long_alone_is_reported_with_the_remedy(
    worker_group: WorkerGroup, caplog: pytest.LogCaptureFixture
) -> None:
    """It may wait for a lock: it is tried again and again, before everything after it."""
    name, _ = worker_group.log(4)
    handle, _ = sleepy(worker_group, 60, 20)
    gate = Gate(events.DatabaseTrouble, lambda e: e.wait > 0)
    run = worker_group.worker(
        worker_group.pipeline(name, handle=handle, retry=TWICE, on_poison="dead_letter"),
        observe=[gate],
        **fixed(name),
    )
    gate.wait()
    assert ONE_TOO_LONG in str(run.health().trouble)
    assert ONE_TOO_LONG in logged_troubles(caplog)[-1]
    trouble = run.seen.wait_for(events.DatabaseTrouble, lambda e: e.wait > 0)
    assert isinstance(trouble.error, OperationalError)
    gate.open()
    run.seen.wait_for(events.DatabaseTrouble, lambda e: e.wait > 0, count=2)
    run.stop()
    assert worker_group.positions() == {Partition(name, 0): 0}
    assert worker_group.record_table.written(name) == []
    assert worker_group.dead_letters("cause") == []


def logged_troubles(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if vars(r).get("event") == events.DatabaseTrouble.__name__]


def statement_runs(worker_group: WorkerGroup, tx: Connection) -> None:
    tx.exec_driver_sql("SELECT pg_sleep(5)")


def statement_comes_later(worker_group: WorkerGroup, tx: Connection) -> None:
    session_ends(worker_group, tx)
    tx.exec_driver_sql("SELECT 1")


def session_ends(worker_group: WorkerGroup, tx: Connection) -> None:
    """The server ends the session while no statement runs."""
    (pid,) = tx.exec_driver_sql("SELECT pg_backend_pid()").one()
    worker_group.wait(lambda: not worker_group.sql(f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid}"))


def error_is_wrapped(worker_group: WorkerGroup, tx: Connection) -> None:
    try:
        statement_runs(worker_group, tx)
    except Exception as error:
        raise RuntimeError("the repository is away") from error


@pytest.mark.long
@pytest.mark.pins("batch")
@pytest.mark.repeats("end")
@pytest.mark.parametrize("end", [statement_runs, statement_comes_later, session_ends, error_is_wrapped])
def test_a_transaction_that_is_ended_by_its_age_says_so_however_it_is_noticed(
    worker_group: WorkerGroup, caplog: pytest.LogCaptureFixture, end: Callable[[WorkerGroup, Connection], None]
) -> None:
    """The server names the reason only to a statement that is running (from version 17 on)."""
    name, stored = worker_group.log(40)
    sizes: list[int] = []  # of the transaction that is ended, and of those after it

    def handle(tx: Connection, batch: Batch[str, Any]) -> None:
        worker_group.record_table.enter(tx, batch)
        if sizes or len(batch) > 1:
            sizes.append(len(batch))
        if len(sizes) == 1:
            end(worker_group, tx)

    limits, gate = Limits(transaction_age=1.5), Gate(events.DatabaseTrouble)
    run = worker_group.worker(
        worker_group.pipeline(name, handle=handle, retry=TWICE), observe=[gate], **fixed(name, limits=limits)
    )
    gate.wait()
    trouble = str(run.health().trouble)
    gate.open()
    run.finish(name, 40)
    half = sizes[0] // 2
    expected = f"s for {sizes[0]} records, and the limit is 1.5 s: the next one has at most {half} records"
    assert trouble.count("the transaction had taken") == 1
    assert expected in trouble
    assert expected in logged_troubles(caplog)[0]
    assert sizes[1] <= half, "the same records are not run again"
    worker_group.record_table.assert_holds(name, stored)
    assert worker_group.dead_letters("cause") == []


@pytest.mark.long
def test_a_single_attempt_that_is_ended_by_its_age_says_so_though_the_handler_wraps_the_error(
    worker_group: WorkerGroup, caplog: pytest.LogCaptureFixture
) -> None:
    name, tries = worker_group.topic(), list[int]()

    def handle(tx: Connection, batch: Batch[str, Any]) -> None:
        worker_group.record_table.enter(tx, batch)
        tries.append(len(batch))
        if len(tries) == 1:
            raise LookupError("not yet")
        if len(tries) == 2:
            error_is_wrapped(worker_group, tx)

    stored = worker_group.produce(name, 1)
    retry = Retry(attempts=9, wait_initial=0.05, jitter=0)
    pipeline = worker_group.pipeline(name, handle=handle, retry=retry)
    run = worker_group.worker(pipeline, **fixed(name, limits=Limits(transaction_age=1.5)))
    run.finish(name, 1)
    worker_group.record_table.assert_holds(name, stored)
    expected = "s for 1 record, and the limit is 1.5 s: raise Limits(transaction_age=...), or make the handler faster"
    assert any(expected in record.getMessage() for record in caplog.records), caplog.text


@pytest.mark.long
def test_a_slow_handler_with_a_backlog_commits(worker_group: WorkerGroup) -> None:
    """All of it in one transaction would be ended by its age each time."""
    name, stored = worker_group.log(400)
    sizes: list[int] = []

    def handle(tx: Connection, batch: Batch[str, Any]) -> None:
        sizes.append(len(batch))
        worker_group.record_table.enter(tx, batch)
        tx.exec_driver_sql(f"SELECT pg_sleep({0.01 * len(batch)})")

    limits = Limits(transaction_age=1.5, transaction_target=0.5)
    run = worker_group.worker(worker_group.pipeline(name, handle=handle), **fixed(name, limits=limits))
    run.finish(name, 400)
    worker_group.record_table.assert_holds(name, stored)
    assert max(sizes[-3:]) <= 100, sizes


def test_the_first_transaction_of_a_handler_is_small(worker_group: WorkerGroup) -> None:
    name, stored = worker_group.log(1200)
    sizes: list[int] = []

    def handle(tx: Connection, batch: Batch[str, Any]) -> None:
        sizes.append(len(batch))
        worker_group.record_table.enter(tx, batch)

    run = worker_group.worker(worker_group.pipeline(name, handle=handle), **fixed(name))
    run.finish(name, 1200)
    assert sizes[0] <= 500
    worker_group.record_table.assert_holds(name, stored)


@pytest.mark.pins("batch")
def test_a_streamed_copy_that_takes_too_long_is_written_in_parts(
    worker_group: WorkerGroup, new_engine: NewEngine
) -> None:
    """``statement_timeout`` counts all the time that a COPY is open: a trigger makes its rows slow here."""
    name = worker_group.topic()
    worker_group.sql(
        f'CREATE FUNCTION "{worker_group.schema}".slow() RETURNS trigger LANGUAGE plpgsql AS '
        "$$ BEGIN PERFORM pg_sleep(0.005); RETURN NEW; END $$",
        f'CREATE TRIGGER slow BEFORE INSERT ON "{worker_group.schema}".book FOR EACH ROW '
        f'EXECUTE FUNCTION "{worker_group.schema}".slow()',
    )
    engine = new_engine(worker_group.dsn, connect_args={"options": "-c statement_timeout=150"})
    stored = worker_group.produce(name, 100)
    run = worker_group.worker(name, engine=engine, **fixed(name))
    run.finish(name, 100)
    assert run.seen.all(events.DatabaseTrouble)
    worker_group.record_table.assert_holds(name, stored)


# -- tables that change ------------------------------------------------------------------------------------------


def test_a_stale_plan_of_a_changed_table_is_prepared_again(worker_group: WorkerGroup) -> None:
    """The driver prepares a statement that comes often; a column of another type makes the server refuse it once."""
    name = worker_group.topic()
    worker_group.sql(
        f'CREATE TABLE "{worker_group.schema}".rate (n int)', f'INSERT INTO "{worker_group.schema}".rate VALUES (7)'
    )
    seen: list[Any] = []

    def handle(tx: Connection, batch: Batch[str, Any]) -> None:
        seen.append(tx.exec_driver_sql(f'SELECT * FROM "{worker_group.schema}".rate').scalar_one())
        worker_group.record_table.enter(tx, batch)

    run = worker_group.worker(worker_group.pipeline(name, handle=handle), **fixed(name))
    stored = []
    for n in range(8):  # psycopg prepares a statement the fifth time
        stored += worker_group.produce(name, 1)
        run.reached(name, n + 1)
    worker_group.sql(f'ALTER TABLE "{worker_group.schema}".rate ALTER n TYPE text')
    stored += worker_group.produce(name, 1)
    run.finish(name, 9)
    (trouble,) = run.seen.all(events.DatabaseTrouble)
    assert "cached plan must not change result type" in str(trouble.error)
    assert (seen[0], seen[-1]) == (7, "7")
    worker_group.record_table.assert_holds(name, stored)


ALTERED: dict[str, tuple[str, Any, Any]] = {
    "a lone row": ("ALTER v TYPE jsonb USING to_jsonb(v)", [("1", "11")], [("0", "7"), ("1", '"11"'), ("2", "7")]),
    "a lone tombstone": ("ALTER id TYPE text", [("1", None)], [("0", "7"), ("2", "7")]),
    "two tombstones": ("ALTER id TYPE text", [("1", None), ("2", None)], [("0", "7")]),
    "another key": ("ALTER id TYPE uuid USING md5(id::text)::uuid", [("1", None)], None),
}


@pytest.mark.parametrize("kind", ALTERED)
def test_no_record_is_blamed_for_a_statement_of_before_an_alter(worker_group: WorkerGroup, kind: str) -> None:
    """An Upsert keeps its statements from one transaction to the next; records that come alone met the old one."""
    change, produced, expected = ALTERED[kind]
    table = f'"{worker_group.schema}".latest'
    worker_group.sql(f"CREATE TABLE {table} (id int PRIMARY KEY, v int)")
    name = worker_group.topic()
    sink: Any = Upsert(
        (worker_group.schema, "latest"),
        key=["id"],
        columns=["id", "v"],
        row=lambda r: (r.key, r.value),
        tombstone_key=lambda r: r.key,
    )
    value = Text(tombstones=True)
    pipeline = Pipeline(worker_group.group, topics=name, key=Text(), value=value, sinks=[sink], on_poison="dead_letter")
    run = worker_group.worker(pipeline, **fixed(name))
    for n in range(3):
        worker_group.produce(name, [(str(n), "7")])
        run.reached(name, n + 1)
    worker_group.produce(name, [("9", None)])  # the statement that deletes is known, too
    run.reached(name, 4)
    worker_group.sql(f"ALTER TABLE {table} {change}")
    if expected is None:  # no text of these is a uuid: now the record is to blame
        worker_group.produce(name, produced)
        run.finish(name, 5)
        assert worker_group.dead_letters("sqlstate") == [(0, 4, "22P02")]
        return
    worker_group.produce(name, produced)
    run.finish(name, 4 + len(produced))
    assert worker_group.dead_letters("sqlstate") == []
    with worker_group.engine.connect() as connection:
        rows = connection.execute(text(f"SELECT id::text, v::text FROM {table} ORDER BY id")).all()
    assert [tuple(row) for row in rows] == expected


def test_no_record_is_blamed_for_a_prepared_statement_of_before_an_alter(worker_group: WorkerGroup) -> None:
    """The driver prepares what a handler sends often, with the types that the columns had."""
    name = worker_group.topic()
    table = f'"{worker_group.schema}".amounts'
    worker_group.sql(f"CREATE TABLE {table} (n int)")

    def handle(tx: Connection, batch: Batch[str, Any]) -> None:
        for _ in batch:
            tx.exec_driver_sql(f"INSERT INTO {table} VALUES (%s) RETURNING n", ("7",)).scalar_one()
        worker_group.record_table.enter(tx, batch)

    run = worker_group.worker(worker_group.pipeline(name, handle=handle, on_poison="dead_letter"), **fixed(name))
    stored = []
    for n in range(8):
        stored += worker_group.produce(name, 1)
        run.reached(name, n + 1)
    worker_group.sql(f"ALTER TABLE {table} ALTER n TYPE jsonb USING to_jsonb(n)")
    stored += worker_group.produce(name, 1)
    run.finish(name, 9)
    assert worker_group.dead_letters("sqlstate") == []
    worker_group.record_table.assert_holds(name, stored)


# -- constraints that are fulfilled later ------------------------------------------------------------------------


def test_a_constraint_that_the_second_sink_fulfils_is_deferred_while_bisecting(
    sink_tables: SinkTables, group: str
) -> None:
    parent = sink_tables.append("id int PRIMARY KEY CHECK (id <> 13)", name="parent", columns=["id"],
                           row=lambda r: None if r.value == 99 else (r.value,))  # fmt: skip
    child = sink_tables.append(
        f'id int REFERENCES "{sink_tables.schema}".parent DEFERRABLE INITIALLY DEFERRED',
        name="child", columns=["id"], row=lambda r: (r.value,),
    )  # fmt: skip
    pipeline = Pipeline(group, topics=TOPIC, value=Json(int), sinks=[child, parent], on_poison="dead_letter")
    done = sink_tables.process(pipeline, *orders(b"1", b"13", b"2", b"99", b"3"), *orders(b"4", b"13", partition=1))
    assert sink_tables.rows("id", name="child") == sink_tables.rows("id", name="parent") == [(1,), (2,), (3,), (4,)]
    assert [(e.partition.number, e.offset, e.failure.sqlstate) for e in done.dead_letters] == [
        (0, 1, "23514"),
        (0, 3, "23503"),
        (1, 1, "23514"),
    ]
    assert sink_tables.positions(pipeline) == {Partition(TOPIC, 0): 5, Partition(TOPIC, 1): 2}


# -- too many of them --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "is_bad", "message"),
    [
        (DeadLetterLimits(consecutive=9, ratio=None), lambda v: int(v) >= 40, "more than 9 records in a row failed"),
        (DeadLetterLimits(consecutive=None, ratio=0.2, window=50), lambda v: int(v) % 2 == 0, "the limit is 20%"),
    ],
    ids=["consecutive", "ratio"],
)
@pytest.mark.parametrize("on_poison", ["dead_letter", "skip"])
def test_too_many_dead_letters_end_the_worker_with_nothing_of_the_batch_written(
    worker_group: WorkerGroup, limits: DeadLetterLimits, is_bad: Callable[[str], bool], message: str, on_poison: str
) -> None:
    name, _ = worker_group.log(60)
    options: dict[str, Any] = {"on_poison": on_poison, "dead_letter_limits": limits}
    pipeline = worker_group.pipeline(
        name, handle=worker_group.record_table.refusing(lambda r: is_bad(r.value)), **options
    )
    run = worker_group.worker(pipeline, **fixed(name, limits=Limits(batch_records=60)))
    run.seen.wait_for(events.WorkerStopped)
    with pytest.raises(TooManyDeadLetters, match=message) as caught:
        run.stop()
    assert "Fix the handler" in str(caught.value)
    assert not run.health().live
    ends = [span.end for e in run.seen.all(events.Committed) for span in e.spans]
    position = ends[-1] if ends else 0
    assert worker_group.positions() == {Partition(name, 0): position}, "a committed batch, or none"
    assert worker_group.record_table.written(name) == [(0, n) for n in range(position) if not is_bad(str(n))]
    assert [offset for _, offset, _ in worker_group.dead_letters("cause")] == [
        n for n in range(position) if is_bad(str(n))
    ]

    restarted = worker_group.worker(
        worker_group.pipeline(name, handle=worker_group.record_table.enter, **options), **fixed(name)
    )
    restarted.finish(name, 60)
    assert len(worker_group.record_table.written(name)) + len(worker_group.dead_letters("cause")) == 60, "none is lost"


# -- together with the offset ------------------------------------------------------------------------------------


def test_i1_a_dead_letter_becomes_visible_with_the_offset_that_passes_it(worker_group: WorkerGroup) -> None:
    """I1: one transaction."""
    name, gate = worker_group.topic(), Gate(events.Advanced)
    worker_group.produce(name, ["0", "bad", "2"])
    pipeline = worker_group.pipeline(
        name, handle=worker_group.record_table.refusing(lambda r: r.value == "bad"), on_poison="dead_letter"
    )
    run = worker_group.worker(pipeline, observe=[gate], **fixed(name))
    gate.wait()
    assert (worker_group.dead_letters("cause"), worker_group.record_table.written(name), worker_group.positions()) == (
        [],
        [],
        {Partition(name, 0): 0},
    )
    gate.open()
    run.finish(name, 3)
    assert worker_group.dead_letters("cause") == [(0, 1, "poison")]
    worker_group.record_table.assert_holds(name, [(0, 0), (0, 2)])
    assert worker_group.positions() == {Partition(name, 0): 3}


@pytest.mark.pins("batch")
def test_i4_dead_letters_of_a_refused_partition_are_dropped_with_it(worker_group: WorkerGroup) -> None:
    """I4: it is reset between the attempt that failed and the one that bisects; the other's dead letter is kept."""
    name, gate = worker_group.topic(2), Gate(events.Bisecting)
    stored = worker_group.produce(name, [*"01", "bad", *"34567"]) + worker_group.produce(
        name, ["0", "bad", "2"], partition=1
    )
    pipeline = worker_group.pipeline(
        name, handle=worker_group.record_table.refusing(lambda r: r.value == "bad"), on_poison="dead_letter"
    )
    both = Limits(batch_age=60)
    run = worker_group.worker(pipeline, observe=[gate], **fixed(name, 2, limits=both))
    gate.wait()
    worker_group.ledger.reset_offset(name, 0, 5, lost="poison", log=None, reason="the first five are not wanted")
    gate.open()
    worker_group.finish(run, name, stored)
    assert run.seen.all(events.Refused)
    assert worker_group.dead_letters("cause") == [(1, 1, "poison")]
    worker_group.record_table.assert_holds(name, [(0, 5), (0, 6), (0, 7), (1, 0), (1, 2)])


def test_what_is_left_of_a_batch_is_not_blamed_for_what_was_refused(worker_group: WorkerGroup) -> None:
    """The partition whose record failed is moved before the search begins: the other's only record is innocent."""
    name, gate = worker_group.topic(2), Gate(events.Bisecting)
    worker_group.produce(name, ["bad"])
    worker_group.produce(name, ["good"], partition=1)

    def handle(tx: Connection, batch: Batch[str, Any]) -> None:
        if any(r.value == "bad" for r in batch):
            raise LookupError("what")
        worker_group.record_table.enter(tx, batch)

    pipeline = worker_group.pipeline(name, handle=handle, on_poison="dead_letter", retry=Retry(attempts=1))
    run = worker_group.worker(pipeline, observe=[gate], **fixed(name, 2, limits=Limits(batch_age=60)))
    gate.wait()
    worker_group.ledger.reset_offset(name, 0, 1, lost="poison", log=None, reason="not needed")
    gate.open()
    run.finish(name, 1, 1)
    assert run.seen.all(events.Refused)
    assert not worker_group.dead_letters("cause")
    worker_group.record_table.assert_holds(name, [(1, 0)])


def test_an_attempt_that_was_not_committed_counts_for_no_limit(worker_group: WorkerGroup) -> None:
    name, owner = worker_group.topic(), [""]

    def cut(event: events.Event) -> None:
        if isinstance(event, events.Started):
            owner[0] = event.owner
        if isinstance(event, events.Advanced) and owner[0]:
            query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE starts_with(application_name, :name)"
            with worker_group.engine.begin() as tx:
                assert tx.execute(text(query), {"name": f"seekpoint {owner[0][:8]}"}).all()
            owner[0] = ""

    worker_group.produce(name, 3)
    pipeline = worker_group.pipeline(
        name,
        handle=worker_group.record_table.refusing(lambda r: True),
        on_poison="dead_letter",
        dead_letter_limits=DeadLetterLimits(consecutive=5, ratio=None),
    )
    run = worker_group.worker(pipeline, observe=[cut], **fixed(name))
    run.finish(name, 3)
    assert run.seen.all(events.CommitUnknown)
    assert [offset for _, offset, _ in worker_group.dead_letters("cause")] == [0, 1, 2]
