"""The pages of the project: README, docs and the other Markdown files, read as blocks, headings and links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
TYPED = ("README.md", "docs/start.md", "docs/spark/first-hour.md")  # pages whose commands run as they are written
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")


class Block(NamedTuple):
    """A fenced block: its language, its text, and the line of the page at which it begins."""

    language: str
    text: str
    line: int


@cache
def read(page: Path) -> str:
    """The text of a page or of a module, read once in a process."""
    return page.read_text(encoding="utf-8")


def named(name: str) -> str:
    """The text of the page at this path below the project's folder."""
    return read(ROOT / name)


def name_of(page: Path) -> str:
    """Its path, such as ``docs/start.md``."""
    return str(page.relative_to(ROOT))


def blocks(text: str, language: str | None = None) -> list[Block]:
    """The fenced blocks of one language, or of all."""
    blocks = [Block(m[1], m[2], text[: m.start()].count("\n") + 1) for m in _FENCE.finditer(text)]
    return [block for block in blocks if language in {None, block.language}]


def prose(text: str) -> str:
    """The text without blocks and comments, whose lines may look like headings."""
    return _COMMENT.sub("", _FENCE.sub("", text))


@cache
def anchors(text: str) -> set[str]:
    """The anchors of a page: each heading's slug, as GitHub makes it."""
    names: set[str] = set()
    for heading in _HEADING.findall(prose(text)):
        plain = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")
        number = 0
        while (numbered := slug if number == 0 else f"{slug}-{number}") in names:
            number += 1
        names.add(numbered)
    return names


def links(text: str) -> Iterator[str]:
    """The targets of all links."""
    yield from _LINK.findall(re.sub(r"`[^`\n]*`(?!\])", "", prose(text)))


def section(text: str, heading: str) -> str:
    """The text below this heading, up to the next heading of the same or a higher level."""
    start = re.search(rf"^(#+) {re.escape(heading)}$", text, re.MULTILINE)
    assert start is not None, f"there is no heading {heading!r}"
    rest = text[start.end() :]
    end = re.search(rf"^#{{1,{len(start[1])}}} ", rest, re.MULTILINE)
    return rest if end is None else rest[: end.start()]
