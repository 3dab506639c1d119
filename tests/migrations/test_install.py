"""Up, down and up again without a host's Alembic: by engine, by connection, by plain SQL."""

from __future__ import annotations

import logging
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic import op
from alembic.migration import MigrationContext
from sqlalchemy import Engine, create_engine, event, func, inspect, make_url, select, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.pool import NullPool

from seekpoint import schema
from seekpoint.errors import ConfigError, SchemaMismatch
from seekpoint.ledger import tables
from support.databases import libpq
from support.waiting import until

OURS = {"alembic_version", *(table.name for table in tables.metadata.sorted_tables)}
NEXT = OURS | {"note"}  # of the second revision, which the tests alone have
ODD_NAMES = [
    "GroupLedger",
    'we"ird',
    "with space",
    "100%",
    "a.b",
    "colon:name",
    "naïve",
    "select",
    "'; DROP TABLE x; --",
]


def created(engine: Engine, name: str = "seekpoint") -> set[str]:
    with engine.connect() as connection:
        return set(inspect(connection).get_table_names(schema=name))


def revision(engine: Engine, name: str = "seekpoint") -> str | None:
    with engine.connect() as connection:
        return schema.current(connection, name)


def run_script(database_url: str, script: str) -> None:
    """As ``psql -f`` would: each statement by itself, the transaction in the script's own hands."""
    dsn = libpq(database_url)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(script.encode())


