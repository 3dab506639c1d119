"""What the compiled part writes is what msgspec and psycopg make of the value, byte by byte.

Of single values, and of batches: with provenance, with columns that must not be null, with values in between at which
the compiled part stops, and with records that fail. ``make fuzz-native`` runs a million cases; ``CASES`` and ``SEED``
say how many and which.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any
from unittest.mock import patch

import msgspec
import psycopg
import pytest
from psycopg.adapt import Transformer
from psycopg.copy import Writer
from sqlalchemy import Connection, Engine

from native.odd_json import Odd
from seekpoint import Append, Json, Pipeline, Poison, Upsert
from seekpoint.pipeline import pipeline as declaration
from seekpoint.pipeline.sink import Row, RowRefused
from seekpoint.records import LazyRecords, RawRecord
from seekpoint.sinks import copy as ours
from seekpoint.sinks.column_types import Depths
from seekpoint.sinks.json_values import JsonValues
from seekpoint.sinks.native import PLAN
from seekpoint.sinks.native.encoder import EncodedRows, Encoder
from seekpoint.testing import raw
from seekpoint.worker.apply import Failed, decode_record
from support.sink_tables import TOPIC

CASES = int(os.environ.get("SEEKPOINT_FUZZ_CASES", "20000"))
OF_ONE_TYPE = 100
BATCHES = 20  # of the values of one type
MOST = 20  # records of a batch
ORIGINS = {"topic": "the_topic", "partition": "the_partition", "offset": "the_offset"}


class InPython:
    """What msgspec and psycopg make of a value; None where they raise."""

    def __init__(
        self, cursor: psycopg.Cursor[Any], struct: Any, columns: tuple[str, ...], json: frozenset[str]
    ) -> None:
        self._decode, self._json = (
            msgspec.json.Decoder(struct).decode,
            JsonValues(cursor, columns, dict.fromkeys(json, 0)),
        )
        self._transformer, self._columns = Transformer.from_context(cursor), columns

    def text(self, value: bytes) -> bytes | None:
        assert ours._format is not None
        text = bytearray()
        try:
            decoded = self._decode(value)
            row = self._json.row(tuple(attrgetter(name)(decoded) for name in self._columns))
            ours._format(row, self._transformer, text)
        except Exception:  # noqa: BLE001 -- dumpers raise what they like
            return None
        return bytes(text)


@pytest.mark.timeout(0)
def test_the_compiled_text_is_the_text_of_msgspec_and_psycopg(seekpoint_engine: Engine) -> None:
    seed = int(os.environ.get("SEED") or secrets.randbits(32))
    print(f"SEED={seed} SEEKPOINT_FUZZ_CASES={CASES}")
    odd, same, left, different = Odd(seed), 0, 0, list[object]()
    with seekpoint_engine.connect() as connection, ours.writing_cursor(ours.driver_of(connection)) as cursor:
        for _ in range(CASES // OF_ONE_TYPE):
            struct, fields, columns = odd.struct()
            json = frozenset(field.name for field in fields if field.kind in {"any", "object", "array"})
            encoder = Encoder(struct, columns, (), {})
            encoder.table_has(json)
            assert encoder._made is not None, fields
            plan, python = encoder._made[0], InPython(cursor, struct, columns, json & {*columns})
            for value in (odd.value(struct, fields) for _ in range(OF_ONE_TYPE)):
                text, count = plan.encode([value], 0)
                expected = python.text(value)
                if count:
                    same += text == expected
                    if text != expected:
                        different.append((fields, columns, value, text, expected))
                else:
                    assert text == b""
                    left += expected is not None
    print(f"{CASES} cases: {same} with the same bytes, {left} valid and left to Python, {len(different)} different")
    assert not different, different[:3]
    assert same > CASES / 10
    assert left > 0


class Kept(Writer):
    """Keeps what COPY would send."""

    def __init__(self) -> None:
        self.text = bytearray()

    def write(self, data: Any) -> None:
        self.text += data

    def finish(self, exc: BaseException | None = None) -> None:
        """Nothing was begun."""


class Batches:
    """The text of one pipeline's batches, as a worker would send it, and the records that fail."""

    def __init__(self, connection: Connection, pipeline: Pipeline[Any, Any], json: frozenset[str]) -> None:
        self._connection, self._pipeline = connection, pipeline
        self._sink: Any = pipeline.sinks[0]
        self._depths: Depths = dict.fromkeys(json, 0)
        self.seen = Counter[str]()

    def know(self, first: RawRecord) -> None:
        """The type of the values: from now on they may be encoded."""
        with suppress(Poison):  # a null key
            list(self._sink.rows(self._pipeline.decode(first)))

    def of(self, records: Sequence[RawRecord]) -> tuple[bytes, list[tuple[int, str]]]:
        """The text of the records that have a row, and the offset and the error of each of the others."""
        left, failed = list(records), list[tuple[int, str]]()
        while True:
            left, rows = self._rows(left, failed)
            kept = Kept()
            try:
                self._write(rows, kept)
            except RowRefused as refused:
                if refused.line is None:
                    raise
                self.seen["refused"] += 1
                failed.append((left.pop(refused.line - 1).offset, repr(refused.cause)))
                continue
            return bytes(kept.text), failed

    def _rows(self, records: list[RawRecord], failed: list[tuple[int, str]]) -> tuple[list[RawRecord], Sequence[Row]]:
        """The rows, and the record of each; those that have none are noted."""
        partitions, offsets = [one.partition for one in records], [one.offset for one in records]
        values = [one.value for one in records]
        lazy = LazyRecords(values, offsets, lambda: records, topic=TOPIC, partitions=partitions, size=0)
        if (rows := self._pipeline.streamed_rows(lazy)) is not None:
            if isinstance(rows, EncodedRows):
                kinds = [type(part) for part in rows.parts]
                self.seen["resumed"] += tuple in kinds[kinds.index(list) :] if list in kinds else 0
                self.seen["encoded"] += 1
            return records, rows
        readable, made = list[RawRecord](), list[Row]()
        for one in records:
            try:
                made += decode_record(self._pipeline, one).rows[0]
                readable.append(one)
            except Failed as failure:
                self.seen["null key"] += isinstance(failure.error, Poison)
                failed.append((one.offset, repr(failure.error)))
        return readable, made

    def _write(self, rows: Sequence[Row], kept: Kept) -> None:
        def begin(cursor: psycopg.Cursor[Any], *_: Any, **__: Any) -> psycopg.Copy:
            return psycopg.Copy(cursor, writer=kept)

        with (
            patch.object(ours, "begin_copy", begin),
            ours.open_copy(self._connection, self._sink.path, lambda: self._sink.written, self._depths) as copy,
        ):
            copy.write(rows)


