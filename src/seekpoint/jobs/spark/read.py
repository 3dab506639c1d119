"""A group's records between two positions as a DataFrame, with fixed offsets as bounds."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

from sqlalchemy import URL, Engine

from seekpoint.admin.spark_offsets import parse_spark_json
from seekpoint.errors import ConfigError
from seekpoint.jobs.export.export import applied
from seekpoint.jobs.spark.group_snapshot import read_snapshot
from seekpoint.jobs.spark.read_plan import PLAN, ReadPlan, applied_parts, tasks_of
from seekpoint.jobs.spark.session import require_this_python, slots_of
from seekpoint.jobs.spark.settings import portable, require_no_secret, resolved
from seekpoint.jobs.spark.source_frames import source_frame
from seekpoint.kafka.first_records import first_records, require_max_records
from seekpoint.kafka.ranges import MOST_OFFSETS, Range, check_ranges
from seekpoint.ledger import GroupLedger, Ledger, group_ledger
from seekpoint.ledger.positions import Position
from seekpoint.records import Partition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Offsets = Mapping[Partition, int] | Mapping[tuple[str, int], int]
DeadLetters = Literal["exclude", "include", "mark", "only"]


def read(
    spark: SparkSession,
    ledger: Ledger | Engine | URL | str,
    group: str,
    topics: str | Collection[str] | None = None,
    *,
    kafka: Mapping[str, Any],
    start: Offsets | str | None = None,
    end: Offsets | str | None = None,
    range_records: int = MOST_OFFSETS,
    max_records: int | None = None,
    dead_letters: DeadLetters = "exclude",
    decode: str | None = None,
) -> DataFrame:
    """Exactly the records that a group has applied, as a DataFrame; the group's workers continue.

    Omits records that were not applied: those that are now dead letters (also blocked, waiting, skipped or discarded
    ones), and lost ranges. Replayed dead letters were applied. ``dead_letters="include"`` reads every record between
    the bounds, ``"mark"`` adds a column ``dead_letter`` that is true for dead letters, and ``"only"`` reads only them.

    Columns are those of Spark's Kafka source: ``key`` and ``value`` (binary), ``topic``, ``partition``, ``offset``,
    ``timestamp``, ``timestampType`` and ``headers``, which is null if the client cannot read them. ``decode`` names a
    pipeline (``module:name``) whose codec decodes ``value``.

    The bounds are offsets read from the ledger now: ``first_offset`` to ``next_offset`` of each partition. ``start``
    and ``end``, as a mapping or as Spark's JSON, replace them for the partitions that they name; an end must be
    readable now. ``kafka`` is the workers' configuration, with :class:`Env` for passwords. A task reads about
    ``range_records`` offsets; fewer, down to 20,000, if there would otherwise be fewer tasks than the session has
    slots. It reads at most ``max_records`` offsets, the same share from the beginning of each partition's range.

    Equivalent to ``spark.read.format("seekpoint")`` with this group's options, but only this process needs the
    database. Raises ConfigError, RangeLost, RangeStuck, TopicRecreated and KafkaUnavailable; if records are lost to
    retention, truncation or a recreated topic during a query, Spark's exception contains the same message.
    """
    carried = portable(kafka)
    require_no_secret(spark, None, carried)
    require_this_python(spark)
    if dead_letters not in get_args(DeadLetters):
        choices = ", ".join(map(repr, get_args(DeadLetters)))
        raise ConfigError(f"dead_letters must be one of {choices}, got {dead_letters!r}")
    require_max_records(max_records)
    snapshot = read_snapshot(_ledger(ledger, group), topics)
    ranges = first_records(_ranges(snapshot.positions.values(), group, start, end), max_records)
    parts = applied_parts(snapshot, ranges, dead_letters)
    check_ranges(resolved(carried), [part.range for part in parts])
    plan = ReadPlan(
        kafka=carried,
        bounds=ranges,
        tasks=tasks_of(parts, range_records=range_records, slots=slots_of(spark)),
        headers=True,
        dead_letters=dead_letters,
        decode=decode,
    )
    return source_frame(spark, {PLAN: plan.to_json()})


def stored_ranges(
    ledger: Ledger | Engine | URL | str,
    group: str,
    topics: str | Collection[str] | None = None,
    *,
    start: Offsets | str | None = None,
    end: Offsets | str | None = None,
) -> list[Range]:
    """The ranges of :func:`read`: one per partition of the group's topics, from one moment of the ledger.

    Raises ConfigError for a group, a topic or a partition that the ledger does not have.
    """
    return _ranges(applied(_ledger(ledger, group), topics), group, start, end)


def _ranges(
    positions: Collection[Position], group: str, start: Offsets | str | None, end: Offsets | str | None
) -> list[Range]:
    partitions = {position.partition for position in positions}
    starts, ends = _offsets("start", start, partitions, group), _offsets("end", end, partitions, group)
    return [
        Range(
            position.partition,
            position.topic_id,
            starts.get(position.partition, position.first_offset),
            ends.get(position.partition, position.next_offset),
        )
        for position in positions
    ]


def _ledger(database: Ledger | Engine | URL | str, group: str) -> GroupLedger:
    """A ledger for this group."""
    ledger = group_ledger(database) if isinstance(database, Ledger) else GroupLedger(database, group)
    return ledger if ledger.group == group else GroupLedger(ledger.engine, group, schema=ledger.schema)


def _offsets(
    name: str, bound: Offsets | str | None, partitions: Collection[Partition], group: str
) -> dict[Partition, int]:
    """Parse the offsets of ``start=`` or ``end=``, which may be Spark's JSON."""
    offsets = parse_spark_json(bound, f"{name}=") if isinstance(bound, str) else bound or {}
    named = {Partition(*partition): offset for partition, offset in offsets.items()}
    if unknown := sorted(named.keys() - set(partitions)):
        raise ConfigError(f"{name}= names {', '.join(map(str, unknown))}, which group {group!r} does not read")
    if negative := sorted(partition for partition, offset in named.items() if offset < 0):
        raise ConfigError(
            f"{name}= has {named[negative[0]]} for {negative[0]}, but an offset is 0 or greater; Spark's -1 (latest) "
            "and -2 (earliest) are not accepted here. Give the offset, or leave the partition out to use the ledger's"
        )
    return named
