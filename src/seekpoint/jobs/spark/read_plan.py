"""The plan of a read of records: ranges with fixed offsets, divided into tasks, and their columns.

It is made with the DataFrame, so that every query on the DataFrame reads the same records.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from seekpoint.admin.spark_offsets import spark_json
from seekpoint.errors import ConfigError
from seekpoint.jobs.spark.bounds import Bounds, group_ledger
from seekpoint.jobs.spark.group_snapshot import GroupSnapshot, read_snapshot
from seekpoint.jobs.spark.settings import resolved
from seekpoint.jobs.spark.source_options import OnlyForStreams, SourceOptions, source_options
from seekpoint.jobs.staging.lost_ranges import without
from seekpoint.kafka.ranges import MOST_OFFSETS, MOST_TASKS, Range, check_ranges, split_ranges
from seekpoint.records import Partition

PLAN = "plan"
"""The source's option in which :func:`seekpoint.spark.read` passes its plan."""

MAX_TASKS_BY_OPTIONS = 100_000  # most tasks: a plan of more would take gigabytes in the driver


@dataclass(frozen=True, slots=True)
class Part:
    """A range that a task reads, and the offsets of its dead letters, ascending."""

    range: Range
    dead_letters: Sequence[int]


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """A read of records. ``bounds`` has each partition's range, ``tasks`` the parts of these ranges to read.

    ``kafka`` is the result of :func:`portable`; ``dead_letters`` is the option's value; ``decode`` names the pipeline
    whose codec decodes values.
    """

    kafka: dict[str, Any]
    bounds: Sequence[Range]
    tasks: Sequence[Sequence[Part]]
    headers: bool
    dead_letters: str
    decode: str | None = None

    @property
    def topics(self) -> list[str]:
        """The topics that are read."""
        return sorted({range_.partition.topic for range_ in self.bounds})

    @property
    def metadata(self) -> dict[str, Any]:
        """The bounds as metadata of the column ``offset``; DESCRIBE shows ``comment``."""
        return {
            "comment": ", ".join(map(str, self.bounds)),
            "startingOffsets": spark_json({range_.partition: range_.start for range_ in self.bounds}),
            "endingOffsets": spark_json({range_.partition: range_.end for range_ in self.bounds}),
        }

    def to_json(self) -> str:
        """The plan as text, for an option of the source."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> ReadPlan:
        """Parse a plan that :meth:`to_json` has made."""
        return msgspec.json.decode(text, type=cls)


def plan_of(options: Mapping[str, str]) -> ReadPlan:
    """The plan of a read with these options.

    Raises the errors of :func:`source_options`, :class:`Bounds` and :func:`check_ranges`.
    """
    source = source_options(options)
    snapshot = _snapshot(source)
    ranges = Bounds(source, snapshot).ranges()
    parts = [Part(range_, ()) for range_ in ranges]
    if snapshot is not None:
        parts = applied_parts(snapshot, ranges, source.dead_letters)
    check_ranges(resolved(source.kafka), [part.range for part in parts])
    return ReadPlan(
        kafka=dict(source.kafka),
        bounds=ranges,
        tasks=divided(parts, source),
        headers=source.headers,
        dead_letters=source.dead_letters,
        decode=source.decode,
    )


def _snapshot(source: SourceOptions) -> GroupSnapshot | None:
    """The state of the options' group in the ledger; None without a group."""
    if (ledger := group_ledger(source)) is None:
        return None
    try:
        moments = {bound.moment for bound in (source.start, source.end) if bound.moment is not None}
        return read_snapshot(ledger, source.topics, moments)
    except ConfigError as error:  # a stream may begin before its group has positions
        raise OnlyForStreams(error.text) from error
    finally:
        ledger.engine.dispose()


def applied_parts(snapshot: GroupSnapshot, ranges: Sequence[Range], dead_letters: str) -> list[Part]:
    """The parts of the ranges to read: ``exclude`` omits the group's present dead letters and lost ranges.

    ``only`` reads from a partition's first dead letter to its last.
    Raises ConfigError if ``exclude`` would begin before the group's first offset, or include a record that was applied
    with an edited value.
    """
    if dead_letters == "exclude":
        _require_applied(snapshot, ranges)
        _require_unedited(snapshot, ranges)
        ranges = [part for range_ in ranges for part in _without_lost(snapshot, range_)]
    elif dead_letters == "include":
        return [Part(range_, ()) for range_ in ranges]
    parts = [_part(range_, snapshot.dead_letters.get(range_.partition, ())) for range_ in ranges]
    return parts if dead_letters != "only" else [_narrowed(part) for part in parts if part.dead_letters]


