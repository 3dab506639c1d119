"""What a pipeline writes with: the protocols of sinks and handlers, and the error that names a refused row."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from sqlalchemy import Connection
from typing_extensions import TypeVar

from seekpoint.codecs import Codec
from seekpoint.events import WriteStrategyChanged
from seekpoint.pipeline.batch import Batch
from seekpoint.records import Record

V = TypeVar("V", default=Any)
K = TypeVar("K", default=Any)
V_contra = TypeVar("V_contra", contravariant=True, default=Any)
K_contra = TypeVar("K_contra", contravariant=True, default=Any)

Handler = Callable[[Connection, Batch[V, K]], None]

Row = tuple[Any, ...]


class Writer(Protocol):
    """What an open sink takes rows with."""

    def write(self, rows: Sequence[Row]) -> None:
        """Take these rows; an error of the n-th row written since the sink was opened is a RowRefused."""


class SinkWriter(Protocol[V_contra, K_contra]):
    """What one worker writes a sink's rows with, in all its transactions; it keeps what it learns of rows and table.

    One of your own inherits from this class: what it need not do has a default. ``keeps_locks``: none of its statements
    releases a lock of the transaction, as ROLLBACK TO does.
    """

    keeps_locks: bool = False

    def rows(self, record: Record[V_contra, K_contra]) -> Iterable[Row]:
        """The rows that one record becomes; the same ones when it is asked again."""
        ...

    def open(self, tx: Connection) -> AbstractContextManager[Writer]:
        """Begin to write; leaving the block without an error means that the database has taken every row."""
        ...

    def value_rows(self, values: Sequence[V_contra]) -> list[Row] | None:  # noqa: ARG002 -- the default
        """One row for each value, as ``rows`` makes it of the record; None if it needs whole records."""
        return None

    def count(self, rows: Sequence[Row]) -> int:
        """How many rows of the table these are."""
        return len(rows)

    def statements(self, tx: Connection) -> Callable[[Sequence[Row]], Sequence[Any] | None] | None:  # noqa: ARG002 -- the default
        """Makes of few rows the statements that leave together with the ledger's; None where ``open`` has to write.

        Only where ``keeps_locks``. Sends nothing. What it returns may return None, too.
        """
        return None

    def strategy_changed(self) -> WriteStrategyChanged | None:
        """After COMMIT: whether rows are written in another way than when this was asked last."""
        return None


@runtime_checkable
class Sink(Protocol[V_contra, K_contra]):
    """Declares a table that records are written to, inside the transaction that moves the offset.

    It holds what its user wrote, and nothing that a worker learns: workers of one process may share it. One of your own
    inherits from this class: what it need not say has a default.
    """

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables it writes, as ``schema.table`` or ``table``."""
        ...

    def takes(self, topic: str) -> bool:
        """Whether records of this topic go to this sink."""
        ...

    def writer(self) -> SinkWriter[V_contra, K_contra]:
        """What a worker writes its rows with; each worker makes its own."""
        ...

    @property
    def key(self) -> tuple[str, ...]:
        """The columns whose values name one row; none where each record adds rows."""
        return ()

    @property
    def guarded(self) -> bool | None:
        """Whether an older record never overwrites a newer one's row; None where each record adds rows."""
        return None

    def check(self, tx: Connection, codecs: Collection[Codec]) -> object:  # noqa: ARG002 -- the default
        """Raises ConfigError where the table, a column or a right is missing. Writes nothing.

        ``codecs`` decode the values of the sink's topics; their ``type`` is what they decode into, where they have one.
        """
        return None


class RowRefused(Exception):  # noqa: N818 -- passes a database error on, with the place where it belongs
    """The database refused one row: the ``line``-th (from 1) written since the sink was opened.

    ``line`` is None where the database does not say which: foreign keys are checked after the last row, and the
    server's messages may be in another language.
    """

    def __init__(self, line: int | None, cause: Exception) -> None:
        super().__init__(f"row {line}: {cause}" if line else str(cause))
        self.line, self.cause = line, cause
