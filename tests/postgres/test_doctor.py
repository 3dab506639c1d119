"""``doctor``: silent on a healthy ledger; each finding on the fault that it is for.

The faults are real, but for two readings that no server here can give: another clock, and an older Postgres.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.pool import NullPool
from typer.testing import CliRunner

from seekpoint import schema
from seekpoint.admin import Admin, Diagnosis, GroupStatus, Level, WorkerStatus, check_postgres
from seekpoint.admin.check_groups import foreign
from seekpoint.cli.app import app
from seekpoint.kafka.members import Member
from seekpoint.ledger import GroupLedger
from seekpoint.ledger.roles import Role
from seekpoint.ledger.status import StatusTables, WorkerProcess
from seekpoint.records import Partition
from seekpoint.testing.servers.postgres import PostgresServer, start_postgres
from support.command import seekpoint
from support.databases import empty, new_database
from support.ledger_roles import LedgerRoles
from support.transaction_pooler import run_own
from support.trouble import put_stop
from support.waiting import until

HERE = Partition("orders", 0)


@pytest.fixture(scope="module")
def database(seekpoint_dsn: str) -> Iterator[str]:
    """The URL of a database of this module's own."""
    with new_database(seekpoint_dsn) as url:
        yield url


@pytest.fixture
def engine(database: str) -> Iterator[Engine]:
    """An engine on a database that only this test uses now, with a ledger and a group in it."""
    engine = create_engine(database, poolclass=NullPool)
    schema.upgrade(engine)
    ledger = GroupLedger(engine, "shop")
    ledger.claim([HERE], {"orders": uuid4()}, cluster_id="one", start=lambda _: {HERE: 10})
    StatusTables(ledger, WorkerProcess("host-1", 4711, "shop-1", "0.1.0")).sample({HERE: (2, 10)})
    yield engine
    empty(database)


def messages_of(diagnosis: Diagnosis, level: Level = Level.FAILURE) -> dict[str, str]:
    """Messages by check, of the findings of a level; each of them says what to do."""
    findings = [finding for finding in diagnosis.findings if finding.level is level]
    assert level is Level.OK or all(finding.remedies for finding in findings)
    checks = {finding.check for finding in findings}
    return {check: "\n".join(finding.message for finding in findings if finding.check == check) for check in checks}


def sql(engine: Engine, *statements: str) -> None:
    with engine.begin() as tx:
        for statement in statements:
            tx.execute(text(statement))


def test_a_healthy_ledger_has_no_failure(engine: Engine) -> None:
    diagnosis = Admin(engine).doctor()
    assert diagnosis.is_well
    assert messages_of(diagnosis) == {}
    assert set(messages_of(diagnosis, Level.WARNING)) <= {"brokers", "durability"}  # test servers may not sync
    checks = {"versions", "server", "pooler", "clocks", "transaction_timeout", "replication", "schema", "rights",
              "autovacuum", "stops", "retention"}  # fmt: skip
    assert checks <= messages_of(diagnosis, Level.OK).keys()


def test_it_runs_where_nothing_can_be_written_and_while_rows_are_locked(engine: Engine) -> None:
    with engine.begin() as other:
        other.execute(text("SELECT FROM seekpoint.partition_offset FOR UPDATE"))
        other.execute(text("SELECT FROM seekpoint.consumer_group FOR UPDATE"))
        other.execute(text("LOCK TABLE seekpoint.partition_offset IN SHARE ROW EXCLUSIVE MODE"))
        assert Admin(engine).doctor().is_well


def test_no_ledger_a_newer_and_an_unknown_one(engine: Engine) -> None:
    assert "has no ledger tables" in messages_of(Admin(engine, schema="none").doctor())["schema"]
    sql(engine, "UPDATE seekpoint.alembic_version SET version_num = '9999'")
    assert "9999" in messages_of(Admin(engine).doctor())["schema"]
    sql(engine, f"UPDATE seekpoint.alembic_version SET version_num = '{schema.HEAD}'")
    sql(engine, "UPDATE seekpoint.alembic_version SET version_num = '0000'")
    assert "0000, which is not a revision of Seekpoint's" in messages_of(Admin(engine).doctor())["schema"]


@pytest.fixture
def roles(engine: Engine) -> Iterator[LedgerRoles]:
    """The roles of the ledger."""
    roles = LedgerRoles(engine.url)
    roles.script()
    yield roles
    roles.drop()


