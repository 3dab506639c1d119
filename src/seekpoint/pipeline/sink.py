"""The protocols of sinks and handlers, and the error that names a refused row."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Concatenate, Protocol, runtime_checkable

from sqlalchemy import Connection
from typing_extensions import TypeVar

from seekpoint.codecs import Codec
from seekpoint.events import WriteStrategyChanged
from seekpoint.pipeline.batch import Batch
from seekpoint.records import Record

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection  # needs greenlet, which is an extra

V = TypeVar("V", default=Any)
K = TypeVar("K", default=Any)
V_contra = TypeVar("V_contra", contravariant=True, default=Any)
K_contra = TypeVar("K_contra", contravariant=True, default=Any)

Handler = Callable[[Connection, Batch[V, K]], None]
# With the value of ``resources=`` as its third argument, if that is given.
AsyncHandler = Callable[Concatenate["AsyncConnection", Batch[V, K], ...], Awaitable[None]]

Row = tuple[Any, ...]


class Writer(Protocol):
    """An open sink, which takes rows."""

    def write(self, rows: Sequence[Row]) -> None:
        """Take rows. Raises RowRefused for an error of the n-th row written since the sink was opened."""


class SinkWriter(Protocol[V_contra, K_contra]):
    """Writes a sink's rows for one worker, in all its transactions; it keeps what it learns about rows and table.

    Inherit from this class to write your own: methods that you may leave out have a default. ``keeps_locks``: none of
    its statements releases a lock of the transaction, as ROLLBACK TO does.
    """

    keeps_locks: bool = False

    def rows(self, record: Record[V_contra, K_contra]) -> Iterable[Row]:
        """The rows that one record becomes, the same ones at each call."""
        ...

    def open(self, tx: Connection) -> AbstractContextManager[Writer]:
        """Begin to write; leaving the block without an error means that the database has taken every row."""
        ...

    def value_rows(self, values: Sequence[V_contra]) -> list[Row] | None:  # noqa: ARG002 -- the default
        """One row for each value, as ``rows`` makes it from the record; None if it needs whole records."""
        return None

    def count(self, rows: Sequence[Row]) -> int:
        """How many rows of the table these are."""
        return len(rows)

    def statements(self, tx: Connection) -> Callable[[Sequence[Row]], Sequence[Any] | None] | None:  # noqa: ARG002 -- the default
        """A function from few rows to statements, which are sent with the ledger's; None if ``open`` has to write.

        Called only with ``keeps_locks``. Sends nothing. The function may return None, too.
        """
        return None

    def strategy_changed(self) -> WriteStrategyChanged | None:
        """After COMMIT: the event if rows are written by another strategy than at the last call."""
        return None


@runtime_checkable
class Sink(Protocol[V_contra, K_contra]):
    """Declares a table that records are written to, inside the transaction that moves the offset.

    It holds the declaration, and nothing that a worker learns, so workers of one process may share it. Inherit from
    this class to write your own: methods that you may leave out have a default.
    """

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables it writes, as ``schema.table`` or ``table``."""
        ...

    def takes(self, topic: str) -> bool:
        """Whether records of this topic go to this sink."""
        ...

    def writer(self) -> SinkWriter[V_contra, K_contra]:
        """A writer for one worker; each worker calls this."""
        ...

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that identify a row; empty if each record adds rows."""
        return ()

    @property
    def guarded(self) -> bool | None:
        """Whether older records never overwrite the row of a newer one; None if each record adds rows."""
        return None

    @property
    def keeps_first(self) -> bool:
        """Whether a key's first row stays, so that applying a record again changes nothing."""
        return False

    @property
    def aggregates(self) -> bool:
        """Whether each record is added to its key's row, so that applying it again counts it twice."""
        return False

    def check(self, tx: Connection, codecs: Collection[Codec]) -> object:  # noqa: ARG002 -- the default
        """Raise ConfigError if the table, a column or a privilege is missing. Writes nothing.

        ``codecs`` decode the values of the sink's topics, each into its ``type``, if it has one.
        """
        return None


class RowRefused(Exception):  # noqa: N818 -- control: the caller raises the cause for the row's record
    """The database refused one row: the ``line``-th (from 1) written since the sink was opened.

    ``line`` is None if the database does not name the row: foreign keys are checked after the last one, and the
    server's messages may be in another language.
    """

    def __init__(self, line: int | None, cause: Exception) -> None:
        super().__init__(f"row {line}: {cause}" if line else str(cause))
        self.line, self.cause = line, cause
