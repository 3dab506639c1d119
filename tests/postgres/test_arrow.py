"""Columns into a real Postgres: each of Arrow's types, the same rows as ``Append``, errors that name the record."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from datetime import time as clock
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any
from uuid import UUID

import msgspec
import psycopg
import pyarrow as pa
import pytest
from psycopg.types.json import Jsonb
from sqlalchemy import Connection

from seekpoint import Append, Batch, Bytes, Json, Pipeline
from seekpoint.cli.explain import describe
from seekpoint.codecs.arrow import Arrow
from seekpoint.errors import ConfigError, Poison
from seekpoint.jobs.tables.targets import sources
from seekpoint.pipeline.writers import PipelineWriters
from seekpoint.records import Partition, RawRecord
from seekpoint.sinks.arrow import AppendArrow, copy_into
from seekpoint.sinks.arrow.append import ArrowWriter
from seekpoint.sinks.arrow.copy import AT_ONCE
from seekpoint.testing import raw
from support.sink_tables import TOPIC, Order, SinkTables, orders, stopped_at

BERLIN = timezone(timedelta(hours=1))


def ipc(table: Any, *, file: bool = False) -> bytes:
    """The table in Arrow's stream format, or its file format."""
    buffer = pa.BufferOutputStream()
    with (pa.ipc.new_file if file else pa.ipc.new_stream)(buffer, table.schema) as writer:
        writer.write_table(table)
    return bytes(buffer.getvalue())


def numbered(*ids: int, **more: Any) -> Any:
    return pa.table({"id": pa.array(ids, pa.int64()), **more})


# -- each type --------------------------------------------------------------------------------------------------

AT = datetime(2024, 2, 29, 3, 4, 5, 678901)
SAME: Any = object()  # what comes back is what went in

