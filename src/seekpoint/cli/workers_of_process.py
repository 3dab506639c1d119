"""The workers of one ``seekpoint run``: one on the main thread, or several pipelines on a thread each."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from time import monotonic

from seekpoint.cli.output import numbered
from seekpoint.cli.probes import State, state_of
from seekpoint.metrics import Samples, Tally
from seekpoint.records import Partition
from seekpoint.worker.loop import LEAVE
from seekpoint.worker.worker import Worker

logger = logging.getLogger("seekpoint.cli")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class ProcessWorkers:
    """All workers of this process: they start, report and end together; where one ends by an error, all drain."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = workers
        self._tallies: Sequence[Tally] = ()
        self._news = SimpleQueue[_Ended | signal.Signals]()

    # -- what is known of them ----------------------------------------------------------------------------

    def count(self) -> None:
        """Count their events, for metrics; before they run."""
        self._tallies = [Tally(worker) for worker in self._workers]

    def add_to(self, samples: Samples) -> None:
        """Add their metrics; may be called from any thread."""
        for tally in self._tallies:
            tally.add_to(samples)

    @property
    def has_started(self) -> bool:
        """Whether one of them has work in hand, or may have."""
        return any(worker.has_started for worker in self._workers)

    @property
    def groups(self) -> Sequence[str]:
        """The groups of their pipelines."""
        return [worker.pipeline.group for worker in self._workers]

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
