"""Troubleshooting has every error by its class, and by its text what is raised and what an operator may choose.

A message is found by the longest text in it that is always there, up to the end of its first clause, which a reader can
search for. What the page quotes is compared clause by clause with the texts of the source.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

from seekpoint.cli.error_codes import error_entries, error_entry
from seekpoint.errors import SeekpointError
from support.docs_pages import ROOT, anchors, named, read
from support.every_row import for_each
from support.public_kinds import ERRORS

PAGE = named("docs/troubleshooting.md")
CLASSES = [kind.__name__ for kind in ERRORS]
# Their messages say what to write instead, and are about the reader's own code.
BY_CLASS_ALONE = {"ConfigError", "Poison"}
REASONS = {"reason", "reasons", "why", "remedy"}
SHORTEST = 8  # characters: below, a text is no clause
_CLAUSE = re.compile(r"[.:;](?: |$)|\(")
LONGER = 12  # characters: a quoted clause as short as this may be anything
# Between the fixed parts of a quotation: what it leaves out, the ends of clauses, commands and their options.
_BETWEEN = re.compile(r"…|[.:;] |\((?:or )?| (?=--)|(?<=WHY) |(?=seekpoint )")
_QUOTED = re.compile(r"``(.+?)``|`([^`]+)`")
OF_KAFKA = {
    "ConsumerGroupHeartbeat fatal error: Broker: Invalid request", "group.protocol=consumer", "kafka-consumer-groups",
}  # fmt: skip


def plain(text: str) -> str:
    """As it is searched: one line, without backticks."""
    return re.sub(r"\s+", " ", text.replace("`", "")).strip()


def fragments(node: ast.AST) -> Iterator[str]:
    """The longest text that is always there, of each string in this expression."""
    if isinstance(node, ast.JoinedStr):
        parts = [part.value for part in node.values if isinstance(part, ast.Constant) and isinstance(part.value, str)]
        longest = max(map(plain, parts), key=len, default="")
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        longest = plain(node.value)
    else:
        for child in ast.iter_child_nodes(node):
            yield from fragments(child)
        return
    clauses = [clause.strip(" ,:;)'") for clause in _CLAUSE.split(longest)]
    yield from [clause for clause in clauses if len(clause) >= SHORTEST and " " in clause][:1]


def name_of_call(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def printed(tree: ast.AST) -> Iterator[str]:
    """What this module raises with an error of ours, and what it gives as choices and remedies."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if name_of_call(node) in set(CLASSES) - BY_CLASS_ALONE:
                yield from (text for argument in node.args for text in fragments(argument))
            choices = [keyword.value for keyword in node.keywords if keyword.arg == "choices"]
            yield from (text for value in choices for text in fragments(value))
            if name_of_call(node) == "_listed":
                yield from (text for argument in node.args for text in fragments(argument))
        elif isinstance(node, ast.FunctionDef) and node.name == "choices":
            values = [part.value for part in ast.walk(node) if isinstance(part, ast.Yield) and part.value is not None]
            yield from (text for value in values for text in fragments(value))
        elif isinstance(node, ast.FunctionDef) and node.name == "_misuse":
            values = [part.value for part in ast.walk(node) if isinstance(part, ast.Return) and part.value is not None]
            yield from (text for value in values for text in fragments(value))
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            names = {target.id for target in node.targets if isinstance(target, ast.Name)}
            if names & {"_WHAT", "_REMEDY", "_REMEDIES"}:
                yield from (text for value in node.value.values for text in fragments(value))


def reasons(tree: ast.AST) -> Iterator[str]:
    """What a module of the jobs gives as reasons of a refusal: what it yields, and what is called so."""
    for node in ast.walk(tree):
        values: list[ast.expr] = []
        if isinstance(node, ast.Yield):
            values = [node.value] if node.value is not None else []
        elif isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id in REASONS for target in targets):
                values = [node.value]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {f"{name}.append" for name in REASONS}:
            values = node.args
        yield from (text for value in values for text in fragments(value) if "::" not in text)


