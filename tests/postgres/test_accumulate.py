"""``Accumulate`` on a real Postgres: sums, lowest and highest of each key, exactly once, by every way of writing."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, text

from seekpoint import Json, Pipeline
from seekpoint.admin import Admin
from seekpoint.cli.explain import describe
from seekpoint.errors import ConfigError
from seekpoint.pipeline.sink import RowRefused
from seekpoint.records import Partition, Record, State
from seekpoint.sinks import Accumulate
from seekpoint.sinks.accumulate import open_accumulate
from seekpoint.sinks.upsert import strategy as strategies
from seekpoint.sinks.upsert.strategy import WriteStrategy
from seekpoint.testing import raw, record
from support.ledger_worker import backend, wait_until_blocked
from support.sink_tables import TOPIC, SinkTables, orders, stopped_at, writer_of
from support.waiting import SECONDS

BODY = "k text NOT NULL PRIMARY KEY, n bigint NOT NULL, amount numeric"
MANY = 2 * strategies.SMALL


class Sale(msgspec.Struct):
    k: str
    n: float


@pytest.fixture(params=["one statement", "staged", "aggregated by the server"])
def strategy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """However few or many the rows: aggregated in one statement, aggregated and staged, or staged as they are."""
    wanted: str = request.param
    monkeypatch.setattr(strategies, "SMALL", 10**9 if wanted == "one statement" else 0)
    if wanted == "aggregated by the server":
        monkeypatch.setattr(open_accumulate, "aggregate", lambda *_: None)
    return wanted


def sums(sink_tables: SinkTables, body: str = BODY, /, *, name: str = "t", **options: Any) -> Accumulate:
    return Accumulate(sink_tables.create(body, name), **{"key": ["k"], "add": ["n", "amount"], **options})


def part(sink: Accumulate, tx: Connection, *values: Any) -> None:
    """Write records of these values in this transaction."""
    with writer_of(sink).open(tx) as writer:
        for value in values:
            writer.write(list(writer_of(sink).rows(value if isinstance(value, Record) else record(value))))


def write(sink_tables: SinkTables, sink: Accumulate, *values: Any) -> WriteStrategy:
    """One transaction with these values."""
    with sink_tables.engine.begin() as tx:
        part(sink, tx, *values)
    used: WriteStrategy = writer_of(sink).strategies.last.strategy
    return used


def kv(k: Any, n: Any, amount: Any = None) -> dict[str, Any]:
    return {"k": k, "n": n, "amount": amount}


# -- sums ---------------------------------------------------------------------------------------------------


def test_rows_are_added_to_their_keys(sink_tables: SinkTables, strategy: str) -> None:
    sink = sums(sink_tables)
    used = write(sink_tables, sink, kv("b", 1, Decimal("0.10")), kv("a", 5), kv("b", -3, Decimal("0.25")))
    assert used is (WriteStrategy.UNNEST if strategy == "one statement" else WriteStrategy.TEMP_TABLE)
    assert sink_tables.rows("k", "n", "amount") == [("a", 5, 0), ("b", -2, Decimal("0.35"))]
    write(sink_tables, sink, kv("b", 10, Decimal("-1.00")), kv("c", 0), kv("a", None, 7))
    assert sink_tables.rows("k", "n", "amount") == [("a", 5, 7), ("b", 8, Decimal("-0.65")), ("c", 0, 0)]


def test_null_adds_nothing_and_a_stored_null_counts_as_nothing(sink_tables: SinkTables, strategy: str) -> None:
    sink = sums(sink_tables)
    sink_tables.sql("INSERT INTO t VALUES ('a', 1, NULL)")
    write(sink_tables, sink, kv("a", None, None), kv("b", None, None), kv("b", None, None))
    assert sink_tables.rows("k", "n", "amount") == [("a", 1, 0), ("b", 0, 0)]
    write(sink_tables, sink, kv("a", None, Decimal("2.5")))
    assert sink_tables.rows("k", "n", "amount") == [("a", 1, Decimal("2.5")), ("b", 0, 0)]


def test_the_lowest_and_the_highest_value_are_kept(sink_tables: SinkTables, strategy: str) -> None:
    body = "k int PRIMARY KEY, first_at timestamptz, low numeric(6,2), last_at timestamptz, name text"
    sink = sums(sink_tables, body, add=(), least=["first_at", "low"], most=["last_at", "name"])
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)

    def row(hours: int | None, low: str | None, name: str | None) -> dict[str, Any]:
        time = None if hours is None else noon + timedelta(hours=hours)
        return {"k": 1, "first_at": time, "low": low and Decimal(low), "last_at": time, "name": name}

    def stored() -> list[Any]:
        return sink_tables.rows("first_at", "low", "last_at", "name")

    write(sink_tables, sink, row(None, None, None))
    assert stored() == [(None, None, None, None)]
    write(sink_tables, sink, row(1, "2.50", "b"), row(None, None, None), row(3, "2.40", "a"))
    assert stored() == [(noon + timedelta(hours=1), Decimal("2.40"), noon + timedelta(hours=3), "b")]
    write(sink_tables, sink, row(2, "9.99", "ä"), row(0, None, None))
    assert stored() == [(noon, Decimal("2.40"), noon + timedelta(hours=3), "ä")]


@pytest.mark.parametrize(
    ("kind", "values", "total"),
    [
        ("smallint", [32_767, -1, -1], 32_765),
        ("integer", [2**31 - 1, -5], 2**31 - 6),
        ("bigint", [2**63 - 1, -(2**63)], -1),
        ("numeric", [Decimal("1e-20"), 2**80], Decimal("1208925819614629174706176.00000000000000000001")),
        ("numeric(12,2)", [Decimal("0.10"), Decimal("0.20"), Decimal("1e9")], Decimal("1000000000.30")),
        ("double precision", [0.5, 0.25, 1e300], 1e300),
        ("numeric", [Decimal("Infinity"), 1], Decimal("Infinity")),
        ("double precision", [float("inf"), 1.0], float("inf")),
    ],
)
def test_each_type_of_numbers(
    sink_tables: SinkTables, strategy: str, kind: str, values: Sequence[Any], total: Any
) -> None:
    sink = sums(sink_tables, f"k text PRIMARY KEY, n {kind}", add=["n"])
    for value in values:
        write(sink_tables, sink, {"k": "one by one", "n": value})
    write(sink_tables, sink, *[{"k": "together", "n": value} for value in values])
    assert [n for _, n in sink_tables.rows("k", "n")] == [total] * 2


def test_values_are_rounded_one_by_one_where_rounding_is_allowed(sink_tables: SinkTables, strategy: str) -> None:
    body = "k text PRIMARY KEY, n numeric(6,1)"
    values = [{"k": "a", "n": Decimal("0.05")}, {"k": "a", "n": Decimal("0.05")}, {"k": "a", "n": Decimal("-0.04")}]
    write(sink_tables, sums(sink_tables, body, add=["n"], round=True), *values)
    assert sink_tables.rows("n") == [(Decimal("0.2"),)]
    with pytest.raises(RowRefused, match="more fraction digits than the column"):
        write(sink_tables, sums(sink_tables, body, name="exact", add=["n"]), *values)


def test_keys_that_only_the_server_compares_are_aggregated_by_it(sink_tables: SinkTables, strategy: str) -> None:
    sink = sums(sink_tables, "k char(5) PRIMARY KEY, n int", add=["n"])
    write(sink_tables, sink, {"k": "ann", "n": 1}, {"k": "ann  ", "n": 2}, {"k": "bob", "n": 4})
    write(sink_tables, sink, {"k": "ann ", "n": 8})
    assert sink_tables.rows("k", "n") == [("ann  ", 11), ("bob  ", 4)]


def test_a_key_whose_type_is_a_domain_over_an_enum(sink_tables: SinkTables, strategy: str) -> None:
    """The server finds no operator of the enum for it."""
    sink_tables.sql("CREATE TYPE mood AS ENUM ('good', 'bad'); CREATE DOMAIN feeling AS mood")
    sink = sums(sink_tables, f'k "{sink_tables.schema}".feeling PRIMARY KEY, n int', add=["n"])
    for _ in range(2):
        write(sink_tables, sink, {"k": "good", "n": 1}, {"k": "bad", "n": 2}, {"k": "good", "n": 4})
    assert sink_tables.rows("k", "n") == [("good", 10), ("bad", 4)]


def test_other_columns_are_kept_and_odd_names_are_quoted(sink_tables: SinkTables, strategy: str) -> None:
    body = '"we""ird %s" int, "select" int, "new" int, "stored" int, seen int DEFAULT 7, PRIMARY KEY ("select", "new")'
    sink = sums(sink_tables, body, key=["new", "select"], add=['we"ird %s'], most=["stored"])
    for _ in range(2):
        write(sink_tables, sink, {"new": 1, "select": 2, 'we"ird %s': 3, "stored": 4, "seen": 99})
    assert sink_tables.rows('we"ird %s', "select", "new", "stored", "seen") == [(6, 2, 1, 4, 7)]


def test_a_partitioned_table_and_row_security(sink_tables: SinkTables, strategy: str) -> None:
    sink = sums(sink_tables, "k int, n int, PRIMARY KEY (k)) PARTITION BY RANGE (k", add=["n"])
    sink_tables.sql(
        "CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (5); CREATE TABLE rest PARTITION OF t DEFAULT"
    )
    for _ in range(2):
        write(sink_tables, sink, *[{"k": k, "n": k} for k in range(10)])
    assert sink_tables.rows("k", "n") == [(k, 2 * k) for k in range(10)]


def test_a_table_that_is_altered_while_the_sink_runs_takes_what_it_takes_now(
    sink_tables: SinkTables, strategy: str
) -> None:
    sink = sums(sink_tables, "k int PRIMARY KEY, n int", add=["n"])
    write(sink_tables, sink, {"k": 1, "n": 1})
    sink_tables.sql("ALTER TABLE t ALTER n TYPE bigint")
    write(sink_tables, sink, {"k": 1, "n": 2**40})
    sink_tables.sql("ALTER TABLE t ALTER n TYPE numeric(30,2)")
    write(sink_tables, sink, {"k": 1, "n": Decimal("0.25")}, {"k": 1, "n": Decimal("0.50")})
    assert sink_tables.rows("n") == [(Decimal(2**40 + 1) + Decimal("0.75"),)]


def test_few_keys_of_many_records_go_in_one_statement_and_many_are_staged(sink_tables: SinkTables) -> None:
    sink = sums(sink_tables)
    assert write(sink_tables, sink, *[kv(str(n % 3), 1) for n in range(MANY)]) is WriteStrategy.UNNEST
    assert write(sink_tables, sink, *[kv(str(n), 1) for n in range(MANY)]) is WriteStrategy.TEMP_TABLE
    assert sum(n for _, n in sink_tables.rows("k", "n")) == 2 * MANY


# -- against a plain loop -----------------------------------------------------------------------------------

AMOUNTS = st.none() | st.decimals(-(10**9), 10**9, places=2) | st.integers(-(10**12), 10**12)
NUMBERS = st.none() | st.integers(-(2**40), 2**40)
RECORDS = st.lists(st.tuples(st.sampled_from("aAäbß"), NUMBERS, AMOUNTS, NUMBERS), max_size=40)
CUTS = st.lists(st.integers(0, 40), max_size=6)


def test_whatever_the_records_and_the_batches_the_sums_are_those_of_a_plain_loop(
    sink_tables: SinkTables, strategy: str
) -> None:
    """I1. Prints the seed where it fails."""
    body = f"{BODY}, lowest bigint, highest bigint"
    sink = sums(sink_tables, body, least=["lowest"], most=["highest"])

    @settings(max_examples=60)
    @given(RECORDS, CUTS)
    def check(records: list[tuple[str, Any, Any, Any]], cuts: list[int]) -> None:
        sink_tables.sql("TRUNCATE t")
        expected: dict[str, list[Any]] = {}
        for k, n, amount, value in records:
            row = expected.setdefault(k, [0, Decimal(0), None, None])
            row[0] += n or 0
            row[1] += amount or 0
            if value is not None:
                row[2] = value if row[2] is None else min(row[2], value)
                row[3] = value if row[3] is None else max(row[3], value)
        ends = sorted({min(cut, len(records)) for cut in cuts} | {len(records)})
        for start, end in zip([0, *ends], ends, strict=False):
            names = ("k", "n", "amount", "lowest", "highest")
            write_some = [dict(zip(names, (k, n, a, v, v), strict=True)) for k, n, a, v in records[start:end]]
            with sink_tables.engine.begin() as tx:
                part(sink, tx, *write_some)
        rows = sorted(sink_tables.rows("k", "n", "amount", "lowest", "highest"))
        assert rows == sorted((k, *row) for k, row in expected.items())

    check()


def test_the_unit_of_work_adds_each_record_once_whatever_the_split(sink_tables: SinkTables, group: str) -> None:
    """I1: records that are handed over again are before the position."""
    sink = sums(sink_tables, "k text PRIMARY KEY, n bigint", add=["n"])
    pipeline = Pipeline(group, topics=TOPIC, value=Json(), sinks=[sink])
    records = [raw(b'{"k": "%d", "n": %d}' % (n % 7, n), topic=TOPIC, partition=n % 2, offset=n) for n in range(300)]
    for end in (1, 5, 130, 131, 300):
        sink_tables.process(pipeline, *records[:end])
    assert sink_tables.rows("k", "n") == [(str(k), sum(range(k, 300, 7))) for k in range(7)]
    assert sink_tables.positions(pipeline) == {Partition(TOPIC, 0): 299, Partition(TOPIC, 1): 300}


# -- what looks at rows --------------------------------------------------------------------------------------

CHECKED = {
    "CHECK": "k int PRIMARY KEY, n int CHECK (n >= 0), m int",
    "generated": "k int PRIMARY KEY, n int, m int, mean numeric GENERATED ALWAYS AS (10 / sign(n + 0.5)) STORED",
    "trigger": "k int PRIMARY KEY, n int, m int",
    "CHECK of a partition": "k int PRIMARY KEY, n int, m int) PARTITION BY RANGE (k",
}


@pytest.mark.parametrize("kind", CHECKED)
def test_what_looks_at_rows_sees_sums_and_not_what_is_added(
    sink_tables: SinkTables, group: str, strategy: str, kind: str
) -> None:
    """A stock of 5 takes -1, alone and among others; what would be below 0 is its record's error."""
    sink = sums(sink_tables, CHECKED[kind], add=["n", "m"])
    if kind == "trigger":
        sink_tables.sql(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF new.n < 0 THEN "
            "RAISE check_violation; END IF; RETURN new; END $$;"
            "CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION refuse()"
        )
    if kind == "CHECK of a partition":
        sink_tables.sql("CREATE TABLE p PARTITION OF t (CHECK (n >= 0)) DEFAULT")
    pipeline = Pipeline(group, topics=TOPIC, value=Json(), sinks=[sink], on_poison="dead_letter")
    offset, lost = 0, list[int]()
    below = -7 if kind != "generated" else None
    for batch in ([5, 5], [-1], [-1, -1], [2, *[-1] * 8], [below or 0], [1, below or 0, -1]):
        values = [{"k": key, "n": n, "m": 1} for n in batch for key in (1, 2)]
        records = orders(*map(msgspec.json.encode, values), start=offset)
        done = sink_tables.process(pipeline, *records)
        lost += [dead_letter.offset for dead_letter in done.dead_letters]
        offset += len(values)
    assert len(lost) == (4 if below else 0)
    assert sink_tables.rows("k", "n") == [(1, 1), (2, 1)]


