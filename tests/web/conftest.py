"""The console without a browser, over a ledger of the test's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from sqlalchemy import Engine

from seekpoint.admin import Admin
from seekpoint.ledger import GroupLedger
from seekpoint.web import create_app
from support.browser import LOCAL, Browser
from support.ledger_worker import LedgerWorker, make_table

PAGES = (
    "",
    "group?group=g",
    "partition?group=g&topic=t&partition=0",
    "dead-letters?group=g",
    "reloads",
    "history",
    "health",
)


Console = Callable[..., Browser]


@pytest.fixture
def worker(seekpoint_engine: Engine, seekpoint_schema: str) -> LedgerWorker:
    """The worker of the group ``g``: it has claimed three partitions of the topic ``t`` and applied some records."""
    make_table(seekpoint_engine, seekpoint_schema)
    worker = LedgerWorker(GroupLedger(seekpoint_engine, "g", schema=seekpoint_schema))
    worker.claim(0, 1, 2)
    worker.commit({0: 5, 1: 7})
    return worker


@pytest.fixture
def console(admin: Admin) -> Iterator[Console]:
    """``console(**options)`` is a browser at ``create_app(admin, **options)``; ``admin=`` is another one."""
    with ExitStack() as opened:

        def make(*, client: tuple[str, int] = ("127.0.0.1", 50_000), admin: Admin = admin, **options: Any) -> Browser:
            reader = options.pop("reader", None)
            app = create_app(admin, reader=reader, **options)
            return opened.enter_context(Browser(app, base_url=LOCAL, client=client, raise_server_exceptions=False))

        yield make
