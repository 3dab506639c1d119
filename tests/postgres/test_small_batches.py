"""Few records of one Append, in two round trips: what they send, what they refuse, and when they go step by step."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb
from sqlalchemy import Connection, Engine, create_engine, event

from seekpoint import Append, Json, Ledger, Partition, Pipeline, Upsert, events
from seekpoint.errors import ConfigError, Fenced, HandlerMisuse
from seekpoint.ledger.advance import hold_and_advance
from seekpoint.pipeline.policy import DeadLetterLimits
from seekpoint.postgres.round_trip import Statement, begin_and_run, numbered
from seekpoint.postgres.session import CommitRefused, Session
from seekpoint.records import RawRecord
from seekpoint.sinks.insert import ROWS
from seekpoint.sinks.small_append import MOST_RECORDS_IN_ONE_INSERT
from seekpoint.testing import kit
from seekpoint.worker.assignment.chunk import Read
from support.committer_desk import Desk
from support.ledger_desk import backend, wait_until_blocked
from support.round_trips import trips
from support.sink_tables import TOPIC, VALUES, Ground
from support.waiting import until

SMALL = [events.BatchOpened, events.Held, events.Applied, events.Advanced, events.Committed]


@pytest.fixture
def ground(seekpoint_engine: Engine, seekpoint_schema: str) -> Ground:
    return Ground(seekpoint_engine, seekpoint_schema)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[Statement]]:
    """The statements that left with the ledger's own, for each time."""
    found: list[Sequence[Statement]] = []
    real = begin_and_run

    def note(driver: Any, statements: Sequence[Statement]) -> list[Any]:
        found.append([each for each in statements if ".partition_offset" not in each.text])
        return real(driver, statements)

    monkeypatch.setattr("seekpoint.postgres.connection.begin_and_run", note)
    return found


@pytest.fixture
def desk(ground: Ground, group: str) -> Iterator[Callable[..., Desk]]:
    """``desk(pipeline, first=...)``: a committer whose connection has applied this batch before."""
    with ExitStack() as stack:

        def make(pipeline: Pipeline, *, first: Any = None, partitions: int = 1, engine: Engine | None = None) -> Desk:
            made = Desk(engine or ground.engine, ground.schema, pipeline, partitions)
            stack.callback(made.committer.close)
            if first is not None:
                made.apply(first)
            return made

        yield make


def appends(ground: Ground, group: str, body: str = "id int CHECK (id > 0), note text", **options: Any) -> Pipeline:
    sink = ground.append(body, columns=["id", "note"])
    return Pipeline(group, topics=TOPIC, value=Json(), sinks=[sink], **options)


def order(n: int, note: Any = None) -> dict[str, Any]:
    return {"id": n, "note": note}


# -- what is sent ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, MOST_RECORDS_IN_ONE_INSERT])
def test_two_round_trips_and_every_event(ground: Ground, group: str, desk: Any, count: int) -> None:
    """BEGIN, hold and advance, rows; then COMMIT. Events come in the order of any transaction."""
    work = desk(appends(ground, group), first=order(1))
    with trips(work.driver) as counted:
        assert work.apply(*(order(2 + n) for n in range(count))) == SMALL
    assert counted.count == 2
    work.seen.clear()
    work.apply(order(200, "x"))
    assert work.seen[1:3] == [events.Held(partitions=1), events.Applied(records=1)]
    assert ground.rows("id")[:2] == [(1,), (2,)]
    assert len(ground.rows("id")) == count + 2
    row = work.ledger.read()[0]
    assert (row.next_offset, row.leader_epoch) == (count + 2, 3)


def test_its_settings_end_with_it(ground: Ground, group: str, desk: Any) -> None:
    """The name by which the next owner finds a stalled transaction, its age, durability and isolation."""
    engine = create_engine(ground.engine.url, connect_args={"options": "-cdefault_transaction_isolation=serializable"})
    work = desk(appends(ground, group, synchronous_commit=False), first=order(1), engine=engine)
    found = list[tuple[Any, ...]]()
    names = ["application_name", "idle_in_transaction_session_timeout", "synchronous_commit", "transaction_isolation"]
    if (engine.dialect.server_version_info or (0,)) >= (17,):
        names.append("transaction_timeout")
    query = "SELECT " + ", ".join(f"current_setting('{name}')" for name in names)

    def ask() -> None:
        found.append(work.driver.execute(query).fetchone())

    work.before_commit = ask
    assert work.apply(order(2)) == SMALL
    ask()
    work.driver.rollback()
    work.committer.close()
    engine.dispose()
    (name, age, *others), after = found
    assert name.startswith("seekpoint ")
    assert age != "0"
    assert others == ["off", "read committed", *[age] * (len(names) - 4)]
    assert after == ("", "0", "on", "read committed", *["0"] * (len(names) - 4))


