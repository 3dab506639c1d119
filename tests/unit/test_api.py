"""The public surface: every name is there and says what it promises, and the code stays small enough to be read."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

import seekpoint
from public_modules import PUBLIC_MODULES, public_names
from support.docs_pages import ROOT, name_of, read
from support.every_row import for_each

SOURCES = sorted(
    path
    for folder in ("src", "migrations", "benchmarks", "examples", "docs/site")
    for path in (ROOT / folder).rglob("*.py")
)

IMPORTERS = ("import_module", "__import__")


ALIASES = {"AsyncHandler", "Handler", "RawRecord"}  # of types, without a home

NAMES = [("seekpoint", name) for name in seekpoint.__all__] + [
    (module, name) for module in PUBLIC_MODULES for name in public_names(importlib.import_module(module))
]


def test_all_is_sorted() -> None:
    assert list(seekpoint.__all__) == sorted(seekpoint.__all__)


def test_the_roots_names_are_those_of_the_design() -> None:
    assert set(seekpoint.__all__) == {
        "Accumulate", "Append", "Assignment", "AsyncHandler", "Attempt", "Batch", "Bytes", "Chunk", "Claim", "Claimed",
        "DeadLetterLimits", "Expected", "Fenced", "Handler", "Health", "Json", "Ledger", "Limits", "Move", "OnPoison",
        "Partition", "Passed", "Pattern", "Pipeline", "Poison", "Position", "RawRecord", "Record", "Retry", "Running",
        "SeekpointError", "Span", "StartAt", "Stop", "Text", "Upsert", "Worker", "consumer_config",
    }  # fmt: skip


@for_each(seekpoint.__all__)
def test_every_name_can_be_imported_and_is_the_one_of_its_home(name: str) -> None:
    scope: dict[str, Any] = {}
    exec(f"from seekpoint import {name}", scope)
    if name in ALIASES:
        return
    assert scope[name].__name__ == name
    assert getattr(importlib.import_module(scope[name].__module__), name) is scope[name]


def test_another_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="module 'seekpoint' has no attribute 'Pipelin'"):
        seekpoint.Pipelin  # noqa: B018


def test_no_import_by_string_names_the_package() -> None:
    """The graph of imports is what the linter reads; a user's MODULE:NAME is a value, and no literal."""
    missing = []
    for path in SOURCES:
        if not any(name in read(path) for name in IMPORTERS):
            continue
        for node in ast.walk(ast.parse(read(path))):
            if not isinstance(node, ast.Call) or ast.unparse(node.func).split(".")[-1] not in IMPORTERS:
                continue
            named = [text.value for part in node.args for text in ast.walk(part) if isinstance(text, ast.Constant)]
            if any(str(text).partition(".")[0] == "seekpoint" for text in named):
                missing.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert missing == []


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "src/seekpoint/py.typed").exists()


# -- promises -----------------------------------------------------------------------------------------------


def documented(module: str, name: str) -> Iterator[tuple[str, Any]]:
    """A public name, and each public method and property that its class defines itself."""
    what = getattr(importlib.import_module(module), name)
    if not inspect.isclass(what) and not inspect.isfunction(what):
        return  # an alias of a type
    yield name, what
    if inspect.isclass(what):
        for attribute, process in vars(what).items():
            plain = isinstance(process, FunctionType | property | classmethod | staticmethod)
            if plain and not attribute.startswith("_") and not _is_overload(process):
                yield f"{name}.{attribute}", process


def _is_overload(process: Any) -> bool:
    return getattr(process, "__name__", "") == "_overload_dummy"


DOCUMENTED = {f"{module}.{name}": what for module, public in NAMES for name, what in documented(module, public)}


@for_each(DOCUMENTED)
def test_every_public_name_opens_with_its_promise_in_one_sentence(name: str) -> None:
    docstring = inspect.cleandoc(DOCUMENTED[name].__doc__ or "")
    assert docstring, "no docstring"
    assert not docstring.startswith(f"{name.rpartition('.')[2]}("), "only what dataclass wrote"
    opening = docstring.split("\n\n")[0].split("\n::")[0]
    assert opening[0].isupper() or opening[0] == "`", f"begins with a small letter: {opening!r}"
    assert opening.rstrip().endswith((".", ":")), f"does not end its first sentence: {opening!r}"
    assert len(opening.split()) >= 3, f"promises nothing: {opening!r}"


# -- small enough to be read --------------------------------------------------------------------------------


@for_each(SOURCES, name_of)
def test_a_module_has_a_docstring_and_a_function_fits_on_one_screen(path: Path) -> None:
    tree = ast.parse(read(path))
    assert ast.get_docstring(tree), "a module says what it is for"
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    lengths = [(node.name, (node.end_lineno or node.lineno) - node.lineno + 1) for node in functions]
    assert [(name, length) for name, length in lengths if length > 60] == [], "a function fits on a screen"


@for_each(SOURCES, name_of)
def test_no_module_is_called_after_nothing(path: Path) -> None:
    assert not {"utils", "util", "helpers", "common", "misc", "manager"} & set(
        path.relative_to(ROOT).with_suffix("").parts
    )
