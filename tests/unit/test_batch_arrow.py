"""A batch as an Arrow table: which columns, of which types, and whose fault it is where a value does not fit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, NotRequired, TypedDict
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest

from seekpoint import Batch
from seekpoint.errors import ConfigError, Poison
from seekpoint.testing import batch, record
from support.schema_registry import shop

AT = datetime(2024, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
MICROS = pa.timestamp("us", "UTC")


class State(Enum):
    OPEN = "open"


class Item(msgspec.Struct):
    sku: str
    count: int | None = None


class Order(msgspec.Struct):
    id: int
    price: float
    note: str | None
    paid: bool
    seal: bytes
    ordered_at: datetime
    local: Annotated[datetime, msgspec.Meta(tz=False)]
    day: date
    noon: time
    took: timedelta
    amount: Decimal
    uid: UUID
    state: State
    tags: list[str]
    items: list[Item]
    best: Item | None
    prices: dict[str, int]
    anything: Any = None


ORDER = Order(
    2**62, 0.5, None, True, b"\x00", AT, AT.replace(tzinfo=None), date(2024, 2, 29), time(12), timedelta(seconds=1),
    Decimal("1.50"), UUID(int=7), State.OPEN, ["a"], [Item("s", 1), Item("t")], Item("b"), {"p": 1},
)  # fmt: skip
ITEM = pa.struct([pa.field("sku", pa.string(), False), pa.field("count", pa.int64(), True)])


class Small(msgspec.Struct):
    id: int


@dataclass
class Parcel:
    id: int
    note: str | None = None


class Typed(TypedDict):
    id: int
    note: NotRequired[str]


def values(*args: Any) -> Batch[Any, Any]:
    return batch(*(record(value, offset=n) for n, value in enumerate(args)))


def poisoned(caught: pytest.ExceptionInfo[Poison]) -> list[int]:
    return [record.offset for record in caught.value.records]


def test_columns_have_the_types_of_the_annotations() -> None:
    arrow = values(ORDER).arrow()
    assert arrow.schema == pa.schema(
        [
            pa.field("id", pa.int64(), False),
            pa.field("price", pa.float64(), False),
            pa.field("note", pa.string(), True),
            pa.field("paid", pa.bool_(), False),
            pa.field("seal", pa.binary(), False),
            pa.field("ordered_at", MICROS, False),
            pa.field("local", pa.timestamp("us"), False),
            pa.field("day", pa.date32(), False),
            pa.field("noon", pa.time64("us"), False),
            pa.field("took", pa.duration("us"), False),
            pa.field("amount", pa.decimal128(3, 2), True),
            pa.field("uid", pa.uuid(), False),
            pa.field("state", pa.string(), False),
            pa.field("tags", pa.list_(pa.string()), False),
            pa.field("items", pa.list_(ITEM), False),
            pa.field("best", ITEM, True),
            pa.field("prices", pa.map_(pa.string(), pa.int64()), False),
            pa.field("anything", pa.null(), True),
        ]
    )
    row = arrow.to_pylist()[0]
    assert row["items"] == [{"sku": "s", "count": 1}, {"sku": "t", "count": None}]
    assert (row["ordered_at"], row["local"], row["uid"]) == (AT, AT.replace(tzinfo=None), UUID(int=7))
    assert (row["prices"], row["state"], row["amount"]) == ([("p", 1)], "open", Decimal("1.50"))


@pytest.mark.parametrize("value", [Small(1), Parcel(1), {"id": 1}])
def test_structs_dataclasses_and_mappings_have_fields(value: Any) -> None:
    assert values(value, value).arrow().column("id").to_pylist() == [1, 1]


@pytest.mark.parametrize(("value", "kind"), [(5, pa.int64()), ("x", pa.string()), (b"x", pa.binary()), ([1], None)])
def test_values_without_fields_are_one_column(value: Any, kind: Any) -> None:
    table = values(value, value).arrow()
    assert table.to_pylist() == [{"value": value}] * 2
    assert kind is None or table.schema.field("value").type == kind


def test_mappings_have_all_their_keys_and_null_where_one_is_missing() -> None:
    assert values({"a": 1}, {"b": "x", "a": None}).arrow().to_pylist() == [{"a": 1, "b": None}, {"a": None, "b": "x"}]


def test_messages_have_the_fields_that_their_values_have() -> None:
    item = shop()["Item"]
    assert values(item(sku="s", count=1), item()).arrow().to_pylist() == [
        {"sku": "s", "count": 1}, {"sku": "", "count": 0},
    ]  # fmt: skip


def test_provenance_is_in_the_columns_that_are_named() -> None:
    located = batch(
        record({"id": 1}, topic="a", partition=1, offset=7, key=b"k", timestamp=AT.replace(microsecond=678000)),
        record({"id": 2}, topic="b", partition=0, offset=2**40, key=None, timestamp=None),
    )
    table = located.arrow(provenance={"key": "k", "offset": "o", "topic": "t", "partition": "p", "timestamp": "ts"})
    assert table.schema == pa.schema(
        {
            "id": pa.int64(), "t": pa.dictionary(pa.int32(), pa.string()), "p": pa.int32(), "o": pa.int64(),
            "ts": pa.timestamp("ms", "UTC"), "k": pa.binary(),
        }
    )  # fmt: skip
    assert table.to_pylist() == [
        {"id": 1, "t": "a", "p": 1, "o": 7, "ts": AT.replace(microsecond=678000), "k": b"k"},
        {"id": 2, "t": "b", "p": 0, "o": 2**40, "ts": None, "k": None},
    ]
    assert located.arrow(provenance=("t", "p", "o")).column_names == ["id", "t", "p", "o"]
    keyed = batch(record(1, key=Small(5)), record(1, key=None))
    assert keyed.arrow(provenance={"key": "k"}).column("k").to_pylist() == [{"id": 5}, None]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"provenance": "topic"}, "names the columns of topic, partition and offset"),
        ({"provenance": {"where": "w"}}, "there is no 'where'"),
        ({"provenance": ("a", "a", "b")}, "names one column twice"),
        ({"provenance": ("id", "p", "o")}, "names columns that the values already have: id"),
        ({"schema": int}, "must be a pyarrow.Schema, Struct"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(options: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        values({"id": 1}).arrow(**options)


def test_values_of_several_types_need_a_schema() -> None:
    mixed = values(Small(1), Parcel(2, "x"))
    with pytest.raises(ConfigError, match=r"several types \(Parcel, Small\): name their columns with schema="):
        mixed.arrow()
    assert mixed.arrow(Small).to_pylist() == [{"id": 1}, {"id": 2}]


@pytest.mark.parametrize("schema", [pa.schema({"id": pa.int64()}), Small])
def test_a_batch_without_records_keeps_the_schema(schema: Any) -> None:
    arrow = values().arrow(schema)
    assert (arrow.num_rows, arrow.schema.field("id").type) == (0, pa.int64())
    assert values().arrow().num_rows == 0
    assert values().arrow(provenance=("t", "p", "o")).column_names == ["t", "p", "o"]


def test_tombstones_are_rows_of_nulls() -> None:
    table = values(Small(1), None).arrow()
    assert table.to_pylist() == [{"id": 1}, {"id": None}]
    assert table.schema.field("id").nullable
    assert values(None).arrow(Small).to_pylist() == [{"id": None}]


def test_a_schema_says_what_a_mapping_must_have() -> None:
    schema = pa.schema([pa.field("id", pa.int32(), False), pa.field("note", pa.string())])
    assert values({"id": 1, "more": 2}).arrow(schema).to_pylist() == [{"id": 1, "note": None}]
    assert values({"id": 1}, {"id": 2, "note": "x"}).arrow(Typed).column("note").to_pylist() == [None, "x"]
    with pytest.raises(Poison, match="the value has no 'id'") as caught:
        values({"id": 1}, {"note": "x"}).arrow(schema)
    assert poisoned(caught) == [1]
    with pytest.raises(Poison, match="column 'id' takes no nulls") as caught:
        values({"id": 1}, {"id": None}, None).arrow(schema)
    assert poisoned(caught) == [1, 2]


@pytest.mark.parametrize(
    ("kind", "good", "bad", "message"),
    [
        (pa.int64(), 1, 2**63, "column 'v'"),
        (pa.int64(), 1, 1.5, "1.5 is not an integer"),
        (pa.int64(), 1, True, "True is not an integer"),
        (pa.int64(), 1, "1", "'1' is not an integer"),
        (pa.int8(), 1, 300, "300 too large"),
        (pa.float64(), 1.5, "x", "column 'v'"),
        (pa.string(), "x", 5, "5 is not text"),
        (pa.string(), "x", "\ud800", "surrogates not allowed"),
        (MICROS, AT, AT.replace(tzinfo=None), "has no time zone, and the column has one"),
        (pa.timestamp("us"), AT.replace(tzinfo=None), AT, "has a time zone, and the column has none"),
        (pa.timestamp("ms", "UTC"), AT.replace(microsecond=5000), AT, "is finer than ms"),
        (MICROS, AT, date(2024, 1, 1), "is not a datetime"),
        (pa.date32(), date(2024, 1, 1), AT, "is a datetime, and the column has dates"),
        (pa.time64("us"), time(1), time(1, tzinfo=UTC), "has a time zone"),
        (pa.decimal128(10, 2), Decimal("1.5"), Decimal("1.234"), "would cause data loss"),
        (pa.decimal128(10, 2), Decimal("1.5"), Decimal("NaN"), "column 'v'"),
        (pa.uuid(), UUID(int=5), "no uuid", "badly formed"),
        (pa.list_(pa.int64()), [1, None], [1, 2.5], "2.5 is not an integer"),
        (pa.struct({"at": MICROS}), {"at": AT}, {"at": AT.replace(tzinfo=None)}, "has no time zone"),
        (pa.map_(pa.string(), pa.int64()), {"a": 1}, {"a": "x"}, "'x' is not an integer"),
    ],
)
def test_a_value_that_does_not_fit_is_its_records_fault(kind: Any, good: Any, bad: Any, message: str) -> None:
    schema = pa.schema({"v": kind})
    with pytest.raises(Poison, match=message) as caught:
        values(*({"v": v} for v in (good, None, bad, good, bad))).arrow(schema)
    assert poisoned(caught) == [2, 4]
    assert values({"v": good}).arrow(schema).schema == schema


@pytest.mark.parametrize(
    ("mixed", "bad"), [((1, 2, "x", 3, "y"), 2), (("x", 1), 1), ((1, [1]), 1), ((1, None, {"a": 1}), 2)]
)
def test_of_values_that_do_not_go_together_the_first_that_differs_is_named(mixed: Any, bad: int) -> None:
    with pytest.raises(Poison, match="column 'v'") as caught:
        values(*({"v": v} for v in mixed)).arrow()
    assert poisoned(caught) == [bad]


def test_tables_are_put_one_below_the_other() -> None:
    tables = pa.table({"id": [1, 2]}), pa.table({"id": [3], "note": ["x"]}).to_batches()[0]
    arrow = values(*tables, None).arrow(provenance=("t", "p", "o"))
    assert arrow.select(["id", "note", "o"]).to_pylist() == [
        {"id": 1, "note": None, "o": 0}, {"id": 2, "note": None, "o": 0}, {"id": 3, "note": "x", "o": 1},
    ]  # fmt: skip
    schema = pa.schema({"id": pa.int32()})
    assert values(*tables).arrow(schema).schema == schema
    with pytest.raises(Poison, match="does not fit the earlier ones") as caught:
        values(tables[0], pa.table({"id": ["x"]}), tables[0]).arrow()
    assert poisoned(caught) == [1]
    with pytest.raises(Poison, match="does not fit the schema") as caught:
        values(tables[0], pa.table({"id": ["x"]})).arrow(schema)
    assert poisoned(caught) == [1]


def test_without_the_extra_it_says_what_to_install() -> None:
    code = """
import sys
sys.modules["pyarrow"] = None
from seekpoint import Batch
from seekpoint.codecs.arrow import Arrow
from seekpoint.sinks.arrow import AppendArrow, copy_into
from seekpoint.errors import ConfigError
for call in (lambda: Batch([]).arrow(), lambda: Arrow()(b""), lambda: copy_into(None, "t", None),
             lambda: AppendArrow("t").writer().open(None).__enter__()):
    try:
        call()
    except ConfigError as error:
        assert "pip install '/path/to/seekpoint[arrow]'" in str(error), error
    else:
        raise AssertionError(call)
assert "psycopg" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