TYPES: dict[str, tuple[Any, str, list[Any], Any]] = {
    "int8": (pa.int8(), "smallint", [-128, 127], SAME),
    "int64": (pa.int64(), "bigint", [-(2**63), 2**63 - 1], SAME),
    "uint64": (pa.uint64(), "numeric", [2**64 - 1, 0], SAME),
    "float": (pa.float32(), "real", [0.5, float("inf")], SAME),
    "double": (pa.float64(), "float8", [1e-300, 1e16, -0.0, float("-inf"), 0.1], SAME),
    "nan": (pa.float64(), "text", [float("nan")], ["nan"]),
    "bool": (pa.bool_(), "boolean", [True, False], SAME),
    "decimal": (pa.decimal128(20, 3), "numeric", [Decimal("-1.500"), Decimal("12345678901234567.001")], SAME),
    "decimal256": (pa.decimal256(60, 2), "numeric", [Decimal(10) ** 50], SAME),
    "decimal32": (pa.decimal32(5, 2), "numeric", [Decimal("1.25")], SAME),
    "string": (pa.string(), "text", ["", "NULL", "\\N", "\\.", 'q"u', "it's", "a\tb\nc\rd\\e", "ä€😀", " x "], SAME),
    "large string": (pa.large_string(), "text", ["x"], SAME),
    "string view": (pa.string_view(), "text", ["a string that is not inlined", "x"], SAME),
    "enum": (pa.string(), "varchar(3)", ["abc"], SAME),
    "binary": (pa.binary(), "bytea", [b"", b"\x00\xff\\x41", b"\t\n"], SAME),
    "fixed binary": (pa.binary(2), "bytea", [b"ab", b"\x00\x01"], SAME),
    "binary view": (pa.binary_view(), "bytea", [b"ab", b"\x00" * 20], SAME),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), "text", ["a", "b", "a"], SAME),
    "date": (pa.date32(), "date", [date(1, 1, 1), date(9999, 12, 31), date(2024, 2, 29)], SAME),
    "date64": (pa.date64(), "date", [date(2024, 2, 29)], SAME),
    "seconds": (pa.timestamp("s"), "timestamp", [AT.replace(microsecond=0)], SAME),
    "naive": (pa.timestamp("us"), "timestamp", [AT, datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59)], SAME),
    "aware": (pa.timestamp("us", "UTC"), "timestamptz", [AT.replace(tzinfo=UTC), datetime(1, 1, 2, tzinfo=UTC)], SAME),
    "zoned": (pa.timestamp("ms", "+01:00"), "timestamptz", [datetime(2024, 1, 2, 1, tzinfo=BERLIN)], SAME),
    "whole nanoseconds": (pa.timestamp("ns", "UTC"), "timestamptz", [AT.replace(tzinfo=UTC)], SAME),
    "time": (pa.time64("us"), "time", [clock(23, 59, 59, 999999), clock(0)], SAME),
    "time32": (pa.time32("s"), "time", [clock(1, 2, 3)], SAME),
    "duration": (pa.duration("us"), "interval", [timedelta(days=-1, microseconds=7), timedelta(hours=30)], SAME),
    "list": (pa.list_(pa.int32()), "int[]", [[1, None, 3], []], SAME),
    "texts": (pa.list_(pa.string()), "text[]", [["", "NULL", None, 'q"\\{},', "a\tb\nc"], []], SAME),
    "nested list": (pa.list_(pa.list_(pa.int64())), "int[][]", [[[1, 2], [3, 4]], [[5], [6]]], SAME),
    "fixed list": (pa.list_(pa.float64(), 2), "float8[]", [[0.5, float("inf")]], SAME),
    "bytes in lists": (pa.large_list(pa.binary()), "bytea[]", [[b"\x00\\", b""]], SAME),
    "times in lists": (pa.list_(pa.timestamp("us", "UTC")), "timestamptz[]", [[AT.replace(tzinfo=UTC)]], SAME),
    "struct": (pa.struct([("a", pa.int64()), ("b", pa.string())]), "jsonb", [{"a": 1, "b": 'x"\n\\'}], SAME),
    "list of structs": (pa.list_(pa.struct([("a", pa.int64())])), "jsonb", [[{"a": 1}, {"a": None}], []], SAME),
    "map": (pa.map_(pa.string(), pa.int64()), "jsonb", [[("k", 1)], []], [{"k": 1}, {}]),
    "null": (pa.null(), "int", [None], SAME),
}


@pytest.mark.parametrize("name", TYPES)
def test_each_type_comes_back_as_it_went_in(sink_tables: SinkTables, name: str) -> None:
    """With nulls between the values, in slices, and in several chunks."""
    kind, column, values, expected = TYPES[name]
    table = sink_tables.create(f"id bigint, v {column}")
    cells = [v for value in values for v in (value, None)] * 3
    chunks = pa.chunked_array([pa.array([], kind), pa.array(cells[:1], kind), pa.array(cells[1:], kind)])
    whole = pa.table({"id": range(len(cells)), "v": chunks})
    with sink_tables.engine.begin() as tx:
        assert copy_into(tx, table, whole.slice(1)) == len(cells) - 1
        assert copy_into(tx, table, whole.slice(0, 1).to_batches()[0]) == 1
    returned = values if expected is SAME else expected
    assert [v for _, v in sink_tables.rows("id", "v")] == [v for value in returned for v in (value, None)] * 3


def test_uuids_go_into_uuid(sink_tables: SinkTables) -> None:
    """As Arrow's extension, and as text."""
    table, ids = sink_tables.create("id bigint, v uuid"), [UUID(int=7), UUID(int=2**127)]
    stored = pa.array([id_.bytes for id_ in ids], pa.binary(16))
    with sink_tables.engine.begin() as tx:
        copy_into(tx, table, numbered(0, 1, v=pa.ExtensionArray.from_storage(pa.uuid(), stored)))
        copy_into(tx, table, numbered(2, 3, v=list(map(str, ids))))
    assert [v for _, v in sink_tables.rows("id", "v")] == ids * 2


