"""Where each microsecond of an append goes: the client by stage, the server's backend, the broker; and the ceiling.

Stages are functions that process a chunk or a transaction, so that timing them costs little in comparison. Each has the
elapsed time and the processor time of the worker's thread, without the stages inside it. For the servers' processes
only processor time is read, which needs BENCH_BROKER_PID and BENCH_POSTGRES_PID, as ``run.py`` sets them.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable
from functools import wraps
from time import perf_counter, thread_time
from typing import Any

import psutil

from append import pipeline
from seekpoint import events
from setting import KEYED, LIMIT, upgrade
from subject import KIND, check, fresh_table
from worker_pool import Run, work

STAGES = {
    "fetch from the client library": "seekpoint.kafka.client:Client.read",
    "which partition, which position": "seekpoint.worker.assignment.worker_assignment:WorkerAssignment.accept_messages",
    "messages to records": "seekpoint.worker.reader:Reader._readable",
    "decode": "seekpoint.pipeline.writers:PipelineWriters.values",
    "values to rows": "seekpoint.sinks.table_writer:TableWriter.chunk_rows",
    "rows to COPY": "seekpoint.sinks.copy:_Copy.write",
    "the end of COPY": "psycopg:Copy.__exit__",
    "hold": "seekpoint.ledger:GroupLedger.hold",
    "advance": "seekpoint.ledger:GroupLedger.advance",
    "COMMIT": "psycopg:Connection.commit",
}
REST = "the rest of the loop"


class Stopwatch:
    """Elapsed seconds, and seconds of the thread's processor time, by stage."""

    def __init__(self) -> None:
        self.spent: dict[str, list[float]] = {}
        self._inner: list[list[float]] = []
        self.reset()

    def reset(self) -> None:
        """Start from zero."""
        self.spent = {stage: [0.0, 0.0] for stage in STAGES}
        self._began = perf_counter(), thread_time()

    def stop(self) -> None:
        """Compute the rest: the time that belongs to no stage."""
        passed = perf_counter() - self._began[0], thread_time() - self._began[1]
        for clock in (0, 1):
            self.spent.setdefault(REST, [0.0, 0.0])[clock] = passed[clock] - sum(
                spent[clock] for stage, spent in self.spent.items() if stage != REST
            )

    def watch(self, stage: str, place: str) -> None:
        """Time every call of the function at ``module:Class.function``; AttributeError if it does not exist."""
        module, _, path = place.partition(":")
        owner_name, _, name = path.partition(".")
        owner = getattr(importlib.import_module(module), owner_name)
        setattr(owner, name, self._timed(stage, getattr(owner, name)))

    def _timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            inner = [0.0, 0.0]
            self._inner.append(inner)
            began = perf_counter(), thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                took = perf_counter() - began[0], thread_time() - began[1]
                self._inner.pop()
                for clock in (0, 1):
                    self.spent[stage][clock] += took[clock] - inner[clock]
                    if self._inner:
                        self._inner[-1][clock] += took[clock]

        return timed


class Servers:
    """Processor seconds of the broker, of the worker's backend, and of Postgres' other processes."""

    def __init__(self) -> None:
        self._broker = psutil.Process(int(os.environ["BENCH_BROKER_PID"]))
        self._postgres = psutil.Process(int(os.environ["BENCH_POSTGRES_PID"]))
        self._before: dict[int, float] = {}
        self.reset()

    def reset(self) -> None:
        """Start from zero."""
        self._before = {process.pid: _used(process) for process, _ in self._all()}

    def read(self) -> dict[str, float]:
        """Seconds since the last reset."""
        seconds = {"the server's backend": 0.0, "the rest of Postgres": 0.0, "the broker": 0.0}
        for process, what in self._all():
            seconds[what] += _used(process) - self._before.get(process.pid, 0.0)
        return seconds

    def _all(self) -> list[tuple[psutil.Process, str]]:
        processes = [(self._broker, "the broker"), (self._postgres, "the rest of Postgres")]
        for child in self._postgres.children(recursive=True):
            is_backend = "127.0.0.1(" in " ".join(child.cmdline())  # its title names the client's address
            processes.append((child, "the server's backend" if is_backend else "the rest of Postgres"))
        return processes


def _used(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def measure() -> tuple[Run, dict[str, list[float]], dict[str, float]]:
    """Run one worker; returns the run, its thread's seconds by stage, and the servers' processor seconds."""
    stopwatch, servers = Stopwatch(), Servers()
    for stage, place in STAGES.items():
        stopwatch.watch(stage, place)
    has_begun, done = False, 0
    read: dict[str, float] = {}

    def observe(event: events.Event) -> None:
        nonlocal has_begun, done, read
        match event:
            case events.ChunkRead() if not has_begun:
                has_begun = True
                servers.reset()
                stopwatch.reset()
            case events.Committed():
                done += event.records
                if done >= LIMIT and not read:
                    stopwatch.stop()
                    read = servers.read()

    upgrade()
    fresh_table()
    run = work(pipeline, LIMIT, observers=[observe])
    check("profile", run.records)
    return run, stopwatch.spent, read


def main() -> None:
    """Print a row for each stage, and a row for all of it with the ceilings."""
    run, spent, servers = measure()
    seconds = run.ended - run.began
    subject = {"subject": "profile", "table": KIND.name, "key": KEYED, "records": run.records}

    def say(stage: str, **figures: float) -> None:
        rounded = {name: round(value, 3) for name, value in figures.items()}
        print(json.dumps({**subject, "mode": stage, **rounded}), flush=True)

    def per_record(value: float) -> float:
        return 1e6 * value / run.records

    for stage, (passed, used) in spent.items():
        say(stage, cpu_us=per_record(used), elapsed_us=per_record(passed))
    thread = sum(used for _, used in spent.values())
    library = run.cpu_seconds - thread
    say("the client library's threads", cpu_us=per_record(library))
    for name, used in servers.items():
        say(name, cpu_us=per_record(used))
    longest = max(thread, library, *servers.values())
    whole = run.cpu_seconds + sum(servers.values())
    cores = len(os.sched_getaffinity(0))
    say(
        "all of it",
        cpu_us=per_record(whole),
        elapsed_us=per_record(seconds),
        rate=run.records / seconds,
        ceiling_if_each_had_a_processor=run.records / longest,
        ceiling_of_one_processor=run.records / whole,
        processors=cores,
    )


if __name__ == "__main__":
    main()
