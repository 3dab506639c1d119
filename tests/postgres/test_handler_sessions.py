"""What a handler sets on the connection it is lent does not outlive its batch, and what the host has set does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import psycopg
import pytest
from sqlalchemy import URL, Connection, Engine, NullPool, QueuePool, event, text
from sqlalchemy.exc import DBAPIError

from seekpoint import Append, Batch, Poison
from seekpoint.postgres.round_trip import rows_of
from seekpoint.postgres.session import CommitRefused, Session
from seekpoint.postgres.session_state import is_configured_by_code
from support.databases import libpq
from support.fixtures import NewEngine
from support.round_trips import trips
from support.service import Service, driver
from support.sink_tables import SinkTables
from support.waiting import until


@pytest.fixture
def service(seekpoint_engine: Engine, seekpoint_schema: str, group: str, new_engine: NewEngine) -> Iterator[Service]:
    engine = new_engine(seekpoint_engine.url, pool_size=2, max_overflow=0)
    service = Service(SinkTables(seekpoint_engine, seekpoint_schema), engine, group)
    yield service
    if service.clear:
        service.sink_tables.sql(service.clear)


# -- options ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isolating", [False, True])
def test_options_of_one_call_are_gone_in_the_next(service: Service, isolating: bool) -> None:
    """I1: a tenant's schema, chosen for one record, is not the next one's; nor is the next INSERT a cursor."""
    options: list[dict[str, Any]] = []

    def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
        if isolating and len(batch) > 1:
            raise Poison("one of them")
        options.append(dict(tx.get_execution_options()))
        tx.execution_options(schema_translate_map={None: "tenant"}, stream_results=True, yield_per=10)
        driver(tx).row_factory = psycopg.rows.dict_row
        driver(tx).prepare_threshold = 0

    service.run(handle, ["a", "b"], ["c", "d"], on_poison="dead_letter")
    assert len(options) >= 2
    assert all(option == options[0] for option in options)
    assert "schema_translate_map" not in options[0]


MEANWHILE = (
    "SET LOCAL search_path TO tenant_of_{schema}",
    "SELECT set_config('search_path', 'tenant_of_{schema}', true)",
    "CREATE TEMPORARY TABLE IF NOT EXISTS t (id bigint, v text)",
)


@pytest.mark.parametrize("statement", MEANWHILE)
def test_the_next_part_of_a_batch_finds_its_tables(service: Service, new_engine: NewEngine, statement: str) -> None:
    """I1: a handler's search_path, or its temporary table, takes no rows of the sink in the parts that follow."""
    schema = service.sink_tables.schema
    service.engine = new_engine(
        service.engine.url, connect_args={"options": f"-c search_path={schema},public"}, pool_size=2
    )
    service.sink_tables.sql(
        f'CREATE SCHEMA "tenant_of_{schema}"; CREATE TABLE "tenant_of_{schema}".t (id bigint, v text)'
    )
    service.clear = f'DROP SCHEMA "tenant_of_{schema}" CASCADE'
    paths: list[str] = []

    def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
        if any(r.value == "bad" for r in batch):
            raise Poison("one of them")
        paths.append(tx.scalar(text("SELECT current_setting('search_path')")) or "")
        tx.exec_driver_sql(statement.format(schema=f'"{schema}"'[1:-1]))

    sink = Append("t", columns=["id", "v"], row=lambda r: (r.offset, r.value))
    service.run(handle, ["a", "b", "bad", "c", "d"], ["e"], sinks=[sink], on_poison="dead_letter")
    assert service.sink_tables.rows("v") == [("a",), ("b",), ("c",), ("d",), ("e",)]
    assert len(paths) == 3
    assert all(path.startswith(schema) for path in paths)


