"""One worker's decoders and writers for a pipeline's records: a writer for each sink."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any, Generic

from seekpoint.codecs import Bytes
from seekpoint.codecs.codec import key_decoder, plain_decoder, value_decoder
from seekpoint.errors import CodecUnavailable, ConfigError
from seekpoint.pipeline.batch import Batch
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.pipeline.sink import K, Row, SinkWriter, V
from seekpoint.records import LazyRecords, RawRecord, Record, add_note

# Exceptions that end the process. Any other is a record's error, even a BaseException such as a panic in Rust or a
# cancelled task.
PROCESS_EXITS = (KeyboardInterrupt, SystemExit, GeneratorExit)
IN_KEY = "in the record's key"  # a note on a codec's error
ONE_BY_ONE = 10  # chunks after one that was decoded twice, because others like it may follow


class PipelineWriters(Generic[V, K]):
    """One worker's decoders and writers for a pipeline; only this worker uses their caches.

    ``handler``, called with the transaction and the batch, is the pipeline's handler, or a function that runs an async
    handler. ``chunk_writer`` is the sink's writer if it makes the rows of a chunk in one call (``chunk_rows``), and
    there is no handler and one sink, which takes every topic; None for topics by pattern.
    """

    def __init__(self, pipeline: Pipeline[V, K], handler: Callable[[Any, Batch[V, K]], object] | None = None) -> None:
        self.pipeline = pipeline
        self.handler: Callable[[Any, Batch[V, K]], object] | None = handler or pipeline.handle
        self._key = key_decoder(pipeline.key)
        self._writers: dict[int, SinkWriter[V, K | None]] = {}  # by the sink's id
        self._one_by_one = 0  # how many more chunks are decoded record by record
        self.refresh()

    def refresh(self) -> None:
        """Make decoders and writers for the pipeline's topics and sinks; keeps existing writers."""
        pipeline = self.pipeline
        self.sinks: tuple[SinkWriter[V, K | None], ...] = tuple(
            self._writers.get(id(sink)) or sink.writer() for sink in pipeline.sinks
        )
        self._writers = dict(zip(map(id, pipeline.sinks), self.sinks, strict=True))
        self._taking = {
            topic: {n: self.sinks[n] for n, sink in enumerate(pipeline.sinks) if sink.takes(topic)}
            for topic in pipeline.codecs
        }
        self._values = {topic: value_decoder(codec) for topic, codec in pipeline.codecs.items()}
        self._plain: dict[str, Any] = {topic: plain_decoder(codec) for topic, codec in pipeline.codecs.items()}
        # Once the pattern has matched another topic, rows made ahead for a single sink would not fit.
        is_only = (
            pipeline.pattern is None and pipeline.handle is None and len(self.sinks) == 1 and all(self._taking.values())
        )
        self.chunk_writer = (
            self.sinks[0] if is_only and self.sinks[0].chunk_rows([], self._keys([]), []) is not None else None
        )

    def rows(self, record: Record[V, K | None]) -> list[tuple[Row, ...]]:
        """Make the record's rows for each sink. Raises the errors of ``row=``."""
        rows: list[tuple[Row, ...]] = [()] * len(self.sinks)
        for n, writer in self._taking[record.topic].items():
            rows[n] = tuple(writer.rows(record))
        return rows

    def taking(self, topics: Collection[str]) -> Collection[int]:
        """The indexes of the sinks to open for records of these topics; with a pattern, only sinks that take one of
        them.
        """
        if self.pipeline.pattern is None:
            return range(len(self.sinks))
        return sorted({n for topic in topics for n in self._taking[topic]})

    def decode(self, raw: RawRecord) -> Record[V, K | None]:
        """Decode a record's key and value. Raises the codecs' errors; a note says if the key is at fault."""
        try:
            key = self._key(raw)
        except Exception as error:
            add_note(error, IN_KEY)
            raise
        return Record(
            raw.topic,
            raw.partition,
            raw.offset,
            raw.timestamp_ms,
            key,
            self._values[raw.topic](raw),
            raw.headers,
            raw.leader_epoch,
        )

    def values(self, raw: Sequence[RawRecord]) -> list[V]:
        """The decoded values of many records. Raises the codecs' errors."""
        if isinstance(raw, LazyRecords) and raw.topic is not None:
            plain, values = self._plain[raw.topic], raw.values
            if plain is not None and all(values):  # no nulls; an empty value, which is rare, also takes the slower path
                return list(map(plain, values))
        decoders = self._values
        return [decoders[record.topic](record) for record in raw]

    def _keys(self, raw: Sequence[RawRecord]) -> list[K | None] | None:
        """The decoded keys of many records; None if keys are bytes. Raises what the codec raises."""
        return None if isinstance(self.pipeline.key, Bytes) else list(map(self._key, raw))

    def streamed_rows(self, raw: Sequence[RawRecord]) -> Sequence[Row] | None:
        """As ``rows_at_once``, but the first call after ``prepare`` returns the rows that ``prepare`` made."""
        if isinstance(raw, LazyRecords) and raw.rows is not None:
            prepared, raw.rows = raw.rows, None  # frees the rows once they are written
            return prepared
        return self.rows_at_once(raw)

    def prepare(self, raw: Sequence[RawRecord]) -> None:
        """Make the rows that ``streamed_rows`` will return. Errors are ignored: they recur in ``streamed_rows``.

        Raises exceptions that end the process: a signal handler may raise one here, and only once.
        """
        if isinstance(raw, LazyRecords):
            with suppress(Exception):
                raw.rows = self.streamed_rows(raw)

    def rows_at_once(self, raw: Sequence[RawRecord]) -> list[Row] | None:
        """One row per record of a chunk, made in one call; None if records must be decoded one by one."""
        sink = self.chunk_writer
        if sink is None or self._one_by_one:
            self._one_by_one = max(self._one_by_one - 1, 0)
            return None
        try:
            rows = sink.chunk_rows(self.values(raw), self._keys(raw), raw)
        except (CodecUnavailable, ConfigError, *PROCESS_EXITS):
            raise
        except BaseException:  # noqa: BLE001 -- raised again, with its record, when they are decoded one by one
            rows = None
        if rows is None:
            self._one_by_one = ONE_BY_ONE
        elif len(rows) != len(raw):
            raise ConfigError(
                f"{sink!r}: chunk_rows returned {len(rows):,} rows for {len(raw):,} records: return one row for each "
                "record, or None"
            )
        return rows
