"""The worker processes, seen from the demo: started, halted at a step, killed, frozen, and listened to."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, Self

import psutil

from seekpoint.errors import SeekpointError

PATIENCE = 60.0  # seconds that any single step of the demo may take


class DemoFailed(SeekpointError):  # noqa: N818 -- named after what happened, like the rest of the tree
    """The demo could not be brought to its end; the message says at which step, and what the workers said."""


class Member:
    """One worker process. What it tells is folded into its fields by a thread of its own, under ``changed``."""

    def __init__(
        self,
        name: str,
        order: Mapping[str, Any],
        changed: threading.Condition,
        log: Path,
        program: str = "demo.member",
    ) -> None:
        self.name, self._changed, self._log = name, changed, log
        self.owner = ""
        self.placed: dict[int, int] = {}  # partition -> position, of what it reads now
        self.halted: str | None = None
        self.commits = self.ousted = 0
        self.refusals: list[str] = []
        self.troubles: list[str] = []
        self.stalls: list[Mapping[str, Any]] = []
        self.ended = self.expected_to_end = self.stands_by = False
        self._ordered: str | None = None
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                # A group of its own in our session: Ctrl-C is for us alone; and should we be killed, its input
                # ends, or, where it is stopped, the system sends it SIGHUP and SIGCONT: it dies with us.
                process_group=0,
            )
        self._order(order)

    def listen(self, heard: Callable[[Member, Mapping[str, Any]], None]) -> None:
        """Fold in what it tells until it ends, then pass it on to ``heard``."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            with self._changed:
                self._fold(event)
                heard(self, event)
                self._changed.notify_all()
        self._process.wait()
        self._process.stdout.close()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the rest of an order that nobody reads any more
            self._process.stdin.close()
        with self._changed:
            self.ended = True
            self.placed.clear()
            self._changed.notify_all()

    def _fold(self, event: Mapping[str, Any]) -> None:  # noqa: C901 -- one line per event
        match event["event"]:
            case "Started":
                self.owner = event["owner"]
            case "OnStandby":
                self.stands_by = True
            case "Activated":
                self.placed[event["partition"]] = event["offset"]
            case "Revoked" | "Released" | "ClaimLost" as kind:
                for partition in event["partitions"]:
                    self.placed.pop(partition, None)
                self.ousted += len(event["partitions"]) * (kind == "ClaimLost")
            case "Committed":
                self.commits += 1
                self.placed |= {int(p): end for p, end in event["ends"].items() if int(p) in self.placed}
            case "Ordered":
                self._ordered = event["step"]
            case "Halted":
                self.halted = event["step"]
            case "Refused":
                self.refusals.append(event["reason"])
            case "DatabaseTrouble":
                self.troubles.append(event["error"])
            case "Stalled":
                self.stalls.append(event)

    # -- orders and signals ---------------------------------------------------------------------------

    def _order(self, order: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):  # ended, or ended and closed
            raise DemoFailed(f"worker {self.name} has ended by itself; its log ends with\n{self.log_tail}") from None

    def halt_at(self, step: str) -> Callable[[], bool]:
        """Tell it to stand still at the next event of this name; returns whether it has taken the order."""
        self.halted = self._ordered = None
        self._order({"halt": step})
        return lambda: self._ordered == step

    def go(self) -> None:
        """Let it go on from where it halted."""
        self.halted = None
        self._order({"go": True})

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.expected_to_end = True
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        """SIGSTOP: it does nothing any more, and knows nothing of it."""
        self._process.send_signal(signal.SIGSTOP)
        with self._changed:
            self.placed.clear()  # what it believes to own is not what it owns

    @property
    def is_stopped(self) -> bool:
        """Whether the system says that it is stopped."""
        return bool(psutil.Process(self._process.pid).status() == psutil.STATUS_STOPPED)

    def thaw(self) -> None:
        """SIGCONT: it goes on as if nothing had happened."""
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """SIGTERM: it finishes its batch, releases and leaves; returns at once."""
        self.expected_to_end = True
        self._process.send_signal(signal.SIGTERM)

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    @property
    def log_tail(self) -> str:
        """The last lines that it logged."""
        return "\n".join(self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])


