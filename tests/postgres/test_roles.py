"""Each role of ``seekpoint db roles`` runs what it is for, and every other statement of the library is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import ClientCursor
from sqlalchemy import create_engine, make_url
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.pool import NullPool
from typer.testing import CliRunner

from seekpoint import Append, Json, Pipeline, Upsert, schema
from seekpoint.admin import Admin
from seekpoint.cli.app import app
from seekpoint.errors import ConfigError
from seekpoint.ledger import GroupLedger, sql
from seekpoint.ledger.role_script import role_script
from seekpoint.ledger.roles import Role
from seekpoint.ledger.tables import DEFAULT_SCHEMA
from seekpoint.postgres.round_trip import positional
from seekpoint.sinks.arrow import AppendArrow
from seekpoint.testing import process, raw
from support.databases import new_database
from support.ledger_roles import LedgerRoles

# Every statement of the library, by ``file.name``.
NAMED: dict[str, sql.Query] = {
    f"{name.lower()}.{query.name}": query
    for name, queries in vars(sql).items()
    if name.isupper() and isinstance(queries, dict)
    for query in queries.values()
}


@pytest.fixture(scope="module")
def shared_roles(seekpoint_dsn: str) -> Iterator[LedgerRoles]:
    """Roles for tests that change neither tables nor rights; each has groups of its own."""
    with new_database(seekpoint_dsn) as url:
        yield from _roles(url)


@pytest.fixture
def roles(database_url: str) -> Iterator[LedgerRoles]:
    """Roles of a ledger in a database of the test's own."""
    yield from _roles(database_url)


def _roles(url: str) -> Iterator[LedgerRoles]:
    """The database has the tables ``items`` and ``totals``, too."""
    roles = LedgerRoles(make_url(url))
    schema.upgrade(create_engine(roles.url, poolclass=NullPool))
    with psycopg.connect(roles.dsn()) as server:
        server.execute("CREATE TABLE items (id int, v text)")
        server.execute("CREATE TABLE totals (id int PRIMARY KEY, v text)")
    roles.script("items", "public.totals")
    yield roles
    roles.drop()


def _values(query: str) -> dict[str, Any]:
    """Of each parameter. An empty array, or no group, would leave tables out of the plan, and rights unasked."""
    arrays = {key: [None] for key in re.findall(r"%\((\w+)\)s::[\w ]+\[\]", query)}
    return {**dict.fromkeys(positional(query)[1]), **arrays, "group": "g", "old_group": "g", "new_group": "h"}


def refused(roles: LedgerRoles, role: Role) -> set[str]:
    """The statements that the server refuses to this role, before it looks at a row."""
    names = set()
    with psycopg.connect(roles.dsn(), cursor_factory=ClientCursor) as server:
        server.execute(f'SET ROLE "{roles.names[role]}"'.encode())
        for name, query in NAMED.items():
            text = query.in_schema(DEFAULT_SCHEMA)
            try:
                with server.transaction(force_rollback=True):
                    server.execute(f"EXPLAIN {text}".encode(), _values(text))
            except psycopg.errors.InsufficientPrivilege:
                names.add(name)
    return names


def among(*names: str) -> set[str]:
    """Statements by ``file.name``; ``file.*`` are all of one."""
    allowed = set()
    for name in names:
        matching = {
            statement
            for statement in NAMED
            if statement == name or (name.endswith(".*") and statement.startswith(name[:-1]))
        }
        assert matching, f"there is no statement {name}"
        allowed |= matching
    return allowed