@pytest.mark.parametrize("kind", [*range(len(VALUES))], ids=[f"{kind}-{value!r}"[:40] for kind, value, _ in VALUES])
def test_values_are_stored_as_by_copy(ground: Ground, group: str, desk: Any, sent: list[Any], kind: int) -> None:
    """The column's own input function reads each value, alone and among others."""
    declared, value, _ = VALUES[kind]
    ground.sql("CREATE TYPE mood AS ENUM ('good', 'so-so'); CREATE DOMAIN short AS varchar(3)")
    declared = f'"{ground.schema}".{declared}' if declared in {"mood", "short"} else declared
    sink = ground.append(f"n int, v {declared}", columns=["n", "v"], row=lambda r: (r.offset, value))
    work = desk(Pipeline(group, topics=TOPIC, value=Json(), sinks=[sink]), first=1)
    work.apply(1)
    work.apply(1, 1, 1)
    assert [len(one) for one in sent] == [2, 2]
    with ground.engine.connect() as tx:
        query = f'SELECT count(DISTINCT v::text), count(v), count(*) FROM "{ground.schema}".t'
        assert tuple(tx.exec_driver_sql(query).one()) == ((0, 0, 5) if value is None else (1, 5, 5))


# -- what goes step by step --------------------------------------------------------------------------------------


def handled(ground: Ground, group: str) -> Pipeline:
    def handle(tx: Connection, _batch: Any) -> None:
        tx.exec_driver_sql("SELECT 1")

    return appends(ground, group, handle=handle)


def upserts(ground: Ground, group: str) -> Pipeline:
    path = ground.create("id int PRIMARY KEY, note text")
    return Pipeline(group, topics=TOPIC, value=Json(), sinks=[Upsert(path, key=["id"], columns=["id", "note"])])


def twice(ground: Ground, group: str) -> Pipeline:
    sinks = [ground.append("id int, note text", name=name, columns=["id", "note"]) for name in ("t", "u")]
    return Pipeline(group, topics=TOPIC, value=Json(), sinks=sinks)


def subclass(ground: Ground, group: str) -> Pipeline:
    class Own(Append[Any, Any]):
        pass

    sink = Own(ground.create("id int, note text"), columns=["id", "note"])
    return Pipeline(group, topics=TOPIC, value=Json(), sinks=[sink])


def hours(ground: Ground, group: str) -> Pipeline:
    """A cast reads an interval of hours as seconds."""
    sink = ground.append("id interval hour, note text", columns=["id", "note"], row=lambda r: ("10", "x"))
    return Pipeline(group, topics=TOPIC, value=Json(), sinks=[sink])


def ruled(ground: Ground, group: str) -> Pipeline:
    """A rule rewrites INSERT and not COPY."""
    pipeline = appends(ground, group)
    ground.sql("CREATE RULE r AS ON INSERT TO t DO INSTEAD NOTHING")
    return pipeline


@pytest.mark.parametrize("make", [handled, upserts, twice, subclass, hours, ruled], ids=lambda make: make.__name__)
def test_of_other_pipelines_advance_is_the_last_statement(
    ground: Ground, group: str, desk: Any, sent: list[Any], make: Any
) -> None:
    work = desk(make(ground, group), first=order(1))
    assert work.apply(order(2))[:5] == SMALL
    assert sent == []
    assert work.ledger.read()[0].next_offset == 2


