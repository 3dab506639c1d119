"""Offsets as Spark's Kafka source writes them: ``{"orders": {"0": 23, "1": 7}}``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from seekpoint.errors import ConfigError
from seekpoint.records import Partition

LATEST, EARLIEST = -1, -2
"""Spark's numbers for the end of a log and for its start, instead of an offset."""


def spark_json(offsets: Mapping[Partition, int]) -> str:
    """The offsets as Spark's JSON, by topic and partition, in one line."""
    return json.dumps(by_topic(offsets), separators=(",", ":"))


def by_topic(offsets: Mapping[Partition, int]) -> dict[str, dict[str, int]]:
    """The offsets as Spark nests them: by topic, and by the partition's number as text."""
    topics: dict[str, dict[str, int]] = {}
    for partition in sorted(offsets):
        topics.setdefault(partition.topic, {})[str(partition.number)] = offsets[partition]
    return topics


def parse_spark_json(text: str, where: str) -> dict[Partition, int]:
    """The offsets in Spark's JSON; does not resolve :data:`LATEST` and :data:`EARLIEST`.

    Raises ConfigError, whose message begins with ``where``, for other texts and for partitions named twice.
    """
    offsets: dict[Partition, int] = {}
    topics = _loaded(text, where, '{"topic": {"0": 23, "1": 7}}')
    for topic, numbers in _members(topics, where, 'offsets by topic, {"orders": {"0": 23}}'):
        for number, offset in _members(numbers, where, f'{topic!r}: offsets by partition, {{"0": 23}}'):
            is_partition = re.fullmatch("[0-9]{1,9}", number)
            if not is_partition or type(offset) is not int or offset < EARLIEST:
                raise ConfigError(
                    f"{where}: {topic!r} has {number!r}: {offset!r}: a partition is a number, and an offset is 0 or "
                    "greater, -1 for the end of the log, or -2 for its start"
                )
            partition = Partition(topic, int(number))
            if partition in offsets:
                raise ConfigError(f"{where}: {partition} is named twice")
            offsets[partition] = offset
    return offsets


def parse_spark_partitions(text: str, where: str) -> set[Partition]:
    """The partitions of Spark's JSON for ``assign``, ``{"orders": [0, 1]}``.

    Raises ConfigError, beginning with ``where``, for another text and for a partition that is named twice.
    """
    partitions: set[Partition] = set()
    topics = _loaded(text, where, '{"orders": [0, 1]}')
    for topic, numbers in _members(topics, where, 'partitions by topic, {"orders": [0, 1]}'):
        is_list = isinstance(numbers, list) and not isinstance(numbers, _Pairs) and numbers
        if not is_list or not all(type(number) is int and number >= 0 for number in numbers):
            raise ConfigError(
                f"{where}: {topic!r} has {json.dumps(numbers)}: list its partitions, [0, 1], or leave the topic out"
            )
        if len(set(numbers)) < len(numbers):
            raise ConfigError(f"{where}: a partition of {topic!r} is named twice")
        partitions |= {Partition(topic, number) for number in numbers}
    return partitions


def _loaded(text: str, where: str, example: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError) as error:  # also raised for numbers with too many digits
        raise ConfigError(f"{where}: it is not JSON ({error}): write {example}") from None


class _Pairs(list[tuple[str, Any]]):
    """The members of a JSON object, with duplicate names."""


def _members(value: Any, where: str, expected: str) -> Sequence[tuple[str, Any]]:
    if not isinstance(value, _Pairs):
        raise ConfigError(f"{where}: expected {expected}, not {json.dumps(value)}")
    if twice := [name for n, (name, _) in enumerate(value) if name in {other for other, _ in value[:n]}]:
        raise ConfigError(f"{where}: {twice[0]!r} is named twice")
    return value
