"""A job in a process of its own, to be killed: ``JobProcess`` on the test's side; on the other, where it waits."""

from __future__ import annotations

import threading
from typing import Any

from seekpoint.jobs.reload import Driver
from seekpoint.jobs.run import Tx
from seekpoint.testing.child_process import ChildProcess, report
from support.archive import ArchivedGroup
from support.forked_process import Forked
from support.reload_orders import OrdersGroup


class JobProcess(ChildProcess):
    """One process that runs ``main`` of ``script`` on these servers; reports ``halted`` where it waits for ever."""

    def __init__(self, script: str, servers: OrdersGroup | ArchivedGroup, **what: Any) -> None:
        given = {
            "url": servers.engine.url.render_as_string(hide_password=False),
            "brokers": servers.brokers,
            "schema": servers.schema,
            "group": servers.group,
            **what,
        }
        super().__init__(Forked(script, given))

    def kill_where_it_waits(self) -> None:
        """SIGKILL once it waits there."""
        halted = self.reaches("halted")
        self.close()
        assert halted, self.errors


class HaltedDriver(Driver):
    """A driver that waits for ever at one place."""

    at = ""

    def _admit(self, row: Any, states: Any) -> None:
        super()._admit(row, states)
        if self.run.state == self.at:
            halt()

    def transition(self, tx: Tx, state: str) -> None:
        super().transition(tx, state)
        if self.at == f"turn {state}":
            halt()


def halt() -> None:
    """For ever."""
    report("halted")
    threading.Event().wait()
