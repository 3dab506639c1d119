"""The commands on the pages exist, with their options; and the reference has every command and every option."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.main import get_command

from seekpoint.cli import errors as explain
from seekpoint.cli.app import app
from support.docs_pages import PAGES, ROOT, blocks, name_of, named, read, section

ROOT_COMMAND = get_command(app)
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def commands_on(page: Path) -> list[tuple[int, list[str]]]:
    """Line and words of each command in the page's console blocks; environment assignments left out."""
    found = []
    for block in blocks(read(page), "console"):
        for number, line in enumerate(block.text.splitlines(), block.line + 1):
            if line.startswith("$ "):
                words = shlex.split(line[2:], comments=True)
                while words and re.match(r"^[A-Z_]+=", words[0]):
                    words.pop(0)
                found.append((number, words))
    return found


def leaves(command: object, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], object]:
    """Every command that does something, by its words."""
    below = getattr(command, "commands", {})
    found = {words: leaf for name, one in below.items() for words, leaf in leaves(one, (*path, name)).items()}
    if not below or (path and getattr(command, "invoke_without_command", False)):
        found[path] = command
    return found


LEAVES = leaves(ROOT_COMMAND)


def options_of(command: object) -> set[str]:
    return {opt for parameter in command.params for opt in (*parameter.opts, *parameter.secondary_opts)}  # type: ignore[attr-defined]


def check(words: list[str]) -> str | None:
    """What is wrong with a `seekpoint …` command line; None if nothing is."""
    command, left = ROOT_COMMAND, list(words)
    while True:
        known, below = options_of(command), getattr(command, "commands", {})
        while left and left[0].startswith("-") and left[0] in {*known, "--help"}:
            left.pop(0)
        if not below or not left:
            break
        if left[0] not in below:
            return f"there is no command {' '.join(words)!r}"
        command = below[left.pop(0)]
    given = [word.partition("=")[0] for word in left if word.startswith("-")]
    unknown = sorted(set(given) - options_of(command) - {"--help"})
    return f"{' '.join(words)!r} has no option {', '.join(unknown)}" if unknown else None


SHOWN = [page for page in PAGES if commands_on(page)]


@pytest.mark.parametrize("page", SHOWN, ids=name_of)
def test_the_commands_of_a_page_exist(page: Path) -> None:
    wrong = []
    for line, words in commands_on(page):
        if words[:1] == ["seekpoint"]:
            end = next((n for n, word in enumerate(words) if word in {">", "|", "&"}), len(words))
            problem = check(words[1:end])
        elif words[:1] == ["make"]:
            unknown = {word for word in words[1:] if "=" not in word} - TARGETS
            problem = f"the Makefile has no target {', '.join(unknown)}" if unknown else None
        else:
            problem = None
        if problem:
            wrong.append(f"{name_of(page)}:{line}: {problem}")
    assert not wrong, "\n".join(wrong)


def test_a_wrong_command_or_option_would_be_found() -> None:
    assert check(["rum", "shop:orders"])
    assert check(["db", "upgrad"])
    assert check(["status", "g", "--jason"])
    assert check(["--traceback", "status", "g", "--json"]) is None


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_every_command_and_option_is_in_the_reference(words: tuple[str, ...]) -> None:
    reference = named("docs/reference/cli.md")
    text = section(reference, f"`seekpoint {' '.join(words)}`")
    mentioned = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))
    long = {option for option in options_of(LEAVES[words]) if option.startswith("--")}
    shared = set(re.findall(r"--[a-z-]+", section(reference, "Options of every command")))
    assert long - shared == mentioned - shared - {"--help"}


def test_the_options_of_every_command_are_in_the_reference() -> None:
    text = section(named("docs/reference/cli.md"), "Options of every command")
    assert {option for option in options_of(ROOT_COMMAND) if option.startswith("--")} <= set(
        re.findall(r"--[a-z-]+", text)
    )


def test_the_exit_codes_are_those_of_the_code() -> None:
    text = section(named("docs/reference/cli.md"), "Exit codes")
    codes = [int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)]
    assert codes == [0, explain.FAILED, explain.USAGE, explain.ABORTED]
    assert isinstance(app, typer.Typer)


def test_contributing_names_six_commands() -> None:
    (block, *_) = blocks(named("CONTRIBUTING.md"), "console")
    assert len(block.text.splitlines()) == 6
