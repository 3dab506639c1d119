"""By every write strategy, and whatever ends it, the same becomes of each record."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, IntegrityError

from seekpoint import Append, Json, Pipeline, Text
from seekpoint.errors import CodecUnavailable
from seekpoint.pipeline.sink import RowRefused
from seekpoint.postgres.session import Session
from seekpoint.records import Partition
from seekpoint.sinks import Upsert
from seekpoint.sinks.arrow import AppendArrow
from seekpoint.sinks.encoders import Unwritable
from seekpoint.sinks.upsert.strategy import WriteStrategies
from seekpoint.testing import kit, raw, record
from seekpoint.worker.assignment.chunk import Chunk
from seekpoint.worker.open_batch import Buffer
from seekpoint.worker.parts import PartSavepoints
from support.round_trips import trips
from support.sink_tables import TOPIC, SinkTables, writer_of

WIDE = "new" * 50  # so that the driver sends its buffer, and the server looks at its own, before the COPY ends


@pytest.fixture
def by_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kit hands records over in chunks of 500, as a worker draws them (one partition)."""

    def opened(first: Chunk[Any], draw: Any, ask: Any, limits: Any) -> Buffer:
        ((partition, read),) = first.reads.items()
        start, parts = read.start, []
        for n in range(0, len(first), 500):
            some: Sequence[Any] = first.messages[n : n + 500]
            end = some[-1].offset + 1
            parts.append(Chunk(some, {partition: replace(read, start=start, end=end)}))
            start = end
        left = iter(parts)
        return Buffer(next(left), lambda: next(left, None), ask, limits)

    monkeypatch.setattr(kit, "Buffer", opened)


def kv(n: int, v: Any) -> Any:
    return record({"id": n, "v": v}, key={"id": n})


def written(sink: Upsert, numbers: range, v: str = WIDE) -> list[Any]:
    return [row for n in numbers for row in writer_of(sink).rows(kv(n, v))]


def new_rows(sink: Upsert) -> list[list[Any]]:
    """2,000 rows in four parts, of which the second row is an update."""
    return [written(sink, range(n, n + 500)) for n in range(0, 2000, 500)]


def _write(sink_tables: SinkTables, sink: Upsert, parts: Iterable[list[Any]]) -> None:
    with sink_tables.engine.begin() as tx, writer_of(sink).open(tx) as writer:
        for part in parts:
            writer.write(part)


def one_old(sink_tables: SinkTables, **options: Any) -> Upsert:
    sink = Upsert(sink_tables.create("id int PRIMARY KEY, v text"), key=["id"], columns=["id", "v"], **options)
    sink_tables.sql("INSERT INTO t VALUES (1, 'old')")
    return sink


# An update first, more than 1,000 rows, then anything but a clean end: the update is not to blame --------------------


def test_a_copy_that_is_given_up_logs_no_warning(sink_tables: SinkTables, caplog: pytest.LogCaptureFixture) -> None:
    """The server has refused the update already; the rows are staged, and nothing is wrong."""
    sink = one_old(sink_tables)
    _write(sink_tables, sink, [*new_rows(sink), list(writer_of(sink).rows(record(None, key={"id": 5})))])
    assert len(sink_tables.rows("id")) == 1999, "a tombstone after an update"
    assert writer_of(sink).strategies.last is not None
    assert writer_of(sink).strategies.last.fell_back
    assert [line.getMessage() for line in caplog.records if line.name.startswith("psycopg")] == []


def test_a_value_that_cannot_be_written_after_an_update(sink_tables: SinkTables) -> None:
    sink = one_old(sink_tables)
    with pytest.raises(RowRefused) as refused:
        _write(sink_tables, sink, [*new_rows(sink), written(sink, range(2000, 2001), "a\0b")])
    assert isinstance(refused.value.cause, Unwritable)
    assert refused.value.line == 2001


def test_a_codec_that_gets_no_answer_after_an_update(sink_tables: SinkTables) -> None:
    sink = one_old(sink_tables)

    def parts() -> Iterator[list[Any]]:
        yield from new_rows(sink)
        raise CodecUnavailable("no answer", lambda: None)

    with pytest.raises(CodecUnavailable):
        _write(sink_tables, sink, parts())


@pytest.mark.usefixtures("by_chunks")
@pytest.mark.parametrize("last", [None, b'{"id": 9999, "v": "a\\u0000b"}'], ids=["tombstone", "NUL"])
def test_an_update_is_not_blamed_for_what_ends_the_copy(
    sink_tables: SinkTables, group: str, last: bytes | None
) -> None:
    sink = one_old(sink_tables)
    pipeline = Pipeline(
        group, topics=TOPIC, value=Json(tombstones=True), key=Json(), sinks=[sink], on_poison="dead_letter"
    )
    log = [
        raw(b'{"id": %d, "v": "%s"}' % (n, WIDE.encode()), topic=TOPIC, offset=n, key=b"%d" % n) for n in range(2000)
    ]
    log.append(raw(last, topic=TOPIC, offset=2000, key=b"5"))
    done = sink_tables.process(pipeline, *log)
    assert [dead_letter.offset for dead_letter in done.dead_letters] == ([] if last is None else [2000])
    assert (1, WIDE) in sink_tables.rows("id", "v")


