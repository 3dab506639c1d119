"""A group's records between two positions as a DataFrame: bounded by numbers, never by "now"."""

from __future__ import annotations

import os
import shutil
import sys
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from sqlalchemy import URL, Engine

from seekpoint.errors import ConfigError, required
from seekpoint.jobs.export.export import applied
from seekpoint.jobs.run import transaction
from seekpoint.jobs.spark.settings import carried_range, portable, require_no_secret, resolved
from seekpoint.jobs.staging.stage import dead_letters_within
from seekpoint.kafka.first_records import first_records, require_max_records
from seekpoint.kafka.ranges import SMALLEST, Range, check_ranges, split_ranges
from seekpoint.ledger import Ledger
from seekpoint.records import Partition

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

Offsets = Mapping[Partition, int] | Mapping[tuple[str, int], int]
DeadLetters = Literal["leave_out", "include", "mark", "only"]


def read(
    spark: SparkSession,
    ledger: Ledger | Engine | URL | str,
    group: str,
    topics: str | Collection[str] | None = None,
    *,
    kafka: Mapping[str, Any],
    start: Offsets | None = None,
    end: Offsets | None = None,
    range_records: int = SMALLEST,
    max_records: int | None = None,
    dead_letters: DeadLetters = "leave_out",
) -> DataFrame:
    """The records that a group has applied, as a DataFrame: exactly those, though its workers continue.

    Records between the ends that are dead letters now (also blocked, skipped or discarded ones) were not applied, and
    are left out. ``dead_letters="include"`` gives them, too, ``"mark"`` with a column ``dead_letter`` that is
    true for them, and ``"only"`` them alone. One that was replayed was applied. Ranges that an operator skipped by a
    reset are no dead letters: leave them out by ``start`` and ``end``.

    Columns: ``topic`` string, ``partition`` int, ``offset`` bigint, ``timestamp`` timestamp, ``key`` and ``value``
    binary, ``headers`` array of (``key`` string, ``value`` binary), null where the client cannot read them.

    The ends are numbers, taken now from the ledger: from ``first_offset`` to ``next_offset`` of each partition.
    ``start`` and ``end`` replace them for the partitions that they name; an end must be readable now. ``kafka`` is the
    workers' own configuration, with :class:`Env` for passwords. A task reads about ``range_records`` offsets; fewer,
    down to 20,000, where there would be fewer tasks than the session has slots. ``max_records`` offsets are read at
    most, of each partition's beginning the same share.

    Raises ConfigError, RangeLost, RangeStuck, TopicRecreated and KafkaUnavailable here; a query raises Spark's
    exception with the same sentence in it if retention, a truncation or a new topic passes while it reads.
    """
    carried = portable(kafka)
    require_no_secret(spark, None, carried)
    require_this_python(spark)
    if dead_letters not in get_args(DeadLetters):
        known = ", ".join(map(repr, get_args(DeadLetters)))
        raise ConfigError(f"dead_letters must be one of {known}, got {dead_letters!r}")
    require_max_records(max_records)
    ranges = first_records(stored_ranges(ledger, group, topics, start=start, end=end), max_records)
    check_ranges(resolved(carried), ranges)
    if dead_letters == "include":
        return frame_of(spark, carried, ranges, range_records=range_records)
    offsets = _dead_letters(_ledger(ledger, group), ranges)
    if dead_letters == "only":  # from the first to the last of each partition
        ranges = [
            replace(range_, start=found[0], end=found[-1] + 1)
            for range_ in ranges
            if (found := offsets.get(range_.partition))
        ]
    return frame_of(spark, carried, ranges, range_records=range_records, dead_letters=(dead_letters, offsets))


def frame_of(
    spark: SparkSession,
    carried: Mapping[str, Any],
    ranges: Sequence[Range],
    *,
    range_records: int = SMALLEST,
    dead_letters: tuple[DeadLetters, Mapping[Partition, Sequence[int]]] = ("include", {}),
) -> DataFrame:
    """The records of these ranges, as :func:`read` gives them. ``carried`` is what :func:`portable` made of ``kafka=``.

    ``dead_letters``: what is done with them, and their offsets, ascending.
    """
    what, offsets = dead_letters

    def task(range_: Range) -> list[Any]:
        its = offsets.get(range_.partition, ())
        return [carried_range(range_), list(its[bisect_left(its, range_.start) : bisect_left(its, range_.end)])]

    tasks = [
        [task(range_) for range_ in each]
        for each in split_ranges(ranges, range_records=range_records, slots=slots_of(spark))
    ]
    with required("Spark needs pyspark", "spark"):
        # pyspark, which planning does without
        from seekpoint.jobs.spark.data_sources import MarkedSource, Source  # noqa: PLC0415
    source = MarkedSource if what == "mark" else Source
    return source.frame(spark, {"kafka": carried, "tasks": tasks, "dead_letters": what})


