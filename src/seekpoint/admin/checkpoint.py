"""Reads from a Spark query's checkpoint the offsets that the query has committed.

Before batch N, Spark writes its end to ``offsets/N``; after the batch, it writes ``commits/N``. Spark's formats v1 and
v2 have a line of metadata, then a line for each source; in v2 that line begins with its name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from seekpoint.admin.spark_offsets import parse_spark_json
from seekpoint.errors import ConfigError
from seekpoint.records import Partition
from seekpoint.storage import Storage

VERSIONS = ("v1", "v2")
_NO_OFFSET = "-"  # the line of a source that has read nothing yet


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A query's ``offsets`` after ``batch``, the last batch that it has committed.

    ``begun`` is the last batch that began after it (None: none), ``planned`` has the end offsets of ``begun``;
    ``others`` is the number of sources that are not Kafka.
    """

    batch: int
    offsets: Mapping[Partition, int]
    begun: int | None
    planned: Mapping[Partition, int]
    others: int

    def notes(self) -> tuple[str, ...]:
        """Sentences for the operator who imports these offsets."""
        topics = sorted({partition.topic for partition in self.offsets})
        notes = [f"the offsets are the end of batch {self.batch}, the last one committed; stop the query first"]
        if self.begun is not None:
            notes += self._of_begun(self.begun, topics)
        if self.others:
            notes.append(f"the query also reads {self.others} sources that are not Kafka: they are not imported")
        notes.append(
            f"a checkpoint has no topic ids: if {', '.join(topics)} was created again since, the offsets are wrong"
        )
        return tuple(notes)

    def _of_begun(self, begun: int, topics: Collection[str]) -> Iterator[str]:
        is_one = begun == self.batch + 1
        batches, them = (f"batch {begun}", "it") if is_one else (f"batches up to {begun}", "them")
        ranges = [
            f"{partition} [{self.offsets.get(partition, 0)}, {end})"
            for partition, end in sorted(self.planned.items())
            if partition.topic in topics and end > self.offsets.get(partition, 0)
        ]
        if ranges:
            yield (
                f"the query has begun {batches} but has not committed {them}: the group applies {', '.join(ranges)} "
                "again, even if the query's sink has already written some of these records"
            )
        if new_topics := sorted({partition.topic for partition in self.planned} - set(topics)):
            yield (
                f"the query has begun {', '.join(new_topics)} in {batches} but has not committed {them}: no offset of "
                "it is imported, and the group may apply records again that the query's sink has written"
            )
        if not ranges and not new_topics:
            yield f"the query has begun {batches} but has not committed {them}: no record of Kafka is in {them}"


def read_checkpoint(location: str) -> Checkpoint:
    """Read the checkpoint in a folder, or below a URL that ``pyarrow.fs`` reads.

    Raises ConfigError for a checkpoint without a committed batch, of another format, with an incomplete file, of a
    query that does not read Kafka, or in which two sources are at different offsets of one partition.
    """
    storage = Storage(location)
    committed, planned = _batches(storage, "commits"), _batches(storage, "offsets")
    if not committed:
        raise ConfigError(
            f"{location} has no committed batch (commits/): name the checkpointLocation of a query that has committed "
            "a batch"
        )
    batch = max(committed)
    if batch not in planned:
        raise ConfigError(
            f"{location} has commits/{batch} and no offsets/{batch}: it is incomplete; restore the file from a copy"
        )
    begun = max(planned) if max(planned) > batch else None
    for number in (batch,) if begun is None else (batch, begun):
        _require_all_sources(storage, number, [other for other in planned if other < number])
    offsets, others = _offsets(storage, batch)
    if not offsets:
        raise ConfigError(
            f"{location}/offsets/{batch} has no offsets of Kafka's source, which look like "
            '{"topic":{"0":23}}: name the checkpointLocation of a query that reads Kafka'
        )
    return Checkpoint(batch, offsets, begun, {} if begun is None else _offsets(storage, begun)[0], others)


def _batches(storage: Storage, folder: str) -> list[int]:
    """The numbers of the batches that have a file in this folder."""
    return [int(name) for name in storage.names(folder) if re.fullmatch("0|[1-9][0-9]*", name)]


def _require_all_sources(storage: Storage, batch: int, earlier: Collection[int]) -> None:
    """Raise ConfigError if the previous batch has more sources, which shows that the file has lost lines."""
    before = max(earlier, default=batch)
    sources, expected = (len(_sources(storage, number)[1]) for number in (batch, before))
    if sources < expected:
        raise ConfigError(
            f"{_file(storage, batch)} has {sources} sources, but offsets/{before} has {expected}: it is incomplete; "
            "restore the file from a copy"
        )


def _file(storage: Storage, batch: int) -> str:
    return f"{storage.root}/offsets/{batch}"


def _sources(storage: Storage, batch: int) -> tuple[str, list[str]]:
    """The format of a batch's offsets, and a line for each source."""
    try:
        text = storage.read(f"offsets/{batch}").decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{_file(storage, batch)} is not UTF-8: restore the file from a copy") from None
    version, *lines = [line.removesuffix("\r") for line in text.rstrip("\r\n").split("\n")]
    if version not in VERSIONS:
        raise ConfigError(f"{_file(storage, batch)} has format {version!r}, not {' or '.join(VERSIONS)}")
    return version, lines[1:]  # the first one is metadata


def _offsets(storage: Storage, batch: int) -> tuple[dict[Partition, int], int]:
    """The offsets of Kafka's sources at the end of a batch, and the number of other sources."""
    where = _file(storage, batch)
    version, sources = _sources(storage, batch)
    offsets: dict[Partition, int] = {}
    others = 0
    for number, source in enumerate(sources):
        text = source.partition(":")[2] if version == "v2" else source
        if text == _NO_OFFSET:
            continue
        if (source_offsets := _of_kafka(text, f"{where}, source {number}")) is None:
            others += 1
            continue
        for partition, offset in source_offsets.items():
            if offsets.setdefault(partition, offset) != offset:
                raise ConfigError(
                    f"{where}: two sources of the query read {partition}, to {offsets[partition]} and {offset} (source "
                    f"{number}), but a group has one position: reset the group to the offset that you choose"
                )
    return offsets, others


def _of_kafka(text: str, where: str) -> dict[Partition, int] | None:
    """The offsets of a source that reads Kafka; None for any other source. Raises ConfigError for a truncated text."""
    try:
        json.loads(text)  # the offsets of every source are JSON
    except (ValueError, RecursionError):
        raise ConfigError(
            f"{where}, is not JSON: the file is incomplete. Restore it from a copy; or, if that batch is not "
            "committed, copy the checkpoint without the file, and import from there"
        ) from None
    try:
        offsets = parse_spark_json(text, where)
    except ConfigError:
        return None
    return offsets if offsets and min(offsets.values()) >= 0 else None
