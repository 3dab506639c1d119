"""Accumulate: adds each record to its key's row, in the offset's transaction: sums, counters, extremes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import tzinfo
from decimal import Decimal
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

from seekpoint.codecs import Codec
from seekpoint.codecs.json import JsonFloat
from seekpoint.errors import ConfigError, Poison
from seekpoint.pipeline.sink import K_contra, Row, SinkWriter, V_contra, Writer
from seekpoint.pipeline.table_path import TableName, TableOfTopic, shown_table
from seekpoint.records import RawRecord, Record
from seekpoint.sinks.accumulate.aggregate import SumTarget
from seekpoint.sinks.base import TableSink
from seekpoint.sinks.table_writer import TableWriter
from seekpoint.sinks.upsert.strategy import WriteStrategies

if TYPE_CHECKING:
    from seekpoint.sinks.accumulate.accumulate_sql import AccumulateSql
    from seekpoint.sinks.upsert.open_merge import CachedStatements


class Accumulate(TableSink[V_contra, K_contra]):
    """Add each record to its key's row in ``table``, exactly once: sums, counters, lowest and highest values.

    ``key`` names the columns of a unique index. ``add`` names columns that are summed: integers, numeric or floats.
    ``least`` names columns that keep the lowest value, ``most`` those that keep the highest. A row has the columns of
    ``key``, ``add``, ``least`` and ``most``, a tuple in this order; further fields are ignored. ``table``, ``row``,
    ``rows``, ``topics``, ``round`` and ``timezone`` are as for :class:`Append`.

    None adds nothing; a key's first row begins at 0. A record whose sum its column cannot hold has a data error. The
    order of records does not matter, so a dead letter does not block later records of its key. Only the last digits of
    float sums depend on the order: use numeric or integers for amounts.

    A tombstone is refused unless ``subtract=`` turns its record into the amounts to subtract: a row with the columns of
    ``key`` and ``add``, or None for nothing. It does not change ``least`` and ``most``.

    Applying records again would count them twice: a backward reset is refused unless it rebuilds the table.
    """

    keeps_records = False

    def __init__(
        self,
        table: TableName | TableOfTopic,
        *,
        key: Sequence[str],
        add: Sequence[str] = (),
        least: Sequence[str] = (),
        most: Sequence[str] = (),
        row: Callable[[Record[V_contra, K_contra]], Any] | None = None,
        rows: Callable[[Record[V_contra, K_contra]], Iterable[Any]] | None = None,
        topics: Collection[str] | None = None,
        subtract: Callable[[Record[Any, K_contra]], Any] | None = None,
        round: bool = False,  # noqa: A002
        timezone: str | tzinfo | None = None,
    ) -> None:
        me = f"Accumulate({shown_table(table)})"
        for option, names in (("key", key), ("add", add), ("least", least), ("most", most)):
            if isinstance(names, str):
                raise ConfigError(f"{me}: {option}= takes the names of columns: {option}=[{names!r}]; got {names!r}")
        if not key or not (add or least or most):
            raise ConfigError(
                f"{me}: key= names the columns of a unique index, and add=, least= or most= at least one other column"
            )
        columns = (*key, *add, *least, *most)
        if twice := sorted({name for name in columns if columns.count(name) > 1}):
            raise ConfigError(
                f"{me}: {twice[0]} is named twice: a column is in only one of key=, add=, least= and most="
            )
        self.key, self.add, self.least, self.most = tuple(key), tuple(add), tuple(least), tuple(most)
        self.subtract = subtract
        super().__init__(table, columns=columns, row=row, rows=rows, topics=topics, round=round, timezone=timezone)

    @property
    def aggregates(self) -> bool:
        """True: each record is added to its key's row, so applying it again counts it twice."""
        return True

    @property
    def target(self) -> SumTarget:
        """The table, its columns, and how each is aggregated."""
        return SumTarget(
            repr(self),
            self.path,
            self.columns,
            self.key,
            conversions=self.conversions,
            add=self.add,
            least=self.least,
            most=self.most,
        )

    def writer(self) -> SinkWriter[V_contra | None, K_contra]:
        """A writer for one worker."""
        return AccumulateWriter(self)

    def check(self, tx: Connection, codecs: Collection[Codec] = (), key: Codec | None = None) -> Any:  # noqa: ARG002
        """The table's layout. Raises ConfigError if the table, a column, the key's index or a privilege is missing.

        Also raises it for a column that cannot hold a field unchanged, cannot be added to, or has no order.
        """
        from seekpoint.sinks.accumulate.check import check_accumulate  # noqa: PLC0415 -- a declaration needs no driver

        layout = check_accumulate(tx, self.target)
        self.check_fields(codecs, layout.types.columns)
        return layout


