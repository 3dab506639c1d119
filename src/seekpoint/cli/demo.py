"""``seekpoint demo``: nothing lost, nothing twice, and the proof."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from seekpoint.cli.explain import FAILED, explained
from seekpoint.cli.options import AsJson

REPORT = Path("demo-report.json")

Records = Annotated[int | None, typer.Option(help="Only the first so many flights.", show_default="all 336,776")]


def demo(*, records: Records = None, as_json: AsJson = False) -> None:
    """Write 336,776 flights from a real Kafka to a real Postgres while workers are killed and frozen.

    Starts both servers, throws them away again, compares the table with the input row by row, and writes
    demo-report.json. Exits with 1 if one row differs, or if one of the faults did not truly happen.
    """
    with explained():
        # The extra `demo` may be missing: then only this command is.
        from seekpoint.dev.demo.flights import RECORDS  # noqa: PLC0415
        from seekpoint.dev.demo.show import perform  # noqa: PLC0415

        report = perform(RECORDS if records is None else records, console=Console(stderr=True))
        REPORT.write_text(report.as_json() + "\n", encoding="utf-8")
        if as_json:
            typer.echo(report.as_json())
        else:
            console = Console()
            console.print(report.as_table())
            if not report.problems:
                console.print("The table equals the file, row by row: nothing lost, nothing twice.", style="green")
        for problem in report.problems:
            typer.echo(f"error: {problem}", err=True)
        if report.problems:
            raise typer.Exit(FAILED)