def _dead_letters(ledger: Ledger, ranges: Sequence[Range]) -> dict[Partition, list[int]]:
    """The offsets of the records in these ranges that are dead letters now, by partition, ascending."""
    with transaction(ledger.engine, ledger.schema) as tx:
        spans = {range_.partition: (range_.topic_id, range_.start, range_.end) for range_ in ranges}
        rows = dead_letters_within(tx, ledger.group, spans)
    offsets: dict[Partition, list[int]] = {}
    for row in sorted(rows):
        offsets.setdefault(Partition(row.topic, row.partition), []).append(row.record_offset)
    return offsets


def stored_ranges(
    ledger: Ledger | Engine | URL | str,
    group: str,
    topics: str | Collection[str] | None = None,
    *,
    start: Offsets | None = None,
    end: Offsets | None = None,
) -> list[Range]:
    """What :func:`read` reads: one range for each partition of the group's topics, of one moment of the ledger.

    Raises ConfigError for a group, a topic or a partition that the ledger does not have.
    """
    mine = applied(_ledger(ledger, group), topics)
    starts, ends = (_offsets(given, {at.partition for at in mine}, group) for given in (start, end))
    return [
        Range(
            at.partition,
            at.topic_id,
            starts.get(at.partition, at.first_offset),
            ends.get(at.partition, at.next_offset),
        )
        for at in mine
    ]


def _ledger(given: Ledger | Engine | URL | str, group: str) -> Ledger:
    """The ledger of this group."""
    ledger = given if isinstance(given, Ledger) else Ledger(given, group)
    return ledger if ledger.group == group else Ledger(ledger.engine, group, schema=ledger.schema)


def _offsets(given: Offsets | None, known: Collection[Partition], group: str) -> dict[Partition, int]:
    named = {Partition(*partition): offset for partition, offset in (given or {}).items()}
    if strange := sorted(named.keys() - set(known)):
        raise ConfigError(f"start= and end= name {', '.join(map(str, strange))}, which group {group!r} does not read")
    return named


def require_this_python(spark: SparkSession) -> None:
    """Refuse a session that could only say that a Python process "exited unexpectedly", or cannot be started.

    Workers of a local one must run this Python. Elsewhere a data source is planned by a process beside the driver, with
    the path of the executors' Python: it must be there on this machine, too.
    """
    if (context := context_of(spark)) is None:
        return  # its workers are not ours to check
    theirs, master = str(context.pythonExec), str(context.master)
    found = shutil.which(theirs)
    if master.startswith("local") and (found is None or _environment(found) != _environment(sys.executable)):
        raise ConfigError(
            f"Spark's Python workers run {found or theirs}, and this is {sys.executable}: set the environment variable "
            f"PYSPARK_PYTHON={sys.executable} before the session is made"
        )
    if found is None:
        raise ConfigError(
            f"Spark plans a read beside the driver, in a process of the executors' Python, and {theirs} is not to be "
            f"found from here ({Path.cwd()}). Where --archives unpacks it for the executors, unpack it here under the "
            "same name, too: `mkdir environment && tar -xzf env.tar.gz -C environment` for env.tar.gz#environment; or "
            "let the driver run in the cluster (--deploy-mode cluster), where Spark does that"
        )


def context_of(spark: SparkSession) -> SparkContext | None:
    """The session's context; None for one of Spark Connect, which has none here."""
    try:
        return spark.sparkContext
    except Exception:  # noqa: BLE001 -- what it raises is of a module that only Connect has
        return None


def slots_of(spark: SparkSession) -> int:
    """How many tasks the session runs at a time; 1 where that is not known (Spark Connect)."""
    context = context_of(spark)
    return 1 if context is None else int(context.defaultParallelism)


def _environment(python: str) -> tuple[str, str]:
    """The folder it lies in, not resolved (so venvs differ), and the file that is run in the end."""
    return os.path.normpath(Path(python).parent), os.path.realpath(python)