class AccumulateWriter(TableWriter[Accumulate[Any, Any]]):
    """Adds the rows of each transaction to the table; ``strategies`` chooses and remembers how."""

    def __init__(self, sink: Accumulate[Any, Any]) -> None:
        super().__init__(sink)
        self.strategies = WriteStrategies()
        self._known: CachedStatements[AccumulateSql] | None = None
        self._subtracted: AccumulateWriter | None = None
        if sink.subtract is not None:
            subtracting = copy.copy(sink)
            subtracting.columns, subtracting.row_of, subtracting.rows_of = (*sink.key, *sink.add), sink.subtract, None
            subtracting.subtract = None
            self._subtracted = AccumulateWriter(subtracting)

    def rows(self, record: Record[Any, Any]) -> Iterable[Row]:
        """Rows of one record, negated for a tombstone. Raises Poison if a key is null."""
        rows = self._subtractions(record) if record.value is None else self.declared_rows(record)
        for row in rows:
            self._require_key(row)
        return rows

    def declared_rows(self, record: Record[Any, Any]) -> list[Row]:
        """A record's rows, from ``row=``, ``rows=`` or the value itself."""
        return list(super().rows(record))

    def chunk_rows(
        self, values: Sequence[Any], keys: Sequence[Any] | None, raw: Sequence[RawRecord]
    ) -> list[Row] | None:
        """The rows of many values in one call; None if a key is null, so that the error names its record."""
        rows = super().chunk_rows(values, keys, raw)
        if rows is None or any(None in map(itemgetter(place), rows) for place in range(len(self._sink.key))):
            return None
        return rows

    def _require_key(self, row: Row) -> None:
        for name, value in zip(self._sink.key, row, strict=False):
            if value is None:
                raise Poison(f"{self!r}: column {name!r} is null: the columns of key= need a value")

    def _subtractions(self, record: Record[Any, Any]) -> list[Row]:
        """The rows that a tombstone subtracts from the sums. Raises Poison without ``subtract=``."""
        if self._subtracted is None:
            raise Poison(
                f"{self!r}: the record is a tombstone, and the sink has no subtract=: give a function from the record "
                "to a row of the key and the amounts to subtract, or to None for nothing"
            )
        width, others = len(self._sink.key), len(self._sink.least) + len(self._sink.most)
        return [
            (*row[:width], *map(self._negative, row[width:]), *[None] * others)
            for row in self._subtracted.declared_rows(record)
        ]

    def _negative(self, value: Any) -> Any:
        if isinstance(value, JsonFloat):  # keeps the record's digits, which a float may lose
            return JsonFloat(value.text[1:] if value.text.startswith("-") else f"-{value.text}")
        if isinstance(value, Decimal):
            return value.copy_negate()  # unary minus would round to the context's precision
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            return None if value is None else -value
        raise Poison(f"{self!r}: subtract= must return numbers for the sums, but returned {value!r}")

    @contextmanager
    def open(self, tx: Connection) -> Iterator[Writer]:
        """Gather rows; they are added to the table when the block ends."""
        from seekpoint.sinks.accumulate.open_accumulate import OpenAccumulate  # noqa: PLC0415 -- as for check()
        from seekpoint.sinks.altered_table import rerun_if_changed  # noqa: PLC0415
        from seekpoint.sinks.upsert.open_merge import CachedStatements  # noqa: PLC0415

        self._known = self._known or CachedStatements()
        with (
            rerun_if_changed(tx, self._sink.path),
            OpenAccumulate(tx, lambda: self._sink.target, self._known, self.strategies) as writer,
        ):
            yield writer
