"""A worker in a child process that tests can kill: ``ChildProcess`` in the test, ``Reporter`` in the child.

Both send lines of JSON: orders to the child's standard input, reports from its standard output.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from time import monotonic
from typing import IO, Any, Literal, Protocol, Self, TypeVar

from seekpoint.events import Event
from seekpoint.records import Failure, Partition, Span

T = TypeVar("T")

Report = Mapping[str, Any]
"""A line of a process's output: ``event`` and its fields."""

Break = Literal["kill", "stop", "wait"]


class NotReached(AssertionError):  # noqa: N818 -- named after what happened, like the rest of the tree
    """A process did not reach an event or state in time, or ended first; the message has its last reports."""


class Started(Protocol):
    """The part of ``subprocess.Popen``, with text pipes, that a ``ChildProcess`` uses."""

    pid: int

    @property
    def stdin(self) -> IO[str] | None:
        """The pipe to the process's standard input."""

    @property
    def stdout(self) -> IO[str] | None:
        """The pipe from the process's standard output."""

    @property
    def stderr(self) -> IO[str] | None:
        """The pipe from the process's standard error, or None."""

    def poll(self) -> int | None:
        """The exit code; None while the process runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process has ended; returns the exit code."""
        ...

    def send_signal(self, sig: int, /) -> None:
        """Send the process a signal."""