@cache
def all_printed() -> dict[str, str]:
    """Each text, and the file that has it."""
    files = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        tree = ast.parse(read(path))
        texts = [*printed(tree), *(reasons(tree) if "jobs" in path.parts else ())]
        files.update({text: str(path.relative_to(ROOT)) for text in texts})
    return files


def quotations() -> Iterator[str]:
    """The messages that the page quotes: what is in backticks in the first column of its tables."""
    for row in re.findall(r"^\|(.*)$", PAGE, re.MULTILINE):
        first, *_ = re.split(r"(?<!\\)\|", row)
        yield from (double or single for double, single in _QUOTED.findall(first.replace("\\|", "|")))


def fixed_parts(quotation: str) -> list[str]:
    """The parts of a quotation that are always there, each at most a clause."""
    parts = [part.strip(" ,:;()'\"") for part in _BETWEEN.split(plain(quotation))]
    return [part for part in parts if len(part) > LONGER]


def texts_of(tree: ast.AST) -> Iterator[str]:
    """Every text of a module that is no docstring."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield plain(node.value)


@cache
def all_texts() -> str:
    """Every text of the source, one a line."""
    paths = sorted((ROOT / "src").rglob("*.py"))
    statements = sorted((ROOT / "src").rglob("*.sql"))
    texts = [text for path in paths for text in texts_of(ast.parse(read(path)))]
    return "\n".join([*texts, *(plain(read(path)) for path in statements)])


@for_each(ERRORS)
def test_every_error_has_its_entry(kind: type[Exception]) -> None:
    if issubclass(kind, SeekpointError):
        entry = error_entry(kind.code)
        assert entry.error == kind.__name__
        assert entry.text.startswith("**Safe:** "), "says first what is safe"
    else:
        assert kind.__name__.lower() in anchors(PAGE)


def test_every_code_is_of_one_error() -> None:
    codes = {kind.__name__: kind.code for kind in ERRORS if issubclass(kind, SeekpointError)}
    assert sorted(error_entries()) == sorted(codes.values())
    assert {entry.error: code for code, entry in error_entries().items()} == codes


def test_every_text_has_its_entry() -> None:
    page = plain(PAGE)
    missing = [f"{file}: {text}" for text, file in all_printed().items() if text not in page]
    assert not missing, "docs/troubleshooting.md has no entry for\n" + "\n".join(missing)


@for_each(sorted(set(quotations()) - OF_KAFKA))
def test_what_the_page_quotes_is_in_the_source(quotation: str) -> None:
    stale = [part for part in fixed_parts(quotation) if part not in all_texts()]
    assert not stale, f"{quotation!r}: no text of the source has {stale}"


def test_a_quotation_is_compared_in_all_of_its_fixed_parts() -> None:
    quoted = "it cannot be applied (…): give it up: seekpoint lost accept … --apply --reason WHY, or read it again…"
    assert fixed_parts(quoted) == ["it cannot be applied", "seekpoint lost accept", "--reason WHY, or read it again"]
    assert len(set(quotations())) > 300


def test_what_is_printed_is_found_in_the_source() -> None:
    """Nothing that is collected by its form goes unnoticed because the form has changed."""
    texts = all_printed()
    for text in (
        "reads the new topic from its beginning",
        "correct bootstrap.servers",
        "it cannot be decoded",
        "it was discarded",
        "check the user and password",
        "await the methods of tx",
    ):
        assert any(text.strip() in text_of_source for text_of_source in texts), text
    assert any("row security may hide rows" in text_of_source for text_of_source in texts)
    assert len(texts) > 150
    statement = ast.parse('raise OffsetLost(p, 1, f"the first left is {n}", choices=("go back to it",))')
    assert set(printed(statement)) == {"the first left is", "go back to it"}
