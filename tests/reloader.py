"""A reload in a process of its own, to be killed: ``Reloader`` on this side, ``main`` on the other.

It stands still, its transaction open, where it is told to: at the first step of a state, or at the turn to one; and
prints a line when it does.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from uuid import UUID

from sqlalchemy import create_engine

from member import _given
from seekpoint.reload import Driver, Reload
from seekpoint.reload.run import Tx
from shop import Shop, pipeline


class Reloader:
    """One process. ``at="staged"`` stands still in the first step of that state, ``at="turn cut_over"`` at its end."""

    def __init__(self, shop: Shop, run: UUID, **options: Any) -> None:
        what = {
            "url": shop.engine.url.render_as_string(hide_password=False),
            "brokers": shop.brokers,
            "schema": shop.schema,
            "group": shop.group,
            "topic": shop.topic,
            "run": str(run),
            **options,
        }
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", __file__, json.dumps(what)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *_given()])},
        )

    def wait_for(self, word: str) -> bool:
        """Until it says this (``driving``, ``standing``, ``done``); False if it has ended without it."""
        assert self._process.stdout is not None
        return any(line.strip() == word for line in iter(self._process.stdout.readline, ""))

    def ended(self, seconds: float) -> bool:
        """Whether it comes to its end within so many seconds."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """SIGKILL: nobody is told."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Standing(Driver):
    """A driver that stands still for ever at one place."""

    at = ""

    def _admit(self, row: Any, states: Any) -> None:
        super()._admit(row, states)
        if self.run.state == self.at:
            self._stand()

    def turn(self, tx: Tx, state: str) -> None:
        super().turn(tx, state)
        if self.at == f"turn {state}":
            self._stand()

    def _stand(self) -> None:
        print("standing", flush=True)
        threading.Event().wait()


def main(what: dict[str, Any]) -> None:
    """Drive the run to its end, or to where it is to stand."""
    engine = create_engine(what["url"])
    made = pipeline(what["group"], what["topic"], what["schema"], version=what.get("version", 2))
    reload = Reload(
        [made], engine, {"bootstrap.servers": what["brokers"]}, schema=what["schema"], range_records=what["width"]
    )
    taken = reload.take(UUID(what["run"]))
    driver = Standing(taken.engine, taken.schema, taken.run, taken.limits)
    driver.at = what.get("at", "")
    print("driving", flush=True)
    reload.run(driver)
    engine.dispose()
    print("done", flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