def start_python(
    *arguments: str, stderr: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start this Python with these arguments, and pipes; ``stderr`` is a file to append to, ``env`` is added to ours.

    The child has a separate process group in our session, so that Ctrl-C reaches only us. The child ends with us: if we
    are killed, its input ends, and a stopped child gets SIGHUP and SIGCONT from the system.
    """
    errors: Any = subprocess.PIPE if stderr is None else stderr.open("ab")
    try:
        return subprocess.Popen(  # noqa: S603 -- this Python, and what a test gives it
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **(env or {})},
            process_group=0,
        )
    finally:
        if stderr is not None:
            errors.close()


class ChildProcess:
    """A process that reports events, one JSON object per line, and can be waited for, frozen and killed.

    ``changed`` is notified at each report; processes that share it can be awaited together. A subclass may override
    :meth:`reported` and :meth:`on_end`, which run on a reader thread that holds ``changed``.
    """

    failure: type[NotReached] = NotReached  # the error of its methods; a subclass may replace it

    def __init__(
        self, process: Started, order: Mapping[str, Any] | None = None, *, changed: threading.Condition | None = None
    ) -> None:
        self.reports: list[Report] = []
        self.has_ended = False
        self.break_set: str | None = None
        self.at_break: str | None = None
        self.changed = changed or threading.Condition()
        self._process, self._errors = process, list[str]()
        self._readers = [threading.Thread(target=target, daemon=True) for target in (self._read, self._read_errors)]
        for reader in self._readers:
            reader.start()
        if order is not None:
            self.order(**order)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.endswith("\n"):
                break  # the process was killed while it wrote
            values = _report_in(line)
            if values is None:  # the program's own print(), or the newline before a report
                self._errors += [line] if line.strip() else []
                continue
            with self.changed:
                match values["event"]:
                    case "BreakSet":
                        self.break_set = values["step"]
                    case "AtBreak":
                        self.at_break = values["step"]
                self.reported(values)
                self.changed.notify_all()
        self._process.wait()
        self._process.stdout.close()
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):  # the rest of a command that the process has not read
                self._process.stdin.close()
        self._set_ended()

    def _set_ended(self) -> None:
        with self.changed:
            if not self.has_ended:
                self.has_ended = True
                self.on_end()
            self.changed.notify_all()

    def _read_errors(self) -> None:
        if self._process.stderr is not None:
            with self._process.stderr as stderr:
                for line in stderr:
                    self._errors.append(line)

    def reported(self, report: Report) -> None:
        """Called with each report; keeps it."""
        self.reports.append(report)

    def on_end(self) -> None:
        """Called once, after the process has ended and its last report was read."""

    # -- reports and state ----------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._process.poll()

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended; a frozen process is alive."""
        return self.exit_code is None

    @property
    def errors(self) -> str:
        """The process's output on stderr, unless that is a file, and its lines on stdout that are no reports."""
        return "".join(self._errors)

    def tail(self) -> str:
        """The process's exit code, last reports and errors, for messages."""
        return "\n  ".join([f"exit code {self.exit_code}", *map(str, self.reports[-20:]), self.errors[-5000:]])

    def all(self, event: str) -> list[Report]:
        """All reports of this event so far."""
        with self.changed:
            return [report for report in self.reports if report["event"] == event]

    def wait_until(self, reached: Callable[[], T], what: str, timeout: float = 60.0) -> T:
        """Wait until ``reached()`` is true, and return it.

        Raises NotReached after ``timeout`` seconds, or as soon as the process ends.
        """
        deadline = monotonic() + timeout
        with self.changed:
            while not (outcome := reached()):
                seconds = deadline - monotonic()
                if self.has_ended or seconds <= 0:
                    raise self.failure(f"process {self.pid} did not reach {what} in {timeout:.0f} s\n  {self.tail()}")
                self.changed.wait(seconds)
            return outcome

    def wait_for(
        self, event: str, where: Callable[[Report], bool] | None = None, *, count: int = 1, timeout: float = 60.0
    ) -> Report:
        """Wait for the ``count``-th report of this event for which ``where`` is true, and return it.

        Raises NotReached after ``timeout`` seconds, and at once if the process ends before.
        """

        def nth_report() -> Report | None:
            reports = [candidate for candidate in self.all(event) if where is None or where(candidate)]
            return reports[count - 1] if len(reports) >= count else None

        report = self.wait_until(nth_report, f"{count} {event}", timeout)
        assert report is not None
        return report

    def reaches(self, *events: str, timeout: float = 300.0) -> bool:
        """Wait for any of these events; False if the process ends before. Raises NotReached at the timeout."""
        names = set(events)

        def there() -> bool:
            return any(report["event"] in names for report in self.reports)

        self.wait_until(lambda: there() or self.has_ended, f"any of {', '.join(events)}", timeout)
        return there()

    # -- orders and signals ---------------------------------------------------------------------------------

    def order(self, **order: Any) -> None:
        """Send an order; raises NotReached if the process has ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):  # the process has ended, or its pipe is closed
            raise self.failure(f"process {self.pid} has ended\n  {self.tail()}") from None

    def break_at(self, step: str, nth: int = 1, do: Break = "wait") -> None:
        """Make the process kill itself, stop or wait at the ``nth`` event ``step`` from now; waits for its answer."""
        self.break_set = self.at_break = None
        self.order(**{"break": {"step": step, "nth": nth, "do": do}})
        self.wait_until(lambda: self.break_set == step, f"a break at {step}")

    def go(self) -> None:
        """Let the process continue after the event at which it waits."""
        self.at_break = None
        self.order(go=True)

    def signal(self, number: int) -> None:
        """Send the process a signal, unless it has ended."""
        self._process.send_signal(number)

    def freeze(self) -> None:
        """Stop the process by SIGSTOP, until :meth:`thaw`."""
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Continue a frozen process, by SIGCONT."""
        self.signal(signal.SIGCONT)

    def terminate(self) -> None:
        """Send SIGTERM: a worker finishes its batch, releases its partitions and ends. Returns at once."""
        self.signal(signal.SIGTERM)

    def kill(self) -> int:
        """Send SIGKILL, and wait for the process's end; returns the exit code."""
        self.signal(signal.SIGKILL)
        return self.ended()

    @property
    def is_stopped(self) -> bool:
        """Whether the system reports the process as stopped (SIGSTOP)."""
        import psutil  # noqa: PLC0415 -- the rest of this module needs only the standard library

        return bool(psutil.Process(self.pid).status() == psutil.STATUS_STOPPED)

    def wait_until_stopped(self, timeout: float = 30.0) -> None:
        """Wait until the system reports the process as stopped; raises NotReached after ``timeout`` seconds."""
        deadline, pause = monotonic() + timeout, threading.Event()
        while not self.is_stopped:
            if monotonic() > deadline:
                raise self.failure(f"process {self.pid} is not stopped after {timeout:.0f} s\n  {self.tail()}")
            pause.wait(0.005)

    def ended(self, timeout: float = 60.0) -> int:
        """Wait for the process's end and last report; returns the exit code. Raises NotReached after ``timeout``
        seconds.
        """
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise self.failure(f"process {self.pid} has not ended after {timeout:.0f} s\n  {self.tail()}") from None
        for reader in self._readers:
            reader.join(2)  # processes started by it may keep its pipes open
        self._set_ended()
        return code

    def close(self) -> None:
        """Kill the process if it runs, which closes the pipes."""
        self.kill()


def _report_in(line: str) -> Report | None:
    """The report in a line of the process's output; None for any other line."""
    try:
        values = json.loads(line)
    except ValueError:
        return None
    return values if isinstance(values, dict) and "event" in values else None


# -- in the process ---------------------------------------------------------------------------------------------

_writing = threading.RLock()  # a signal's handler may report, too


def report(event: str, **values: Any) -> None:
    """Write one report in one piece and at once, so that it arrives even if the process is killed right after."""
    with _writing:
        # After a newline, because print() may have flushed the beginning of a line.
        os.write(1, ("\n" + json.dumps({**values, "event": event}, default=str) + "\n").encode())


def receive() -> dict[str, Any]:
    """Read the next order; ends this process if its parent has ended."""
    if not (line := sys.stdin.readline()):
        os._exit(1)
    order: dict[str, Any] = json.loads(line)
    return order


def obey(carry_out: Callable[[dict[str, Any]], None] = lambda _: None) -> None:
    """Carry out orders on a separate thread, and end this process when the parent has ended."""

    def listen() -> None:
        while True:
            carry_out(receive())

    threading.Thread(target=listen, daemon=True).start()


class Reporter:
    """An observer that reports a worker's events, for workers of one topic: a partition is reported by its number.

    ``Worker(..., observe=[reporter])``; with :meth:`obey` the parent can also let the worker wait, stop or be killed
    exactly at one of its events (``ChildProcess.break_at``).
    """

    def __init__(self) -> None:
        self._break: tuple[str, Break] | None = None
        self._left = 0
        self._go = threading.Event()

    def __call__(self, event: Event) -> None:
        step = self.step(event)
        if step is not None:
            self.report(step, event)
            self._come_to(step)

    def step(self, event: Event) -> str | None:
        """The name under which an event is reported; None: do not report it. A subclass may override this."""
        return type(event).__name__

    def report(self, step: str, event: Event) -> None:
        """Write the event's fields under this name."""
        report(step, **plain_event(event))

    def obey(self) -> None:
        """Carry out the parent's orders, and end when it ends."""
        obey(self._carry_out)

    def break_at(self, step: str, nth: int = 1, do: Break = "wait") -> None:
        """Kill or stop this process, or wait, at the ``nth`` event ``step`` from now."""
        self._go.clear()
        self._break, self._left = (step, do), nth

    def _carry_out(self, order: Mapping[str, Any]) -> None:
        if "break" in order:
            report("BreakSet", step=order["break"]["step"])  # reports first, because the event may come at once
            self.break_at(**order["break"])
        else:
            self._go.set()

    def _come_to(self, step: str) -> None:
        if self._break is None or self._break[0] != step:
            return
        self._left -= 1
        if self._left:
            return
        do = self._break[1]
        self._break = None
        if do == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        report("AtBreak", step=step, at=monotonic())
        if do == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif not self._go.wait(600):
            raise TimeoutError(f"no order to continue from {step} came within 600 s")


def plain_event(event: Event) -> dict[str, Any]:
    """The fields of an event, for JSON; a partition is its number."""
    return {field.name: plain(getattr(event, field.name)) for field in fields(event)}


def plain(value: Any) -> Any:
    """A field of an event, for JSON."""
    plain_: Any = value
    match value:
        case Partition():
            plain_ = value.number
        case Span():
            plain_ = [value.partition.number, value.start, value.end]
        case Failure():
            plain_ = f"{value.cause}: {value.error}"
        case BaseException():
            plain_ = f"{type(value).__name__}: {' '.join(str(getattr(value, 'orig', None) or value).split())}"
        case Mapping():
            plain_ = {str(plain(key)): plain(element) for key, element in value.items()}
        case tuple() | list() | set() | frozenset():
            plain_ = [plain(element) for element in value]
    return plain_
