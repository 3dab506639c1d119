"""Writes the sources of the site: the repository's pages as they are, and pages generated from the code.

The pages know nothing of the generator: they are plain Markdown whose relative links hold in the repository. Here each
gets its place in the site, its links are rewritten for it, and the front page, made from README.md, gets the
navigation, which takes its sections from the folders and its order from README's links. A new page needs no entry.

    python docs/site/sources.py build/site/sources
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from api_pages import FOLDER, api_pages

ROOT = Path(__file__).resolve().parents[2]
PROJECT = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changes.md"}
LAST = ["Reference", "Internals", "Project"]  # sections at the end of the sidebar, in this order

# A link's or an image's target; what is code or a comment is matched first, and is none.
_TARGET = re.compile(
    r"(?P<code>^```.*?^```$|<!--.*?-->|`[^`\n]*`)|(?<=\])\((?P<to>[^)\s]+)\)", re.DOTALL | re.MULTILINE
)
_COMMENT = re.compile(r"^<!--.*?-->\n?", re.DOTALL | re.MULTILINE)
_ELSEWHERE = re.compile(r"^(\w+:|#)")


class PageError(Exception):
    """A page cannot be a page of the site; the message says why."""


def write_sources(folder: Path) -> None:
    """Write everything that Sphinx reads to ``folder``, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    pages = _pages()
    for source, place in pages.items():
        text = _COMMENT.sub("", source.read_text(encoding="utf-8"))
        _write(folder / place, _with_links(text, _rewriter(source, place, pages, folder)))
    generated = api_pages()
    for path, text in generated.items():
        if (folder / path).with_suffix(".md").exists():
            raise PageError(f"{path} is generated: a page in docs/ cannot have its place")
        _write(folder / path, text)
    for place, lists in navigation(list(pages.values())).items():
        with (folder / place).open("a", encoding="utf-8") as page:
            page.write(lists)


def place_of(source: Path) -> str:
    """A page's path in the site: as in docs/, or as in the repository; a README is its folder's index."""
    path = PurePosixPath(source.relative_to(ROOT))
    if str(path) in PROJECT:
        return PROJECT[str(path)]
    if path.parts[0] == "docs":
        path = path.relative_to("docs")
    return str(path.with_name("index.md") if path.name == "README.md" else path)


def _pages() -> dict[Path, str]:
    """Every page with its place: in the order in which README links them, the others after that."""
    linked = _linked(ROOT / "README.md")
    pages = dict.fromkeys([ROOT / "README.md", *reversed(dict.fromkeys(reversed(linked)))])  # by its last link
    pages |= dict.fromkeys(sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]))
    left = list(pages)
    while left:  # what these pages link to elsewhere in the repository
        new = [page for page in _linked(left.pop()) if page not in pages]
        pages |= dict.fromkeys(new)
        left += new
    return {source: place_of(source) for source in pages}


def _linked(page: Path) -> list[Path]:
    paths = [(page.parent / target.partition("#")[0]).resolve() for target in targets(page.read_text(encoding="utf-8"))]
    return [path for path in paths if path.suffix == ".md" and path.is_file()]


def targets(text: str) -> list[str]:
    """What the text's links and images lead to in the repository."""
    return [m["to"] for m in _TARGET.finditer(text) if m["to"] and not _ELSEWHERE.match(m["to"])]


def _with_links(text: str, rewrite: Callable[[str], str]) -> str:
    def replaced(match: re.Match[str]) -> str:
        to = match["to"]
        return match[0] if to is None or _ELSEWHERE.match(to) else f"({rewrite(to)})"

    return _TARGET.sub(replaced, text)


def _rewriter(source: Path, place: str, pages: dict[Path, str], folder: Path) -> Callable[[str], str]:
    """How a target on the page ``source`` is written at its place in the site."""

    def rewrite(target: str) -> str:
        path, _, anchor = target.partition("#")
        file = (source.parent / path).resolve()
        if not file.is_file():
            raise PageError(f"{source.relative_to(ROOT)}: {target} is not a file")
        to = pages.get(file) or _copied(file, folder)
        return os.path.relpath(to, PurePosixPath(place).parent) + (f"#{anchor}" if anchor else "")

    return rewrite


def _copied(file: Path, folder: Path) -> str:
    """The place of a file that is no page: text as a page that shows it, anything else as it is."""
    path = file.relative_to(ROOT)
    if path.suffix in {".py", ""}:
        place = f"files/{path}.md"
        language = "python" if path.suffix else "text"
        fenced = f"````{language}\n{file.read_text(encoding='utf-8')}````\n"
        _write(folder / place, f"---\norphan: true\n---\n# `{path}`\n\n{fenced}")
        return place
    place = place_of(file)
    (folder / place).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, folder / place)
    return place


def navigation(places: list[str]) -> dict[str, str]:
    """What is appended to index pages: the lists of pages that make up the sidebar.

    The front page has a list of the pages in docs/ itself, then one for each folder; a folder's own index has the pages
    of that folder. So every page is in one list.
    """
    sections: dict[str, list[str]] = {"": []}
    below: dict[str, list[str]] = {}
    for place in places:
        parent = _parent(place, places)
        if place == "index.md":
            continue
        if parent == "index.md":
            sections.setdefault(_section(place), []).append(place)
        else:
            below.setdefault(parent, []).append(place)
    sections.setdefault("Reference", []).extend([f"{FOLDER}/index.rst"])
    ordered = sorted(sections, key=lambda name: LAST.index(name) if name in LAST else -1)
    front = "".join(_toctree(name, sections[name]) for name in ordered)
    return {"index.md": front} | {
        index: _toctree("", [_beside(index, p) for p in pages]) for index, pages in below.items()
    }


def _parent(place: str, places: list[str]) -> str:
    """The index page of the nearest folder above."""
    folder = PurePosixPath(place).parent
    candidates = [str(above / "index.md") for above in [folder, *folder.parents]]
    return next((index for index in candidates if index in places and index != place), place)


def _section(place: str) -> str:
    folder, *below = PurePosixPath(place).parts
    if place in PROJECT.values() or (below and not (ROOT / "docs" / folder).is_dir()):
        return "Project"
    return folder.replace("-", " ").capitalize() if below else ""


def _beside(index: str, place: str) -> str:
    return os.path.relpath(place, PurePosixPath(index).parent)


def _toctree(caption: str, places: list[str]) -> str:
    listed = "\n".join(str(PurePosixPath(place).with_suffix("")) for place in places)
    options = ":hidden:\n" + (f":caption: {caption}\n" if caption else "")
    return f"\n```{{toctree}}\n{options}\n{listed}\n```\n"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_sources(Path(sys.argv[1]))
