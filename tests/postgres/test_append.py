"""``Append`` on a real Postgres: what goes in comes out; a refused row stops its partition before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg.types.json import Jsonb

from seekpoint import Append, Bytes, Json, Pipeline, Text
from seekpoint.codecs import CloudEvent, Codec
from seekpoint.errors import ConfigError, PoisonStop
from seekpoint.records import Partition, Record
from seekpoint.testing import raw
from support.sink_tables import TOPIC, VALUES, Order, SinkTables, of_test, orders, stopped_at


@dataclass
class Parcel:
    id: int
    note: str


def of(group: str, value: Codec, sink: Append) -> Pipeline:
    return Pipeline(group, topics=TOPIC, value=value, sinks=[sink])


def test_cloud_events_of_both_modes_become_rows(sink_tables: SinkTables, group: str) -> None:
    sink = sink_tables.append(
        "event text, at timestamptz, id int",
        columns=["event", "at", "id"],
        row=lambda r: (r.value.id, r.value.time, r.value.data.id),
    )
    attributes = {"specversion": "1.0", "source": "/shop", "type": "placed", "time": "2026-03-29T01:00:00Z"}
    binary = [(f"ce_{name}", text.encode()) for name, text in {**attributes, "id": "a"}.items()]
    whole = msgspec.json.encode({**attributes, "id": "b", "data": {"id": 2}})
    structured = [("content-type", b"application/cloudevents+json")]
    records = [
        raw(b'{"id": 1}', topic=TOPIC, headers=binary),
        raw(whole, topic=TOPIC, offset=1, headers=structured),
        raw(b'{"id": 3}', topic=TOPIC, offset=2),
    ]
    pipeline = of(group, CloudEvent(Json(Order)), sink)
    assert "not a CloudEvent" in str(stopped_at(sink_tables.process(pipeline, *records), 0, 2))
    time = datetime(2026, 3, 29, 1, tzinfo=UTC)
    assert sink_tables.rows("event", "at", "id") == [("a", time, 1), ("b", time, 2)]


# -- shapes of rows -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "options"),
    [
        (Json(Order), {}),
        (Json(Order), {"columns": ["note", "id"]}),
        (Json(Parcel), {}),
        (Json(), {"columns": ["id", "note"]}),
        (Json(), {"columns": ["id", "note"], "row": lambda r: (r.value["id"], r.value["note"])}),
        (Json(), {"columns": ["id", "note"], "row": lambda r: [r.value["id"], r.value["note"]]}),
        (Json(), {"row": lambda r: Order(**r.value)}),
        (Json(), {"rows": lambda r: (Parcel(**v) for v in [r.value])}),
    ],
    ids=["struct", "struct-columns", "dataclass", "mapping", "tuple", "list", "row", "rows"],
)
def test_shapes_of_rows(sink_tables: SinkTables, group: str, value: Codec, options: dict[str, Any]) -> None:
    pipeline = of(group, value, sink_tables.append("id int, note text", **options))
    records = orders(b'{"id": 1, "note": "one"}', b'{"id": 2, "note": "two"}')
    assert sink_tables.process(pipeline, *records).records == 2
    assert sink_tables.rows("id", "note") == [(1, "one"), (2, "two")]
    assert sink_tables.positions(pipeline) == {Partition(TOPIC, 0): 2}
    assert sink_tables.process(pipeline, *records).records == 0
    assert sink_tables.rows("id", "note") == [(1, "one"), (2, "two")], "nothing twice"


def test_one_column_needs_no_tuple_of_more(sink_tables: SinkTables, group: str) -> None:
    class Name(msgspec.Struct):
        note: str

    for n, sink in enumerate(
        [
            sink_tables.append("note text", name="t0"),
            sink_tables.append("note text", name="t1", columns=["note"]),
            sink_tables.append("note text", name="t2", columns=["note"], row=lambda r: (r.value.note,)),
            sink_tables.append("note text", name="t3", columns=["note"], row=lambda r: {"note": r.value.note}),
        ]
    ):
        sink_tables.process(of(f"{group}-{n}", Json(Name), sink), *orders(b'{"note": "n"}'))
        assert sink_tables.rows("note", name=f"t{n}") == [("n",)]


def test_row_may_give_none_and_rows_any_number(sink_tables: SinkTables, group: str) -> None:
    def some(r: Record[int, Any]) -> Order | None:
        return Order(r.value) if r.value % 2 else None

    sink_tables.process(
        of(group, Json(int), sink_tables.append("id int, note text", row=some)), *orders(b"1", b"2", b"3")
    )
    assert sink_tables.rows("id") == [(1,), (3,)]

    many = sink_tables.append("id int, note text", name="many", rows=lambda r: [Order(r.value)] * r.value)
    pipeline = of(f"{group}-many", Json(int), many)
    assert sink_tables.process(pipeline, *orders(b"0", b"3", b"1")).records == 3
    assert sink_tables.rows("id", name="many") == [(1,), (3,), (3,), (3,)]
    assert sink_tables.positions(pipeline) == {Partition(TOPIC, 0): 3}, "a record without rows was applied, too (I4)"


def test_a_refused_row_of_many_names_its_own_record(sink_tables: SinkTables, group: str) -> None:
    sink = sink_tables.append("id int CHECK (id <> 7)", columns=["id"], rows=lambda r: [(i,) for i in r.value])
    pipeline = of(group, Json(), sink)
    done = sink_tables.process(pipeline, *orders(b"[1, 2, 3]", b"[]", b"[4, 7, 5]", b"[6]"))
    stopped_at(done, 0, 2)
    assert sink_tables.rows("id") == [(1,), (2,), (3,)]


def test_topics_narrow_a_sink(sink_tables: SinkTables, group: str) -> None:
    a, b = sink_tables.create("id int", "a"), sink_tables.create("id int", "b")
    pipeline = Pipeline(
        group,
        topics={"a": Json(int), "b": Json(int)},
        sinks=[
            Append(a, columns=["id"], row=lambda r: (r.value,), topics="a"),
            Append(b, columns=["id"], row=lambda r: (r.value,), topics=["b"]),
        ],
    )
    sink_tables.process(pipeline, raw(b"1", topic="a"), raw(b"2", topic="b"), raw(b"3", topic="a", offset=1))
    assert (sink_tables.rows("id", name="a"), sink_tables.rows("id", name="b")) == ([(1,), (3,)], [(2,)])
    assert sink_tables.positions(pipeline) == {Partition("a", 0): 2, Partition("b", 0): 1}


def test_structs_of_two_topics_do_not_share_one_sinks_columns_by_chance(sink_tables: SinkTables, group: str) -> None:
    class Longer(msgspec.Struct):
        id: int
        note: str
        reason: str

    sink = sink_tables.append("id int, note text, reason text")
    pipeline = Pipeline(group, topics={"a": Json(Order), "b": Json(Longer)}, sinks=[sink])
    longer = b'{"id": 2, "note": "n", "reason": "must not get lost"}'
    with pytest.raises(ConfigError, match=r"Longer has other fields than Order.*columns="):
        sink_tables.process(pipeline, raw(b'{"id": 1}', topic="a"), raw(longer, topic="b"))
    assert sink_tables.rows("id") == []


# -- names --------------------------------------------------------------------------------------------------

ODD = ['we"ird', "UPPER", "with space", "select", "tüβ", "a,b", "x%s", "t, line 7", "{}", "semi;colon", "back\\slash"]


@pytest.mark.parametrize("name", ODD)
def test_odd_names_of_tables_and_columns(sink_tables: SinkTables, group: str, name: str) -> None:
    path = sink_tables.create(
        f'"{name.replace(chr(34), chr(34) * 2)}" int CHECK ("{name.replace(chr(34), chr(34) * 2)}" > 0)', name
    )
    pipeline = of(group, Json(int), Append(path, columns=[name], row=lambda r: (r.value,)))
    stopped_at(sink_tables.process(pipeline, *orders(b"1", b"2", b"-1", b"3")), 0, 2)
    assert sink_tables.rows(name, name=name) == [(1,), (2,)]


def test_a_table_is_named_with_its_schema_in_one_string(sink_tables: SinkTables, group: str) -> None:
    sink_tables.create("id int")
    pipeline = of(group, Json(int), Append(f"{sink_tables.schema}.t", columns=["id"], row=lambda r: (r.value,)))
    assert pipeline.tables == (f"{sink_tables.schema}.t",)
    sink_tables.process(pipeline, *orders(b"1"))
    assert sink_tables.rows("id") == [(1,)]


# -- columns that the database fills ------------------------------------------------------------------------


def test_defaults_identities_and_generated_columns_are_the_databases(sink_tables: SinkTables, group: str) -> None:
    sink = sink_tables.append(
        "n bigint GENERATED ALWAYS AS IDENTITY, id int, kind text DEFAULT 'new', "
        "twice int GENERATED ALWAYS AS (id * 2) STORED",
        columns=["id"],
        row=lambda r: (r.value,),
    )
    sink_tables.process(of(group, Json(int), sink), *orders(b"5", b"6"))
    assert sink_tables.rows("n", "id", "kind", "twice") == [(1, 5, "new", 10), (2, 6, "new", 12)]


def test_null_is_null_and_missing_is_poison(sink_tables: SinkTables, group: str) -> None:
    sink = sink_tables.append("id int, note text DEFAULT 'default'", columns=["id", "note"])
    pipeline = of(group, Json(), sink)
    done = sink_tables.process(
        pipeline, *orders(b'{"id": 1, "note": null, "more": 1}', b'{"id": 2}', b'{"id": 3, "note": ""}')
    )
    assert "the row has no 'note'; it has id" in str(stopped_at(done, 0, 1))
    assert sink_tables.rows("id", "note") == [(1, None)]


@pytest.mark.parametrize("value", [b"[1, 2, 3]", b"[1]", b'"text"', b"5", b"null"])
def test_rows_of_another_shape_are_poison(sink_tables: SinkTables, group: str, value: bytes) -> None:
    pipeline = of(group, Json(), sink_tables.append("id int, note text", columns=["id", "note"]))
    done = sink_tables.process(pipeline, *orders(b'[1, "one"]', value, b'[3, "three"]'))
    stopped_at(done, 0, 1)
    assert sink_tables.rows("id", "note") == [(1, "one")]


# -- values -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "value", "stored"), VALUES)
def test_values_come_out_as_they_went_in(
    sink_tables: SinkTables, group: str, kind: str, value: Any, stored: Any
) -> None:
    sink = sink_tables.append(
        f"n int, v {of_test(sink_tables, kind)}", columns=["n", "v"], row=lambda r: (r.offset, value)
    )
    done = sink_tables.process(of(group, Bytes(), sink), *orders(b"", b""))
    assert not done.stopped, str(done.stopped)
    # Compared by the server: it casts the parameter as psycopg sends it in an ordinary statement.
    with sink_tables.engine.connect() as tx:
        driver: Any = tx.connection.driver_connection
        cursor = driver.cursor()
        cursor.execute("SET LOCAL TIME ZONE 'UTC'")
        cursor.execute(f'SELECT v FROM "{sink_tables.schema}".t ORDER BY n')
        (first,), (second,) = cursor.fetchall()
    wanted = value if stored is None else stored
    if kind == "interval":
        wanted = first
        assert str(first) == "1 day, 2:00:00"
    assert repr(first) == repr(second)
    assert str(first) == str(wanted)
    assert type(first) is type(wanted) or kind == "inet"


def test_provenance_makes_the_audit_a_query(sink_tables: SinkTables, group: str) -> None:
    sink = sink_tables.append("id int, note text, t text, p int, o bigint", provenance=("t", "p", "o"))
    pipeline = of(group, Json(Order), sink)
    sink_tables.process(pipeline, *orders(b'{"id": 1}', b'{"id": 2}'), *orders(b'{"id": 3}', partition=2, start=7))
    assert sink_tables.rows("id", "t", "p", "o") == [(1, TOPIC, 0, 0), (2, TOPIC, 0, 1), (3, TOPIC, 2, 7)]

    some = sink_tables.append(
        "v int, o bigint", name="some", columns=["v"], provenance={"offset": "o"}, rows=lambda r: [(1,), (2,)]
    )
    sink_tables.process(of(f"{group}-some", Bytes(), some), *orders(b"", start=5))
    assert sink_tables.rows("v", "o", name="some") == [(1, 5), (2, 5)]


def test_provenance_that_the_row_has_itself_is_refused(sink_tables: SinkTables, group: str) -> None:
    sink = sink_tables.append("id int, note text", provenance={"offset": "note"})
    with pytest.raises(ConfigError, match="note would be written twice"):
        sink_tables.process(of(group, Json(Order), sink), *orders(b'{"id": 1}'))


@pytest.mark.parametrize(("text", "shown"), [("300000-01-01", "300000-01-01"), ("0044-03-15 BC", "0044-03-15 BC")])
def test_dates_beyond_pythons_own_go_as_text(sink_tables: SinkTables, group: str, text: str, shown: str) -> None:
    sink = sink_tables.append("v date", columns=["v"], row=lambda r: (r.value,))
    done = sink_tables.process(of(group, Text(), sink), *orders(text.encode()))
    assert not done.stopped
    assert sink_tables.value("v::text") == shown


def test_a_value_of_ten_megabytes(sink_tables: SinkTables, group: str) -> None:
    sink = sink_tables.append("n int, v text", columns=["n", "v"], row=lambda r: (r.offset, r.value))
    big = "\\N\t\n" * (10 * 1024 * 1024 // 4)
    done = sink_tables.process(of(group, Text(), sink), *orders(b"small", big.encode(), b"small"))
    assert done.records == 3
    assert sink_tables.rows("n", "v")[1] == (1, big)


@pytest.mark.parametrize(("kind", "depth"), [("text", 1000), ("jsonb", 1000)])
def test_json_nested_a_thousand_deep(sink_tables: SinkTables, group: str, kind: str, depth: int) -> None:
    deep = b"[" * depth + b"]" * depth
    sink = sink_tables.append(f"n int, v {kind}", columns=["n", "v"], row=lambda r: (r.offset, r.value))
    done = sink_tables.process(of(group, Text(), sink), *orders(b"1", deep, b"2"))
    assert not done.stopped
    assert sink_tables.rows("n") == [(0,), (1,), (2,)]


# -- records that the codec, the client or the server refuses -----------------------------------------------


class Strange:
    """A type that psycopg has never seen."""


def circle() -> dict[str, Any]:
    around: dict[str, Any] = {}
    around["around"] = around
    return around


BAD: dict[str, tuple[str, Callable[[], Any], str]] = {
    # column, the bad value (made late: some cannot be shown as a test's name), what the stop says
    "a varchar that is too long": ("varchar(3)", lambda: "long", "value too long for type character varying(3)"),
    "an integer that overflows": ("int", lambda: 2**31, "out of range for type integer"),
    "a bigint that overflows": ("bigint", lambda: 2**63, "out of range for type bigint"),
    "an integer of 5,000 digits": ("numeric", lambda: 10**5000, "column 'v': ValueError: Exceeds the limit"),
    "NOT NULL": ("text NOT NULL", lambda: None, 'null value in column "v"'),
    "CHECK": ("int CHECK (v < 100)", lambda: 100, 'violates check constraint "t_v_check"'),
    "UNIQUE": ("text UNIQUE", lambda: "0", 'duplicate key value violates unique constraint "t_v_key"'),
    "UNIQUE DEFERRABLE": ("text UNIQUE DEFERRABLE", lambda: "0", "duplicate key value violates"),
    "UNIQUE DEFERRED": ("text UNIQUE DEFERRABLE INITIALLY DEFERRED", lambda: "0", "duplicate key value violates"),
    "FOREIGN KEY": ("text REFERENCES parent", lambda: "none", 'is not present in table "parent"'),
    "FOREIGN KEY DEFERRED": ("text REFERENCES parent DEFERRABLE INITIALLY DEFERRED", lambda: "none", "is not present"),
    "EXCLUDE": ("text, EXCLUDE USING btree (v WITH =)", lambda: "0", "conflicting key value violates exclusion"),
    "NUL in text": ("text", lambda: "a\0b", "NUL"),
    "NUL in jsonb": ("jsonb", lambda: {"a": "\0"}, "unsupported Unicode escape sequence"),
    "NaN in jsonb": ("jsonb", lambda: {"a": float("nan")}, "JSON has no NaN and no infinity"),
    "a lone surrogate": ("text", lambda: "\ud800", "column 'v': UnicodeEncodeError"),
    "JSON that contains itself": ("jsonb", circle, "RecursionError"),
    "JSON too deep for the server": ("jsonb", lambda: Jsonb("[" * 50_000, dumps=str), "stack depth limit exceeded"),
    "text that is no number": ("int", lambda: "seven", 'invalid input syntax for type integer: "seven"'),
    "an enum's unknown value": ("mood", lambda: "bad", "invalid input value for enum"),
    "year 0": ("timestamptz", lambda: "0000-01-01T00:00:00Z", "date/time field value out of range"),
    "year 300000": ("timestamptz", lambda: "300000-01-01T00:00:00Z", "out of range"),
    "a value of no known type": ("text", Strange, "cannot adapt type 'Strange'"),
    "a Struct in a text": ("text", lambda: Order(id=1), "make the column jsonb, or convert the value in row="),
    "an unknown type in jsonb": ("jsonb", lambda: {"a": Strange()}, "TypeError: Strange cannot be written as JSON"),
    "an unset field": ("text", lambda: msgspec.UNSET, "cannot adapt type 'UnsetType'"),
    "text too long for its index": ("text UNIQUE", lambda: "".join(map(chr, range(256, 9000))), "index row"),
    "a trigger's refusal": ("int", lambda: -1, "the trigger refuses -1"),
}  # fmt: skip


WORSE = {  # partition and offset of the bad records, of 3 partitions with 4 each
    "first": {(0, 0)},
    "between": {(0, 2)},
    "last": {(0, 3)},
    "several partitions": {(0, 2), (0, 3), (2, 1)},
    "all": {(p, o) for p in range(3) for o in range(4)},
}


@pytest.mark.parametrize("where", WORSE)
@pytest.mark.parametrize("bad", BAD)
def test_a_bad_row_stops_its_partition_in_front_of_it_and_no_other(
    sink_tables: SinkTables, group: str, bad: str, where: str
) -> None:
    column, make, message = BAD[bad]
    sink_tables.sql(
        "CREATE TYPE mood AS ENUM ('0', '1', '2', '3', '4', '5', '6', '7', '8', '9', '10', '11');"
        "CREATE TABLE parent (id text PRIMARY KEY); INSERT INTO parent SELECT generate_series(0, 20)::text;"
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.v < 0 THEN "
        "RAISE EXCEPTION 'the trigger refuses %', NEW.v USING ERRCODE = '23514'; END IF; RETURN NEW; END $$;"
    )
    qualified = column.replace("mood", f'"{sink_tables.schema}".mood').replace(
        "parent", f'"{sink_tables.schema}".parent'
    )
    table = sink_tables.create(f"p int, o int, v {qualified}")
    if "trigger" in bad:
        sink_tables.sql("CREATE TRIGGER refusing AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION refuse()")
    # The first record's "0" is what a duplicate repeats.
    twin = {(1, 0)} if bad.startswith(("UNIQUE", "EXCLUDE")) else set()
    check_stops(sink_tables, group, table, column=column, make=make, message=message, worse=WORSE[where] - twin)


def check_stops(
    sink_tables: SinkTables,
    group: str,
    table: tuple[str, str],
    *,
    column: str,
    make: Callable[[], Any],
    message: str,
    worse: set[tuple[int, int]],
) -> None:
    """Run it with the bad records, look at everything, and once more when they are corrected."""

    def good(r: Record[str, Any]) -> Any:
        if "timestamptz" in column:
            return f"20{int(r.value):02}-01-01"
        return {"n": r.value} if "jsonb" in column else r.value

    def row(r: Record[str, Any]) -> tuple[Any, ...]:
        return (r.partition, r.offset, make() if (r.partition, r.offset) in worse else good(r))

    # Partitions interleave, as they do in a batch; partition 1 comes first.
    ordered = [(p, o) for o in range(4) for p in (1, 0, 2)]
    records = [raw(str(n).encode(), topic=TOPIC, partition=p, offset=o) for n, (p, o) in enumerate(ordered)]
    columns = ["p", "o", "v"]
    pipeline = of(group, Text(), Append(table, columns=columns, row=row))
    done = sink_tables.process(pipeline, *records)

    ends = {p: min([o for q, o in worse if q == p], default=4) for p in range(3)}
    assert sink_tables.rows("p", "o") == [(p, o) for p in range(3) for o in range(ends[p])]
    assert {p.number: position for p, position in sink_tables.positions(pipeline).items()} == ends, (
        "the position equals the rows"
    )
    assert {p.number for p in done.stopped} == {p for p, end in ends.items() if end < 4}
    assert done.records == sum(ends.values())
    for p in (p for p, end in ends.items() if end < 4):
        stop = stopped_at(done, p, ends[p])
        assert isinstance(stop, PoisonStop)
        assert message in str(stop)
        assert "DEFERRED" in column or "(in a row for " in str(stop)  # at COMMIT it is no sink's any more
        assert len(str(stop)) < 2000

    fixed = of(group, Text(), Append(table, columns=columns, row=lambda r: (r.partition, r.offset, good(r))))
    done = sink_tables.process(fixed, *records)
    assert not done.stopped
    assert sink_tables.rows("p", "o") == sorted(ordered), "everything once"
    assert set(sink_tables.positions(fixed).values()) == {4}


@pytest.mark.parametrize(
    ("value", "codec", "message"),
    [
        (b"{", Json(Order), "DecodeError"),
        (b'{"id": "x"}', Json(Order), "ValidationError: Expected `int`, got `str` - at `$.id`"),
        (b"\xff\xfe", Text(), "UnicodeDecodeError"),
        (None, Json(Order), "a null value, and the codec does not declare tombstones=True"),
    ],
)
def test_a_record_that_cannot_be_decoded_stops_its_partition(
    sink_tables: SinkTables, group: str, value: bytes | None, codec: Codec, message: str
) -> None:
    good = b'{"id": 1}' if isinstance(codec, Json) else b"1"
    sink = sink_tables.append("o int", columns=["o"], row=lambda r: (r.offset,))
    pipeline = of(group, codec, sink)
    done = sink_tables.process(pipeline, *orders(good, good, value, good), *orders(good, partition=1))
    assert message in str(stopped_at(done, 0, 2))
    assert sink_tables.rows("o") == [(0,), (0,), (1,)]
    assert sink_tables.positions(pipeline) == {Partition(TOPIC, 0): 2, Partition(TOPIC, 1): 1}


@pytest.mark.parametrize("refused_later", [False, True])
def test_a_key_that_cannot_be_decoded_stops_its_partition_too(
    sink_tables: SinkTables, group: str, refused_later: bool
) -> None:
    """Even if the row is only the value, or the server refuses a later row of the same COPY."""
    pipeline = Pipeline(
        group, topics=TOPIC, value=Json(Order), key=Text(), sinks=[sink_tables.append("id int, note text")]
    )
    records = [
        raw(f'{{"id": {2**40 if refused_later and n == 3 else n}}}'.encode(), topic=TOPIC, offset=n, key=key)
        for n, key in enumerate([b"k", b"\xff", b"k", b"k"])
    ]
    assert "UnicodeDecodeError" in str(stopped_at(sink_tables.process(pipeline, *records), 0, 1))
    assert sink_tables.rows("id") == [(0,)]


def test_a_tombstone_is_no_row_unless_row_makes_one_of_it(sink_tables: SinkTables, group: str) -> None:
    pipeline = of(group, Json(Order, tombstones=True), sink_tables.append("id int, note text"))
    done = sink_tables.process(pipeline, *orders(b'{"id": 1}', None, b'{"id": 2}'))
    assert "a null value has no fields to write: give row=, which returns its row" in str(stopped_at(done, 0, 1))
    fixed = of(group, Json(Order, tombstones=True), Append((sink_tables.schema, "t"), row=lambda r: r.value))
    assert sink_tables.process(fixed, *orders(b'{"id": 1}', None, b'{"id": 2}')).records == 2
    assert sink_tables.rows("id") == [(1,), (2,)]


def test_a_stop_does_not_quote_megabytes(sink_tables: SinkTables, group: str) -> None:
    sink = sink_tables.append("v int", columns=["v"], row=lambda r: (r.value,))
    stop = stopped_at(sink_tables.process(of(group, Text(), sink), *orders(b"x" * 10_000_000)), 0, 0)
    assert len(str(stop)) < 2000
    assert "characters)" in str(stop)


@pytest.mark.long
def test_a_bad_row_far_from_the_start_of_a_large_batch(sink_tables: SinkTables, group: str) -> None:
    """Beyond the server's own buffers, with and without a line to go by."""
    sink_tables.sql("CREATE TABLE parent (id int PRIMARY KEY); INSERT INTO parent SELECT generate_series(0, 10000)")
    for n, constraint in enumerate(("UNIQUE", f'REFERENCES "{sink_tables.schema}".parent')):
        sink = sink_tables.append(f"v int {constraint}", name=f"t{n}", columns=["v"], row=lambda r: (r.value,))
        values = [str(v).encode() for v in range(9000)]
        values[7777] = b"5" if n == 0 else b"99999"
        done = sink_tables.process(of(f"{group}-{n}", Json(int), sink), *orders(*values))
        stopped_at(done, 0, 7777)
        assert done.records == 7777
        assert len(sink_tables.rows("v", name=f"t{n}")) == 7777


