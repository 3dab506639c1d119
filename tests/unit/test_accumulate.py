"""``Accumulate`` without a database: what it refuses to be, the rows it makes, and how rows are aggregated by key."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seekpoint import Json, Pipeline
from seekpoint.codecs.json import JsonFloat
from seekpoint.errors import ConfigError, Poison
from seekpoint.pipeline.sink import Row, Sink
from seekpoint.sinks import Accumulate
from seekpoint.sinks.accumulate.aggregate import SumTarget, aggregate
from seekpoint.sinks.dedupe import Column
from seekpoint.testing import record

BIGINT, SMALLINT = Column("bigint", "int", -1), Column("smallint", "int", -1)
NUMERIC, MONEY = Column("numeric", "numeric", -1), Column("numeric", "numeric", (12 << 16 | 2) + 4)
DOUBLE = Column("double precision", "other", -1)
TEXT, TIME = Column("text", "text", -1), Column("timestamp with time zone", "timestamptz", -1)


class Sale(msgspec.Struct):
    day: str
    shop: str
    cents: int | None
    note: str = "not in the table"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": "day", "add": ["cents"]}, r"key=\['day'\]"),
        ({"key": ["day"], "add": "cents"}, r"add=\['cents'\]"),
        ({"key": ["day"], "least": "at"}, r"least=\['at'\]"),
        ({"key": [], "add": ["cents"]}, "at least one other column"),
        ({"key": ["day"]}, "at least one other column"),
        ({"key": ["day"], "add": ["day"]}, "day is named twice"),
        ({"key": ["day"], "add": ["cents"], "most": ["cents"]}, "cents is named twice"),
        ({"key": ["day"], "add": ["cents", "cents"]}, "cents is named twice"),
        ({"key": ["day"], "add": ["n"], "row": str, "rows": str}, "not both"),
    ],
)
def test_a_declaration_that_contradicts_itself_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Accumulate("sales", **options)


def test_it_is_a_sink_whose_records_add_in_any_order() -> None:
    sink = Accumulate("sales", key=["day"], add=["cents"])
    assert isinstance(sink, Sink)
    assert (sink.aggregates, sink.guarded, sink.key) == (True, None, ("day",))
    pipeline = Pipeline("g", topics="t", value=Json(), sinks=[sink], on_poison="dead_letter")
    assert not pipeline.keep_key_order, "a replayed dead letter overwrites nothing"


def test_a_row_has_the_columns_in_the_order_of_their_parts() -> None:
    its: dict[str, Any] = {"key": ["day", "shop"], "add": ["cents"]}
    writer = Accumulate("sales", **its).writer()
    sales = [Sale("mon", "a", 5), Sale("tue", "b", None)]
    assert writer.chunk_rows(sales, None, []) == [("mon", "a", 5), ("tue", "b", None)]
    sink = Accumulate("sales", **its, least=["first"], most=["last"], row=lambda r: {**r.value, "first": 1, "last": 2})
    rows = sink.writer().rows(record({"shop": "a", "cents": 5, "day": "mon"}))
    assert list(rows) == [("mon", "a", 5, 1, 2)]
    several = Accumulate("sales", **its, rows=lambda r: [("mon", "a", n) for n in r.value])
    assert list(several.writer().rows(record([1, 2]))) == [("mon", "a", 1), ("mon", "a", 2)]


def test_a_key_that_is_null_is_poison() -> None:
    writer = Accumulate("sales", key=["day", "shop"], add=["cents"]).writer()
    assert writer.chunk_rows([{"day": "mon", "shop": None, "cents": 1}], None, []) is None
    with pytest.raises(Poison, match="column 'shop' is null"):
        list(writer.rows(record({"day": "mon", "shop": None, "cents": 1})))


def test_a_tombstone_is_refused_unless_a_function_says_what_it_subtracts() -> None:
    its: dict[str, Any] = {"key": ["day"], "add": ["cents", "orders"], "most": ["last"]}
    for row in (None, lambda r: r.value):
        with pytest.raises(Poison, match=r"the record is a tombstone, and the sink has no subtract="):
            list(Accumulate("sales", **its, row=row).writer().rows(record(None, key="mon")))
    sink = Accumulate(
        "sales", **its, subtract=lambda r: r.key and {"day": r.key, "cents": Decimal("1.50"), "orders": 1}
    )
    assert list(sink.writer().rows(record(None, key="mon"))) == [("mon", Decimal("-1.50"), -1, None)]
    assert list(sink.writer().rows(record(None, key=None))) == []
    sink = Accumulate("sales", **its, subtract=lambda r: (r.key, None, 2.5))
    assert list(sink.writer().rows(record(None, key="mon"))) == [("mon", None, -2.5, None)]
    for wrong in (True, "5"):
        sink = Accumulate("sales", **its, subtract=partial(_taken, wrong))
        with pytest.raises(Poison, match="must return numbers for the sums, but returned"):
            list(sink.writer().rows(record(None, key="mon")))


def _taken(orders: Any, record: Any) -> tuple[Any, ...]:
    return record.key, 1, orders


def test_what_is_subtracted_keeps_its_digits() -> None:
    long = Decimal("123456789012345678901234567890123.45")
    sink = Accumulate(
        "t", key=["k"], add=["a", "b"], subtract=lambda r: ("k", long, JsonFloat("0.1234567890123456789"))
    )
    [(_, first, second)] = sink.writer().rows(record(None))
    assert (str(first), second.text) == (f"-{long}", "-0.1234567890123456789")


# -- aggregating ------------------------------------------------------------------------------------------------


def aggregated(
    rows: Sequence[Row], key: Column, value: Column, *, least: bool = False, add: bool = True
) -> Sequence[Row] | None:
    part: dict[str, Any] = {"add": ("v",)} if add else {"least" if least else "most": ("v",)}
    target = SumTarget("t", ("t",), ("k", "v"), ("k",), **part)
    return aggregate(target, rows, {"k": key, "v": value})


@given(st.lists(st.tuples(st.integers(0, 4), st.none() | st.integers(-(2**63), 2**63 - 1))))
def test_integers_are_aggregated_as_a_loop_would(rows: list[Row]) -> None:
    if not rows:
        return
    sums: dict[int, int | None] = {}
    for key, value in rows:
        before = sums.setdefault(key, None)
        sums[key] = before if value is None else (before or 0) + value
    assert aggregated(rows, BIGINT, BIGINT) == list(sums.items())


def test_decimals_are_aggregated_exactly() -> None:
    big, small = Decimal("1e40"), Decimal("1e-40")
    assert aggregated([(1, big), (1, small), (1, -big)], BIGINT, NUMERIC) == [(1, small)]
    cents = [(1, Decimal("0.10"))] * 30
    assert aggregated(cents, BIGINT, MONEY) == [(1, Decimal("3.00"))]


@pytest.mark.parametrize(
    ("rows", "key", "value"),
    [
        ([(1, 2**63), (1, -(2**63))], BIGINT, BIGINT),  # one alone would be refused
        ([(1, 40_000), (1, -30_000)], BIGINT, SMALLINT),
        ([(1, True), (1, 1)], BIGINT, BIGINT),
        ([(1, 1), (1, Decimal(1))], BIGINT, NUMERIC),
        ([(1, "1"), (1, "2")], BIGINT, BIGINT),
        ([(1, Decimal("0.005")), (1, Decimal("0.005"))], BIGINT, MONEY),  # each would be refused, or rounded
        ([(1, Decimal("1e10")), (1, Decimal("-1e10"))], BIGINT, MONEY),
        ([(1, Decimal("NaN")), (1, Decimal(1))], BIGINT, NUMERIC),
        ([(1, Decimal("1e-20000")), (1, Decimal(1))], BIGINT, NUMERIC),
        ([(1, Decimal("1e900000")), (1, Decimal("1e-900000"))], BIGINT, NUMERIC),
        ([(1, Decimal("1e-20000"))], BIGINT, NUMERIC),
        ([(1, 1e308), (1, 1e308)], BIGINT, DOUBLE),
        ([(1, float("nan")), (1, 1.0)], BIGINT, DOUBLE),
        ([(1, JsonFloat("1.50")), (1, JsonFloat("1.50"))], BIGINT, NUMERIC),
        ([(1, 1), (1.0, 1)], BIGINT, BIGINT),
        ([("a", 1), ("A", 1)], Column("citext", "other", -1), BIGINT),
        ([("a", 1, 1), ("b", 1)], TEXT, BIGINT),
    ],
)
def test_what_only_the_server_can_decide_is_not_aggregated(rows: list[Row], key: Column, value: Column) -> None:
    assert aggregated(rows, key, value) is None


def test_the_lowest_and_the_highest_are_kept_where_python_knows_the_order() -> None:
    early, late = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
    rows: list[Row] = [("a", late), ("a", None), ("b", None), ("a", early)]
    assert aggregated(rows, TEXT, TIME, add=False, least=True) == [("a", early), ("b", None)]
    assert aggregated(rows, TEXT, TIME, add=False) == [("a", late), ("b", None)]
    assert aggregated([("a", "x"), ("a", "Y")], TEXT, TEXT, add=False) is None, "the server's collation decides"
    assert aggregated([("a", 1.5), ("a", -0.5)], TEXT, DOUBLE, add=False, least=True) == [("a", -0.5)]
