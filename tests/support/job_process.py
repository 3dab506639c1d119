"""A job in a separate process that tests kill: ``JobProcess`` in the test, ``HaltedDriver`` in the process."""

from __future__ import annotations

import threading
from typing import Any

from seekpoint.jobs.reload import Driver
from seekpoint.runs.run import Tx
from seekpoint.testing.child_process import ChildProcess, report
from support.archive import ArchivedGroup
from support.forked_process import Forked
from support.reload_orders import OrdersGroup


class JobProcess(ChildProcess):
    """A process that runs ``main`` of ``script`` on these servers, and reports ``halted`` when it has halted."""

    def __init__(self, script: str, servers: OrdersGroup | ArchivedGroup, **what: Any) -> None:
        options = {
            "url": servers.engine.url.render_as_string(hide_password=False),
            "brokers": servers.brokers,
            "schema": servers.schema,
            "group": servers.group,
            **what,
        }
        super().__init__(Forked(script, options))

    def kill_where_it_waits(self) -> None:
        """SIGKILL the process when it has halted, or when the test is over."""
        try:
            halted = self.reaches("halted")
        finally:
            self.close()
        assert halted, self.errors


class HaltedDriver(Driver):
    """A driver that halts in the state ``halts_at``, or in the transition to it (``turn STATE``)."""

    halts_at = ""

    def _admit(self, row: Any, states: Any) -> None:
        super()._admit(row, states)
        if self.run.state == self.halts_at:
            halt()

    def transition(self, tx: Tx, state: str) -> None:
        super().transition(tx, state)
        if self.halts_at == f"turn {state}":
            halt()


def halt() -> None:
    """Report ``halted``, and wait forever."""
    report("halted")
    threading.Event().wait()
