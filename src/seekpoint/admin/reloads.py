"""Reads the state and progress of runs from the ledger's tables."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Row

from seekpoint.ledger.schema_connection import SchemaConnection
from seekpoint.ledger.sql import STATUS
from seekpoint.ledger.tables import RELOAD_CLOSED


@dataclass(frozen=True, slots=True)
class TableDifferences:
    """The numbers of rows that a run's comparison found in one table.

    ``equal`` rows are the same in the live and the rebuilt table, ``different`` ones have other values; the live table
    lacks the ``missing`` rows, and should not have the ``extra`` ones.
    """

    table: str
    equal: int
    missing: int
    extra: int
    different: int


@dataclass(frozen=True, slots=True)
class ReloadStatus:
    """A run: ``read`` of ``wanted`` offsets are staged. ``changed_at`` is its driver's last heartbeat.

    ``differences`` are None if nothing has been compared.
    """

    id: UUID
    groups: tuple[str, ...]
    tables: tuple[str, ...]
    strategy: str
    version_from: tuple[int, ...]
    version_to: tuple[int, ...]
    state: str
    driver: str
    actor: str
    reason: str
    error: str | None
    opened_at: datetime
    changed_at: datetime
    read: int
    wanted: int
    differences: tuple[TableDifferences, ...] | None

    @property
    def is_open(self) -> bool:
        """Whether the run has not ended."""
        return self.state not in RELOAD_CLOSED

    @property
    def rate(self) -> float | None:
        """Offsets staged per second since the run was opened; None if there were none, or staging has ended."""
        seconds = (self.changed_at - self.opened_at).total_seconds()
        return self.read / seconds if self.state == "staging" and self.read and seconds > 0 else None

    @property
    def left(self) -> timedelta | None:
        """The estimated time until all offsets are staged; None if the rate is not known."""
        return None if self.rate is None else timedelta(seconds=max(0, self.wanted - self.read) / self.rate)


def reloads(tx: SchemaConnection, is_open: bool, limit: int) -> list[ReloadStatus]:
    """All runs, or only the open ones; newest first."""
    return [_status(row) for row in tx.execute(STATUS["runs"], only_open=is_open, most=limit)]


def _status(row: Row[Any]) -> ReloadStatus:
    return ReloadStatus(
        row.id,
        tuple(row.groups),
        tuple(row.tables),
        row.strategy,
        tuple(row.version_from),
        tuple(row.version_to),
        row.state,
        row.driver,
        row.actor,
        row.reason,
        row.error,
        row.opened_at,
        row.changed_at,
        row.read,
        row.wanted,
        None if row.differences is None else tuple(TableDifferences(**table) for table in row.differences),
    )
