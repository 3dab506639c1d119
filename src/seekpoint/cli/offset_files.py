"""Offsets in files: Kafka's CSV (``topic,partition,offset``, also with the group in front), or JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path

import msgspec

from seekpoint.errors import ConfigError
from seekpoint.records import Partition


class _Line(msgspec.Struct):
    topic: str
    partition: int
    offset: int


def as_csv(offsets: Mapping[Partition, int]) -> str:
    """One line a partition, as ``kafka-consumer-groups --export`` writes and ``--from-file`` reads it."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows((*at, offset) for at, offset in offsets.items())
    return text.getvalue()


def read_offsets(file: Path, group: str) -> dict[Partition, int]:
    """The offsets of a file. Raises ConfigError with the line for what is none, or is of another group."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {getattr(error, 'strerror', None) or 'it is not UTF-8'}") from None
    return _json(file, text) if text.lstrip().startswith("[") else _csv(file, text, group)


def _json(file: Path, text: str) -> dict[Partition, int]:
    try:
        lines = msgspec.json.decode(text, type=list[_Line])
    except msgspec.DecodeError as error:
        raise ConfigError(f"{file}: {error}") from None
    return _gathered(
        [(f"{file}, entry {n}", Partition(x.topic, x.partition), x.offset) for n, x in enumerate(lines, 1)]
    )


def _csv(file: Path, text: str, group: str) -> dict[Partition, int]:
    found = []
    for number, line in enumerate(csv.reader(io.StringIO(text)), 1):
        where, cells = f"{file}, line {number}", [cell.strip() for cell in line]
        if not any(cells):
            continue
        if len(cells) == 4 and cells[0] != group:
            raise ConfigError(f"{where}: it is of group {cells[0]!r}, not of {group!r}")
        if len(cells) not in {3, 4} or not (cells[-1].isdecimal() and cells[-2].isdecimal()):
            raise ConfigError(f"{where}: expected topic,partition,offset, not {','.join(cells)!r}")
        found.append((where, Partition(cells[-3], int(cells[-2])), int(cells[-1])))
    return _gathered(found)


def _gathered(found: list[tuple[str, Partition, int]]) -> dict[Partition, int]:
    offsets: dict[Partition, int] = {}
    for where, at, offset in found:
        if at in offsets:
            raise ConfigError(f"{where}: {at} is named twice")
        if at.number < 0 or offset < 0:
            raise ConfigError(f"{where}: partitions and offsets are 0 or greater")
        offsets[at] = offset
    return offsets