def test_round_trips_of_a_handlers_batch(ground: Ground, group: str, desk: Any) -> None:
    """BEGIN with hold; its one statement; advance; COMMIT with the question about its session."""

    def handle(tx: Connection, batch: Any) -> None:
        tx.exec_driver_sql(f'INSERT INTO "{ground.schema}".t VALUES (%s)', (batch.spans[0].start,))

    ground.create("id int")
    work = desk(Pipeline(group, topics=TOPIC, value=Json(), handle=handle), first=order(1))
    with trips(work.driver) as counted:
        work.apply(order(2))
    assert counted.count == 4
    assert ground.rows("id") == [(0,), (1,)]


def test_records_without_rows_take_two_round_trips_too(ground: Ground, group: str, desk: Any, sent: list[Any]) -> None:
    sink = ground.append("id int, note text", columns=["id", "note"], row=lambda r: None if r.offset else (1, "x"))
    work = desk(Pipeline(group, topics=TOPIC, value=Json(), sinks=[sink]), first=order(1))
    with trips(work.driver) as counted:
        assert work.apply(order(2), order(3)) == SMALL
    assert counted.count == 2
    assert sent == [[]]
    assert ground.rows("id") == [(1,)]
    assert work.ledger.read()[0].next_offset == 3


def test_in_key_order_rows_leave_with_the_advance(ground: Ground, group: str, desk: Any, sent: list[Any]) -> None:
    """After hold, which finds the keys that dead letters block: I2, I3, the position is compared again."""
    pipeline = appends(ground, group, "id int CHECK (id > 0), note text", keep_key_order=True, on_poison="dead_letter")
    work = desk(pipeline, first=order(1))
    assert work.apply(order(2), order(3)) == SMALL
    assert [len(statements) for statements in sent] == [2]
    assert work.apply(order(4), order(-5), order(6))[-1] is events.DeadLettered
    assert ground.rows("id") == [(1,), (2,), (3,), (4,), (6,)]
    assert work.ledger.read()[0].next_offset == 6


def test_many_rows_of_few_records_go_by_copy(ground: Ground, group: str, desk: Any, sent: list[Any]) -> None:
    sink = ground.append("id int, note text", columns=["id", "note"], rows=lambda r: [(n, "x") for n in range(ROWS)])
    work = desk(Pipeline(group, topics=TOPIC, value=Json(), sinks=[sink]), first=order(1))
    work.apply(order(2))
    work.apply(order(3), order(4))
    assert [len(one) for one in sent] == [2]
    assert len(ground.rows("id")) == 4 * ROWS