def random_sink(odd: Odd, columns: tuple[str, ...]) -> Append[Any, Any] | Upsert[Any, Any]:
    """With provenance, or with columns that must not be null, or with neither."""
    if odd.random.random() < 0.5:
        key = odd.random.sample(columns, odd.random.randint(1, len(columns)))
        return Upsert("fuzz", key=key, columns=columns, order_by=odd.random.choice([None, *columns]), tombstone=None)
    origins = odd.random.sample(sorted(ORIGINS), odd.random.randint(0, 3))
    return Append("fuzz", columns=columns, provenance={name: ORIGINS[name] for name in origins} or None)


@pytest.mark.timeout(0)
def test_batches_are_the_text_of_msgspec_and_psycopg(seekpoint_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes, and which record an error names; the rest of the batch is written without that record."""
    monkeypatch.setattr(declaration, "ENCODED", 1)
    seed = int(os.environ.get("SEED") or secrets.randbits(32))
    print(f"SEED={seed} SEEKPOINT_FUZZ_CASES={CASES}")
    odd, seen, different = Odd(seed), Counter[str](), list[object]()
    with seekpoint_engine.connect() as connection:
        while seen["records"] < CASES / 10:
            struct, fields, columns = odd.struct()
            json = frozenset(field.name for field in fields if field.kind in {"any", "object", "array"}) & {*columns}
            sink = random_sink(odd, columns)
            pipeline = Pipeline("fuzz", topics=TOPIC, value=Json(struct), sinks=[sink], on_poison="dead_letter")
            batches = Batches(connection, pipeline, json)
            batches.know(raw(odd.decodable(struct, fields), topic=TOPIC))
            pool = [odd.decodable(struct, fields) for _ in range(OF_ONE_TYPE // 2)]
            for _ in range(BATCHES):
                given = [odd.random.choice(pool) for _ in range(odd.random.randint(1, MOST))]
                if odd.random.random() < 0.2:
                    given.append(odd.value(struct, fields))
                records = [
                    raw(one, topic=TOPIC, partition=odd.random.randrange(12), offset=odd.random.randrange(10**12))
                    for one in given
                ]
                results = []
                for plan in (PLAN, None):
                    with patch("seekpoint.sinks.base.PLAN", plan):
                        results.append(batches.of(records))
                seen["records"] += len(records)
                if results[0] != results[1]:
                    different.append((sink, fields, records, *results))
            seen += batches.seen
    print(f"{dict(seen)}, {len(different)} different")
    assert not different, different[:3]
    assert all(seen[name] for name in ("encoded", "resumed", "refused", "null key"))
