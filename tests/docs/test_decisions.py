"""Decision records keep one form, and their index lists each of them with its status."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

from support.docs_pages import ROOT, name_of, read
from support.every_row import for_each

FOLDER = ROOT / "docs" / "internals" / "decisions"
RECORDS = sorted(FOLDER.glob("[0-9]*.md"))
FIELDS = ["Status", "Date", "Context", "Decision", "Alternatives", "Consequences"]


def fields(record: Path) -> dict[str, str]:
    """The fields of a decision record in their order, each with its text."""
    parts = re.split(r"^\*\*([A-Z]\w+)\.\*\*", read(record), flags=re.MULTILINE)[1:]
    return {name: text.strip() for name, text in zip(parts[::2], parts[1::2], strict=True)}


def title(record: Path) -> str:
    match = re.match(rf"# {record.name[:4]}: (.+)\n", read(record))
    assert match is not None, f"{name_of(record)} begins with another heading"
    return match[1]


def status_in_index(record: Path) -> str:
    """``accepted``, as it is written in the index."""
    status = fields(record)["Status"].rstrip(".")
    return status[0].lower() + status[1:]


def test_numbers_have_no_gap() -> None:
    assert [record.name[:4] for record in RECORDS] == [f"{number:04}" for number in range(1, len(RECORDS) + 1)]


@for_each(RECORDS, lambda record: record.name[:4])
def test_a_record_has_all_fields_in_order(record: Path) -> None:
    values = fields(record)
    assert list(values) == FIELDS
    assert all(values.values()), f"empty: {[name for name, text in values.items() if not text]}"


@for_each(RECORDS, lambda record: record.name[:4])
def test_status_and_date_are_valid(record: Path) -> None:
    values = fields(record)
    assert date.fromisoformat(values["Date"]).isoformat() == values["Date"]
    assert re.fullmatch(r"(Proposed|Accepted|Withdrawn|Superseded by \[\d{4}\]\([\w-]+\.md\))\.", values["Status"])


def test_the_index_lists_each_record_with_its_title_status_and_date() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in read(FOLDER / "README.md").splitlines()
        if line.startswith("| [")
    ]
    assert rows == [
        [f"[{record.name[:4]}]({record.name})", title(record), status_in_index(record), fields(record)["Date"]]
        for record in RECORDS
    ]
