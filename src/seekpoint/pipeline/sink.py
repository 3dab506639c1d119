"""What a pipeline writes with: the protocols of sinks and handlers, and the error that names a refused row."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from sqlalchemy import Connection
from typing_extensions import TypeVar

from seekpoint.codecs import Codec
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


@runtime_checkable
class Sink(Protocol[V_contra, K_contra]):
    """A table that records are written to, inside the transaction that moves the offset."""

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables it writes, as ``schema.table`` or ``table``."""

    def takes(self, topic: str) -> bool:
        """Whether records of this topic go to this sink."""

    def rows(self, record: Record[V_contra, K_contra]) -> Iterable[Row]:
        """The rows that one record becomes; the same ones when it is asked again."""

    def open(self, tx: Connection) -> AbstractContextManager[Writer]:
        """Begin to write; leaving the block without an error means that the database has taken every row."""


@runtime_checkable
class ValueSink(Sink[V_contra, K_contra], Protocol[V_contra, K_contra]):
    """A sink that may make its rows from values alone: no record object is created for it."""

    def value_rows(self, values: Sequence[V_contra]) -> list[Row] | None:
        """One row for each value, as ``rows`` makes it of the record; None if it needs whole records."""


@runtime_checkable
class CheckedSink(Sink[V_contra, K_contra], Protocol[V_contra, K_contra]):
    """A sink whose table can be checked before the first record."""

    def check(self, tx: Connection, codecs: Collection[Codec]) -> object:
        """Raises ConfigError where the table, a column or a right is missing. Writes nothing.

        ``codecs`` decode the values of the sink's topics; their ``type`` is what they decode into, where they have one.
        """


class RowRefused(Exception):  # noqa: N818 -- passes a database error on, with the place where it belongs
    """The database refused one row: the ``line``-th (from 1) written since the sink was opened.

    ``line`` is None where the database does not say which: foreign keys are checked after the last row, and the
    server's messages may be in another language.
    """

    def __init__(self, line: int | None, cause: Exception) -> None:
        super().__init__(f"row {line}: {cause}" if line else str(cause))
        self.line, self.cause = line, cause
