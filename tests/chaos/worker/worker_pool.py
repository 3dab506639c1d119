"""Starts, watches, breaks, kills and replaces the pool's workers, each of which has a proxy of Postgres."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from subprocess import Popen
from typing import Any

from chaos.worker.event_log import EventLog, WorkerEvent
from chaos.worker.schedule import WORKERS, PoolPlan
from seekpoint.testing.child_process import Break, ChildProcess, NotReached, Report, start_python
from support.postgres_proxy import PostgresProxy

SESSION_MS = 1000  # after so long without a heartbeat a worker has lost its partitions
MAX_POLL_MS = 3000  # after so long in one call, although it still sends heartbeats, too
LIMITS = {
    "claim_wait": 0.5, "transaction_age": 2.0, "idle_check": 0.3, "kafka_timeout": 2.0, "lag_check": 0.5,
    "waiting": 100,
    "batch_records": 500,  # so many are tried one by one where owners died: it takes seconds, not a minute
}  # fmt: skip
KAFKA: Mapping[str, Mapping[str, Any]] = {
    "eager": {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": 250},
    "cooperative": {
        "session.timeout.ms": SESSION_MS,
        "heartbeat.interval.ms": 250,
        "partition.assignment.strategy": "cooperative-sticky",
    },
    "consumer": {"group.protocol": "consumer"},  # its times are the broker's affair
}
# With this protocol a worker learns of its partitions from heartbeats, and the broker says how often they come.
BROKER = {
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.heartbeat.interval.ms": "200",
}
# Of every other worker: after an answer without brokers its clients never look for one again; others seldom do not.
FORGETFUL = {"metadata.recovery.strategy": "none"}


class Standbys:
    """Processes that have imported everything, and wait for their first order."""

    def __init__(self, size: int, folder: Path) -> None:
        self._errors = folder / "stderr.log"
        self._waiting = [self._start() for _ in range(size)]

    def _start(self) -> Popen[str]:
        program = Path(__file__).with_name("worker_process.py")
        return start_python("-P", "-W", "error", str(program), stderr=self._errors)

    def take(self) -> Popen[str]:
        """Take a process; another is started in its place."""
        self._waiting.append(self._start())
        return self._waiting.pop(0)

    def close(self) -> None:
        """End all processes."""
        for process in self._waiting:
            process.kill()
            process.communicate()


class WorkerProcess(ChildProcess):
    """One worker of the pool; its events go to the pool's log."""

    def __init__(self, name: str, process: Popen[str], log: EventLog, dsn: str) -> None:
        self.name, self.log = name, log
        self.proxy = PostgresProxy.in_front_of(dsn)
        self.active: set[int] = set()
        self.owner = ""
        self.expected_to_end = False
        super().__init__(process, changed=log.changed)

    def reported(self, report: Report) -> None:
        """Update its partitions, and log the event."""
        values = {**report}
        event = WorkerEvent(self.name, values.pop("event"), values.pop("at", 0.0), values)
        match event.name:
            case "Started":
                self.owner = event["owner"]
            case "Activated":
                self.active.add(event["partition"])
            case "Revoked" | "Released":
                self.active.difference_update(event["partitions"])
            case "ClaimLost" | "PartitionStopped":
                self.active.discard(event["partition"])
            case "DatabaseTrouble" | "KafkaTrouble" if event["wait"]:
                self.active.clear()
            case "WorkerStopped":
                if "_FATAL" in str(event["error"]):  # its client cannot recover: to end is right, and counted
                    self.expected_to_end = True
                    self.log.totals["fatal"] += 1
                elif event["error"] is not None:
                    self.log.accident(f"{self.name} gave up: {event['error']}")
        self.log.add(event)

    def on_end(self) -> None:
        """An end that no fault has caused is an accident."""
        self.active.clear()
        self.log.add(WorkerEvent(self.name, "Ended", 0.0, {"code": self.exit_code}))
        if not self.expected_to_end:
            self.log.accident(f"{self.name} ended with code {self.exit_code}; see stderr.log")

    def mark_and_break_at(self, step: str, nth: int, do: Break) -> int:
        """Set the break; returns the log's mark from before."""
        mark = self.log.mark()
        self.break_at(step, nth, do)
        return mark

    def kill(self) -> int:
        """SIGKILL, as a fault."""
        self.expected_to_end = True
        return super().kill()

    def terminate(self) -> None:
        """SIGTERM, as a fault."""
        self.expected_to_end = True
        super().terminate()

    def wait_started(self) -> None:
        """Wait until the worker has started and joined the group."""
        self.log.until(lambda: bool(self.owner), f"{self.name} to start")

    def close(self) -> None:
        """Kill the worker, and close its proxy."""
        super().close()
        self.proxy.close()


