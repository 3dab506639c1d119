"""Workers for tests: a recorder of events to wait for, a gate that halts a worker at an event, and a worker.

Use it through the fixture ``run_worker``::

    def test_it(run_worker, topic, produce, group):
        gate = Gate(events.Held)
        run = run_worker(Pipeline(group, topics=topic(), value=Bytes(), handle=write), observe=[gate])
        gate.wait()        # the worker's thread has halted inside its open transaction
        gate.open()
        run.seen.wait_for(events.Committed)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, TypeVar

import pytest

from seekpoint.events import Activated, Committed, Event, Observer, WorkerStopped
from seekpoint.records import Partition
from seekpoint.worker.health import Health
from seekpoint.worker.worker import Running, Worker
from support.waiting import SECONDS, until

E = TypeVar("E", bound=Event)
Wanted = Callable[[Any], bool]


class Recorder:
    """An observer that keeps all events, so that other threads can wait for an event."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._news = threading.Condition()

    def __call__(self, event: Event) -> None:
        with self._news:
            self._events.append(event)
            self._news.notify_all()

    @property
    def events(self) -> list[Event]:
        """All events so far, in order."""
        with self._news:
            return list(self._events)

    def mark(self) -> int:
        """A number for this moment, for ``since``."""
        with self._news:
            return len(self._events)

    def all(self, kind: type[E], since: int = 0) -> list[E]:
        """The events of one kind so far."""
        return [event for event in self.events[since:] if isinstance(event, kind)]

    def wait_for(
        self,
        kind: type[E] | tuple[type[E], ...],
        where: Wanted | None = None,
        *,
        since: int = 0,
        count: int = 1,
        timeout: float = SECONDS,
    ) -> E:
        """Wait for the ``count``-th event of this kind for which ``where`` is true, and return it.

        Fails after ``timeout`` seconds, or at once if the worker ends before; the message has the events.
        """
        deadline = monotonic() + timeout
        index, count_seen = since, 0
        with self._news:
            while True:
                for event in self._events[index:]:
                    if isinstance(event, kind) and (where is None or where(event)):
                        count_seen += 1
                        if count_seen == count:
                            return event
                index = len(self._events)
                ended = index > 0 and isinstance(self._events[-1], WorkerStopped)
                if ended or not self._news.wait(max(0.0, deadline - monotonic())):
                    raise AssertionError(self._missing(kind, count_seen, count, timeout, ended))

    def _missing(self, kind: Any, count_seen: int, count: int, timeout: float, ended: bool) -> str:
        names = ", ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
        why = "the worker ended" if ended else f"not within {timeout} s"
        tail = "\n  ".join(map(repr, self._events[-30:]))
        return f"waited for {names} ({count_seen} of {count} seen): {why}. What happened last:\n  {tail}"


class Gate:
    """An observer that halts the worker's thread at the first event of a kind, until :meth:`open`.

    Only events for which ``where`` is true count. It halts the worker once, and once more after :meth:`close`.
    """

    def __init__(self, kind: type[Event] | tuple[type[Event], ...], where: Wanted | None = None) -> None:
        self._kind, self._where = kind, where
        self._armed = threading.Event()
        self._reached = threading.Event()
        self._opened = threading.Event()
        self._armed.set()

    def __call__(self, event: Event) -> None:
        if not self._armed.is_set() or not isinstance(event, self._kind):
            return
        if self._where is not None and not self._where(event):
            return
        self._armed.clear()
        self._reached.set()
        if not self._opened.wait(4 * SECONDS):
            raise AssertionError("the gate was not opened")

    def wait(self, timeout: float = SECONDS) -> None:
        """Wait until the worker has halted at the gate."""
        assert self._reached.wait(timeout), f"the worker did not reach {self._kind} within {timeout} s"

    def open(self) -> None:
        """Let the worker continue."""
        self._opened.set()

    def close(self) -> None:
        """Halt the worker at the next matching event."""
        self._reached.clear()
        self._opened.clear()
        self._armed.set()


class Run:
    """A worker on a separate thread, and the recorder of its events, ``seen``."""

    def __init__(self, make: Callable[..., Worker], observe: Sequence[Observer]) -> None:
        self.seen = Recorder()
        self._gates = [gate for gate in observe if isinstance(gate, Gate)]
        self.worker = make(observe=[self.seen, *observe])
        self._running: Running | None = self.worker.running()
        try:
            self._running.__enter__()
        except BaseException:
            self._running = None
            raise

    def health(self) -> Health:
        """The worker's state now."""
        return self.worker.health()

    def ready(self) -> None:
        """Wait until the worker is ready, without trouble."""
        until(lambda: self.health().ready and self.health().trouble is None, "a worker that is ready")

    def placed(self, count: int = 1) -> None:
        """Wait until ``count`` partitions were activated."""
        self.seen.wait_for(Activated, count=count)

    def reached(self, topic: str, offset: int, partition: int = 0) -> None:
        """Wait until the worker has committed up to this offset of the partition."""

        def there(event: Committed) -> bool:
            return any(s.partition == Partition(topic, partition) and s.end >= offset for s in event.spans)

        self.seen.wait_for(Committed, there)

    def finish(self, topic: str, offset: int, partition: int = 0) -> None:
        """Wait until the worker has committed up to this offset of the partition, and drain it."""
        self.reached(topic, offset, partition)
        self.stop()

    def ends_with(self, kind: type[Exception], match: str | None = None) -> None:
        """Wait until this error has ended the worker; an earlier ``stop()`` would drain it."""
        stopped = self.seen.wait_for(WorkerStopped)
        assert isinstance(stopped.error, kind), stopped
        with pytest.raises(kind, match=match):
            self.stop()

    def stop(self) -> None:
        """Open the gates and drain the worker; raises the error that ended it early, if any."""
        running, self._running = self._running, None
        for gate in self._gates:
            gate.open()
        if running is not None:
            running.__exit__(None, None, None)
