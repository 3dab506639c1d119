"""The command reference: every command, argument, option, default and help text, read from the command line's code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from seekpoint.cli.app import app

PATH = "reference/commands.rst"
TITLE = "Commands and options"


def command_page() -> str:
    """The page in reStructuredText."""
    parts = [f"{TITLE}\n{'=' * len(TITLE)}\n", "What ``--help`` prints, for every command.\n"]
    for words, command in _commands(get_command(app), ("seekpoint",)):
        parts += _section(" ".join(words), command)
    return "\n".join(parts)


def _commands(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """A command, then those below it, each by the words that are typed."""
    if command.hidden:
        return
    yield words, command
    for name, below in getattr(command, "commands", {}).items():
        yield from _commands(below, (*words, name))


def _section(typed: str, command: Any) -> Iterator[str]:
    context = command.context_class(command, info_name=typed)
    records = [parameter.get_help_record(context) for parameter in command.params]
    yield f"{typed}\n{'-' * len(typed)}\n"
    yield f".. program:: {typed}\n"
    yield f"{_text(command.help or '')}\n"
    for names, described in filter(None, records):
        yield f".. option:: {names}\n\n{_described(described)}\n"


def _described(text: str) -> str:
    """A parameter's help, with its default, environment variable and range in brackets at the end, as in a terminal."""
    return "\n".join(f"   {line}" for line in _text(text).splitlines())


def _text(help_text: str) -> str:
    """Help, where single backticks mark code, as reStructuredText."""
    parts = re.split(r"`+([^`]+)`+", help_text.strip())
    marked = "".join(f"``{part}``" if i % 2 else _escaped(part) for i, part in enumerate(parts))
    return re.sub(r"\n(?=[-*] )", "\n\n", marked)


def _escaped(text: str) -> str:
    return re.sub(r"([*|_`\\])", r"\\\1", text)
