"""What the sinks have in common: a table, and how a record becomes tuples in the order of its columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import tzinfo
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Generic

import msgspec
from sqlalchemy import Connection

from seekpoint.codecs import Codec
from seekpoint.errors import ConfigError, Poison
from seekpoint.pipeline.provenance import provenance_columns
from seekpoint.pipeline.sink import K_contra, Row, V_contra
from seekpoint.pipeline.table_path import TableName, shown_table, table_path
from seekpoint.records import AnyRecord, Record
from seekpoint.sinks.conversions import conversions
from seekpoint.sinks.declared_types import check_fields
from seekpoint.sinks.names import require_whole_names

if TYPE_CHECKING:
    from seekpoint.sinks.column_type import ColumnTypes

ORIGINS = ("topic", "partition", "offset")  # of a record, as ``provenance=`` names them


class TableSink(Generic[V_contra, K_contra]):
    """A table that rows are written to; :class:`Append` and :class:`Upsert` say how."""

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
        self._named_by: type | None = None  # whose fields the columns are, where columns= does not name them
        self._row, self._rows = row, rows
        self._topics = None if topics is None else frozenset([topics] if isinstance(topics, str) else topics)
        self._shapes: dict[type, Callable[[Any], Row]] = {}
        self._origin = attrgetter(*self.provenance) if len(self.provenance) > 1 else None
        if self.columns is not None:
            self._know(self.columns)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'.'.join(self.path)!r})"

    @property
    def tables(self) -> tuple[str, ...]:
        """The table it writes, as ``schema.table`` or ``table``."""
        return (".".join(self.path),)

    @property
    def written(self) -> tuple[str, ...] | None:
        """Every column it writes, in the order of its rows; None while the first row of Structs is to come."""
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
        if self._row is None and self._rows is None:
            check_fields(repr(self), codecs, self.columns, types, self.conversions)

    def expected(self, codecs: Collection[Codec]) -> tuple[str, ...] | None:
        """The columns, as far as they are known before the first row: of values of one type, made by these codecs."""
        kinds = [getattr(codec, "type", None) for codec in codecs]
        kind = next(iter(kinds), None)
        if self.written is not None or self._row is not None or self._rows is not None:
            return self.written
        if not isinstance(kind, type) or any(other is not kind for other in kinds):
            return None
        return None if (fields := _fields(kind)) is None else (*fields, *self.provenance.values())

    def takes(self, topic: str) -> bool:
        """Whether records of this topic go to the table."""
        return self._topics is None or topic in self._topics

    def rows(self, record: Record[V_contra, K_contra]) -> Iterable[Row]:
        """Rows of one record as tuples in the order of the columns; raises whatever ``row=`` raises."""
        if self._rows is not None:
            made = [self._shape(one) for one in self._several(self._rows(record))]
        else:
            one = record.value if self._row is None else self._row(record)
            made = [] if one is None and self._row is not None else [self._shape(one)]
        if self.provenance:
            origin = self._where(record)
            made = [(*row, *origin) for row in made]
        return made

    def value_rows(self, values: Sequence[V_contra]) -> list[Row] | None:
        """The rows of many records at once, where the value is the row; None where the whole record is needed."""
        if self._row is not None or self._rows is not None or self.provenance:
            return None
        return self._shaped(values)

    def _shaped(self, values: Sequence[V_contra]) -> list[Row]:
        """A row for each value, without provenance."""
        kinds = set(map(type, values))
        if len(kinds) != 1:
            return list(map(self._shape, values))
        kind = kinds.pop()
        if kind not in self._shapes:
            self._shape(values[0])
        return list(map(self._shapes[kind], values))

    def _where(self, record: AnyRecord) -> tuple[Any, ...]:
        if self._origin is not None:
            found: tuple[Any, ...] = self._origin(record)
            return found
        return tuple(getattr(record, name) for name in self.provenance)

    def _know(self, columns: tuple[str, ...]) -> None:
        """The columns are known now. Raises ConfigError where they contradict the rest of the declaration."""
        if twice := sorted({*columns} & {*self.provenance.values()}):
            raise ConfigError(
                f"{self!r}: {', '.join(twice)} would be written twice, from the row and as provenance; name the row's "
                "own columns with columns=[...], or rename the other"
            )
        require_whole_names(repr(self), (*columns, *self.provenance.values()))
        self.columns = columns

    def _several(self, made: Any) -> Iterable[Any]:
        if isinstance(made, msgspec.Struct | Mapping) or dataclasses.is_dataclass(made):
            raise ConfigError(
                f"{self!r}: rows= makes a list of rows, and has returned one {type(made).__name__}: return a list, "
                "or give the function as row="
            )
        several: Iterable[Any] = made
        return several

    # -- shapes of rows -----------------------------------------------------------------------------------

    def _shape(self, made: Any) -> Row:
        kind = type(made)
        shape = self._shapes.get(kind)
        if shape is None:
            shape = self._shapes[kind] = self._shape_of(kind, made)
        return shape(made)

    def _shape_of(self, kind: type, made: Any) -> Callable[[Any], Row]:
        """How a value of this kind becomes a tuple; worked out once per type."""
        if (fields := _fields(kind)) is not None:
            return self._by_attribute(kind, fields)
        if made is None:
            raise Poison(f"{self!r}: a null value has no row; say with row= what it becomes")
        if self.columns is None:
            raise ConfigError(
                f"{self!r}: rows of type {kind.__name__} do not name their columns; give columns=[...], or decode "
                "into a msgspec.Struct or dataclass, e.g. value=Json(Order)"
            )
        if isinstance(made, Mapping):
            return self._by_key(self.columns)
        if isinstance(made, tuple | list):
            return self._by_place(len(self.columns))
        raise Poison(f"{self!r}: a row must be a Struct, dataclass, mapping or tuple, got {kind.__name__}")

    def _by_attribute(self, kind: type, fields: tuple[str, ...]) -> Callable[[Any], Row]:
        if not fields:
            raise ConfigError(f"{self!r}: {kind.__name__} has no fields, so its rows have no columns")
        if self.columns is None:
            self._know(fields)
            self._named_by = kind
        elif self._named_by is not None and set(fields) != set(self.columns):
            raise ConfigError(
                f"{self!r}: {kind.__name__} has other fields than {self._named_by.__name__}: name those that go into "
                "the table with columns=[...], or give each topic a sink of its own (topics=)"
            )
        elif missing := set(self.columns) - set(fields):
            raise ConfigError(f"{self!r}: {kind.__name__} has no field {', '.join(sorted(missing))}")
        assert self.columns is not None
        if issubclass(kind, msgspec.Struct) and self.columns == fields:
            return msgspec.structs.astuple  # three times as fast
        get = attrgetter(*self.columns)
        return get if len(self.columns) > 1 else lambda made: (get(made),)

    def _by_key(self, columns: tuple[str, ...]) -> Callable[[Any], Row]:
        get = itemgetter(*columns)

        def shape(made: Any) -> Row:
            try:
                return get(made) if len(columns) > 1 else (get(made),)
            except KeyError as error:
                raise Poison(f"{self!r}: the row has no {error.args[0]!r}") from None

        return shape

    def _by_place(self, width: int) -> Callable[[Any], Row]:
        def shape(made: Any) -> Row:
            if len(made) != width:
                raise Poison(f"{self!r}: a row has {len(made)} values for {width} columns")
            return tuple(made)

        return shape


def _fields(kind: type) -> tuple[str, ...] | None:
    """The names of a Struct's or a dataclass's fields; None for any other type."""
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    return tuple(f.name for f in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else None
