"""A worker of one of two groups, or the operator who replaces one by the other, in a process that tests kill."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Any

from sqlalchemy import create_engine, event

from seekpoint.admin import Admin
from seekpoint.errors import HandlerOutdated
from seekpoint.testing.child_process import ChildProcess, Reporter, report
from support.forked_process import Forked
from support.replacement import make_worker

STEPS = ("waiting", "paused", "exchanging", "committing", "done")


class ReplaceProcess(ChildProcess):
    """One process; the operator's stops itself (SIGSTOP) at ``stop_at``, one of ``STEPS``."""

    def __init__(self, **what: Any) -> None:
        super().__init__(Forked("support.replace_process", what))


def main(what: Mapping[str, Any]) -> None:
    """Run a worker until SIGTERM or until it is outdated, or replace the group."""
    (_work if what["role"] == "worker" else _replace)(what)


def _work(what: Mapping[str, Any]) -> None:
    worker, engine = make_worker(what, [Reporter()])
    try:
        worker.run()
    except HandlerOutdated:
        report("outdated")
    finally:
        engine.dispose()


def _replace(what: Mapping[str, Any]) -> None:
    engine = create_engine(what["dsn"])
    reached: list[str] = []

    def step(name: str) -> None:
        if name not in reached:
            reached.append(name)
            report("step", name=name)
            if name == what.get("stop_at"):
                os.kill(os.getpid(), signal.SIGSTOP)

    @event.listens_for(engine, "before_cursor_execute")
    def execute(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("UPDATE") and "lost_range" in statement:
            step("exchanging")

    @event.listens_for(engine, "commit")
    def commit(connection: Any) -> None:
        if "exchanging" in reached:
            step("committing")

    def progress(message: str, done: int, total: int) -> None:
        step("waiting" if message.endswith("catches up") else "paused")

    admin = Admin(engine, schema=what["schema"])
    plan = admin.plan_replace(what["old"], by=what["new"])
    admin.replace_group(plan, reason="a test", wait=60.0, progress=progress)
    step("done")
    engine.dispose()
