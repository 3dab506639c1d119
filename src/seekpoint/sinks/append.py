"""Append: every record becomes new rows, in the transaction that advances the position: by COPY."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection

from seekpoint.pipeline.sink import K_contra, V_contra, Writer
from seekpoint.sinks.base import TableSink


class Append(TableSink[V_contra, K_contra]):
    """Write each record's row to ``table``.

    ``table`` is ``"table"``, ``"schema.table"`` or a tuple of the parts. By default the row is the record's
    value: its fields are the columns. ``row=`` makes it from the record instead, one row or None for none;
    ``rows=`` makes any number. A row is a Struct, a dataclass, a mapping, or a tuple in the order of
    ``columns``; ``columns`` is required for all but Structs and dataclasses. ``topics`` narrows the sink to
    some of the pipeline's topics. ``provenance`` names the columns that take the record's topic, partition and
    offset: three names, or a mapping of those that are wanted.

    A column's type says how a value is written; a value that it would change silently is refused. ``round=True`` allows
    fraction digits to be rounded, ``timezone`` is the zone to which times with a zone are converted for columns that
    have none. A value for a json or jsonb column becomes JSON: a str is a string, a list an array; what is JSON
    already is given as ``msgspec.Raw``. For any other column a list is a Postgres array.

    A mapping that lacks a column makes its record a poison record; keys beyond ``columns`` are ignored. The
    database's own defaults fill the columns that are not named.
    """

    @contextmanager
    def open(self, tx: Connection) -> Iterator[Writer]:
        """Open the COPY when the first row comes: only then are the columns of Structs known."""
        from seekpoint.sinks.copy import open_copy  # noqa: PLC0415 -- a declaration needs no database driver
        from seekpoint.sinks.target_table import recalled, rerun_if_changed  # noqa: PLC0415

        with rerun_if_changed(tx, self.path):
            secured = recalled(tx, self.path).is_secured
            with open_copy(tx, self.path, lambda: self.written, allowed=self.conversions, by_insert=secured) as writer:
                yield writer
