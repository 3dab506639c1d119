"""``seekpoint db``: upgrade the ledger's schema, print its SQL and its roles, check it, add it to your Alembic tree.

Also prints the tables that a pipeline's sinks need, or what a database lacks.

Exit codes: 0 if all is well; 1 if the database lacks something that this library needs; 2 if the command is wrong; 3 if
the database cannot be reached. A password is never printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError, rev_id
from sqlalchemy import Connection, Table

from seekpoint import schema as ledger_schema
from seekpoint.cli.errors import explained
from seekpoint.cli.options import AsJson, DatabaseUrl, OptionalDatabaseUrl, Schema, command, one_off_engine
from seekpoint.cli.output import answer
from seekpoint.cli.pipeline_tables import sinks_by_table, suggested
from seekpoint.errors import ConfigError
from seekpoint.ledger.role_script import role_script
from seekpoint.ledger.roles import COLUMNS, ON_DATABASE, RIGHTS, Role
from seekpoint.ledger.tables import DEFAULT_SCHEMA
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.sinks.suggested_table import FILLFACTOR
from seekpoint.sinks.table_changes import create_statement, table_changes
from seekpoint.worker.import_by_name import load
from seekpoint.worker.worker import Worker

app = typer.Typer(
    help="The ledger's tables: upgrade, downgrade, sql, check, revision; its roles; and the tables of pipelines.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,  # locals hold the database's URL
)

Since = Annotated[str, typer.Option(help="Revision to start from: the one that the database has.")]


@app.command()
@command
def upgrade(database_url: DatabaseUrl, schema: Schema = DEFAULT_SCHEMA, as_json: AsJson = False) -> None:
    """Build the ledger's tables, or bring them up to this library's revision."""
    with one_off_engine(database_url).begin() as connection:
        before = ledger_schema.current(connection, schema)
        ledger_schema.upgrade(connection, schema=schema)
        after = ledger_schema.current(connection, schema)
    changed = f"{schema}: already at {after}" if before == after else f"{schema}: {before or 'nothing'} → {after}"
    answer({"schema": schema, "before": before, "after": after}, changed, as_json=as_json)


@app.command()
@command
def downgrade(
    database_url: DatabaseUrl,
    *,
    to: Annotated[str, typer.Option(help="Revision to go back to; base drops the tables.")],
    drop: Annotated[
        list[str] | None, typer.Option(metavar="GROUP", help="A group whose rows may be dropped (repeatable).")
    ] = None,
    schema: Schema = DEFAULT_SCHEMA,
    as_json: AsJson = False,
) -> None:
    """Take the ledger's tables back to a revision.

    Refused if that would drop offsets, open dead letters or lost ranges; --drop GROUP permits it for a group.
    """
    with one_off_engine(database_url).begin() as connection:
        before = ledger_schema.current(connection, schema)
        ledger_schema.downgrade(connection, to=to, schema=schema, drop=drop or ())
        after = ledger_schema.current(connection, schema)
    changed = f"{schema}: {before or 'nothing'} → {after or 'nothing'}"
    answer({"schema": schema, "before": before, "after": after}, changed, as_json=as_json)


@app.command()
@command
def sql(schema: Schema = DEFAULT_SCHEMA, since: Since = ledger_schema.BASE) -> None:
    """Print what `upgrade` would run, as plain SQL in one transaction; needs no database."""
    typer.echo(ledger_schema.sql(schema=schema, since=since), nl=False)


@app.command()
@command
def roles(
    *,
    owner: Annotated[str, typer.Option(metavar="ROLE", help="Owns and migrates the tables.")] = "seekpoint_owner",
    writer: Annotated[str, typer.Option(metavar="ROLE", help="Runs workers.")] = "seekpoint_writer",
    operator: Annotated[str, typer.Option(metavar="ROLE", help="Pauses and resets groups.")] = "seekpoint_operator",
    reader: Annotated[str, typer.Option(metavar="ROLE", help="For dashboards and the exporter.")] = "seekpoint_reader",
    stager: Annotated[str, typer.Option(metavar="ROLE", help="Runs reloads and exports.")] = "seekpoint_stager",
    table: Annotated[
        list[str] | None, typer.Option(metavar="TABLE", help="A table that pipelines write (repeatable).")
    ] = None,
    schema: Schema = DEFAULT_SCHEMA,
    as_json: AsJson = False,
) -> None:
    """Print SQL that creates the ledger's roles, and grants to each only the rights that it needs; needs no database.

    Run the SQL after every `upgrade`: it can be repeated, and revokes rights that a role should not have. With
    --json, print the rights by role and table.
    """
    names = {
        Role.OWNER: owner,
        Role.WRITER: writer,
        Role.OPERATOR: operator,
        Role.READER: reader,
        Role.STAGER: stager,
    }
    script = role_script(schema=schema, names=names, targets=table or ())
    if not as_json:
        typer.echo(script, nl=False)
        return
    rights = [
        {
            "role": role,
            "name": names[role],
            "tables": RIGHTS.get(role),
            "columns": COLUMNS.get(role, {}),
            "database": ON_DATABASE.get(role, ()),
        }
        for role in Role
    ]
    answer({"schema": schema, "roles": rights}, as_json=True)


@app.command()
@command
def check(database_url: DatabaseUrl, schema: Schema = DEFAULT_SCHEMA, as_json: AsJson = False) -> None:
    """Exit with 0 if the ledger's tables are at this library's revision, and with 1 if not."""
    report: dict[str, Any] = {"schema": schema, "library": ledger_schema.HEAD, "database": None, "ok": False}
    with explained(report if as_json else None), one_off_engine(database_url).connect() as connection:
        report["database"] = ledger_schema.current(connection, schema)
        ledger_schema.check(connection, schema)
    answer({**report, "ok": True}, f"{schema}: at {ledger_schema.HEAD}, the revision of this library", as_json=as_json)


@app.command()
@command
def table(
    target: Annotated[str, typer.Argument(metavar="MODULE:NAME", help="A Pipeline, a Worker, or a function.")],
    *,
    topic: Annotated[
        list[str] | None, typer.Option(help="A topic that the pipeline's Pattern matches (repeatable).")
    ] = None,
    database_url: OptionalDatabaseUrl = None,
    fillfactor: Annotated[
        int,
        typer.Option(min=10, max=100, help="Percent of a page that INSERT fills, for tables of sinks with a key."),
    ] = FILLFACTOR,
    as_json: AsJson = False,
) -> None:
    """Print CREATE TABLE for each table that a pipeline's sinks need; with a database, only statements for what is
    missing.

    The statements are for your own migration; none is run. Exits with 1 if the database's tables lack something.
    """
    pipeline = _with_topics(target, topic or ())
    sinks, tables = sinks_by_table(pipeline), suggested(pipeline, fillfactor)
    if not sinks:
        raise ConfigError(
            f"{pipeline.group} has no sink that writes a table; for tables that its handler writes, write CREATE TABLE "
            "yourself"
        )
    if database_url is None:
        lacks = {name: [create_statement(of_sinks)] for name, of_sinks in tables.items()}
    else:
        with one_off_engine(database_url).connect() as look:
            lacks = {name: _lacks(look, pipeline, sinks[name], of_sinks) for name, of_sinks in tables.items()}
    script = "\n".join(line for name, lines in lacks.items() for line in lines or [f"-- {name} takes every row"])
    answer({"tables": lacks}, *script.splitlines(), as_json=as_json)
    if database_url is not None and any(lacks.values()):
        raise typer.Exit(1)


def _with_topics(target: str, topics: Sequence[str]) -> Pipeline:
    """The pipeline, with a pattern of these topics. Raises ConfigError if one does not match, or has no table."""
    declared = load(target, from_here=True)
    pipeline = declared.pipeline if isinstance(declared, Worker) else declared
    if topics:
        return pipeline.with_topics(*topics)
    if pipeline.pattern is not None:
        raise ConfigError(f"{pipeline!r}: a pattern does not say which topics there are: give --topic for each")
    return pipeline


def _lacks(look: Connection, pipeline: Pipeline, sinks: Sequence[Any], of_sinks: Table) -> list[str]:
    """Statements that add what the table lacks. If it lacks nothing, run the sinks' checks. Raises ConfigError."""
    statements = table_changes(look, of_sinks)
    if not statements:
        for sink in sinks:
            sink.check(look, pipeline.codecs_of(sink), pipeline.key)
    return statements