# Of a run: its row is locked, and changed, by its driver alone.
DRIVES = (
    *(f"reload_run.{name}" for name in ("insert_run", "insert_position", "insert_staged", "settled_run", "step")),
    *(f"reload_run.{name}" for name in ("take_over", "transition", "diffed", "close", "swept", "gone", "guard")),
    *("reload_run.advance_positions", "reload_run.lock_range", "batch.delete_published"),
    *("export_manifest.insert", "export_manifest.note"),
)
# What was stored of records is deleted by the owner alone.
DELETES = (
    *("forget.delete_positions", "forget.delete_topics", "forget.delete_dead_letters", "forget.delete_losses"),
    *("forget.delete_run_dead_letters", "forget.delete_requests"),
    "purge.delete_closed",
)
# Tables of two groups are exchanged by the owner alone.
EXCHANGES = ("replace.exchange_losses",)
REFUSED = {
    Role.OWNER: set[str](),
    Role.STAGER: among(*DELETES, *EXCHANGES),
    Role.WRITER: among(
        *DRIVES,
        *DELETES,
        *("export_manifest.*", "reload_run.positions", "reload_run.staged", "reload_run.overlapping"),
        *("batch.last_reprocess", "batch.reprocess_dead_letters", "purge.count_run_dead_letters"),
        *("forget.count_run_dead_letters", "forget.every_run_dead_letter"),
        *("status.lag", "status.lag_of_all", "status.group_status", "status.runs"),
        *EXCHANGES,
    ),
    Role.OPERATOR: among(
        *DRIVES,
        *DELETES,
        *EXCHANGES,
        *("forget.delete_samples", "forget.delete_workers", "forget.restore_position", "forget.restore_topic"),
        *("worker.note_crashes", "worker.record_attempts", "worker.record_suspects", "worker.stop"),
        *("worker.cancel_attempts", "worker.end_trouble", "worker.claim", "groups.insert"),
        *("worker.insert_positions", "groups.store_tables"),
        *("dead_letters.insert", "status.insert_samples", "status.prune_samples", "status.worker_seen"),
        "status.delete_unseen",
        *("replay_request.take_request", "replay_request.request_seen", "replay_request.record_request"),
        *("replay_request.fail_abandoned", "replay_request.fail_outdated"),
    ),
    # What is left to a reader names no table of the ledger, or none but the columns that an exporter reads.
    Role.READER: {*NAMED} - among(
        *("status.lag", "status.lag_of_all", "status.group_status", "status.configure"),
        *("status.silent_drivers", "status.topic_ids", "worker.known_topics", "forget.count_positions"),
        *("worker.configure", "purge.clock", "resets.time_limit"),
        *("groups.alone", "groups.qualified", "groups.terminate", "batch.bound", "reload_run.unhurried"),
        "replay.*",
    ),
}  # fmt: skip


def test_each_statement_of_the_library_is_allowed_or_refused(shared_roles: LedgerRoles) -> None:
    """Who may run a statement that is added is decided here, too."""
    for role in Role:
        assert refused(shared_roles, role) == REFUSED[role], role


PIPELINE_TABLES: dict[str, Callable[[], Any]] = {
    "append": lambda: Append("items", columns=["id", "v"]),
    "arrow": lambda: AppendArrow("items", columns=["id", "v"]),
    "upsert": lambda: Upsert("totals", key=["id"], columns=["id", "v"]),
}


def records(count: int) -> list[Any]:
    return [raw(b'{"id": %d, "v": "one"}' % n, topic="orders", partition=0, offset=n) for n in range(count)]


@pytest.mark.parametrize("role", [Role.WRITER, Role.STAGER])
def test_who_may_write_rows(shared_roles: LedgerRoles, role: Role) -> None:
    """Few records and many: sinks write them by different statements."""
    engine = shared_roles.engine(role)
    for kind, sink in PIPELINE_TABLES.items():
        group = f"{kind} of a {role}"
        pipeline = Pipeline(group, topics="orders", value=Json(), sinks=[sink()])
        process(pipeline, engine, records(3))
        process(pipeline, engine, records(500))
        process(pipeline, engine, records(900))
        (position,) = GroupLedger(engine, group).read()
        assert position.next_offset == 900


@pytest.mark.parametrize("role", [Role.OPERATOR, Role.READER])
def test_who_may_not(shared_roles: LedgerRoles, role: Role) -> None:
    for group, sink in PIPELINE_TABLES.items():
        pipeline = Pipeline(group, topics="orders", value=Json(), sinks=[sink()])
        with pytest.raises(ProgrammingError) as caught:
            process(pipeline, shared_roles.engine(role), records(3))
        assert isinstance(caught.value.orig, psycopg.errors.InsufficientPrivilege)
        with shared_roles.engine(role).connect() as tx, pytest.raises(ConfigError, match="permission denied for table"):
            sink().check(tx, [None])


def test_an_operator_pauses_and_resets_a_group_and_a_reader_sees_it(roles: LedgerRoles) -> None:
    pipeline = Pipeline("shop", topics="orders", value=Json(), sinks=[Append("items", columns=["id", "v"])])
    process(pipeline, roles.engine(Role.WRITER), records(10))
    engine = roles.engine(Role.OPERATOR)
    admin = Admin(engine)
    admin.apply(admin.plan_pause("shop"), reason="a test", actor="alice")
    GroupLedger(engine, "shop").reset_offset("orders", 0, 20, log=None, reason="a test", lost="a test gave them up")
    ((group,), doubts) = admin.status()
    assert group.pause is not None
    assert [partition.position.next_offset for partition in group.partitions] == [20]
    assert doubts == []
    reader = Admin(roles.engine(Role.READER))
    assert [(group.name, group.pause is not None, group.partitions) for group in reader.groups()[0]] == [
        ("shop", True, 1)
    ]
    with pytest.raises(ProgrammingError, match="permission denied"):
        reader.status()


NO_SERVICE = (
    *("CREATE SCHEMA more", "CREATE TABLE seekpoint.more ()", "DELETE FROM seekpoint.partition_offset"),
    *("DELETE FROM seekpoint.dead_letter", "UPDATE seekpoint.admin_action SET reason = 'none'"),
    *("DELETE FROM seekpoint.lost_range", "UPDATE seekpoint.alembic_version SET version_num = '9999'"),
)


