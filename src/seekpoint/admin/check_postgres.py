"""``doctor``'s checks of Postgres: the ledger's schema, the login's rights, settings. Only reads, and locks no row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Row, text

from seekpoint.admin.findings import Finding, Level, problems_or_ok
from seekpoint.errors import SchemaMismatch
from seekpoint.ledger import schema_revision
from seekpoint.ledger.roles import COLUMNS, ON_DATABASE, RIGHTS, Role
from seekpoint.postgres import pooler
from seekpoint.records import numbered

SKEW = 5.0  # seconds between the clocks of this machine and the server's
DEAD_ROWS = 20_000  # most dead rows in a table of a few hundred rows: with more, its indexes grow with every batch
OLD = 3_600.0  # seconds after which a transaction keeps too many dead rows from being removed

_FACTS = text(
    """
SELECT current_setting('server_version') AS version, current_setting('server_version_num')::int AS number,
       current_user AS login, (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user) AS is_superuser,
       pg_is_in_recovery() AS in_recovery, current_setting('default_transaction_read_only') = 'on' AS read_only,
       (SELECT source FROM pg_catalog.pg_settings WHERE name = 'default_transaction_read_only') AS read_only_by,
       clock_timestamp() AS now, current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('fsync') = 'on' AS fsync, current_setting('full_page_writes') = 'on' AS full_page_writes,
       current_setting('synchronous_standby_names') AS standbys, current_setting('autovacuum') = 'on' AS autovacuum,
       current_setting('track_counts') = 'on' AS track_counts,
       coalesce(current_setting('transaction_timeout', true), '') AS transaction_timeout,
       (SELECT count(*) FROM pg_catalog.pg_stat_replication r WHERE NOT EXISTS (
            SELECT FROM pg_catalog.pg_replication_slots s WHERE s.active_pid = r.pid AND s.slot_type = 'logical'
        )) AS replicas,
       (SELECT max(extract(epoch FROM clock_timestamp() - since))::float8 FROM (
            SELECT xact_start AS since FROM pg_catalog.pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid()
                  AND (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL)
            UNION ALL SELECT prepared FROM pg_catalog.pg_prepared_xacts WHERE database = current_database()
        ) AS open) AS oldest,
       pg_has_role('pg_read_all_stats', 'USAGE') AS sees_all
"""
)
# Sources of a setting that belong to this session or its login, not to the server or the database.
_OF_THE_LOGIN = {"client", "session", "user", "database user"}
_RIGHTS = text(
    """
SELECT c.relname AS name, asked.privilege, has_table_privilege(c.oid, asked.privilege) AS granted
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS asked(privilege)
WHERE n.nspname = :schema AND c.relkind IN ('r', 'p', 'v')
"""
)
_READABLE = text(
    """
SELECT c.relname AS name, a.attname AS attribute
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE n.nspname = :schema AND c.relname = ANY (:tables) AND has_column_privilege(c.oid, a.attnum, 'SELECT')
"""
)
_ON_SCHEMA = text("SELECT has_schema_privilege(oid, 'USAGE') FROM pg_catalog.pg_namespace WHERE nspname = :schema")
_ON_DATABASE = text("SELECT has_database_privilege(current_database(), :privilege)")
_VACUUM = text(
    """
SELECT c.relname AS name, 'autovacuum_enabled=false' = ANY (coalesce(c.reloptions, '{}')) AS is_off,
       pg_stat_get_live_tuples(c.oid) AS live, pg_stat_get_dead_tuples(c.oid) AS dead
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = :schema AND c.relkind = 'r' ORDER BY c.relname
"""
)


@dataclass(frozen=True, slots=True)
class Rights:
    """The privileges of this login on the ledger's schema.

    ``tables`` has pairs of table and privilege; ``columns`` has pairs of table and readable column, for tables of which
    some role may read only a part. ``has_ledger``: the schema has a ledger, even if this login cannot read it.
    """

    login: str
    has_ledger: bool
    on_schema: bool
    tables: frozenset[tuple[str, str]]
    columns: frozenset[tuple[str, str]]
    on_database: frozenset[str]

    def may_read(self, *tables: str) -> bool:
        """Whether the login may read all of these tables."""
        return self.on_schema and all((name, "SELECT") in self.tables for name in tables)

    def missing(self, role: Role) -> list[str]:
        """The missing privileges of this role, in the words of GRANT."""
        grants = [] if self.on_schema else ["USAGE on the schema"]
        for name, privileges in RIGHTS.get(role, {}).items():
            lacking = [privilege for privilege in privileges if (name, privilege) not in self.tables]
            grants += [f"{', '.join(lacking)} on {name}"] if lacking else []
        for name, columns in COLUMNS.get(role, {}).items():
            lacking = [column for column in columns if (name, column) not in self.columns]
            grants += [f"SELECT ({', '.join(lacking)}) on {name}"] if lacking else []
        return grants + [
            f"{privilege} on the database"
            for privilege in ON_DATABASE.get(role, ())
            if privilege not in self.on_database
        ]


def facts(tx: Connection) -> Row[Any]:
    """The server's settings and state, as this session sees them."""
    return tx.execute(_FACTS).one()


