"""A schema with the ledger and a test's tables, and functions that apply records to them.

Give it to a test by a fixture::

    @pytest.fixture
    def sink_tables(seekpoint_engine: Engine, seekpoint_schema: str) -> SinkTables:
        return SinkTables(seekpoint_engine, seekpoint_schema)
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary

import msgspec
from psycopg.types.json import Jsonb
from sqlalchemy import ColumnElement, Engine, column, select, table, text

from seekpoint import Append, Pipeline
from seekpoint.errors import PartitionStopped
from seekpoint.events import Observer
from seekpoint.ledger import GroupLedger
from seekpoint.postgres.round_trip import StatementFailed, round_trip
from seekpoint.postgres.session import Session, TransactionFailed
from seekpoint.records import Partition, RawRecord
from seekpoint.sinks.arrow import AppendArrow
from seekpoint.sinks.session_tables import looked_up, types_now
from seekpoint.sinks.small_append import insert_of_all, knows_plain_table
from seekpoint.sinks.upsert.strategy import WriteStrategies, WriteStrategy
from seekpoint.testing import Processed, process, raw

TOPIC = "orders"
# A column's type, a value for it, and what is stored where that is another one.
VALUES: list[tuple[str, Any, Any]] = [
    ("jsonb", {"a": [1, {"b": None}], "ä": "\U0001f600"}, None),
    ("json", {"z": 1, "a": "tab\tquote\"back\\slash\nline"}, None),
    ("jsonb", Jsonb([1, "two", {"three": 3}]), [1, "two", {"three": 3}]),
    ("int[]", [1, None, 3], None),
    ("text[]", ["a,b", 'quo"te', "back\\slash", "{}", "NULL", "", None, "tab\t\n"], None),
    ("int[]", [], None),
    ("int[][]", [[1, 2], [3, 4]], None),
    ("jsonb[]", [{"a": 1}, {"b": "\\N"}], None),
    ("numeric", Decimal("12345678901234567890.123456789012345678901234567890"), None),
    ("numeric", Decimal("NaN"), None),
    ("numeric", Decimal("-0.000"), Decimal("0.000")),
    ("numeric", 2**200, Decimal(2**200)),
    ("float8", 1e308, None),
    ("float8", float("inf"), None),
    ("bigint", -(2**63), None),
    ("bigint", 2**63 - 1, None),
    ("boolean", True, None),
    ("timestamptz", datetime(2026, 3, 29, 1, 59, 59, 999999, UTC), None),
    ("timestamptz", "2026-03-29T03:00:00+02:00", datetime(2026, 3, 29, 1, tzinfo=UTC)),
    ("date", date(1, 1, 1), None),
    ("date", date(9999, 12, 31), None),
    ("bytea", bytes(range(256)), None),
    ("uuid", UUID("0190d5b0-0000-7000-8000-000000000001"), None),
    ("uuid", "0190d5b0-0000-7000-8000-000000000001", UUID("0190d5b0-0000-7000-8000-000000000001")),
    ("mood", "so-so", None),
    ("inet", "192.168.0.1", None),
    ("interval", "1 day 02:00", None),
    ("text", "", None),
    ("text", "\\N", None),
    ("text", "\\.", None),
    ("text", "NULL", None),
    ("text", "a\tb\nc\rd\\e\be\ff\vg\\tnot a tab", None),
    ("text", "\\", None),
    ("text", "\U0001f600 ä ß \x01 \x7f \u2028 \ufffe", None),
    ("char(5)", "ab", "ab   "),
    ("text", None, None),
    ("numeric(6,2)", Decimal("1.00500e1"), Decimal("10.05")),
    ("text", 5, "5"),
    ("int", "0007", 7),
    ("timestamptz(0)", "2026-03-29T03:00:00.7+02:00", datetime(2026, 3, 29, 1, 0, 1, tzinfo=UTC)),
    ("timestamp", datetime(2026, 3, 29, 1, 59, 59), None),
    ("short", "abc", None),
    ("bit(3)", "101", None),
    ("varchar(3)", "ab   ", "ab "),
    ('"char"', "x", None),
]  # fmt: skip
_TYPES = "CREATE TYPE mood AS ENUM ('good', 'so-so'); CREATE DOMAIN short AS varchar(3) CHECK (VALUE <> 'no')"


class Order(msgspec.Struct):
    """A record's value, and a row."""

    id: int
    note: str | None = None


