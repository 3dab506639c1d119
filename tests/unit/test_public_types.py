"""Nothing public takes or returns a private type, and what users read imports public names alone."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import types
import typing
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from public_modules import PUBLIC_MODULES, documented_names
from support.docs_pages import PAGES, ROOT, name_of, read
from support.every_row import for_each

PUBLIC = {
    f"{module}.{name}": getattr(import_module(module), name)
    for module, names in documented_names().items()
    for name, home in names.items()
    if home is None
}
TYPES = {id(value) for value in PUBLIC.values()}

# Objects that users get and never make.
MADE_BY_SEEKPOINT = {
    "seekpoint.Chunk", "seekpoint.Running", "seekpoint.admin.GroupDeadLetters",
    "seekpoint.admin.ReplayableDeadLetters", "seekpoint.admin.Runs", "seekpoint.jobs.CatchUp",
    "seekpoint.testing.KafkaServer", "seekpoint.testing.PostgresServer",
}  # fmt: skip
# Members that Seekpoint's jobs call, on objects that users pass from one job's method to the next.
FOR_JOBS = {
    "seekpoint.Accumulate.target",
    "seekpoint.Upsert.target", "seekpoint.jobs.CatchUp.apply",
    "seekpoint.jobs.CatchUp.offsets", "seekpoint.admin.Driver.step", "seekpoint.admin.Driver.transition",
}  # fmt: skip


class Unknown(dict[str, Any]):
    """Names of a module's annotations; those that nothing defines (of packages that are not installed) are Any."""

    def __missing__(self, name: str) -> Any:
        return Any


def names_for_types(module: str) -> Unknown:
    """A module's names, with those that it imports for type checkers alone."""
    names = Unknown(vars(import_module("builtins")) | vars(sys.modules[module]))
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    for node in tree.body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for statement in node.body:
                with suppress(ImportError):
                    exec(compile(ast.Module([statement], []), module, "exec"), names)
    return names


def classes(hint: Any) -> Iterator[type]:
    """Seekpoint's classes in an annotation."""
    origin = typing.get_origin(hint)
    if origin is not None:
        yield from classes(origin)
        for argument in typing.get_args(hint):
            for part in argument if isinstance(argument, list) else [argument]:
                yield from classes(part)
    elif isinstance(hint, type) and hint.__module__.startswith("seekpoint"):
        yield hint


def annotated(name: str) -> Iterator[tuple[str, Any]]:
    """What of a public name has annotations: the function, or the class with its public methods and properties."""
    value = PUBLIC[name]
    if inspect.isfunction(value):
        yield name, value
    if not inspect.isclass(value):
        return
    if name not in MADE_BY_SEEKPOINT:
        yield name, value
    for attribute, member in vars(value).items():
        is_made = attribute == "__init__" and name not in MADE_BY_SEEKPOINT
        if (is_made or not attribute.startswith("_")) and f"{name}.{attribute}" not in FOR_JOBS:
            function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            if inspect.isfunction(function):
                yield f"{name}.{attribute}", function


@for_each(PUBLIC)
def test_nothing_public_takes_or_returns_a_private_type(name: str) -> None:
    private = []
    for owner, value in annotated(name):
        # Not of the class itself: the annotations of its bases have the names of other modules.
        own = types.SimpleNamespace(__annotations__={
            field: hint
            for field, hint in vars(value).get("__annotations__", value.__annotations__).items()
            if not str(hint).startswith("ClassVar")
        })  # fmt: skip
        hints = typing.get_type_hints(own, names_for_types(value.__module__))
        private += [
            f"{owner}: {class_.__module__}.{class_.__name__}"
            for hint in hints.values()
            for class_ in classes(hint)
            if id(class_) not in TYPES
        ]
    assert private == []


def test_at_most_twelve_modules_are_public_and_each_says_who_imports_it() -> None:
    modules = ["seekpoint", *PUBLIC_MODULES]
    assert len(modules) <= 12
    for module in modules:
        first, _, _ = (import_module(module).__doc__ or "").partition("\n\n")
        assert re.search(r"\bfor\b", first), f"{module} does not say who imports it: {first!r}"


# -- what users read ------------------------------------------------------------------------------------------------

# The demo is started by this repository alone: it prints errors as the command does, and starts servers.
DEMO = {
    "seekpoint.cli.errors", "seekpoint.cli.exit_codes", "seekpoint.cli.options", "seekpoint.ledger.schema_connection",
    "seekpoint.testing.servers.jars", "seekpoint.testing.servers.java", "seekpoint.testing.servers.process",
}  # fmt: skip
IMPORT = re.compile(r"^[ \t]*(?:from (seekpoint[\w.]*) import (\([^)]*\)|.*)|import (seekpoint[\w.]*))", re.MULTILINE)
FILES = [
    *(page for page in PAGES if "internals" not in page.parts),
    ROOT / "llms.txt",
    ROOT / "tests" / "typing" / "public_api.py",
    *(ROOT / "examples").rglob("*.py"),
]


@for_each(FILES, name_of)
def test_pages_and_examples_import_public_names_alone(path: Path) -> None:
    private = []
    for module, names, alone in IMPORT.findall(read(path)):
        home = module or alone
        if home in DEMO and "demo" in path.parts:
            continue
        if home not in {"seekpoint", *PUBLIC_MODULES}:
            private.append(home)
            continue
        offered = {*import_module(home).__all__, *(name.rpartition(".")[2] for name in PUBLIC_MODULES)}
        imported = re.findall(r"\w+", re.sub(r"#.*| as \w+", "", names))
        private += [f"{home}.{name}" for name in imported if name not in offered]
    assert private == []