def rights(tx: Connection, login: str, schema: str) -> Rights:
    """The privileges of this login; reads only catalogs."""
    privileges_of_roles = sorted({privilege for privileges in ON_DATABASE.values() for privilege in privileges})
    in_part = sorted({table for tables in COLUMNS.values() for table in tables})
    on_tables = tx.execute(_RIGHTS, {"schema": schema}).all()
    return Rights(
        login,
        any(row.name == schema_revision.VERSION_TABLE for row in on_tables),
        bool(tx.execute(_ON_SCHEMA, {"schema": schema}).scalar()),
        frozenset((row.name, row.privilege) for row in on_tables if row.granted),
        frozenset((row.name, row.attribute) for row in tx.execute(_READABLE, {"schema": schema, "tables": in_part})),
        frozenset(
            privilege
            for privilege in privileges_of_roles
            if tx.execute(_ON_DATABASE, {"privilege": privilege}).scalar_one()
        ),
    )


def schema_findings(tx: Connection, schema: str, has: Rights) -> list[Finding]:
    """Findings about whether the ledger's tables are at this library's revision."""
    if has.has_ledger and not has.may_read(schema_revision.VERSION_TABLE):
        problem = f"{has.login} may not read {schema}.alembic_version: the schema's revision is not known"
        return [
            Finding.of("schema", Level.FAILURE, problem, "run the SQL of seekpoint db roles, as the ledger's owner")
        ]
    try:
        schema_revision.check(tx, schema)
    except SchemaMismatch as error:
        return [Finding.of("schema", Level.FAILURE, str(error), "seekpoint db upgrade, as the ledger's owner")]
    return [Finding.of("schema", Level.OK, f"{schema} is at revision {schema_revision.HEAD}")]


def rights_findings(has: Rights, schema: str, role: Role | None) -> list[Finding]:
    """Findings about whether this login has the rights of ``role``; None: of at least one role."""
    remedy = f"run the SQL of seekpoint db roles --schema {schema}, and grant the role to {has.login}"
    lacking = {candidate: has.missing(candidate) for candidate in RIGHTS}
    full = [candidate.value for candidate in RIGHTS if not lacking[candidate]]
    if role is not None and (missing := has.missing(role)):
        problem = f"{has.login} lacks rights of a {role}: {'; '.join(missing)}"
        return [Finding.of("rights", Level.FAILURE, problem, remedy)]
    if not full:
        nearest = min(lacking, key=lambda candidate: len(lacking[candidate]))
        problem = f"{has.login} lacks rights for every role; for a {nearest} it lacks {'; '.join(lacking[nearest])}"
        return [Finding.of("rights", Level.FAILURE, problem, remedy)]
    return [Finding.of("rights", Level.OK, f"{has.login} has the rights of {', '.join(full)}")]


def server_findings(tx: Connection, server: Row[Any], before: datetime, role: Role | None) -> Iterator[Finding]:
    """The server's state and settings. ``before`` is this machine's time before the query."""
    yield Finding.of("versions", Level.OK, f"Postgres {server.version}")
    yield from problems_or_ok("server", list(_writable(server, role)), "the server takes writes")
    detected = pooler.detect(tx)
    yield from problems_or_ok(
        "pooler",
        [] if detected is None else [_pooled()],
        "the connection goes through no pooler",
    )
    skew = max((before - server.now).total_seconds(), (server.now - datetime.now(UTC)).total_seconds())
    clock = f"this machine's clock and the server's differ by {skew:.1f} s"
    yield from problems_or_ok(
        "clocks",
        [Finding.of("clocks", Level.WARNING, clock, "synchronize both (NTP): displayed ages are wrong by this much")]
        if skew > SKEW
        else [],
        "this machine's clock and the server's agree",
    )
    yield from problems_or_ok("transaction_timeout", list(_timeout(server)), "the server ends transactions that hang")
    yield from problems_or_ok("durability", list(_durability(server)), "commits survive a crash of the server")
    yield from problems_or_ok("replication", list(_replication(server)), "no standby could lose commits in a failover")