@pytest.mark.parametrize("many", [False, True])
def test_what_comes_to_look_at_rows_while_a_worker_runs_sees_sums(
    sink_tables: SinkTables, strategy: str, many: bool
) -> None:
    sink = sums(sink_tables, CHECKED["trigger"], add=["n", "m"])
    keys = range(1, 3 if many else 2)
    write(sink_tables, sink, *({"k": key, "n": 10, "m": 1} for key in keys))
    sink_tables.sql(
        "CREATE FUNCTION clamp() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN new.n := greatest(new.n, 0); RETURN new; "
        "END $$; CREATE TRIGGER clamp BEFORE INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION clamp()"
    )
    write(sink_tables, sink, *({"k": key, "n": -3, "m": 1} for key in keys))
    assert sink_tables.rows("k", "n", "m") == [(key, 7, 2) for key in keys]


@pytest.mark.parametrize("columns", ["seen int NOT NULL, name text", "seen int, name text NOT NULL DEFAULT ''"])
def test_a_row_that_is_there_keeps_what_a_record_does_not_have(
    sink_tables: SinkTables, group: str, strategy: str, columns: str
) -> None:
    """A record of two rows that comes alone: columns that must have a value have one already."""
    path = sink_tables.create(f"k int PRIMARY KEY, n int, {columns}")
    sink_tables.sql("INSERT INTO t (k, n, seen) VALUES (1, 0, 5), (2, 0, 5); ALTER TABLE t ALTER name DROP DEFAULT")
    sink = Accumulate(path, key=["k"], add=["n"], most=["seen"], rows=lambda r: [r.value, r.value | {"k": 2}])
    pipeline = Pipeline(group, topics=TOPIC, value=Json(), sinks=[sink], on_poison="dead_letter")
    done = sink_tables.process(pipeline, *orders(b'{"k": 1, "n": 1, "seen": null}'))
    assert not done.dead_letters
    assert sink_tables.rows("k", "n", "seen") == [(1, 1, 5), (2, 1, 5)]