def test_an_update_that_another_constraint_refuses_first(
    sink_tables: SinkTables, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may ask an older exclusion constraint before it asks the key: the row is an update all the same."""
    conflicts: list[int] = []

    def note(self: WriteStrategies) -> None:
        conflicts.append(1)
        met(self)

    met = WriteStrategies.met_a_conflict
    monkeypatch.setattr(WriteStrategies, "met_a_conflict", note)
    path = sink_tables.create("id int, v text, EXCLUDE USING btree (v WITH =)")
    sink_tables.sql("ALTER TABLE t ADD PRIMARY KEY (id); INSERT INTO t VALUES (1, 'v1')")
    sink = Upsert(path, key=["id"], columns=["id", "v"])
    pipeline = Pipeline(group, topics=TOPIC, value=Json(), sinks=[sink])
    values = [b'{"id": %d, "v": "v%d"}' % (n, n) for n in range(1, 301)]
    done = sink_tables.process(pipeline, *[raw(v, topic=TOPIC, offset=n) for n, v in enumerate(values)])
    assert (done.dead_letters, done.stopped, conflicts) == ((), {}, [1])
    assert len(sink_tables.rows("id")) == 300


# An error that a savepoint by hand takes back ---


def test_an_error_after_a_savepoint_by_hand(sink_tables: SinkTables, group: str) -> None:
    sink_tables.create("id bigint PRIMARY KEY, v text CHECK (v <> 'bad')", "t")
    sink_tables.create("v text UNIQUE", "audit")
    row = text(f'INSERT INTO "{sink_tables.schema}".t VALUES (:id, :v)')
    audit = text(f'INSERT INTO "{sink_tables.schema}".audit VALUES (:v)')

    def handle(tx: Any, batch: Any) -> None:
        for r in batch:
            tx.execute(audit, {"v": r.value})  # outside of the try: whatever it raises is the record's fault
            try:
                tx.exec_driver_sql("SAVEPOINT mine")
                tx.execute(row, {"id": r.offset, "v": r.value})
                tx.exec_driver_sql("RELEASE mine")
            except IntegrityError:
                tx.exec_driver_sql("ROLLBACK TO mine")

    pipeline = Pipeline(group, topics=TOPIC, value=Text(), handle=handle, on_poison="dead_letter")
    log = [raw(v, topic=TOPIC, offset=n) for n, v in enumerate([b"a", b"bad", b"a", b"c"])]
    done = sink_tables.process(pipeline, *log)
    assert [dead_letter.offset for dead_letter in done.dead_letters] == [2]
    assert sink_tables.rows("id") == [(0,), (3,)]
    assert sink_tables.rows("v", name="audit") == [("a",), ("bad",), ("c",)]


# Few rows go nowhere where COPY does not ---


@pytest.mark.parametrize("count", [1, 50])
def test_a_rule_sees_no_rows_however_few(sink_tables: SinkTables, group: str, count: int) -> None:
    path = sink_tables.create("v text")
    sink_tables.sql("CREATE RULE r AS ON INSERT TO t DO INSTEAD NOTHING")
    sink = Append(path, columns=["v"], row=lambda r: (r.value,))
    pipeline = Pipeline(group, topics=TOPIC, value=Text(), sinks=[sink])
    sink_tables.process(pipeline, *[raw(b"x", topic=TOPIC, offset=n) for n in range(count)])
    assert len(sink_tables.rows("v")) == count


@pytest.mark.parametrize("count", [1, 50])
def test_a_view_is_refused_however_few_the_rows(sink_tables: SinkTables, group: str, count: int) -> None:
    sink_tables.create("v text")
    sink_tables.sql("CREATE VIEW w AS SELECT * FROM t")
    sink = Append((sink_tables.schema, "w"), columns=["v"], row=lambda r: (r.value,))
    pipeline = Pipeline(group, topics=TOPIC, value=Text(), sinks=[sink])
    records = [raw(b"x", topic=TOPIC, offset=n) for n in range(count)]
    if count == 1:  # no other record shows that it is the program's fault: the partition alone stops
        assert "cannot copy to view" in str(sink_tables.process(pipeline, *records).stopped[Partition(TOPIC, 0)])
    else:
        with pytest.raises(Exception, match="cannot copy to view"):
            sink_tables.process(pipeline, *records)
    assert sink_tables.rows("v") == []


# Values for JSON are JSON, whatever their type ---

DOCUMENTS = ["5", "null", "true", "text", 5, True, [1, 2], ["5"], {"a": "5"}, None]
STORED = ['"5"', '"null"', '"true"', '"text"', "5", "true", "[1, 2]", '["5"]', '{"a": "5"}', None]


@pytest.mark.parametrize("kind", ["jsonb", "json", "document"])
@pytest.mark.parametrize("strategy", ["few", "many", "unnest", "stage", "direct", "arrow", "whole table"])
def test_values_for_a_column_of_json_are_dumped_as_json(
    sink_tables: SinkTables, group: str, strategy: str, kind: str
) -> None:
    sink_tables.sql("CREATE DOMAIN document AS jsonb")
    declared = f'"{sink_tables.schema}".{kind}' if kind == "document" else kind
    path = sink_tables.create(f"id int PRIMARY KEY, v {declared}")
    pipeline = Pipeline(group, topics=TOPIC, value=Json(), sinks=[_sink_of(strategy, path)])
    bodies = [json.dumps({"id": n, "v": v}).encode() for n, v in enumerate(DOCUMENTS)]
    if strategy in {"many", "direct", "stage"}:  # a key twice: not directly
        rest = range(len(bodies) - (strategy == "stage"), 300)
        bodies += [json.dumps({"id": n, "v": None}).encode() for n in rest]
    done = sink_tables.process(pipeline, *[raw(v, topic=TOPIC, offset=n) for n, v in enumerate(bodies)])
    assert done.dead_letters == ()
    with sink_tables.engine.connect() as tx:
        rows = tx.execute(text(f'SELECT v::jsonb::text FROM "{sink_tables.schema}".t ORDER BY id'))
        assert [row[0] for row in rows][: len(STORED)] == STORED


def _sink_of(strategy: str, path: tuple[str, str]) -> Any:
    columns = ["id", "v"]
    if strategy in {"unnest", "stage", "direct"}:
        return Upsert(path, key=["id"], columns=columns)
    if strategy == "whole table":
        return AppendArrow(path, columns=columns, row=lambda r: pa.table({"id": [r.value["id"]], "v": [r.value["v"]]}))
    return (AppendArrow if strategy == "arrow" else Append)(path, columns=columns)


@pytest.mark.parametrize("strategy", ["few", "arrow", "unnest"])
def test_elements_of_an_array_of_json_are_dumped_as_json(sink_tables: SinkTables, group: str, strategy: str) -> None:
    path = sink_tables.create("id int PRIMARY KEY, v jsonb[]")
    value = json.dumps({"id": 1, "v": ["5", 5, None, [1], {"a": 1}]}).encode()
    sink_tables.process(
        Pipeline(group, topics=TOPIC, value=Json(), sinks=[_sink_of(strategy, path)]), raw(value, topic=TOPIC)
    )
    assert sink_tables.value("v = ARRAY['\"5\"', '5', NULL, '[1]', '{\"a\": 1}']::jsonb[]")


def test_arrows_own_json_is_json_already(sink_tables: SinkTables) -> None:
    path = sink_tables.create("id int, v jsonb")
    column = pa.ExtensionArray.from_storage(pa.json_(pa.string()), pa.array(['{"a": [1.50]}'], pa.string()))
    sink = AppendArrow(path)
    with sink_tables.engine.begin() as tx, writer_of(sink).open(tx) as writer:
        writer.write(list(writer_of(sink).rows(record(pa.table({"id": [1], "v": column})))))
    assert sink_tables.value("v::text") == '{"a": [1.50]}'


def test_types_are_asked_again_after_a_part_that_was_undone(sink_tables: SinkTables) -> None:
    """ROLLBACK TO releases the lock that the part had taken: the table may be altered before the next part begins."""
    path = sink_tables.create("o bigint, v text")
    sink, session = Append(path, columns=["o", "v"]), Session(sink_tables.engine)
    with session.transaction() as tx:
        savepoints = PartSavepoints(tx, keeps_locks=True)
        with writer_of(sink).open(tx) as writer:
            writer.write([(0, "5")])
        savepoints.undo()
        sink_tables.sql("SET LOCAL lock_timeout = '5s'; ALTER TABLE t ALTER v TYPE jsonb USING to_jsonb(v)")
        with writer_of(sink).open(tx) as writer:
            writer.write([(1, "5")])
    session.close()
    assert sink_tables.value("""count(*) FILTER (WHERE o = 1 AND v::text = '"5"')""") == 1


@pytest.mark.parametrize("keeps_locks", [True, False])
def test_types_are_asked_once_while_their_lock_is_held(sink_tables: SinkTables, *, keeps_locks: bool) -> None:
    """After a part that was kept; each part asks again if the user's code could release the lock."""
    sink, session = Append(sink_tables.create("o bigint, v text"), columns=["o", "v"]), Session(sink_tables.engine)
    with session.transaction() as tx:
        savepoints = PartSavepoints(tx, keeps_locks=keeps_locks)
        counts = []
        for o in range(3):
            with trips(tx.driver) as counted, writer_of(sink).open(tx) as writer:
                writer.write([(o, "5")])
            counts.append(counted.count)
            savepoints.keep() if o == 0 else savepoints.undo()
        with pytest.raises(DBAPIError, match="lock timeout"):
            sink_tables.sql("SET LOCAL lock_timeout = '10ms'; ALTER TABLE t ALTER v TYPE jsonb USING to_jsonb(v)")
    session.close()
    assert counts[2] == counts[1] == (2 if keeps_locks else 3)
