"""``Upsert`` on a real Postgres: the newest row of each key, by every write strategy, with tombstones."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from seekpoint import Append, Bytes, DeadLetterLimits, Json, Pipeline, Text, events
from seekpoint.errors import ConfigError
from seekpoint.pipeline.sink import RowRefused
from seekpoint.records import AnyRecord, Partition, RawRecord
from seekpoint.sinks import Upsert
from seekpoint.sinks.catalog import stage_name
from seekpoint.sinks.upsert import strategy as strategies
from seekpoint.sinks.upsert.strategy import WriteStrategy, Wrote
from seekpoint.testing import raw, record
from support.batch_committer import BatchCommitter
from support.fixtures import NewEngine
from support.ledger_worker import backend, wait_until_blocked
from support.sink_tables import (
    TOPIC,
    VALUES,
    Order,
    SinkTables,
    of_test,
    orders,
    stopped_at,
    with_own_types,
    writer_of,
)

MANY = 2 * strategies.SMALL
PLAIN = "id int PRIMARY KEY, v text"


@pytest.fixture(params=list(WriteStrategy))
def strategy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> WriteStrategy:
    """Every upsert of the test takes this strategy, however few its rows."""
    wanted: WriteStrategy = request.param
    small = 10**9 if wanted is WriteStrategy.UNNEST else 0
    monkeypatch.setattr(strategies, "SMALL", small)
    if wanted is not WriteStrategy.UNNEST:  # COPY is tried every time
        monkeypatch.setattr(strategies.WriteStrategies, "met_a_conflict", lambda self: None)
    if wanted is WriteStrategy.TEMP_TABLE:
        choose = strategies.WriteStrategies.choose
        monkeypatch.setattr(
            strategies.WriteStrategies,
            "choose",
            lambda self, rows, deduped, direct: choose(self, rows, deduped=deduped, direct=False),
        )
    return wanted


def part(sink: Upsert, tx: Connection, *records: AnyRecord) -> None:
    """Write these records in this transaction."""
    with writer_of(sink).open(tx) as writer:
        for record in records:
            writer.write(list(writer_of(sink).rows(record)))


def write(sink_tables: SinkTables, sink: Upsert, *records: AnyRecord) -> Wrote:
    """One transaction with these records."""
    with sink_tables.engine.begin() as tx:
        part(sink, tx, *records)
    last: Wrote = writer_of(sink).strategies.last
    return last


def upsert(sink_tables: SinkTables, body: str = PLAIN, /, *, name: str = "t", **options: Any) -> Upsert:
    return Upsert(sink_tables.create(body, name), **{"key": ["id"], **options})


def kv(id: int, v: Any, offset: int = 0, partition: int = 0) -> AnyRecord:  # noqa: A002
    return record({"id": id, "v": v}, key={"id": id}, offset=offset, partition=partition)


def gone(id: int, offset: int = 0, partition: int = 0) -> AnyRecord:  # noqa: A002
    return record(None, key={"id": id}, offset=offset, partition=partition)


# -- what the three strategies have in common ---------------------------------------------------------------


def test_rows_are_inserted_updated_and_deleted_by_key(sink_tables: SinkTables, strategy: WriteStrategy) -> None:
    sink = upsert(sink_tables, columns=["id", "v"])
    assert write(sink_tables, sink, kv(2, "two")).strategy is strategy
    write(sink_tables, sink, kv(1, "one"), kv(1, "uno"))
    assert sink_tables.rows("id", "v") == [(1, "uno"), (2, "two")]
    write(sink_tables, sink, kv(1, "eins"), gone(2), kv(3, "three"))
    assert sink_tables.rows("id", "v") == [(1, "eins"), (3, "three")]
    done = write(sink_tables, sink, gone(1), kv(1, "again"), kv(3, "no more"), gone(3), gone(99))
    assert sink_tables.rows("id", "v") == [(1, "again")]
    assert (done.rows, done.upserts, done.deletes) == (5, 1, 1), "of the two that were deleted, one was there"
    write(sink_tables, sink, gone(1))
    assert sink_tables.rows("id", "v") == []


@pytest.mark.parametrize(("kind", "value"), [(kind, value) for kind, value, _ in VALUES])
def test_strategies_store_as_copy_does(
    sink_tables: SinkTables, monkeypatch: pytest.MonkeyPatch, kind: str, value: Any
) -> None:
    kind, results = of_test(sink_tables, kind), []
    for n, small in enumerate((0, 0, 10**9)):
        monkeypatch.setattr(strategies, "SMALL", small)
        sink: Any = upsert(sink_tables, f"id int PRIMARY KEY, v {kind}", name=f"t{n}", columns=["id", "v"])
        if n == 0:
            sink = Append(sink.path, columns=["id", "v"])
            with sink_tables.engine.begin() as tx, writer_of(sink).open(tx) as writer:
                writer.write([(1, value), (2, value)])
        else:
            if n == 1:  # a key that is there: the rows are staged
                write(sink_tables, sink, kv(2, None))
            write(sink_tables, sink, kv(1, value), kv(2, value))
            assert writer_of(sink).strategies.last.strategy is (
                WriteStrategy.TEMP_TABLE if n == 1 else WriteStrategy.UNNEST
            )
        with sink_tables.engine.connect() as tx:
            rows = tx.execute(
                text(f'SELECT id, v::text, pg_typeof(v)::text FROM "{sink_tables.schema}".t{n} ORDER BY id')
            )
            results.append([tuple(row) for row in rows])
    assert results[0] == results[1] == results[2]


def test_null_is_null_missing_is_poison_and_other_columns_are_kept(
    sink_tables: SinkTables, strategy: WriteStrategy
) -> None:
    sink = upsert(
        sink_tables,
        "id int PRIMARY KEY, v text DEFAULT 'unset', seen int DEFAULT 7, n bigint GENERATED ALWAYS AS IDENTITY, "
        "twice int GENERATED ALWAYS AS (id * 2) STORED",
        columns=["id", "v"],
    )
    write(sink_tables, sink, kv(1, "a"), kv(2, None))
    assert sink_tables.rows("id", "v", "seen", "twice") == [(1, "a", 7, 2), (2, None, 7, 4)]
    sink_tables.sql("UPDATE t SET seen = 8")
    numbers = sink_tables.rows("n")
    write(sink_tables, sink, kv(1, None), kv(2, "b"))
    assert sink_tables.rows("id", "v", "seen", "twice") == [(1, None, 8, 2), (2, "b", 8, 4)]
    assert sink_tables.rows("n") == numbers
    with pytest.raises(Exception, match="the row has no 'v'"):
        write(sink_tables, sink, record({"id": 3}))


def test_a_key_of_its_columns_alone_and_a_key_that_the_database_would_draw(
    sink_tables: SinkTables, strategy: WriteStrategy
) -> None:
    alone = upsert(sink_tables, "a int, b text, PRIMARY KEY (b, a)", name="alone", key=["a", "b"], columns=["a", "b"])
    write(sink_tables, alone, record({"a": 1, "b": "x"}), record({"a": 1, "b": "y"}), record({"a": 1, "b": "x"}))
    write(sink_tables, alone, record({"a": 1, "b": "x"}), record(None, key={"b": "y", "a": 1}))
    assert sink_tables.rows("a", "b", name="alone") == [(1, "x")]
    drawn = upsert(sink_tables, "id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text", columns=["id", "v"])
    write(sink_tables, drawn, kv(41, "a"))
    write(sink_tables, drawn, kv(41, "b"))
    assert sink_tables.rows("id", "v") == [(41, "b")]


@pytest.mark.parametrize("name", ['we"ird', "UPPER", "with space", "select", "tüβ", "x%s", "{}", "stored", "new"])
def test_odd_names_of_tables_and_columns(sink_tables: SinkTables, strategy: WriteStrategy, name: str) -> None:
    quoted = '"' + name.replace('"', '""') + '"'
    path = sink_tables.create(f'{quoted} int PRIMARY KEY, {quoted[:-1]}2" int', name)
    second = f"{name}2"
    sink = Upsert(path, key=[name], columns=[name, second], order_by=second)
    write(sink_tables, sink, record({name: 1, second: 1}), record({name: 2, second: 2}))
    write(sink_tables, sink, record({name: 1, second: 0}), record(None, key={name: 2, second: 2}))
    assert sink_tables.rows(name, second, name=name) == [(1, 1)]


def test_the_first_row_of_a_key_stays(sink_tables: SinkTables, strategy: WriteStrategy) -> None:
    sink = upsert(sink_tables, columns=["id", "v"], on_conflict="keep")
    write(sink_tables, sink, kv(1, "first"), kv(2, "two"), kv(1, "second"))
    done = write(sink_tables, sink, kv(3, "three"), kv(2, "later"), kv(3, "later"), kv(1, "third"))
    assert sink_tables.rows("id", "v") == [(1, "first"), (2, "two"), (3, "three")]
    assert (done.rows, done.upserts, done.deletes) == (4, 1, 0)
    write(sink_tables, sink, kv(1, "again"))
    assert sink_tables.rows("v")[0] == ("first",)


def test_the_first_row_of_keys_that_only_the_server_compares(sink_tables: SinkTables, strategy: WriteStrategy) -> None:
    sink = upsert(sink_tables, "id numeric PRIMARY KEY, v text", columns=["id", "v"], on_conflict="keep")
    write(
        sink_tables,
        sink,
        *[record({"id": Decimal(n), "v": v}) for n, v in (("1.0", "first"), ("1", "2"), ("1.00", "3"))],
    )
    assert sink_tables.rows("id", "v") == [(Decimal("1.0"), "first")]


def test_a_record_without_a_value_deletes_no_row_that_is_to_stay(sink_tables: SinkTables, group: str) -> None:
    sink = upsert(sink_tables, columns=["id", "v"], on_conflict="keep")
    pipeline = Pipeline(
        group, topics=TOPIC, value=Json(tombstones=True), key=Json(), sinks=[sink], on_poison="dead_letter"
    )
    log = [raw(b'{"id": 1, "v": "a"}', topic=TOPIC, offset=0, key=b"1"), raw(None, topic=TOPIC, offset=1, key=b"1")]
    done = sink_tables.process(pipeline, *log)
    assert [dead_letter.offset for dead_letter in done.dead_letters] == [1]
    assert sink_tables.rows("id", "v") == [(1, "a")]


# -- which row is newer -------------------------------------------------------------------------------------


def test_order_by_decides_within_a_batch_and_against_the_stored_row(
    sink_tables: SinkTables, strategy: WriteStrategy
) -> None:
    sink = upsert(
        sink_tables, "id int PRIMARY KEY, v int, w text", columns=["id", "v", "w"], order_by="v",
        tombstone_key=lambda r: r.key,
    )  # fmt: skip

    def row(v: int, w: str) -> AnyRecord:
        return record({"id": 1, "v": v, "w": w})

    write(sink_tables, sink, row(5, "first"), row(3, "older"))
    assert sink_tables.rows("v", "w") == [(5, "first")]
    write(sink_tables, sink, row(4, "older"))
    write(sink_tables, sink, record(None, key=(1, 4)))
    assert sink_tables.rows("v", "w") == [(5, "first")], "an older tombstone deletes nothing"
    write(sink_tables, sink, row(5, "same, later"))
    assert sink_tables.rows("v", "w") == [(5, "same, later")]
    sink_tables.sql("UPDATE t SET v = NULL")
    write(sink_tables, sink, row(1, "of no order is older than any"))
    assert sink_tables.rows("v") == [(1,)]
    write(sink_tables, sink, row(9, "x"), record(None, key=(1, 9)))
    assert sink_tables.rows("v") == []


def test_old_records_that_are_replayed_never_overwrite_newer_rows(
    sink_tables: SinkTables, strategy: WriteStrategy
) -> None:
    sink = upsert(sink_tables, "id int PRIMARY KEY, v text, o bigint", columns=["id", "v"], offset_column="o")
    log = [kv(1, "a", 0), kv(2, "b", 1), kv(1, "c", 2), gone(2, 3), kv(2, "d", 4), kv(3, "e", 5)]
    write(sink_tables, sink, *log)
    assert (expected := sink_tables.rows("id", "v", "o")) == [(1, "c", 2), (2, "d", 4), (3, "e", 5)]
    for again in (log[:1], log[:3], log[1:4], log):
        write(sink_tables, sink, *again)
        assert sink_tables.rows("id", "v", "o") == expected


def test_offsets_of_different_partitions_are_not_compared(sink_tables: SinkTables, strategy: WriteStrategy) -> None:
    body = "id int PRIMARY KEY, v text, tp text, p int, o bigint"
    sink = upsert(sink_tables, body, columns=["id", "v"], offset_column="o", provenance=("tp", "p", "o"))
    write(sink_tables, sink, kv(1, "a", offset=100, partition=0))
    write(sink_tables, sink, kv(1, "b", offset=5, partition=1))
    assert sink_tables.rows("id", "v", "tp", "p", "o") == [(1, "b", "topic", 1, 5)]
    write(sink_tables, sink, kv(1, "older", offset=4, partition=1))
    write(sink_tables, sink, gone(1, offset=4, partition=1))
    assert sink_tables.rows("v") == [("b",)]
    write(sink_tables, sink, gone(1, offset=0, partition=2))
    assert sink_tables.rows("v") == []


def test_keys_that_only_the_server_compares_are_deduped_by_it(sink_tables: SinkTables, strategy: WriteStrategy) -> None:
    sink = upsert(sink_tables, "id char(5) PRIMARY KEY, v text", columns=["id", "v"])

    def named(id: str, v: str | None) -> AnyRecord:  # noqa: A002
        return record(None if v is None else {"id": id, "v": v}, key=id)

    done = write(sink_tables, sink, named("ann", "1"), named("bob", "2"), named("ann  ", "3"), named("bob ", None))
    assert (done.strategy, done.upserts) == (WriteStrategy.TEMP_TABLE, 1)
    assert sink_tables.rows("id", "v") == [("ann  ", "3")]
    write(sink_tables, sink, named("ann", None), named("ann ", "4"), named("cid ", "5"), named("cid", None))
    assert sink_tables.rows("id", "v") == [("ann  ", "4")]


def test_the_key_of_a_tombstone_may_be_spelled_unlike_the_rows(
    sink_tables: SinkTables, strategy: WriteStrategy
) -> None:
    sink = upsert(sink_tables, columns=["id", "v"])
    write(sink_tables, sink, kv(1, "a"), kv(2, "b"), record(None, key="01"), record(None, key="7"))
    assert sink_tables.rows("id", "v") == [(2, "b")]
    write(sink_tables, sink, record(None, key="2"), kv(2, "c"))
    assert sink_tables.rows("id", "v") == [(2, "c")]


class Transit(Enum):
    """Values and names differ."""

    IN_TRANSIT = "in-transit"
    DONE = "done"


@pytest.mark.parametrize(
    ("kind", "stored"), [("text", "in-transit"), ("mood", "in-transit"), ("named", "IN_TRANSIT")]
)  # fmt: skip
def test_a_tombstone_deletes_the_row_that_an_enums_member_is_the_key_of(
    sink_tables: SinkTables, strategy: WriteStrategy, kind: str, stored: str
) -> None:
    """Of a Postgres enum, too, whether its labels are the values or the names."""
    sink = upsert(with_own_types(sink_tables), f"id {kind} PRIMARY KEY, v text", columns=["id", "v"])
    rows = [record({"id": member, "v": member.value}) for member in Transit]
    write(sink_tables, sink, *rows)
    assert (stored, "in-transit") in sink_tables.rows("id", "v")
    write(sink_tables, sink, record(None, key=Transit.IN_TRANSIT))
    assert sink_tables.rows("v") == [("done",)]


BERLIN = ZoneInfo("Europe/Berlin")
SUMMER, WINTER = (datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=fold) for fold in (0, 1))  # equal for Python


def instants(sink_tables: SinkTables, column: str) -> list[datetime]:
    """In UTC: the session's own zone may have such an hour, too."""
    return [row[0].astimezone(UTC) for row in sink_tables.rows(column)]


