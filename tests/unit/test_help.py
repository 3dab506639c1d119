"""The help is broken into lines by the terminal, not where the code's own lines end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from seekpoint.cli.app import app, every_command, joined
from support.every_row import for_each


def commands(command: Any, *path: str) -> Iterator[tuple[str, str]]:
    """Every command's words and help."""
    for name, subcommand in getattr(command, "commands", {}).items():
        yield from commands(subcommand, *path, name)
    if path:
        yield " ".join(path), command.help or ""


HELP = dict(commands(every_command()))


@for_each(HELP)
def test_no_line_ends_within_a_paragraph(command: str) -> None:
    assert HELP[command]
    assert "\n" not in HELP[command].replace("\n\n", "")


def test_items_and_indented_lines_stay_lines() -> None:
    assert joined("one\ntwo\n\nthree:\n- a\n- b\n  c") == "one two\n\nthree:\n- a\n- b\n  c"


def test_the_programs_help_has_each_commands_first_paragraph() -> None:
    entries, commands = get_command(app).commands, every_command().commands  # type: ignore[attr-defined]
    assert {name: entry.help for name, entry in entries.items()} == {
        name: command.help.split("\n\n")[0] for name, command in commands.items()
    }
