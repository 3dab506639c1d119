"""What the sinks declare in common: a table, and which rows of it a record becomes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import tzinfo
from typing import TYPE_CHECKING, Any, Generic

import msgspec
from sqlalchemy import Connection

from seekpoint.codecs import Codec
from seekpoint.errors import ConfigError
from seekpoint.pipeline.provenance import provenance_columns
from seekpoint.pipeline.sink import K_contra, V_contra
from seekpoint.pipeline.table_path import TableName, shown_table, table_path
from seekpoint.records import Record
from seekpoint.sinks.conversions import conversions
from seekpoint.sinks.declared_types import check_fields
from seekpoint.sinks.names import require_whole_names

if TYPE_CHECKING:
    from seekpoint.sinks.column_type import ColumnTypes

ORIGINS = ("topic", "partition", "offset")  # of a record, as ``provenance=`` names them


class TableSink(Generic[V_contra, K_contra]):
    """A table that rows are written to; :class:`Append` and :class:`Upsert` say how."""

    key: tuple[str, ...] = ()

    def __init__(
        self,
        table: TableName,
        *,
        columns: Sequence[str] | None = None,
        row: Callable[[Record[V_contra, K_contra]], Any] | None = None,
        rows: Callable[[Record[V_contra, K_contra]], Iterable[Any]] | None = None,
        topics: Collection[str] | None = None,
        provenance: Mapping[str, str] | Sequence[str] | None = None,
        round: bool = False,  # noqa: A002
        timezone: str | tzinfo | None = None,
    ) -> None:
        me = f"{type(self).__name__}({shown_table(table)})"
        self.path = table_path(me, table)
        require_whole_names(me, self.path)
        if row is not None and rows is not None:
            raise ConfigError(f"{me}: give row= or rows=, not both")
        if isinstance(columns, str) or (columns is not None and not columns):
            raise ConfigError(f"{me}: columns must be a sequence of names, got {columns!r}")
        if columns is not None and len({*columns}) < len(columns):
            raise ConfigError(f"{me}: columns= names one twice: {', '.join(columns)}")
        self.columns = None if columns is None else tuple(columns)
        self.provenance = provenance_columns(f"{me}: ", provenance, ORIGINS)
        self.conversions = conversions(me, round=round, timezone=timezone)
        self.row_of, self.rows_of = row, rows
        self._topics = None if topics is None else frozenset([topics] if isinstance(topics, str) else topics)
        if self.columns is not None:
            self.require_columns(self.columns)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'.'.join(self.path)!r})"

    @property
    def tables(self) -> tuple[str, ...]:
        """The table it writes, as ``schema.table`` or ``table``."""
        return (".".join(self.path),)

    @property
    def guarded(self) -> bool | None:
        """Whether an older record never overwrites a newer one's row; None where each record adds rows."""
        return None

    @property
    def written(self) -> tuple[str, ...] | None:
        """Every column it writes, in the order of its rows; None where the first row says which."""
        return None if self.columns is None else (*self.columns, *self.provenance.values())

    def check(self, tx: Connection, codecs: Collection[Codec] = ()) -> str:
        """By which statement its rows go to the table: ``"copy"`` or ``"insert"``.

        Raises ConfigError where the table, a column or a right is missing, or a column cannot hold a field as it is.
        """
        from seekpoint.sinks.check import check_append  # noqa: PLC0415 -- a declaration needs no database driver

        columns = self.expected(codecs)
        require_whole_names(repr(self), columns or ())
        how, types = check_append(tx, repr(self), self.path, columns)
        self.check_fields(codecs, types)
        return how

    def check_fields(self, codecs: Collection[Codec], types: ColumnTypes) -> None:
        """Raise ConfigError for a field of the values that the table's column cannot hold as it is."""
        if self.row_of is None and self.rows_of is None:
            check_fields(repr(self), codecs, self.columns, types, self.conversions)

    def expected(self, codecs: Collection[Codec]) -> tuple[str, ...] | None:
        """The columns, as far as they are known before the first row: of values of one type, made by these codecs."""
        kinds = [getattr(codec, "type", None) for codec in codecs]
        kind = next(iter(kinds), None)
        if self.written is not None or self.row_of is not None or self.rows_of is not None:
            return self.written
        if not isinstance(kind, type) or any(other is not kind for other in kinds):
            return None
        return None if (fields := fields_of(kind)) is None else (*fields, *self.provenance.values())

    def takes(self, topic: str) -> bool:
        """Whether records of this topic go to the table."""
        return self._topics is None or topic in self._topics

    def require_columns(self, columns: tuple[str, ...]) -> None:
        """Raise ConfigError where these columns of the rows contradict the rest of the declaration."""
        if twice := sorted({*columns} & {*self.provenance.values()}):
            raise ConfigError(
                f"{self!r}: {', '.join(twice)} would be written twice, from the row and as provenance; name the row's "
                "own columns with columns=[...], or rename the other"
            )
        require_whole_names(repr(self), (*columns, *self.provenance.values()))


def fields_of(kind: type) -> tuple[str, ...] | None:
    """The names of a Struct's or a dataclass's fields; None for any other type."""
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    return tuple(f.name for f in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else None
