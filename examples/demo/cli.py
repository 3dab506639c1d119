"""``make demo`` and its variants: each runs its demonstration, compares and writes a report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Protocol

import typer
from rich.console import Console, RenderableType

from seekpoint.cli.errors import explained
from seekpoint.cli.exit_codes import FAILED
from seekpoint.cli.options import AsJson

REPORT = Path("demo-report.json")
POISON_REPORT = Path("poison-report.json")
RELOAD_REPORT = Path("reload-report.json")
SPARK_REPORT = Path("spark-report.json")
CDC_REPORT = Path("cdc-report.json")

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)

Records = Annotated[int | None, typer.Option(help="Use only the first N flights.", show_default="all 336,776")]


class _Report(Protocol):
    """The results of a demo."""

    @property
    def problems(self) -> list[str]: ...
    def as_json(self) -> str: ...
    def as_table(self) -> RenderableType: ...


@app.command("demo")
def demo(*, records: Records = None, as_json: AsJson = False) -> None:
    """Write 336,776 flights from a real Kafka to a real Postgres while workers are killed and frozen.

    Starts both servers and removes them at the end, compares the table with the input row by row, and writes
    demo-report.json. Exits with 1 if a row differs, or if a fault did not happen.
    """
    with explained():
        from demo.flights import RECORDS  # noqa: PLC0415
        from demo.show import perform  # noqa: PLC0415

        report = perform(RECORDS if records is None else records, console=Console(stderr=True))
        _tell(report, REPORT, as_json, "The table equals the file, row by row: nothing lost, nothing twice.")


@app.command("demo-poison")
def demo_poison(
    *,
    records: Records = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the choice of broken records.", show_default="2013")] = None,
    as_json: AsJson = False,
) -> None:
    """Apply the flights, with one record in 1,000 broken, and replay the dead letters with a fixed handler.

    Starts both servers and removes them at the end, measures the same pipeline on sound records first, compares table
    and dead letters with the input row by row, and writes poison-report.json. Exits with 1 if a row differs, if a
    record that kills its process was not dead-lettered, or if a record is lost or applied twice.
    """
    with explained():
        from demo.flights import RECORDS  # noqa: PLC0415
        from demo.poison.show import SEED, perform  # noqa: PLC0415

        report = perform(
            RECORDS if records is None else records,
            seed=SEED if seed is None else seed,
            console=Console(stderr=True),
        )
        _tell(report, POISON_REPORT, as_json, "Every record is applied or dead-lettered: nothing lost, nothing twice.")


@app.command("demo-reload")
def demo_reload(
    *,
    records: Records = None,
    spark: Annotated[
        str | None,
        typer.Option(metavar="MASTER", help="Stage in Spark's tasks, e.g. 'local[2]'.", show_default="this process"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Rebuild the table of 336,776 flights twice, once by each strategy, while workers and a producer continue.

    Starts both servers and removes them at the end, kills a worker in the middle of each reload, reads the table all
    the time, compares it with the log by `verify` and in plain Python, and writes reload-report.json. Exits with 1 if a
    read saw two versions or rows that do not match the ledger's offsets, or if a row differs.
    """
    with explained():
        from demo.flights import RECORDS  # noqa: PLC0415
        from demo.reload.show import perform  # noqa: PLC0415

        report = perform(RECORDS if records is None else records, spark=spark, console=Console(stderr=True))
        well = "No reader saw two versions, and the table is what the log says: nothing lost, nothing twice."
        _tell(report, RELOAD_REPORT, as_json, well)


@app.command("demo-spark")
def demo_spark(*, records: Records = None, as_json: AsJson = False) -> None:
    """Write 336,776 flights and sums of them through Spark's DataFrames while drivers and tasks are killed.

    Starts both servers and removes them at the end, starts each driver in an empty folder, from the ledger alone,
    compares both tables with the input row by row, and writes spark-report.json. Exits with 1 if a row differs, or if a
    fault did not happen.
    """
    with explained():
        from demo.flights import RECORDS  # noqa: PLC0415
        from demo.spark.show import perform  # noqa: PLC0415

        report = perform(RECORDS if records is None else records, console=Console(stderr=True))
        well = "Both tables equal the file, row by row: nothing lost, nothing twice, and no checkpoint."
        _tell(report, SPARK_REPORT, as_json, well)


@app.command("demo-cdc")
def demo_cdc(
    *,
    statements: Annotated[
        int | None, typer.Option(help="Change the source by at least N statements.", show_default="20,000")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the changes.", show_default="2026")] = None,
    as_json: AsJson = False,
) -> None:
    """Copy a table that changes all the time to another schema, by Debezium and Kafka, while workers are killed.

    Starts Postgres, Kafka and Kafka Connect with Debezium's connector and removes them at the end, kills workers inside
    their transactions and Connect while it sends, compares both tables row by row, and writes cdc-report.json. Exits
    with 1 if a row differs, or if a fault did not happen. Java 17 or newer is needed; Debezium's jars are fetched once.
    """
    with explained():
        from demo.cdc.show import SEED, STATEMENTS, perform  # noqa: PLC0415

        console = Console(stderr=True)
        report = perform(
            STATEMENTS if statements is None else statements, seed=SEED if seed is None else seed, console=console
        )
        _tell(report, CDC_REPORT, as_json, "The copy equals the source's table, row by row.")


def _tell(report: _Report, file: Path, as_json: bool, well: str) -> None:
    """Write the report and show it; exit with 1 if it has problems."""
    file.write_text(report.as_json() + "\n", encoding="utf-8")
    if as_json:
        typer.echo(report.as_json())
    else:
        console = Console()
        console.print(report.as_table())
        if not report.problems:
            console.print(well, style="green")
    for problem in report.problems:
        typer.echo(f"error: {problem}", err=True)
    if report.problems:
        raise typer.Exit(FAILED)