def test_a_table_that_others_inherit_from_is_refused(sink_tables: SinkTables) -> None:
    """The row of the child with the same key would be added to, too."""
    sink = sums(sink_tables, "k int PRIMARY KEY, n int", add=["n"])
    sink_tables.sql("CREATE TABLE child (PRIMARY KEY (k)) INHERITS (t)")
    with sink_tables.engine.begin() as tx, pytest.raises(ConfigError, match="child inherits from the table"):
        sink.check(tx)


# -- sessions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", ["", "CHECK (n >= 0)"])
@pytest.mark.parametrize("few", [(True, True), (False, False), (True, False)])
def test_two_sessions_that_add_to_the_same_keys_in_any_order_never_deadlock(
    sink_tables: SinkTables, few: tuple[bool, bool], check: str
) -> None:
    """Also where one has few rows and the other many: texts that Python and the server order otherwise.

    Where rows are updated before others are inserted, they are there already. What the server thinks of deadlocks would
    be raised.
    """
    keys = [f"{letter}{n}" for letter in "aBÄ-_z" for n in range(10)]
    path = sink_tables.create(f"k text PRIMARY KEY, n bigint {check}")
    if check:
        sink_tables.sql(f"INSERT INTO t SELECT k, 0 FROM unnest(ARRAY{keys}) k")
    failed: list[BaseException] = []
    rounds = 25

    def run(is_few: bool, seed: int) -> None:
        chance = random.Random(seed)
        sink = Accumulate(path, key=["k"], add=["n"])
        writer_of(sink).strategies.gathers = lambda rows: is_few
        try:
            for _ in range(rounds):
                write(sink_tables, sink, *[{"k": k, "n": 1} for k in chance.sample(keys, len(keys))])
        except BaseException as error:  # noqa: BLE001 -- raised by the test's own thread
            failed.append(error)

    writers = [threading.Thread(target=run, args=(is_few, seed)) for seed, is_few in enumerate(few)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert not failed
    assert sink_tables.rows("n") == [(2 * rounds,)] * len(keys)


@pytest.mark.parametrize("is_few", [True, False])
def test_stored_rows_are_locked_in_the_order_of_their_keys(sink_tables: SinkTables, is_few: bool) -> None:
    """Where a CHECK looks at rows: an UPDATE alone would lock them in the order in which the table has them."""
    sink = Accumulate(sink_tables.create("k text PRIMARY KEY, n bigint CHECK (n >= 0)"), key=["k"], add=["n"])
    sink_tables.sql("INSERT INTO t VALUES ('c', 0), ('b', 0), ('a', 0)")
    writer_of(sink).strategies.gathers = lambda rows: is_few
    rows = text(f'SELECT k FROM "{sink_tables.schema}".t ORDER BY k FOR UPDATE SKIP LOCKED')
    with sink_tables.engine.connect() as holder, ThreadPoolExecutor(1) as pool:
        holder.execute(text(f"SELECT FROM \"{sink_tables.schema}\".t WHERE k = 'b' FOR UPDATE"))
        written = pool.submit(write, sink_tables, sink, *[{"k": k, "n": 1} for k in "cab"])
        wait_until_blocked(sink_tables.engine, backend(holder))
        with sink_tables.engine.connect() as other:
            assert other.execute(rows).scalars().all() == ["c"]
        holder.rollback()
        written.result(SECONDS)
    assert sink_tables.rows("k", "n") == [("a", 1), ("b", 1), ("c", 1)]


# -- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case",
    [
        ("integer", [2**30, 2**30], "integer out of range"),
        ("bigint", [2**62, 2**62], "bigint out of range"),
        ("numeric(4,2)", [60.25, 39.5, 0.25], "numeric field overflow"),
        ("double precision", [1e308, 1e308], "out of range: overflow"),
        ("integer CHECK (n < 100)", [50, 40, 10], "violates check constraint"),
        ("integer", [1, 2**31], "out of range"),
        ("integer", [1, "seven"], "seven"),
        ("integer", [1, True], "invalid input syntax for type integer"),
    ],
)
def test_the_record_whose_sum_overflows_is_a_data_error_and_the_others_are_added(
    sink_tables: SinkTables, group: str, strategy: str, case: tuple[str, list[Any], str]
) -> None:
    """The last of these values does not fit any more; the bisecting engine finds its record among others."""
    kind, values, message = case
    sink = sums(sink_tables, f"k text PRIMARY KEY, n {kind}", add=["n"])
    pipeline = Pipeline(group, topics=TOPIC, value=Json(), sinks=[sink], on_poison="dead_letter")
    others = [{"k": "other", "n": 1}] * 5
    added = [{"k": "a", "n": value} for value in values]
    done = sink_tables.process(pipeline, *orders(*map(msgspec.json.encode, [*others, *added, *others])))
    [dead_letter] = done.dead_letters
    assert dead_letter.offset == len(others) + len(values) - 1
    assert message in dead_letter.failure.error
    rows = dict(sink_tables.rows("k", "n"))
    assert rows == {"a": pytest.approx(sum(values[:-1])), "other": 10}