def _pooled() -> Finding:
    return Finding.of(
        "pooler",
        Level.WARNING,
        "the connection goes through a pooler: the session that answers is not the one announced on connecting",
        "workers prepare no statements through a pooler; connect them to the server itself if you can "
        "(docs/guides/poolers.md)",
    )


def _writable(server: Row[Any], role: Role | None) -> Iterator[Finding]:
    if server.in_recovery:
        yield Finding.of(
            "server", Level.FAILURE, "the server is a standby and takes no writes", "connect to the primary"
        )
    elif server.read_only and not (role is Role.READER and server.read_only_by in _OF_THE_LOGIN):
        problem = f"default_transaction_read_only is on for {server.login}"
        yield Finding.of("server", Level.FAILURE, problem, "ALTER ROLE … RESET default_transaction_read_only")


def _timeout(server: Row[Any]) -> Iterator[Finding]:
    if server.number < 170000:
        problem = "the server has no transaction_timeout (Postgres 17): a transaction that hangs is ended by its worker"
        yield Finding.of("transaction_timeout", Level.WARNING, problem, "upgrade Postgres to 17 or later")
    elif server.transaction_timeout not in {"0", ""}:
        problem = f"transaction_timeout is {server.transaction_timeout} for {server.login}: longer steps of jobs fail"
        remedy = "leave it at 0: a worker sets its own for each transaction (Limits.transaction_age)"
        yield Finding.of("transaction_timeout", Level.WARNING, problem, remedy)


def _durability(server: Row[Any]) -> Iterator[Finding]:
    for name, is_on in (("fsync", server.fsync), ("full_page_writes", server.full_page_writes)):
        if not is_on:
            problem = f"{name} is off: a crash of the server may corrupt the ledger and its tables"
            yield Finding.of("durability", Level.FAILURE, problem, f"set {name} = on in postgresql.conf")
    if server.synchronous_commit == "off":
        yield Finding.of(
            "durability",
            Level.WARNING,
            f"synchronous_commit is off for {server.login}: a crash takes back the last commits, rows and offsets "
            "together; effects of these records outside of Postgres may be repeated",
            "set synchronous_commit = on, unless that is what you want",
        )


def _replication(server: Row[Any]) -> Iterator[Finding]:
    if server.standbys and server.synchronous_commit in {"local", "off"}:
        problem = f"synchronous_commit is {server.synchronous_commit}: commits do not wait for {server.standbys}"
        yield Finding.of("replication", Level.WARNING, problem, "set synchronous_commit = on")
    elif server.replicas and not server.standbys:
        yield Finding.of(
            "replication",
            Level.WARNING,
            f"{numbered(server.replicas, 'asynchronous standby')}: a failover loses the last commits, rows and offsets",
            "set synchronous_standby_names, or accept that the records of these commits are then applied again",
        )


def vacuum_findings(tx: Connection, server: Row[Any], schema: str) -> list[Finding]:
    """Findings about the removal of the ledger's dead rows, which each batch leaves."""
    findings = []
    if not (server.autovacuum and server.track_counts):
        problem = "autovacuum is off: each batch leaves dead rows in the ledger, and nothing removes them"
        findings.append(Finding.of("autovacuum", Level.FAILURE, problem, "set autovacuum = on and track_counts = on"))
    for row in tx.execute(_VACUUM, {"schema": schema}):
        if row.is_off:
            fix = f"ALTER TABLE {schema}.{row.name} RESET (autovacuum_enabled)"
            findings.append(Finding.of("autovacuum", Level.WARNING, f"autovacuum is off for {schema}.{row.name}", fix))
        if row.dead > DEAD_ROWS and row.dead > 20 * row.live:
            problem = f"{schema}.{row.name} has {numbered(row.dead, 'dead row')} and {numbered(row.live, 'live row')}"
            fix = f"end old transactions, then VACUUM {schema}.{row.name}"
            findings.append(Finding.of("autovacuum", Level.WARNING, problem, fix))
    if server.oldest is not None and server.oldest > OLD:
        problem = f"a transaction has been open for {server.oldest / 3600:.1f} h: dead rows cannot be removed meanwhile"
        fix = "find it in pg_stat_activity (xact_start) or pg_prepared_xacts, and end it"
        findings.append(Finding.of("autovacuum", Level.WARNING, problem, fix))
    fine = "dead rows of the ledger are removed"
    if not server.sees_all:
        fine += f"; open transactions of other roles were not checked: {server.login} is not in pg_read_all_stats"
    return problems_or_ok("autovacuum", findings, fine)
