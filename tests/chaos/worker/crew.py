"""The workers from the run's side: started, watched, trapped, killed and replaced; each behind a proxy of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Any

import psutil

from chaos.worker.log import Log, Said, Stuck
from chaos.worker.schedule import CREW, CrewPlan
from support.proxy import PostgresProxy

SESSION_MS = 1000  # after so long without a heartbeat a worker has lost its partitions
MAX_POLL_MS = 3000  # after so long in one call, although it still sends heartbeats, too
LIMITS = {
    "claim_wait": 0.5, "transaction_age": 2.0, "idle_check": 0.3, "kafka_timeout": 2.0, "lag_check": 0.5,
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


class Bench:
    """Processes that stand by, with everything imported."""

    def __init__(self, size: int, folder: Path) -> None:
        self.folder = folder
        self._waiting = [self._spawn() for _ in range(size)]

    def _spawn(self) -> subprocess.Popen[bytes]:
        program = Path(__file__).with_name("worker.py")
        with (self.folder / "stderr.log").open("ab") as errors:
            return subprocess.Popen(
                [sys.executable, "-P", "-W", "error", str(program)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # Ctrl-C is for the run, which ends them in order
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    def take(self) -> subprocess.Popen[bytes]:
        """One of them; another is started in its place."""
        self._waiting.append(self._spawn())
        return self._waiting.pop(0)

    def close(self) -> None:
        """Let them all go."""
        for process in self._waiting:
            process.kill()
            process.communicate()
        self._waiting = []


class Member:
    """One worker process and what it said."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Log, dsn: str, folder: Path) -> None:
        self.name, self.log = name, log
        self.proxy = PostgresProxy.in_front_of(dsn)
        self.placed: set[int] = set()
        self.owner = ""
        self.wanted_end = False
        self._process = process
        self._path = folder / f"{name}.jsonl"
        self._reader = threading.Thread(target=self._read, name=f"reads-{name}", daemon=True)

    def start(self, what: Mapping[str, Any]) -> None:
        """Let the process that stood by begin to work."""
        self._reader.start()
        self._order({**what, "name": self.name, "dsn": self.proxy.dsn})

    def _order(self, order: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write((json.dumps(order) + "\n").encode())
        self._process.stdin.flush()

    # -- what it says ---------------------------------------------------------------------------------

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._path.open("ab") as kept:
            for line in self._process.stdout:
                if not line.endswith(b"\n"):
                    break  # killed while it spoke
                kept.write(line)
                values = json.loads(line)
                said = Said(self.name, values.pop("event"), values.pop("at"), values)
                with self.log.news:
                    self._fold(said)
                    self.log.add(said)
        code = self._process.wait()
        with self.log.news:
            self.placed.clear()
            self.log.add(Said(self.name, "Ended", 0.0, {"code": code}))
            if not self.wanted_end:
                self.log.accident(f"{self.name} ended with code {code}; see {self._path} and stderr.log beside it")

    def _fold(self, said: Said) -> None:
        match said.name:
            case "Started":
                self.owner = said["owner"]
            case "Activated":
                self.placed.add(said["partition"])
            case "Revoked" | "Released":
                self.placed.difference_update(said["partitions"])
            case "ClaimLost" | "PartitionStopped":
                self.placed.discard(said["partition"])
            case "DatabaseTrouble" | "KafkaTrouble" if said["wait"]:
                self.placed.clear()
            case "WorkerStopped":
                if "_FATAL" in str(said["error"]):  # its client is beyond recovery: to end is right, and counted
                    self.wanted_end = True
                    self.log.totals["fatal"] += 1
                elif said["error"] is not None:
                    self.log.accident(f"{self.name} gave up: {said['error']}")

    @property
    def alive(self) -> bool:
        """Whether its process runs (or stands still)."""
        return self._process.poll() is None

    # -- what is done to it ---------------------------------------------------------------------------

    def set_trap(self, step: str, nth: int, do: str) -> int:
        """Kill, stop or wait at the ``nth`` such step from now; returns the log's mark, once it is set."""
        mark = self.log.mark()
        self._order({"trap": {"step": step, "nth": nth, "do": do}})
        self.log.wait("TrapSet", by=self.name, since=mark)
        return mark

    def go(self) -> None:
        """End its wait."""
        self._order({"go": True})

    def kill(self) -> None:
        """SIGKILL."""
        self.wanted_end = True
        self._process.kill()

    def terminate(self) -> None:
        """SIGTERM: finish the batch in hand, release, leave."""
        self.wanted_end = True
        self._process.terminate()

    def stop(self) -> None:
        """SIGSTOP."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def wait_started(self) -> None:
        """Until it has found both servers and joined the group."""
        self.log.until(lambda: bool(self.owner), f"{self.name} to start")

    def wait_stopped(self, seconds: float = 5.0) -> None:
        """Until the kernel says that it stands still."""
        process, deadline, pause = psutil.Process(self._process.pid), monotonic() + seconds, threading.Event()
        while process.status() != psutil.STATUS_STOPPED:
            if monotonic() > deadline:
                raise Stuck(f"{self.name} does not stand still")
            pause.wait(0.005)

    def ended(self, seconds: float = 20.0) -> int:
        """Wait for its end, and for the last it said; returns the exit code."""
        self._reader.join(seconds)
        if self._reader.is_alive():
            raise Stuck(f"{self.name} did not end within {seconds} s")
        return self._process.wait()

    def close(self) -> None:
        """End it, whatever it is doing, and take its proxy away."""
        self.wanted_end = True
        self._process.kill()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        self.proxy.close()


class Crew:
    """The members of one group. The dead are replaced by :meth:`fill`."""

    def __init__(self, plan: CrewPlan, what: Mapping[str, Any], dsn: str, bench: Bench, log: Log) -> None:
        self.plan, self.log, self._dsn, self._bench = plan, log, dsn, bench
        self._what = {
            **what,
            "durable": plan.durable,
            "limits": LIMITS,
            "kafka": {**what["kafka"], **KAFKA[plan.protocol], "max.poll.interval.ms": MAX_POLL_MS},
        }
        self.members: list[Member] = []
        self._born = 0

    def start(self, trap: Mapping[str, Any] | None = None) -> Member:
        """One more worker joins, with a trap if one is given."""
        self._born += 1
        name = f"{self._what['group']}-{self._born:02}"
        member = Member(name, self._bench.take(), self.log, self._dsn, self._bench.folder)
        self.members.append(member)
        member.wanted_end = bool(trap and trap["do"] == "kill")
        member.start({**self._what, "trap": trap})
        return member

    def victim(self, number: int) -> Member:
        """The member that a fault's number means now."""
        return self.members[number % len(self.members)]

    def fill(self) -> None:
        """Bury the dead and bring the crew back to its size."""
        self._bury_the_dead()
        while len(self.members) < CREW:
            self.start()

    def _bury_the_dead(self) -> None:
        for member in [m for m in self.members if not m.alive]:
            self.bury(member)

    def bury(self, member: Member) -> None:
        """Forget a member that has ended."""
        member.close()
        self.members.remove(member)

    def ready(self) -> None:
        """Wait until every partition is read by exactly one worker, and each worker reads one.

        A worker whose client met a fatal error meanwhile (a group protocol's answer after a broker was killed) has
        ended, as it should, and is replaced.
        """

        def settled() -> bool:
            held = [partition for member in self.members for partition in member.placed]
            return sorted(held) == list(range(self._what["partitions"])) and all(m.placed for m in self.members)

        def has_lost_one() -> bool:
            return not all(member.alive for member in self.members)

        while True:
            wanted = "every partition to be read by one worker, and every worker to read one"
            self.log.until(lambda: settled() or has_lost_one(), wanted)
            if not has_lost_one():
                return
            self.fill()

    def whose(self, partition: int) -> Member:
        """Who reads this partition."""
        return next(member for member in self.members if partition in member.placed)

    def disband(self) -> None:
        """SIGTERM to all: each must drain and end with code 0."""
        self._bury_the_dead()
        for member in self.members:
            member.wait_started()  # a replacement of the last minute does not listen to signals yet
            member.terminate()
        try:
            codes = {member.name: member.ended() for member in self.members}
            if any(codes.values()):
                raise Stuck(f"not everybody drained in order: exit codes {codes}")
        finally:
            self.close()

    def close(self) -> None:
        """End whoever is left."""
        for member in list(self.members):
            self.bury(member)