@app.command()
@command
def revision(
    *,
    config: Annotated[Path, typer.Option("--config", "-c", help="Your alembic.ini, or pyproject.toml.")] = Path(
        "alembic.ini"
    ),
    message: Annotated[str, typer.Option("--message", "-m")] = f"seekpoint ledger {ledger_schema.HEAD}",
    head: Annotated[str, typer.Option(help="Your revision to base it on.")] = "head",
    schema: Schema = DEFAULT_SCHEMA,
    since: Since = ledger_schema.BASE,
    as_json: AsJson = False,
) -> None:
    """Write into your own Alembic tree a revision that builds the ledger; your `alembic upgrade head` runs it."""
    path = _write_revision(config, message, head, schema, since)
    answer({"path": str(path), "schema": schema, "to": ledger_schema.HEAD}, f"wrote {path}", as_json=as_json)


def _write_revision(config: Path, message: str, head: str, schema: str, since: str) -> Path:
    # Raises an error for a wrong name or revision, before a file is written.
    ledger_schema.sql(schema=schema, since=since)
    ini = None if config.suffix == ".toml" else config
    host = Config(ini, toml_file=config.with_name("pyproject.toml") if ini else config)
    try:
        scripts = ScriptDirectory.from_config(host)
    except CommandError as error:
        raise ConfigError(
            f"{config} (or the pyproject.toml next to it) names no Alembic tree; name yours with --config: {error}"
        ) from error
    elsewhere = "" if schema == DEFAULT_SCHEMA else f", schema={schema!r}"
    onwards = "" if since == ledger_schema.BASE else f', since="{since}"'
    up = f'seekpoint.schema.upgrade(op, to="{ledger_schema.HEAD}"{elsewhere}{onwards})'
    down = f'seekpoint.schema.downgrade(op, to="{since}"{elsewhere}, since="{ledger_schema.HEAD}")'
    for script in scripts.walk_revisions():
        if up in Path(script.path).read_text(encoding="utf-8"):
            raise ConfigError(f"{script.path} is such a revision already: run `alembic upgrade head`")
    written = scripts.generate_revision(
        rev_id(), message, head=head, config=host, imports="import seekpoint.schema", upgrades=up, downgrades=down
    )
    if written is None:
        raise ConfigError(f"Alembic wrote no revision into {scripts.dir}: look at its script.py.mako")
    return Path(written.path)
