"""Writes the options of every command into docs/reference/cli.md, below what is written there by hand.

Those of ``seekpoint spark run`` are written into docs/spark/options.md, too.

python docs/site/cli_reference.py            # write them
python docs/site/cli_reference.py --check    # exit with 1 where the page is not what would be written
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from seekpoint.cli.app import every_command

PAGE = Path(__file__).resolve().parents[1] / "reference" / "cli.md"
SPARK_PAGE, SPARK_COMMAND = PAGE.parents[1] / "spark" / "options.md", ("spark", "run")
BEGIN, END = "<!-- options: docs/site/cli_reference.py writes them -->", "<!-- end of options -->"
SHARED_HEADING = "Options that several commands share"
SHARED_LINK = "#options-that-several-commands-share"
SHARED = ("--database-url", "--schema", "--kafka", "--kafka-config", "--json", "--apply", "--reason", "--actor")
HAS_ALL_SHARED = ("offsets", "reset")

_VALUES = {"<str>": "TEXT", "<list[str]>": "TEXT", "<int>": "N", "<int range>": "N", "<path>": "FILE"}
_NOTES = re.compile(r"\s*\[((?:required|default: |env var: |[^\[\]]*[<>]=)[^\[\]]*)\]$")
_SECTION = re.compile(
    r"(?P<head>^## `seekpoint (?P<words>[^`]+)`\n|^## (?P<other>[^\n]+)\n)(?P<body>.*?)(?=^## |\Z)",
    re.MULTILINE | re.DOTALL,
)
BLOCK = re.compile(rf"\n*{re.escape(BEGIN)}.*?{re.escape(END)}\n", re.DOTALL)


class PageError(Exception):
    """The page has not a section for each command."""


def leaves(command: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Every command that does something, by its words."""
    below = getattr(command, "commands", {})
    leaf_commands = {
        words: leaf
        for name, command_below in below.items()
        for words, leaf in leaves(command_below, (*path, name)).items()
    }
    if not below or (path and getattr(command, "invoke_without_command", False)):
        leaf_commands[path] = command
    return leaf_commands


def with_options(page: str, program: Any, only: tuple[str, ...] | None = None) -> str:
    """The page with the options of each of the program's commands at the end of its section. Raises PageError.

    ``only`` is the one command that another page than the commands' own has.
    """
    commands = leaves(program)
    shared = {
        parameter.opts[0]: parameter for parameter in commands[HAS_ALL_SHARED].params if parameter.opts[0] in SHARED
    }
    left = set(commands) if only is None else {only}
    link = SHARED_LINK if only is None else f"../reference/cli.md{SHARED_LINK}"

    def replaced(section: re.Match[str]) -> str:
        body = BLOCK.sub("\n", section["body"]).strip("\n")
        if section["words"]:
            words = tuple(section["words"].split())
            if words not in left:
                raise PageError(f"there is no command {' '.join(words)!r}, or it has two sections")
            left.remove(words)
            block = _of_command(commands[words], shared, link)
        elif section["other"] == SHARED_HEADING:
            block = list(_table(commands[HAS_ALL_SHARED], [shared[name] for name in SHARED]))
        else:
            return section[0]
        written = "\n".join([BEGIN, *block, END])
        return f"{section['head']}\n{body}\n\n{written}\n\n"

    written = _SECTION.sub(replaced, page).rstrip("\n") + "\n"
    if left:
        raise PageError(f"these commands have no section: {', '.join(sorted(map(' '.join, left)))}")
    return written


def _of_command(command: Any, shared: dict[str, Any], link: str) -> list[str]:
    def is_shared(parameter: Any) -> bool:
        known = shared.get(parameter.opts[0])
        return known is not None and known.help == parameter.help

    listed = [
        parameter
        for parameter in command.params
        if not getattr(parameter, "hidden", False) and parameter.name != "help"
    ]
    lines = list(_table(command, [parameter for parameter in listed if not is_shared(parameter)]))
    common = sorted(filter(is_shared, listed), key=lambda parameter: SHARED.index(parameter.opts[0]))
    if names := ", ".join(f"`{option}`" for parameter in common for option in parameter.opts):
        lines += ["", f"{'Also takes' if lines else 'Takes'} {names} ([shared]({link}))."]
    return lines or ["It takes no options."]


def _table(command: Any, parameters: list[Any]) -> Iterator[str]:
    context = command.context_class(command)
    records = [(parameter, parameter.get_help_record(context)) for parameter in parameters]
    if records:
        yield from ("", "| option | meaning |", "|---|---|")
    for parameter, (names, described) in records:
        yield f"| `{_cell(_named(parameter, names))}` | {_cell(_meaning(described))} |"


def _named(parameter: Any, names: str) -> str:
    """``GROUP``, ``--limit N``, ``--sort name|lag``."""
    if parameter.param_type_name == "argument":
        name = names.partition(" <")[0]
        return name if parameter.metavar else name.upper()
    name, _, value = names.partition(" <")
    if not value:
        return name
    shown = re.sub(r"^(?:list)?\[(.*)\]$", r"\1", value.removesuffix(">"))
    return f"{name} {_VALUES.get(f'<{value}', shown)}"


def _meaning(text: str) -> str:
    """A parameter's help, then whether it is required, its default, its environment variable and its range."""
    text = text.replace("\n", " ")
    notes: list[str] = []
    if match := _NOTES.search(text):
        text, notes = text[: match.start()], match[1].split("; ")
    sentences = [text if text.endswith(".") else f"{text}."] if text else []
    for note in notes:
        kind, _, value = note.partition(": ")
        if kind == "required":
            sentences.append("Required.")
        elif kind == "default" and "Default:" not in text:
            sentences.append(f"Default: {value[1:-1] if value.startswith('(') else f'`{value}`'}.")
        elif kind == "env var":
            sentences.append(f"Environment: `{value}`.")
        elif "=" in kind and not re.search(r"\d{10}", kind):
            sentences.append(f"`{kind}`.")
    return " ".join(sentences)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> int:
    """Write the pages, or compare them."""
    return max(_write(PAGE, None), _write(SPARK_PAGE, SPARK_COMMAND))


def _write(page: Path, only: tuple[str, ...] | None) -> int:
    before = page.read_text(encoding="utf-8")
    try:
        after = with_options(before, every_command(), only)
    except PageError as error:
        print(f"{page}: {error}", file=sys.stderr)
        return 1
    if after == before:
        return 0
    if "--check" in sys.argv[1:]:
        print(f"{page}: the options are not those of the code: run {Path(__file__).name}", file=sys.stderr)
        return 1
    page.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