class SinkTables:
    """Tables, functions that fill and read them, and the ledger's positions."""

    def __init__(self, engine: Engine, schema: str) -> None:
        self.engine, self.schema = engine, schema

    def sql(self, statement: str) -> None:
        """Run statements in this schema."""
        with self.engine.begin() as tx:
            for command in (f'SET LOCAL search_path = "{self.schema}"', statement):
                tx.exec_driver_sql(command.replace("%", "%%"))

    def create(self, body: str, name: str = "t") -> tuple[str, str]:
        """Create a table; returns its path, as ``Append`` takes it."""
        quoted = name.replace('"', '""')
        self.sql(f'CREATE TABLE "{quoted}" ({body})')
        return self.schema, name

    def append(self, body: str, /, *, name: str = "t", **options: Any) -> Append:
        """Create a table, and return a sink that writes it."""
        return Append(self.create(body, name), **options)

    def rows(self, *columns: str, name: str = "t") -> list[tuple[Any, ...]]:
        """These columns of the table's rows, sorted by them."""
        with self.engine.connect() as tx:
            chosen: list[ColumnElement[Any]] = [column(c) for c in columns]
            rows = tx.execute(select(*chosen).select_from(table(name, schema=self.schema)).order_by(*chosen))
            return [tuple(row) for row in rows]

    def value(self, expression: str, name: str = "t") -> Any:
        """An expression's value over the table's only row."""
        with self.engine.connect() as tx:
            quoted = tx.dialect.identifier_preparer
            return tx.execute(
                text(f"SELECT {expression} FROM {quoted.quote(self.schema)}.{quoted.quote(name)}")
            ).scalar_one()

    def process(self, pipeline: Pipeline, *records: RawRecord, observe: tuple[Observer, ...] = ()) -> Processed:
        """Apply the records through the real unit of work."""
        return process(pipeline, self.engine, records, schema=self.schema, observe=observe, collect=True)

    def positions(self, pipeline: Pipeline) -> dict[Partition, int]:
        """The group's positions."""
        positions = GroupLedger(self.engine, pipeline.group, schema=self.schema).read()
        return {position.partition: position.next_offset for position in positions}


def of_test(sink_tables: SinkTables, kind: str) -> str:
    """Create the test's types; returns the name of the type ``kind``, with the schema if it is one of them."""
    sink_tables.sql(_TYPES)
    return f'"{sink_tables.schema}".{kind}' if kind in {"mood", "short"} else kind


OWN_TYPES = frozenset({"mood", "named", "either", "pair", "cents", "fee", "wall_time", "opening", "label"})


def with_own_types(sink_tables: SinkTables) -> SinkTables:
    """Create enums whose labels are a Python enum's values (``mood``), its names (``named``), or both (``either``).

    Also a composite type, ``pair``, and domains: of ``numeric(6,2)`` (``cents``), of ``timestamp`` (``wall_time``), of
    ``named`` (``label``), and of the first two (``fee``, ``opening``).
    """
    sink_tables.sql(
        "CREATE TYPE mood AS ENUM ('in-transit', 'done'); CREATE TYPE named AS ENUM ('IN_TRANSIT', 'DONE');"
        "CREATE TYPE either AS ENUM ('IN_TRANSIT', 'DONE', 'in-transit', 'done'); CREATE TYPE pair AS (a int, b text);"
        "CREATE DOMAIN cents AS numeric(6,2); CREATE DOMAIN fee AS cents; CREATE DOMAIN wall_time AS timestamp;"
        "CREATE DOMAIN opening AS wall_time; CREATE DOMAIN label AS named"
    )
    return sink_tables