# -- mistakes that are no record's fault --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda s: Append((s, "none"), columns=["id"]), psycopg.errors.UndefinedTable, "none"),
        (lambda s: Append((s, "t"), columns=["id", "nope"]), psycopg.errors.UndefinedColumn, "nope"),
        (lambda s: Append((s, "t")), ConfigError, "rows of type dict do not name their columns"),
        (lambda s: Append((s, "t"), row=lambda r: Parcel(1, "n"), columns=["id", "x"]), ConfigError, "no field x"),
        (lambda s: Append((s, "t"), columns=["id", "twice"]), psycopg.errors.InvalidColumnReference, "generated"),
    ],
)
def test_a_mistake_in_the_program_ends_the_work_and_writes_nothing(
    sink_tables: SinkTables, group: str, make: Callable[[str], Append], error: type[Exception], message: str
) -> None:
    sink_tables.create("id int, twice int GENERATED ALWAYS AS (id * 2) STORED")
    pipeline = of(group, Json(), make(sink_tables.schema))
    with pytest.raises(error, match=message) as caught:
        sink_tables.process(pipeline, *orders(*[b'{"id": 1, "nope": 1, "twice": 2}'] * 3))
    assert f"{TOPIC}/0 [0, 3)" in caught.value.__notes__[-1]
    assert sink_tables.rows("id") == []
    assert sink_tables.positions(pipeline) == {Partition(TOPIC, 0): 0}


def test_no_right_on_the_table(sink_tables: SinkTables, group: str) -> None:
    sink_tables.create("id int")
    sink_tables.sql("CREATE VIEW frozen AS SELECT 1 AS id")
    pipeline = of(group, Json(int), Append((sink_tables.schema, "frozen"), columns=["id"], row=lambda r: (r.value,)))
    with pytest.raises(psycopg.errors.WrongObjectType, match="cannot copy to view") as caught:
        sink_tables.process(pipeline, *orders(b"1", b"2"))
    assert "nothing of this batch was written" in caught.value.__notes__[-1]


def test_row_that_returns_other_rows_is_refused(sink_tables: SinkTables, group: str) -> None:
    calls: list[int] = []

    def row(r: Record[int, Any]) -> tuple[int] | None:
        calls.append(r.value)
        return (-1,) if len(calls) == 1 else None

    sink = sink_tables.append("id int CHECK (id > 0)", columns=["id"], row=row)
    pipeline = Pipeline(group, topics=TOPIC, value=Json(int), sinks=[sink])
    with pytest.raises(ConfigError, match="it must depend on its record only"):
        sink_tables.process(pipeline, *orders(b"1"))
