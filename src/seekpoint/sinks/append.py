"""Append: every record becomes new rows, by COPY, in the transaction that advances the position."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection

from seekpoint.pipeline.sink import K_contra, Row, SinkWriter, V_contra, Writer
from seekpoint.sinks.base import TableSink
from seekpoint.sinks.table_writer import TableWriter


class Append(TableSink[V_contra, K_contra]):
    """Write each record's row to ``table``.

    ``table`` is ``"table"``, ``"schema.table"`` or a tuple of the parts. By default the row is the record's
    value: its fields are the columns. ``row=`` is a function from the record to its row, or to None for no row;
    ``rows=`` returns any number of rows. A row is a Struct, a dataclass, a mapping, or a tuple in the order of
    ``columns``; ``columns`` is required for all but Structs and dataclasses. ``topics`` narrows the sink to some of the
    pipeline's topics. ``provenance`` names the columns that take the record's topic, partition and offset: three names,
    or a mapping for some of them.

    A column's type decides how a value is written; a value that the column would change silently is refused.
    ``round=True`` allows fraction digits to be lost; ``timezone`` is the zone to which aware times are converted for
    columns without a zone. A value for a json or jsonb column becomes JSON: a str is a string, a list an array; pass
    text that is JSON already as ``msgspec.Raw``. For any other column a list is a Postgres array.

    A mapping that lacks a column makes its record a poison record; keys beyond ``columns`` are ignored. Columns that
    are not named get the database's defaults.
    """

    keeps_records = True

    def writer(self) -> SinkWriter[V_contra, K_contra]:
        """A writer for one worker."""
        return AppendWriter(self)


class AppendWriter(TableWriter[Append[Any, Any]]):
    """One worker's writer of ``Append``. Its own statements release no locks; those of a subclass may."""

    def __init__(self, sink: Append[Any, Any]) -> None:
        super().__init__(sink)
        self.keeps_locks = type(sink) is Append

    @contextmanager
    def open(self, tx: Connection) -> Iterator[Writer]:
        """Open the COPY when the first row comes: only then are the columns of Structs known."""
        from seekpoint.sinks.altered_table import rerun_if_changed  # noqa: PLC0415 -- rows are made without a driver
        from seekpoint.sinks.copy import driver_of, open_copy  # noqa: PLC0415
        from seekpoint.sinks.session_tables import looked_up  # noqa: PLC0415

        path, allowed = self._sink.path, self._sink.conversions
        with rerun_if_changed(tx, path):
            secured = looked_up(driver_of(tx), path).is_secured
            with open_copy(tx, path, lambda: self.written, allowed=allowed, by_insert=secured) as writer:
                yield writer

    def statements(self, tx: Connection) -> Callable[[Sequence[Row]], Sequence[Any] | None] | None:
        """A function that makes one INSERT of few rows; None unless the session knows that COPY has the same effect."""
        from seekpoint.sinks.small_append import insert_of_all, knows_plain_table  # noqa: PLC0415 -- as above

        if not knows_plain_table(tx, self._sink.path):
            return None
        return lambda rows: insert_of_all(tx, self._sink.path, self.written, rows, self._sink.conversions)
