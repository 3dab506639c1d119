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

from seekpoint import Append, Json, Partition, Pipeline, Upsert, events
from seekpoint.errors import ConfigError, Fenced, HandlerMisuse
from seekpoint.ledger import GroupLedger
from seekpoint.ledger.advance import hold_and_advance
from seekpoint.pipeline.policy import DeadLetterLimits
from seekpoint.postgres.round_trip import Statement, begin_and_run, positional
from seekpoint.postgres.session import CommitRefused, Session
from seekpoint.records import RawRecord
from seekpoint.sinks.insert import ROWS
from seekpoint.sinks.small_append import MOST_RECORDS_IN_ONE_INSERT
from seekpoint.testing import kit
from seekpoint.worker.assignment.chunk import Read
from support.batch_committer import BatchCommitter
from support.ledger_worker import backend, wait_until_blocked
from support.round_trips import trips
from support.sink_tables import TOPIC, VALUES, SinkTables
from support.waiting import until

SMALL = [events.BatchOpened, events.Held, events.Applied, events.Advanced, events.Committed]


@pytest.fixture
def sent_statements(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[Statement]]:
    """The statements that left with the ledger's own, for each time."""
    sent: list[Sequence[Statement]] = []
    real = begin_and_run

    def note(driver: Any, statements: Sequence[Statement]) -> list[Any]:
        sent.append([statement for statement in statements if ".partition_offset" not in statement.text])
        return real(driver, statements)

    monkeypatch.setattr("seekpoint.postgres.connection.begin_and_run", note)
    return sent


@pytest.fixture
def new_committer(sink_tables: SinkTables, group: str) -> Iterator[Callable[..., BatchCommitter]]:
    """``new_committer(pipeline, first=...)``: a committer whose connection has applied this batch before."""
    with ExitStack() as stack:

        def make(
            pipeline: Pipeline,
            *,
            first: Any = None,
            partitions: int = 1,
            engine: Engine | None = None,
            **settings: Any,
        ) -> BatchCommitter:
            arguments = engine or sink_tables.engine, sink_tables.schema, pipeline, partitions
            batch_committer = BatchCommitter(*arguments, **settings)
            stack.callback(batch_committer.committer.close)
            if first is not None:
                batch_committer.apply(first)
            return batch_committer

        yield make


def appends(
    sink_tables: SinkTables, group: str, body: str = "id int CHECK (id > 0), note text", **options: Any
) -> Pipeline:
    sink = sink_tables.append(body, columns=["id", "note"])
    return Pipeline(group, topics=TOPIC, value=Json(), sinks=[sink], **options)


def order(n: int, note: Any = None) -> dict[str, Any]:
    return {"id": n, "note": note}


# -- what is sent ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, MOST_RECORDS_IN_ONE_INSERT])
def test_two_round_trips_and_every_event(sink_tables: SinkTables, group: str, new_committer: Any, count: int) -> None:
    """BEGIN, hold and advance, rows; then COMMIT. Events come in the order of any transaction."""
    committer = new_committer(appends(sink_tables, group), first=order(1))
    with trips(committer.driver) as counted:
        assert committer.apply(*(order(2 + n) for n in range(count))) == SMALL
    assert counted.count == 2
    committer.seen.clear()
    committer.apply(order(200, "x"))
    assert committer.seen[1:3] == [events.Held(partitions=1), events.Applied(records=1)]
    assert sink_tables.rows("id")[:2] == [(1,), (2,)]
    assert len(sink_tables.rows("id")) == count + 2
    row = committer.ledger.read()[0]
    assert (row.next_offset, row.leader_epoch) == (count + 2, 3)


