"""Offsets in files: Kafka's CSV (``topic,partition,offset``, or with the group first), JSON, or Spark's JSON."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from seekpoint.admin.spark_offsets import parse_spark_json
from seekpoint.errors import ConfigError
from seekpoint.records import Partition


class _Line(msgspec.Struct):
    topic: str
    partition: int
    offset: int


def as_csv(offsets: Mapping[Partition, int]) -> str:
    """One line per partition, in the form that ``kafka-consumer-groups --export`` writes and ``--from-file`` reads."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows((*partition, offset) for partition, offset in offsets.items())
    return text.getvalue()


def read_offsets(file: Path, group: str) -> dict[Partition, int]:
    """The offsets in a file. Raises ConfigError, which names the line, if one is invalid or of another group."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {getattr(error, 'strerror', None) or 'it is not UTF-8'}") from None
    match text.lstrip()[:1]:
        case "[":
            return _json(file, text)
        case "{":
            return _spark(file, text)
        case _:
            return _csv(file, text, group)


def _spark(file: Path, text: str) -> dict[Partition, int]:
    offsets = parse_spark_json(text, str(file))
    if ends := sorted(partition for partition, offset in offsets.items() if offset < 0):
        raise ConfigError(
            f"{file}: {ends[0]} has {offsets[ends[0]]}, which means an end of the log in Spark: write the offset, or "
            "omit the partition and reset it with --to-earliest or --to-latest"
        )
    return offsets


def _json(file: Path, text: str) -> dict[Partition, int]:
    try:
        lines = msgspec.json.decode(text, type=list[_Line])
    except msgspec.DecodeError as error:
        raise ConfigError(f"{file}: {error}") from None
    return _gathered(
        [(f"{file}, entry {n}", Partition(line.topic, line.partition), line.offset) for n, line in enumerate(lines, 1)]
    )


def _csv(file: Path, text: str, group: str) -> dict[Partition, int]:
    entries = []
    for number, line in enumerate(csv.reader(io.StringIO(text)), 1):
        where, cells = f"{file}, line {number}", [cell.strip() for cell in line]
        if not any(cells):
            continue
        if len(cells) == 4 and cells[0] != group:
            raise ConfigError(f"{where}: this line is of group {cells[0]!r}, not of {group!r}")
        if len(cells) not in {3, 4} or not all(re.fullmatch("[0-9]{1,19}", cell) for cell in cells[-2:]):
            raise ConfigError(f"{where}: expected topic,partition,offset, not {','.join(cells)!r}")
        entries.append((where, Partition(cells[-3], int(cells[-2])), int(cells[-1])))
    return _gathered(entries)


def _gathered(entries: list[tuple[str, Partition, int]]) -> dict[Partition, int]:
    offsets: dict[Partition, int] = {}
    for where, partition, offset in entries:
        if partition in offsets:
            raise ConfigError(f"{where}: {partition} is named twice")
        if partition.number < 0 or offset < 0:
            raise ConfigError(f"{where}: partitions and offsets are 0 or greater")
        offsets[partition] = offset
    return offsets
