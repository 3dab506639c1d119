"""Append: every record becomes new rows, by COPY in the offset's transaction."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter, itemgetter
from typing import Any

import msgspec
from sqlalchemy import Connection

from seekpoint.errors import ConfigError, Poison
from seekpoint.pipeline import Row, Writer
from seekpoint.records import AnyRecord


class Append:
    """Write each record's row to ``table``.

    ``table`` is ``"table"``, ``"schema.table"`` or a tuple of the parts. By default the row is the record's
    value: its fields are the columns. ``row=`` makes it from the record instead, one row or None for none;
    ``rows=`` makes any number. A row is a Struct, a dataclass, a mapping, or a tuple in the order of
    ``columns``; ``columns`` is required for all but Structs and dataclasses. ``topics`` narrows the sink to
    some of the pipeline's topics.

    A dict goes to a json or jsonb column, a list to a Postgres array; for a jsonb column wrap the list in
    ``psycopg.types.json.Jsonb``.

    A mapping that lacks a column makes its record a poison record; keys beyond ``columns`` are ignored. The
    database's own defaults fill the columns that are not named.
    """

    def __init__(
        self,
        table: str | tuple[str, ...],
        *,
        columns: Sequence[str] | None = None,
        row: Callable[[Any], Any] | None = None,
        rows: Callable[[Any], Iterable[Any]] | None = None,
        topics: Collection[str] | None = None,
    ) -> None:
        self.path = tuple(table.split(".")) if isinstance(table, str) else tuple(table)
        if not 1 <= len(self.path) <= 2 or not all(self.path):
            raise ConfigError(f"Append({table!r}): name it 'table' or 'schema.table', or give a tuple of the parts")
        if row is not None and rows is not None:
            raise ConfigError(f"Append({table!r}): give row= or rows=, not both")
        if isinstance(columns, str) or (columns is not None and not columns):
            raise ConfigError(f"Append({table!r}): columns must be a sequence of names, got {columns!r}")
        if columns is not None and len({*columns}) < len(columns):
            raise ConfigError(f"Append({table!r}): columns= names one twice: {', '.join(columns)}")
        self.columns = None if columns is None else tuple(columns)
        self._named_by: type | None = None  # whose fields the columns are, where columns= does not name them
        self._row, self._rows = row, rows
        self._topics = None if topics is None else frozenset([topics] if isinstance(topics, str) else topics)
        self._shapes: dict[type, Callable[[Any], Row]] = {}

    def __repr__(self) -> str:
        return f"Append({'.'.join(self.path)!r})"

    @property
    def tables(self) -> tuple[str, ...]:
        """The table it writes, as ``schema.table`` or ``table``."""
        return (".".join(self.path),)

    def takes(self, topic: str) -> bool:
        """Whether records of this topic go to the table."""
        return self._topics is None or topic in self._topics

    def rows(self, record: AnyRecord) -> Iterable[Row]:
        """The record's rows as tuples in the order of the columns; raises whatever ``row=`` raises."""
        if self._rows is not None:
            return [self._shape(made) for made in self._rows(record)]
        made = record.value if self._row is None else self._row(record)
        return () if made is None and self._row is not None else (self._shape(made),)

    def value_rows(self, values: Sequence[Any]) -> list[Row] | None:
        """The rows of many records at once, where the value is the row; None where ``row=`` or ``rows=`` make it."""
        if self._row is not None or self._rows is not None:
            return None
        shapes, shape = self._shapes, self._shape
        return [shapes[kind](value) if (kind := type(value)) in shapes else shape(value) for value in values]

    @contextmanager
    def open(self, tx: Connection) -> Iterator[Writer]:
        """Open the COPY when the first row comes: only then are the columns of Structs known."""
        from seekpoint.sinks.copy import open_copy  # noqa: PLC0415 -- a declaration needs no database driver

        with open_copy(tx, self.path, lambda: self.columns) as writer:
            yield writer

    def _shape(self, made: Any) -> Row:
        kind = type(made)
        shape = self._shapes.get(kind)
        if shape is None:
            shape = self._shapes[kind] = self._shape_of(kind, made)
        return shape(made)

    def _shape_of(self, kind: type, made: Any) -> Callable[[Any], Row]:
        """How a value of this kind becomes a tuple; worked out once per type."""
        if issubclass(kind, msgspec.Struct):
            return self._by_attribute(kind, kind.__struct_fields__)
        if dataclasses.is_dataclass(kind):
            return self._by_attribute(kind, tuple(f.name for f in dataclasses.fields(kind)))
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
            self.columns, self._named_by = fields, kind
        elif self._named_by is not None and set(fields) != set(self.columns):
            raise ConfigError(
                f"{self!r}: {kind.__name__} has other fields than {self._named_by.__name__}: name those that go into "
                "the table with columns=[...], or give each topic a sink of its own (topics=)"
            )
        elif missing := set(self.columns) - set(fields):
            raise ConfigError(f"{self!r}: {kind.__name__} has no field {', '.join(sorted(missing))}")
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
