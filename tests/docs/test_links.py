"""Links lead somewhere, and pages keep to what a page may say."""

from __future__ import annotations

import re
from pathlib import Path

from support.docs_pages import PAGES, ROOT, anchors, blocks, links, name_of, named, read
from support.every_row import for_each

LANGUAGES = {"python", "py", "sql", "console", "text", "ini", "yaml", "json"}
ELSEWHERE = re.compile(r"^(https?|mailto):")


@for_each(PAGES, name_of)
def test_every_internal_link_and_anchor_resolves(page: Path) -> None:
    broken = []
    for link in links(read(page)):
        if ELSEWHERE.match(link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or ROOT not in (target, *target.parents):
            broken.append(f"{link}: there is no such file")
        elif anchor and anchor not in anchors(read(target)):
            broken.append(f"{link}: {name_of(target)} has no such heading")
    assert not broken, "\n".join(broken)


def test_every_page_is_reached_from_the_readme() -> None:
    reached, left = set(), [ROOT / "README.md"]
    while left:
        page = left.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        paths = [link.partition("#")[0] for link in links(read(page)) if not ELSEWHERE.match(link)]
        left += [(page.parent / path).resolve() for path in paths if path]
    assert not {name_of(page) for page in PAGES} - {name_of(page) for page in reached}


def test_llms_txt_lists_the_pages_of_the_readme() -> None:
    """In the form of llmstxt.org: a title, a summary, and links with a line about each."""
    text = named("llms.txt")
    assert re.match(r"# Seekpoint\n\n> \S.*\n\n## ", text)
    listed = re.findall(r"^- \[([^\]]+)\]\(([^)]+)\): \S", text, re.MULTILINE)
    table = named("README.md").partition("## Documentation\n")[2]
    assert listed == [link for link in re.findall(r"\[([^\]]+)\]\(([^)]+)\)", table) if link[1] != "LICENSE"]


@for_each(PAGES, name_of)
def test_every_block_says_what_it_is(page: Path) -> None:
    strange = [f"line {b.line}: {b.language or 'nothing'}" for b in blocks(read(page)) if b.language not in LANGUAGES]
    assert not strange, "\n".join(strange)


@for_each(PAGES, name_of)
def test_fragments_that_cannot_run_are_python_all_the_same(page: Path) -> None:
    for block in blocks(read(page), "py"):
        compile(block.text, f"{name_of(page)}:{block.line}", "exec")


@for_each(PAGES, name_of)
def test_a_page_knows_no_machine(page: Path) -> None:
    """No path of a user's home, no address of a private network or host."""
    text = read(page)
    private = re.findall(r"(?:/home/|/Users/|/root/)\S*|\b10\.\d+\.\d+\.\d+\b|\b192\.168\.\d+\.\d+\b", text)
    assert not private


def test_nothing_names_the_package_as_if_it_were_on_the_index() -> None:
    """There, the name may be another project's: messages and pages install from a path."""
    files = [*PAGES, *(ROOT / "src").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]
    named = re.compile(r"install (?:--upgrade )?['\"`]?seekpoint\b")
    assert not [name_of(file) for file in files if named.search(read(file))]
