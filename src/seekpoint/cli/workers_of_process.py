"""The workers of one ``seekpoint run``: one on the main thread, or several pipelines on a thread each."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from time import monotonic

from seekpoint.cli.probes import State, state_of
from seekpoint.metrics import Samples, Tally
from seekpoint.records import Partition, numbered
from seekpoint.worker.loop import LEAVE
from seekpoint.worker.signal_handlers import STOP_SIGNALS, handled
from seekpoint.worker.worker import Worker

logger = logging.getLogger("seekpoint.cli")


class ProcessWorkers:
    """All workers of this process, which start, report and end together; if one ends with an error, all drain."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = workers
        self._tallies: Sequence[Tally] = ()
        self._news = SimpleQueue[_Ended | signal.Signals]()
        self._ended: set[Worker] = set()

    # -- their state ----------------------------------------------------------------------------

    def count(self) -> None:
        """Count the workers' events, for metrics; call it before they run."""
        self._tallies = [Tally(worker) for worker in self._workers]

    def add_to(self, samples: Samples) -> None:
        """Add the workers' metrics; may be called from any thread."""
        for tally in self._tallies:
            tally.add_to(samples)

    @property
    def has_started(self) -> bool:
        """Whether a worker has an open batch, or may have."""
        return any(worker.has_started for worker in self._workers)

    @property
    def groups(self) -> Sequence[str]:
        """The groups of their pipelines."""
        return [worker.pipeline.group for worker in self._workers]

    def state(self) -> State:
        """The state for probes; that of several workers is combined, with a detail for each pipeline.

        While some workers finish their batches, only their states decide whether the process is live and stale.
        """
        states = [state_of(worker.health()) for worker in self._workers]
        if len(states) == 1:
            return states[0]
        of_groups = zip(self.groups, states, strict=True)
        running = [
            state for worker, state in zip(self._workers, states, strict=True) if worker not in self._ended
        ] or states
        return State(
            all(state.live for state in running),
            all(state.ready for state in states),
            any(state.stale for state in running),
            {"pipelines": [{"group": group, **state.shown()} for group, state in of_groups]},
        )

    def stopped(self) -> list[Partition]:
        """The stopped partitions, which wait for an operator."""
        return sorted({partition for worker in self._workers for partition in worker.health().stopped})

    def log_totals(self) -> None:
        """Log how many records were applied."""
        for worker in self._workers:
            health, group = worker.health(), worker.pipeline.group
            counts = f"{numbered(health.records, 'record')} in {numbered(health.transactions, 'transaction')}"
            logger.info("%s: drained: %s", group, counts, extra={"group": group})

    # -- their life ---------------------------------------------------------------------------------------

    def stop(self, grace: float | None = None) -> None:
        """Ask all workers to finish their batches and leave; may be called from any thread."""
        for worker in self._workers:
            worker.stop(grace)

    def run(self) -> None:
        """Work until SIGTERM or SIGINT; after all have ended, raises the first error that ended a worker.

        A second signal aborts the open batches, a third ends the process at once.
        """
        if len(self._workers) == 1:
            self._workers[0].run()
            return
        with handled(lambda number, _: self._news.put(signal.Signals(number))):  # a signal handler may do little more
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
        self._ended.add(worker)
        self._news.put(_Ended(error))

    def _await_end(self) -> None:
        first: BaseException | None = None
        running, signals = len(self._workers), 0
        while running:
            news = self._news.get()
            if isinstance(news, _Ended):
                running, first = running - 1, first or news.error
            else:
                signals += 1
            if signals > 1:
                self._abort(news, running)
            self.stop()
        if first is not None:
            raise first

    def _abort(self, second: object, running: int) -> None:
        """Abort the open transactions. Raises KeyboardInterrupt."""
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        self.stop(0.0)
        deadline = monotonic() + LEAVE + 1.0
        while running and (wait := deadline - monotonic()) > 0:
            try:
                running -= isinstance(self._news.get(timeout=wait), _Ended)
            except Empty:
                break
        raise KeyboardInterrupt(f"second {getattr(second, 'name', 'signal')}: aborted")


class _Ended:
    """A worker has ended, with this error or None."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error