def test_any_column_goes_into_json_where_that_is_said(sink_tables: SinkTables) -> None:
    table = sink_tables.create("id bigint, v jsonb")
    with sink_tables.engine.begin() as tx:
        copy_into(tx, table, numbered(0, 1, v=[["a", "b"], None]), json=["v"])
        copy_into(tx, table, numbered(2, v=['say "hi"']), json=["v"])
    assert sink_tables.rows("id", "v") == [(0, ["a", "b"]), (1, None), (2, 'say "hi"')]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            pa.array([1], pa.timestamp("ns")),
            "column 'v': ValueError: Postgres stores only microseconds: round the column",
        ),
        (
            pa.array([(1, 2, 3)], pa.month_day_nano_interval()),
            "Seekpoint cannot write Arrow's month_day_nano_interval",
        ),
        (pa.array([[("k", 1), ("k", 2)]], pa.map_(pa.string(), pa.int64())), "column 'v': KeyError"),
    ],
)
def test_what_has_no_text_is_poison(sink_tables: SinkTables, values: Any, message: str) -> None:
    table = sink_tables.create("id bigint, v text")
    with pytest.raises(Poison, match=message), sink_tables.engine.begin() as tx:
        copy_into(tx, table, numbered(1, v=values))
    assert sink_tables.rows("id") == []


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("numeric(6,2)", pa.array([Decimal("1.005")], pa.decimal128(10, 3)), "1.005 has more fraction digits"),
        ("numeric(6,2)[]", pa.array([[Decimal("1.005")]], pa.list_(pa.decimal128(10, 3))), "1.005 has more fraction"),
        ("numeric(6,-2)", pa.array([150]), "150 has more fraction digits"),
        ("timestamp", pa.array([datetime(2026, 1, 2, tzinfo=UTC)], pa.timestamp("us", "UTC")), "has a time zone"),
        ("date", pa.array([datetime(2026, 1, 2, 10)], pa.timestamp("us")), "the column would drop the time of day"),
        ("timetz", pa.array([datetime(2026, 1, 2, 10)], pa.timestamp("us")), "the column would drop the date"),
        ("bytea", pa.array([5]), "it takes no int"),
        ("bytea", pa.array([{"a": 1}]), "it takes no dict"),
    ],
)
def test_a_column_that_cannot_hold_a_tables_value_refuses_it(
    sink_tables: SinkTables, column: str, values: Any, message: str
) -> None:
    table = sink_tables.create(f"id bigint, v {column}")
    with pytest.raises(Poison, match=message), sink_tables.engine.begin() as tx:
        copy_into(tx, table, numbered(1, v=values))
    assert sink_tables.rows("id") == []


def test_copy_into_names_what_is_not_there(sink_tables: SinkTables) -> None:
    table = sink_tables.create("id bigint, v text")
    with sink_tables.engine.begin() as tx:
        with pytest.raises(ConfigError, match="has no column 'w'"):
            copy_into(tx, table, numbered(1, v=["x"]), columns=["id", "w"])
        with pytest.raises(ConfigError, match="has no columns"):
            copy_into(tx, table, pa.table({}))
        with pytest.raises(ConfigError, match=r"copy_into: the name 'o{64}' has 64 bytes, and Postgres cuts it"):
            copy_into(tx, "o" * 64, numbered(1))
        assert copy_into(tx, ".".join(table), numbered(1, other=["x"]), columns=["id"]) == 1
    with pytest.raises(psycopg.errors.InvalidTextRepresentation) as caught, sink_tables.engine.begin() as tx:
        copy_into(tx, table, pa.table({"id": ["x"]}))
    assert caught.value.diag.context == 'COPY t, line 1, column id: "x"'
    assert sink_tables.rows("id", "v") == [(1, None)]


# -- the same as Append -----------------------------------------------------------------------------------------


class Colour(Enum):
    RED = "red"


