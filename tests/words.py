"""Words that the glossary has a term for, found in pages, docstrings, comments, messages, help and names of tests.

``python tests/words.py`` lists how often each is left, ``python tests/words.py WORD ..`` where. The words are in
``tests/docs/words.toml``, the counts, which may only fall, in ``tests/docs/word_counts.txt``: ``--lower`` writes them.
Git keeps the lines of both sides of a merge (``.gitattributes``), of which the lower one counts.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from typing import NamedTuple

from support.docs_pages import PAGES, ROOT, name_of, read

WORDS = ROOT / "tests" / "docs" / "words.toml"
COUNTS = ROOT / "tests" / "docs" / "word_counts.txt"
SOURCES = ("src", "migrations", "examples", "benchmarks", "tests")
NO_MESSAGES = ("benchmarks/", "tests/")  # their strings are data, and code in text
_CODE = re.compile(r"```.*?^```$|<!--.*?-->|``[^`]+``|`[^`]+`", re.MULTILINE | re.DOTALL)
_LINKED = re.compile(r"\]\([^)\s]+\)")
_SQL = re.compile(
    r"\s*(?:SELECT|INSERT|UPDATE|DELETE|WITH|CREATE|ALTER|DROP|LOCK|SET|GRANT|COPY|ANALYZE|TRUNCATE|DECLARE|FETCH|LEFT)\b"
)


class Text(NamedTuple):
    """What people read: a page, a docstring, a comment, a message or the name of a test."""

    file: str
    line: int
    text: str
    is_docstring: bool = False

    @property
    def prose(self) -> str:
        """Without code and targets of links; lines keep their numbers."""
        plain = _CODE.sub(lambda match: "`" + "\n" * match[0].count("\n") + "`", self.text)
        return _LINKED.sub("]", plain)

    @property
    def code(self) -> str:
        """Only the code; lines keep their numbers."""
        end, kept = 0, []
        for match in _CODE.finditer(self.text):
            kept += ["\n" * self.text.count("\n", end, match.start()), match[0]]
            end = match.end()
        return " ".join(kept)


class Word(NamedTuple):
    """A word, what to write instead, and what finds it."""

    name: str
    use: str
    pattern: re.Pattern[str]
    exceptions: tuple[str, ...] = ()
    opens_docstring: bool = False
    is_name: bool = False

    def found_in(self, text: Text, prose: str, code: str) -> Iterator[int]:
        """The line of each finding in the prose or the code of a text."""
        if any(fnmatch(text.file, path) for path in self.exceptions):
            return
        searched = code if self.is_name else prose
        if self.opens_docstring:
            opening = self.pattern.match(searched) if text.is_docstring else None
            yield from () if opening is None else (text.line,)
            return
        for match in self.pattern.finditer(searched):
            yield text.line + searched[: match.start()].count("\n")


@cache
def words() -> tuple[Word, ...]:
    """All of ``words.toml``."""
    table = tomllib.loads(WORDS.read_text(encoding="utf-8"))
    prose = [
        Word(
            name,
            word["use"],
            re.compile(r"\b(?:" + word["pattern"].replace(" ", r"\s+") + r")\b", re.IGNORECASE),
            tuple(word.get("except", ())),
            word.get("opens", False),
        )
        for name, word in table["words"].items()
    ]
    source = identifiers()
    names = [
        Word(name, use, re.compile(rf"(?<!\w){name}(?!\w)"), is_name=True)
        for name, use in table["names"].items()
        if name not in source
    ]
    return (*prose, *names)


@cache
def identifiers() -> set[str]:
    """Every name in the package: as long as the code has it, pages may use it."""
    return {
        name
        for path in (ROOT / "src").rglob("*.py")
        for node in ast.walk(ast.parse(read(path)))
        for name in names_in(node)
    }


def names_in(node: ast.AST) -> Iterator[str]:
    """The names that a node of the syntax tree has itself."""
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield name
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
            yield name
        case ast.alias(name=name, asname=other):
            yield from (other or name).split(".")


def texts() -> Iterator[Text]:
    """Everything that is read."""
    yield from (Text(name_of(page), 1, read(page)) for page in PAGES)
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield from of_source(name_of(path), read(path))


def of_source(file: str, source: str) -> Iterator[Text]:
    """Docstrings, comments, messages and names of tests."""
    nodes = list(ast.walk(ast.parse(source)))
    docstrings: set[ast.expr] = set()
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if ast.get_docstring(node, clean=False) is not None and isinstance(first, ast.Expr):
                docstrings.add(first.value)
            if not isinstance(node, ast.Module) and node.name.startswith("test_"):
                yield Text(file, node.lineno, node.name.replace("_", " "))
    for node in docstrings:
        yield Text(file, node.lineno, node.value, is_docstring=True)  # type: ignore[attr-defined]
    yield from _comments(file, source)
    if not file.startswith(NO_MESSAGES):
        yield from (Text(file, line, text) for line, text in _messages(nodes, docstrings))


def _comments(file: str, source: str) -> Iterator[Text]:
    """Comments; lines that follow each other are one, so that a phrase is found across them."""
    block: list[str] = []
    end = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line = token.start[0]
        if block and line != end + 1:
            yield Text(file, end - len(block) + 1, "\n".join(block))
            block = []
        block.append(token.string.lstrip("# "))
        end = line
    if block:
        yield Text(file, end - len(block) + 1, "\n".join(block))


def _messages(nodes: list[ast.AST], docstrings: set[ast.expr]) -> Iterator[tuple[int, str]]:
    """Strings that are sentences: of two words and more, and no SQL. What an f-string fills in is left out."""
    parts = {part for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in parts:
            text = "" if node in docstrings else node.value
        else:
            continue
        if " " in text.strip() and not _SQL.match(text):
            yield node.lineno, text


def findings() -> list[tuple[Word, str, int]]:
    """Word, file and line of each."""
    return [
        (word, text.file, line)
        for text in texts()
        for prose, code in [(text.prose, text.code)]
        for word in words()
        for line in word.found_in(text, prose, code)
    ]


def counted() -> dict[str, int]:
    """How often each word is left; words that are gone are not in it."""
    counts = Counter(word.name for word, _, _ in findings())
    return dict(sorted(counts.items()))


def allowed() -> dict[str, int]:
    """How often each may be, at most."""
    counts: dict[str, int] = {}
    for line in COUNTS.read_text(encoding="utf-8").splitlines():
        count, name = line.split(maxsplit=1)
        counts[name] = min(int(count), counts.get(name, int(count)))
    return counts


def lower() -> list[str]:
    """Write the counts that have fallen; returns the words that are used more often than before."""
    now, before = counted(), allowed()
    least = {name: min(count, before.get(name, 0)) for name, count in now.items()}
    lines = [f"{count:5} {name}\n" for name, count in least.items() if count]
    COUNTS.write_text("".join(lines), encoding="utf-8")
    return [name for name, count in now.items() if count > least[name]]


def main(arguments: list[str]) -> None:
    """List what is left, or write the counts."""
    if arguments == ["--lower"]:
        if risen := lower():
            raise SystemExit(f"used more often than before, look at them (python tests/words.py WORD): {risen}")
    elif arguments:
        for word, file, line in findings():
            if word.name in arguments:
                print(f"{file}:{line}: {word.name} -> {word.use}")
    else:
        now = counted()
        for word in words():
            if word.name in now:
                print(f"{now[word.name]:6} {word.name:14} {word.use}")
        print(f"{sum(now.values()):6} words in all that the glossary has a term for")


if __name__ == "__main__":
    main(sys.argv[1:])
