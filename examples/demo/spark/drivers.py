"""Starts the drivers' processes, kills them with all their child processes, and reads their progress by SQL."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any, Self, TypeVar

import psutil
from sqlalchemy import Engine, text

from demo.flights import GROUP
from demo.servers import DATABASE
from demo.worker_pool import DemoFailed, LoggedProcess
from seekpoint.testing import start_python

LONGEST = 600.0  # seconds that a step may take: a session of Spark takes minutes on a busy machine

_APPLIED = text(
    f"SELECT coalesce(sum(next_offset), 0) FROM seekpoint.partition_offset WHERE consumer_group = '{GROUP}'"
)
_STAGING = text(
    f"SELECT count(*) > 0 FROM seekpoint.reload_run WHERE '{GROUP}' = ANY (groups) AND state IN ('opened', 'staging')"
)

T = TypeVar("T")


class DriverProcess(LoggedProcess):
    """One Spark driver, in its own folder."""

    def __init__(self, name: str, folder: Path, database: str, order: dict[str, Any]) -> None:
        self.name, self.folder, self.log = name, folder / name, folder / f"{name}.log"
        self.folder.mkdir()
        env = {DATABASE: database, "TMPDIR": str(self.folder)}
        process = start_python("-m", "demo.spark.driver_process", stderr=self.log, env=env)
        super().__init__(process, {**order, "folder": str(self.folder)})

    def close(self) -> None:
        """SIGKILL the driver's Python, its Java and the processes of its tasks, and delete its folder."""
        with suppress(psutil.NoSuchProcess):
            for process in [psutil.Process(self.pid), *self.children()]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self.ended()
        shutil.rmtree(self.folder, ignore_errors=True)

    def children(self) -> list[psutil.Process]:
        """The processes that the driver has started; none if it has ended."""
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.pid).children(recursive=True)
        return []

    def kill_tasks(self) -> int:
        """SIGKILL the Python processes of the driver's executors; returns how many were killed."""
        hit = 0
        for process in self.children():
            with suppress(psutil.Error):
                if "pyspark.daemon" in process.cmdline():
                    process.kill()
                    hit += 1
        return hit


class Drivers:
    """The drivers of the group. Leaving the block kills what still runs."""

    def __init__(self, engine: Engine, folder: Path, database: str, order: dict[str, Any]) -> None:
        self._engine, self._folder, self._database, self._order = engine, folder, database, order
        self._drivers: list[DriverProcess] = []
        self.on_progress: Callable[[int], None] = lambda _: None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for driver in self._drivers:
            driver.close()

    def start(self, name: str) -> DriverProcess:
        """Start a driver, in an empty folder."""
        driver = DriverProcess(name, self._folder, self._database, self._order)
        self._drivers.append(driver)
        return driver

    @property
    def applied(self) -> int:
        """How many records are applied: the topic's offsets begin at 0 and have no holes."""
        return int(self._ask(_APPLIED))

    @property
    def is_staging(self) -> bool:
        """Whether tasks stage a micro-batch."""
        return bool(self._ask(_STAGING))

    def _ask(self, query: Any) -> Any:
        with self._engine.connect() as connection:
            return connection.execute(query).scalar_one()

    def wait(self, driver: DriverProcess, what: str, until: Callable[[], T | None]) -> T:
        """Wait until ``until()`` is true, and return it. Raises DemoFailed if it takes too long, or the driver ends."""
        deadline, pause = monotonic() + LONGEST, threading.Event()
        while not (outcome := until()):
            if not driver.is_alive or monotonic() > deadline:
                raise DemoFailed(f"driver {driver.name}: waited for {what}, in vain: {driver.tail()}")
            self.on_progress(self.applied)
            pause.wait(0.05)
        self.on_progress(self.applied)
        return outcome
