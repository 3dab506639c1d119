"""The glossary's terms are used: words that it replaces become fewer, and none comes back."""

from __future__ import annotations

import re

import pytest

import words
from support.docs_pages import name_of, named
from support.every_row import for_each
from words import Text, Word, allowed, counted, of_source


@pytest.mark.long
def test_no_word_is_used_more_often_than_before_and_the_counts_fall_with_the_words() -> None:
    counts, most = counted(), allowed()
    risen = [
        f"{name}: {count}, and {most.get(name, 0)} before"
        for name, count in counts.items()
        if count > most.get(name, 0)
    ]
    assert not risen, (
        "docs/glossary.md has terms for these (`.venv/bin/python tests/words.py WORD` lists places):\n"
        + "\n".join(risen)
    )
    fallen = [
        f"{name}: {counts.get(name, 0)}, and not {count}" for name, count in most.items() if counts.get(name, 0) < count
    ]
    assert not fallen, "fewer than before: run `.venv/bin/python tests/words.py --lower`\n" + "\n".join(fallen)


def test_the_glossary_itself_uses_none() -> None:
    text = Text("docs/glossary.md", 1, named("docs/glossary.md"))
    assert not [(word.name, line) for word in words.words() for line in word.found_in(text, text.prose, text.code)]


WORDS = {
    "behind": "the search resumes behind the record",
    "told": "the operator is told so",
    "whoever": "Whoever took the run",
    "goes on": "its partition goes\non",
    "letter": "the first letter of its key",
    "parked": "a parked partition",
    "stands": "where the ledger stands",
    "stands by": "it stands by for the run",
    "rounds": "after a round of new records",
    "E0": "staged up to E0",
}


@for_each(WORDS)
def test_a_word_is_found(name: str) -> None:
    line = WORDS[name]
    assert list(_word(name).found_in(Text("page.md", 1, line), line, "")) == [1]


ORDINARY_ENGLISH = {
    "behind": "the record is blocked behind its key; a worker behind a connection pooler; it lags behind",
    "letter": "a dead letter; a dead-letter; dead\nletters",
    "stands": "MSK stands for a service; the clock stands still; a standby server",
    "told": "it tells them apart",
    "rounds": "one round trip, all round trips, two rows around it",
    "parked": "spark",
    "turn": "it returns; which turns it off",
}


@for_each(ORDINARY_ENGLISH)
def test_ordinary_english_is_not(name: str) -> None:
    line = ORDINARY_ENGLISH[name]
    assert not list(_word(name).found_in(Text("page.md", 1, line), line, ""))


SOURCE = '''
"""The record's page."""
# a comment that goes
# on for two lines
RAISE = f"{name} is parked: " "somebody decides"
STATEMENT = "SELECT parked FROM letters"
NAME = "parked"
def test_the_letter_is_closed() -> None:
    """``parked`` is code, parked is not."""
'''


def test_docstrings_comments_messages_and_names_of_tests_are_read() -> None:
    uses = [
        (word.name, line)
        for text in of_source("src/seekpoint/module.py", SOURCE.lstrip())
        for word in words.words()
        for line in word.found_in(text, text.prose, text.code)
    ]
    assert sorted(uses) == [
        ("The same", 1), ("goes on", 2), ("letter", 7), ("parked", 4), ("parked", 8), ("whoever", 4),
    ]  # fmt: skip


def test_a_name_is_found_in_code_alone() -> None:
    gone = Word("Gone", "Revoked", re.compile(r"(?<!\w)Gone(?!\w)"), is_name=True)
    text = Text("page.md", 1, "Gone are the days.\n```python\nevent = Gone(...)\n```\n`Gone` and `Goner`")
    assert list(gone.found_in(text, text.prose, text.code)) == [3, 5]


def test_a_name_that_the_package_has_may_be_used() -> None:
    assert "Pipeline" in words.identifiers()
    assert not {word.name for word in words.words() if word.is_name} & words.identifiers()


def test_the_counts_name_words_that_exist() -> None:
    assert set(allowed()) <= {word.name for word in words.words()}, "run `.venv/bin/python tests/words.py --lower`"
    assert name_of(words.COUNTS) == "tests/docs/word_counts.txt"


def _word(name: str) -> Word:
    return next(word for word in words.words() if word.name == name)
