"""Reads positions and the trouble of partitions: under the row's lock for decisions, without it for display."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Row

from seekpoint import errors
from seekpoint.errors import PartitionStopped
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import WORKER, asking_for
from seekpoint.records import Partition


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a partition is stopped: ``kind`` is the error's name, ``choices`` lists the decisions.

    ``log_end`` is where the log ended, if the worker that stopped with OffsetLost has seen that; otherwise None.
    """

    kind: str
    offset: int
    message: str
    choices: tuple[str, ...]
    at: datetime
    log_end: int | None = None

    @property
    def code(self) -> str:
        """The error's code, such as ``SP1201``."""
        kind: type[PartitionStopped] = getattr(errors, self.kind, PartitionStopped)
        return kind.code

    @property
    def is_by_retention(self) -> bool:
        """Whether retention, not a truncation, has deleted the record at the stop: the log ended after it."""
        return self.kind == "OffsetLost" and self.log_end is not None and self.log_end > self.offset


@dataclass(frozen=True, slots=True)
class Position:
    """One row of the ledger. ``next_offset`` is the position; times are the database's.

    ``attempt_offset`` is the record that is being retried, None if there is none; it was tried ``attempts`` of
    ``attempts_allowed`` times, and ``attempt_crashes`` of these crashed the process. ``attempt_running``: an attempt is
    running. ``attempt_error`` is the last error, ``retry_at`` the time of the next attempt, ``attempt_policy`` the
    failure policy after the last one. Records up to ``suspect_end`` may crash their process, so they are applied in
    parts; the part up to ``suspect_part_end`` is being applied (``suspect_running``) or has crashed. ``stop`` is why
    the partition is stopped, if it is.
    """

    partition: Partition
    topic_id: UUID
    first_offset: int
    next_offset: int
    leader_epoch: int | None
    token: UUID
    epoch: int
    owner: UUID | None
    claimed_at: datetime | None
    committed_at: datetime | None
    record_time: datetime | None
    unreleased_claims: int
    attempt_offset: int | None
    attempts: int
    attempts_allowed: int | None
    attempt_crashes: int
    attempt_running: bool
    attempt_error: str | None
    retry_at: datetime | None
    attempt_policy: str | None
    suspect_end: int | None
    suspect_part_end: int | None
    suspect_running: bool
    stop: Stop | None = None


_KEPT = {field.name for field in fields(Position)} - {"partition", "stop"}


def position(row: Row[Any]) -> Position:
    """The Position of a row of ``partition_state``."""
    columns = {name: value for name, value in row._asdict().items() if name in _KEPT}
    if not row.attempts:  # the only attempt was cancelled, and does not count
        columns["attempt_offset"] = None
    if row.suspect_end is not None and row.suspect_end <= row.next_offset:
        columns["suspect_end"] = None
    if row.stop_kind is not None:
        choices = tuple(row.stop_choices)
        about = (row.stop_kind, row.stop_offset, row.stop_message, choices, row.stopped_at, row.stop_log_end)
        columns["stop"] = Stop(*about)
    return Position(Partition(row.topic, row.partition), **columns)


def positions_of(tx: GroupConnection, partitions: Iterable[Partition], *, locked: bool) -> dict[Partition, Position]:
    """The rows of these partitions. ``locked`` waits for transactions in flight."""
    parameters = asking_for(sorted(partitions))
    if locked:
        tx.execute(WORKER["settle"], **parameters)
    rows = tx.execute(WORKER["positions"], **parameters)
    return {row.partition: row for row in map(position, rows)}