VALUES: dict[str, list[Any]] = {
    "bigint": [0, -5, 2**62, None, True, "12"],
    "numeric": [
        Decimal("1.50"),
        Decimal("1E+3"),
        Decimal("NaN"),
        Decimal("-0.000"),
        7,
        0.25,
        None,
        2**70,
        Decimal("sNaN"),
    ],
    "float8": [0.1, float("nan"), float("inf"), -0.0, 1e-7, 1e22, 3, None],
    "text": ["", "\\N", "a\tb\nc\rd\\e", "ä€😀", None, 'q"', Colour.RED, "\b\f\v"],
    "boolean": [True, False, None, "t"],
    "timestamptz": [AT.replace(tzinfo=UTC), AT.replace(tzinfo=BERLIN), AT, None, datetime(1, 1, 1, tzinfo=UTC)],
    "timestamp": [AT, AT.replace(tzinfo=BERLIN), AT.replace(tzinfo=UTC), None, AT.replace(microsecond=0)],
    "date": [date(2024, 2, 29), AT, None, date.max],
    "time": [clock(1, 2, 3, 4), clock(0), None],
    "interval": [timedelta(1, 2, 3), timedelta(-5), None],
    "bytea": [b"", b"\x00\\x41", bytearray(b"x"), None],
    "uuid": [UUID(int=5), str(UUID(int=6)), None],
    "int[]": [[1, None], [], None],
    "text[]": [["", None, 'q"\\{},'], None],
    "jsonb": [{"a": ["x", None, 1.5]}, Jsonb([1, 2]), {}, None, "5"],
}


class Fields(msgspec.Struct):
    """One of every kind of column."""

    a: Any
    b: Any
    c: Any


def _numbered(rows: list[Fields], record: RawRecord) -> Fields:
    return rows[record.offset]


Outcome = tuple[list[int], str]


def written_by(sink_tables: SinkTables, sink_of: Callable[..., Any], name: str, body: str, rows: list[Any]) -> Outcome:
    """Which records were refused, and the rows of the others."""
    sink = sink_of(sink_tables.create(f"n bigserial, {body}", name), row=partial(_numbered, rows))
    pipeline = Pipeline(name, topics=TOPIC, value=Bytes(), sinks=[sink], on_poison="dead_letter")
    done = sink_tables.process(pipeline, *orders(*(b"" for _ in rows)))
    stored = sink_tables.rows("n", "a", "b", "c", name=name)
    return [aside.offset for aside in done.dead_letters], repr([row[1:] for row in stored])


@pytest.mark.long
def test_the_same_rows_as_append(sink_tables: SinkTables) -> None:
    """Any values, of one type in a column or of several: the same in the same columns, or both refuse the record."""
    seed = time.time_ns()
    print("seed", seed)
    chance = random.Random(seed)
    for round_ in range(25):
        columns = chance.choices(list(VALUES), k=3)
        pools = [chance.sample(VALUES[kind], chance.randrange(1, len(VALUES[kind]))) for kind in columns]
        rows = [Fields(*map(chance.choice, pools)) for _ in range(30)]
        body = ", ".join(f"{field} {kind}" for field, kind in zip("abc", columns, strict=True))
        expected = written_by(sink_tables, Append, f"rows{round_}", body, rows)
        assert written_by(sink_tables, AppendArrow, f"columns{round_}", body, rows) == expected, (columns, pools)


@pytest.mark.parametrize("zones", [(UTC,), (BERLIN,), (None,), (UTC, BERLIN), (None, UTC), (None, BERLIN)], ids=repr)
def test_a_time_is_stored_as_append_stores_it(sink_tables: SinkTables, zones: tuple[Any, ...]) -> None:
    """A column without a zone takes what the clock of the sink's zone shows."""
    rows = [Fields(*[AT.replace(hour=n, tzinfo=zone)] * 3) for n, zone in enumerate(zones * 3)]
    body = "a timestamp, b timestamptz, c timestamp"
    expected = written_by(sink_tables, partial(Append, timezone="Asia/Kolkata"), "rows", body, rows)
    assert expected[0] == []
    assert written_by(sink_tables, partial(AppendArrow, timezone="Asia/Kolkata"), "columns", body, rows) == expected