def _require_applied(snapshot: GroupSnapshot, ranges: Sequence[Range]) -> None:
    for range_ in ranges:
        first = snapshot.positions[range_.partition].first_offset
        if range_.start < min(first, range_.end):
            raise ConfigError(
                f"group {snapshot.group!r} began {range_.partition} at {first}, but the read begins at {range_.start}: "
                "read what the group has applied (leave startingOffsets out), or every record (deadLetters=include)"
            )


def _require_unedited(snapshot: GroupSnapshot, ranges: Sequence[Range]) -> None:
    """Raise ConfigError for a record that was applied with an edited value, which the log does not have."""
    for range_ in ranges:
        for offset in snapshot.edited.get(range_.partition, ()):
            if range_.start <= offset < range_.end:
                raise ConfigError(
                    f"{range_.partition} offset {offset} was applied with an edited value (seekpoint dead-letters list "
                    f"{snapshot.group} --state replayed), and the log has the original one: read every record as the "
                    "log has it (deadLetters=include), and the edited values from the ledger's table dead_letters"
                )


def _without_lost(snapshot: GroupSnapshot, range_: Range) -> Iterator[Range]:
    spans = [span for partition, span in snapshot.lost if partition == range_.partition]
    for start, end in without((range_.start, range_.end), spans):
        yield replace(range_, start=start, end=end)


def _narrowed(part: Part) -> Part:
    """The part from its first dead letter to its last."""
    return replace(part, range=replace(part.range, start=part.dead_letters[0], end=part.dead_letters[-1] + 1))


def tasks_of(
    parts: Sequence[Part], *, range_records: int = MOST_OFFSETS, slots: int = 1, most: int = MOST_TASKS
) -> list[list[Part]]:
    """Divide the parts into tasks of ``range_records`` offsets.

    Tasks are smaller if there are more ``slots``, and larger if there would be more than ``most`` tasks.
    """
    offsets: dict[Partition, list[int]] = {}
    for part in parts:
        offsets.setdefault(part.range.partition, []).extend(part.dead_letters)
    tasks = split_ranges([part.range for part in parts], range_records=range_records, slots=slots, most=most)
    return [[_part(range_, offsets[range_.partition]) for range_ in task] for task in tasks]


def _part(range_: Range, dead_letters: Sequence[int]) -> Part:
    first, last = bisect_left(dead_letters, range_.start), bisect_left(dead_letters, range_.end)
    return Part(range_, list(dead_letters[first:last]))


def divided(parts: Sequence[Part], source: SourceOptions) -> list[list[Part]]:
    """Divide the parts into tasks by ``maxRecordsPerPartition`` and ``minPartitions``; by default about one per
    partition.

    Raises ConfigError for more than :data:`MAX_TASKS_BY_OPTIONS` tasks.
    """
    size, slots = source.max_records or MOST_OFFSETS, len({part.range.partition for part in parts})
    width = sum(part.range.records_at_most for part in parts)
    if source.min_partitions is not None:
        size, slots = max(1, min(size, width // source.min_partitions)), 1
    elif source.max_records is None:
        return tasks_of(parts, slots=slots)
    if width > size * MAX_TASKS_BY_OPTIONS:
        raise ConfigError(
            f"{width} offsets in tasks of {size} are more than {MAX_TASKS_BY_OPTIONS} tasks: give a larger "
            "maxRecordsPerPartition, a smaller minPartitions, or bounds that are closer"
        )
    return tasks_of(parts, range_records=size, slots=slots, most=width)


def read_part(plan: ReadPlan, part: Part) -> Iterator[Any]:
    """The batches of one part, with Kafka's columns and those of the plan. Raises the errors of reading the range."""
    # Imported here, because planning needs neither pyarrow nor pyspark.
    from seekpoint.jobs.spark.columns import HIDDEN, kafka_batches, with_dead_letters  # noqa: PLC0415
    from seekpoint.jobs.spark.decoded import TypedValue  # noqa: PLC0415

    typed = None if plan.decode is None else TypedValue(plan.decode, [part.range.partition.topic])
    reads_headers = plan.headers or (typed is not None and typed.reads_records)
    hidden = {*HIDDEN.names, *(() if plan.headers else ["headers"])}
    for batch in kafka_batches(resolved(plan.kafka), part.range, headers=reads_headers):
        filtered = with_dead_letters(batch, part.dead_letters, plan.dead_letters)
        decoded = filtered if typed is None else typed.batch(filtered)
        yield decoded.select([name for name in decoded.schema.names if name not in hidden])
