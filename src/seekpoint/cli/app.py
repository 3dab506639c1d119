"""The commands, put together."""

from __future__ import annotations

import inspect
import re
from importlib.metadata import version
from typing import Annotated

import typer

from seekpoint.cli import batch, db, dead_letters, dev, errors, explain, export, reload, run, status, verify

app = typer.Typer(
    name="seekpoint",
    help="Kafka to Postgres, effectively exactly once. Exit codes: 0 well, 1 failed, 2 wrong usage, 130 aborted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(db.app, name="db")
app.add_typer(dead_letters.app, name="dead-letters")
app.command("run", no_args_is_help=True)(run.run)
app.command("status", no_args_is_help=True)(status.status)
app.add_typer(reload.app, name="reload")
app.command("verify", no_args_is_help=True)(verify.verify)
app.command("batch", no_args_is_help=True)(batch.batch)
app.command("export", no_args_is_help=True)(export.export)
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