def test_a_record_that_overflows_stops_its_partition_before_it(
    sink_tables: SinkTables, group: str, strategy: str
) -> None:
    sink = sums(sink_tables, "k text PRIMARY KEY, n int", add=["n"])
    values = [b'{"k": "a", "n": 2147483647}', b'{"k": "b", "n": 1}', b'{"k": "a", "n": 1}']
    done = sink_tables.process(Pipeline(group, topics=TOPIC, value=Json(), sinks=[sink]), *orders(*values))
    assert "integer out of range" in str(stopped_at(done, 0, 2))
    assert sink_tables.rows("k", "n") == [("a", 2**31 - 1), ("b", 1)]


@pytest.mark.parametrize(
    ("body", "options", "message"),
    [
        ("k int, n int", {}, r"no unique index on exactly \("),
        ("k int PRIMARY KEY, n text", {}, "column 'n' is text, and add= takes only integers, numeric and double"),
        ("k int PRIMARY KEY, n real", {}, "column 'n' is real.*A real keeps seven digits"),
        ("k int PRIMARY KEY, n interval", {}, "column 'n' is interval"),
        ("k int PRIMARY KEY, n int[]", {}, "column 'n' is integer"),
        ("k int PRIMARY KEY, n stock", {}, "domain .* make the column integer, with a CHECK constraint"),
        ("k int PRIMARY KEY, n json", {"add": [], "most": ["n"]}, "column 'n' cannot be in least= or most="),
        ("k int PRIMARY KEY, n boolean", {"add": [], "least": ["n"]}, "column 'n' cannot be in least= or most="),
        ("k int PRIMARY KEY, n int", {"add": ["n", "m"]}, "m"),
        ("k int UNIQUE, n int", {}, "may be NULL"),
    ],
)
def test_the_start_checks_the_table(sink_tables: SinkTables, body: str, options: dict[str, Any], message: str) -> None:
    sink_tables.sql("CREATE DOMAIN stock AS int CHECK (VALUE >= 0)")
    sink = sums(sink_tables, body.replace("stock", f'"{sink_tables.schema}".stock'), **{"add": ["n"], **options})
    with sink_tables.engine.connect() as tx, pytest.raises(ConfigError, match=message):
        sink.check(tx, [Json()])