# -- records that are tables ------------------------------------------------------------------------------------


def tables(*args: Any, start: int = 0) -> list[RawRecord]:
    return orders(*(table if isinstance(table, bytes) else ipc(table) for table in args), start=start)


def of(group: str, sink: AppendArrow, **more: Any) -> Pipeline:
    return Pipeline(group, topics=TOPIC, value=more.pop("value", Arrow()), sinks=[sink], **more)


def test_a_record_becomes_all_rows_of_its_table(sink_tables: SinkTables, group: str) -> None:
    """In both formats, and one of no rows."""
    sink = AppendArrow(sink_tables.create("id bigint, v text"))
    first, empty, last = numbered(1, 2, v=["a", None]), numbered(v=pa.array([], pa.string())), numbered(3, v=["c"])
    done = sink_tables.process(of(group, sink), *tables(first, empty, ipc(last, file=True)))
    assert (done.records, sink_tables.rows("id", "v")) == (3, [(1, "a"), (2, None), (3, "c")])


def test_the_columns_are_those_that_each_table_has(sink_tables: SinkTables, group: str) -> None:
    sink = AppendArrow(sink_tables.create("id bigint, v text DEFAULT 'none', w int"))
    parts = numbered(1, v=["a"]), numbered(2), numbered(3, w=[5]), numbered(4, w=[6]), numbered(5)
    sink_tables.process(of(group, sink), *tables(*parts))
    assert sink_tables.rows("id", "v", "w") == [
        (1, "a", None), (2, "none", None), (3, "none", 5), (4, "none", 6), (5, "none", None),
    ]  # fmt: skip


def test_columns_that_are_named_are_taken_and_must_be_there(sink_tables: SinkTables, group: str) -> None:
    sink = AppendArrow(sink_tables.create("id bigint, v text"), columns=["v", "id"])
    parts = numbered(1, v=["a"], other=[1]), numbered(2), numbered(3, v=["c"])
    done = sink_tables.process(of(group, sink, on_poison="dead_letter"), *tables(*parts))
    assert sink_tables.rows("id", "v") == [(1, "a"), (3, "c")]
    (aside,) = done.dead_letters
    assert (aside.offset, aside.failure.cause) == (1, "row")
    assert "the table has no column 'v'; it has id" in aside.failure.error


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pa.table([[1], [2]], names=["id", "id"]), "has two columns of one name: id, id"),
        (pa.table({}), "the table has no columns"),
    ],
)
def test_a_table_that_is_none_is_its_records_fault(
    sink_tables: SinkTables, group: str, table: Any, message: str
) -> None:
    sink = AppendArrow(sink_tables.create("id bigint"))
    done = sink_tables.process(of(group, sink), *tables(numbered(1), table))
    assert message in str(stopped_at(done, 0, 1))
    assert sink_tables.rows("id") == [(1,)]


def test_provenance_goes_into_each_row(sink_tables: SinkTables, group: str) -> None:
    path = sink_tables.create("id bigint, topic text, part int, at bigint")
    sink = AppendArrow(path, provenance=("topic", "part", "at"))
    done = sink_tables.process(of(group, sink), *tables(numbered(1, 2), numbered(3), numbered(4, at=[1])))
    assert sink_tables.rows("id", "topic", "part", "at") == [(1, TOPIC, 0, 0), (2, TOPIC, 0, 0), (3, TOPIC, 0, 1)]
    assert "has a column 'at', and provenance= writes one of this name" in str(stopped_at(done, 0, 2))