def test_an_hour_that_a_zone_has_twice_is_two_keys(sink_tables: SinkTables, strategy: WriteStrategy) -> None:
    sink = upsert(sink_tables, "id timestamptz PRIMARY KEY, v text", columns=["id", "v"])
    write(sink_tables, sink, record({"id": WINTER, "v": "second"}), record({"id": SUMMER, "v": "first"}))
    assert instants(sink_tables, "id") == [SUMMER.astimezone(UTC), WINTER.astimezone(UTC)]
    assert [v for _, v in sink_tables.rows("id", "v")] == ["first", "second"]
    write(sink_tables, sink, record(None, key=SUMMER), record({"id": WINTER, "v": "third"}))
    assert sink_tables.rows("v") == [("third",)]


@pytest.mark.parametrize("kind", ["timestamptz", "timestamptz(0)"])
def test_an_hour_that_a_zone_has_twice_is_older_and_newer(
    sink_tables: SinkTables, strategy: WriteStrategy, kind: str
) -> None:
    sink = upsert(sink_tables, f"id int PRIMARY KEY, v {kind}", columns=["id", "v"], order_by="v")
    write(sink_tables, sink, kv(1, WINTER), kv(1, SUMMER.replace(minute=45)), kv(2, SUMMER), kv(2, WINTER))
    assert instants(sink_tables, "v") == [WINTER.astimezone(UTC)] * 2
    write(sink_tables, sink, kv(1, SUMMER.replace(minute=45)))
    assert instants(sink_tables, "v") == [WINTER.astimezone(UTC)] * 2


