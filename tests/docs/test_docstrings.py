"""Names in the docstrings of classes are names that the class has."""

from __future__ import annotations

import ast
import re

from support.docs_pages import ROOT, name_of, read
from words import names_in

# Keywords, values, tables and modules; and what a type of Python's or of another class has.
OTHER_NAMES = {
    *("with", "dict", "arrow", "delta", "dead_letter", "seekpoint", "unnest", "export_manifest", "reload_run"),
    *("rowcount", "transaction_timeout", "diff", "seen", "touched", "next_offset", "schema_translate_map"),
}


def test_a_class_has_the_names_that_its_docstring_has() -> None:
    classes = [
        (name_of(path), node)
        for path in sorted((ROOT / "src").rglob("*.py"))
        for node in ast.walk(ast.parse(read(path)))
        if isinstance(node, ast.ClassDef)
    ]
    by_name = {node.name: node for _, node in classes}

    def known(node: ast.ClassDef) -> set[str]:
        bases = [ast.unparse(base.value if isinstance(base, ast.Subscript) else base) for base in node.bases]
        nodes = [node, *(by_name[base] for base in bases if base in by_name)]
        return {name for node in nodes for inner in ast.walk(node) for name in names_in(inner)}

    wrong = [
        f"{file}:{node.lineno}: {node.name}: {', '.join(missing)}"
        for file, node in classes
        if (quoted := _quoted(node) - OTHER_NAMES) and (missing := sorted(quoted - known(node)))
    ]
    assert not wrong, "\n".join(wrong)


def _quoted(node: ast.ClassDef) -> set[str]:
    return set(re.findall(r"``([a-z_]+)``", ast.get_docstring(node) or ""))
