"""Summarizes each group, with lag from the brokers if they answer, otherwise from the workers' samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row

from seekpoint.admin.lag import Lag, ask_logs, lag_of
from seekpoint.admin.status import BrokersAway, Pause
from seekpoint.errors import KafkaUnavailable
from seekpoint.kafka.identity import Identity
from seekpoint.ledger.schema_connection import SchemaConnection
from seekpoint.ledger.sql import STATUS
from seekpoint.records import Partition


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A summary of one group; ``lag`` and ``lag_seconds`` are None unless they are known for every partition.

    ``age`` is the age of the oldest sample used for lag and headroom; None if these are current, or not known.
    ``blocked`` of the open dead letters are blocked behind their key; ``waiting`` records wait for their retries, the
    oldest for ``oldest_waiting_seconds``.
    """

    name: str
    version: int
    pause: Pause | None
    partitions: int
    owned: int
    stopped: int
    workers: int
    lag: int | None
    lag_seconds: float | None
    headroom: int | None
    headroom_seconds: float | None
    dead_letters: int
    committed_at: datetime | None
    age: timedelta | None = None
    blocked: int = 0
    waiting: int = 0
    oldest_waiting_seconds: float | None = None


def summaries(tx: SchemaConnection) -> list[GroupSummary]:
    """All groups, by name, with lag from samples."""
    return [
        GroupSummary(
            row.consumer_group,
            row.version,
            Pause(row.paused_by, row.paused_reason) if row.paused else None,
            row.partitions,
            row.owned,
            row.stopped,
            row.workers,
            row.lag_records,
            row.lag_seconds,
            row.headroom_records,
            row.headroom_seconds,
            row.dead_letters,
            row.committed_at,
            None if row.lag_records is None and row.headroom_records is None else row.sample_age,
            row.blocked,
            row.waiting,
            row.oldest_waiting_seconds,
        )
        for row in tx.execute(STATUS["group_status"])
    ]


def ask_for_lag(
    groups: Sequence[GroupSummary],
    rows: Sequence[Row[Any]],
    ids: Sequence[Row[Any]],
    settings: Mapping[str, Any],
    timeout: float,
) -> tuple[list[GroupSummary], list[str]]:
    """The groups with lag from the brokers' answers; unchanged, with a warning, if no broker answers.

    ``rows`` are those of the view ``lag``; ``ids`` have the stored topic ids.
    """
    stored = {(row.consumer_group, Partition(row.topic, row.partition)): row.topic_id for row in ids}
    if not stored:
        return list(groups), []
    try:
        logs = ask_logs(Identity(settings, timeout), stored, settings).logs
    except KafkaUnavailable as error:
        return list(groups), [BrokersAway(f"{error}; lag is as of the last samples")]
    by_group: dict[str, list[tuple[Row[Any], Lag]]] = {group.name: [] for group in groups}
    for row in rows:
        by_group[row.consumer_group].append((row, lag_of(row, logs)))
    return [replace(group, **_total(by_group[group.name])) for group in groups], []


def _total(lags: Sequence[tuple[Row[Any], Lag]]) -> dict[str, Any]:
    """Totals of the partitions: lag is None if any partition's is unknown; headroom is the smallest known one."""
    records = [lag.lag for _, lag in lags if lag.lag is not None]
    seconds = [lag.lag_seconds for _, lag in lags if lag.lag_seconds is not None]
    return {
        "lag": sum(records) if len(records) == len(lags) else None,
        "lag_seconds": max(seconds, default=None) if len(seconds) == len(lags) else None,
        "headroom": min((lag.headroom for _, lag in lags if lag.headroom is not None), default=None),
        "headroom_seconds": min(
            (lag.headroom_seconds for _, lag in lags if lag.headroom_seconds is not None), default=None
        ),
        "age": max((row.sample_age for row, lag in lags if lag.is_sampled), default=None),
    }