def test_two_instants_of_a_zone_in_two_partitions_are_no_key_in_both(
    sink_tables: SinkTables, strategy: WriteStrategy
) -> None:
    sink = upsert(sink_tables, "id timestamptz PRIMARY KEY, v int, o bigint", columns=["id", "v"], offset_column="o")
    first = record({"id": SUMMER, "v": 1}, partition=0, offset=7)
    write(sink_tables, sink, first, record({"id": WINTER, "v": 2}, partition=1, offset=3))
    assert sink_tables.rows("v") == [(1,), (2,)]


@pytest.mark.parametrize(
    ("kind", "stored", "sent"),
    [
        ("numeric(6,2)", Decimal("1.00"), Decimal("1.001")),
        ("timestamptz(0)", "2026-01-01 00:00:00Z", "2026-01-01 00:00:00.3Z"),
        ("varchar(3)", "ab ", "ab    "),
        ("char(3)", "ab", "ab    "),
        ("short", "ab ", "ab    "),
    ],
)
@pytest.mark.parametrize("alone", [False, True])  # has this process seen a row before
def test_a_tombstone_deletes_what_its_key_was_rounded_to(
    sink_tables: SinkTables, strategy: WriteStrategy, *, kind: str, stored: Any, sent: Any, alone: bool
) -> None:
    sink_tables.sql("CREATE DOMAIN short AS varchar(3)")
    kind = f'"{sink_tables.schema}".{kind}' if kind == "short" else kind
    sink = upsert(sink_tables, f"id {kind} PRIMARY KEY, v text", columns=None if alone else ["id", "v"], round=True)
    sink_tables.sql(f"INSERT INTO t VALUES ('{stored}', 'old')")
    write(sink_tables, sink, record(None, key=sent))
    assert sink_tables.rows("v") == []


def test_a_key_whose_type_is_a_domain_over_an_enum(sink_tables: SinkTables, strategy: WriteStrategy) -> None:
    """The server finds no operator of the enum for it."""
    sink_tables.sql("CREATE TYPE mood AS ENUM ('good', 'bad'); CREATE DOMAIN feeling AS mood")
    sink = upsert(sink_tables, f'id "{sink_tables.schema}".feeling PRIMARY KEY, v text', columns=["id", "v"])
    values = [{"id": "good", "v": "a"}, {"id": "bad", "v": "b"}, {"id": "bad", "v": "c"}]
    write(sink_tables, sink, *map(record, values))
    write(sink_tables, sink, record(None, key="good"))
    assert sink_tables.rows("id", "v") == [("bad", "c")]


def test_a_text_too_long_for_its_domain_is_refused(sink_tables: SinkTables, strategy: WriteStrategy) -> None:
    sink_tables.sql("CREATE DOMAIN short AS varchar(3)")
    sink = upsert(sink_tables, f'id int PRIMARY KEY, v "{sink_tables.schema}".short', columns=["id", "v"])
    with pytest.raises(RowRefused, match="value too long"):
        write(sink_tables, sink, kv(1, "abcdef"))


def test_the_newest_spelling_of_a_key_is_stored_whatever_the_batches(
    sink_tables: SinkTables, strategy: WriteStrategy
) -> None:
    sink = upsert(sink_tables, "id numeric PRIMARY KEY, v int", columns=["id", "v"])
    versions = [record({"id": Decimal(id_), "v": n}) for n, id_ in enumerate(("1.00", "1", "1.0"))]
    write(sink_tables, sink, versions[0])
    for version in versions[1:]:
        write(sink_tables, sink, version)
    assert sink_tables.value("id::text") == "1.0"
    write(sink_tables, sink, *versions[:2])
    assert sink_tables.value("id::text") == "1"