def test_what_no_service_may_do(shared_roles: LedgerRoles) -> None:
    for role in (Role.WRITER, Role.OPERATOR, Role.READER):
        for statement in NO_SERVICE:
            with shared_roles.engine(role).begin() as tx, pytest.raises(ProgrammingError) as caught:
                tx.exec_driver_sql(statement)
            assert isinstance(caught.value.orig, psycopg.errors.InsufficientPrivilege), (role, statement)


def test_a_reader_reads_no_column_that_an_exporter_does_not_ask(shared_roles: LedgerRoles) -> None:
    for asked in ("next_offset FROM seekpoint.partition_offset", "stop_message FROM seekpoint.partition_trouble",
                  "pipelines FROM seekpoint.reload_run", "count(*) FROM seekpoint.dead_letter",
                  "topic FROM seekpoint.partition_offset FOR SHARE"):  # fmt: skip
        with shared_roles.engine(Role.READER).begin() as tx, pytest.raises(ProgrammingError, match="permission denied"):
            tx.exec_driver_sql(f"SELECT {asked}")


def test_the_owner_takes_the_ledger_down_and_up(roles: LedgerRoles) -> None:
    with roles.engine(Role.OWNER).begin() as tx:
        schema.downgrade(tx)
        schema.upgrade(tx)
    roles.script()
    assert refused(roles, Role.READER) == REFUSED[Role.READER]


def test_the_script_revokes_what_is_too_much(roles: LedgerRoles) -> None:
    """Run again it changes nothing else."""
    name = roles.names[Role.READER]
    with psycopg.connect(roles.dsn(), autocommit=True) as server:
        server.execute(f'GRANT ALL ON ALL TABLES IN SCHEMA seekpoint TO "{name}"'.encode())
        server.execute(f'GRANT SELECT (driver), UPDATE (state) ON seekpoint.reload_run TO "{name}"'.encode())
    assert refused(roles, Role.READER) != REFUSED[Role.READER]
    roles.script("items")
    assert {role: refused(roles, role) for role in Role} == REFUSED
    with psycopg.connect(roles.dsn()) as server:
        for column, privilege in (("driver", "SELECT"), ("state", "UPDATE")):
            asked = "SELECT has_column_privilege(%s, 'seekpoint.reload_run', %s, %s)"
            assert server.execute(asked, [name, column, privilege]).fetchone() == (False,)


def test_any_name_is_quoted(database_url: str) -> None:
    for name in ("it's", 'say "so"', "50% off", "a;b--c", "ü"):
        roles = LedgerRoles(make_url(database_url), name)
        roles.names = {role: f"{name} {role} {uuid4().hex[:8]}" for role in Role}
        with create_engine(roles.url, poolclass=NullPool).begin() as tx:
            schema.upgrade(tx, schema=name)
        roles.script()
        with psycopg.connect(roles.dsn(), autocommit=True) as server:
            owners = server.execute(
                "SELECT DISTINCT pg_get_userbyid(relowner) FROM pg_class WHERE relkind IN ('r', 'v') "
                "AND relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = %s)", (name,)
            ).fetchall()  # fmt: skip
        assert owners == [(roles.names[Role.OWNER],)]
        roles.drop()


@pytest.mark.parametrize(
    ("options", "message"),
    [({"names": {Role.READER: "x" * 64}}, "1 to 63 bytes"), ({"names": {Role.READER: ""}}, "1 to 63 bytes"),
     ({"schema": "a\nb"}, "without line feeds"), ({"targets": ["shop."]}, "1 to 63 bytes"),
     ({"schema": "a\0b"}, "NUL or"), ({"schema": "a$seekpoint$"}, r"'a\$seekpoint\$' cannot be a name"),
     ({"names": {Role.READER: "same", Role.WRITER: "same"}}, "two roles have the name 'same'")],
)  # fmt: skip
def test_names_that_cannot_be_in_the_script_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        role_script(**options)


def test_the_command_prints_the_script_or_the_rights() -> None:
    done = CliRunner().invoke(app, ["db", "roles", "--reader", "grafana", "--table", "public.orders"])
    assert done.exit_code == 0
    assert done.stdout == role_script(names={Role.READER: "grafana"}, targets=["public.orders"])
    report = json.loads(CliRunner().invoke(app, ["db", "roles", "--reader", "grafana", "--json"]).stdout)
    (reader,) = [role for role in report["roles"] if role["role"] == "reader"]
    assert (reader["name"], sorted(reader["tables"])) == ("grafana", ["alembic_version", "group_status", "lag"])
    assert reader["columns"]["reload_run"] == ["id", "state", "changed_at"]
    assert CliRunner().invoke(app, ["db", "roles", "--reader", "x" * 64]).exit_code == 2
