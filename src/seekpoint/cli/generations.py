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
from seekpoint.cli.option_groups import LedgerOptions, grouped
from seekpoint.jobs.tables.generations.generations import Generation, Generations

TableName = Annotated[str, typer.Argument(metavar="TABLE", help="A table, as sinks name it: public.orders.")]


@grouped
def enable(
    name: TableName,
    *,
    actor: Actor = None,
    ledger: LedgerOptions,
) -> None:
    """Keep a table in generations from now on: it becomes the first one, and a view takes its name. Workers go on.

    Once for each table, as its owner. Not a table that a handler writes: its SQL cannot write to a view. Exits with 1
    if it cannot be, with every reason; it is as it was then.
    """
    with explained():
        made = Generations(ledger.engine(), schema=ledger.schema, actor=actor).enable(name)
        if ledger.as_json:
            typer.echo(json.dumps(_as_dict(made), indent=2))
        else:
            typer.echo(plain(f"{made.table} is a view of {made.current}, generation {made.number}"))


@grouped
def generations(*, ledger: LedgerOptions) -> None:
    """List the tables that are kept in generations: which one counts, since when, and what else is there."""
    with explained():
        found = Generations(ledger.engine(), schema=ledger.schema).list()
        if ledger.as_json:
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


@grouped
def disable(
    name: TableName,
    *,
    actor: Actor = None,
    ledger: LedgerOptions,
) -> None:
    """Make the generation that counts a plain table again, in the place of the view, and drop the others.

    Waits up to 30 seconds for readers of an earlier generation. Exits with 1 while one goes on, or a reload is open.
    """
    with explained():
        Generations(ledger.engine(), schema=ledger.schema, actor=actor).disable(name)
        if ledger.as_json:
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