def test_its_settings_end_with_it(sink_tables: SinkTables, group: str, new_committer: Any) -> None:
    """The name by which the next owner finds a stalled transaction, its age, durability and isolation."""
    engine = create_engine(
        sink_tables.engine.url, connect_args={"options": "-cdefault_transaction_isolation=serializable"}
    )
    committer = new_committer(appends(sink_tables, group), first=order(1), engine=engine, synchronous_commit=False)
    rows = list[tuple[Any, ...]]()
    names = ["application_name", "idle_in_transaction_session_timeout", "synchronous_commit", "transaction_isolation"]
    if (engine.dialect.server_version_info or (0,)) >= (17,):
        names.append("transaction_timeout")
    query = "SELECT " + ", ".join(f"current_setting('{name}')" for name in names)

    def ask() -> None:
        rows.append(committer.driver.execute(query).fetchone())

    committer.before_commit = ask
    assert committer.apply(order(2)) == SMALL
    ask()
    committer.driver.rollback()
    committer.committer.close()
    engine.dispose()
    (name, age, *others), after = rows
    assert name.startswith("seekpoint ")
    assert age == "5min"
    assert others[:2] == ["off", "read committed"]
    assert [int(longer.removesuffix("ms")) for longer in others[2:]] == [300_001] * (len(names) - 4)
    assert after == ("", "0", "on", "read committed", *["0"] * (len(names) - 4))


@pytest.mark.parametrize("kind", [*range(len(VALUES))], ids=[f"{kind}-{value!r}"[:40] for kind, value, _ in VALUES])
def test_values_are_stored_as_by_copy(
    sink_tables: SinkTables, group: str, new_committer: Any, sent_statements: list[Any], kind: int
) -> None:
    """The column's own input function reads each value, alone and among others."""
    declared, value, _ = VALUES[kind]
    sink_tables.sql("CREATE TYPE mood AS ENUM ('good', 'so-so'); CREATE DOMAIN short AS varchar(3)")
    declared = f'"{sink_tables.schema}".{declared}' if declared in {"mood", "short"} else declared
    sink = sink_tables.append(f"n int, v {declared}", columns=["n", "v"], row=lambda r: (r.offset, value))
    committer = new_committer(Pipeline(group, topics=TOPIC, value=Json(), sinks=[sink]), first=1)
    committer.apply(1)
    committer.apply(1, 1, 1)
    assert [len(sent) for sent in sent_statements] == [2, 2]
    with sink_tables.engine.connect() as tx:
        query = f'SELECT count(DISTINCT v::text), count(v), count(*) FROM "{sink_tables.schema}".t'
        assert tuple(tx.exec_driver_sql(query).one()) == ((0, 0, 5) if value is None else (1, 5, 5))


# -- what goes step by step --------------------------------------------------------------------------------------


def handled(sink_tables: SinkTables, group: str) -> Pipeline:
    def handle(tx: Connection, _batch: Any) -> None:
        tx.exec_driver_sql("SELECT 1")

    return appends(sink_tables, group, handle=handle)


def upserts(sink_tables: SinkTables, group: str) -> Pipeline:
    path = sink_tables.create("id int PRIMARY KEY, note text")
    return Pipeline(group, topics=TOPIC, value=Json(), sinks=[Upsert(path, key=["id"], columns=["id", "note"])])


def twice(sink_tables: SinkTables, group: str) -> Pipeline:
    sinks = [sink_tables.append("id int, note text", name=name, columns=["id", "note"]) for name in ("t", "u")]
    return Pipeline(group, topics=TOPIC, value=Json(), sinks=sinks)


def subclass(sink_tables: SinkTables, group: str) -> Pipeline:
    class Own(Append[Any, Any]):
        pass

    sink = Own(sink_tables.create("id int, note text"), columns=["id", "note"])
    return Pipeline(group, topics=TOPIC, value=Json(), sinks=[sink])


def hours(sink_tables: SinkTables, group: str) -> Pipeline:
    """A cast reads an interval of hours as seconds."""
    sink = sink_tables.append("id interval hour, note text", columns=["id", "note"], row=lambda r: ("10", "x"))
    return Pipeline(group, topics=TOPIC, value=Json(), sinks=[sink])


def ruled(sink_tables: SinkTables, group: str) -> Pipeline:
    """A rule rewrites INSERT and not COPY."""
    pipeline = appends(sink_tables, group)
    sink_tables.sql("CREATE RULE r AS ON INSERT TO t DO INSTEAD NOTHING")
    return pipeline


@pytest.mark.parametrize("make", [handled, upserts, twice, subclass, hours, ruled], ids=lambda make: make.__name__)
def test_of_other_pipelines_advance_is_the_last_statement(
    sink_tables: SinkTables, group: str, new_committer: Any, sent_statements: list[Any], make: Any
) -> None:
    committer = new_committer(make(sink_tables, group), first=order(1))
    assert committer.apply(order(2))[:5] == SMALL
    assert sent_statements == []
    assert committer.ledger.read()[0].next_offset == 2


