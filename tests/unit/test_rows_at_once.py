"""The rows of a chunk that are made at once are those that are made record by record, and so are the failures."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seekpoint import Append, Json, Limits, Pipeline, Retry, Text, Upsert
from seekpoint.codecs import Debezium
from seekpoint.errors import ConfigError
from seekpoint.kafka.identity import Answer
from seekpoint.pipeline.writers import ONE_BY_ONE, PipelineWriters
from seekpoint.records import LazyRecords, RawRecord
from seekpoint.testing import raw
from seekpoint.worker.assignment.chunk import Chunk
from seekpoint.worker.decode import decoded_chunks, decoded_records
from seekpoint.worker.open_batch import Buffer, OpenBatch
from support.debezium import event, field, golden, key_of

AMOUNT = field("amount", "bytes", "org.apache.kafka.connect.data.Decimal", scale="2")
COLUMNS = [field("id", "int32"), field("name"), AMOUNT]
LOST = "__debezium_unavailable_value"


def lazy(records: list[RawRecord]) -> LazyRecords:
    """The records as a worker reads them."""
    offsets = [record.offset for record in records]
    return LazyRecords([record.value for record in records], lambda: records, lambda: offsets, topic="t", size=1)


def shown(value: Any) -> Any:
    """A value with its type; UNAVAILABLE has no equal."""
    return type(value).__name__, bytes(value) if isinstance(value, msgspec.Raw) else repr(value)


def outcome(pipeline: Pipeline, chunks: list[list[RawRecord]], *, at_once: bool) -> tuple[list[Any], list[Any], int]:
    """The rows of each record, the failures, and how many chunks were made into rows at once."""
    writers = PipelineWriters(pipeline)
    batch = OpenBatch(Buffer(Chunk([], {}), lambda: None, lambda *_: Answer(), Limits()))
    rows_of = writers.rows_at_once if at_once else lambda _: None
    decoded = [*decoded_chunks(writers, [lazy(chunk) for chunk in chunks], batch, rows_of)]
    rows = [
        (record.raw.id, type(row).__name__, [*map(shown, row)])
        for record in decoded_records(decoded)
        for row in record.rows[0]
    ]
    dead_letters = batch.outcome.dead_letters
    failures = [(dead.record.id, dead.failure.cause, dead.failure.summary) for dead in dead_letters]
    return (
        rows,
        [*failures, *map(str, batch.outcome.ends)],
        sum(rows_of_chunk is not None for _, rows_of_chunk, _ in decoded),
    )


def numbered(records: list[tuple[bytes | None, bytes | None]]) -> list[RawRecord]:
    return [raw(value, topic="t", offset=10 + n, key=key) for n, (key, value) in enumerate(records)]


def pipeline(sink: Any, value: Any, key: Any, **more: Any) -> Pipeline:
    return Pipeline(
        "g", topics="t", value=value, key=key, sinks=[sink], on_poison="dead_letter", retry=Retry(attempts=1), **more
    )


def changes(codec: Debezium, columns: list[str], **options: Any) -> Pipeline:
    return pipeline(Upsert("t", key=["id"], columns=columns, changes=True, **options), codec, codec)


rows = st.fixed_dictionaries(
    {
        "id": st.integers(1, 2) | st.none(),
        "name": st.sampled_from(["a", "", None, LOST]),
        "amount": st.sampled_from(["AQ==", "!", None, LOST]),
    }
)
usual = st.fixed_dictionaries(
    {"id": st.integers(1, 3), "name": st.text(max_size=3), "amount": st.sampled_from(["AQ==", "/w==", None])}
)


@st.composite
def change_records(draw: st.DrawFn) -> tuple[bytes | None, bytes | None]:
    """The key and value of a record: usually a change that is an upsert of a complete row, else anything else."""
    kind = draw(st.sampled_from([*["usual"] * 12, "any", "any", "tombstone", "broken"]))
    if kind == "usual":
        after: Any = draw(usual)
        before = draw(st.none() | st.just(after))
        op = draw(st.sampled_from("cru"))
        return key_of(id=after["id"]), event(COLUMNS, op, before, after, lsn=draw(st.integers(1, 99)))
    key = draw(st.sampled_from([key_of(id=1), key_of(id=2), key_of(other=1), None, b"{"]))
    if kind == "tombstone":
        return key, None
    if kind == "broken":
        return key, draw(st.sampled_from([b"", b"{", b"[]", b"null", b'{"schema":null,"payload":{}}', b"\0\0\0\0\1"]))
    op = draw(st.sampled_from("crudtm"))
    source: Any = draw(st.sampled_from([{}, {"connector": "postgresql", "lsn": 5}, {"connector": "mongodb"}]))
    return key, event(COLUMNS, op, draw(st.none() | rows), draw(st.none() | rows), **source)


SINKS: list[dict[str, Any]] = [
    {},
    {"offset_column": "o"},
    {"offset_column": "o", "truncate": "delete"},
    {"provenance": {"partition": "p"}},
    {"offset_column": "o", "provenance": {"partition": "p"}, "order_by": "position"},
]


@pytest.mark.parametrize("options", SINKS, ids=map(str, range(len(SINKS))))
@settings(max_examples=50, deadline=None)
@given(records=st.lists(change_records(), max_size=12), codec=st.sampled_from(["framed", "declared"]))
def test_changes_become_the_same_rows(
    options: dict[str, Any], records: list[tuple[bytes | None, bytes | None]], codec: str
) -> None:
    """Also if a chunk has deletes, changed keys, values that were not sent, or records that fail."""
    if codec == "declared":
        records = [(payload(key), payload(value)) for key, value in records]
    debezium = Debezium() if codec == "framed" else Debezium(types={"amount": AMOUNT})
    declared = changes(debezium, ["id", "name", "amount"], **options)
    chunk = numbered(records)
    before = outcome(declared, [chunk, chunk], at_once=False)  # the second time, the codec knows the schema
    assert outcome(declared, [chunk, chunk], at_once=True)[:2] == before[:2]


def payload(data: bytes | None) -> bytes | None:
    """The event without its schema."""
    try:
        return json.dumps(json.loads(data or b"")["payload"]).encode()
    except (ValueError, KeyError, TypeError):
        return data


def of(op: str, number: int, *, before: Any = None, name: str = "n") -> tuple[bytes, bytes]:
    after = None if op == "d" else {"id": number, "name": name, "amount": "AQ=="}
    return key_of(id=number), event(COLUMNS, op, before, after)


@pytest.mark.parametrize(
    ("odd", "is_at_once"),
    [
        (of("c", 5), True),
        (of("u", 5, before={"id": 5, "name": "old", "amount": None}), True),
        (of("u", 5, name=LOST), True),
        (of("d", 5), True),
        ((key_of(id=5), None), True),
        (of("u", 5, before={"id": 6, "name": "n", "amount": None}), False),  # a delete and an insert
        ((key_of(id=5), event(COLUMNS, "c", None, {"id": None, "name": "n", "amount": None})), False),
        ((key_of(id=5), b"{"), False),
        ((b"{", of("c", 5)[1]), False),
    ],
)
def test_a_chunk_of_changes_is_made_into_rows_at_once(odd: tuple[bytes, bytes | None], is_at_once: bool) -> None:
    """Unless a record has two rows, or none; then the failure names the record in the middle."""
    declared = changes(Debezium(), ["id", "name", "amount"], offset_column="o")
    chunk = numbered([of("c", 1), of("u", 2), odd, of("u", 4)])
    rows_at_once, failures, chunks = outcome(declared, [chunk], at_once=True)
    assert (rows_at_once, failures) == outcome(declared, [chunk], at_once=False)[:2]
    assert chunks == is_at_once
    assert [id_ for id_, *_ in failures] == ([] if len(rows_at_once) >= 4 else ["t/0/12"])


def test_after_a_chunk_that_was_decoded_twice_some_are_decoded_record_by_record() -> None:
    declared = changes(Debezium(), ["id", "name", "amount"])
    good, moved = numbered([of("c", 1)]), numbered([of("u", 5, before={"id": 6, "name": "n", "amount": None})])
    for more in range(3):
        rows_at_once, failures, chunks = outcome(declared, [moved, *[good] * (ONE_BY_ONE + more)], at_once=True)
        assert (len(rows_at_once), failures, chunks) == (2 + ONE_BY_ONE + more, [], more)


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("schema", "everything"),
        ("schema", "toasted"),
        ("schema", "fulls"),
        ("string_connect", "everything"),
        ("flattened", "everything"),
    ],
)
def test_debeziums_own_events_become_the_same_rows(name: str, table: str) -> None:
    records = golden(name, "t", source=f"dbz.shop.{table}")
    codec = Debezium(flattened=name == "flattened")
    row = next(change.after for change in map(codec.decode, records) if change is not None and change.after)
    declared = changes(codec, [*row], offset_column="o")
    chunks = [*([record] for record in records), records]
    assert outcome(declared, chunks, at_once=True)[:2] == outcome(declared, chunks, at_once=False)[:2]


class Order(msgspec.Struct, frozen=True):
    """The value of records of other sinks."""

    id: int | None
    note: str


OTHERS = [
    Append("t"),
    Append("t", provenance={"offset": "o"}),
    Upsert("t", key=["id"]),
    Upsert("t", key=["id"], offset_column="o", provenance={"partition": "p"}),
    Upsert("t", key=["id"], tombstone=None, offset_column="o"),
]


@pytest.mark.parametrize("sink", OTHERS, ids=map(str, range(len(OTHERS))))
@pytest.mark.parametrize("key", [Text(), Json(dict)], ids=["text", "json"])
@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([b'{"id":1}', b'{"id":2}', b"1", None, b"\xff"]),
            st.sampled_from(
                [b'{"id":1,"note":"a"}', b'{"id":2,"note":"b"}', b'{"id":null,"note":""}', b"{", b"", None]
            ),
        ),
        max_size=6,
    )
)
def test_other_values_become_the_same_rows(
    sink: Any, key: Any, records: list[tuple[bytes | None, bytes | None]]
) -> None:
    declared = pipeline(sink, Json(Order, tombstones=True), key)
    chunk = numbered(records)
    assert outcome(declared, [chunk], at_once=True)[:2] == outcome(declared, [chunk], at_once=False)[:2]


def test_sinks_that_need_whole_records_decode_nothing_ahead() -> None:
    for sink in (Append("t", row=lambda record: record.value), Upsert("t", key=["id"], rows=lambda record: [])):
        assert PipelineWriters(pipeline(sink, Json(), Text())).chunk_writer is None


def test_a_sink_that_returns_too_few_rows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    writers = PipelineWriters(pipeline(Append("t"), Json(Order), Text()))
    assert writers.chunk_writer is not None
    monkeypatch.setattr(type(writers.chunk_writer), "chunk_rows", lambda *_: [(1, "a")])
    chunk = lazy(numbered([(b"k", b'{"id":1,"note":"a"}')] * 2))
    with pytest.raises(ConfigError, match="chunk_rows returned 1 rows for 2 records"):
        writers.rows_at_once(chunk)