@pytest.mark.parametrize("key", [["id"], ["id", "part"]])
@pytest.mark.parametrize("index", ["UNIQUE (%s)", "UNIQUE NULLS NOT DISTINCT (%s)", "PRIMARY KEY (%s)"])
def test_a_key_that_may_be_null_is_refused(
    sink_tables: SinkTables, strategy: WriteStrategy, key: list[str], index: str
) -> None:
    body = f"id int, part int NOT NULL, v text, {index % ', '.join(key)}"
    sink = upsert(sink_tables, body, key=key, columns=["id", "part", "v"])
    row = record({"id": 1, "part": 1, "v": "v"})
    if not index.startswith("UNIQUE ("):
        write(sink_tables, sink, row)
        return
    remedy = r'"id" may be NULL.*ALTER TABLE .* ALTER COLUMN "id" SET NOT NULL; .* NULLS NOT DISTINCT'
    with pytest.raises(ConfigError, match=remedy):
        write(sink_tables, sink, row)
    sink_tables.sql("ALTER TABLE t ALTER id SET NOT NULL")
    write(sink_tables, sink, row)


def test_an_index_of_another_collation_than_its_column_is_refused(
    sink_tables: SinkTables, strategy: WriteStrategy
) -> None:
    blind = "CREATE COLLATION blind (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
    try:
        sink_tables.sql(blind)
    except DBAPIError as error:
        pytest.skip(f"this server has no nondeterministic collations: {error.orig}")
    sink = upsert(sink_tables, "id text NOT NULL, v text", columns=["id", "v"])
    sink_tables.sql("CREATE UNIQUE INDEX other ON t (id COLLATE blind)")
    with pytest.raises(ConfigError, match="other has another collation than its column"):
        write(sink_tables, sink, kv(1, "v"))
    sink_tables.sql("ALTER TABLE t ALTER id TYPE text COLLATE blind; REINDEX TABLE t")
    write(sink_tables, sink, record({"id": "a", "v": 1}), record({"id": "A", "v": 2}))
    assert sink_tables.rows("id", "v") == [("A", "2")]


@pytest.mark.parametrize("kind", ["text", "timestamptz"])
def test_an_order_that_is_text_is_the_servers(sink_tables: SinkTables, strategy: WriteStrategy, kind: str) -> None:
    sink = upsert(sink_tables, f"id int PRIMARY KEY, v {kind}", columns=["id", "v"], order_by="v")
    early, late = "2026-01-01T01:00:00+02:00", "2025-12-31T23:30:00Z"
    if kind == "text":
        early, late = "2025", "2026"
    write(sink_tables, sink, kv(1, late), kv(1, early))
    write(sink_tables, sink, kv(2, early), kv(2, late))
    with sink_tables.engine.connect() as tx:
        assert len({row.v for row in tx.execute(text(f'SELECT v FROM "{sink_tables.schema}".t'))}) == 1


def test_offsets_that_fall_are_refused(sink_tables: SinkTables, strategy: WriteStrategy) -> None:
    sink = upsert(sink_tables, "id int PRIMARY KEY, v text, o bigint", columns=["id", "v"], offset_column="o")
    with pytest.raises(ConfigError, match=r"key 1 comes at offset 3 after offset 5.*give order_by="):
        write(sink_tables, sink, kv(1, "a", 5), kv(2, "b", 1), kv(1, "c", 3))
    assert sink_tables.rows("id") == []
    write(sink_tables, sink, kv(1, "a", 5), kv(2, "b", 1), kv(1, "c", 6))
    assert sink_tables.rows("id", "o") == [(1, 6), (2, 1)]


# -- the choice of the strategy -----------------------------------------------------------------------------


def rows(start: int, stop: int, v: str = "v") -> list[AnyRecord]:
    return [kv(n, v) for n in range(start, stop)]


def test_new_keys_go_by_copy_and_the_first_conflict_falls_back(sink_tables: SinkTables) -> None:
    sink = upsert(sink_tables, columns=["id", "v"])
    assert write(sink_tables, sink, *rows(0, 3)).strategy is WriteStrategy.UNNEST
    assert write(sink_tables, sink, *rows(1000, 1000 + MANY)).strategy is WriteStrategy.COPY
    done = write(sink_tables, sink, *rows(900, 900 + MANY, "again"))
    assert (done.strategy, done.fell_back, writer_of(sink).strategies.conflicts) == (WriteStrategy.TEMP_TABLE, True, 1)
    assert len(sink_tables.rows("id")) == 3 + MANY + 100
    assert write(sink_tables, sink, *rows(5000, 5000 + MANY)).strategy is WriteStrategy.TEMP_TABLE
    assert write(sink_tables, sink, *rows(7000, 7000 + MANY)).strategy is WriteStrategy.COPY
    assert writer_of(sink).strategies.used == {
        WriteStrategy.UNNEST: 1,
        WriteStrategy.COPY: 2,
        WriteStrategy.TEMP_TABLE: 2,
    }
    assert writer_of(sink).strategies.current is WriteStrategy.COPY


def test_an_event_reports_another_write_strategy(sink_tables: SinkTables, group: str) -> None:
    sink = upsert(sink_tables, "id int PRIMARY KEY, note text")
    pipeline = Pipeline(group, topics=TOPIC, value=Json(Order), sinks=[sink])
    copied = events.WriteStrategyChanged(sink=repr(sink), strategy="copy", rows=MANY, conflicts=0)
    staged = events.WriteStrategyChanged(sink=repr(sink), strategy="temp_table", rows=MANY, conflicts=1)
    worker = BatchCommitter(sink_tables.engine, sink_tables.schema, pipeline)
    for start, after in ((0, [copied]), (MANY, [copied]), (0, [copied, staged]), (0, [copied, staged])):
        worker.apply(*[{"id": n} for n in range(start, start + MANY)])
        assert [event for event in worker.seen if isinstance(event, events.WriteStrategyChanged)] == after
    worker.committer.close()


def test_an_update_that_repeats_another_unique_value_of_its_own_is_no_fault(sink_tables: SinkTables) -> None:
    """Its index is checked before the key's; only the merge knows that the row is an update."""
    sink = upsert(sink_tables, "v text UNIQUE, id int", columns=["id", "v"])
    sink_tables.sql("ALTER TABLE t ADD PRIMARY KEY (id)")
    records = [kv(n, f"v{n}") for n in range(MANY)]
    assert write(sink_tables, sink, *records).strategy is WriteStrategy.COPY
    assert write(sink_tables, sink, *records).fell_back
    with pytest.raises(RowRefused, match="duplicate key value violates unique constraint"):
        write(sink_tables, sink, *records, kv(MANY, "v7"))
    assert len(sink_tables.rows("id")) == MANY


def test_a_key_that_another_transaction_writes_meanwhile_is_waited_for(sink_tables: SinkTables) -> None:
    sink = upsert(sink_tables, columns=["id", "v"])
    written: list[Wrote] = []
    with sink_tables.engine.connect() as rival:
        rival.execute(text(f"INSERT INTO \"{sink_tables.schema}\".t VALUES ({MANY // 2}, 'theirs')"))
        ours = threading.Thread(target=lambda: written.append(write(sink_tables, sink, *rows(0, MANY, "ours"))))
        ours.start()
        wait_until_blocked(sink_tables.engine, by=backend(rival))
        rival.commit()
        ours.join(30)
    assert written[0].fell_back
    assert sink_tables.rows("id", "v") == [(n, "ours") for n in range(MANY)]


