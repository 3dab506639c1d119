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
from seekpoint.pipeline.pattern import Pattern
from seekpoint.records import RawRecord, Record

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection  # importing it needs greenlet, which is an extra

V = TypeVar("V", default=Any)
K = TypeVar("K", default=Any)
V_contra = TypeVar("V_contra", contravariant=True, default=Any)
K_contra = TypeVar("K_contra", contravariant=True, default=Any)

Handler = Callable[[Connection, Batch[V, K]], None]
# The third argument is the value of ``resources=``, if declared.
AsyncHandler = Callable[Concatenate["AsyncConnection", Batch[V, K], ...], Awaitable[None]]

Row = tuple[Any, ...]

ONE_PARTITION = (
    "records of several partitions have no common order, so it is not known which rows were there before the "
    "truncate: use a topic with one partition, or omit truncate="
)


class Writer(Protocol):
    """An open sink, which takes rows."""

    def write(self, rows: Sequence[Row]) -> None:
        """Write rows. Raises RowRefused if the database refuses a row written since the sink was opened."""


class SinkWriter(Protocol[V_contra, K_contra]):
    """Writes a sink's rows in all transactions of one worker; may cache facts about rows and table.

    Inherit from this class to write your own; optional methods have a default. ``keeps_locks``: no statement of the
    writer releases a lock of the transaction, as ROLLBACK TO does.
    """

    keeps_locks: bool = False

    def rows(self, record: Record[V_contra, K_contra]) -> Iterable[Row]:
        """The rows of one record; each call returns equal rows."""
        ...

    def open(self, tx: Connection) -> AbstractContextManager[Writer]:
        """Begin to write; if the block ends without an error, the database has taken every row."""
        ...

    def chunk_rows(
        self,
        values: Sequence[V_contra],  # noqa: ARG002 -- the default
        keys: Sequence[K_contra] | None,  # noqa: ARG002
        raw: Sequence[RawRecord],  # noqa: ARG002
    ) -> list[Row] | None:
        """One row for each record, as ``rows`` makes it; None if the records must be made into rows one by one.

        ``values`` and ``keys`` are decoded, except that ``keys`` is None if keys are bytes; ``raw`` are the records,
        whose objects are made when the first is accessed. None for no records means None for all.
        """
        return None

    def count(self, rows: Sequence[Row]) -> int:
        """The number of rows in the table that ``rows`` make."""
        return len(rows)

    def statements(self, tx: Connection) -> Callable[[Sequence[Row]], Sequence[Any] | None] | None:  # noqa: ARG002 -- the default
        """A function from a few rows to statements that are sent with the ledger's; None if ``open`` has to write them.

        Called only with ``keeps_locks``; sends nothing. If the function returns None, ``open`` writes the rows.
        """
        return None

    def strategy_changed(self) -> WriteStrategyChanged | None:
        """Called after COMMIT: the event if the write strategy has changed since the last call, otherwise None."""
        return None


@runtime_checkable
class Sink(Protocol[V_contra, K_contra]):
    """Declares a table to which records are written, inside the transaction that moves the offset.

    It holds no state of a worker, so workers of one process may share it. Inherit from this class to write your own;
    optional methods have a default.
    """

    @property
    def tables(self) -> tuple[str, ...]:
        """The written tables, as ``schema.table`` or ``table``."""
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

    @property
    def empties(self) -> bool:
        """Whether a record may delete all rows of the table, so that all records must be of one partition."""
        return False

    @property
    def needs_order(self) -> bool:
        """Whether no record may be applied before an earlier one of its partition, even of another key."""
        return self.empties

    @property
    def compares_offsets(self) -> bool:
        """Whether a row's offset alone says which row is newer, so that all its records must be of one topic."""
        return False

    def by_topic(self, pattern: Pattern | None) -> Callable[[str], Any] | None:  # noqa: ARG002 -- the default
        """The function that makes the sink of each topic that the pattern matches; None if this sink takes all topics.

        ``pattern`` is the pattern of the pipeline, None if the pipeline names its topics.
        """
        return None

    def check(
        self,
        tx: Connection,  # noqa: ARG002 -- the default
        codecs: Collection[Codec],  # noqa: ARG002
        key: Codec | None = None,  # noqa: ARG002
    ) -> object:
        """Raise ConfigError if the table, a column or a privilege is missing. Writes nothing.

        ``codecs`` decode the values of the sink's topics, each into its ``type``, if it has one; ``key`` decodes keys.
        """
        return None


class WentBack(Exception):  # noqa: N818 -- the cause of a RowRefused
    """A change's source position is lower than that of the stored row, which an earlier record of the partition wrote.

    Whatever the failure policy, the position does not pass this record, because later records may be refused for the
    same reason.
    """

    def __init__(self, column: str, before: object, position: object) -> None:
        super().__init__(f"the source's position goes back: {position} after {before}, which column {column!r} has")


class RowRefused(Exception):  # noqa: N818 -- control: the caller raises the cause for the row's record
    """The database refused one row: the ``line``-th (from 1) written since the sink was opened.

    ``line`` is None if the row is not known: foreign keys are checked after the last row, and the server's messages may
    be in another language.
    """

    def __init__(self, line: int | None, cause: Exception) -> None:
        super().__init__(f"row {line}: {cause}" if line else str(cause))
        self.line, self.cause = line, cause