class Foreign:
    """Another library's table: it has Arrow's protocol, and nothing else."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested)


def test_row_may_make_tables_of_any_library_and_rows_beside_them(sink_tables: SinkTables, group: str) -> None:
    def row(record: Any) -> Any:
        number = int(record.value)
        if number == 3:
            return None
        if number % 2:
            return (number, "row")
        return Foreign(numbered(number, number, v=["table", "table"]))

    sink = AppendArrow(sink_tables.create("id bigint, v text"), columns=["id", "v"], row=row)
    sink_tables.process(of(group, sink, value=Bytes()), *orders(*(b"%d" % n for n in range(6))))
    assert sink_tables.rows("id", "v") == sorted(
        [(n, "table") for n in (0, 0, 2, 2, 4, 4)] + [(n, "row") for n in (1, 5)]
    )


def test_among_rows_and_tables_the_record_at_fault_is_named(sink_tables: SinkTables, group: str) -> None:
    """They are sent in their order, and each table counts as one."""
    values = [(0,), (1,), numbered(2), numbered(3, 4), (5,), numbered(6, 2**40), numbered(7), (2**40,), (8,)]
    sink = AppendArrow(sink_tables.create("id int PRIMARY KEY"), columns=["id"], row=lambda r: values[r.offset])
    done = sink_tables.process(of(group, sink, value=Bytes(), on_poison="dead_letter"), *orders(*(b"" for _ in values)))
    assert [aside.offset for aside in done.dead_letters] == [5, 7]
    assert [n for (n,) in sink_tables.rows("id")] == [0, 1, 2, 3, 4, 5, 7, 8]


def test_rows_may_make_several_tables(sink_tables: SinkTables, group: str) -> None:
    sink = AppendArrow(sink_tables.create("id bigint"), rows=lambda r: r.value.to_batches(max_chunksize=1))
    sink_tables.process(of(group, sink), *tables(numbered(1, 2, 3), numbered(4)))
    assert sink_tables.rows("id") == [(1,), (2,), (3,), (4,)]


# -- whose fault it is ------------------------------------------------------------------------------------------


class OpenCounter:
    """How often a sink was opened: the search by halves opens it for each part."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened, whole = 0, ArrowWriter.open

        def open_counted(writer: ArrowWriter, tx: Connection) -> Any:
            self.opened += 1
            return whole(writer, tx)

        monkeypatch.setattr(ArrowWriter, "open", open_counted)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (b'{"id": 700, "note": "a\\u0000b"}', "invalid byte sequence for encoding"),
        (b'{"id": 99999999999}', "out of range for type integer"),
        (b'{"id": 5, "note": "dup"}', "duplicate key value violates unique constraint"),
        (b'{"id": "x"}', "Expected `int`, got `str`"),
    ],
)
def test_the_server_names_the_row_and_so_the_record(
    sink_tables: SinkTables, group: str, monkeypatch: pytest.MonkeyPatch, bad: bytes, message: str
) -> None:
    """After more rows than are sent at a time; the values before it hold line breaks."""
    sink, calls, count = (
        AppendArrow(sink_tables.create("id int PRIMARY KEY, note text")),
        OpenCounter(monkeypatch),
        AT_ONCE + 700,
    )
    values = [b'{"id": %d, "note": "a\\r\\nb\\n"}' % n for n in range(count)]
    values[AT_ONCE + 500] = bad
    done = sink_tables.process(of(group, sink, value=Json(Order), on_poison="dead_letter"), *orders(*values))
    (aside,) = done.dead_letters
    cause = "decode" if "Expected" in message else "database"
    assert (aside.offset, aside.failure.cause) == (AT_ONCE + 500, cause)
    assert message in aside.failure.error
    assert len(sink_tables.rows("id")) == count - 1
    assert calls.opened <= (2 if cause == "decode" else 4), "the record was named, not searched for"


