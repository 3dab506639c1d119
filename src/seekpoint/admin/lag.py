"""Lag and headroom of a partition, in records and in time: one calculation for status, console and exporter.

Uses the log's current bounds if the brokers answer, otherwise the worker's last recent sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Row

from seekpoint.kafka.identity import Identity
from seekpoint.kafka.watermarks import Watermarks
from seekpoint.records import Partition

Log = tuple[int, int]
Logs = Mapping[tuple[str, Partition], Log | None]
"""First and end offset by group and partition, as brokers report them now; None: the topic id is not the stored one."""


@dataclass(frozen=True, slots=True)
class Lag:
    """A partition's lag and headroom; None: not known. ``is_sampled``: these are as of the worker's last sample.

    ``lag`` is also None if the position is past ``end``. ``lag_seconds`` is the age of the next record.
    """

    end: int | None = None
    lag: int | None = None
    lag_seconds: float | None = None
    headroom: int | None = None
    headroom_seconds: float | None = None
    is_sampled: bool = False


def lag_of(row: Row[Any], logs: Logs) -> Lag:
    """The lag for a row of the view ``lag``: from ``logs`` if that has the partition, otherwise from the sample."""
    key = row.consumer_group, Partition(row.topic, row.partition)
    if key not in logs:
        is_fresh = row.lag_records is not None
        end, is_sampled = row.log_end if is_fresh else None, is_fresh or row.headroom_records is not None
        headroom = row.headroom_records, row.headroom_seconds
        return Lag(end, row.lag_records, row.lag_seconds, *headroom, is_sampled=is_sampled)
    if (log := logs[key]) is None:
        return Lag()
    start, end = log
    lag = end - row.next_offset if row.next_offset <= end else None
    return Lag(end, lag, _lag_seconds(row, end), row.next_offset - start, _headroom_seconds(row, start))


class BrokersLogs(NamedTuple):
    """The brokers' answers: the topics' ids, None for an unknown topic, and the logs of partitions."""

    topic_ids: Mapping[str, UUID | None]
    logs: Logs


def ask_logs(
    identity: Identity, topic_ids: Mapping[tuple[str, Partition], UUID], settings: Mapping[str, Any]
) -> BrokersLogs:
    """The topics' current ids, and these partitions' logs, without logs for which no broker answers.

    ``topic_ids`` are the stored ids; the ``isolation.level`` of ``settings``, librdkafka's configuration, decides where
    a log ends. Raises KafkaUnavailable.
    """
    ids = identity.ask({partition.topic for _, partition in topic_ids}).known()
    unchanged = {partition for (_, partition), topic_id in topic_ids.items() if ids[partition.topic] == topic_id}
    committed = settings.get("isolation.level") != "read_uncommitted"
    logs = Watermarks(identity, committed=committed).logs(sorted(unchanged))
    answered = {
        (group, partition): logs[partition] if ids[partition.topic] == topic_id else None
        for (group, partition), topic_id in topic_ids.items()
        if ids[partition.topic] != topic_id or partition in logs
    }
    return BrokersLogs(ids, answered)


def _lag_seconds(row: Row[Any], end: int) -> float | None:
    """The next record's age in seconds, computed as in the view, with the log's current end as the newest sample.

    If no sample shows when the record arrived, its time is interpolated between the last sample that the position has
    reached and now.
    """
    if row.next_offset >= end:
        return 0 if row.next_offset == end else None
    record_time = row.next_record_at
    if record_time is None and row.reached_at is not None:
        share = (row.next_offset - row.reached_end) / (end - row.reached_end)
        record_time = row.reached_at + (row.now - row.reached_at) * share
    record_time = row.record_time if record_time is None else record_time
    return None if record_time is None else float(max((row.now - record_time).total_seconds(), 0))


def _headroom_seconds(row: Row[Any], start: int) -> float | None:
    """Seconds until the log's start reaches the position, at the rate since a stored sample."""
    headroom = row.next_offset - start
    if headroom < 0:
        return 0
    if row.past_log_start is None or start <= row.past_log_start:
        return None
    return float(headroom * (row.now - row.log_start_since).total_seconds() / (start - row.past_log_start))
