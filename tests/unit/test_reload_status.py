"""A run's rate and the time left, which only a run that stages has."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

from seekpoint.admin import ReloadStatus
from seekpoint.ledger.tables import RELOAD_STATES

OPENED = datetime(2026, 11, 29, tzinfo=UTC)


def status(state: str, seconds: int, read: int = 300) -> ReloadStatus:
    changed_at = OPENED + timedelta(seconds=seconds)
    return ReloadStatus(
        uuid4(), ("g",), ("t",), "merge", (1,), (2,), state, "d", "a", "r", None, OPENED, changed_at, read, 900, None
    )  # fmt: skip


def test_a_run_that_stages_has_a_rate_and_time_left() -> None:
    staging = status("staging", 30)
    assert (staging.rate, staging.left) == (10.0, timedelta(seconds=60))
    assert (status("staging", 30, read=0).rate, status("staging", 0).left) == (None, None)


def test_later_heartbeats_do_not_lower_the_rate() -> None:
    for state in set(RELOAD_STATES) - {"staging"}:
        assert (status(state, 3_000).rate, status(state, 3_000).left) == (None, None), state
