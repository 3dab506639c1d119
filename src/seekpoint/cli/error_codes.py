"""Reads the entries of the page *Troubleshooting*, which ``seekpoint explain SP1201`` prints, by their codes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import seekpoint
from seekpoint.errors import ConfigError

PAGE = "troubleshooting.md"  # a wheel has it in the package, a checkout in docs/
_HEADING = re.compile(r"^#{2,3} (?:(?P<code>SP\d{4}) (?P<error>\w+))?.*$", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)[^)]*\)")


@dataclass(frozen=True, slots=True)
class ErrorEntry:
    """The page's entry for one class of errors: ``text`` is Markdown, without links to other pages."""

    code: str
    error: str
    text: str


def is_code(target: str) -> bool:
    """Whether the text has the form of an error's code."""
    return re.fullmatch(r"SP\d{4}", target) is not None


def error_entry(code: str) -> ErrorEntry:
    """The entry with this code. Raises ConfigError, naming the known codes, if there is none."""
    entries = error_entries()
    if code not in entries:
        raise ConfigError(f"there is no error with code {code}; the codes are {', '.join(entries)}")
    return entries[code]


def error_entries() -> dict[str, ErrorEntry]:
    """Every entry by its code, in the order of the codes."""
    page = _page().read_text(encoding="utf-8")
    headings = [*_HEADING.finditer(page)]
    ends = [following.start() for following in headings[1:]] + [len(page)]
    entries = [
        ErrorEntry(heading["code"], heading["error"], _LINK.sub(r"\1", page[heading.end() : end]).strip())
        for heading, end in zip(headings, ends, strict=True)
        if heading["code"]
    ]
    return {entry.code: entry for entry in sorted(entries, key=lambda entry: entry.code)}


def _page() -> Path:
    package = Path(seekpoint.__file__).resolve().parent
    for path in (package / PAGE, package.parent.parent / "docs" / PAGE):
        if path.is_file():
            return path
    raise ConfigError(f"this installation of seekpoint in {package} has no {PAGE}: install it again")
