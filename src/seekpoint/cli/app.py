"""All commands of ``seekpoint``; the module of a command is imported only when the command is called."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

_LOADERS: dict[str, Callable[[], Any]] = {}


class _Commands(TyperGroup):
    """Imports only the module of the command that is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that the first word names, with its module imported, and the words after it."""
        name, entry, words = super().resolve_command(ctx, args)
        if name is None or entry is None:
            return name, entry, words
        try:
            return name, _command(name), words
        except KeyboardInterrupt:  # importing takes long enough for a Ctrl-C
            sys.stderr.write("aborted\n")
            raise typer.Exit(130) from None


app = typer.Typer(
    name="seekpoint",
    help=(
        "Kafka to Postgres, effectively exactly once. Exit codes: 0 done, 1 refused or failed, 2 wrong usage, "
        "3 servers unreachable, 130 aborted."
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    cls=_Commands,
)


@cache
def _command(name: str) -> Any:
    return _LOADERS[name]()


def every_command() -> Any:
    """The program with all commands and their options; imports the module of each command."""
    program: Any = typer.main.get_command(app)
    program.commands.update({name: _command(name) for name in _LOADERS})
    return program


def _entry(name: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Register a function that imports a command; its docstring is the command's line in the program's help."""

    def decorate(load: Callable[[], Any]) -> Callable[[], Any]:
        _LOADERS[name] = load
        app.command(name, help=joined(inspect.getdoc(load) or ""))(load)
        return load

    return decorate


def _single(name: str, function: Callable[..., Any], **options: Any) -> Any:
    outer = typer.Typer(add_completion=False)
    outer.command(name, **options)(function)
    _join_lines(outer)
    return typer.main.get_command(outer)


def _group(name: str, commands: typer.Typer) -> Any:
    outer = typer.Typer(add_completion=False)
    outer.add_typer(commands, name=name)
    _join_lines(outer)
    program: Any = typer.main.get_command(outer)
    return program.commands[name]


def _join_lines(commands: typer.Typer) -> None:
    """Join the lines of each help text, so that the terminal breaks them, not the docstring."""
    for command in commands.registered_commands:
        if command.callback is not None and command.help is None:
            command.help = joined(inspect.getdoc(command.callback) or "")
    for group in commands.registered_groups:
        if group.typer_instance is not None:
            _join_lines(group.typer_instance)


def joined(text: str) -> str:
    """The text with each paragraph on one line; list items and indented lines stay on their own lines."""
    return re.sub(r"(?<!\n)\n(?![\n\s]|[-*] )", " ", text)


@_entry("run")
def _run() -> Any:
    """Run workers until SIGTERM or Ctrl-C, finishing the batch in hand; a second signal aborts."""
    from seekpoint.cli.run import run

    return _single("run", run, no_args_is_help=True)


@_entry("status")
def _status() -> Any:
    """Show groups: positions, log ends, lag in records and in time, retention headroom, dead letters, workers."""
    from seekpoint.cli.status import StatusCommand, status

    return _single("status", status, cls=StatusCommand)


@_entry("doctor")
def _doctor() -> Any:
    """Look for what is wrong, or soon will be, and say what to do. Writes nothing."""
    from seekpoint.cli.doctor import doctor

    return _single("doctor", doctor)


@_entry("ui")
def _ui() -> Any:
    """Serve the console of a ledger at http://HOST:PORT until SIGTERM or Ctrl-C."""
    from seekpoint.cli.ui import ui

    return _single("ui", ui)


@_entry("verify")
def _verify() -> Any:
    """Rebuild pipelines' tables from the log, compare with the live ones at the same offsets, and drop the rebuild."""
    from seekpoint.cli.verify import verify

    return _single("verify", verify, no_args_is_help=True)


@_entry("batch")
def _batch() -> Any:
    """Apply the new records of a pipeline's topics as one job: rows, dead letters and offsets in one transaction."""
    from seekpoint.cli.batch import batch

    return _single("batch", batch, no_args_is_help=True)


@_entry("spark")
def _spark() -> Any:
    """Pipelines of Spark DataFrames: run one as a stream or over the available records, verify, reload."""
    from seekpoint.cli.spark import app as group

    return _group("spark", group)


@_entry("export")
def _export() -> Any:
    """Archive the records that a group has applied, except those that the archive already has."""
    from seekpoint.cli.export import export

    return _single("export", export, no_args_is_help=True)


@_entry("exporter")
def _exporter() -> Any:
    """Serve metrics of all groups of a ledger to Prometheus, at http://HOST:PORT/metrics, until SIGTERM
    or Ctrl-C.
    """
    from seekpoint.cli.exporter import exporter

    return _single("exporter", exporter)


@_entry("explain")
def _explain() -> Any:
    """Explain what a pipeline does with its records, what a running group guarantees, or what an error means."""
    from seekpoint.cli.explain import explain

    return _single("explain", explain, no_args_is_help=True)


@_entry("db")
def _db() -> Any:
    """The ledger's tables: upgrade, downgrade, sql, check, revision; its roles; and the tables of pipelines."""
    from seekpoint.cli.db import app as group

    return _group("db", group)


@_entry("dead-letters")
def _dead_letters() -> Any:
    """Records that the position has passed without applying them: list, show, edit, replay, discard,
    export, purge.
    """
    from seekpoint.cli.dead_letters import app as group

    return _group("dead-letters", group)


@_entry("groups")
def _groups() -> Any:
    """List groups; pause one, resume it, replace it, or forget it."""
    from seekpoint.cli.groups import app as group

    return _group("groups", group)


@_entry("offsets")
def _offsets() -> Any:
    """Reset a group's positions by plan; import, mirror and export them."""
    from seekpoint.cli import kafka_offsets  # noqa: F401 -- it adds two commands to the group
    from seekpoint.cli.offsets import app as group

    return _group("offsets", group)


@_entry("lost")
def _lost() -> Any:
    """Offsets that no worker will apply: list them; accept a loss."""
    from seekpoint.cli.losses import lost

    return _group("lost", lost)


@_entry("topics")
def _topics() -> Any:
    """Topics that were deleted and created again: accept one."""
    from seekpoint.cli.losses import topics

    return _group("topics", topics)


@_entry("reload")
def _reload() -> Any:
    """Rebuild tables from the log: run, resume, status, abort, sweep."""
    from seekpoint.cli.reload import app as group

    return _group("reload", group)


@_entry("dev")
def _dev() -> Any:
    """Start a throwaway Postgres and a throwaway Kafka, print their URLs, and remove both on Ctrl-C. The
    commands below use the running pair, or the servers that you name.
    """
    from seekpoint.cli.dev import app as group

    return _group("dev", group)


def _show_version(is_given: bool) -> None:
    if is_given:
        typer.echo(f"seekpoint {version('seekpoint')}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    *,
    traceback: Annotated[
        bool,
        typer.Option("--traceback", envvar="SEEKPOINT_TRACEBACK", help="Show the traceback of an error."),
    ] = False,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    from seekpoint.cli import errors

    before = errors.with_traceback.set(traceback)
    context.call_on_close(lambda: errors.with_traceback.reset(before))