class WorkerPool:
    """The members of one group: at most one of each name. Leaving the block kills what still runs."""

    program = "demo.member"  # what a member runs: the module's name

    def __init__(self, order: Mapping[str, Any], partitions: int, folder: Path) -> None:
        self._order, self._partitions, self._folder = dict(order), partitions, folder
        self._changed = threading.Condition()
        self._members: dict[str, Member] = {}
        self.ends: dict[int, int] = {}  # partition -> the highest offset that anybody committed
        self.on_progress: Callable[[int], None] = lambda _: None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for member in self._members.values():
            if member.exit_code is None:
                member.kill()

    def __getitem__(self, name: str) -> Member:
        return self._members[name]

    def other(self, name: str) -> Member:
        """The one that is not called ``name``."""
        return next(member for known, member in self._members.items() if known != name)

    def start(self, name: str) -> None:
        """Start a process under this name; an earlier one must be dead."""
        member = Member(name, self._order, self._changed, self._folder / f"{name}.log", self.program)
        self._members[name] = member
        threading.Thread(target=member.listen, args=(self._heard,), name=f"listen-{name}", daemon=True).start()

    def stop(self) -> list[int]:
        """SIGTERM all, and wait until they are gone; returns their exit codes."""
        for member in self._members.values():
            member.stop()
        self.wait("the workers to drain and leave", lambda: all(m.ended for m in self._members.values()))
        return [member.exit_code or 0 for member in self._members.values()]

    def _ended(self, member: Member, what: str) -> None:
        raise DemoFailed(
            f"worker {member.name} ended by itself with exit code {member.exit_code} while the demo waited for {what}; "
            f"its log ends with\n{member.log_tail}"
        )

    def _heard(self, _member: Member, event: Mapping[str, Any]) -> None:
        if event["event"] == "Committed":
            for partition, end in event["ends"].items():
                self._reached(int(partition), end)

    def _reached(self, partition: int, end: int) -> None:
        self.ends[partition] = max(end, self.ends.get(partition, 0))
        self.on_progress(self.committed)

    @property
    def committed(self) -> int:
        """How many records are committed: the topic's offsets begin at 0 and have no holes."""
        return sum(self.ends.values())

    def committed_of(self, partitions: Iterable[int]) -> int:
        """The same, of some partitions."""
        return sum(self.ends.get(partition, 0) for partition in partitions)

    @property
    def settled(self) -> bool:
        """Whether every member reads some partitions, and each partition is read by exactly one."""
        held = [member.placed for member in self._members.values()]
        return all(held) and sorted(p for placed in held for p in placed) == list(range(self._partitions))

    def _standing(self) -> str:
        """Where everything stands, for whoever must find out why nothing comes."""
        lines = [f"committed up to {dict(sorted(self.ends.items()))}"]
        for member in self._members.values():
            lines.append(f"worker {member.name} reads {member.placed}, {member.commits} commits; its log ends with")
            lines.append(member.log_tail)
        return "\n".join(lines)

    def wait(self, what: str, until: Callable[[], bool], patience: float = PATIENCE) -> None:
        """Wait for a change that makes ``until`` true; raises DemoFailed when it does not come, or a worker dies."""
        deadline = monotonic() + patience
        with self._changed:
            while not until():
                for member in list(self._members.values()):
                    if member.ended and not member.expected_to_end:
                        self._ended(member, what)
                if (left := deadline - monotonic()) <= 0:
                    raise DemoFailed(f"waited {patience:.0f} s for {what}, in vain\n{self._standing()}")
                # Most conditions come true by what a worker tells; those that ask the system are asked in between.
                self._changed.wait(min(left, 0.05))
