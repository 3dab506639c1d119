"""``Upsert`` without a database: what it refuses to be, how rows are deduped by key, which strategy they take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seekpoint.errors import ConfigError, Poison
from seekpoint.pipeline.pattern import Pattern
from seekpoint.pipeline.sink import Row, Sink
from seekpoint.sinks import Append, Upsert
from seekpoint.sinks.dedupe import Column, Deleted, Offsets, Target, dedupe
from seekpoint.sinks.upsert.strategy import LONGEST, SMALL, WriteStrategies, WriteStrategy, Wrote
from seekpoint.testing import record
from support.sink_tables import Order

INT, TEXT = Column("integer", "int", -1), Column("text", "text", -1)
TIME = Column("timestamptz", "timestamptz", -1)


@dataclass
class OrderKey:
    id: int


# -- declarations -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": "id"}, r"key=\['id'\]"),
        ({"key": []}, "each once"),
        ({"key": [1]}, "each once"),
        ({"key": ["id", "id"]}, "each once"),
        ({"key": ["id"], "tombstone": "ignore"}, "'delete' or None"),
        ({"key": ["id"], "order_by": "at", "offset_column": "o"}, "not both"),
        ({"key": ["id"], "tombstone": None, "tombstone_key": lambda r: r.key}, "tombstone='delete'"),
        ({"key": ["id"], "on_conflict": "ignore"}, "'update' or 'keep'"),
        ({"key": ["id"], "on_conflict": ["keep"]}, r"'update' or 'keep', got \['keep'\]"),
        ({"key": ["id"], "tombstone": ["delete"]}, r"'delete' or None, got \['delete'\]"),
        ({"key": ["id"], "truncate": ["delete"]}, "it takes 'delete'"),
        ({"key": ["id"], "topics": Pattern("x")}, r"names some topics .*, and Pattern\('x'\) is none"),
        ({"key": ["id"], "on_conflict": "keep", "order_by": "at"}, "keeps the first row"),
        ({"key": ["id"], "on_conflict": "keep", "offset_column": "o"}, "keeps the first row"),
        ({"key": ["id"], "on_conflict": "keep", "compacted": True, "row": lambda r: r}, "keeps the first row"),
        ({"key": ["id"], "on_conflict": "keep", "tombstone_key": lambda r: r.key}, "deletes no row"),
        ({"key": ["id"], "columns": ["note"]}, "the rows have no id; their columns are note: key= and order_by= name"),
        ({"key": ["id"], "columns": ["id"], "order_by": "at"}, "the rows have no at"),
        ({"key": ["id"], "columns": ["id", "o"], "offset_column": "o"}, "o would be written twice"),
        ({"key": ["id"], "offset_column": "o", "provenance": {"offset": "p"}}, "the offset into 'p', offset_column"),
        ({"key": ["id"], "provenance": {"offsett": "o"}}, "there is no 'offsett'"),
        ({"key": ["id"], "provenance": {}}, "nothing is named"),
        ({"key": ["id"], "provenance": ("t", "p")}, "in this order"),
        ({"key": ["id"], "provenance": "offset"}, "in this order"),
        ({"key": ["id"], "provenance": ("t", "t", "o")}, "names one column twice"),
    ],
)
def test_a_declaration_that_contradicts_itself_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Upsert("t", **options)


def test_it_is_a_sink_that_can_make_rows_of_values_and_says_whether_it_is_guarded() -> None:
    sink = Upsert("s.t", key=["id"])
    assert isinstance(sink, Sink)
    assert (sink.tables, repr(sink), sink.guarded) == (("s.t",), "Upsert('s.t')", False)
    assert Upsert("t", key=["id"], order_by="at").guarded
    assert Upsert("t", key=["id"], offset_column="o").guarded


def test_the_key_of_a_struct_is_checked_at_the_first_row() -> None:
    with pytest.raises(ConfigError, match="the rows have no nope; their columns are id, note"):
        Upsert("t", key=["nope"]).writer().chunk_rows([Order(1)], None, [])


# -- rows ---------------------------------------------------------------------------------------------------


def test_provenance_comes_after_the_rows_columns_in_both_sinks() -> None:
    built = record(Order(1, "n"), topic="t", partition=3, offset=9)
    for sink in (Append("t", provenance=("t", "p", "o")), Upsert("t", key=["id"], provenance=("t", "p", "o"))):
        writer: Any = sink.writer()
        assert list(writer.rows(built)) == [(1, "n", "t", 3, 9)]
        assert writer.written == ("id", "note", "t", "p", "o")
        assert writer.chunk_rows([built.value], None, [built]) == [(1, "n", "t", 3, 9)]
        assert sink.written is None
    alone = Append("t", provenance={"offset": "o"})
    assert list(alone.writer().rows(built)) == [(1, "n", 9)]


@pytest.mark.parametrize("rows", [Order(1), OrderKey(1), {"id": 1}])
@pytest.mark.parametrize("sink", [Append, Upsert])
def test_rows_that_makes_one_row_instead_of_a_list_is_the_programs_mistake(sink: Any, rows: Any) -> None:
    options = {"key": ["id"]} if sink is Upsert else {}
    with pytest.raises(ConfigError, match=rf"rows= must return a list of rows, and returned one {type(rows).__name__}"):
        list(sink("t", columns=["id"], rows=lambda r: rows, **options).writer().rows(record(1)))


@pytest.mark.parametrize("value", [{"id": None, "at": 1}, {"id": 1, "at": None}])
def test_a_null_in_key_or_order_is_poison(value: dict[str, Any]) -> None:
    sink = Upsert("t", key=["id"], columns=["id", "at"], order_by="at")
    writer = sink.writer()
    assert writer.chunk_rows([{"id": 1, "at": 1}, value], None, []) is None, "one by one: the error names the record"
    with pytest.raises(Poison, match="is null: the columns of key= and order_by= need a value"):
        list(sink.writer().rows(record(value)))


@pytest.mark.parametrize(
    ("key", "more"),
    [
        ({"id": 7, "x": 1}, {}),
        (Order(7), {}),
        (OrderKey(7), {}),
        (7, {}),
        (b"7", {"tombstone_key": lambda r: int(r.key)}),
        (b"7", {"tombstone_key": lambda r: (int(r.key),)}),
        (b"7", {"tombstone_key": lambda r: {"id": int(r.key)}}),
    ],
    ids=["mapping", "struct", "dataclass", "scalar", "function", "function-tuple", "function-mapping"],
)
def test_where_the_key_of_a_tombstone_comes_from(key: Any, more: dict[str, Any]) -> None:
    sink = Upsert("t", key=["id"], **more)
    (gone,) = sink.writer().rows(record(None, key=key))
    assert type(gone) is Deleted
    assert gone == (7,)


def test_a_tombstone_carries_what_says_whether_it_is_newer() -> None:
    ordered = Upsert("t", key=["id"], order_by="at", tombstone_key=lambda r: (r.key, r.offset * 10))
    assert list(ordered.writer().rows(record(None, key=1, offset=4))) == [(1, 40)]
    counted = Upsert("t", key=["id"], offset_column="o", provenance=("t", "p", "o"))
    assert list(counted.writer().rows(record(None, key=1, offset=4, partition=2, topic="x"))) == [(1, 4, 2, "x")]
    assert counted.target.deletes == ("id", "o", "p", "t")


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        (b"7", ConfigError, r"bytes.*key=Text\(\)"),
        (None, Poison, "a tombstone without a key"),
        ({"no": 1}, Poison, "has no id"),
        ({"id": None}, Poison, "'id' is null"),
        ((1, 2), Poison, "has 2 values for id"),
    ],
)
def test_a_tombstone_that_names_no_row(key: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        list(Upsert("t", key=["id"]).writer().rows(record(None, key=key)))


def test_one_value_is_not_taken_for_two_columns() -> None:
    with pytest.raises(Poison, match="does not name a, b: give tombstone_key="):
        list(Upsert("t", key=["a", "b"]).writer().rows(record(None, key=7)))


def test_the_remedy_for_a_tombstone_among_changes_is_the_connectors() -> None:
    changes = Upsert("t", key=["a", "b"], columns=["a", "b"], changes=True)
    for key in ({"a": 1}, 7):
        with pytest.raises(Poison, match=r"tombstone's key .*: let the connector .*message\.key\.columns"):
            list(changes.writer().rows(record(None, key=key)))


def test_tombstones_go_to_row_where_they_delete_nothing() -> None:
    sink = Upsert("t", key=["id"], tombstone=None, columns=["id", "gone"], row=lambda r: (r.key, r.value is None))
    assert list(sink.writer().rows(record(None, key=1))) == [(1, True)]


# -- dedupe by key ------------------------------------------------------------------------------------------


def target(*, order_by: str | None = None, offset: str | None = None, key: Sequence[str] = ("k",)) -> Target:
    return Target("Upsert('t')", ("t",), ("k", "v", "w"), tuple(key), order_by, offset)


KNOWN = {"k": INT, "v": INT, "w": INT}
PAIRS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9), st.integers(0, 9), st.booleans()), min_size=1)


@given(PAIRS)
def test_the_last_row_of_each_key_wins_sorted_by_key(given_rows: list[tuple[int, int, int, bool]]) -> None:
    rows: list[Row] = [Deleted((k,)) if gone else (k, v, w) for k, v, w, gone in given_rows]
    model = {row[0]: (line, row) for line, row in enumerate(rows, 1)}
    done = dedupe(target(), rows, KNOWN)
    assert done.is_deduped
    if any(type(row) is not Deleted for row in rows):
        kept = sorted((k, line, row) for k, (line, row) in model.items() if type(row) is not Deleted)
        assert list(zip(done.lines, done.rows, strict=True)) == [(line, row) for _, line, row in kept]
        gone = sorted((k, line) for k, (line, row) in model.items() if type(row) is Deleted)
        assert [row[0] for row in done.deletes] == [k for k, _ in gone]
        assert list(done.delete_lines) == [line for _, line in gone]
    else:
        assert list(done.deletes) == rows


@given(PAIRS)
def test_the_highest_of_order_by_wins_and_of_equals_the_last(given_rows: list[tuple[int, int, int, bool]]) -> None:
    rows: list[Row] = [Deleted((k, w)) if gone else (k, v, w) for k, v, w, gone in given_rows]
    if all(type(row) is Deleted for row in rows):
        return
    done = dedupe(target(order_by="w"), rows, KNOWN)
    model: dict[int, tuple[int, int]] = {}
    for line, (k, _, w, _) in enumerate(given_rows, 1):
        model[k] = max(model.get(k, (w, 0)), (w, line))
    written = [*zip(done.lines, done.rows, strict=True), *zip(done.delete_lines, done.deletes, strict=True)]
    assert {row[0]: line for line, row in written} == {k: line for k, (_, line) in model.items()}
    assert all(rows[line - 1] is row for line, row in written)


def test_offsets_that_fall_say_that_a_key_lives_in_two_partitions() -> None:
    rows = [(1, 0, 7), (2, 0, 3), (1, 0, 5)]
    with pytest.raises(ConfigError, match=r"key 1 comes at offset 5 after offset 7.*give order_by="):
        dedupe(target(offset="w"), rows, KNOWN)
    done = dedupe(target(offset="w"), [(1, 0, 7), (2, 0, 3), (1, 1, 7)], KNOWN)
    assert done.rows == [(1, 1, 7), (2, 0, 3)], "rows= makes several of one record"


def test_offsets_that_fall_are_seen_across_chunks() -> None:
    look = Offsets(target(offset="w"), KNOWN).look
    look([(1, 0, 7), (2, 0, 3)])
    look([(3, 0, 1), Deleted((2, 3))])
    with pytest.raises(ConfigError, match=r"key 2 comes at offset 2 after offset 3"):
        look([(4, 0, 9), (2, 0, 2)])
    with pytest.raises(ConfigError, match=r"key 5 comes at offset 8 after offset 9"):
        look([(5, 0, 9), (5, 0, 8)])


@pytest.mark.parametrize(
    ("column", "keys"),
    [
        (INT, (1, True)),
        (TEXT, ("1", 1)),
        (TEXT, (Decimal("1.0"), Decimal(1))),
        (Column("integer[]", "other", -1), ([1], [1])),
        (Column("double precision", "other", -1), (0.0, -0.0)),
        (TIME, tuple(datetime(2026, 10, 25, 2, 30, fold=f, tzinfo=ZoneInfo("Europe/Berlin")) for f in (1, 0))),
    ],
)
def test_of_keys_that_are_not_surely_the_same_no_offset_is_compared(column: Column, keys: tuple[Any, Any]) -> None:
    look = Offsets(target(offset="w"), {**KNOWN, "k": column}).look
    look([(keys[0], 0, 7)])
    look([(keys[1], 0, 3)])


ZONE = timezone(timedelta(hours=2))


@pytest.mark.parametrize(
    ("column", "values", "exact"),
    [
        (INT, [1, 2], True),
        (INT, [1, True], False),
        (INT, ["1", "01"], False),
        (TEXT, ["a", "A"], True),
        (TEXT, ["1", 1], False),
        (Column("citext", "other", -1), ["a", "A"], False),
        (Column("character varying", "text", 3 + 4), ["abc", "ab"], True),
        (Column("character varying", "text", 3 + 4), ["abc", "abc "], False),
        (Column("character varying", "text", 3 + 4), ["ab", "ab "], False),
        (Column("uuid", "uuid", -1), [UUID(int=1), UUID(int=2)], True),
        (Column("uuid", "uuid", -1), [str(UUID(int=1)), str(UUID(int=2**127))], True),
        (Column("uuid", "uuid", -1), [str(UUID(int=1)), str(UUID(int=2**127 - 1)).upper()], False),
        (Column("numeric", "numeric", -1), [Decimal("1.0"), Decimal(1)], True),
        (Column("numeric", "numeric", -1), [Decimal("NaN"), Decimal("NaN")], False),
        (Column("numeric", "numeric", 655366), [Decimal("1.001"), Decimal("1.002")], False),
        (Column("date", "date", -1), [date(2026, 1, 1), date(2026, 1, 2)], True),
        (Column("date", "date", -1), [date(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC)], False),
        (TIME, [datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 2, tzinfo=ZONE)], True),
        (TIME, [datetime(2026, 1, 1), datetime(2026, 1, 2)], False),
        (TIME, [datetime(2026, 10, 25, 2, 30, fold=f, tzinfo=ZoneInfo("Europe/Berlin")) for f in (0, 1)], False),
        (TIME, [datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=ZoneInfo("UTC"))], False),
        (TIME._replace(typmod=0), [datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)], False),
        (Column("integer[]", "other", -1), [[1], [2]], False),
        (Column("double precision", "other", -1), [0.0, -0.0], False),
    ],
)  # fmt: skip
def test_keys_are_deduped_where_python_and_the_server_agree(column: Column, values: list[Any], exact: bool) -> None:
    rows = [(value, 0, 0) for value in values]
    assert dedupe(target(), rows, {**KNOWN, "k": column}).is_deduped is exact
    assert dedupe(target(), rows[:1], {**KNOWN, "k": column}).is_deduped, "one row is one row"


def test_text_is_ordered_by_the_server() -> None:
    rows = [(1, 0, "a"), (1, 0, "B")]
    assert not dedupe(target(order_by="w"), rows, {**KNOWN, "w": TEXT}).is_deduped


# -- write strategies ---------------------------------------------------------------------------------------


def wrote(strategy: WriteStrategy) -> Wrote:
    return Wrote(strategy=strategy, rows=1, upserts=1, deletes=0)


def test_few_rows_go_in_one_statement_and_many_by_copy_until_a_key_is_there() -> None:
    strategies = WriteStrategies()
    assert strategies.choose(SMALL - 1, deduped=True, direct=True) is WriteStrategy.UNNEST
    assert strategies.choose(SMALL, deduped=True, direct=True) is WriteStrategy.COPY
    assert strategies.choose(SMALL, deduped=True, direct=False) is WriteStrategy.TEMP_TABLE
    assert strategies.choose(SMALL, deduped=False, direct=True) is WriteStrategy.TEMP_TABLE
    assert strategies.choose(2, deduped=False, direct=True) is WriteStrategy.TEMP_TABLE


def test_every_conflict_doubles_the_wait_for_the_next_try_and_success_halves_it() -> None:
    strategies, waits = WriteStrategies(), []
    for _ in range(12):
        assert strategies.choose(SMALL, deduped=True, direct=True) is WriteStrategy.COPY
        strategies.met_a_conflict()
        waits.append(0)
        while strategies.choose(SMALL, deduped=True, direct=True) is WriteStrategy.TEMP_TABLE:
            waits[-1] += 1
        strategies._wait = 0
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, LONGEST, LONGEST, LONGEST]
    assert strategies.conflicts == 12
    for _ in range(5):
        strategies.wrote(wrote(WriteStrategy.COPY))
    strategies.met_a_conflict()
    assert strategies._wait == LONGEST // 2**5 * 2


def test_after_a_refusal_without_a_line_the_next_rows_are_staged() -> None:
    strategies = WriteStrategies()
    strategies.was_refused()
    assert strategies.choose(1, deduped=True, direct=True) is WriteStrategy.TEMP_TABLE
    strategies.wrote(wrote(WriteStrategy.TEMP_TABLE))
    assert strategies.choose(1, deduped=True, direct=True) is WriteStrategy.UNNEST
    assert strategies.used == {WriteStrategy.TEMP_TABLE: 1}
    assert strategies.current is WriteStrategy.TEMP_TABLE