def test_alembic_says_nothing_in_the_hosts_log(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    schema.upgrade(engine)
    with engine.begin() as connection:
        schema.upgrade(connection)
        schema.check(connection)
    schema.sql()
    schema.downgrade(engine)
    assert [record.name for record in caplog.records if record.name.startswith("alembic")] == []
    MigrationContext.configure(dialect_name="postgresql", opts={"as_sql": True})
    assert any(record.name.startswith("alembic") for record in caplog.records), "the host's own use still does"


def test_a_worker_does_not_import_alembic() -> None:
    """Its import alone writes lines into the log of a host that has set up logging before."""
    imports = "import sys, seekpoint.worker.worker, seekpoint.jobs.batch, seekpoint.jobs.reload"
    code = f"{imports}; print([name for name in sys.modules if 'alembic' in name])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_both_ways_are_idempotent(engine: Engine) -> None:
    schema.upgrade(engine)
    with engine.begin() as connection:
        connection.execute(tables.consumer_group.insert().values(name="billing"))
    schema.upgrade(engine)
    with engine.connect() as connection:
        assert connection.scalar(select(tables.consumer_group.c.name)) == "billing"
    schema.downgrade(engine)
    schema.downgrade(engine)
    assert created(engine) == set()


def test_downgrade_leaves_the_schema_and_what_others_keep_in_it(engine: Engine) -> None:
    schema.upgrade(engine)
    execute(engine, "CREATE TABLE seekpoint.theirs ()")
    schema.downgrade(engine)
    assert created(engine) == {"theirs"}


@pytest.mark.repeats("name")
@pytest.mark.parametrize("name", ["seekpoint", *ODD_NAMES, "x" * 63])
def test_up_down_up_in_a_schema_of_any_name(engine: Engine, name: str) -> None:
    schema.upgrade(engine, schema=name)
    assert (created(engine, name), revision(engine, name)) == (OURS, schema.HEAD)
    with engine.connect() as connection:
        schema.check(connection, name)
        assert (
            connection.execution_options(**tables.in_schema(name)).scalar(
                select(func.count()).select_from(tables.partition_offset)
            )
            == 0
        )
    schema.downgrade(engine, schema=name)
    assert (created(engine, name), revision(engine, name)) == (set(), None)
    schema.upgrade(engine, schema=name)
    assert (created(engine, name), revision(engine, name)) == (OURS, schema.HEAD)


@pytest.mark.parametrize("name", ["", "public", "pg_ledger", "information_schema", "x" * 64, "ü" * 32, "a\0b"])
def test_names_that_cannot_work_are_refused(engine: Engine, name: str) -> None:
    for attempt in (
        lambda: schema.upgrade(engine, schema=name),
        lambda: schema.downgrade(engine, schema=name),
        lambda: schema.sql(schema=name),
    ):
        with pytest.raises(ConfigError, match="schema"):
            attempt()


def test_a_connection_keeps_its_transaction(engine: Engine) -> None:
    with engine.connect() as connection:
        schema.upgrade(connection)
        schema.check(connection)
        connection.rollback()
    assert created(engine) == set(), "the caller rolled back"
    with engine.begin() as connection:
        schema.upgrade(connection)
    assert revision(engine) == schema.HEAD


def test_a_failed_upgrade_leaves_none_of_its_tables(engine: Engine) -> None:
    execute(engine, "CREATE SCHEMA seekpoint")
    execute(engine, "CREATE TABLE seekpoint.admin_action ()")
    with pytest.raises(Exception, match="admin_action"):
        schema.upgrade(engine)
    assert created(engine) == {"admin_action"}
    execute(engine, "DROP TABLE seekpoint.admin_action")
    schema.upgrade(engine)
    assert created(engine) == OURS, "and the next one starts afresh, in the same process"


@pytest.mark.repeats("level")
@pytest.mark.parametrize("level", ["AUTOCOMMIT", "REPEATABLE READ", "SERIALIZABLE"])
def test_an_engine_of_any_isolation_level_will_do(database_url: str, level: str) -> None:
    engine = create_engine(database_url, isolation_level=level, poolclass=NullPool)
    schema.upgrade(engine)
    assert revision(engine) == schema.HEAD


def test_a_connection_in_autocommit_is_refused(engine: Engine) -> None:
    autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
    with autocommit.connect() as connection, pytest.raises(ConfigError, match="autocommit mode: open it with"):
        schema.upgrade(connection)
    assert created(engine) == set()


class AsyncEngine:
    """SQLAlchemy's own needs greenlet, which is not a dependency; the type's name is all that is said of it."""


def test_other_databases_and_targets_are_refused() -> None:
    with pytest.raises(ConfigError, match="in Postgres, not in sqlite"):
        schema.upgrade(create_engine("sqlite://", poolclass=NullPool))
    with pytest.raises(ConfigError, match=r"not AsyncEngine.*run_sync\(seekpoint\.schema\.upgrade\)"):
        schema.upgrade(AsyncEngine())  # type: ignore[arg-type]


def test_each_statement_is_sent_by_itself(engine: Engine) -> None:
    """The drivers of some hosts (asyncpg) prepare each statement, and the server prepares no two at once."""

    def prepared(cursor: Any, statement: str, parameters: Any, _context: Any) -> bool:
        cursor.execute(statement, parameters, prepare=True)
        return True

    event.listen(engine, "do_execute", prepared)
    schema.upgrade(engine)
    assert revision(engine) == schema.HEAD
    schema.downgrade(engine)
    assert revision(engine) is None


def test_a_refusal_by_the_driver_of_an_async_host_is_its_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    class OfAsyncpg(Exception):  # noqa: N818 -- as asyncpg and SQLAlchemy shape it; neither asyncpg nor greenlet is here
        message, hint = "seekpoint: a run is open: 5", "Let it end"

    class Adapted(Exception):  # noqa: N818
        sqlstate = "55000"

    def refuse(_statement: object) -> None:
        adapted = Adapted("<class 'asyncpg'>: ...")
        adapted.__cause__ = OfAsyncpg()
        raise DBAPIError("DO ...", None, adapted)

    monkeypatch.setattr(op, "execute", refuse)
    with pytest.raises(ConfigError, match=r"^seekpoint: a run is open: 5\. Let it end \[SP1001\]$"):
        schema.refuse_open_runs("seekpoint")


def test_unknown_revisions_are_refused(engine: Engine) -> None:
    with pytest.raises(ConfigError, match=r"no schema revision '9999', only base, 0001 \[SP1001\]$"):
        schema.upgrade(engine, to="9999")
    with pytest.raises(ConfigError, match="no schema revision 'head'"):
        schema.sql(since="head")


def test_a_newer_ledger_is_neither_upgraded_nor_taken_down(engine: Engine) -> None:
    schema.upgrade(engine)
    execute(engine, "UPDATE seekpoint.alembic_version SET version_num = '9999'")
    for attempt in (schema.upgrade, schema.downgrade):
        with pytest.raises(SchemaMismatch, match="9999, newer than revision 0001"):
            attempt(engine)
    assert created(engine) == OURS


def test_the_right_to_create_schemas_is_not_needed_where_one_was_made_for_us(engine: Engine, database_url: str) -> None:
    role = f"migrator_{make_url(database_url).database}"
    execute(engine, f"CREATE ROLE {role}")
    execute(engine, f"CREATE SCHEMA seekpoint AUTHORIZATION {role}")
    try:
        with engine.begin() as connection:
            connection.execute(text(f"SET LOCAL ROLE {role}"))
            schema.upgrade(connection)
        assert revision(engine) == schema.HEAD
    finally:
        execute(engine, f"DROP OWNED BY {role} CASCADE")
        execute(engine, f"DROP ROLE {role}")


WAITING = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = "
               "(SELECT oid FROM pg_database WHERE datname = current_database())")  # fmt: skip
