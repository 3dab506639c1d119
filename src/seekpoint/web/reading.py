"""Reads for pages: read-only, on a separate pool, with a timeout; returns the last answer if the database is away."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from time import monotonic
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection, create_engine, event
from sqlalchemy.exc import OperationalError, ProgrammingError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.concurrency import run_in_threadpool

from seekpoint.admin import Admin
from seekpoint.errors import SeekpointError
from seekpoint.ledger.schema_revision import check
from seekpoint.records import one_line

T = TypeVar("T")

TIMEOUT = 2.0  # seconds for a statement
POOL = 5  # connections
READ_ONLY = (
    "SELECT set_config('transaction_read_only', 'on', true), "
    f"set_config('statement_timeout', '{TIMEOUT * 1000:.0f}ms', true), set_config('lock_timeout', '500ms', true)"
)
CHECKED = 10.0  # seconds until the ledger's revision is checked again
KEPT = 20  # most answers kept; the answer about a group with 10,000 partitions takes 12 MB


class Unavailable(SeekpointError):  # noqa: N818 -- as the library's others
    """The database cannot be read, and there is no earlier answer."""


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """A value read ``age`` seconds ago; ``error`` says why it is not current."""

    value: T
    age: float = 0.0
    error: str | None = None


def reader_of(admin: Admin) -> Admin:
    """An Admin on a separate pool, made from the URL of this one's engine."""
    engine = create_engine(
        admin.engine.url,
        connect_args={"connect_timeout": int(TIMEOUT)},
        pool_size=POOL,
        max_overflow=0,
        pool_timeout=TIMEOUT,
        pool_pre_ping=True,
    )
    return Admin(engine, admin.kafka, schema=admin.schema, limits=admin.limits)


def reading(admin: Admin) -> Admin:
    """An Admin on this one's pool, with read-only transactions that end a statement after two seconds.

    Each transaction sets both at its start, not by startup options: a pooler refuses or ignores those, and with
    ``target_session_attrs=read-write`` libpq accepts no session that is read-only by default.
    """
    engine = admin.engine.execution_options()  # a copy with separate events, because the engine itself may write
    event.listen(engine, "begin", _read_only)
    return Admin(engine, admin.kafka, schema=admin.schema, limits=admin.limits)


def _read_only(connection: Connection) -> None:
    connection.exec_driver_sql(READ_ONLY)


def said_by(error: SQLAlchemyError) -> str:
    """A database error as one line, without its DETAIL, which may quote rows."""
    cause = getattr(error, "orig", None) or error
    message = getattr(getattr(cause, "diag", None), "message_primary", None)
    return one_line(cause) if message is None else f"{type(cause).__name__}: {message}"


def check_revision(admin: Admin) -> None:
    """Raise SchemaMismatch, which names the command, unless the ledger has this library's revision."""
    with admin.engine.connect() as connection:
        check(connection, admin.schema)


class Reads:
    """Runs reads in threads, and keeps the last answer of each."""

    def __init__(self, admin: Admin, reader: Admin | None = None) -> None:
        self.admin = reading(reader or reader_of(admin))
        self._check_again = 0.0
        self._last: OrderedDict[Hashable, tuple[float, Any]] = OrderedDict()
        self._lock = threading.Lock()

    async def read(
        self, key: Hashable, question: Callable[[Admin], T], *, keep: float = 0.0, any_revision: bool = False
    ) -> Answer[T]:
        """The current answer, or the last one if it is younger than ``keep`` seconds or the database is away.

        Raises Unavailable if there is neither a current answer nor an earlier one; SchemaMismatch for a missing or old
        ledger, unless ``any_revision``.
        """
        last = self._last.get(key)
        if last is not None and (age := monotonic() - last[0]) < keep:
            return Answer(last[1], age)
        try:
            value = await self.ask(question, any_revision=any_revision)
        except (OperationalError, PoolTimeout) as error:
            return self._earlier(key, said_by(error))
        with self._lock:
            self._last[key] = monotonic(), value
            self._last.move_to_end(key)
            while len(self._last) > KEPT:
                self._last.popitem(last=False)
        return Answer(value)

    async def ask(self, question: Callable[[Admin], T], *, any_revision: bool = False) -> T:
        """The current answer. Raises SchemaMismatch for a ledger of another revision, checked every ten seconds."""

        def answer() -> T:
            if not any_revision and monotonic() >= self._check_again:
                check_revision(self.admin)
                self._check_again = monotonic() + CHECKED
            return question(self.admin)

        try:
            return await run_in_threadpool(answer)
        except ProgrammingError:  # no such table or column
            await run_in_threadpool(check_revision, self.admin)
            raise

    def _earlier(self, key: Hashable, error: str) -> Answer[Any]:
        with self._lock:
            last = self._last.get(key)
        if last is None:
            raise Unavailable(f"the database cannot be read: {error}")
        read_at, value = last
        return Answer(value, monotonic() - read_at, error)