def test_a_handler_finds_the_drivers_connection_as_the_host_made_it(service: Service) -> None:
    sessions: list[tuple[Any, ...]] = []

    def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
        sessions.append((driver(tx).row_factory, driver(tx).prepare_threshold, driver(tx).prepared_max))
        driver(tx).row_factory = psycopg.rows.dict_row
        driver(tx).prepare_threshold, driver(tx).prepared_max = None, 7

    service.run(handle, ["a"], ["b"])
    assert sessions[0] == sessions[1]


# -- the session --------------------------------------------------------------------------------------------------


def by_role(service: Service, options: str = "SUPERUSER") -> str:
    role, schema = f'"{service.group}"', f'"{service.sink_tables.schema}"'
    service.sink_tables.sql(
        f"CREATE ROLE {role} {options}; GRANT ALL ON SCHEMA {schema} TO {role};"
        f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {role}; GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema} TO {role}"
    )
    service.clear = f"DROP OWNED BY {role}; DROP ROLE {role}"
    return f"SET ROLE {role}"


def by_trigger(service: Service) -> str:
    service.sink_tables.sql(
        "CREATE TABLE watched (v text);"
        "CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "PERFORM set_config('search_path', 'nowhere', false); RETURN NEW; END $$;"
        "CREATE TRIGGER noted BEFORE INSERT ON watched FOR EACH ROW "
        f'EXECUTE FUNCTION "{service.sink_tables.schema}".noted()'
    )
    return f"INSERT INTO \"{service.sink_tables.schema}\".watched VALUES ('x')"


def by_locking_function(service: Service) -> str:
    service.sink_tables.sql(
        "CREATE FUNCTION locked() RETURNS void LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_lock(4711); END $$"
    )
    return f'SELECT "{service.sink_tables.schema}".locked()'


CHANGES: dict[str, tuple[str | Callable[[Service], str], str]] = {
    "set": ("SET statement_timeout = '77s'", "setting statement_timeout"),
    "search_path": ("SELECT set_config('search_path', 'nowhere', false)", "setting search_path"),
    "set_config by trigger": (by_trigger, "setting search_path"),
    "time zone": ("SET TIME ZONE 'Asia/Tokyo'", "setting TimeZone"),
    "role": (by_role, "role"),
    "listen": ("LISTEN news", "LISTEN"),
    "advisory lock": ("SELECT pg_advisory_lock(4711)", "advisory locks"),
    "advisory lock by function": (by_locking_function, "advisory locks"),
    "cursor": ("DECLARE mine CURSOR WITH HOLD FOR SELECT 1", "cursors WITH HOLD"),
    "temporary table": ("CREATE TEMPORARY TABLE t (id bigint, v text)", "temporary tables"),
    "temporary table as": ("SELECT 1 AS one INTO TEMP kept", "temporary tables"),
    "prepare": ("PREPARE mine AS SELECT 1", "PREPARE"),
}


# Statements that set a setting of an application's own for the session.
WAYS = {
    "app.n": "SELECT set_config('app.n', coalesce(current_setting('app.n', true), '0') || 'x', false)",
    "app.if": "SELECT CASE WHEN current_setting('app.if', true) IS NULL THEN set_config('app.if', 'x', false) END",
    "app.second": "SELECT set_config('app.first', 'x', true), set_config('app.second', 'y', false)",
    "app.beside": "SELECT set_config('app.beside', 'x', false), round(1, (SELECT 1 WHERE coalesce(NULL, true)))",
    "app.made": "SELECT set_config('app.' || 'made', 'x', false)",
    "app.asked": "SELECT set_config('app.asked', 'x', 1 > 2)",
    "app.quoted": "SET \"app.quoted\" = 'x'",
    "app.parts": 'SET "app"."parts" = \'x\'',
    "app.comment": "SET /* c */ app.comment = 'x'",
    "app.after": "SELECT '--'; SET app.after = 'x'",
    "app.body": "DO $$ BEGIN SET app.body = 'x'; END $$",
    "app.line": "DO $$ BEGIN -- it's\n SET app.line = 'x'; END $$",
    "app.perform": "DO $$ BEGIN PERFORM set_config('app.perform', 'x', false); END $$",
    "app.executed": "DO $$ BEGIN EXECUTE 'SET app.executed = 1'; END $$",
    "app.format": "DO $$ BEGIN EXECUTE format('SET %%I = 1', 'app.format'); END $$",
    "app.function": "SELECT \"{schema}\".quiet('x')",
    "app.joined": "DO $$ BEGIN EXECUTE 'SET app.' || 'joined = 1'; END $$",
}