def own_type(sink_tables: SinkTables, kind: str) -> str:
    """The type's name, with the schema if it is one of ``with_own_types`` or an array of one."""
    return f'"{sink_tables.schema}".{kind}' if kind.removesuffix("[]") in OWN_TYPES else kind


def orders(*values: bytes | None, start: int = 0, key: bytes | None = None, partition: int = 0) -> list[RawRecord]:
    """Records with these values, at offsets from ``start``."""
    return [raw(v, topic=TOPIC, partition=partition, offset=n, key=key) for n, v in enumerate(values, start)]


def stopped_at(done: Processed, partition: int, offset: int) -> PartitionStopped:
    """The stop of this partition; fails unless it is at this offset, and its message has the offset and the choices."""
    stop = done.stopped[Partition(TOPIC, partition)]
    assert stop.offset == offset
    assert str(stop).startswith(f"{TOPIC}/{partition} stopped at offset {offset}: ")
    assert len(stop.choices) == 3
    assert f"--topic {TOPIC}:{partition} --after-failed --apply --reason WHY" in str(stop)
    return stop


_writers: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def writer_of(sink: Any) -> Any:
    """The sink's writer, one for all calls, so that it keeps its caches as in a worker."""
    return _writers.setdefault(sink, sink.writer())


class Forced(WriteStrategies):
    """One strategy for every transaction, as far as its rows allow."""

    def __init__(self, strategy: WriteStrategy) -> None:
        super().__init__()
        self._strategy = strategy

    def gathers(self, rows: int) -> bool:
        return self._strategy is WriteStrategy.UNNEST

    def choose(self, rows: int, *, deduped: bool, direct: bool) -> WriteStrategy:
        self._wait = 0
        allowed = {WriteStrategy.UNNEST: deduped, WriteStrategy.COPY: deduped and direct}
        return self._strategy if allowed.get(self._strategy, False) else WriteStrategy.TEMP_TABLE


Rows = Sequence[tuple[Any, ...]]


def write(sink_tables: SinkTables, sink: Any, rows: Rows) -> None:
    """Write the rows in one transaction."""
    with sink_tables.engine.begin() as tx, writer_of(sink).open(tx) as writer:
        writer.write(rows)


def by_append(
    sink_tables: SinkTables, path: tuple[str, str], columns: Sequence[str], rows: Rows, **options: Any
) -> None:
    """Write the rows by COPY."""
    write(sink_tables, Append(path, columns=columns, **options), rows)


def by_arrow(
    sink_tables: SinkTables, path: tuple[str, str], columns: Sequence[str], rows: Rows, **options: Any
) -> None:
    """Write the rows by COPY, column by column."""
    write(sink_tables, AppendArrow(path, columns=columns, **options), rows)


def by_small_append(
    sink_tables: SinkTables, path: tuple[str, str], columns: Sequence[str], rows: Rows, **options: Any
) -> None:
    """Write the rows as a worker does whose last rows leave with the offset."""
    write_small(sink_tables, Append(path, columns=columns, **options), columns, rows)


def write_small(sink_tables: SinkTables, sink: Append[Any, Any], columns: Sequence[str], rows: Sequence[Any]) -> None:
    """Write the rows as a worker writes a small batch, on a connection that knows the table."""
    session = Session(sink_tables.engine)
    try:
        with session.transaction() as tx:
            looked_up(tx.driver, sink.path)
            types_now(tx.driver, sink.path)
            statements = insert_of_all(tx, sink.path, columns, rows, sink.conversions)
            if statements is None or not knows_plain_table(tx, sink.path):
                with sink.writer().open(tx) as writer:
                    writer.write(rows)
            else:
                round_trip(tx.driver, statements)
    except (StatementFailed, TransactionFailed) as failed:
        raise failed.error from None
    finally:
        session.close(broken=True)
