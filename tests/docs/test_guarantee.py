"""Each invariant is a sentence on its page, a line in the code, and a test by name; and all three exist."""

from __future__ import annotations

import ast
import re
from functools import cache, reduce
from importlib import import_module
from pathlib import Path

import pytest

from pages import ROOT, named, section

PAGE = named("docs/concepts/guarantee.md")
INVARIANTS = re.findall(r"^### (I\d) ", PAGE, re.MULTILINE)


def part(invariant: str) -> str:
    heading = re.search(rf"^### ({invariant} .+)$", PAGE, re.MULTILINE)
    assert heading is not None
    return section(PAGE, heading[1])


def lines_of(invariant: str) -> list[str]:
    return re.findall(r"^- `(seekpoint[\w.]*:[\w.]+)`", part(invariant), re.MULTILINE)


def attacks_on(invariant: str) -> list[str]:
    return re.findall(r"^- `(tests/[\w/]+\.py::\w+)`", part(invariant), re.MULTILINE)


@cache
def functions_of(path: str) -> dict[str, str]:
    """The source of each test function of a file, from its name on."""
    text = (ROOT / path).read_text(encoding="utf-8")
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {node.name: ast.get_source_segment(text, node) or "" for node in found}


def told_by(test: str) -> str:
    """The test's own text; what its file says of others does not count."""
    path, _, name = test.partition("::")
    return functions_of(path)[name]


def cites(text: str, invariant: str) -> bool:
    """By its number, as ``grep I4`` finds it."""
    return re.search(rf"\b{invariant}\b", text) is not None


def test_there_are_six() -> None:
    assert INVARIANTS == ["I1", "I2", "I3", "I4", "I5", "I6"]


@pytest.mark.parametrize("invariant", INVARIANTS)
def test_it_has_a_sentence(invariant: str) -> None:
    assert re.search(r"^\*[A-Z][^*]+\.\*$", part(invariant), re.MULTILINE)


@pytest.mark.parametrize("invariant", INVARIANTS)
def test_the_lines_that_hold_it_exist_and_cite_it(invariant: str) -> None:
    lines = lines_of(invariant)
    assert lines
    citing = set()
    for line in lines:
        module, _, name = line.partition(":")
        found = import_module(module)
        assert reduce(getattr, name.split("."), found) is not None
        if cites(Path(found.__file__ or "").read_text(encoding="utf-8"), invariant):
            citing.add(line)
    assert citing == set(lines), f"these files do not say {invariant}: {sorted(set(lines) - citing)}"


@pytest.mark.parametrize("invariant", INVARIANTS)
def test_the_tests_that_attack_it_exist_and_cite_it(invariant: str) -> None:
    tests = attacks_on(invariant)
    assert len(tests) >= 2
    missing = [test for test in tests if test.partition("::")[2] not in functions_of(test.partition("::")[0])]
    assert not missing, f"these do not exist: {missing}"
    silent = [test for test in tests if not cites(told_by(test), invariant)]
    assert not silent, f"these do not say {invariant}: {silent}"