def test_round_trips_of_a_handlers_batch(sink_tables: SinkTables, group: str, new_committer: Any) -> None:
    """BEGIN with hold; its one statement; advance; COMMIT with the question about its session."""

    def handle(tx: Connection, batch: Any) -> None:
        tx.exec_driver_sql(f'INSERT INTO "{sink_tables.schema}".t VALUES (%s)', (batch.spans[0].start,))

    sink_tables.create("id int")
    committer = new_committer(Pipeline(group, topics=TOPIC, value=Json(), handle=handle), first=order(1))
    with trips(committer.driver) as counted:
        committer.apply(order(2))
    assert counted.count == 4
    assert sink_tables.rows("id") == [(0,), (1,)]


def test_records_without_rows_take_two_round_trips_too(
    sink_tables: SinkTables, group: str, new_committer: Any, sent_statements: list[Any]
) -> None:
    sink = sink_tables.append("id int, note text", columns=["id", "note"], row=lambda r: None if r.offset else (1, "x"))
    committer = new_committer(Pipeline(group, topics=TOPIC, value=Json(), sinks=[sink]), first=order(1))
    with trips(committer.driver) as counted:
        assert committer.apply(order(2), order(3)) == SMALL
    assert counted.count == 2
    assert sent_statements == [[]]
    assert sink_tables.rows("id") == [(1,)]
    assert committer.ledger.read()[0].next_offset == 3


def test_in_key_order_rows_leave_with_the_advance(
    sink_tables: SinkTables, group: str, new_committer: Any, sent_statements: list[Any]
) -> None:
    """After hold, which finds the keys that dead letters block: I2, I3, the position is compared again."""
    pipeline = appends(
        sink_tables, group, "id int CHECK (id > 0), note text", keep_key_order=True, on_poison="dead_letter"
    )
    committer = new_committer(pipeline, first=order(1))
    assert committer.apply(order(2), order(3)) == SMALL
    assert [len(statements) for statements in sent_statements] == [2]
    assert committer.apply(order(4), order(-5), order(6))[-1] is events.DeadLettered
    assert sink_tables.rows("id") == [(1,), (2,), (3,), (4,), (6,)]
    assert committer.ledger.read()[0].next_offset == 6


def test_many_rows_of_few_records_go_by_copy(
    sink_tables: SinkTables, group: str, new_committer: Any, sent_statements: list[Any]
) -> None:
    sink = sink_tables.append(
        "id int, note text", columns=["id", "note"], rows=lambda r: [(n, "x") for n in range(ROWS)]
    )
    committer = new_committer(Pipeline(group, topics=TOPIC, value=Json(), sinks=[sink]), first=order(1))
    committer.apply(order(2))
    committer.apply(order(3), order(4))
    assert [len(sent) for sent in sent_statements] == [2]
    assert len(sink_tables.rows("id")) == 4 * ROWS