class WorkerPool:
    """The workers of one group. :meth:`fill` replaces workers that have ended."""

    def __init__(self, plan: PoolPlan, what: Mapping[str, Any], dsn: str, standbys: Standbys, log: EventLog) -> None:
        self.plan, self.log, self._dsn, self._standbys = plan, log, dsn, standbys
        self._what = {
            **what,
            "limits": LIMITS,
            "kafka": {**what["kafka"], **KAFKA[plan.protocol], "max.poll.interval.ms": MAX_POLL_MS},
        }
        self.workers: list[WorkerProcess] = []
        self._born = 0

    def start(self, break_at: Mapping[str, Any] | None = None) -> WorkerProcess:
        """Start one more worker, with a break if one is given."""
        self._born += 1
        name = f"{self._what['group']}-{self._born:02}"
        worker = WorkerProcess(name, self._standbys.take(), self.log, self._dsn)
        self.workers.append(worker)
        worker.expected_to_end = bool(break_at and break_at["do"] == "kill")
        kafka = {**self._what["kafka"], **(FORGETFUL if self._born % 2 else {})}
        worker.order(**{**self._what, "kafka": kafka}, name=name, dsn=worker.proxy.dsn, break_at=break_at)
        return worker

    def victim(self, number: int) -> WorkerProcess:
        """The worker that a fault's ``victim`` number names now."""
        return self.workers[number % len(self.workers)]

    def fill(self) -> None:
        """Replace workers that have ended, up to the pool's size."""
        self._bury_the_dead()
        while len(self.workers) < WORKERS:
            self.start()

    def _bury_the_dead(self) -> None:
        for worker in [m for m in self.workers if not m.is_alive]:
            self.bury(worker)

    def bury(self, worker: WorkerProcess) -> None:
        """Remove a worker from the pool."""
        worker.close()
        self.workers.remove(worker)

    def ready(self) -> None:
        """Wait until every partition is read by exactly one worker, and each worker reads one or more.

        Workers that end meanwhile are replaced: after a broker was killed, its answer may be a fatal error of a client,
        which rightly ends the worker.
        """

        def settled() -> bool:
            held = [partition for worker in self.workers for partition in worker.active]
            main = [number for number in held if number < self._what["partitions"]]  # others are of found topics
            return sorted(main) == list(range(self._what["partitions"])) and all(m.active for m in self.workers)

        def has_lost_one() -> bool:
            return not all(worker.is_alive for worker in self.workers)

        while True:
            wanted = "every partition to be read by one worker, and every worker to read one"
            self.log.until(lambda: settled() or has_lost_one(), wanted)
            if not has_lost_one():
                return
            self.fill()

    def disband(self) -> None:
        """SIGTERM all; raises NotReached unless each drains and ends with code 0."""
        self._bury_the_dead()
        for worker in self.workers:
            worker.wait_started()  # a replacement of the last minute does not listen to signals yet
            worker.terminate()
        try:
            codes = {worker.name: worker.ended() for worker in self.workers}
            if any(codes.values()):
                raise NotReached(f"not everybody drained in order: exit codes {codes}")
        finally:
            self.close()

    def close(self) -> None:
        """Kill the remaining workers."""
        for worker in list(self.workers):
            self.bury(worker)
