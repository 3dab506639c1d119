"""``seekpoint reload enable-generations``, ``generations``, ``disable-generations``: tables of a view."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from seekpoint.cli.option_groups import LedgerOptions, command
from seekpoint.cli.options import Actor
from seekpoint.cli.output import answer, moment, print_table
from seekpoint.jobs.tables.generations.generations import Generations

TableName = Annotated[str, typer.Argument(metavar="TABLE", help="A table, as sinks name it: public.orders.")]


@command
def enable(
    name: TableName,
    *,
    actor: Actor = None,
    ledger: LedgerOptions,
) -> None:
    """Keep a table in generations from now on: it becomes the first one, and a view takes its name. Workers continue.

    Once for each table, as its owner. Not a table that a handler writes: its SQL cannot write to a view. Exits with 1
    if it cannot be, with every reason; it is as it was then.
    """
    made = Generations(ledger.engine(), schema=ledger.schema, actor=actor).enable(name)
    answer(asdict(made), f"{made.table} is a view of {made.current}, generation {made.number}", as_json=ledger.as_json)


@command
def generations(*, ledger: LedgerOptions) -> None:
    """List the tables that are kept in generations: which one counts, since when, and what else is there."""
    found = Generations(ledger.engine(), schema=ledger.schema).list()
    if found and not ledger.as_json:
        columns = ("table", "number", "current", "since", "by run", "others")
        rows = (
            (one.table, one.number, one.current, moment(one.changed_at), one.run, ", ".join(one.others))
            for one in found
        )
        print_table("generations", columns, rows, numeric={"number"})
    else:
        none = "no table is kept in generations: `seekpoint reload enable-generations TABLE` begins it"
        answer([asdict(one) for one in found], none, as_json=ledger.as_json)


@command
def disable(
    name: TableName,
    *,
    actor: Actor = None,
    ledger: LedgerOptions,
) -> None:
    """Make the generation that counts a plain table again, in the place of the view, and drop the others.

    Waits up to 30 seconds for readers of an earlier generation. Exits with 1 if one still reads, or a reload is open.
    """
    Generations(ledger.engine(), schema=ledger.schema, actor=actor).disable(name)
    answer({"table": name}, f"{name} is a plain table again", as_json=ledger.as_json)