def test_the_start_refuses_fields_that_no_column_holds(sink_tables: SinkTables) -> None:
    sink = sums(sink_tables, "k text PRIMARY KEY, n numeric", add=["n"])
    with sink_tables.engine.connect() as tx, pytest.raises(ConfigError, match="field 'n', column 'n'"):
        sink.check(tx, [Json(Sale)])


def test_what_a_pipeline_adds_is_explained(sink_tables: SinkTables) -> None:
    sink = sums(sink_tables, f"{BODY}, first_at date, last_at date", least=["first_at"], most=["last_at"])
    pipeline = Pipeline("g", topics=TOPIC, value=Json(), sinks=[sink])
    (declared,) = describe(pipeline, sink_tables.engine)["sinks"]
    assert declared["key"] == ["k"]
    assert declared["newest"] == "the sums of n, amount; the lowest first_at; the highest last_at"
    assert list(declared["strategies"]) == ["unnest", "temp_table"]
    assert describe(pipeline, None)["sinks"][0]["strategies"] == declared["strategies"]


# -- dead letters -------------------------------------------------------------------------------------------


def test_dead_letters_add_when_they_are_replayed_in_any_order(sink_tables: SinkTables, group: str) -> None:
    """Later records of their keys are not held back, and the sums end as if none had failed."""
    sink = sums(sink_tables, "k text PRIMARY KEY, n int CHECK (n < 100)", add=["n"])
    pipeline = Pipeline(group, topics=TOPIC, value=Json(), sinks=[sink], on_poison="dead_letter")
    values = [90, 20, 5, 30, -60]
    records = [raw(b'{"k": "a", "n": %d}' % n, topic=TOPIC, offset=offset, key=b"a") for offset, n in enumerate(values)]
    for sent in records:
        sink_tables.process(pipeline, sent)
    replay = Admin(sink_tables.engine, schema=sink_tables.schema).dead_letters(pipeline, actor="ada")
    assert sink_tables.rows("k", "n") == [("a", 35)], "90 + 5 - 60; 20 and 30 would have exceeded the limit"
    assert [dead_letter.state for dead_letter in replay.list()] == [State.DEAD_LETTERED] * 2
    sink_tables.sql("ALTER TABLE t DROP CONSTRAINT t_n_check")
    for dead_letter in reversed([*replay.list()]):
        assert replay.replay(dead_letter.id).is_applied
    assert sink_tables.rows("k", "n") == [("a", sum(values))]