UPGRADE = "import sys, sqlalchemy, seekpoint.schema as s; s.upgrade(sqlalchemy.create_engine(sys.stdin.read()))"


@pytest.mark.long
def test_two_processes_upgrade_at_once(engine: Engine, database_url: str) -> None:
    """Both are seen to wait for the lock that an upgrade in flight holds; then one builds, the other finds it built."""
    with engine.connect() as first:
        schema.upgrade(first)
        racers = [
            subprocess.Popen([sys.executable, "-c", UPGRADE], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        for racer in racers:
            assert racer.stdin
            racer.stdin.write(database_url)
            racer.stdin.close()
            racer.stdin = None
        with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as watcher:
            until(lambda: watcher.scalar(WAITING) == 2, "both to wait")
        first.rollback()  # so that a racer finds nothing and has to build
    for racer in racers:
        _, complaint = racer.communicate(timeout=60)
        assert racer.returncode == 0, complaint
    assert (created(engine), revision(engine)) == (OURS, schema.HEAD)


def test_threads_upgrade_schemas_of_their_own(engine: Engine) -> None:
    """Alembic's ``op`` is global to the process: two threads using it at once could build in the wrong schema."""
    names = [f"ledger_{number}" for number in range(6)]
    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(lambda name: schema.upgrade(engine, schema=name), names))
    assert [created(engine, name) for name in names] == [OURS] * len(names)


def test_the_scripts_are_found_in_a_checkout_and_in_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (schema.version_location() / "0001_ledger.py").is_file()
    package = tmp_path / "site-packages" / "seekpoint"
    (package / "migrations" / "versions").mkdir(parents=True)
    monkeypatch.setattr(schema, "__file__", str(package / "schema.py"))
    assert schema.version_location() == package / "migrations" / "versions"
    (package / "migrations" / "versions").rmdir()
    with pytest.raises(ConfigError, match="has no migrations: install it again"):
        schema.version_location()


# -- the second revision ----------------------------------------------------------------------------------------------

ROWS = """
    INSERT INTO {s}.consumer_group (name, cluster_id, version) VALUES ('g', 'c', 3);
    INSERT INTO {s}.partition_offset
      (consumer_group, topic, partition, topic_id, first_offset, next_offset, token, epoch)
    SELECT 'g', 't', n, gen_random_uuid(), 0, n * 10, gen_random_uuid(), 7 FROM generate_series(0, 99) n;
    INSERT INTO {s}.lost_range
      (consumer_group, topic, topic_id, partition, from_offset, to_offset, reason, decision, actor)
    VALUES ('g', 't', gen_random_uuid(), 0, 1, 2, 'r', 'd', 'a');
    INSERT INTO {s}.admin_action (consumer_group, action, actor, reason) VALUES ('g', 'pause', 'a', 'r')"""
DEAD_LETTER = """
    INSERT INTO {s}.dead_letter (consumer_group, topic, topic_id, partition, record_offset, header_names, header_values,
                                 state, cause, error, attempts, version)
    VALUES ('g', 't', gen_random_uuid(), 0, 1, '{{}}', '{{}}', 'dead_lettered', 'row', 'e', 1, 1)"""
FILLED = ("admin_action", "consumer_group", "lost_range", "partition_offset")
KEPT = {table: f"SELECT to_jsonb(t) FROM {{s}}.{table} t ORDER BY 1" for table in FILLED}


def execute(engine: Engine, statements: str, name: str = "seekpoint") -> list[tuple[object, ...]]:
    """Run statements in the schema, without a word of SQLAlchemy's; returns the rows of the last one."""
    url = libpq(engine.url)
    quoted = '"' + name.replace('"', '""') + '"'
    with psycopg.connect(url) as connection:
        cursor = connection.execute(statements.format(s=quoted).encode())
        return cursor.fetchall() if cursor.description else []


def kept(engine: Engine, name: str) -> dict[str, list[dict[str, object]]]:
    """Every row that was there before the second revision."""
    return {table: [dict(row) for (row,) in execute(engine, query, name)] for table, query in KEPT.items()}  # type: ignore[call-overload]


def file_of(engine: Engine, name: str) -> object:
    """Which file holds the offsets: another one after the table was rewritten."""
    [(file,)] = execute(
        engine, "SELECT pg_relation_filenode('{s}.partition_offset')".replace("{s}", _literal(name)), name
    )
    return file


def _literal(name: str) -> str:
    return '"' + name.replace('"', '""').replace("'", "''") + '"'


@pytest.mark.long("some of its cases take seconds")
@pytest.mark.parametrize("name", ["seekpoint", *ODD_NAMES])
@pytest.mark.parametrize("door", ["engine", "connection", "plain SQL"])
def test_a_ledger_in_use_is_brought_up_and_down(
    engine: Engine, database_url: str, second_revision: str, door: str, name: str
) -> None:
    """Rows stay as they are, no table is rewritten, and every step records itself."""

    def up(to: str, since: str) -> None:
        match door:
            case "engine":
                schema.upgrade(engine, to=to, schema=name)
            case "connection":
                with engine.begin() as connection:
                    schema.upgrade(connection, to=to, schema=name)
            case _:
                run_script(database_url, schema.sql(schema=name, to=to, since=since))

    up("0001", "base")
    assert (created(engine, name), revision(engine, name)) == (OURS, "0001")
    execute(engine, ROWS, name)
    rows, file = kept(engine, name), file_of(engine, name)
    assert [len(row) for row in rows.values()] == [1, 1, 1, 100]
    upgraded = {**rows, "partition_offset": [row | {"remarks": 0} for row in rows["partition_offset"]]}
    for _ in range(2):
        up(second_revision, "0001")
        assert (created(engine, name), revision(engine, name)) == (NEXT, second_revision)
        with engine.connect() as connection:
            schema.check(connection, name)
        assert file_of(engine, name) == file
        assert kept(engine, name) == upgraded
        execute(engine, NOTE, name)
        with pytest.raises(ConfigError, match=r"would drop the notes of groups 'g' \(1\): they are in no other place"):
            schema.downgrade(engine, to="0001", schema=name)
        schema.downgrade(engine, to="0001", schema=name, drop=["g"])
        assert (created(engine, name), revision(engine, name)) == (OURS, "0001")
        assert kept(engine, name) == rows
    up(second_revision, "0001")
    schema.downgrade(engine, schema=name, drop=["g"])
    assert (created(engine, name), revision(engine, name)) == (set(), None)


NOTE = "INSERT INTO {s}.note VALUES ('g', 'a note')"


def test_a_ledger_beyond_the_revision_that_is_asked_for_is_left_alone(engine: Engine, second_revision: str) -> None:
    schema.upgrade(engine)
    execute(engine, ROWS)
    schema.upgrade(engine, to="0001")
    assert (created(engine), revision(engine)) == (NEXT, second_revision)
    schema.downgrade(engine, to="0001")
    schema.downgrade(engine, to=second_revision)
    assert (created(engine), revision(engine)) == (OURS, "0001")


def test_an_upgrade_that_cannot_have_its_lock_changes_nothing(engine: Engine, second_revision: str) -> None:
    schema.upgrade(engine, to="0001")
    execute(engine, ROWS)
    rows = kept(engine, "seekpoint")
    with engine.begin() as worker:
        worker.execute(text("SELECT FROM seekpoint.partition_offset FOR UPDATE"))
        with engine.connect() as connection:
            connection.execute(text("SET LOCAL lock_timeout = '50ms'"))
            with pytest.raises(OperationalError, match="lock timeout"):
                schema.upgrade(connection)
    assert (created(engine), revision(engine)) == (OURS, "0001")
    assert kept(engine, "seekpoint") == rows
    schema.upgrade(engine)
    assert revision(engine) == second_revision