@pytest.mark.parametrize("strategy", [WriteStrategy.TEMP_TABLE], indirect=True)
def test_two_writers_of_the_same_keys_in_any_order_never_deadlock(
    sink_tables: SinkTables, strategy: WriteStrategy
) -> None:
    """The stage is sorted by key. What the server thinks of deadlocks would be raised."""
    sinks = [
        upsert(sink_tables, columns=["id", "v"]),
        Upsert((sink_tables.schema, "t"), key=["id"], columns=["id", "v"]),
    ]
    failed: list[BaseException] = []

    def run(sink: Upsert, seed: int) -> None:
        chance = random.Random(seed)
        try:
            for n in range(15):
                write(sink_tables, sink, *chance.sample([kv(key, f"{seed}-{n}") for key in range(MANY)], MANY))
        except BaseException as error:  # noqa: BLE001 -- raised by the test's own thread
            failed.append(error)

    writers = [threading.Thread(target=run, args=(sink, seed)) for seed, sink in enumerate(sinks)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert not failed
    last = sink_tables.rows("v")
    assert len(last) == MANY
    assert set(last) in ({("0-14",)}, {("1-14",)})


def test_a_deadlock_between_new_keys_turns_to_the_stage(sink_tables: SinkTables, new_engine: NewEngine) -> None:
    """On ``copy`` the order is the records'. The rival's deadlock_timeout is long, so the server ends ours.

    A session that waits checks for a deadlock once: a third one delays ours on its way until the rival waits for it.
    """
    patient = new_engine(sink_tables.engine.url, connect_args={"options": "-c deadlock_timeout=60s"})
    ours = SinkTables(
        new_engine(sink_tables.engine.url, connect_args={"options": "-c deadlock_timeout=20ms"}), sink_tables.schema
    )
    sink = upsert(sink_tables, columns=["id", "v"])
    written: list[Wrote] = []
    theirs = text(f"INSERT INTO \"{sink_tables.schema}\".t VALUES (:id, 'theirs')")

    def go_on(rival: Connection) -> None:
        rival.execute(theirs, {"id": 0})
        rival.commit()

    with patient.connect() as third, patient.connect() as rival:
        third.execute(theirs, {"id": MANY // 2})
        rival.execute(theirs, {"id": MANY - 1})
        writer = threading.Thread(target=lambda: written.append(write(ours, sink, *rows(0, MANY, "ours"))))
        writer.start()
        waits = wait_until_blocked(sink_tables.engine, by=backend(third))
        going_on = threading.Thread(target=go_on, args=[rival])
        going_on.start()
        wait_until_blocked(sink_tables.engine, by=waits)
        third.rollback()
        writer.join(30)
        going_on.join(30)
    assert written[0].fell_back
    assert sink_tables.rows("id", "v") == [(n, "ours") for n in range(MANY)]


def test_partitioned_tables_row_security_and_views(sink_tables: SinkTables) -> None:
    parted = upsert(
        sink_tables, "id int PRIMARY KEY, v text) PARTITION BY RANGE (id", name="parted", columns=["id", "v"]
    )
    sink_tables.sql("CREATE TABLE p1 PARTITION OF parted FOR VALUES FROM (0) TO (150);"
               "CREATE TABLE p2 PARTITION OF parted FOR VALUES FROM (150) TO (1000)")  # fmt: skip
    assert write(sink_tables, parted, *rows(0, MANY)).strategy is WriteStrategy.COPY
    assert write(sink_tables, parted, *rows(100, 100 + MANY), gone(0)).fell_back
    assert len(sink_tables.rows("id", name="parted")) == 99 + MANY

    upsert(sink_tables, name="base")
    sink_tables.sql("CREATE VIEW seen AS SELECT id, v FROM base")
    view = Upsert((sink_tables.schema, "seen"), key=["id"], columns=["id", "v"])
    for few in (1, MANY):
        assert write(sink_tables, view, *rows(0, few)).strategy is (
            WriteStrategy.UNNEST if few == 1 else WriteStrategy.TEMP_TABLE
        )
    assert write(sink_tables, view, gone(5)).deletes == 1
    assert len(sink_tables.rows("id", name="base")) == MANY - 1


# -- the session's stage ------------------------------------------------------------------------------------


@pytest.fixture
def one_connection_tables(sink_tables: SinkTables, new_engine: NewEngine) -> SinkTables:
    """Tables for sinks, with every transaction on the same session."""
    return SinkTables(new_engine(sink_tables.engine.url, pool_size=1, max_overflow=0), sink_tables.schema)


def staged(sink_tables: SinkTables, sink: Upsert) -> Any:
    with sink_tables.engine.connect() as tx:
        return tx.execute(text("SELECT to_regclass(:n)::oid"), {"n": f"pg_temp.{stage_name(sink.target)}"}).scalar_one()


@pytest.fixture
def staged_upsert(one_connection_tables: SinkTables, monkeypatch: pytest.MonkeyPatch) -> tuple[SinkTables, Upsert]:
    """A sink that stages everything."""
    monkeypatch.setattr(strategies, "SMALL", 0)
    sink = upsert(one_connection_tables, columns=["id", "v"])
    writer_of(sink).strategies._wait = 10**9
    return one_connection_tables, sink


def test_the_stage_is_made_once_per_session_and_made_again_after_discard(
    staged_upsert: tuple[SinkTables, Upsert],
) -> None:
    sink_tables, sink = staged_upsert
    write(sink_tables, sink, kv(1, "a"))
    first = staged(sink_tables, sink)
    assert first is not None
    write(sink_tables, sink, kv(1, "b"), kv(2, "b"))
    assert staged(sink_tables, sink) == first
    with sink_tables.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as session:
        session.exec_driver_sql("DISCARD TEMP")
    write(sink_tables, sink, kv(1, "c"))
    assert staged(sink_tables, sink) != first
    assert sink_tables.rows("id", "v") == [(1, "c"), (2, "b")]


def test_several_parts_of_one_transaction_and_parts_that_are_rolled_back(
    staged_upsert: tuple[SinkTables, Upsert],
) -> None:
    sink_tables, sink = staged_upsert

    with sink_tables.engine.begin() as tx:
        with pytest.raises(RowRefused), tx.begin_nested():  # the stage itself is made, and taken back
            part(sink, tx, kv(1, "a"), kv("x", "no number"))  # type: ignore[arg-type]
        with tx.begin_nested():
            part(sink, tx, kv(1, "b"), kv(2, "b"))
        with tx.begin_nested():
            part(sink, tx, kv(3, "c"), gone(2))
        undone = tx.begin_nested()
        part(sink, tx, kv(1, "undone"), kv(4, "undone"))
        undone.rollback()
        part(sink, tx, kv(5, "d"))
    assert sink_tables.rows("id", "v") == [(1, "b"), (3, "c"), (5, "d")]
    write(sink_tables, sink, kv(6, "e"))
    assert sink_tables.rows("id") == [(1,), (3,), (5,), (6,)]


def test_behind_a_pooler_nothing_is_left_in_the_session(staged_upsert: tuple[SinkTables, Upsert]) -> None:
    """What gives it away: the server's process is not the one that was announced when the client connected."""
    sink_tables, sink = staged_upsert
    assert not write(sink_tables, sink, kv(1, "a")).pooled
    with sink_tables.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as session:
        session.exec_driver_sql("DISCARD TEMP")
    sink_tables.sql("CREATE FUNCTION pg_backend_pid() RETURNS int LANGUAGE sql AS 'SELECT 1'")
    with sink_tables.engine.begin() as tx:
        tx.exec_driver_sql(f'SET LOCAL search_path = "{sink_tables.schema}", pg_catalog')
        for v in ("b", "c"):
            with writer_of(sink).open(tx) as writer:
                writer.write([(1, v), (2, v)])
    assert writer_of(sink).strategies.last is not None
    assert writer_of(sink).strategies.last.pooled
    assert sink_tables.rows("id", "v") == [(1, "c"), (2, "c")]
    assert staged(sink_tables, sink) is None


def test_a_table_that_is_altered_while_the_sink_runs_takes_what_it_takes_now(one_connection_tables: SinkTables) -> None:
    """Neither an old stage nor an old statement refuses a value that the table has room for."""
    sink_tables = one_connection_tables
    sink = upsert(sink_tables, "id int PRIMARY KEY, v int", columns=["id", "v"])
    for few in (2, MANY):
        write(sink_tables, sink, *[kv(n, n) for n in range(few)])
        writer_of(sink).strategies._wait = 10**9
        write(sink_tables, sink, *[kv(n, n) for n in range(few)])
    sink_tables.sql("ALTER TABLE t ALTER v TYPE bigint")
    write(sink_tables, sink, kv(0, 2**40))
    write(sink_tables, sink, gone(1), gone(77))
    write(sink_tables, sink, *[kv(n, 2**41) for n in range(2, MANY)])
    assert sink_tables.rows("v") == sorted([(2**40,), *[(2**41,)] * (MANY - 2)])
    sink_tables.sql("ALTER TABLE t ALTER v TYPE text USING 'x' || v")
    write(sink_tables, sink, kv(0, "any text"), kv(1, "more"))
    assert ("any text",) in sink_tables.rows("v")
    sink_tables.sql("DROP TABLE t; CREATE TABLE t (v text, more int DEFAULT 3, id bigint PRIMARY KEY)")
    write(sink_tables, sink, kv(2**50, "new"), kv(1, "new"))
    write(sink_tables, sink, *[kv(2**50 + n, "new") for n in range(MANY)])
    assert len(sink_tables.rows("id", "v", "more")) == MANY + 1


# -- what is refused ----------------------------------------------------------------------------------------

BAD: dict[str, tuple[str, Any, str]] = {
    "overflow": ("int", 2**31, "out of range for type integer"),
    "no number": ("int", "seven", 'invalid input syntax for type integer: "seven"'),
    "too long": ("varchar(3)", "long", "value too long for type character varying(3)"),
    "NOT NULL": ("text NOT NULL", None, 'null value in column "v"'),
    "CHECK": ("int CHECK (v < 100)", 100, "t_v_check"),
    "enum": ("mood", "bad", "invalid input value for enum"),
    "domain": ("short", "no", "violates check constraint"),
    "year 0": ("timestamptz", "0000-01-01T00:00:00Z", "out of range"),
    "UNIQUE": ("text UNIQUE", "0", "duplicate key value violates unique constraint"),
    "FOREIGN KEY": ("int REFERENCES parent", 999, "violates foreign key constraint"),
    "NUL": ("text", "a\0b", "column 'v': DataError"),
    "surrogate": ("text", "\ud800", "column 'v': UnicodeEncodeError"),
    "no type": ("text", object(), "column 'v': ProgrammingError: cannot adapt type 'object'"),
    "key NULL": ("text", "key", "column 'id' is null"),
    "key refused": ("text", "key", "id"),
}  # fmt: skip


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_row_stops_its_partition_before_it(
    sink_tables: SinkTables, group: str, strategy: WriteStrategy, bad: str
) -> None:
    column, value, message = BAD[bad]
    sink_tables.sql(
        "CREATE TYPE mood AS ENUM ('0', '1', '2', '3', '4', '5', '6', '7', '8');"
        "CREATE DOMAIN short AS text CHECK (VALUE <> 'no');"
        "CREATE TABLE parent (id int PRIMARY KEY); INSERT INTO parent SELECT generate_series(0, 50)"
    )
    for name in ("mood", "short", "parent"):
        column = column.replace(name, f'"{sink_tables.schema}".{name}')
    keys: dict[str, Any] = {"key NULL": None, "key refused": "no number"}

    def row(r: AnyRecord) -> tuple[Any, ...]:
        worse = (r.partition, r.offset) == (0, 2)
        good = "2026-01-01" if "timestamptz" in column else str(int(r.value) % 9 if "mood" in column else r.value)
        key = 100 - int(r.value) if not worse or bad not in keys else keys[bad]
        return (key, value if worse and bad not in keys else good)

    records = [raw(str(n).encode(), topic=TOPIC, partition=p, offset=o) for n, (o, p) in enumerate(
        (o, p) for o in range(4) for p in (1, 0))]  # fmt: skip
    sink = upsert(sink_tables, f"id int PRIMARY KEY, v {column}", columns=["id", "v"], row=row)
    done = sink_tables.process(Pipeline(group, topics=TOPIC, value=Text(), sinks=[sink]), *records)
    assert message in str(stopped_at(done, 0, 2))
    assert sink_tables.rows("id") == [(100 - n,) for n in (6, 4, 3, 2, 1, 0)], "sorted by key, they came the other way"
    assert done.records == 6


@pytest.mark.parametrize("bad", [kv(7, "seven"), gone("x")], ids=["row", "tombstone"])  # type: ignore[arg-type]
@pytest.mark.parametrize("before", [(), (gone(5),), (kv(5, 5), gone(5), kv(6, 6))], ids=len)
def test_the_line_of_a_refused_row_is_known_after_tombstones(
    sink_tables: SinkTables, strategy: WriteStrategy, before: Sequence[AnyRecord], bad: AnyRecord
) -> None:
    sink = upsert(sink_tables, "id int PRIMARY KEY, v int", columns=["id", "v"])
    records = [kv(1, 1), *before, kv(2, 2), bad, kv(3, 3), gone(2)]
    with pytest.raises(RowRefused) as refused:
        write(sink_tables, sink, *records)
    if strategy is not WriteStrategy.UNNEST:  # where the server does not say which it was
        assert refused.value.line == records.index(bad) + 1
    assert sink_tables.rows("id") == []


@pytest.mark.parametrize(
    ("body", "options", "error", "message"),
    [
        ("id int, v text", {}, ConfigError, r'no unique index on exactly \("id"\).*CREATE UNIQUE INDEX ON'),
        ("id int, v text, PRIMARY KEY (id, v)", {}, ConfigError, "no unique index on exactly"),
        ("id int UNIQUE DEFERRABLE, v text", {}, ConfigError, "A partial, deferrable or invalid index does not count"),
        (PLAIN, {"columns": ["id", "nope"]}, psycopg.errors.UndefinedColumn, "nope"),
        (PLAIN, {"columns": ["id", "nope"], "name": "other"}, psycopg.errors.UndefinedTable, "none"),
        (PLAIN + ", g int GENERATED ALWAYS AS (1) STORED", {"columns": ["id", "g"]}, psycopg.Error, '"g"'),
    ],
)
def test_a_mistake_in_the_program_ends_the_work_and_names_the_remedy(
    sink_tables: SinkTables,
    strategy: WriteStrategy,
    *,
    body: str,
    options: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    sink = upsert(sink_tables, body, **{"columns": ["id", "v"], **options})
    if options.get("name"):
        sink = Upsert((sink_tables.schema, "none"), key=["id"], columns=["id"])
    with pytest.raises(error, match=message):
        write(sink_tables, sink, record(dict.fromkeys(["id", "v", "nope", "g"], 1)))


@pytest.mark.parametrize("kind", ["text", "real", "double precision", "jsonb", "bigint[]"])
def test_offsets_are_compared_as_whole_numbers(sink_tables: SinkTables, kind: str) -> None:
    """In a text column '9' is after '10': the newer row would be dropped without an error."""
    sink = upsert(sink_tables, f"id int PRIMARY KEY, v text, o {kind}", columns=["id", "v"], offset_column="o")
    remedy = r"offset_column='o' is of type .* ALTER COLUMN \"o\" TYPE bigint USING \"o\"::bigint"
    with sink_tables.engine.connect() as tx, pytest.raises(ConfigError, match=remedy):
        sink.check(tx)
    with pytest.raises(ConfigError, match=remedy):
        write(sink_tables, sink, record({"id": 1, "v": "nine"}, offset=9), record({"id": 1, "v": "ten"}, offset=10))


@pytest.mark.parametrize("kind", ["smallint", "int", "bigint", "numeric", "numeric(20)", "whole"])
def test_types_that_compare_offsets(sink_tables: SinkTables, kind: str) -> None:
    sink_tables.sql("CREATE DOMAIN whole AS bigint CHECK (value >= 0)")
    sink = upsert(sink_tables, f"id int PRIMARY KEY, v text, o {kind}", columns=["id", "v"], offset_column="o")
    for offset, v in ((9, "nine"), (10, "ten"), (9, "again")):
        write(sink_tables, sink, record({"id": 1, "v": v}, offset=offset))
    assert sink_tables.rows("id", "v", "o") == [(1, "ten", 10)]


def test_a_trigger_that_changes_the_key_is_named(sink_tables: SinkTables, strategy: WriteStrategy) -> None:
    sink = upsert(sink_tables, "id text PRIMARY KEY, v text", columns=["id", "v"])
    sink_tables.sql(
        "CREATE FUNCTION low() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.id := lower(NEW.id); "
        "RETURN NEW; END $$;"
        "CREATE TRIGGER low BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION low()"
    )
    with pytest.raises(psycopg.errors.CardinalityViolation) as caught:
        write(sink_tables, sink, record({"id": "a", "v": "1"}), record({"id": "A", "v": "2"}))
    assert "a trigger gave two rows of one transaction the same key" in caught.value.__notes__[0]


# -- whole pipelines ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("many", [False, True])
def test_values_alone_tombstones_between_and_the_audit_is_a_query(
    sink_tables: SinkTables, group: str, many: bool
) -> None:
    sink = upsert(sink_tables, "id int PRIMARY KEY, note text", key=["id"])
    audited = upsert(
        sink_tables, "id int PRIMARY KEY, note text, t text, p int, o bigint", name="a", provenance=("t", "p", "o")
    )
    ids = range(MANY if many else 4)
    records = [raw(b'{"id": %d, "note": "n"}' % n, topic=TOPIC, offset=n, key=b"%d" % n) for n in ids]
    records += [raw(None, topic=TOPIC, offset=1000, key=b"2"), raw(b'{"id": 1}', topic=TOPIC, offset=1001, key=b"1")]
    value, key = Json(Order, tombstones=True), Json(int)
    for n, sink_ in enumerate((sink, audited)):
        pipeline = Pipeline(f"{group}-{n}", topics=TOPIC, value=value, key=key, sinks=[sink_])
        assert sink_tables.process(pipeline, *records).records == len(records)
    expected = [(n, None if n == 1 else "n") for n in ids if n != 2]
    assert sink_tables.rows("id", "note") == expected
    assert sink_tables.rows("id", "note", name="a") == expected
    assert sink_tables.rows("o", "t", "p", name="a")[-1] == (1001, TOPIC, 0)
    assert len(sink_tables.rows("o", name="a")) == len(expected)


BAD_VALUES: dict[str, Any] = {"CHECK": -1, "overflow": 2**31, "no number": "seven", "NUL": "a\0b", "FOREIGN KEY": 999}


@pytest.mark.repeats("seed")
@pytest.mark.parametrize("seed", range(8))
def test_bad_rows_among_many_are_dead_lettered(sink_tables: SinkTables, group: str, seed: int) -> None:
    """New keys, repeated keys and tombstones, in large transactions: the table is what the good records say."""
    chance = random.Random(seed)
    sink_tables.sql("CREATE TABLE parent (id int PRIMARY KEY); INSERT INTO parent SELECT generate_series(0, 100)")
    body = f'id int PRIMARY KEY, v int CHECK (v >= 0) REFERENCES "{sink_tables.schema}".parent, o bigint'
    sink = upsert(sink_tables, body, columns=["id", "v"], offset_column="o", row=lambda r: (r.key, records[r.offset]))
    pipeline = Pipeline(
        group, topics=TOPIC, value=Json(tombstones=True), key=Json(int), sinks=[sink], on_poison="dead_letter",
        dead_letter_limits=DeadLetterLimits(consecutive=10**6, ratio=1.0),
    )  # fmt: skip
    records: list[Any] = []
    log: list[RawRecord] = []
    bad: dict[int, int] = {}
    expected: dict[int, tuple[Any, ...]] = {}
    repeats, gone_at = chance.choice([0, 0.2]), chance.choice([0, 0.1])
    for offset in range(3 * MANY):
        key = offset if chance.random() >= repeats else chance.randrange(offset + 1)
        is_bad, is_gone = chance.random() < 0.02, chance.random() < gone_at
        records.append(BAD_VALUES[chance.choice(list(BAD_VALUES))] if is_bad else chance.randrange(100))
        log.append(raw(None if is_gone else b"0", topic=TOPIC, offset=offset, key=b"%d" % key))
        if is_gone:
            expected.pop(key, None)
        elif is_bad:
            bad[offset] = key
        else:
            expected[key] = (key, records[-1], offset)
    aside: set[int] = set()
    for end in (MANY, 3 * MANY):
        done = sink_tables.process(pipeline, *log[:end])
        aside |= {dead_letter.offset for dead_letter in done.dead_letters}
    assert sink_tables.rows("id", "v", "o") == sorted(expected.values())
    assert aside <= set(bad)
    last = {int(record.key or b""): record.offset for record in log}
    assert all(last[bad[offset]] > offset for offset in set(bad) - aside), "only what is superseded is not looked at"


def test_values_go_the_short_way_where_keys_are_not_decoded(sink_tables: SinkTables, group: str) -> None:
    """Then a tombstone without tombstone_key= is refused as its key is bytes, and with it deletes."""
    records = [*orders(*[b'{"id": %d}' % n for n in range(5)]), raw(None, topic=TOPIC, offset=5, key=b"3")]
    value = Json(Order, tombstones=True)
    sink = upsert(sink_tables, "id int PRIMARY KEY, note text")
    with pytest.raises(ConfigError, match="a tombstone's key is bytes"):
        sink_tables.process(Pipeline(group, topics=TOPIC, value=value, sinks=[sink]), *records)
    sink = Upsert(sink.path, key=["id"], tombstone_key=lambda r: int(r.key))
    sink_tables.process(Pipeline(group, topics=TOPIC, value=value, sinks=[sink]), *records)
    assert sink_tables.rows("id") == [(0,), (1,), (2,), (4,)]


def test_two_sinks_write_one_batch_and_only_tombstones_need_no_columns(sink_tables: SinkTables, group: str) -> None:
    last = upsert(sink_tables, "id int PRIMARY KEY, note text", name="last")
    every = Append(sink_tables.create("id int, note text", "every"), row=lambda r: r.value)
    value = Json(Order, tombstones=True)
    pipeline = Pipeline(group, topics=TOPIC, value=value, key=Json(int), sinks=[every, last])
    sink_tables.process(pipeline, raw(None, topic=TOPIC, key=b"1"), raw(None, topic=TOPIC, key=b"2", offset=1))
    sink_tables.process(pipeline, *orders(b'{"id": 1}', b'{"id": 1, "note": "n"}', start=2))
    assert sink_tables.rows("id", "note", name="last") == [(1, "n")]
    assert len(sink_tables.rows("id", name="every")) == 2


def test_bytes_are_a_key_too(sink_tables: SinkTables, group: str) -> None:
    sink = upsert(sink_tables, "id bytea PRIMARY KEY, v bytea", columns=["id", "v"], row=lambda r: (r.key, r.value))
    pipeline = Pipeline(group, topics=TOPIC, value=Bytes(), sinks=[sink])
    sink_tables.process(pipeline, *[raw(b"%d" % n, topic=TOPIC, offset=n, key=bytes([n % 3])) for n in range(9)])
    assert sink_tables.rows("id", "v") == [(b"\x00", b"6"), (b"\x01", b"7"), (b"\x02", b"8")]


# -- at random ----------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 5), st.sampled_from(["up", "up", "up", "gone"]), st.integers(0, 9)),
    max_size=40,
)


def cut(steps: Sequence[Any], ends: list[int]) -> Iterator[Sequence[Any]]:
    """The batches of one split."""
    start = 0
    for end in sorted({min(n, len(steps)) for n in ends} | {len(steps)}):
        yield steps[start:end]
        start = end


def last_record(expected: dict[int, int], key: int, what: str, v: int) -> None:
    """The model of an Upsert whose records come in the order of their offsets."""
    if what == "up":
        expected[key] = v
    else:
        expected.pop(key, None)


def same_as_a_dict(
    sink_tables: SinkTables,
    sink: Upsert,
    record_of: Callable[[int, int, str, int, int], AnyRecord],
    model: Callable[[dict[int, int], int, str, int], None],
) -> None:
    """Whatever the records, their partitions and the batches: the table is what the model says. Prints the seed."""

    @settings(max_examples=60)
    @given(STEPS, st.lists(st.integers(0, 40), max_size=6))
    def check(steps: list[tuple[int, int, str, int]], ends: list[int]) -> None:
        sink_tables.sql("TRUNCATE t")
        expected: dict[int, int] = {}
        offset = 0
        for batch in cut(steps, ends):
            records = []
            for partition, key, what, v in batch:
                records.append(record_of(partition, key, what, v, offset))
                model(expected, key, what, v)
                offset += 1
            with sink_tables.engine.begin() as tx:
                part(sink, tx, *records)
        assert sink_tables.rows("id", "v") == sorted(expected.items())

    check()


def test_a_key_in_one_partition_ends_as_its_last_record_says(sink_tables: SinkTables, strategy: WriteStrategy) -> None:
    """Partitions interleave; a key belongs to one of them, as Kafka's partitioner has it."""

    def record_of(_: int, key: int, what: str, v: int, offset: int) -> AnyRecord:
        return kv(key, v, offset, key % 3) if what == "up" else gone(key, offset, key % 3)

    same_as_a_dict(
        sink_tables, upsert(sink_tables, "id int PRIMARY KEY, v int", columns=["id", "v"]), record_of, last_record
    )


def test_a_key_that_the_server_dedupes_ends_as_its_last_record_says(sink_tables: SinkTables) -> None:
    """Keys come as text for a column of integers."""

    def record_of(_: int, key: int, what: str, v: int, offset: int) -> AnyRecord:
        spelled = f"{key:03}" if offset % 2 else str(key)
        return record({"id": spelled, "v": v} if what == "up" else None, key=spelled, offset=offset)

    same_as_a_dict(
        sink_tables, upsert(sink_tables, "id int PRIMARY KEY, v int", columns=["id", "v"]), record_of, last_record
    )


def test_a_key_in_several_partitions_ends_at_its_highest_order(
    sink_tables: SinkTables, strategy: WriteStrategy
) -> None:
    """Without deletions, which are not remembered: the highest value of each key, wherever and whenever it came."""

    def record_of(partition: int, key: int, _: str, v: int, offset: int) -> AnyRecord:
        return kv(key, v, offset, partition)

    def model(expected: dict[int, int], key: int, _: str, v: int) -> None:
        expected[key] = max(expected.get(key, v), v)

    sink = upsert(sink_tables, "id int PRIMARY KEY, v int", columns=["id", "v"], order_by="v")
    same_as_a_dict(sink_tables, sink, record_of, model)


@pytest.mark.long
def test_a_guarded_table_outlives_any_replay(sink_tables: SinkTables, strategy: WriteStrategy) -> None:
    """The log, then any part of it again from anywhere: nothing older than what is stored is ever seen."""
    sink = upsert(sink_tables, "id int PRIMARY KEY, v int, o bigint", columns=["id", "v"], offset_column="o")

    @settings(max_examples=40)
    @given(STEPS, st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=4))
    def check(steps: list[tuple[int, int, str, int]], again: list[tuple[int, int]]) -> None:
        sink_tables.sql("TRUNCATE t")
        log = [kv(key, v, n) for n, (_, key, _, v) in enumerate(steps)]
        last = {record.value["id"]: (record.value["v"], record.offset) for record in log}
        for batch in (log, *(log[a : a + b] for a, b in again)):
            with sink_tables.engine.begin() as tx:
                part(sink, tx, *batch)
            assert sink_tables.rows("id", "v", "o") == sorted((key, v, o) for key, (v, o) in last.items())

    check()


def test_the_unit_of_work_applies_each_record_once_whatever_the_split(sink_tables: SinkTables, group: str) -> None:
    sink = upsert(sink_tables, "id int PRIMARY KEY, note text")
    pipeline = Pipeline(group, topics=TOPIC, value=Json(Order, tombstones=True), key=Json(int), sinks=[sink])
    records: list[RawRecord] = []
    for n in range(300):
        body = None if n % 7 == 0 else b'{"id": %d, "note": "%d"}' % (n % 40, n)
        records.append(raw(body, topic=TOPIC, partition=n % 40 % 2, offset=n, key=b"%d" % (n % 40)))
    for end in (1, 5, 130, 131, 300):
        sink_tables.process(pipeline, *records[:end])
    last = {n % 40: n for n in range(300)}
    assert sink_tables.rows("id", "note") == sorted((key, str(n)) for key, n in last.items() if n % 7)
    assert sink_tables.positions(pipeline) == {Partition(TOPIC, 0): 299, Partition(TOPIC, 1): 300}
