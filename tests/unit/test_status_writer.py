"""When a worker's row for display is written, decided without a database."""

from __future__ import annotations

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
    ledger.apart = lambda: ledger
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
