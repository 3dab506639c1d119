"""A group's records between two positions as a DataFrame: bounded by numbers, never by "now"."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import URL, Engine

from seekpoint.errors import ConfigError, required
from seekpoint.jobs.export.export import applied
from seekpoint.jobs.spark.settings import carried_range, portable, require_no_secret, resolved
from seekpoint.kafka.ranges import SMALLEST, Range, check_ranges, split_ranges
from seekpoint.ledger import Ledger
from seekpoint.records import Partition

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

Offsets = Mapping[Partition, int] | Mapping[tuple[str, int], int]


def read(
    spark: SparkSession,
    ledger: Ledger | Engine | URL | str,
    group: str,
    topics: str | Collection[str] | None = None,
    *,
    kafka: Mapping[str, Any],
    start: Offsets | None = None,
    end: Offsets | None = None,
    smallest: int = SMALLEST,
) -> DataFrame:
    """The records that a group has applied, as a DataFrame: exactly those, though its workers continue.

    Columns: ``topic`` string, ``partition`` int, ``offset`` bigint, ``timestamp`` timestamp, ``key`` and ``value``
    binary, ``headers`` array of (``key`` string, ``value`` binary), null where the client cannot read them.

    The ends are numbers, taken now from the ledger: from ``first_offset`` to ``next_offset`` of each partition.
    ``start`` and ``end`` replace them for the partitions that they name; an end must be readable now. ``kafka`` is the
    workers' own configuration, with :class:`Env` for passwords. Tasks read at least ``smallest`` offsets each.

    Raises ConfigError, RangeLost, RangeStuck, TopicRecreated and KafkaUnavailable here; a query raises Spark's
    exception with the same sentence in it if retention, a truncation or a new topic passes while it reads.
    """
    carried = portable(kafka)
    require_no_secret(spark, None, carried)
    require_this_python(spark)
    ranges = stored_ranges(ledger, group, topics, start=start, end=end)
    check_ranges(resolved(carried), ranges)
    return frame_of(spark, carried, ranges, smallest=smallest)


def frame_of(
    spark: SparkSession,
    carried: Mapping[str, Any],
    ranges: Sequence[Range],
    *,
    smallest: int = SMALLEST,
    archive: Mapping[str, Any] | None = None,
) -> DataFrame:
    """The records of these ranges, as :func:`read` gives them. ``carried`` is what :func:`portable` made of ``kafka=``.

    ``archive``: the archive's spec and the ledger's ``url``, portable as well, where the log has lost some of it.
    """
    tasks = [[carried_range(range_) for range_ in task] for task in split_ranges(ranges, smallest=smallest)]
    with required("Spark needs pyspark", "spark"):
        from seekpoint.jobs.spark.data_sources import Source  # noqa: PLC0415 -- pyspark, which planning does without
    return Source.frame(spark, {"kafka": carried, "tasks": tasks, "archive": archive})


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
    own = ledger if isinstance(ledger, Ledger) else Ledger(ledger, group)
    if own.group != group:
        own = Ledger(own.engine, group, schema=own.schema)
    mine = applied(own, topics)
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


def _offsets(given: Offsets | None, known: Collection[Partition], group: str) -> dict[Partition, int]:
    named = {Partition(*partition): offset for partition, offset in (given or {}).items()}
    if strange := sorted(named.keys() - set(known)):
        raise ConfigError(f"start= and end= name {', '.join(map(str, strange))}, which group {group!r} does not read")
    return named


def require_this_python(spark: SparkSession) -> None:
    """Refuse a local session whose workers run another Python: all it would say is that one "exited unexpectedly"."""
    if (context := context_of(spark)) is None:
        return  # its workers are not ours to check
    theirs, master = str(context.pythonExec), str(context.master)
    found = shutil.which(theirs)
    if master.startswith("local") and (found is None or _environment(found) != _environment(sys.executable)):
        raise ConfigError(
            f"Spark's Python workers run {found or theirs}, and this is {sys.executable}: set the environment variable "
            f"PYSPARK_PYTHON={sys.executable} before the session is made"
        )


def context_of(spark: SparkSession) -> SparkContext | None:
    """The session's context; None for one of Spark Connect, which has none here."""
    try:
        return spark.sparkContext
    except Exception:  # noqa: BLE001 -- what it raises is of a module that only Connect has
        return None


def _environment(python: str) -> tuple[str, str]:
    """The folder it lies in, not resolved (so venvs differ), and the file that is run in the end."""
    return os.path.normpath(Path(python).parent), os.path.realpath(python)