def test_large_rows_go_by_copy(
    ground: Ground, group: str, desk: Any, sent: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few the records: COPY streams what one statement would hold at once, here and at the server."""
    monkeypatch.setattr("seekpoint.sinks.small_append.MOST_BYTES", 1000)
    work = desk(appends(ground, group), first=order(1))
    assert work.apply(order(2, "x" * 990)) == SMALL
    assert work.apply(order(3, "x" * 500), order(4, "é" * 500)) == SMALL
    assert len(sent) == 1
    assert ground.rows("id") == [(1,), (2,), (3,), (4,)]


@pytest.mark.parametrize(("declared", "value"), [("interval hour", "10"), ("interval hour[]", "{10}")])
def test_a_value_that_a_cast_reads_otherwise_goes_by_copy(  # noqa: PLR0917 -- fixtures
    ground: Ground, group: str, desk: Any, sent: list[Any], declared: str, value: str
) -> None:
    work = desk(appends(ground, group, f"id int, note {declared}"), first=order(1, value))
    assert work.apply(order(2, value)) == SMALL
    assert sent == []
    assert ground.value(f"array_agg(DISTINCT note::text) = ARRAY['{value.replace('10', '10:00:00')}']")


def test_columns_are_compared_in_any_order(ground: Ground, group: str, desk: Any, sent: list[Any]) -> None:
    """The server lists them by name."""
    sink = ground.append(
        "zeta int, alpha text, beta bool", columns=["zeta", "alpha", "beta"], row=lambda r: (1, "x", True)
    )
    work = desk(Pipeline(group, topics=TOPIC, value=Json(), sinks=[sink]), first=1)
    assert work.apply(2) == SMALL
    assert len(sent) == 1


class OwnCursor(psycopg.Cursor[Any]):
    """As an application sets it to see every statement on a table of its own."""


def test_cursors_of_another_class_see_the_rows(ground: Ground, group: str, desk: Any, sent: list[Any]) -> None:
    engine = create_engine(ground.engine.url, connect_args={"cursor_factory": OwnCursor})
    work = desk(appends(ground, group), first=order(1), engine=engine)
    assert work.apply(order(2)) == SMALL
    work.committer.close()
    engine.dispose()
    assert sent == []
    assert ground.rows("id") == [(1,), (2,)]


def test_through_a_pooler_nothing_is_prepared(ground: Ground, group: str, desk: Any, sent: list[Any]) -> None:
    """Each transaction may be another session's, which has no statement of this one."""
    work = desk(appends(ground, group), first=order(1))
    prepared = "SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'seekpoint%'"
    before = work.driver.execute(prepared).fetchone()
    work.driver.rollback()
    work.driver.prepare_threshold = None
    for n in range(2, 9):
        assert work.apply(order(n)) == SMALL
    assert len(sent) == 7
    assert work.driver.execute(prepared).fetchone() == before
    work.driver.rollback()


def test_other_batches_go_step_by_step(ground: Ground, group: str, desk: Any, sent: list[Any]) -> None:
    """The first of a connection, which learns the table; a large one; one with a record that is passed by."""
    pipeline = appends(ground, group, on_poison="dead_letter")
    work = desk(pipeline, engine=create_engine(ground.engine.url))
    work.apply(order(1))
    work.apply(*(order(n) for n in range(1, MOST_RECORDS_IN_ONE_INSERT + 2)))
    kinds = work.apply(order(2), b"{", order(3))
    assert sent == []
    assert kinds == [*SMALL, events.DeadLettered]
    assert len(ground.rows("id")) == MOST_RECORDS_IN_ONE_INSERT + 4
    work.apply(order(4))
    assert len(sent) == 1


def test_a_commit_by_the_handler_beside_a_sink_moves_no_offset(ground: Ground, group: str, desk: Any) -> None:
    """I1: what a handler commits by itself must not take the offset with it."""

    def handle(tx: Connection, batch: Any) -> None:
        if batch.spans[0].start:
            tx.exec_driver_sql("COMMIT")

    work = desk(appends(ground, group, handle=handle), first=order(1))
    with pytest.raises(HandlerMisuse, match="half done"):
        work.apply(order(2))
    assert work.ledger.read()[0].next_offset == 1


# -- what is refused, and what fails -----------------------------------------------------------------------------


def another_claim(work: Desk) -> None:
    ids = {TOPIC: kit.topic_id(TOPIC)}
    rival = Ledger(work.ledger.engine, work.ledger.group, schema=work.ledger.schema)
    rival.claim([Partition(TOPIC, 0)], ids, cluster_id=kit.CLUSTER, start=lambda _: {})


def another_position(work: Desk) -> None:
    """The row has the token, and a position after what was read: a dropped chunk."""
    with work.ledger.engine.begin() as tx:
        tx.exec_driver_sql(f'UPDATE "{work.ledger.schema}".partition_offset SET next_offset = 0')


def a_pause(work: Desk) -> None:
    work.ledger.pause(reason="a pause", actor="ann")


@pytest.mark.parametrize("happens", [another_claim, another_position, a_pause], ids=lambda how: how.__name__)
def test_a_refusal_writes_nothing(ground: Ground, group: str, desk: Any, sent: list[Any], happens: Any) -> None:
    """I2, I3, I5: refused inside SQL, and the rows that had left already with it."""
    work = desk(appends(ground, group), first=order(1))
    records = work.batch(order(2))
    happens(work)
    assert work.commit(records) == [events.BatchOpened, events.Refused]
    assert len(sent) == 1
    assert ground.rows("id") == [(1,)]
    refused = next(e for e in work.seen if isinstance(e, events.Refused))
    assert "claim or position is not the expected one; rows held: 0" in refused.reason


def test_one_refused_partition_leaves_the_others(ground: Ground, group: str, desk: Any, sent: list[Any]) -> None:
    """I2: nothing of the first attempt remains; the second holds again without the refused one."""
    work = desk(appends(ground, group), first=order(1), partitions=2)
    records = [*work.batch(order(2)), *work.batch(order(3), partition=1)]
    another_claim(work)
    assert work.commit(records) == [events.BatchOpened, events.Refused, *SMALL]
    assert len(sent) == 1
    assert ground.rows("id") == [(1,), (3,)]
    assert {p.partition.number: p.next_offset for p in work.ledger.read()} == {0: 1, 1: 1}


def test_rows_are_locked_in_order(ground: Ground, group: str, desk: Any, elsewhere: ThreadPoolExecutor) -> None:
    """As every other transaction locks them: no two wait for each other."""
    work = desk(appends(ground, group), first=order(1), partitions=3)
    records = [r for n in (2, 1, 0) for r in work.batch(order(5), partition=n)]
    table = f'SELECT partition FROM "{ground.schema}".partition_offset'
    with ground.engine.connect() as holder:
        holder.exec_driver_sql(f"{table} WHERE partition = 1 FOR UPDATE")
        done = elsewhere.submit(work.commit, records)

        def free() -> list[int]:
            with ground.engine.connect() as other:
                return [row[0] for row in other.exec_driver_sql(f"{table} ORDER BY 1 FOR UPDATE SKIP LOCKED")]

        until(lambda: free() == [2], "the first to be locked, and the last not to be")
        holder.rollback()
        assert done.result() == SMALL
    assert {p.next_offset for p in work.ledger.read()} == {1, 2}


@pytest.mark.parametrize("count", [1, 3, MOST_RECORDS_IN_ONE_INSERT])
def test_a_record_that_the_table_refuses_is_found(ground: Ground, group: str, desk: Any, count: int) -> None:
    """I4: the server does not say which; the same records go by parts."""
    work = desk(appends(ground, group, on_poison="dead_letter"), first=order(1))
    values = [order(n + 2) for n in range(count)]
    values[count // 2] = order(-1)
    kinds = work.apply(*values)
    assert kinds[:2] == [events.BatchOpened, events.Bisecting]
    assert kinds[2:] == [*SMALL, events.DeadLettered]
    aside = next(e for e in work.seen if isinstance(e, events.DeadLettered))
    assert (aside.offset, aside.failure.sqlstate) == (1 + count // 2, "23514")
    assert len(ground.rows("id")) == count
    assert work.apply(order(900)) == SMALL


@pytest.mark.parametrize("note", ["a\0b", "\ud800", {"no": "dumper"}], ids=["NUL", "surrogate", "dict"])
def test_a_value_that_cannot_be_written_is_found(
    ground: Ground, group: str, desk: Any, sent: list[Any], note: Any
) -> None:
    """It never reaches the server: what libpq would cut off at a NUL is not stored in part."""
    work = desk(appends(ground, group, "id int, note int[]", on_poison="dead_letter"), first=order(1))
    sent.clear()
    kinds = work.apply(order(2), order(3, note))
    assert kinds[-1] is events.DeadLettered
    assert ground.rows("id", "note") == [(1, None), (2, None)]


def test_a_nul_in_json_that_was_dumped_before_is_found(ground: Ground, group: str, desk: Any, sent: list[Any]) -> None:
    """Cut off there, the rest would be JSON too."""
    sink = ground.append(
        "id int, note jsonb",
        columns=["id", "note"],
        row=lambda r: (r.offset, Jsonb("5\0" if r.offset == 2 else "5", dumps=str)),
    )
    work = desk(Pipeline(group, topics=TOPIC, value=Json(), sinks=[sink], on_poison="dead_letter"), first=1)
    assert work.apply(1, 2, 3)[-1] is events.DeadLettered
    assert sent == []
    assert ground.rows("id") == [(0,), (1,), (3,)]


def test_a_refusal_in_a_values_text_is_no_refusal(ground: Ground, group: str, desk: Any) -> None:
    """I2: an error that says what the fence says is a bad value's."""
    work = desk(appends(ground, group, "id int, note int", on_poison="dead_letter"), first=order(1))
    kinds = work.apply(order(2), order(3, "seekpoint: claim or position is not the expected one; rows advanced: 0"))
    assert events.Refused not in kinds
    assert kinds[-1] is events.DeadLettered


def test_a_deferred_constraint_refuses_commit(ground: Ground, group: str, desk: Any) -> None:
    body = "id int UNIQUE DEFERRABLE INITIALLY DEFERRED, note text"
    work = desk(appends(ground, group, body, on_poison="dead_letter"), first=order(1))
    kinds = work.apply(order(2), order(1), order(3))
    assert kinds[:6] == [*SMALL[:4], events.Bisecting, events.BatchOpened]
    assert kinds[-1] is events.DeadLettered
    assert ground.rows("id") == [(1,), (2,), (3,)]


ALTERED = {
    "real to float8": ("real", "ALTER TABLE t ALTER note TYPE float8", 0.1, "note = 0.1::float8"),
    "text to jsonb": ("text", "ALTER TABLE t ALTER note TYPE jsonb USING to_jsonb(note)", "5", "note = '\"5\"'::jsonb"),
    "int to text": ("int", "ALTER TABLE t ALTER note TYPE text", 7, "note = '7'"),
    "wider": ("numeric(6,1)", "ALTER TABLE t ALTER note TYPE numeric(6,3)", 1.5, "note::text = '1.500'"),
    "another column": ("text", "ALTER TABLE t ADD more int DEFAULT 4", "x", "note = 'x' AND more = 4"),
    # The type's oid stays; a value is read otherwise.
    "interval": ("interval", "ALTER TABLE t ALTER note TYPE interval hour", "10", "note = '10 hours'"),
    "array of json": (
        "jsonb[]",
        "ALTER TABLE t ALTER note TYPE jsonb[][]",
        [[1, 2], [3, 4]],
        "note = '{{1,2},{3,4}}'::jsonb[]",
    ),
}


@pytest.mark.parametrize("how", ALTERED)
def test_a_table_altered_between_two_batches(ground: Ground, group: str, desk: Any, sent: list[Any], how: str) -> None:
    """Each value is read by the type that its column has now."""
    kind, alter, value, stored = ALTERED[how]
    work = desk(appends(ground, group, f"id int, note {kind}"), first=order(1))
    for n in range(2, 9):
        work.apply(order(n, value))
    assert len(sent) == 7
    ground.sql(alter)
    work.apply(order(9, value))
    work.apply(order(10, value))
    assert ground.value(f"count(*) FILTER (WHERE id IN (9, 10) AND {stored})") == 2
    assert len(ground.rows("id")) == 10


def test_a_view_that_took_the_tables_name_takes_no_row(ground: Ground, group: str, desk: Any) -> None:
    """COPY is refused there, and an INSERT would go where the view leads."""
    work = desk(appends(ground, group), first=order(1))
    work.apply(order(2))
    ground.sql("ALTER TABLE t RENAME TO base; CREATE VIEW t AS SELECT * FROM base")
    work.apply(order(3))
    assert ground.rows("id", name="base") == [(1,), (2,)]
    assert work.ledger.read()[0].next_offset == 2


def test_a_rule_that_was_made_since_takes_no_row(ground: Ground, group: str, desk: Any) -> None:
    """A rule rewrites INSERT and not COPY; the session had looked at the table before there was one."""
    work = desk(appends(ground, group), first=order(1))
    work.apply(order(2))
    ground.sql("CREATE RULE r AS ON INSERT TO t DO INSTEAD NOTHING")
    work.apply(order(3))
    assert ground.rows("id") == [(1,), (2,), (3,)]
    assert work.ledger.read()[0].next_offset == 3


VIEW = """
ALTER TABLE t RENAME TO base; CREATE VIEW t AS TABLE base;
CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql
AS 'BEGIN INSERT INTO base VALUES (NEW.id, NEW.note); RETURN NEW; END';
ALTER FUNCTION keep SET search_path FROM CURRENT;
CREATE TRIGGER k INSTEAD OF INSERT ON t FOR EACH ROW EXECUTE FUNCTION keep()
"""
NOT_PLAIN = {
    "rule": ("CREATE RULE r AS ON INSERT TO t DO ALSO NOTHING", "DROP RULE r ON t"),
    "view": (VIEW, "DROP VIEW t; ALTER TABLE base RENAME TO t"),
}


@pytest.mark.parametrize("why", NOT_PLAIN)
def test_a_table_that_is_plain_again_takes_small_batches(
    ground: Ground, group: str, desk: Any, sent: list[Any], why: str
) -> None:
    """A session that noticed the change notices its end with the next batch that it writes by COPY."""
    pipeline = appends(ground, group)
    begins, ends = NOT_PLAIN[why]
    ground.sql(begins)
    work = desk(pipeline, first=order(1))
    session = work.driver
    work.apply(order(2))
    assert sent == []
    ground.sql(ends)
    work.apply(order(3))
    with trips(work.driver) as counted:
        work.apply(order(4))
    assert counted.count == 2
    assert work.driver is session
    assert ground.rows("id") == [(1,), (2,), (3,), (4,)]


def test_a_batch_that_has_failed_goes_step_by_step(ground: Ground, group: str, desk: Any, sent: list[Any]) -> None:
    """Its hold shows what happened. Of the pool, it gets a connection that knows the table, too."""
    pipeline = appends(ground, group, on_poison="dead_letter")
    work = desk(pipeline, first=order(1))
    other = desk(Pipeline(f"{group}-other", topics=TOPIC, value=Json(), sinks=pipeline.sinks), first=order(2))
    known = other.driver
    other.committer.close()
    kinds = work.apply(order(3), order(-1))
    assert kinds[:2] == [events.BatchOpened, events.Bisecting]
    assert len(sent) == 1
    assert work.driver is known
    assert ground.rows("id") == [(1,), (2,), (3,)]


@pytest.mark.parametrize("waits_at", ["hold", "rows"])
def test_a_statement_that_is_cancelled(
    ground: Ground, group: str, desk: Any, elsewhere: ThreadPoolExecutor, waits_at: str
) -> None:
    """Nothing of it was written: the batch is applied in another attempt."""
    work = desk(appends(ground, group, "id int UNIQUE, note text"), first=order(1))
    records = work.batch(order(2), order(3))
    blocking = {
        "hold": f'SELECT 1 FROM "{ground.schema}".partition_offset FOR UPDATE',
        "rows": f'INSERT INTO "{ground.schema}".t VALUES (3)',
    }
    with ground.engine.connect() as other:
        other.exec_driver_sql(blocking[waits_at])
        done = elsewhere.submit(work.commit, records)
        waiting = wait_until_blocked(ground.engine, backend(other))
        with ground.engine.connect() as cancelling:
            cancelling.exec_driver_sql(f"SELECT pg_cancel_backend({waiting})")
        until(lambda: any(isinstance(e, events.DatabaseTrouble) for e in work.seen), "another attempt")
        other.rollback()
        assert done.result()[-len(SMALL) + 1 :] == SMALL[1:]
    assert ground.rows("id") == [(1,), (2,), (3,)]
    assert work.ledger.read()[0].next_offset == 3


def test_a_table_dropped_between_two_batches(ground: Ground, group: str, desk: Any) -> None:
    work = desk(appends(ground, group), first=order(1))
    work.apply(order(2))
    ground.sql("ALTER TABLE t RENAME TO gone")
    with pytest.raises(psycopg.errors.UndefinedTable):
        work.apply(order(3), order(4))
    assert work.ledger.read()[0].next_offset == 2
    ground.sql("ALTER TABLE gone RENAME TO t")
    work.apply(order(3), order(4))
    assert ground.rows("id") == [(1,), (2,), (3,), (4,)]


# -- the session -------------------------------------------------------------------------------------------------


def test_statements_that_the_server_has_forgotten_are_prepared_again(ground: Ground, group: str, desk: Any) -> None:
    """psycopg sends DEALLOCATE ALL after a ROLLBACK TO; it is no attempt, and no other connection is taken."""
    work = desk(appends(ground, group), first=order(1))
    work.apply(order(2))
    pid = work.driver.info.backend_pid
    work.driver.execute("DEALLOCATE ALL")
    work.driver.commit()
    assert work.apply(order(3)) == SMALL
    assert work.apply(order(4)) == SMALL
    assert work.driver.info.backend_pid == pid
    assert ground.rows("id") == [(1,), (2,), (3,), (4,)]


def test_what_the_host_sets_at_begin_is_kept(ground: Ground, group: str, desk: Any, sent: list[Any]) -> None:
    """Its listener has begun the transaction already."""
    engine = create_engine(ground.engine.url)
    event.listen(engine, "begin", lambda tx: tx.exec_driver_sql("SET LOCAL my.tenant = 'a'"))
    sink = ground.append("id int, note text, tenant text DEFAULT current_setting('my.tenant')", columns=["id", "note"])
    work = desk(Pipeline(group, topics=TOPIC, value=Json(), sinks=[sink]), first=order(1), engine=engine)
    assert work.apply(order(2)) == SMALL
    work.driver.execute("DEALLOCATE ALL")
    work.driver.commit()
    work.apply(order(3))
    work.committer.close()
    engine.dispose()
    assert ground.rows("id", "tenant") == [(1, "a"), (2, "a"), (3, "a")]
    assert len(sent) == 2


def test_a_connection_that_commits_by_itself_is_refused(ground: Ground, group: str, desk: Any) -> None:
    work = desk(appends(ground, group), first=order(1))
    work.driver.autocommit = True
    with pytest.raises(ConfigError, match="AUTOCOMMIT"):
        work.apply(order(2))
    assert work.ledger.read()[0].next_offset == 1


def test_i1_a_commit_that_is_answered_with_rollback_is_an_error(ground: Ground, group: str, desk: Any) -> None:
    """I1: of a failed transaction COMMIT is answered without an error, and nothing was written."""
    work = desk(appends(ground, group), first=order(1))

    def fail_once() -> None:
        work.before_commit = lambda: None
        work.driver.pgconn.exec_(b"SELECT 1 / 0")

    work.before_commit = fail_once
    kinds = work.apply(order(2))
    assert kinds[:5] == [*SMALL[:4], events.Bisecting]
    assert kinds[5:] == SMALL
    assert ground.rows("id") == [(1,), (2,)]


def test_i1_commit_counts_by_its_tag_in_any_transaction(ground: Ground) -> None:
    session = Session(ground.engine)

    def commit() -> None:
        with session.transaction() as tx:
            tx.exec_driver_sql("SELECT 1")
            tx.driver.pgconn.exec_(b"SELECT 1 / 0")

    with pytest.raises(CommitRefused, match="COMMIT was answered with ROLLBACK"):
        commit()
    session.close()


def test_hold_and_advance_of_the_hosts_own_connection(ground: Ground, group: str, desk: Any) -> None:
    """Where no record was applied: one statement, by SQLAlchemy; the position is compared."""
    work = desk(appends(ground, group), first=order(1))
    claim = work.held.claims[Partition(TOPIC, 0)]
    move = Read(claim, 1, 5).move()
    (moved,) = work.ledger.advance_alone([move])
    assert (moved.next_offset, work.ledger.read()[0].next_offset) == (5, 5)
    with pytest.raises(Fenced, match="rows held: 0"), work.ledger.begin() as tx:
        hold_and_advance(tx, [move], work.ledger._settings)


# -- any stream --------------------------------------------------------------------------------------------------


def test_any_batches_end_as_step_by_step(ground: Ground, group: str, desk: Any, sent: list[Any]) -> None:
    """I1..I4: batches of any size over three partitions, with bad records and refusals in between."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    pipeline = appends(
        ground, group, on_poison="dead_letter", dead_letter_limits=DeadLetterLimits(consecutive=None, ratio=None)
    )
    work, good, bad = desk(pipeline, first=order(1), partitions=3), 1, 0
    for n in range(60):
        records: list[RawRecord] = []
        for partition in chance.sample(range(3), chance.randint(1, 3)):
            kinds = chance.choices(["good", "undecodable", "refused"], [400, 1, 1], k=chance.randint(1, 30))
            values = [{"good": order(n + 1), "undecodable": b"{", "refused": order(-1)}[kind] for kind in kinds]
            records += work.batch(*values, partition=partition)
            good, bad = good + kinds.count("good"), bad + len(kinds) - kinds.count("good")
        work.commit(records)
    assert len(sent) > 10
    assert len(ground.rows("id")) == good
    assert sum(isinstance(e, events.DeadLettered) for e in work.seen) == bad
    assert sum(p.next_offset for p in work.ledger.read()) == good + bad


def test_placeholders_are_numbered() -> None:
    assert numbered("%(a)s %% %(b)s %(a)s") == ("$1 % $2 $1", ("a", "b"))
    assert numbered('"a%%b" (%s, %s)')[0] == '"a%b" ($1, $2)'