@pytest.mark.parametrize("name", WAYS)
def test_no_call_finds_a_setting_of_the_one_before(service: Service, name: str) -> None:
    """I1: however it was set: the server has no list of such settings, so they are reset together with COMMIT."""
    values: list[Any] = []
    service.sink_tables.sql(
        "CREATE FUNCTION quiet(x text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN "
        "PERFORM set_config('app.' || 'function', x, false); RETURN x; END $$"
    )

    def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
        values.append(tx.exec_driver_sql(f"SELECT nullif(current_setting('{name}', true), '')").scalar())
        tx.exec_driver_sql(WAYS[name].format(schema=service.sink_tables.schema))
        service.insert(tx, batch)

    service.run(handle, ["a"], ["b"], ["c"])
    assert values == [None] * 3
    assert len(set(service.backends)) == 1
    assert service.changed() == []


def test_a_session_that_takes_backslashes_in_strings_is_checked_too(service: Service, new_engine: NewEngine) -> None:
    options = {"options": "-c standard_conforming_strings=off"}
    service.engine = new_engine(service.engine.url, connect_args=options, pool_size=2)

    def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
        service.insert(tx, batch)
        if batch.spans[0].start == 1:
            tx.exec_driver_sql("SET statement_timeout = '77s'")

    service.run(handle, ["a"], ["b"], ["c"])
    assert service.changed() == [("setting statement_timeout",)]
    assert service.sink_tables.rows("v") == [("a",), ("b",), ("c",)]


def test_i1_a_commit_that_is_answered_with_rollback_is_an_error(service: Service) -> None:
    """Nothing was written: the offset must not be taken for stored."""
    session = Session(service.engine, lends=True)

    def commit() -> None:
        with session.transaction() as tx:
            rows_of(tx.driver, ("SELECT 1", {}))
            with tx.lent(), suppress(DBAPIError):
                tx.exec_driver_sql("SELECT 1 / 0")

    with pytest.raises(CommitRefused, match="COMMIT was answered with ROLLBACK"):
        commit()
    session.close()


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_session_ends_with_its_transaction(service: Service, change: str) -> None:
    """I1: also what a function or a trigger leaves: the connection is closed after COMMIT, and the next batch has
    another one."""
    change_engine, what = CHANGES[change]
    statement = change_engine if isinstance(change_engine, str) else change_engine(service)

    def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
        service.insert(tx, batch)
        if batch.spans[0].start == 1:
            tx.exec_driver_sql(statement)

    service.run(handle, ["a"], ["b"], ["c"], ["d"])
    first, second, third, fourth = service.backends
    assert first == second
    assert second != third == fourth
    (changed,) = service.changed()
    assert what in changed
    assert service.sink_tables.rows("v") == [("a",), ("b",), ("c",), ("d",)]


def test_an_advisory_lock_ends_after_commit(service: Service) -> None:
    def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
        tx.execute(text("SELECT pg_advisory_lock(815, 1)"))

    service.run(handle, ["a"])
    locks = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 815")

    def is_free() -> bool:
        with service.sink_tables.engine.connect() as tx:
            return bool(tx.execute(locks).scalar_one() == 0)

    until(is_free, "the server's end of the session, whose connection was closed")


