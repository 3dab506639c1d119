"""``run --workers N``: worker processes that are started again when they end, drained and rolled by signals."""

from __future__ import annotations

import logging
import select
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any

from seekpoint.cli.child_process import WorkerProcess
from seekpoint.cli.errors import FAILED, USAGE
from seekpoint.cli.probes import State
from seekpoint.cli.systemd import notify

logger = logging.getLogger("seekpoint.cli")

TICK = 0.2  # seconds between two looks at the children
BACKOFF, LONGEST = 0.5, 30.0  # seconds before the first restart, doubled with each in a row
STEADY = 60.0  # a child that has run for so many seconds begins with the first wait again
JOIN = 60.0  # seconds that a new child has to join in a roll, once it works and no server or reload keeps it from that
TRIES = 3  # new children of one worker that may end before they have joined, until a roll is abandoned
UNABLE = 30.0  # seconds without a look at the children, or in which none can be started or ended: not live
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)


@dataclass(slots=True)
class _Slot:
    """The place of one worker: its process, and in a roll the one that will replace it."""

    number: int
    child: WorkerProcess | None = None
    successor: WorkerProcess | None = None
    was_live: bool = False  # one of its processes has reported that it is
    successors_ended: int = 0  # in this roll, before they had joined
    ends_in_row: int = 0
    start_at: float = 0.0