def test_large_rows_go_by_copy(
    sink_tables: SinkTables, group: str, new_committer: Any, sent_statements: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few the records: COPY streams what one statement would hold at once, here and at the server."""
    monkeypatch.setattr("seekpoint.sinks.small_append.MOST_BYTES", 1000)
    committer = new_committer(appends(sink_tables, group), first=order(1))
    assert committer.apply(order(2, "x" * 990)) == SMALL
    assert committer.apply(order(3, "x" * 500), order(4, "é" * 500)) == SMALL
    assert len(sent_statements) == 1
    assert sink_tables.rows("id") == [(1,), (2,), (3,), (4,)]


@pytest.mark.parametrize(("declared", "value"), [("interval hour", "10"), ("interval hour[]", "{10}")])
def test_a_value_that_a_cast_reads_otherwise_goes_by_copy(  # noqa: PLR0917 -- fixtures
    sink_tables: SinkTables, group: str, new_committer: Any, sent_statements: list[Any], declared: str, value: str
) -> None:
    committer = new_committer(appends(sink_tables, group, f"id int, note {declared}"), first=order(1, value))
    assert committer.apply(order(2, value)) == SMALL
    assert sent_statements == []
    assert sink_tables.value(f"array_agg(DISTINCT note::text) = ARRAY['{value.replace('10', '10:00:00')}']")


def test_columns_are_compared_in_any_order(
    sink_tables: SinkTables, group: str, new_committer: Any, sent_statements: list[Any]
) -> None:
    """The server lists them by name."""
    sink = sink_tables.append(
        "zeta int, alpha text, beta bool", columns=["zeta", "alpha", "beta"], row=lambda r: (1, "x", True)
    )
    committer = new_committer(Pipeline(group, topics=TOPIC, value=Json(), sinks=[sink]), first=1)
    assert committer.apply(2) == SMALL
    assert len(sent_statements) == 1


class OwnCursor(psycopg.Cursor[Any]):
    """As an application sets it to see every statement on a table of its own."""


def test_cursors_of_another_class_see_the_rows(
    sink_tables: SinkTables, group: str, new_committer: Any, sent_statements: list[Any]
) -> None:
    engine = create_engine(sink_tables.engine.url, connect_args={"cursor_factory": OwnCursor})
    committer = new_committer(appends(sink_tables, group), first=order(1), engine=engine)
    assert committer.apply(order(2)) == SMALL
    committer.committer.close()
    engine.dispose()
    assert sent_statements == []
    assert sink_tables.rows("id") == [(1,), (2,)]


def test_through_a_pooler_nothing_is_prepared(
    sink_tables: SinkTables, group: str, new_committer: Any, sent_statements: list[Any]
) -> None:
    """Each transaction may be another session's, which has no statement of this one."""
    committer = new_committer(appends(sink_tables, group), first=order(1))
    prepared = "SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'seekpoint%'"
    before = committer.driver.execute(prepared).fetchone()
    committer.driver.rollback()
    committer.driver.prepare_threshold = None
    for n in range(2, 9):
        assert committer.apply(order(n)) == SMALL
    assert len(sent_statements) == 7
    assert committer.driver.execute(prepared).fetchone() == before
    committer.driver.rollback()


def test_other_batches_go_step_by_step(
    sink_tables: SinkTables, group: str, new_committer: Any, sent_statements: list[Any]
) -> None:
    """The first of a connection, which learns the table; a large one; one with a record that is passed by."""
    pipeline = appends(sink_tables, group, on_poison="dead_letter")
    committer = new_committer(pipeline, engine=create_engine(sink_tables.engine.url))
    committer.apply(order(1))
    committer.apply(*(order(n) for n in range(1, MOST_RECORDS_IN_ONE_INSERT + 2)))
    kinds = committer.apply(order(2), b"{", order(3))
    assert sent_statements == []
    assert kinds == [*SMALL, events.DeadLettered]
    assert len(sink_tables.rows("id")) == MOST_RECORDS_IN_ONE_INSERT + 4
    committer.apply(order(4))
    assert len(sent_statements) == 1


def test_a_commit_by_the_handler_beside_a_sink_moves_no_offset(
    sink_tables: SinkTables, group: str, new_committer: Any
) -> None:
    """I1: what a handler commits by itself must not take the offset with it."""

    def handle(tx: Connection, batch: Any) -> None:
        if batch.spans[0].start:
            tx.exec_driver_sql("COMMIT")

    committer = new_committer(appends(sink_tables, group, handle=handle), first=order(1))
    with pytest.raises(HandlerMisuse, match="half done"):
        committer.apply(order(2))
    assert committer.ledger.read()[0].next_offset == 1


# -- what is refused, and what fails -----------------------------------------------------------------------------


def another_claim(committer: BatchCommitter) -> None:
    ids = {TOPIC: kit.topic_id(TOPIC)}
    rival = GroupLedger(committer.ledger.engine, committer.ledger.group, schema=committer.ledger.schema)
    rival.claim([Partition(TOPIC, 0)], ids, cluster_id=kit.CLUSTER, start=lambda _: {})


def another_position(committer: BatchCommitter) -> None:
    """The row has the token, and a position after what was read: a dropped chunk."""
    with committer.ledger.engine.begin() as tx:
        tx.exec_driver_sql(f'UPDATE "{committer.ledger.schema}".partition_offset SET next_offset = 0')


def a_pause(committer: BatchCommitter) -> None:
    committer.ledger.pause(reason="a pause", actor="ann")


@pytest.mark.parametrize("happens", [another_claim, another_position, a_pause], ids=lambda how: how.__name__)
def test_a_refusal_writes_nothing(
    sink_tables: SinkTables, group: str, new_committer: Any, sent_statements: list[Any], happens: Any
) -> None:
    """I2, I3, I5: refused inside SQL, and the rows that had left already with it."""
    committer = new_committer(appends(sink_tables, group), first=order(1))
    records = committer.batch(order(2))
    happens(committer)
    assert committer.commit(records) == [events.BatchOpened, events.Refused]
    assert len(sent_statements) == 1
    assert sink_tables.rows("id") == [(1,)]
    refused = next(e for e in committer.seen if isinstance(e, events.Refused))
    assert "claim or position is not the expected one; rows held: 0" in refused.reason


def test_one_refused_partition_leaves_the_others(
    sink_tables: SinkTables, group: str, new_committer: Any, sent_statements: list[Any]
) -> None:
    """I2: nothing of the first attempt remains; the second holds again without the refused one."""
    committer = new_committer(appends(sink_tables, group), first=order(1), partitions=2)
    records = [*committer.batch(order(2)), *committer.batch(order(3), partition=1)]
    another_claim(committer)
    assert committer.commit(records) == [events.BatchOpened, events.Refused, *SMALL]
    assert len(sent_statements) == 1
    assert sink_tables.rows("id") == [(1,), (3,)]
    assert {p.partition.number: p.next_offset for p in committer.ledger.read()} == {0: 1, 1: 1}


def test_rows_are_locked_in_order(
    sink_tables: SinkTables, group: str, new_committer: Any, threads: ThreadPoolExecutor
) -> None:
    """As every other transaction locks them: no two wait for each other."""
    committer = new_committer(appends(sink_tables, group), first=order(1), partitions=3)
    records = [r for n in (2, 1, 0) for r in committer.batch(order(5), partition=n)]
    table = f'SELECT partition FROM "{sink_tables.schema}".partition_offset'
    with sink_tables.engine.connect() as holder:
        holder.exec_driver_sql(f"{table} WHERE partition = 1 FOR UPDATE")
        done = threads.submit(committer.commit, records)

        def free() -> list[int]:
            with sink_tables.engine.connect() as other:
                return [row[0] for row in other.exec_driver_sql(f"{table} ORDER BY 1 FOR UPDATE SKIP LOCKED")]

        until(lambda: free() == [2], "the first to be locked, and the last not to be")
        holder.rollback()
        assert done.result() == SMALL
    assert {p.next_offset for p in committer.ledger.read()} == {1, 2}


@pytest.mark.parametrize("count", [1, 3, MOST_RECORDS_IN_ONE_INSERT])
def test_a_record_that_the_table_refuses_is_found(
    sink_tables: SinkTables, group: str, new_committer: Any, count: int
) -> None:
    """I4: the server does not say which; the same records go by parts."""
    committer = new_committer(appends(sink_tables, group, on_poison="dead_letter"), first=order(1))
    values = [order(n + 2) for n in range(count)]
    values[count // 2] = order(-1)
    kinds = committer.apply(*values)
    assert kinds[:2] == [events.BatchOpened, events.Bisecting]
    assert kinds[2:] == [*SMALL, events.DeadLettered]
    aside = next(e for e in committer.seen if isinstance(e, events.DeadLettered))
    assert (aside.offset, aside.failure.sqlstate) == (1 + count // 2, "23514")
    assert len(sink_tables.rows("id")) == count
    assert committer.apply(order(900)) == SMALL


@pytest.mark.parametrize("note", ["a\0b", "\ud800", {"no": "dumper"}], ids=["NUL", "surrogate", "dict"])
def test_a_value_that_cannot_be_written_is_found(
    sink_tables: SinkTables, group: str, new_committer: Any, sent_statements: list[Any], note: Any
) -> None:
    """It never reaches the server: what libpq would cut off at a NUL is not stored in part."""
    committer = new_committer(
        appends(sink_tables, group, "id int, note int[]", on_poison="dead_letter"), first=order(1)
    )
    sent_statements.clear()
    kinds = committer.apply(order(2), order(3, note))
    assert kinds[-1] is events.DeadLettered
    assert sink_tables.rows("id", "note") == [(1, None), (2, None)]


def test_a_nul_in_json_that_was_dumped_before_is_found(
    sink_tables: SinkTables, group: str, new_committer: Any, sent_statements: list[Any]
) -> None:
    """Cut off there, the rest would be JSON too."""
    sink = sink_tables.append(
        "id int, note jsonb",
        columns=["id", "note"],
        row=lambda r: (r.offset, Jsonb("5\0" if r.offset == 2 else "5", dumps=str)),
    )
    committer = new_committer(
        Pipeline(group, topics=TOPIC, value=Json(), sinks=[sink], on_poison="dead_letter"), first=1
    )
    assert committer.apply(1, 2, 3)[-1] is events.DeadLettered
    assert sent_statements == []
    assert sink_tables.rows("id") == [(0,), (1,), (3,)]


def test_a_refusal_in_a_values_text_is_no_refusal(sink_tables: SinkTables, group: str, new_committer: Any) -> None:
    """I2: an error that says what the fence says is a bad value's."""
    committer = new_committer(appends(sink_tables, group, "id int, note int", on_poison="dead_letter"), first=order(1))
    kinds = committer.apply(
        order(2), order(3, "seekpoint: claim or position is not the expected one; rows advanced: 0")
    )
    assert events.Refused not in kinds
    assert kinds[-1] is events.DeadLettered


def test_a_deferred_constraint_refuses_commit(sink_tables: SinkTables, group: str, new_committer: Any) -> None:
    body = "id int UNIQUE DEFERRABLE INITIALLY DEFERRED, note text"
    committer = new_committer(appends(sink_tables, group, body, on_poison="dead_letter"), first=order(1))
    kinds = committer.apply(order(2), order(1), order(3))
    assert kinds[:6] == [*SMALL[:4], events.Bisecting, events.BatchOpened]
    assert kinds[-1] is events.DeadLettered
    assert sink_tables.rows("id") == [(1,), (2,), (3,)]


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
def test_a_table_altered_between_two_batches(
    sink_tables: SinkTables, group: str, new_committer: Any, sent_statements: list[Any], how: str
) -> None:
    """Each value is read by the type that its column has now."""
    kind, alter, value, stored = ALTERED[how]
    committer = new_committer(appends(sink_tables, group, f"id int, note {kind}"), first=order(1))
    for n in range(2, 9):
        committer.apply(order(n, value))
    assert len(sent_statements) == 7
    sink_tables.sql(alter)
    committer.apply(order(9, value))
    committer.apply(order(10, value))
    assert sink_tables.value(f"count(*) FILTER (WHERE id IN (9, 10) AND {stored})") == 2
    assert len(sink_tables.rows("id")) == 10


def test_a_view_that_took_the_tables_name_takes_no_row(sink_tables: SinkTables, group: str, new_committer: Any) -> None:
    """COPY is refused there, and an INSERT would go where the view leads."""
    committer = new_committer(appends(sink_tables, group), first=order(1))
    committer.apply(order(2))
    sink_tables.sql("ALTER TABLE t RENAME TO base; CREATE VIEW t AS SELECT * FROM base")
    committer.apply(order(3))
    assert sink_tables.rows("id", name="base") == [(1,), (2,)]
    assert committer.ledger.read()[0].next_offset == 2


def test_a_rule_that_was_made_since_takes_no_row(sink_tables: SinkTables, group: str, new_committer: Any) -> None:
    """A rule rewrites INSERT and not COPY; the session had looked at the table before there was one."""
    committer = new_committer(appends(sink_tables, group), first=order(1))
    committer.apply(order(2))
    sink_tables.sql("CREATE RULE r AS ON INSERT TO t DO INSTEAD NOTHING")
    committer.apply(order(3))
    assert sink_tables.rows("id") == [(1,), (2,), (3,)]
    assert committer.ledger.read()[0].next_offset == 3


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
    sink_tables: SinkTables, group: str, new_committer: Any, sent_statements: list[Any], why: str
) -> None:
    """A session that noticed the change notices its end with the next batch that it writes by COPY."""
    pipeline = appends(sink_tables, group)
    begins, ends = NOT_PLAIN[why]
    sink_tables.sql(begins)
    committer = new_committer(pipeline, first=order(1))
    session = committer.driver
    committer.apply(order(2))
    assert sent_statements == []
    sink_tables.sql(ends)
    committer.apply(order(3))
    with trips(committer.driver) as counted:
        committer.apply(order(4))
    assert counted.count == 2
    assert committer.driver is session
    assert sink_tables.rows("id") == [(1,), (2,), (3,), (4,)]


def test_a_batch_that_has_failed_goes_step_by_step(
    sink_tables: SinkTables, group: str, new_committer: Any, sent_statements: list[Any]
) -> None:
    """Its hold shows what happened. Of the pool, it gets a connection that knows the table, too."""
    pipeline = appends(sink_tables, group, on_poison="dead_letter")
    committer = new_committer(pipeline, first=order(1))
    other = new_committer(Pipeline(f"{group}-other", topics=TOPIC, value=Json(), sinks=pipeline.sinks), first=order(2))
    known = other.driver
    other.committer.close()
    kinds = committer.apply(order(3), order(-1))
    assert kinds[:2] == [events.BatchOpened, events.Bisecting]
    assert len(sent_statements) == 1
    assert committer.driver is known
    assert sink_tables.rows("id") == [(1,), (2,), (3,)]


@pytest.mark.parametrize("waits_at", ["hold", "rows"])
def test_a_statement_that_is_cancelled(
    sink_tables: SinkTables, group: str, new_committer: Any, threads: ThreadPoolExecutor, waits_at: str
) -> None:
    """Nothing of it was written: the batch is applied in another attempt."""
    committer = new_committer(appends(sink_tables, group, "id int UNIQUE, note text"), first=order(1))
    records = committer.batch(order(2), order(3))
    blocking = {
        "hold": f'SELECT 1 FROM "{sink_tables.schema}".partition_offset FOR UPDATE',
        "rows": f'INSERT INTO "{sink_tables.schema}".t VALUES (3)',
    }
    with sink_tables.engine.connect() as other:
        other.exec_driver_sql(blocking[waits_at])
        done = threads.submit(committer.commit, records)
        waiting = wait_until_blocked(sink_tables.engine, backend(other))
        with sink_tables.engine.connect() as cancelling:
            cancelling.exec_driver_sql(f"SELECT pg_cancel_backend({waiting})")
        until(lambda: any(isinstance(e, events.DatabaseTrouble) for e in committer.seen), "another attempt")
        other.rollback()
        assert done.result()[-len(SMALL) + 1 :] == SMALL[1:]
    assert sink_tables.rows("id") == [(1,), (2,), (3,)]
    assert committer.ledger.read()[0].next_offset == 3


def test_a_table_dropped_between_two_batches(sink_tables: SinkTables, group: str, new_committer: Any) -> None:
    committer = new_committer(appends(sink_tables, group), first=order(1))
    committer.apply(order(2))
    sink_tables.sql("ALTER TABLE t RENAME TO gone")
    with pytest.raises(psycopg.errors.UndefinedTable):
        committer.apply(order(3), order(4))
    assert committer.ledger.read()[0].next_offset == 2
    sink_tables.sql("ALTER TABLE gone RENAME TO t")
    committer.apply(order(3), order(4))
    assert sink_tables.rows("id") == [(1,), (2,), (3,), (4,)]


# -- the session -------------------------------------------------------------------------------------------------


def test_statements_that_the_server_has_forgotten_are_prepared_again(
    sink_tables: SinkTables, group: str, new_committer: Any
) -> None:
    """psycopg sends DEALLOCATE ALL after a ROLLBACK TO; it is no attempt, and no other connection is taken."""
    committer = new_committer(appends(sink_tables, group), first=order(1))
    committer.apply(order(2))
    pid = committer.driver.info.backend_pid
    committer.driver.execute("DEALLOCATE ALL")
    committer.driver.commit()
    assert committer.apply(order(3)) == SMALL
    assert committer.apply(order(4)) == SMALL
    assert committer.driver.info.backend_pid == pid
    assert sink_tables.rows("id") == [(1,), (2,), (3,), (4,)]


def test_what_the_host_sets_at_begin_is_kept(
    sink_tables: SinkTables, group: str, new_committer: Any, sent_statements: list[Any]
) -> None:
    """Its listener has begun the transaction already."""
    engine = create_engine(sink_tables.engine.url)
    event.listen(engine, "begin", lambda tx: tx.exec_driver_sql("SET LOCAL my.tenant = 'a'"))
    sink = sink_tables.append(
        "id int, note text, tenant text DEFAULT current_setting('my.tenant')", columns=["id", "note"]
    )
    committer = new_committer(Pipeline(group, topics=TOPIC, value=Json(), sinks=[sink]), first=order(1), engine=engine)
    assert committer.apply(order(2)) == SMALL
    committer.driver.execute("DEALLOCATE ALL")
    committer.driver.commit()
    committer.apply(order(3))
    committer.committer.close()
    engine.dispose()
    assert sink_tables.rows("id", "tenant") == [(1, "a"), (2, "a"), (3, "a")]
    assert len(sent_statements) == 2


def test_a_connection_that_commits_by_itself_is_refused(
    sink_tables: SinkTables, group: str, new_committer: Any
) -> None:
    committer = new_committer(appends(sink_tables, group), first=order(1))
    committer.driver.autocommit = True
    with pytest.raises(ConfigError, match="AUTOCOMMIT"):
        committer.apply(order(2))
    assert committer.ledger.read()[0].next_offset == 1


def test_i1_a_commit_that_is_answered_with_rollback_is_an_error(
    sink_tables: SinkTables, group: str, new_committer: Any
) -> None:
    """I1: of a failed transaction COMMIT is answered without an error, and nothing was written."""
    committer = new_committer(appends(sink_tables, group), first=order(1))

    def fail_once() -> None:
        committer.before_commit = lambda: None
        committer.driver.pgconn.exec_(b"SELECT 1 / 0")

    committer.before_commit = fail_once
    kinds = committer.apply(order(2))
    assert kinds[:5] == [*SMALL[:4], events.Bisecting]
    assert kinds[5:] == SMALL
    assert sink_tables.rows("id") == [(1,), (2,)]


def test_i1_commit_counts_by_its_tag_in_any_transaction(sink_tables: SinkTables) -> None:
    session = Session(sink_tables.engine)

    def commit() -> None:
        with session.transaction() as tx:
            tx.exec_driver_sql("SELECT 1")
            tx.driver.pgconn.exec_(b"SELECT 1 / 0")

    with pytest.raises(CommitRefused, match="COMMIT was answered with ROLLBACK"):
        commit()
    session.close()


def test_hold_and_advance_of_the_hosts_own_connection(sink_tables: SinkTables, group: str, new_committer: Any) -> None:
    """Where no record was applied: one statement, by SQLAlchemy; the position is compared."""
    committer = new_committer(appends(sink_tables, group), first=order(1))
    claim = committer.held.claims[Partition(TOPIC, 0)]
    move = Read(claim, 1, 5).move()
    (moved,) = committer.ledger.advance_alone([move])
    assert (moved.next_offset, committer.ledger.read()[0].next_offset) == (5, 5)
    with pytest.raises(Fenced, match="rows held: 0"), committer.ledger.begin() as tx:
        hold_and_advance(tx, [move], committer.ledger._settings)


# -- any stream --------------------------------------------------------------------------------------------------


def test_any_batches_end_as_step_by_step(
    sink_tables: SinkTables, group: str, new_committer: Any, sent_statements: list[Any]
) -> None:
    """I1..I4: batches of any size over three partitions, with bad records and refusals in between."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    pipeline = appends(
        sink_tables, group, on_poison="dead_letter", dead_letter_limits=DeadLetterLimits(consecutive=None, ratio=None)
    )
    committer, good, bad = new_committer(pipeline, first=order(1), partitions=3), 1, 0
    for n in range(60):
        records: list[RawRecord] = []
        for partition in chance.sample(range(3), chance.randint(1, 3)):
            kinds = chance.choices(["good", "undecodable", "refused"], [400, 1, 1], k=chance.randint(1, 30))
            values = [{"good": order(n + 1), "undecodable": b"{", "refused": order(-1)}[kind] for kind in kinds]
            records += committer.batch(*values, partition=partition)
            good, bad = good + kinds.count("good"), bad + len(kinds) - kinds.count("good")
        committer.commit(records)
    assert len(sent_statements) > 10
    assert len(sink_tables.rows("id")) == good
    assert sum(isinstance(e, events.DeadLettered) for e in committer.seen) == bad
    assert sum(p.next_offset for p in committer.ledger.read()) == good + bad


def test_placeholders_are_numbered() -> None:
    assert positional("%(a)s %% %(b)s %(a)s") == ("$1 % $2 $1", ("a", "b"))
    assert positional('"a%%b" (%s, %s)')[0] == '"a%b" ($1, $2)'
