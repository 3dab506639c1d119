"""Tables with row security: rows go by INSERT, a refused row is its record's fault, and it may be enabled meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from sqlalchemy import Connection, Engine, NullPool, QueuePool, text
from sqlalchemy.exc import DBAPIError

from seekpoint import Append, Json, Pipeline, Upsert
from seekpoint.events import DatabaseTrouble, Event
from seekpoint.records import Partition, RawRecord
from seekpoint.sinks.arrow import AppendArrow, copy_into
from support.batch_committer import BatchCommitter
from support.fixtures import NewEngine
from support.round_trips import trips
from support.sink_tables import TOPIC, SinkTables, orders, writer_of

NASTY = [
    None,
    "",
    "plain",
    "\\N",
    "\\",
    "a\\b\\\\t",
    "tab\there",
    "line\nend\rreturn",
    "\b\f\v",
    "%s %% {}",
    "ünïcødé \U0001f600",
    "'\"; DROP TABLE t; --",
]
COLUMNS = (
    "id int NOT NULL, v text, b bytea, many text[], doc json, n numeric, number bigint GENERATED ALWAYS AS IDENTITY"
)


@pytest.fixture
def owner_tables(seekpoint_engine: Engine, seekpoint_schema: str) -> SinkTables:
    """As the owner of all, who is above row security."""
    return SinkTables(seekpoint_engine, seekpoint_schema)


@pytest.fixture
def limited_tables(owner_tables: SinkTables, new_engine: NewEngine) -> Iterator[SinkTables]:
    """The tables as a role with rights on the ledger, which is subject to row security."""
    role, schema = f"{owner_tables.schema}_limited", owner_tables.schema
    owner_tables.sql(f"CREATE ROLE {role}; GRANT USAGE ON SCHEMA {schema} TO {role}")
    owner_tables.sql(f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {role}")
    owner_tables.sql(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema} TO {role}")
    engine = new_engine(owner_tables.engine.url, connect_args={"options": f"-crole={role}"})
    yield SinkTables(engine, schema)
    engine.dispose()
    owner_tables.sql(f"DROP OWNED BY {role}; DROP ROLE {role}")


def secured(
    owner_tables: SinkTables, body: str, rights: str, name: str = "t", check: str = "id % 10 <> 7"
) -> tuple[str, str]:
    """A table of the owner's with a policy, and what the limited role may do there."""
    path = owner_tables.create(body, name)
    owner_tables.sql(
        f"GRANT {rights} ON {name} TO {owner_tables.schema}_limited; ALTER TABLE {name} ENABLE ROW LEVEL SECURITY"
    )
    owner_tables.sql(f"CREATE POLICY p ON {name} USING (true) WITH CHECK ({check})")
    return path


def numbered(*numbers: int, start: int = 0) -> list[RawRecord]:
    return orders(*[b'{"id": %d, "v": "v"}' % n for n in numbers], start=start)


# -- what is written ------------------------------------------------------------------------------------------------


def nasty(record: Any) -> dict[str, Any]:
    n = record.value["id"]
    v = NASTY[n % len(NASTY)]
    doc = None if v is None else json.dumps({"v": v})
    return {"id": n, "v": v, "b": bytes(range(256)), "many": [v, "x"], "doc": doc, "n": f"{n}.50"}


@pytest.mark.parametrize("count", [13, 700], ids=["few", "many"])
@pytest.mark.parametrize("kind", [Append, AppendArrow])
def test_inserts_write_what_copy_writes(
    owner_tables: SinkTables, limited_tables: SinkTables, group: str, kind: Any, count: int
) -> None:
    """The limited role needs no more than INSERT."""
    columns = ["id", "v", "b", "many", "doc", "n"]
    records = numbered(*range(count))
    plain = kind(owner_tables.create(COLUMNS, "plain"), columns=columns, row=nasty)
    owner_tables.process(Pipeline(f"{group}-plain", topics=TOPIC, value=Json(), sinks=[plain]), *records)
    sink = kind(secured(owner_tables, COLUMNS, "INSERT", check="true"), columns=columns, row=nasty)
    limited_tables.process(Pipeline(group, topics=TOPIC, value=Json(), sinks=[sink]), *records)
    shown = ["id", "v", "b", "n", "number"]
    assert owner_tables.rows(*shown) == owner_tables.rows(*shown, name="plain")
    schema = owner_tables.schema
    same = f'SELECT * FROM "{schema}".t EXCEPT SELECT id, v, b, many, doc, n, number FROM "{schema}".plain'
    with owner_tables.engine.connect() as tx:
        assert not tx.exec_driver_sql(
            same.replace("doc", "doc::text").replace("*", "id, v, b, many, doc::text, n, number")
        ).all()


