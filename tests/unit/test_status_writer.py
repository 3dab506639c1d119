"""When a worker's row for display is written, decided without a database."""

from __future__ import annotations

from contextlib import nullcontext
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from seekpoint import Limits
from seekpoint.records import Partition
from seekpoint.worker import status_writer
from seekpoint.worker.status_writer import StatusWriter


def test_a_worker_without_partitions_writes_its_row_as_seldom_as_others_and_at_its_first_claim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It looks each second until then, so that the first claim is seen soon."""
    written = SimpleQueue[str]()
    tables = SimpleNamespace(seen=lambda state, _: written.put(state), prune=lambda _: None)
    monkeypatch.setattr(status_writer, "StatusTables", lambda *_: tables)
    ledger: Any = SimpleNamespace(limits=Limits(lag_check=10, sample_positions=0))
    ledger.apart = lambda: nullcontext(ledger)
    no_logs: Any = None
    writer = StatusWriter(ledger, no_logs, {}, lambda _: None)  # type: ignore[arg-type]
    times = []
    for second in range(100, 121):
        if not writer.is_due(second):
            continue
        writer.show("running", (), second)
        if not (second - 100) % 10:
            assert written.get(timeout=10) == "running"
        times.append(second)
    assert times == list(range(100, 121))
    writer.show("first", [Partition("orders", 0)], 121)
    assert written.get(timeout=10) == "first"
    assert [second for second in range(122, 132) if writer.is_due(second)] == [131]
    writer.show("revoked", (), 131)
    assert written.get(timeout=10) == "revoked"
    assert not writer.is_due(140)
    writer.end()
    assert written.get(timeout=10) == status_writer.ENDED
    assert written.empty()


def test_a_worker_in_a_long_transaction_writes_its_row_and_says_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would be "no worker" after a minute, and alarm, while its handler works."""
    written = SimpleQueue[tuple[str, str | None]]()
    tables = SimpleNamespace(seen=lambda state, trouble: written.put((state, trouble)), prune=lambda _: None)
    monkeypatch.setattr(status_writer, "StatusTables", lambda *_: tables)
    ledger: Any = SimpleNamespace(limits=Limits(lag_check=0.01, sample_positions=0))
    ledger.apart = lambda: nullcontext(ledger)
    work: list[str | None] = [None]
    writer = StatusWriter(ledger, None, {}, lambda _: None, describe_work=lambda: work[0])  # type: ignore[arg-type]
    writer.show("trouble", (), 100, "the server does not answer")
    assert written.get(timeout=10) == ("trouble", "the server does not answer")
    work[0] = "in a transaction for 2 min 40 s, 8,298 records"
    for _ in range(2):
        assert written.get(timeout=10) == ("running", "in a transaction for 2 min 40 s, 8,298 records")
    writer.end()
