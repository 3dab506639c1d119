"""How records become tuples in the order of a table's columns; columns and shapes are learned from the first rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any, Generic, TypeVar

import msgspec

from seekpoint.errors import ConfigError, Poison
from seekpoint.pipeline.sink import Row, SinkWriter
from seekpoint.records import AnyRecord, Record
from seekpoint.sinks.base import TableSink, fields_of

S = TypeVar("S", bound=TableSink)


class TableWriter(SinkWriter[Any, Any], Generic[S]):
    """One worker's writer of a sink's table. ``columns`` are the rows' own, None before the first row of Structs."""

    def __init__(self, sink: S) -> None:
        self._sink = sink
        self.columns = sink.columns
        self._named_by: type | None = None  # whose fields the columns are, where columns= does not name them
        self._shapes: dict[type, Callable[[Any], Row]] = {}
        self._origin = attrgetter(*sink.provenance) if len(sink.provenance) > 1 else None

    def __repr__(self) -> str:
        return repr(self._sink)

    @property
    def written(self) -> tuple[str, ...] | None:
        """Every column it writes, in the order of its rows; None while the first row of Structs is to come."""
        return None if self.columns is None else (*self.columns, *self._sink.provenance.values())

    def rows(self, record: Record[Any, Any]) -> Iterable[Row]:
        """Rows of one record as tuples in the order of the columns; raises whatever ``row=`` raises."""
        if self._sink.rows_of is not None:
            made = [self._shape(one) for one in self._several(self._sink.rows_of(record))]
        else:
            one = record.value if self._sink.row_of is None else self._sink.row_of(record)
            made = [] if one is None and self._sink.row_of is not None else [self._shape(one)]
        if self._sink.provenance:
            origin = self._where(record)
            made = [(*row, *origin) for row in made]
        return made

    def value_rows(self, values: Sequence[Any]) -> list[Row] | None:
        """The rows of many records at once, where the value is the row; None where the whole record is needed."""
        if self._sink.row_of is not None or self._sink.rows_of is not None or self._sink.provenance:
            return None
        return self._shaped(values)

    def _shaped(self, values: Sequence[Any]) -> list[Row]:
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
        return tuple(getattr(record, name) for name in self._sink.provenance)

    def know(self, columns: tuple[str, ...]) -> None:
        """The rows' own columns are known now. Raises ConfigError where they contradict the declaration."""
        self._sink.require_columns(columns)
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
        if (fields := fields_of(kind)) is not None:
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
            self.know(fields)
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
