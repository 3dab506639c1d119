"""``seekpoint doctor``: prints problems of a ledger, its servers and this login, with remedies."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import typer

from seekpoint.admin import Admin, Diagnosis, Level
from seekpoint.cli.exit_codes import FAILED
from seekpoint.cli.masking import masked
from seekpoint.cli.options import AsJson, DatabaseUrl, KafkaOptions, Schema, command, one_off_engine, require_brokers
from seekpoint.cli.output import answer
from seekpoint.cli.pipeline_tables import table_findings
from seekpoint.ledger.roles import Role
from seekpoint.ledger.tables import DEFAULT_SCHEMA
from seekpoint.worker.import_by_name import load_pipeline


@command
def doctor(
    targets: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODULE:NAME]...", help="Pipelines, Workers, or functions, to check their tables."),
    ] = None,
    *,
    role: Annotated[
        Literal["writer", "operator", "reader", "stager"] | None,
        typer.Option(help="Which role this login should have. Default: any."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only warnings and failures.")] = False,
    database_url: DatabaseUrl,
    schema: Schema = DEFAULT_SCHEMA,
    brokers: KafkaOptions,
    as_json: AsJson = False,
) -> None:
    """Find present and future problems, each with remedies. Writes nothing.

    With pipelines, also finds missing parts of their tables, as `seekpoint db table` does, or problems that a worker's
    start would refuse: use the workers' login.

    Checks the schema, this login's roles and rights, cluster and topic ids, clocks, poolers, transaction_timeout,
    durability, replication, other members of the consumer groups, retention headroom, autovacuum and versions. Waits at
    most two seconds for a lock. Exits with 1 if a check failed; warnings do not count.
    """
    settings = brokers.settings()
    if settings:
        require_brokers(settings)
    pipelines = {target: load_pipeline(target, from_here=True) for target in targets or ()}
    engine = one_off_engine(database_url)
    diagnosis = Admin(engine, settings, schema=schema).doctor(None if role is None else Role(role))
    of_tables = [
        finding for target, pipeline in pipelines.items() for finding in table_findings(engine, target, pipeline)
    ]
    diagnosis = replace(diagnosis, findings=(*diagnosis.findings, *of_tables))
    shown = [finding for finding in diagnosis.findings if not quiet or finding.level is not Level.OK]
    findings = [
        {"check": finding.check, "level": finding.level.value, "message": masked(finding.message)}
        | {"remedies": [masked(remedy) for remedy in finding.remedies]}
        for finding in shown
    ]
    report = {"ok": diagnosis.is_well, "database": diagnosis.database, "schema": diagnosis.schema, "findings": findings}
    answer(report, *_lines(diagnosis, quiet=quiet), as_json=as_json)
    if not diagnosis.is_well:
        raise typer.Exit(FAILED)


def _lines(diagnosis: Diagnosis, *, quiet: bool) -> list[str]:
    lines = [] if quiet else [f"{diagnosis.database}, schema {diagnosis.schema}"]
    for finding in diagnosis.findings:
        if quiet and finding.level is Level.OK:
            continue
        lines.append(masked(f"{finding.level:<8} {finding.check}: {finding.message}"))
        lines += [masked(f"{'':<8} → {remedy}") for remedy in finding.remedies]
    return lines