def test_each_role_has_its_rights(roles: LedgerRoles) -> None:
    """A role that may not read the groups' rows is warned that they were not checked."""
    for role in (Role.WRITER, Role.OPERATOR, Role.READER, Role.STAGER):
        diagnosis = Admin(roles.engine(role)).doctor(role)
        assert messages_of(diagnosis) == {}
        assert role.value in messages_of(diagnosis, Level.OK)["rights"]
        assert ("groups" in messages_of(diagnosis, Level.WARNING)) == (role in {Role.WRITER, Role.READER})
        assert "is not in pg_read_all_stats" in messages_of(diagnosis, Level.OK)["autovacuum"]


def test_a_right_that_is_missing(engine: Engine, roles: LedgerRoles) -> None:
    writer, reader = roles.engine(Role.WRITER), roles.engine(Role.READER)
    name = roles.names[Role.WRITER]
    assert "lacks rights of a writer" in messages_of(Admin(reader).doctor(Role.WRITER))["rights"]
    sql(engine, f'REVOKE UPDATE ON seekpoint.dead_letter FROM "{name}"')
    message = messages_of(Admin(writer).doctor())["rights"]
    assert message.endswith("for a writer it lacks UPDATE on dead_letter")
    sql(engine, f'REVOKE SELECT (state) ON seekpoint.reload_run FROM "{roles.names[Role.READER]}"')
    assert messages_of(Admin(reader).doctor(Role.READER))["rights"].endswith(": SELECT (state) on reload_run")
    sql(engine, f'REVOKE SELECT ON seekpoint.alembic_version FROM "{name}"')
    assert "may not read seekpoint.alembic_version" in messages_of(Admin(writer).doctor())["schema"]
    sql(engine, f'REVOKE ALL ON SCHEMA seekpoint FROM "{name}"')
    assert not Admin(writer).doctor().is_well


def test_a_login_without_any_right_is_named(engine: Engine, roles: LedgerRoles) -> None:
    """The other findings are there, too."""
    name = roles.names[Role.READER]
    sql(engine, f'REVOKE ALL ON ALL TABLES IN SCHEMA seekpoint FROM "{name}"')
    sql(engine, f'REVOKE ALL ON SCHEMA seekpoint FROM "{name}"')
    diagnosis = Admin(roles.engine(Role.READER)).doctor()
    assert messages_of(diagnosis)["schema"].startswith(f"{name} may not read seekpoint.alembic_version")
    assert "server" in messages_of(diagnosis, Level.OK)


@pytest.mark.parametrize(
    ("setting", "check", "level"),
    [("synchronous_commit=off", "durability", Level.WARNING),
     ("transaction_timeout=5000", "transaction_timeout", Level.WARNING),
     ("default_transaction_read_only=on", "server", Level.FAILURE),
     ("track_counts=off", "autovacuum", Level.FAILURE)],
)  # fmt: skip
def test_settings_of_the_login(engine: Engine, setting: str, check: str, level: Level) -> None:
    assert check in messages_of(Admin(session(engine, setting)).doctor(), level)


def test_a_reader_may_be_read_only_and_its_database_may_not(engine: Engine) -> None:
    reader = session(engine, "default_transaction_read_only=on")
    assert "server" not in messages_of(Admin(reader).doctor(Role.READER))
    assert "server" in messages_of(Admin(reader).doctor(Role.WRITER))
    sql(engine, f'ALTER DATABASE "{engine.url.database}" SET default_transaction_read_only = on')
    assert "server" in messages_of(Admin(engine).doctor(Role.READER))


def session(engine: Engine, setting: str) -> Engine:
    """An engine whose sessions have a setting."""
    return create_engine(engine.url, poolclass=NullPool, connect_args={"options": f"-c {setting}"})


def test_a_pooler_is_in_between(engine: Engine) -> None:
    with run_own(engine.url.render_as_string(hide_password=False)) as url:
        through = create_engine(url, poolclass=NullPool)
        assert "is not the one announced on connecting" in messages_of(Admin(through).doctor(), Level.WARNING)["pooler"]


