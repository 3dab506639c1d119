"""Sessions that psycopg cannot read from are refused in one sentence, and not by what its first value does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, StaticPool, make_url

from seekpoint import Json, Pipeline, Worker, schema
from seekpoint.admin import Admin
from seekpoint.errors import ConfigError
from seekpoint.jobs.batch import BatchJob
from seekpoint.jobs.reload import Reload
from seekpoint.ledger import GroupLedger
from seekpoint.postgres.engine import first_connection, postgres_engine
from seekpoint.sinks import Append
from seekpoint.testing import process, raw
from support.every_row import for_each
from support.fixtures import NewEngine

NO_BROKERS = {"bootstrap.servers": "127.0.0.1:1"}

REFUSED = pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"client_encoding": "SQL_ASCII"}, "its client_encoding is SQL_ASCII, .*: set client_encoding=utf8"),
        ({"client_encoding": "GBK"}, "its client_encoding is GBK, .*: set client_encoding=utf8"),
        ({"options": "-cDateStyle=SQL,DMY"}, "its DateStyle is 'SQL, DMY', .*: set DateStyle to ISO"),
        ({"options": "-cDateStyle=German"}, "its DateStyle is 'German, DMY', .*: set DateStyle to ISO"),
        ({"options": "-carray_nulls=off"}, "its array_nulls is off, .*Set array_nulls to on"),
    ],
    ids=["ascii", "gbk", "sql", "german", "nulls"],
)


@REFUSED
def test_refused(  # noqa: PLR0917 -- fixtures
    seekpoint_dsn: str,
    seekpoint_schema: str,
    group: str,
    new_engine: NewEngine,
    query: dict[str, str],
    message: str,
) -> None:
    url = make_url(seekpoint_dsn).update_query_dict(query)
    own = new_engine(url)
    pipeline = Pipeline(group, topics="t", value=Json(), sinks=[Append("t", columns=["id"])])
    kafka = {"bootstrap.servers": "127.0.0.1:1"}
    engines: list[Any] = [url, own]
    if query.get("client_encoding") == "SQL_ASCII":  # SQLAlchemy itself cannot connect by an engine of the host's
        engines = [url]
    else:
        with pytest.raises(ConfigError, match=message):
            schema.upgrade(own, schema=seekpoint_schema)
    for engine in engines:
        with pytest.raises(ConfigError, match=message):
            GroupLedger(engine, group, schema=seekpoint_schema).read()
        with pytest.raises(ConfigError, match=message):
            Worker(pipeline, engine=engine, kafka=kafka, schema=seekpoint_schema).run()


@pytest.mark.parametrize(
    "query",
    [{"client_encoding": "SJIS"}, {"options": "-cDateStyle=SQL,DMY"}, {"options": "-carray_nulls=off"}],
    ids=["sjis", "dates", "nulls"],
)
def test_what_is_refused_to_seekpoint_is_the_applications_own_business(
    seekpoint_dsn: str, seekpoint_schema: str, group: str, new_engine: NewEngine, query: dict[str, str]
) -> None:
    """Its connections are used before and after, new ones and those of the pool."""
    engine = new_engine(make_url(seekpoint_dsn).update_query_dict(query))
    ledger = GroupLedger(engine, group, schema=seekpoint_schema)
    for _ in range(2):
        with engine.connect() as first, engine.connect() as second:
            pids = {tx.exec_driver_sql("SELECT pg_backend_pid()").scalar_one() for tx in (first, second)}
        with pytest.raises(ConfigError, match="the session cannot be used: its"):
            ledger.read()
    with engine.connect() as again:
        assert again.exec_driver_sql("SELECT pg_backend_pid()").scalar_one() in pids, "it was not closed either"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"execution_options": {"isolation_level": "REPEATABLE READ"}}, "isolation level is REPEATABLE READ"),
        ({"poolclass": StaticPool}, "has a StaticPool, whose one connection"),
        ({"execution_options": {"schema_translate_map": {None: "tenant"}}}, "writes t, .* maps it to tenant.t"),
        ({"execution_options": {"schema_translate_map": {"own": "tenant"}}}, "writes own.t, .* maps it to tenant.t"),
    ],
    ids=["repeatable read", "static", "no schema", "schema"],
)
def test_an_engine_whose_declaration_a_worker_would_not_keep_is_refused(
    seekpoint_dsn: str, group: str, new_engine: NewEngine, options: Any, message: str
) -> None:
    sinks: list[Any] = [Append("t", columns=["id"]), Append("own.t", columns=["id"])]
    pipeline = Pipeline(group, topics="t", value=Json(), sinks=sinks)
    engine = new_engine(seekpoint_dsn, **options)
    with pytest.raises(ConfigError, match=message):
        Worker(pipeline, engine=engine, kafka=NO_BROKERS)
    plain = {"isolation_level": "READ COMMITTED", "schema_translate_map": {}}
    if "poolclass" not in options:
        Worker(pipeline, engine=engine.execution_options(**plain), kafka=NO_BROKERS)


def by_process(pipeline: Pipeline, engine: Engine) -> object:
    return process(pipeline, engine, [raw(b"{}", topic="t")])


def by_batch(pipeline: Pipeline, engine: Engine) -> object:
    return BatchJob(pipeline, engine, NO_BROKERS)


def by_replay(pipeline: Pipeline, engine: Engine) -> object:
    return Admin(engine).dead_letters(pipeline)


def by_reload(pipeline: Pipeline, engine: Engine) -> object:
    return Reload([pipeline], engine, NO_BROKERS)


@for_each([by_replay, by_process, by_batch, by_reload])
def test_who_writes_by_sinks_refuses_a_translation_of_their_schema(
    write: Callable[[Pipeline, Engine], object], seekpoint_dsn: str, new_engine: NewEngine
) -> None:
    """Rows would be written to the table that the sink names, next to those of a handler's statements."""
    pipeline = Pipeline("g", topics="t", value=Json(), sinks=[Append("t", columns=["id"])])
    engine = new_engine(seekpoint_dsn, execution_options={"schema_translate_map": {None: "tenant"}})
    with pytest.raises(ConfigError, match=r"writes t, .* maps it to tenant\.t"):
        write(pipeline, engine)


def test_a_worker_is_refused_where_its_connections_have_another_isolation_level(
    seekpoint_dsn: str, seekpoint_schema: str, group: str, new_engine: NewEngine
) -> None:
    pipeline = Pipeline(group, topics="t", value=Json(), sinks=[Append("t", columns=["id"])])
    engine = new_engine(seekpoint_dsn, isolation_level="SERIALIZABLE")
    worker = Worker(pipeline, engine=engine, kafka=NO_BROKERS, schema=seekpoint_schema)
    with pytest.raises(ConfigError, match=r"isolation level is SERIALIZABLE, but a worker's .* READ COMMITTED"):
        worker.run()
    with first_connection(postgres_engine(engine.execution_options(isolation_level="READ COMMITTED"))) as connection:
        assert connection.get_isolation_level() == "READ COMMITTED"


def test_iso_dates_of_any_order(seekpoint_dsn: str, seekpoint_schema: str, group: str, new_engine: NewEngine) -> None:
    url = make_url(seekpoint_dsn).update_query_dict({"options": "-cDateStyle=ISO,DMY"})
    engine = new_engine(url)
    schema.upgrade(engine, schema=seekpoint_schema)
    assert GroupLedger(engine, group, schema=seekpoint_schema).read() == []
    schema.downgrade(engine, schema=seekpoint_schema)