def test_whole_tables_of_arrow(owner_tables: SinkTables, limited_tables: SinkTables, group: str) -> None:
    path = secured(owner_tables, "id int, v text", "INSERT", check="true")

    def handle(tx: Connection, records: Any) -> None:
        copy_into(tx, path, pa.table({"id": list(range(len(NASTY))), "v": NASTY}))

    pipeline = Pipeline(group, topics=TOPIC, value=Json(), handle=handle, writes=[".".join(path)])
    limited_tables.process(pipeline, *numbered(0))
    assert owner_tables.rows("id", "v") == list(enumerate(NASTY))


# -- what a policy refuses ------------------------------------------------------------------------------------------


def insert(tx: Connection, records: Any) -> None:
    for record in records:
        tx.execute(text("INSERT INTO t VALUES (:id, :v)"), record.value)


@pytest.mark.parametrize("count", [8, 200])
@pytest.mark.parametrize("kind", [Append, AppendArrow, Upsert, insert])
def test_a_row_refused_by_a_policy_is_poison(
    owner_tables: SinkTables, limited_tables: SinkTables, group: str, kind: Any, count: int
) -> None:
    path = secured(owner_tables, "id int PRIMARY KEY, v text", "ALL")
    options: dict[str, Any] = {"columns": ["id", "v"]} | ({"key": ["id"]} if kind is Upsert else {})

    def handle(tx: Connection, records: Any) -> None:
        tx.execute(text(f'SET LOCAL search_path = "{path[0]}"'))
        insert(tx, records)

    does: dict[str, Any] = {"handle": handle} if kind is insert else {"sinks": [kind(path, **options)]}
    pipeline = Pipeline(group, topics=TOPIC, value=Json(), on_poison="dead_letter", **does)
    done = limited_tables.process(pipeline, *numbered(*range(count)))
    assert [aside.offset for aside in done.dead_letters] == list(range(7, count, 10))
    assert {aside.failure.sqlstate for aside in done.dead_letters} == {"42501"}
    assert owner_tables.rows("id") == [(n,) for n in range(count) if n % 10 != 7]
    alone = limited_tables.process(pipeline, *numbered(1007, start=count))
    assert [aside.offset for aside in alone.dead_letters] == [count], "also where no other record was applied"
    assert owner_tables.positions(pipeline) == {Partition(TOPIC, 0): count + 1}


def test_a_missing_right_is_no_records_fault(owner_tables: SinkTables, limited_tables: SinkTables, group: str) -> None:
    path = secured(owner_tables, "id int, v text", "SELECT")
    sink = Append(path, columns=["id", "v"])
    pipeline = Pipeline(group, topics=TOPIC, value=Json(), sinks=[sink], on_poison="dead_letter")
    with pytest.raises((DBAPIError, Exception), match="permission denied for table t"):
        limited_tables.process(pipeline, *numbered(*range(20)))
    assert owner_tables.positions(pipeline) == {Partition(TOPIC, 0): 0}
    owner_tables.sql(f"GRANT INSERT ON t TO {owner_tables.schema}_limited")
    assert len(limited_tables.process(pipeline, *numbered(*range(20))).dead_letters) == 2


def test_row_security_that_is_enabled_while_a_worker_runs(
    owner_tables: SinkTables, limited_tables: SinkTables, group: str
) -> None:
    path = owner_tables.create("id int, v text")
    owner_tables.sql(f"GRANT INSERT ON t TO {owner_tables.schema}_limited")
    pipeline = Pipeline(group, topics=TOPIC, value=Json(), sinks=[Append(path, columns=["id", "v"])])
    limited_tables.process(pipeline, *numbered(*range(150)))  # by COPY, which is refused later
    owner_tables.sql("ALTER TABLE t ENABLE ROW LEVEL SECURITY; CREATE POLICY every ON t USING (true)")
    seen: list[Event] = []
    limited_tables.process(pipeline, *numbered(*range(150, 300), start=150), observe=(seen.append,))
    assert len([event for event in seen if isinstance(event, DatabaseTrouble)]) == 1, "one more try"
    assert owner_tables.rows("id") == [(n,) for n in range(300)]


def test_a_table_whose_row_security_was_disabled_takes_small_batches_again(
    owner_tables: SinkTables, limited_tables: SinkTables, group: str
) -> None:
    """A session that noticed row security notices its end with the next batch that it writes."""
    path = secured(owner_tables, "id int, v text", "INSERT", check="true")
    pipeline = Pipeline(group, topics=TOPIC, value=Json(), sinks=[Append(path, columns=["id", "v"])])
    batches = BatchCommitter(limited_tables.engine, limited_tables.schema, pipeline)
    with closing(batches.committer):
        batches.apply({"id": 0, "v": "v"})
        session = batches.driver
        with trips(session) as while_secured:
            batches.apply({"id": 1, "v": "v"})
        owner_tables.sql("ALTER TABLE t DISABLE ROW LEVEL SECURITY")
        batches.apply({"id": 2, "v": "v"})
        with trips(session) as afterwards:
            batches.apply({"id": 3, "v": "v"})
        assert batches.driver is session
    assert while_secured.count > 2
    assert afterwards.count == 2
    assert owner_tables.rows("id") == [(0,), (1,), (2,), (3,)]


