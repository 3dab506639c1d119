"""The workers of one ``seekpoint run``: one on the main thread, or several pipelines on a thread each."""

from __future__ import annotations

import logging
import math
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from time import monotonic

from seekpoint import events
from seekpoint.cli.output import numbered
from seekpoint.cli.probes import State, state_of
from seekpoint.metrics import Samples, Tally
from seekpoint.records import Partition
from seekpoint.worker.loop import LEAVE
from seekpoint.worker.worker import Worker

logger = logging.getLogger("seekpoint.cli")

WITHOUT = 10.0  # seconds after its start in which a member of a group learns what it is given
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class ProcessWorkers:
    """All workers of this process: they start, report and end together; where one ends by an error, all drain."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = workers
        self._tallies: Sequence[Tally] = ()
        self._joining: Sequence[_Joining] = ()
        self._news = SimpleQueue[_Ended | signal.Signals]()

    # -- what is known of them ----------------------------------------------------------------------------

    def count(self) -> None:
        """Count their events, for metrics; before they run."""
        self._tallies = [Tally(worker) for worker in self._workers]

    def add_to(self, samples: Samples) -> None:
        """Add their metrics; may be called from any thread."""
        for tally in self._tallies:
            tally.add_to(samples)

    def watch_partitions(self) -> None:
        """Know from now on whether they have joined their groups; before they run."""
        self._joining = [_Joining(worker) for worker in self._workers]

    @property
    def has_joined(self) -> bool:
        """Whether each is in its group and has claimed what it was given there."""
        return all(one.is_over for one in self._joining)

    @property
    def has_started(self) -> bool:
        """Whether one of them has work in hand, or may have."""
        return any(worker.has_started for worker in self._workers)

    @property
    def groups(self) -> Sequence[str]:
        """The groups of their pipelines."""
        return [worker.pipeline.group for worker in self._workers]

    @property
    def is_waiting(self) -> bool:
        """Whether one of them waits for a server, or outside its group."""
        healths = [worker.health() for worker in self._workers]
        return any(health.trouble is not None or health.standby is not None for health in healths)

    def state(self) -> State:
        """For the probes: one worker's state, or that of all, with each pipeline's among the details."""
        states = [state_of(worker.health()) for worker in self._workers]
        if len(states) == 1:
            return states[0]
        of_groups = zip(self.groups, states, strict=True)
        return State(
            all(state.live for state in states),
            all(state.ready for state in states),
            any(state.stale for state in states),
            {"pipelines": [{"group": group, **state.shown()} for group, state in of_groups]},
        )

    def stopped(self) -> list[Partition]:
        """The partitions that wait for a decision."""
        return sorted({at for worker in self._workers for at in worker.health().stopped})

    def log_totals(self) -> None:
        """Log how much was applied."""
        for worker in self._workers:
            health, group = worker.health(), worker.pipeline.group
            done = f"{numbered(health.records, 'record')} in {numbered(health.transactions, 'transaction')}"
            logger.info("%s: drained: %s", group, done, extra={"group": group})

    # -- their life ---------------------------------------------------------------------------------------

    def stop(self, grace: float | None = None) -> None:
        """Ask all to finish their batches and leave, from any thread."""
        for worker in self._workers:
            worker.stop(grace)

    def run(self) -> None:
        """Work until SIGTERM or SIGINT; raises what ended the first one that ended by an error, after all have ended.

        A second signal aborts the batches in hand, a third ends the process at once.
        """
        if len(self._workers) == 1:
            self._workers[0].run()
            return
        with _handled(self._news):
            for worker in self._workers:
                name = f"seekpoint-{worker.pipeline.group}"
                threading.Thread(target=self._run_one, args=[worker], name=name, daemon=True).start()
            self._await_end()

    def _run_one(self, worker: Worker) -> None:
        error: BaseException | None = None
        try:
            worker.run()
        except BaseException as raised:  # noqa: BLE001 -- raised again on the main thread
            error = raised
        self._news.put(_Ended(error))

    def _await_end(self) -> None:
        first: BaseException | None = None
        left, heard = len(self._workers), 0
        while left:
            news = self._news.get()
            if isinstance(news, _Ended):
                left, first = left - 1, first or news.error
            else:
                heard += 1
            if heard > 1:
                self._abort(news, left)
            self.stop()
        if first is not None:
            raise first

    def _abort(self, second: object, left: int) -> None:
        """Throw the open transactions away. Raises KeyboardInterrupt."""
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        self.stop(0.0)
        deadline = monotonic() + LEAVE + 1.0
        while left and (wait := deadline - monotonic()) > 0:
            try:
                left -= isinstance(self._news.get(timeout=wait), _Ended)
            except Empty:
                break
        raise KeyboardInterrupt(f"second {getattr(second, 'name', 'signal')}: aborted")


class _Ended:
    """One worker has ended, by this error."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class _Joining:
    """Whether a worker has an assignment, and has claimed, stopped or lost again each partition of it.

    With ``group.protocol=consumer`` the client does not report an empty one: it has that after ``WITHOUT`` seconds.
    """

    def __init__(self, worker: Worker) -> None:
        self._is_member = False
        self._started_at = math.inf
        self._claiming: set[Partition] = set()
        worker.add_observer(self)

    @property
    def is_over(self) -> bool:
        """Whether it is a member with nothing left to claim."""
        is_member = self._is_member or monotonic() - self._started_at > WITHOUT
        return is_member and not self._claiming

    def __call__(self, event: events.Event) -> None:
        """Take one event into account."""
        match event:
            case events.Assigned():
                self._claiming.update(event.partitions)
                self._is_member = True
            case events.Activated() | events.PartitionStopped():
                self._claiming.discard(event.partition)
                self._is_member = True
            case events.Revoked():
                self._claiming.difference_update(event.partitions)
            case events.Started():
                self._started_at = event.at
            case events.OnStandby() | events.DeclarationRefused():
                self._is_member, self._started_at = False, math.inf


@contextmanager
def _handled(news: SimpleQueue[_Ended | signal.Signals]) -> Iterator[None]:
    """Within the block, signals are put into the queue, which may be done in a handler."""

    def put(number: int, _frame: object) -> None:
        news.put(signal.Signals(number))

    before = {number: signal.signal(number, put) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
