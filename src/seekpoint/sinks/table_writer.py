"""Turns records into tuples in the order of a table's columns; learns columns and shapes from the first rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any, Generic, TypeVar

import msgspec

from seekpoint.codecs.value_types import field_names
from seekpoint.errors import ConfigError, Poison
from seekpoint.pipeline.sink import Row, SinkWriter
from seekpoint.records import AnyRecord, RawRecord, Record
from seekpoint.sinks.base import TableSink

S = TypeVar("S", bound=TableSink)
NAMED = 20  # fields that a message names


class TableWriter(SinkWriter[Any, Any], Generic[S]):
    """One worker's writer of a sink's table. ``columns`` excludes provenance; None until the first row names them."""

    def __init__(self, sink: S) -> None:
        self._sink = sink
        self.columns = sink.columns
        self._named_by: type | None = None  # the type whose fields are the columns, if columns= was left out
        self._shapes: dict[type, Callable[[Any], Row]] = {}
        self._origin = attrgetter(*sink.provenance) if len(sink.provenance) > 1 else None

    def __repr__(self) -> str:
        return repr(self._sink)

    @property
    def written(self) -> tuple[str, ...] | None:
        """Every written column, in the order of the rows; None before the first row if that row decides."""
        return None if self.columns is None else (*self.columns, *self._sink.provenance.values())

    def rows(self, record: Record[Any, Any]) -> Iterable[Row]:
        """Rows of one record as tuples in the order of the columns. Raises the errors of ``row=``."""
        if self._sink.rows_of is not None:
            rows = [self._shape(entry) for entry in self._several(self._sink.rows_of(record))]
        else:
            value = record.value if self._sink.row_of is None else self._sink.row_of(record)
            rows = [] if value is None and self._sink.row_of is not None else [self._shape(value)]
        if self._sink.provenance:
            origin = self._where(record)
            rows = [(*row, *origin) for row in rows]
        return rows

    def chunk_rows(
        self,
        values: Sequence[Any],
        keys: Sequence[Any] | None,  # noqa: ARG002 -- the values are the rows
        raw: Sequence[RawRecord],
    ) -> list[Row] | None:
        """The rows of many records in one call, if the value is the row; None if the whole record is needed."""
        if self._sink.row_of is not None or self._sink.rows_of is not None:
            return None
        return self._with_origins(self._shaped(values), raw)

    def _with_origins(self, rows: list[Row], records: Sequence[AnyRecord]) -> list[Row]:
        """The rows with the provenance of their records, if the sink stores it."""
        if not self._sink.provenance:
            return rows
        return [(*row, *origin) for row, origin in zip(rows, map(self._where, records), strict=True)]

    def _shaped(self, values: Sequence[Any]) -> list[Row]:
        """One row for each value, without provenance."""
        kinds = set(map(type, values))
        if len(kinds) != 1:
            return list(map(self._shape, values))
        kind = kinds.pop()
        if kind not in self._shapes:
            self._shape(values[0])
        return list(map(self._shapes[kind], values))

    def _where(self, record: AnyRecord) -> tuple[Any, ...]:
        if self._origin is not None:
            origin: tuple[Any, ...] = self._origin(record)
            return origin
        return tuple(getattr(record, name) for name in self._sink.provenance)

    def know(self, columns: tuple[str, ...]) -> None:
        """Set the rows' columns. Raises ConfigError if they contradict the declaration."""
        self._sink.require_columns(columns)
        self.columns = columns

    def _several(self, values: Any) -> Iterable[Any]:
        if isinstance(values, Mapping) or field_names(type(values)) is not None:
            raise ConfigError(
                f"{self!r}: rows= must return a list of rows, and returned one {type(values).__name__}: return a list, "
                "or give the function as row="
            )
        several: Iterable[Any] = values
        return several

    # -- shapes of rows -----------------------------------------------------------------------------------

    def _shape(self, value: Any) -> Row:
        kind = type(value)
        shape = self._shapes.get(kind)
        if shape is None:
            shape = self._shapes[kind] = self._shape_of(kind, value)
        return shape(value)

    def _shape_of(self, kind: type, value: Any) -> Callable[[Any], Row]:
        """How a value of this type becomes a tuple; determined once per type."""
        if (fields := field_names(kind)) is not None:
            return self._by_attribute(kind, fields)
        if value is None:
            raise Poison(f"{self!r}: a null value has no fields to write: give row=, which returns its row or None")
        if self.columns is None:
            raise self._sink.unnamed(kind)
        if isinstance(value, Mapping):
            return self._by_key(self.columns)
        if isinstance(value, tuple | list):
            return self._by_position(len(self.columns))
        raise Poison(f"{self!r}: a row must be a Struct, dataclass, model, mapping or tuple, got {kind.__name__}")

    def _by_attribute(self, kind: type, fields: tuple[str, ...]) -> Callable[[Any], Row]:
        if not fields:
            raise ConfigError(f"{self!r}: {kind.__name__} has no fields, so its rows have no columns")
        if self.columns is None:
            self.know(fields)
            self._named_by = kind
        elif self._named_by is not None and set(fields) != set(self.columns):
            raise ConfigError(
                f"{self!r}: {kind.__name__} has other fields than {self._named_by.__name__}: name those that go into "
                "the table with columns=[...], or give each topic its own sink (topics=)"
            )
        elif missing := set(self.columns) - set(fields):
            raise ConfigError(f"{self!r}: {kind.__name__} has no field {', '.join(sorted(missing))}")
        assert self.columns is not None
        if issubclass(kind, msgspec.Struct) and self.columns == fields:
            return msgspec.structs.astuple  # three times as fast as attrgetter
        get = attrgetter(*self.columns)
        return get if len(self.columns) > 1 else lambda value: (get(value),)

    def _by_key(self, columns: tuple[str, ...]) -> Callable[[Any], Row]:
        get = itemgetter(*columns)

        def shape(value: Any) -> Row:
            try:
                return get(value) if len(columns) > 1 else (get(value),)
            except KeyError as error:
                others = ", ".join(map(str, [*value][:NAMED])) or "nothing"
                raise Poison(f"{self!r}: the row has no {error.args[0]!r}; it has {others}") from None

        return shape

    def _by_position(self, width: int) -> Callable[[Any], Row]:
        def shape(value: Any) -> Row:
            if len(value) != width:
                raise Poison(f"{self!r}: a row has {len(value)} values for {width} columns")
            return tuple(value)

        return shape