def test_a_value_that_nothing_can_write_is_its_records_fault(sink_tables: SinkTables, group: str) -> None:
    """It never reaches the server; the column is named."""
    sink = AppendArrow(sink_tables.create("id bigint, note text"))
    values = [b'{"id": %d, "note": "x"}' % n for n in range(10)]
    rows = {n: Order(n, "\udc80" if n == 7 else "x") for n in range(10)}
    sink = AppendArrow((sink_tables.schema, "t"), row=lambda r: rows[r.offset])
    done = sink_tables.process(of(group, sink, value=Bytes()), *orders(*values))
    assert "column 'note': UnicodeEncodeError" in str(stopped_at(done, 0, 7))
    assert len(sink_tables.rows("id")) == 7


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (numbered(7, 99, v=["x", "y"]), "duplicate key value violates unique constraint"),
        (numbered(80, 81, v=["x", "a\0b"]), "invalid byte sequence"),
        (
            numbered(80, v=pa.array([1], pa.timestamp("ns"))),
            "column 'v': ValueError: Postgres stores only microseconds",
        ),
        (numbered(80, w=pa.array(["x"])), "invalid input syntax for type integer"),
        (b"no Arrow at all", "ArrowInvalid"),
    ],
)
def test_one_bad_row_makes_its_whole_record_poison(sink_tables: SinkTables, group: str, bad: Any, message: str) -> None:
    """In the middle of the batch, between tables with other columns."""
    sink = AppendArrow(sink_tables.create("id bigint PRIMARY KEY, v text, w int"))
    before = [numbered(2 * n, 2 * n + 1, v=["a\nb", None]) for n in range(5)]
    behind = [numbered(20, w=[1]), numbered(21, 22, v=["x", "y"])]
    done = sink_tables.process(of(group, sink, on_poison="dead_letter"), *tables(*before, bad, *behind))
    (aside,) = done.dead_letters
    assert aside.offset == 5
    assert message in aside.failure.error
    assert [n for (n,) in sink_tables.rows("id")] == [*range(10), 20, 21, 22]


def test_a_table_whose_bytes_lie_is_its_records_fault(sink_tables: SinkTables, group: str) -> None:
    """The offsets of its strings point beyond them: read as they are, they would end the process."""
    good = ipc(numbered(1, 2, v=["first", "second"]))
    lying = good.replace(
        (5).to_bytes(4, "little") + (11).to_bytes(4, "little"), (5).to_bytes(4, "little") + b"\xff\xff\xff\x7f"
    )
    assert lying != good
    sink = AppendArrow(sink_tables.create("id bigint, v text"))
    done = sink_tables.process(of(group, sink), *tables(good, lying))
    assert "ArrowInvalid" in str(stopped_at(done, 0, 1))


def test_a_column_that_the_table_lacks_is_named_with_its_record(sink_tables: SinkTables, group: str) -> None:
    """The topic has grown a column, and the table has not: where no other record is applied, the partition stops."""
    sink = AppendArrow(sink_tables.create("id bigint"))
    done = sink_tables.process(of(group, sink, on_poison="dead_letter"), *tables(numbered(1, grown=[1])))
    assert 'column "grown" of relation "t" does not exist' in str(done.stopped[Partition(TOPIC, 0)])
    assert (sink_tables.rows("id"), done.dead_letters) == ([], ())


def test_what_is_refused_at_the_end_is_found_by_halves(sink_tables: SinkTables, group: str) -> None:
    """Foreign keys are checked after the last row, and no line is named."""
    sink_tables.create("id int PRIMARY KEY", "parent")
    sink_tables.sql("INSERT INTO parent SELECT generate_series(0, 99)")
    sink = AppendArrow(sink_tables.create("id int REFERENCES parent"))
    wanted = [numbered(n, n + 1) if n != 42 else numbered(42, 1000) for n in range(60)]
    done = sink_tables.process(of(group, sink, on_poison="dead_letter"), *tables(*wanted))
    assert [aside.offset for aside in done.dead_letters] == [42]
    assert len(sink_tables.rows("id")) == 118