@pytest.mark.parametrize("seconds", [-60, 60])
def test_clocks_that_differ(engine: Engine, monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    answered(monkeypatch, now=datetime.now(UTC) + timedelta(seconds=seconds))
    assert re.search(r"differ by (59|6\d)\.\d s", messages_of(Admin(engine).doctor(), Level.WARNING)["clocks"])


def test_a_postgres_without_transaction_timeout(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    answered(monkeypatch, number=160004, transaction_timeout="")
    assert "Postgres 17" in messages_of(Admin(engine).doctor(), Level.WARNING)["transaction_timeout"]


def answered(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Change what the server answers about itself."""
    facts = check_postgres.facts
    monkeypatch.setattr(check_postgres, "facts", lambda tx: SimpleNamespace(**facts(tx)._asdict() | changes))


def test_a_table_without_autovacuum_and_dead_rows_that_are_left(engine: Engine) -> None:
    every = "consumer_group, topic, partition, topic_id, at - n * interval '1 ms', next_offset, log_start, log_end"
    sql(
        engine,
        "ALTER TABLE seekpoint.position_sample SET (autovacuum_enabled = false)",
        "INSERT INTO seekpoint.position_sample (consumer_group, topic, partition, topic_id, at, next_offset, "
        f"log_start, log_end) SELECT {every} FROM seekpoint.position_sample, generate_series(1, 20001) n",
        "DELETE FROM seekpoint.position_sample WHERE at < (SELECT max(at) FROM seekpoint.position_sample)",
        "SELECT pg_stat_force_next_flush()",
    )
    messages = messages_of(Admin(engine).doctor(), Level.WARNING)["autovacuum"].splitlines()
    table = "seekpoint.position_sample"
    assert messages == [f"autovacuum is off for {table}", f"{table} has 20,001 dead rows and 1 live row"]
    sql(engine, "ALTER TABLE seekpoint.position_sample RESET (autovacuum_enabled)")
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as tx:
        tx.execute(text("VACUUM seekpoint.position_sample"))
    assert "autovacuum" in messages_of(Admin(engine).doctor(), Level.OK)


LEFT_OPEN = {
    "after a write": ("READ COMMITTED", "UPDATE seekpoint.consumer_group SET paused = paused"),
    "with a snapshot": ("REPEATABLE READ", "SELECT 1"),
}


@pytest.mark.parametrize("name", LEFT_OPEN)
def test_a_transaction_that_was_left_open(engine: Engine, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """An hour is a moment here."""
    monkeypatch.setattr(check_postgres, "OLD", 0.0)
    isolation: Any
    isolation, left = LEFT_OPEN[name]
    with engine.connect().execution_options(isolation_level=isolation) as idle:
        idle.execute(text(left))
        assert "a transaction has been open for" in messages_of(Admin(engine).doctor(), Level.WARNING)["autovacuum"]


RISKY = {"fsync": "off", "full_page_writes": "off", "autovacuum": "off", "wal_level": "logical",
         "max_prepared_transactions": "1"}  # fmt: skip


@pytest.mark.long
def test_a_server_that_may_lose_commits_or_takes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """One server with one fault after the other: settings, standbys, a prepared transaction; a standby itself."""
    with start_postgres(RISKY, own=True) as server:
        engine = create_engine(server.url, poolclass=NullPool)
        schema.upgrade(engine)
        failures = messages_of(Admin(engine).doctor())
        assert "fsync is off" in failures["durability"]
        assert "full_page_writes is off" in failures["durability"]
        assert "nothing removes them" in failures["autovacuum"]
        _replicas(server, engine)
        _standby_that_is_not_waited_for(engine)
        with monkeypatch.context() as patch:
            patch.setattr(check_postgres, "OLD", 0.0)
            _alone(engine, "BEGIN", "CREATE TABLE left_open ()", "PREPARE TRANSACTION 'left'")
            assert "a transaction has been open for" in messages_of(Admin(engine).doctor(), Level.WARNING)["autovacuum"]
            _alone(engine, "ROLLBACK PREPARED 'left'")
        folder = _answer(engine, "SELECT current_setting('data_directory')")
        _alone(engine, f"COPY (SELECT 1) TO '{folder}/standby.signal'")
        server.stop()
        server.start()
        assert "is a standby and takes no writes" in messages_of(Admin(engine).doctor())["server"]


def _replicas(server: PostgresServer, engine: Engine) -> None:
    """A replica that commits do not wait for; a subscriber of logical changes is none."""
    _alone(engine, "CREATE PUBLICATION changes", "SELECT pg_create_logical_replication_slot('other', 'pgoutput')")
    replica = psycopg.pq.PGconn.connect(make_conninfo(server.dsn, replication="database").encode())
    try:
        assert replica.status == psycopg.pq.ConnStatus.OK
        assert "1 asynchronous standby: a failover" in messages_of(Admin(engine).doctor(), Level.WARNING)["replication"]
        options = "proto_version '1', publication_names 'changes'"
        started = replica.exec_(f"START_REPLICATION SLOT other LOGICAL 0/0 ({options})".encode())
        assert started.status == psycopg.pq.ExecStatus.COPY_BOTH
        assert "replication" in messages_of(Admin(engine).doctor(), Level.OK)
    finally:
        replica.finish()
    ended = "SELECT count(*) = 0 FROM pg_stat_replication"
    until(lambda: _answer(engine, ended), "the end of the replica")
    _alone(engine, "SELECT pg_drop_replication_slot('other')")


def _standby_that_is_not_waited_for(engine: Engine) -> None:
    """It is named, and this login's commits do not wait for it."""
    local = session(engine, "synchronous_commit=local")
    _alone(engine, "ALTER SYSTEM SET synchronous_standby_names = 'one'", "SELECT pg_reload_conf()")
    message = "synchronous_commit is local: commits do not wait for one"
    until(lambda: messages_of(Admin(local).doctor(), Level.WARNING).get("replication") == message, "the setting")
    _alone(engine, "ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
    until(lambda: "replication" in messages_of(Admin(local).doctor(), Level.OK), "the setting to end")


def _answer(engine: Engine, query: str) -> Any:
    with engine.connect() as connection:
        return connection.scalar(text(query))


def _alone(engine: Engine, *statements: str) -> None:
    """Run these without a transaction around them."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def test_a_stop_and_records_that_retention_deleted(engine: Engine) -> None:
    sql(
        engine,
        put_stop("seekpoint", "OffsetLost", "10"),
        "UPDATE seekpoint.position_sample SET log_start = 25, log_end = 30",
    )
    failures = messages_of(Admin(engine).doctor())
    assert failures["stops"] == "shop: orders/0 stopped at 10: OffsetLost"
    assert failures["retention"] == "shop: orders/0: retention deleted 15 records that had not been applied"


def test_a_pause(engine: Engine) -> None:
    sql(engine, "UPDATE seekpoint.consumer_group SET paused = true, paused_by = 'ada', paused_reason = 'the index'")
    assert messages_of(Admin(engine).doctor(), Level.WARNING)["pauses"] == "shop: paused by ada: the index"


WAITING = """
    INSERT INTO seekpoint.dead_letter
      (consumer_group, topic, topic_id, partition, record_offset, header_names, header_values, state, cause, error,
       attempts, version, dead_lettered_at, retry_at, replay_error)
    SELECT 'shop', 'orders', gen_random_uuid(), 0, n, '{}', '{}', 'waiting', 'handler', 'E', 1, 1,
           now() - interval '3 hours', now() + interval %s, %s
    FROM generate_series(1, 8) n"""
LIMIT = """UPDATE seekpoint.consumer_group SET declared = '{"orders": {"most_waiting": %s}}'"""


@pytest.mark.parametrize(
    ("due", "error", "limit", "message"),
    [
        ("'1 minute'", "NULL", 11, None),
        ("'-1 minute'", "NULL", 11, None),
        ("'-6 minutes'", "NULL", 11, "8 records wait for their retries, and the first has been due for 6 min"),
        ("'1 minute'", "'Away'", 11, "retries of 8 records are put off again and again, by an error that counts as no"),
        ("'1 minute'", "'Away'", 11, "attempt; the oldest waits for 3 h"),
        ("'1 minute'", "NULL", 10, "8 records wait for their retries, and at 10 the partition waits, too"),
    ],
)
def test_records_that_wait_too_long_or_are_too_many(
    engine: Engine, due: str, error: str, limit: int, message: str | None
) -> None:
    sql(engine, WAITING % (due, error), LIMIT % limit)
    warnings = messages_of(Admin(engine).doctor(), Level.WARNING)
    assert (message or "") in warnings.get("retries", "")
    assert ("retries" in warnings) == (message is not None)
    sql(engine, "UPDATE seekpoint.consumer_group SET paused = true, paused_by = 'ada', paused_reason = 'the index'")
    assert "retries" in messages_of(Admin(engine).doctor(), Level.OK), "the pause is reported"


def test_many_partitions_with_the_same_problem_are_counted(engine: Engine) -> None:
    others = [Partition("orders", number) for number in range(1, 25)]
    GroupLedger(engine, "shop").claim(
        others, {"orders": uuid4()}, cluster_id="one", start=lambda _: dict.fromkeys(others, 10)
    )
    sql(
        engine,
        put_stop("seekpoint", "PoisonStop", "10"),
    )
    *_, last = lines = messages_of(Admin(engine).doctor())["stops"].splitlines()
    assert (len(lines), last) == (11, "shop: the same for 15 more partitions")


def test_records_that_retention_is_about_to_delete_and_no_fresh_sample(engine: Engine) -> None:
    """Only where something is left to apply; two records an hour, and eight are left."""
    sql(
        engine,
        "INSERT INTO seekpoint.position_sample "
        "(consumer_group, topic, partition, topic_id, at, next_offset, log_start, log_end) "
        "SELECT consumer_group, topic, partition, topic_id, at - interval '1 hour', 10, 0, 10 "
        "FROM seekpoint.position_sample",
    )
    assert "retention" in messages_of(Admin(engine).doctor(), Level.OK), "all is applied"
    sql(engine, "UPDATE seekpoint.position_sample SET log_end = 12 WHERE log_start = 2")
    message = messages_of(Admin(engine).doctor(), Level.WARNING)["retention"]
    assert message.startswith("shop: orders/0: the log's start reaches the position in 4:00:0")
    sql(engine, "UPDATE seekpoint.position_sample SET at = at - interval '4 minutes'")
    message = messages_of(Admin(engine).doctor(), Level.WARNING)["retention"]
    assert message.endswith("headroom is not known for 1 partition: no sample is recent")


def test_brokers_that_do_not_answer(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seekpoint.admin.admin.KAFKA_TIMEOUT", 0.5)
    diagnosis = Admin(engine, {"bootstrap.servers": "127.0.0.1:1"}).doctor()
    assert "no broker answered" in messages_of(diagnosis)["brokers"]


def member_of(*workers: tuple[str | None, str, timedelta]) -> GroupStatus:
    now = datetime.now(UTC)
    rows = [
        WorkerStatus(uuid4(), "host", n, client, 1, "0.1.0", now, now - age, state, state != "ended")
        for n, (client, state, age) in enumerate(workers)
    ]
    return GroupStatus("shop", 1, None, (), tuple(rows), None)


def test_members_that_are_no_workers() -> None:
    now, old = timedelta(), timedelta(hours=2)
    group = member_of(
        ("shop-1", "running", now), (None, "running", now), ("shop-2", "ended", now), ("x", "running", old)
    )
    ours = [Member("shop-1", "/10.0.0.1"), Member("rdkafka", "/10.0.0.2")]
    assert not foreign(group, ours)
    assert foreign(group, [*ours, Member("rdkafka", "/10.0.0.3")]) == {Member("rdkafka", "/10.0.0.3"): 1}
    assert set(foreign(group, [Member("shop-2", "h"), Member("x", "h")])) == {Member("shop-2", "h"), Member("x", "h")}
    assert foreign(member_of(), [Member("consumer-1", "h")] * 2) == {Member("consumer-1", "h"): 2}


def test_the_command_answers_with_exit_code_and_without_a_password(engine: Engine) -> None:
    url = engine.url.render_as_string(hide_password=False)
    assert engine.url.password
    done = CliRunner().invoke(app, ["doctor", "--database-url", url])
    assert (done.exit_code, "ok       schema: seekpoint is at revision" in done.stdout) == (0, True)
    sql(engine, put_stop("seekpoint", "A", "1"))
    failed = CliRunner().invoke(app, ["doctor", "--database-url", url, "--json", "-q"])
    report = json.loads(failed.stdout)
    assert (failed.exit_code, report["ok"]) == (1, False)
    assert "stops" in [finding["check"] for finding in report["findings"] if finding["level"] == "failure"]
    for answer in (done, failed):
        assert str(make_url(url).password) not in answer.output


# -- tables of pipelines -----------------------------------------------------------------------------------

PIPELINES = """\
import msgspec
from seekpoint import Append, Json, Pipeline, Text, Upsert

class Order(msgspec.Struct):
    id: int
    note: str | None

sink = Append("lines", columns=["line"], row=lambda record: (record.value,))
orders = Pipeline("shop", topics="orders", value=Json(Order), sinks=[Upsert("orders", key=["id"])])
lines = Pipeline("lines", topics="lines", value=Text(), sinks=[sink])
handled = Pipeline("handled", topics="lines", value=Text(), handle=lambda tx, batch: None, writes=["accounts"])
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module with pipelines."""
    name = f"pipes_{uuid4().hex}"
    (tmp_path / f"{name}.py").write_text(PIPELINES)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def of_tables(engine: Engine, *targets: str, exits: int) -> list[list[Any]]:
    """Level, message and remedies of each finding on the tables of these pipelines."""
    url = engine.url.render_as_string(hide_password=False)
    report = json.loads(seekpoint("doctor", *targets, "--database-url", url, "--json", exits=exits).stdout)
    findings = [finding for finding in report["findings"] if finding["check"] == "tables"]
    return [[finding["level"], finding["message"], finding["remedies"]] for finding in findings]


def test_what_the_tables_of_a_pipeline_lack(engine: Engine, module: str) -> None:
    assert of_tables(engine, exits=0) == []
    orders = f"{module}:orders"
    ((level, message, created),) = of_tables(engine, orders, exits=1)
    assert (level, message) == ("failure", f"{orders}: orders does not take every row")
    columns = "( id BIGINT NOT NULL, note TEXT, PRIMARY KEY (id) )"
    assert created == [f"CREATE TABLE orders {columns} WITH (fillfactor = 50);"]
    sql(engine, *created)
    assert of_tables(engine, orders, exits=0) == [["ok", f"{orders}: its tables take every row", []]]
    sql(engine, "ALTER TABLE orders DROP COLUMN note, DROP CONSTRAINT orders_pkey")
    url = engine.url.render_as_string(hide_password=False)
    lines = seekpoint("doctor", orders, "-q", "--database-url", url, exits=1).stdout.splitlines()
    assert [line.strip() for line in lines if "→" in line][-2:] == [
        "→ ALTER TABLE orders ADD COLUMN note TEXT;",
        "→ ALTER TABLE orders ADD CONSTRAINT orders_pkey PRIMARY KEY (id);",
    ]


def test_what_a_start_refuses_of_a_pipeline(engine: Engine, module: str) -> None:
    lines, handled, orders = (f"{module}:{name}" for name in ("lines", "handled", "orders"))
    unknown, missing, unwritten = of_tables(engine, lines, handled, exits=1)
    assert unknown[:1] == ["warning"]
    assert f"{lines}: types were not compared: Append('lines'): the fields of its rows are not known" in unknown[1]
    assert missing[:2] == ["failure", f"{lines}: Append('lines'): relation \"lines\" does not exist"]
    assert missing[2][0].startswith(f"create the table (`seekpoint db table {lines}` prints the statement), or correct")
    assert unwritten[1].endswith("writes='accounts': relation 'accounts' does not exist")
    assert unwritten[2][0].startswith("create the table, or correct its name")
    sql(engine, "CREATE TABLE lines (line text)", "CREATE TABLE accounts ()")
    assert [level for level, *_ in of_tables(engine, lines, handled, exits=0)] == ["warning", "ok"]
    sql(engine, "CREATE TABLE orders (id bigint PRIMARY KEY DEFERRABLE, note text)")
    ((level, message, _),) = of_tables(engine, orders, exits=1)
    assert (level, "the table has no unique index on exactly" in message) == ("failure", True)
    sql(engine, "ALTER TABLE orders RENAME TO base", "CREATE VIEW orders AS TABLE base")
    sql(engine, "ALTER TABLE base DROP CONSTRAINT orders_pkey, ADD PRIMARY KEY (id)")
    assert [level for level, *_ in of_tables(engine, orders, exits=0)] == ["ok"]


@pytest.mark.long
def test_a_locked_table_of_a_pipeline_is_a_warning(engine: Engine, module: str) -> None:
    sql(engine, "CREATE TABLE orders (id bigint PRIMARY KEY, note text)")
    with engine.begin() as tx:
        tx.execute(text("LOCK TABLE orders"))
        (locked,) = of_tables(engine, f"{module}:orders", exits=0)
    assert locked == [
        "warning",
        f"{module}:orders: not checked: LockNotAvailable: canceling statement due to lock timeout",
        ["run doctor again"],
    ]


def test_a_pipeline_that_does_not_exist(engine: Engine, module: str) -> None:
    url = engine.url.render_as_string(hide_password=False)
    assert "has no 'nope'" in seekpoint("doctor", f"{module}:nope", "--database-url", url, exits=2).stderr
    assert "'shop' is not module:name" in seekpoint("doctor", "shop", "--database-url", url, exits=2).stderr