def test_a_session_whose_statements_were_forgotten_is_not_replaced(service: Service) -> None:
    """psycopg sends DEALLOCATE ALL after a ROLLBACK TO: the question is asked again, after COMMIT."""

    def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
        tx.exec_driver_sql("DEALLOCATE ALL")
        service.insert(tx, batch)

    service.run(handle, ["a"], ["b"], ["c"])
    assert service.sink_tables.rows("v") == [("a",), ("b",), ("c",)]
    assert len(set(service.backends)) == 1
    assert service.changed() == []


LOCAL = (
    "SET LOCAL work_mem = '77MB'",
    "SET LOCAL app.local = 'x'",
    "DO $$ BEGIN SET LOCAL app.within = 'x'; END $$",
    "SELECT set_config('app.tenant', 'x', true)",
    "SELECT set_config('app.n', coalesce(current_setting('app.n', true), '0') || 'x,)', 't'::bool)",
    "SELECT pg_advisory_xact_lock(12)",
    "CREATE TEMPORARY TABLE passing (a int) ON COMMIT DROP",
    "DECLARE passing CURSOR FOR SELECT 1",
    "SELECT 1",
)


def test_what_ends_with_the_transaction_costs_no_connection(service: Service) -> None:
    def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
        for statement in LOCAL:
            tx.exec_driver_sql(statement)

    service.run(handle, *[[str(n)] for n in range(4)])
    assert len(set(service.backends)) == 1
    assert service.changed() == []


def test_a_handler_that_always_sets_something_is_applied_all_the_same(service: Service) -> None:
    """Each transaction then costs a connection, and the event says why."""

    def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
        tx.execute(text("SELECT set_config('work_mem', :size, false)"), {"size": f"{batch.spans[0].start + 7}MB"})
        service.insert(tx, batch)

    service.run(handle, ["a"], ["b"], ["c"])
    assert len(set(service.backends)) == 3
    assert service.changed() == [("setting work_mem",)] * 3
    assert service.sink_tables.rows("v") == [("a",), ("b",), ("c",)]


# -- the host's ---------------------------------------------------------------------------------------------------


def test_a_lent_connection_never_returns_to_the_hosts_pool(service: Service) -> None:
    service.run(lambda tx, batch: None, ["a"])
    with service.engine.connect() as first, service.engine.connect() as two:
        assert not {driver(first).info.backend_pid, driver(two).info.backend_pid} & set(service.backends)


@pytest.mark.parametrize("moment", ["connect", "checkout", "begin"])
def test_what_the_hosts_engine_events_set_is_there_in_each_batch(service: Service, moment: str) -> None:
    """Also where a handler has changed the session: the connection that replaces it has been through them, too.

    What ``connect`` and ``checkout`` may have set cannot be reset: then each batch has a connection of its own.
    """
    statements = ("SET app.tenant = 'host'", "SET work_mem = '7MB'", "SELECT pg_advisory_lock_shared(99)")

    def on_driver(connection: Any, *_: Any) -> None:
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
        connection.commit()

    def on_begin(connection: Connection) -> None:
        for statement in (*statements, "SET LOCAL statement_timeout = '55s'"):
            connection.exec_driver_sql(statement)

    if moment == "begin":
        event.listen(service.engine, "begin", on_begin)
    else:
        event.listen(service.engine, moment, on_driver)
    settings: list[tuple[Any, ...]] = []

    def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
        asked = text("SELECT current_setting('app.tenant'), current_setting('work_mem')")
        settings.append(tuple(tx.execute(asked).one()))
        if batch.spans[0].start == 2:
            tx.exec_driver_sql("SET app.tenant = 'handler'; SET work_mem = '8MB'")

    service.run(handle, *[[str(n)] for n in range(5)])
    assert settings == [("host", "7MB")] * 5
    first, two, three, four, five = service.backends
    if moment == "begin":
        assert first == two == three != four == five
        assert service.changed() == [("setting work_mem",)]
    else:
        assert len(set(service.backends)) == 5