def test_several_sinks_and_a_handler_beside_it(sink_tables: SinkTables, group: str) -> None:
    """Not streamed then; a handler copies, too."""
    rows, copied = sink_tables.create("id bigint"), sink_tables.create("id bigint", "copied")

    def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
        copy_into(tx, copied, pa.concat_tables([r.value for r in batch]))

    sink = AppendArrow(rows)
    pipeline = Pipeline(
        group, topics=TOPIC, value=Arrow(), sinks=[sink], handle=handle, on_poison="dead_letter", writes=["copied"]
    )
    done = sink_tables.process(pipeline, *tables(numbered(1, 2), pa.table({"id": ["x"]}), numbered(3)))
    assert [aside.offset for aside in done.dead_letters] == [1]
    assert sink_tables.rows("id") == sink_tables.rows("id", name="copied") == [(1,), (2,), (3,)]


def test_poison_in_a_handler_is_found_without_another_try(sink_tables: SinkTables, group: str) -> None:
    table = sink_tables.create("id timestamp")

    def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
        values = pa.array([int(r.value) for r in batch], pa.timestamp("ns"))
        copy_into(tx, table, pa.table({"id": values}))

    pipeline = Pipeline(group, topics=TOPIC, value=Bytes(), handle=handle, on_poison="dead_letter", writes=["t"])
    done = sink_tables.process(pipeline, *orders(b"1000", b"2000", b"2001", b"3000"))
    (aside,) = done.dead_letters
    assert (aside.offset, aside.failure.cause, aside.failure.attempts) == (2, "poison", 1)
    assert len(sink_tables.rows("id")) == 3


# -- declarations -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AppendArrow("a.b.c"), "name it 'table' or 'schema.table'"),
        (lambda: AppendArrow("t", json="v"), r"json= takes several names: json=\['v'\]"),
        (lambda: AppendArrow("t", row=lambda r: r, rows=lambda r: [r]), "row= or rows=, not both"),
        (lambda: Arrow("id"), r"takes a pyarrow\.Schema, got 'id'"),
    ],
)
def test_a_declaration_that_cannot_be_meant_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_it_is_explained_and_not_reloaded() -> None:
    """A reload keeps a place in the log for each row, and a table has one for all of its own."""
    pipeline = Pipeline("g", topics=TOPIC, value=Arrow(), sinks=[AppendArrow("t")])
    sinks = describe(pipeline, None)["sinks"]
    assert sinks == [
        {"sink": "AppendArrow('t')", "tables": ["t"], "strategies": {"copy": "always: COPY into the table"}}
    ]
    with pytest.raises(ConfigError, match=r"AppendArrow\('t'\) cannot be redirected to another table"):
        sources([pipeline])


def test_the_codec_casts_to_its_schema_where_nothing_is_lost() -> None:
    codec = Arrow(pa.schema([("v", pa.string()), ("id", pa.int32())]))
    decoded = codec(ipc(numbered(1, v=["a"], other=[1])))
    assert decoded.schema == codec.schema
    assert decoded.to_pylist() == [{"v": "a", "id": 1}]
    with pytest.raises(ValueError, match="the table has no column 'v'"):
        codec(ipc(numbered(1)))
    with pytest.raises(pa.ArrowInvalid, match="not in range"):
        codec(ipc(numbered(2**40, v=["a"])))
    assert (repr(codec), repr(Arrow())) == ("Arrow(v, id)", "Arrow()")
    pipeline = Pipeline("g", topics=TOPIC, value=Arrow(tombstones=True), sinks=[AppendArrow("t")])
    assert PipelineWriters(pipeline).decode(raw(None, topic=TOPIC)).value is None


def test_a_worker_streams_tables(
    sink_tables: SinkTables,
    group: str,
    topic: Callable[..., str],
    produce: Callable[..., Any],
    run_worker: Callable[..., Any],
) -> None:
    """Through a real broker, several batches; each row once."""
    name, path = topic(partitions=1), sink_tables.create("id bigint, v text")
    produce(name, [ipc(numbered(*range(n * 10, n * 10 + 10), v=["x"] * 10)) for n in range(300)])
    run = run_worker(Pipeline(group, topics=name, value=Arrow(), sinks=[AppendArrow(path)]))
    run.finish(name, 300)
    assert [n for (n,) in sink_tables.rows("id")] == list(range(3000))
