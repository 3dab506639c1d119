"""A breakage: a change of the package that a test must detect, read from the tables of ``tests/mutants/*.toml``.

.. code-block:: toml

    ["hold does not compare the position"]
    "ledger/sql/worker.sql:hold" = { part = 'AND next_offset = held.from_offset' }
    test = "tests/postgres/ledger/test_fence.py::test_another_position_is_refused"

A place is a file of the package and the qualified name of a function, a class or a module's variable in it, or the name
of a statement in a ``.sql`` file. ``part`` is text of one line there, ``statement`` text of one line of a Python
statement; ``by`` takes the place of that text, or of the whole statement. Without ``by`` the text is left out, or the
statement is deleted. Whatever else changes in the function, the breakage still fits. A list makes several changes at
one place, several places make one breakage.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "seekpoint"


class Edit(NamedTuple):
    """One change at one place."""

    file: str
    name: str
    pattern: str
    replacement: str
    is_statement: bool


class Breakage(NamedTuple):
    """What is changed, and the test that must fail. Most lose or double rows; some only stop progress."""

    name: str
    edits: tuple[Edit, ...]
    test: str


def read(folder: Path) -> list[Breakage]:
    """The breakages of all tables in ``folder``; raises ValueError where one is not as the module's docstring says."""
    breakages = [
        _breakage(name, entries)
        for file in sorted(folder.glob("*.toml"))
        for name, entries in tomllib.loads(file.read_text()).items()
    ]
    names = [breakage.name for breakage in breakages]
    if duplicates := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"two breakages have one name: {sorted(duplicates)}")
    return breakages


def broken(breakage: Breakage) -> dict[str, str]:
    """The broken text of each file that is changed; raises LookupError where an edit does not fit."""
    texts: dict[str, str] = {}
    for edit in breakage.edits:
        if edit.file not in texts and not (PACKAGE / edit.file).is_file():
            raise LookupError(f"there is no {edit.file}")
        texts[edit.file] = _edited(texts.get(edit.file) or (PACKAGE / edit.file).read_text(), edit)
    return texts


def _breakage(name: str, entries: dict[str, Any]) -> Breakage:
    test = entries.pop("test", None)
    if not isinstance(test, str) or "::" not in test or not entries:
        raise ValueError(f"{name!r} needs a place, and a test with its name")
    edits = [_edit(place, change) for place, changes in entries.items() for change in _listed(changes)]
    return Breakage(name, tuple(edits), test)


def _listed(changes: Any) -> list[Any]:
    return changes if isinstance(changes, list) else [changes]


def _edit(place: str, change: dict[str, str]) -> Edit:
    file, _, name = place.partition(":")
    finders = change.keys() & {"part", "statement"}
    if not name or len(finders) != 1 or change.keys() - {"part", "statement", "by"}:
        raise ValueError(
            f"{place!r} needs a name after the colon, and `part` or `statement`, and at most `by`: {change}"
        )
    [finder] = finders
    is_statement = finder == "statement"
    return Edit(file, name, change[finder], change.get("by", "pass" if is_statement else ""), is_statement)


def _edited(text: str, edit: Edit) -> str:
    if edit.file.endswith(".sql"):
        return _edited_sql(text, edit)
    source = text.encode()  # the positions of ast are in bytes
    tree = _parsed(source)
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))

    def extent(node: ast.stmt) -> tuple[int, int]:
        end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or 0
        return starts[node.lineno - 1] + node.col_offset, starts[end_line - 1] + end_column

    scope = _scope(tree, edit)
    first, last = extent(scope)
    pattern = edit.pattern.encode()
    if (count := source.count(pattern, first, last)) != 1:
        raise LookupError(f"{edit.file}:{edit.name} has {count} times, not once: {edit.pattern!r}")
    start = source.index(pattern, first, last)
    end = start + len(pattern)
    replacement = edit.replacement
    if edit.is_statement:
        statement = _statement(scope, start, extent)
        if statement is None:
            raise LookupError(f"{edit.file}:{edit.name} has no statement with {edit.pattern!r}")
        start, end = extent(statement)
        replacement = replacement.replace("\n", "\n" + " " * statement.col_offset)
    edited = source[:start] + replacement.encode() + source[end:]
    try:
        is_changed = ast.dump(_scope(_parsed(edited), edit)) != ast.dump(scope)
    except SyntaxError as error:
        raise LookupError(f"{edit.file}:{edit.name} cannot be parsed with {edit.replacement!r}: {error}") from error
    if not is_changed:
        raise LookupError(f"{edit.file}:{edit.name} does the same with {edit.replacement!r} for {edit.pattern!r}")
    return edited.decode()


def _edited_sql(text: str, edit: Edit) -> str:
    """The file with one change of the statement of that name."""
    head, *statements = re.split(r"(?m)^(?=-- name: )", text)
    number = next(
        (n for n, statement in enumerate(statements) if statement.startswith(f"-- name: {edit.name}\n")), None
    )
    if number is None:
        raise LookupError(f"{edit.file} has no statement {edit.name}")
    if (count := statements[number].count(edit.pattern)) != 1:
        raise LookupError(f"{edit.file}:{edit.name} has {count} times, not once: {edit.pattern!r}")
    statements[number] = statements[number].replace(edit.pattern, edit.replacement)
    return head + "".join(statements)


@cache
def _parsed(source: bytes) -> ast.Module:
    return ast.parse(source)


def _scope(tree: ast.Module, edit: Edit) -> ast.stmt:
    """The one definition or assignment of a qualified name."""
    parents: list[ast.AST] = [tree]
    for name in edit.name.split("."):
        parents = [node for parent in parents for node in _defined(parent) if name in _names(node)]
    if len(parents) != 1:
        raise LookupError(f"{edit.file} defines {len(parents)} times, not once: {edit.name}")
    [scope] = parents
    assert isinstance(scope, ast.stmt)
    return scope


def _defined(parent: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(parent):
        if _names(node):
            yield node
        elif isinstance(node, ast.stmt | ast.excepthandler):
            yield from _defined(node)


def _names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]


def _statement(scope: ast.stmt, position: int, extent: Any) -> ast.stmt | None:
    """The innermost statement around a position; None in a comment, and in the head of a function."""
    around = [
        node for node in ast.walk(scope) if isinstance(node, ast.stmt) and extent(node)[0] <= position < extent(node)[1]
    ]
    innermost = min(around, key=lambda node: extent(node)[1] - extent(node)[0])
    body = getattr(innermost, "body", None)
    is_head = body is None or position < extent(body[0])[0]
    return innermost if is_head and innermost is not scope else None
