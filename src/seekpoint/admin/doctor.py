"""``doctor``: finds present and future problems of a ledger, its database, its brokers and this login."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from sqlalchemy import Engine, text

from seekpoint.admin import check_groups, check_postgres, status
from seekpoint.admin.findings import Diagnosis, Finding, Level
from seekpoint.ledger.roles import Role
from seekpoint.ledger.schema_connection import SchemaConnection
from seekpoint.ledger.sql import STATUS
from seekpoint.postgres.engine import shown

# Tables and views with groups' positions, samples and workers.
_TABLES = ("consumer_group", "partition_offset", "worker", "reload_run", "lag")


def diagnose(
    engine: Engine, schema: str, settings: Mapping[str, Any], timeout: float, role: Role | None = None
) -> Diagnosis:
    """All findings. Runs in a read-only transaction, and waits at most two seconds for a lock."""
    libraries = ", ".join(f"{name} {version(name)}" for name in ("seekpoint", "psycopg", "confluent-kafka"))
    findings = [Finding.of("versions", Level.OK, libraries)]
    with engine.connect() as connection:
        before = datetime.now(UTC)
        connection.execute(text("SET TRANSACTION READ ONLY"))
        connection.execute(text("SET LOCAL lock_timeout = '2s'"))
        server = check_postgres.facts(connection)
        findings += check_postgres.server_findings(connection, server, before, role)
        has = check_postgres.rights(connection, server.login, schema)
        revision = check_postgres.schema_findings(connection, schema, has)
        findings += revision
        if any(finding.level is Level.FAILURE for finding in revision):
            return Diagnosis(shown(engine.url), schema, tuple(findings))
        findings += check_postgres.rights_findings(has, schema, role)
        findings += check_postgres.vacuum_findings(connection, server, schema)
        if not has.may_read(*_TABLES):
            hidden = ", ".join(name for name in _TABLES if not has.may_read(name))
            problem = f"{has.login} may not read {hidden}: groups and brokers were not checked"
            findings.append(Finding.of("groups", Level.WARNING, problem, "run doctor as an operator or a stager"))
            return Diagnosis(shown(engine.url), schema, tuple(findings))
        tx = SchemaConnection(connection, schema)
        stored = {row.name: row for row in tx.execute(STATUS["groups"]) if row.forgotten is None}
        clusters = {name: row.cluster_id for name, row in stored.items()}
        groups, rows = status.read(tx, list(clusters))
    answered = status.ask_brokers(groups, rows, settings, timeout).groups if settings else groups
    findings += check_groups.group_findings(answered, {name: row.declared or {} for name, row in stored.items()})
    if settings:

        def read_again() -> Sequence[status.GroupStatus]:
            with engine.connect() as connection:
                return status.read(SchemaConnection(connection, schema), list(clusters))[0]

        findings += check_groups.kafka_findings(groups, clusters, settings, timeout, read_again)
    else:
        problem = "no brokers are named: cluster, topics and members of groups were not checked"
        findings.append(Finding.of("brokers", Level.WARNING, problem, "give --kafka-config"))
    return Diagnosis(shown(engine.url), schema, tuple(findings))
