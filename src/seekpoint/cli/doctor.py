"""``seekpoint doctor``: what is wrong with a ledger, its servers and this login, and what to do."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from seekpoint.admin import Admin, Diagnosis, Level
from seekpoint.cli.errors import FAILED, masked
from seekpoint.cli.options import AsJson, DatabaseUrl, KafkaOptions, Schema, command, one_off_engine, require_brokers
from seekpoint.cli.output import answer
from seekpoint.ledger.roles import Role
from seekpoint.ledger.tables import DEFAULT_SCHEMA


@command
def doctor(
    *,
    role: Annotated[
        Literal["writer", "operator", "reader", "stager"] | None,
        typer.Option(help="Which role this login should have. Default: any."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print warnings and failures alone.")] = False,
    database_url: DatabaseUrl,
    schema: Schema = DEFAULT_SCHEMA,
    brokers: KafkaOptions,
    as_json: AsJson = False,
) -> None:
    """Look for what is wrong, or soon will be, and say what to do. Writes nothing.

    Schema, roles and rights of this login, cluster and topic ids, clocks, a pooler in between, transaction_timeout,
    durability, replication, other members in the consumer groups, retention headroom, autovacuum, versions. Waits for a
    lock for two seconds at most. Exits with 1 where a check failed; a warning alone is none.
    """
    settings = brokers.settings()
    if settings:
        require_brokers(settings)
    admin = Admin(one_off_engine(database_url), settings, schema=schema)
    found = admin.doctor(None if role is None else Role(role))
    kept = [each for each in found.findings if not quiet or each.level is not Level.OK]
    findings = [
        {"check": each.check, "level": each.level.value, "message": masked(each.message)}
        | {"remedies": [masked(remedy) for remedy in each.remedies]}
        for each in kept
    ]
    report = {"ok": found.is_well, "database": found.database, "schema": found.schema, "findings": findings}
    answer(report, *_lines(found, quiet=quiet), as_json=as_json)
    if not found.is_well:
        raise typer.Exit(FAILED)


def _lines(found: Diagnosis, *, quiet: bool) -> list[str]:
    lines = [] if quiet else [f"{found.database}, schema {found.schema}"]
    for each in found.findings:
        if quiet and each.level is Level.OK:
            continue
        lines.append(masked(f"{each.level:<8} {each.check}: {each.message}"))
        lines += [masked(f"{'':<8} → {remedy}") for remedy in each.remedies]
    return lines
