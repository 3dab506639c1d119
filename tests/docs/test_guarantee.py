"""Each invariant has a sentence on the concept page, and its code and tests, which exist, on an internals page."""

from __future__ import annotations

import ast
import re
from functools import cache, reduce
from importlib import import_module
from pathlib import Path

from support.docs_pages import named, section
from support.every_row import for_each

CONCEPT = named("docs/concepts/guarantee.md")
CODE_AND_TESTS = named("docs/internals/guarantee-tests.md")
INVARIANTS = re.findall(r"^### (I\d) ", CONCEPT, re.MULTILINE)


def part(page: str, invariant: str) -> str:
    """What the page says of an invariant."""
    heading = re.search(rf"^#+ ({invariant} .+)$", page, re.MULTILINE)
    assert heading is not None
    return section(page, heading[1])


def lines_of(invariant: str) -> list[str]:
    return re.findall(r"^\| `(seekpoint[\w./]*:[\w.]+)` \|", part(CODE_AND_TESTS, invariant), re.MULTILINE)


def attacks_on(invariant: str) -> list[str]:
    """``tests/unit/test_records.py::test_name``."""
    rows = re.findall(r"^\| `(\w+)` \| `(tests/[\w/]+\.py)` \|$", part(CODE_AND_TESTS, invariant), re.MULTILINE)
    return [f"{file}::{name}" for name, file in rows]


@cache
def functions_of(path: str) -> dict[str, str]:
    """The source of each test function of a file, from its name on."""
    text = named(path)
    lines, tree = text.splitlines(), ast.parse(text)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {node.name: "\n".join(lines[node.lineno - 1 : node.end_lineno]) for node in functions}


def text_of(test: str) -> str:
    """The test's own text, without the rest of its file."""
    path, _, name = test.partition("::")
    return functions_of(path)[name]


def cites(text: str, invariant: str) -> bool:
    """Whether the text has the invariant's number, as ``grep I4`` finds it."""
    return re.search(rf"\b{invariant}\b", text) is not None


def test_there_are_six_on_both_pages() -> None:
    assert INVARIANTS == ["I1", "I2", "I3", "I4", "I5", "I6"]
    headings = [re.findall(r"^#+ (I\d .+)$", page, re.MULTILINE) for page in (CONCEPT, CODE_AND_TESTS)]
    assert headings[0] == headings[1]


def test_the_concept_has_no_names_of_tests() -> None:
    assert not re.findall(r"tests/\w+|test_\w+", CONCEPT)


@for_each(INVARIANTS)
def test_it_has_a_sentence(invariant: str) -> None:
    assert re.search(r"^\*[A-Z][^*]+\.\*$", part(CONCEPT, invariant), re.MULTILINE)


@for_each(INVARIANTS)
def test_the_lines_that_hold_it_exist_and_cite_it(invariant: str) -> None:
    lines = lines_of(invariant)
    assert lines
    citing = set()
    for line in lines:
        module, _, name = line.partition(":")
        if module.endswith(".sql"):
            statement = re.search(rf"(?s)^-- name: {name}\n.*?(?=^-- name: |\Z)", named(f"src/{module}"), re.MULTILINE)
            assert statement is not None, line
            if cites(statement[0], invariant):
                citing.add(line)
            continue
        imported = import_module(module)
        assert reduce(getattr, name.split("."), imported) is not None
        if cites(Path(imported.__file__ or "").read_text(encoding="utf-8"), invariant):
            citing.add(line)
    assert citing == set(lines), f"these files do not say {invariant}: {sorted(set(lines) - citing)}"


@for_each(INVARIANTS)
def test_the_tests_that_attack_it_exist_and_cite_it(invariant: str) -> None:
    tests = attacks_on(invariant)
    assert len(tests) >= 2
    missing = [test for test in tests if test.partition("::")[2] not in functions_of(test.partition("::")[0])]
    assert not missing, f"these do not exist: {missing}"
    silent = [test for test in tests if not cites(text_of(test), invariant)]
    assert not silent, f"these do not say {invariant}: {silent}"