class Supervisor:
    """Keeps ``count`` worker processes running until SIGTERM or SIGINT; SIGHUP replaces them one by one.

    ``start(generation)`` starts one; it raises OSError where the system refuses.
    """

    def __init__(self, start: Callable[[int], WorkerProcess], count: int) -> None:
        self._start_process = start
        self._slots = [_Slot(n) for n in range(1, count + 1)]
        self._leaving: list[WorkerProcess] = []  # replaced: they drain, or were killed
        self._generation = 0  # how often SIGHUP came
        self._is_rolling = False
        self._is_draining = False
        self._signals = 0  # that asked for the end; where a child's end drains all, none has come
        self._code = 0
        self._groups: Sequence[str] = ()  # of the children's pipelines
        self._looked_at = monotonic()
        self._unable_since: float | None = None  # no process can be started

    def state(self) -> State:
        """For the probes: live as long as this process can replace its children."""
        children = [(slot.number, slot.child) for slot in self._slots]
        states = [child.state if child else {} for _, child in children]
        workers = [
            {"worker": number, "pid": child.pid if child else None, **(child.state if child else {})}
            for number, child in children
        ]
        return State(
            self._can_replace(),
            all(state.get("ready", False) for state in states),
            any(state.get("stale", False) for state in states),
            {"workers": workers},
        )

    @property
    def has_started(self) -> bool:
        """Whether each worker has been live: its modules are imported."""
        return all(slot.was_live for slot in self._slots)

    def _can_replace(self) -> bool:
        killed = (child.killed_at for child in self._children())
        since = [at for at in (self._looked_at, self._unable_since, *killed) if at is not None]
        return monotonic() - min(since) < UNABLE

    def run(self) -> int:
        """Work until all children have ended. Returns the exit code: 0 if all of them drained."""
        with _signals() as heard:
            while not self._is_draining or self._children():
                select.select([heard], [], [], TICK)
                try:
                    self.step(heard.recv(4096))
                except BlockingIOError:
                    self.step()
        return self._code

    def step(self, signals: bytes = b"") -> None:
        """Obey these signals, and look at the children once."""
        self._looked_at = monotonic()
        for number in signals:
            self._obey(number)
        self._reap()
        self._learn()
        self._replace_hanging()
        if not self._is_draining:
            self._roll()
            self._start_due()

    def _children(self) -> list[WorkerProcess]:
        own = [child for slot in self._slots for child in (slot.child, slot.successor) if child is not None]
        return [*own, *self._leaving]

    def _learn(self) -> None:
        for slot in self._slots:
            if slot.child is not None:
                slot.was_live = slot.was_live or slot.child.state.get("live", False)
                self._groups = slot.child.groups or self._groups

    def _fields(self, slot: _Slot | None = None, **more: Any) -> dict[str, Any]:
        """The structured fields of a line of the log; the group is known once a child has reported."""
        known = {"group": self._groups[0]} if len(self._groups) == 1 else {"groups": list(self._groups)}
        return {**(known if self._groups else {}), **({} if slot is None else {"worker": slot.number}), **more}

    # -- signals ----------------------------------------------------------------------------------------

    def _obey(self, number: int) -> None:
        if number in {signal.SIGTERM, signal.SIGINT}:
            self._end()
        elif number == signal.SIGHUP and not self._is_draining:
            self._begin_roll()

    def _end(self) -> None:
        """Drain all; a second time: abort their batches; a third time: kill them."""
        self._signals += 1
        if self._signals == 1:
            self._drain()
            return
        for child in self._children():
            child.send(signal.SIGTERM if self._signals < 3 else signal.SIGKILL)

    def _drain(self) -> None:
        """Let all finish their batches and end, unless they do already: a second signal would abort their batch."""
        if self._is_draining:
            return
        self._is_draining = True
        notify("STOPPING=1")
        logger.info("stopping after the batches in hand; a second signal aborts them", extra=self._fields())
        for child in self._children():
            if child not in self._leaving:
                child.send(signal.SIGTERM)

    # -- children ---------------------------------------------------------------------------------------

    def _start(self, slot: _Slot) -> WorkerProcess | None:
        """Start a process for this worker; None where the system refuses one: it is tried again after a wait."""
        try:
            child = self._start_process(self._generation)
        except OSError as error:
            self._unable_since = self._unable_since or monotonic()
            wait = self._postpone(slot)
            said = "worker %d cannot be started: %s; tried again in %.1f s"
            logger.error(said, slot.number, error, wait, extra=self._fields(slot))
            return None
        self._unable_since = None
        logger.info("worker %d started, pid %d", slot.number, child.pid, extra=self._fields(slot, pid=child.pid))
        return child

    def _postpone(self, slot: _Slot) -> float:
        """Wait before the next start, longer each time in a row; returns the seconds."""
        slot.ends_in_row += 1
        wait: float = min(LONGEST, BACKOFF * 2 ** min(slot.ends_in_row - 1, 10))
        slot.start_at = monotonic() + wait
        return wait

    def _start_due(self) -> None:
        for slot in self._slots:
            if slot.child is None and monotonic() >= slot.start_at:
                slot.child = self._start(slot)

    def _reap(self) -> None:
        for child in list(self._leaving):
            if (code := child.poll()) is not None:
                self._leaving.remove(child)
                self._ended(child, code)
        for slot in self._slots:
            if (successor := slot.successor) is not None and (code := successor.poll()) is not None:
                slot.successor = None
                self._ended(successor, code)
                if not self._is_draining:
                    self._successor_ended(slot, successor, code)
            if (child_now := slot.child) is not None and (code := child_now.poll()) is not None:
                slot.child, slot.successor = slot.successor, None
                self._ended(child_now, code)
                if not self._is_draining:
                    self._child_ended(slot, child_now, code)

    def _ended(self, child: WorkerProcess, code: int) -> None:
        child.close()
        extra = self._fields(pid=child.pid, code=code)
        logger.info("pid %d has ended with exit code %d", child.pid, code, extra=extra)
        if self._is_draining and code not in {0, -signal.SIGTERM}:  # SIGTERM before it had set up its own handler
            self._code = self._code or FAILED

    def _child_ended(self, slot: _Slot, child: WorkerProcess, code: int) -> None:
        """Start it again after a wait; or end all, where a wait would not help."""
        why, is_final = child.why_ended(code), child.is_final or code == USAGE
        extra = self._fields(slot, pid=child.pid, code=code)
        if child.age > STEADY:
            slot.ends_in_row = 0
        if slot.child is not None:  # its successor has been started
            said = "worker %d ended, pid %d replaces it: %s"
            logger.warning(said, slot.number, slot.child.pid, why, extra=extra)
        elif is_final and child.generation < self._generation:  # of before SIGHUP: the code that is there now may do
            slot.start_at = 0.0
            logger.info("worker %d ended, and is replaced: %s", slot.number, why, extra=extra)
        elif is_final and not self._has_older(child):
            said = "worker %d ended for a reason that a restart does not change: all end: %s"
            logger.error(said, slot.number, why, extra=extra)
            self._code = code
            self._drain()
        else:
            wait = self._postpone(slot)
            logger.error("worker %d ended: %s; it starts again in %.1f s", slot.number, why, wait, extra=extra)
            if is_final:
                self._abandon_roll(slot, why)

    def _has_older(self, child: WorkerProcess) -> bool:
        """Whether others run code of before: they do what this one's code cannot."""
        return any(other.generation < child.generation for other in self._children())

    def _replace_hanging(self) -> None:
        for child in self._children():
            if child.killed_at is None and (why := child.why_replace()) is not None:
                logger.error("pid %d %s: killed", child.pid, why, extra=self._fields(pid=child.pid))
                child.kill()

    # -- SIGHUP -----------------------------------------------------------------------------------------

    def _begin_roll(self) -> None:
        self._generation += 1
        self._is_rolling = True
        for slot in self._slots:
            slot.successors_ended = 0
        logger.info("SIGHUP: the workers are replaced one by one", extra=self._fields())

    def _roll(self) -> None:
        """One step: the new process joins first, then the old one drains, and then comes the next."""
        if self._leaving or not self._is_rolling:
            return
        for slot in self._slots:
            if slot.child is None or slot.child.generation < self._generation:
                self._roll_one(slot)
                return
        self._is_rolling = False
        logger.info("all workers are replaced", extra=self._fields())

    def _roll_one(self, slot: _Slot) -> None:
        child, successor = slot.child, slot.successor
        if child is None:  # it has ended, and starts again by itself
            return
        if successor is None:
            if monotonic() >= slot.start_at:
                slot.successor = self._start(slot)
        elif successor.has_joined:
            child.send(signal.SIGTERM)
            self._leaving.append(child)
            slot.child, slot.successor, slot.ends_in_row = successor, None, 0
        elif successor.joining_for > JOIN:
            successor.kill()
            self._leaving.append(successor)
            slot.successor = None
            self._abandon_roll(slot, f"pid {successor.pid} has not joined within {JOIN:.0f} s")

    def _successor_ended(self, slot: _Slot, successor: WorkerProcess, code: int) -> None:
        """It has not joined: start another one, or leave the old worker where it is."""
        slot.successors_ended += 1
        why = successor.why_ended(code)
        if successor.is_final or code == USAGE or slot.successors_ended >= TRIES:
            self._abandon_roll(slot, why)
            return
        wait = self._postpone(slot)
        extra = self._fields(slot, pid=successor.pid, code=code)
        logger.error("the new worker %d has not joined: %s; tried again in %.1f s", slot.number, why, wait, extra=extra)

    def _abandon_roll(self, slot: _Slot, why: str) -> None:
        if not self._is_rolling:
            return
        self._is_rolling = False
        for other in self._slots:  # the next worker's: it would run on beside the one that it does not replace
            if other.successor is not None:
                other.successor.send(signal.SIGTERM)
                self._leaving.append(other.successor)
                other.successor = None
        said = "SIGHUP: abandoned, old workers continue, for the new worker %d fails: %s"
        logger.error(said, slot.number, why, extra=self._fields(slot))


@contextmanager
def _signals() -> Iterator[socket.socket]:
    """A socket that receives the number of each signal; the handlers before are set again at the end."""
    heard, given = socket.socketpair()
    heard.setblocking(False)
    given.setblocking(False)
    before = {number: signal.signal(number, lambda *_: None) for number in _SIGNALS}
    wakeup = signal.set_wakeup_fd(given.fileno(), warn_on_full_buffer=False)
    try:
        yield heard
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        heard.close()
        given.close()