def by_creator(url: URL, new_engine: NewEngine) -> Engine:
    def create() -> psycopg.Connection[Any]:
        connection = psycopg.connect(libpq(url))
        connection.execute("SET app.tenant = 'host'")
        connection.commit()
        return connection

    return new_engine(url, creator=create)


def by_do_connect(url: URL, new_engine: NewEngine) -> Engine:
    def do_connect(_dialect: Any, _record: Any, args: Any, options: Any) -> psycopg.Connection[Any]:
        connection: psycopg.Connection[Any] = psycopg.connect(*args, **options)
        connection.execute("SET app.tenant = 'host'")
        connection.commit()
        return connection

    engine = new_engine(url)
    event.listen(engine, "do_connect", do_connect)
    return engine


def by_client_encoding(url: URL, new_engine: NewEngine) -> Engine:
    return new_engine(url, client_encoding="latin1")


def by_options(url: URL, new_engine: NewEngine) -> Engine:
    return new_engine(url, connect_args={"options": "-c app.tenant=host"})


@pytest.mark.parametrize(
    ("make", "setting", "value", "connections"),
    [
        (by_creator, "app.tenant", "host", 3),
        (by_do_connect, "app.tenant", "host", 3),
        (by_client_encoding, "client_encoding", "LATIN1", 3),
        (by_options, "app.tenant", "host", 1),
    ],
)
def test_what_a_connection_was_made_with_is_there_in_each_batch(  # noqa: PLR0917 -- fixtures
    service: Service,
    new_engine: NewEngine,
    make: Callable[[URL, NewEngine], Engine],
    setting: str,
    value: str,
    connections: int,
) -> None:
    """I1: a default is restored by RESET ALL; after code of the host's, each batch has a connection of its own."""
    service.engine = make(service.engine.url, new_engine)
    settings: list[Any] = []

    def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
        settings.append(tx.exec_driver_sql(f"SELECT current_setting('{setting}')").scalar())
        tx.exec_driver_sql("SET app.tenant = 'handler'")
        service.insert(tx, batch)

    service.run(handle, ["a"], ["b"], ["c"])
    assert settings == [value] * 3
    assert len(set(service.backends)) == connections
    assert service.changed() == []


class OwnPool(QueuePool):
    """A pool that makes itself again in its own way, so that nothing is known of its creator."""

    def recreate(self) -> QueuePool:
        return self


def test_who_made_a_connection_is_known_or_taken_for_the_hosts_code(seekpoint_dsn: str, new_engine: NewEngine) -> None:
    assert not is_configured_by_code(new_engine(seekpoint_dsn))
    assert not is_configured_by_code(new_engine(seekpoint_dsn, poolclass=NullPool))
    assert is_configured_by_code(new_engine(seekpoint_dsn, creator=psycopg.connect))
    assert is_configured_by_code(new_engine(seekpoint_dsn, poolclass=OwnPool))


def test_commit_and_the_question_are_one_round_trip(service: Service) -> None:
    session = Session(service.engine, lends=True)
    for _ in range(2):
        with session.transaction() as tx:
            rows_of(tx.driver, ("SELECT 1", {}))
            with tx.lent():
                tx.exec_driver_sql("SELECT 1")
            tracing = ExitStack()
            seen = tracing.enter_context(trips(tx.driver))
        tracing.close()
        assert seen.count == 1
        assert session.changed == ()
    session.close()


def test_an_answer_that_is_missing_after_commit_is_no_failed_commit(service: Service) -> None:
    """I3: COMMIT has succeeded; the connection alone is given up, and the batch is not run again."""
    calls: list[int] = []
    become = by_role(service, "NOLOGIN")  # who may not see some settings

    def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
        calls.append(len(batch))
        service.insert(tx, batch)
        tx.exec_driver_sql(become)

    service.run(handle, ["a"], ["b"])
    assert calls == [1, 1]
    assert service.sink_tables.rows("v") == [("a",), ("b",)]
    assert service.changed() == [("unknown",)] * 2
