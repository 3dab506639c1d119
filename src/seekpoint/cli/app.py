"""The commands, put together."""

from __future__ import annotations

import inspect
import re
from importlib.metadata import version
from typing import Annotated

import typer

from seekpoint.cli import (
    batch,
    db,
    dead_letters,
    dev,
    doctor,
    errors,
    explain,
    export,
    exporter,
    groups,
    kafka_offsets,
    losses,
    offsets,
    reload,
    reprocess,
    run,
    status,
    ui,
    verify,
)

app = typer.Typer(
    name="seekpoint",
    help=(
        "Kafka to Postgres, effectively exactly once. Exit codes: 0 done, 1 refused or failed, 2 wrong usage, "
        "3 servers away, 130 aborted."
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(db.app, name="db")
app.add_typer(dead_letters.app, name="dead-letters")
app.command("run", no_args_is_help=True)(run.run)
app.command("status", cls=status.StatusCommand)(status.status)
app.add_typer(groups.app, name="groups")
offsets.app.command("import", no_args_is_help=True)(kafka_offsets.import_offsets)
offsets.app.command("mirror", no_args_is_help=True)(kafka_offsets.mirror_offsets)
app.add_typer(offsets.app, name="offsets")
app.add_typer(losses.lost, name="lost")
app.add_typer(losses.topics, name="topics")
app.command("doctor")(doctor.doctor)
app.command("ui")(ui.ui)
app.add_typer(reload.app, name="reload")
app.command("reprocess", no_args_is_help=True)(reprocess.reprocess)
app.command("verify", no_args_is_help=True)(verify.verify)
app.command("batch", no_args_is_help=True)(batch.batch)
app.command("export", no_args_is_help=True)(export.export)
app.command("exporter")(exporter.exporter)
app.command("explain", no_args_is_help=True)(explain.explain)
app.add_typer(dev.app, name="dev")


def _join_lines(commands: typer.Typer) -> None:
    """Let the terminal break the lines of the help: a docstring's own line ends would be kept in it."""
    for command in commands.registered_commands:
        if command.callback is not None and command.help is None:
            command.help = joined(inspect.getdoc(command.callback) or "")
    for group in commands.registered_groups:
        if group.typer_instance is not None:
            _join_lines(group.typer_instance)


def joined(text: str) -> str:
    """The text with each paragraph on one line; lines that begin a list's item, or are indented, stay lines."""
    return re.sub(r"(?<!\n)\n(?![\n\s]|[-*] )", " ", text)


_join_lines(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"seekpoint {version('seekpoint')}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    *,
    traceback: Annotated[
        bool,
        typer.Option("--traceback", envvar="SEEKPOINT_TRACEBACK", help="Show where an error came from."),
    ] = False,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    before = errors.with_traceback.set(traceback)
    context.call_on_close(lambda: errors.with_traceback.reset(before))
