"""The code blocks of the pages run, in their order, against real servers.

Every page has an empty database. Its Python blocks share one namespace, which begins with

- ``url`` and ``engine``: that database (without the ledger's tables, until the page makes them);
- ``brokers``: the ``bootstrap.servers`` of the shared broker, where the page uses it;
- ``make_topic(name, partitions)`` and ``produce(topic, values)``: no two pages make topics of one name;
- ``wait_until(query, answer)``: until the query answers that, or the page fails.

SQL blocks run on the same database. The pages in ``TYPED``, whose commands run too, have a test of their own
(``test_typed_pages.py``).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sybil import Example, Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser

from seekpoint.ledger import Ledger, group_ledger
from support.databases import empty, new_database
from support.docs_pages import PAGES, ROOT, TYPED, blocks, name_of, read
from support.waiting import until

SECONDS = 60.0  # for what takes a few
NOT_RUN = {
    "docs/reference/schema.md": "its rights name a role; tests/migrations/test_reference_page.py runs them",
}


def _runs(page: Path) -> bool:
    return name_of(page) not in TYPED and any(block.language in {"python", "sql"} for block in blocks(read(page)))


@pytest.fixture(scope="module")
def database(seekpoint_dsn: str) -> Iterator[str]:
    """The URL of a database for the pages of this process."""
    with new_database(seekpoint_dsn) as url:
        yield url


@pytest.fixture
def engine(database: str) -> Iterator[Engine]:
    """An engine on an empty database that only this page uses now."""
    engine = create_engine(database)
    yield engine
    engine.dispose()
    empty(database)


def _waiter(engine: Engine) -> Callable[[str, object], None]:
    def wait_until(query: str, answer: object) -> None:
        def answers() -> bool:
            with engine.connect() as connection:
                return bool(connection.execute(text(query)).scalar_one_or_none() == answer)

        until(answers, f"{answer!r} as the answer to {query}", SECONDS)

    return wait_until


@pytest.fixture
def kafka(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The broker, and what pages do with it."""
    brokers, topic = request.getfixturevalue("seekpoint_broker"), request.getfixturevalue("topic")
    return {
        "brokers": brokers,
        "make_topic": lambda name, partitions: topic(partitions, name=name),
        "produce": request.getfixturevalue("produce"),
    }


class Reader:
    """Does what a page's blocks say, one after the other."""

    def __init__(self, page: Path, engine: Engine) -> None:
        self._page, self._engine = page, engine

    def read(self, names: dict[str, Any]) -> None:
        """The whole page, its namespace beginning with ``names``."""
        parsers = [CodeBlockParser("python", PythonEvaluator())]
        if name_of(self._page) not in NOT_RUN:
            parsers.append(CodeBlockParser("sql", self._run_sql))
        document = Sybil(parsers=parsers, path=str(ROOT)).parse(self._page)
        document.namespace.update(names)
        try:
            for example in document.examples():
                example.evaluate()
        finally:
            for value in document.namespace.values():
                if isinstance(value, Ledger):
                    group_ledger(value).engine.dispose()

    def _run_sql(self, example: Example) -> None:
        with self._engine.begin() as tx:
            driver: Any = tx.connection.driver_connection  # SQLAlchemy would read % as the start of a parameter
            driver.execute(example.parsed)


@pytest.mark.parametrize("page", [page for page in PAGES if _runs(page)], ids=name_of)
def test_the_blocks_of_a_page_run(page: Path, engine: Engine, request: pytest.FixtureRequest) -> None:
    url = engine.url.render_as_string(hide_password=False)
    names: dict[str, Any] = {"url": url, "engine": engine, "wait_until": _waiter(engine), "__name__": "page"}
    if re.search(r"\b(brokers|make_topic|produce)\b", read(page)):
        names |= request.getfixturevalue("kafka")
    Reader(page, engine).read(names)


def test_no_two_pages_make_a_topic_of_one_name() -> None:
    names = Counter(name for page in PAGES for name in re.findall(r'\bmake_topic\("([^"]+)"', read(page)))
    assert [name for name, pages in names.items() if pages > 1] == []