# -- a table that is altered between a session's look and its rows ----------------------------------------------------

MANY = [(n, "v") for n in range(200)]  # more than go by one INSERT
Pools = type[NullPool | QueuePool]
SECURE = "ALTER TABLE t ENABLE ROW LEVEL SECURITY; CREATE POLICY every ON t USING (true)"


@contextmanager
def looked(engine: Engine, sink: Any, rows: list[Any]) -> Iterator[Callable[[], None]]:
    """A transaction whose sink has looked at its table; calling it writes the rows, and closes the sink."""
    with engine.connect() as tx:
        opened = writer_of(sink).open(tx)
        writer = opened.__enter__()

        def write() -> None:
            try:
                writer.write(rows)
            except psycopg.Error as error:
                opened.__exit__(type(error), error, error.__traceback__)
                raise
            opened.__exit__(None, None, None)

        yield write


@pytest.mark.parametrize("pool", [NullPool, QueuePool])
def test_row_security_that_is_enabled_between_the_first_look_and_the_rows(
    owner_tables: SinkTables, limited_tables: SinkTables, new_engine: NewEngine, pool: Pools
) -> None:
    """The session has never looked before: the transaction is run again, once, and then writes by INSERT."""
    sink = Append(owner_tables.create("id int, v text"), columns=["id", "v"])
    owner_tables.sql(f"GRANT INSERT ON t TO {owner_tables.schema}_limited")
    role = {"options": f"-crole={owner_tables.schema}_limited"}
    engine = new_engine(limited_tables.engine.url, poolclass=pool, connect_args=role)
    with looked(engine, sink, MANY) as write:
        owner_tables.sql(SECURE)
        with pytest.raises(psycopg.errors.SerializationFailure, match="it is read again"):
            write()
    with engine.begin() as tx, writer_of(sink).open(tx) as writer:
        writer.write(MANY)
    assert owner_tables.rows("id") == [(n,) for n, _ in MANY]


def test_sessions_that_all_looked_before_row_security_was_enabled(
    owner_tables: SinkTables, limited_tables: SinkTables
) -> None:
    """What one of them has met says nothing against the others' second try."""
    sink = Append(owner_tables.create("id int, v text"), columns=["id", "v"])
    owner_tables.sql(f"GRANT INSERT ON t TO {owner_tables.schema}_limited")
    with ExitStack() as stack:
        writes = [stack.enter_context(looked(limited_tables.engine, sink, MANY)) for _ in range(3)]
        owner_tables.sql(SECURE)
        for write in writes:
            with pytest.raises(psycopg.errors.SerializationFailure):
                write()
    for _ in writes:
        with limited_tables.engine.begin() as tx, writer_of(sink).open(tx) as writer:
            writer.write(MANY[:1])
    assert owner_tables.rows("id") == [(0,)] * 3


@pytest.mark.parametrize("pool", [NullPool, QueuePool])
@pytest.mark.parametrize("state", ["42P01", "55000", "42809"])
def test_an_error_like_that_of_an_altered_table_is_raised_at_the_second_look(
    owner_tables: SinkTables, new_engine: NewEngine, pool: Pools, state: str
) -> None:
    """A trigger raises the same: at the second look the table is in the state in which it failed."""
    sink = Append(owner_tables.create("id int, v text"), columns=["id", "v"])
    owner_tables.sql(
        f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$BEGIN RAISE EXCEPTION 'not this one' USING ERRCODE = '{state}'; END$$"
    )
    engine = new_engine(owner_tables.engine.url, poolclass=pool)
    with engine.begin() as tx, writer_of(sink).open(tx) as writer:
        writer.write(MANY)
    owner_tables.sql("CREATE TRIGGER refuse BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION refuse()")
    raised: list[BaseException] = []
    while not raised or isinstance(raised[-1], psycopg.errors.SerializationFailure):
        assert len(raised) < 3
        with pytest.raises(psycopg.Error) as refused, engine.begin() as tx, writer_of(sink).open(tx) as writer:
            writer.write(MANY)
        raised.append(refused.value)
    assert getattr(raised[-1], "sqlstate") == state  # noqa: B009
    assert len(raised) == (2 if pool is NullPool else 3)  # what was known from before the trigger is another state


def test_a_view_that_takes_no_rows_ends_in_its_own_error(owner_tables: SinkTables) -> None:
    """At the first try: it is no table that was altered."""
    owner_tables.create("id int, v text")
    owner_tables.sql("CREATE VIEW distinct_rows AS SELECT DISTINCT id, v FROM t")
    sink = Append((owner_tables.schema, "distinct_rows"), columns=["id", "v"])
    with (
        pytest.raises(psycopg.errors.WrongObjectType, match="cannot copy to view"),
        owner_tables.engine.begin() as tx,
        writer_of(sink).open(tx) as writer,
    ):
        writer.write(MANY)
