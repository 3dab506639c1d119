"""``seekpoint reload enable-generations``, ``generations`` and ``give-up``: tables that a cut-over turns by writing one
row.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from seekpoint.cli.dead_letter_options import Actor
from seekpoint.cli.dead_letter_tables import moment, plain, print_whole, table
from seekpoint.cli.errors import explained
from seekpoint.cli.options import AsJson, DatabaseUrl, Schema, checked_engine
from seekpoint.jobs.tables.generations.generations import Generation, Generations
from seekpoint.ledger.tables import DEFAULT_SCHEMA

TableName = Annotated[str, typer.Argument(metavar="TABLE", help="A table, as sinks name it: public.orders.")]


def enable(
    name: TableName,
    *,
    actor: Actor = None,
    database_url: DatabaseUrl,
    schema: Schema = DEFAULT_SCHEMA,
    as_json: AsJson = False,
) -> None:
    """Keep a table in generations from now on: it becomes the first one, and a view takes its name. Workers go on.

    Once for each table, as its owner. Not a table that a handler writes: its SQL cannot write to a view. Exits with 1
    if it cannot be, with every reason; it is as it was then.
    """
    with explained():
        made = Generations(checked_engine(database_url, schema), schema=schema, actor=actor).enable(name)
        if as_json:
            typer.echo(json.dumps(_as_dict(made), indent=2))
        else:
            typer.echo(plain(f"{made.table} is a view of {made.current}, generation {made.number}"))


def generations(*, database_url: DatabaseUrl, schema: Schema = DEFAULT_SCHEMA, as_json: AsJson = False) -> None:
    """List the tables that are kept in generations: which one counts, since when, and what else is there."""
    with explained():
        found = Generations(checked_engine(database_url, schema), schema=schema).list()
        if as_json:
            typer.echo(json.dumps([_as_dict(one) for one in found], indent=2))
        elif found:
            columns = ("table", "number", "current", "since", "by run", "others")
            rows = (
                (one.table, one.number, one.current, moment(one.changed_at), one.run, ", ".join(one.others))
                for one in found
            )
            print_whole(table("generations", columns, rows, numeric={"number"}))
        else:
            typer.echo("no table is kept in generations: `seekpoint reload enable-generations TABLE` begins it")


def disable(
    name: TableName,
    *,
    actor: Actor = None,
    database_url: DatabaseUrl,
    schema: Schema = DEFAULT_SCHEMA,
    as_json: AsJson = False,
) -> None:
    """Make the generation that counts a plain table again, in the place of the view, and drop the others.

    Waits up to 30 seconds for readers of an earlier generation. Exits with 1 while one goes on, or a reload is open.
    """
    with explained():
        Generations(checked_engine(database_url, schema), schema=schema, actor=actor).disable(name)
        if as_json:
            typer.echo(json.dumps({"table": name}, indent=2))
        else:
            typer.echo(plain(f"{name} is a plain table again"))


def _as_dict(one: Generation) -> dict[str, Any]:
    return {
        "table": one.table,
        "number": one.number,
        "current": one.current,
        "parent": one.parent,
        "others": list(one.others),
        "run": None if one.run is None else str(one.run),
        "changed_at": one.changed_at.isoformat(),
    }
