"""All commands of ``seekpoint``; the module of a command is imported only when the command is called."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

_ENTRIES = {
    "run": ("run:run", "Run workers until SIGTERM or Ctrl-C, finishing the open batch; a second signal aborts."),
    "status": (
        "status:status",
        "Show groups: positions, lag in records and in time, retention headroom, dead letters, workers.",
    ),
    "doctor": ("doctor:doctor", "Find present and future problems, each with remedies. Writes nothing."),
    "ui": ("ui:ui", "Serve the console of a ledger at http://HOST:PORT until SIGTERM or Ctrl-C."),
    "verify": (
        "verify:verify",
        "Rebuild pipelines' tables from the log, compare with the live ones at the same offsets, and drop the rebuild.",
    ),
    "batch": (
        "batch:batch",
        "Apply the new records of a pipeline's topics as one job: rows, dead letters and offsets in one transaction.",
    ),
    "spark": (
        "spark:app",
        "Pipelines of Spark DataFrames: run one as a stream or over the available records, verify, reload.",
    ),
    "export": (
        "export:export",
        "Archive the records that a group has applied and that the archive lacks.",
    ),
    "exporter": (
        "exporter:exporter",
        "Serve metrics of all groups of a ledger to Prometheus, at http://HOST:PORT/metrics, until SIGTERM or Ctrl-C.",
    ),
    "explain": (
        "explain:explain",
        "Explain what a pipeline does with its records, what a running group guarantees, or what an error means.",
    ),
    "db": (
        "db:app",
        "The ledger's tables: upgrade, downgrade, sql, check, revision; its roles; and the tables of pipelines.",
    ),
    "dead-letters": (
        "dead_letters:app",
        "Records that the position has passed without applying them: list, show, edit, replay, discard, export, purge.",
    ),
    "groups": ("groups:app", "List groups; pause one, resume it, replace it, or forget it."),
    "offsets": ("kafka_offsets:app", "Reset a group's positions by plan; import, mirror and export them."),
    "lost": ("losses:lost", "Offsets that no worker will apply: list them; accept a loss."),
    "topics": ("losses:topics", "Topics that were deleted and created again: accept one."),
    "reload": ("reload:app", "Rebuild tables from the log: run, resume, status, abort, sweep."),
    "dev": (
        "dev:app",
        (
            "Start a throwaway Postgres and a throwaway Kafka, print their URLs, and remove both on Ctrl-C. The "
            "commands below use the running pair, or the servers that you name."
        ),
    ),
}
"""Each command: its module in ``seekpoint.cli`` with the function or group there, and its line in the help."""

_RUN_WITHOUT_ARGUMENTS = {"status", "doctor", "ui", "exporter"}  # groups of commands print their help


class _Commands(TyperGroup):
    """Imports only the module of the command that is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that the first word names, with its module imported, and the words after it."""
        name, entry, words = super().resolve_command(ctx, args)
        if name is None or entry is None:
            return name, entry, words
        try:
            return name, _command(name), words
        except KeyboardInterrupt:  # the import may take long enough for a Ctrl-C
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
    """The command, with its module imported."""
    path, target_name = _ENTRIES[name][0].split(":")
    module = import_module(f".{path}", __package__)  # a plain import, which the import linter sees
    target = getattr(module, target_name)
    if isinstance(target, typer.Typer):
        return _group(name, target)
    needs_arguments = name not in _RUN_WITHOUT_ARGUMENTS
    return _single(name, target, no_args_is_help=needs_arguments, cls=getattr(module, "Command", None))


def every_command() -> Any:
    """The program with all commands and their options; imports the module of each command."""
    program: Any = typer.main.get_command(app)
    program.commands.update({name: _command(name) for name in _ENTRIES})
    return program


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
    """Join the lines of each help text, so that the terminal's width breaks them."""
    for command in commands.registered_commands:
        if command.callback is not None and command.help is None:
            command.help = joined(inspect.getdoc(command.callback) or "")
    for group in commands.registered_groups:
        if group.typer_instance is not None:
            _join_lines(group.typer_instance)


def joined(text: str) -> str:
    """The text with each paragraph on one line; list items and indented lines stay on their own lines."""
    return re.sub(r"(?<!\n)\n(?![\n\s]|[-*] )", " ", text)


def _not_imported() -> None:
    """Stands for each command until its module is imported."""


for _name, (_, _help) in _ENTRIES.items():
    app.command(_name, help=_help)(_not_imported)


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
