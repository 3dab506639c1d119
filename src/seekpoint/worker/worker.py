"""Runs a worker: as a process until SIGTERM, or inside a service on a separate thread."""

from __future__ import annotations

import asyncio
import inspect
import logging
import signal
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import FrameType, TracebackType
from typing import Any, Self

from sqlalchemy import URL, Engine

from seekpoint import events
from seekpoint.errors import ConfigError, StopTimeout
from seekpoint.events import Announcer, Observer
from seekpoint.kafka.config import consumer_config
from seekpoint.ledger import GroupLedger
from seekpoint.ledger.tables import DEFAULT_SCHEMA
from seekpoint.pipeline.frames import require_no_frames
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.pipeline.policy import Limits
from seekpoint.postgres.engine import postgres_engine, schema_translation, shown, worker_engine
from seekpoint.worker.abort import Abort
from seekpoint.worker.engine_checks import require_engine
from seekpoint.worker.health import Health, HealthBoard
from seekpoint.worker.loop import Loop
from seekpoint.worker.signal_handlers import STOP_SIGNALS, handled
from seekpoint.worker.tracer import Tracer
from seekpoint.worker.waiting import Stopwatch

logger = logging.getLogger("seekpoint.worker.worker")


class Worker:
    """Applies a pipeline's records exactly once, as one member of its group.

    ``engine`` is a URL or sync ``Engine`` on ``postgresql+psycopg``; the worker uses its settings and listeners with a
    separate pool. ``kafka`` is librdkafka's configuration; Seekpoint sets only the keys that exactly once depends on.
    ``partitions=[(topic, number), ...]`` reads a fixed list without a group. ``observe`` gets every event, on the
    worker's thread (``MembershipRenewed`` on the heartbeat's thread, and ``WorkerStopped`` after ``grace`` on a timer's
    thread). Scale with more workers in more processes, not with threads.

    ``tracing=Tracing()`` creates a span for each transaction (:class:`seekpoint.metrics.Tracing`); by default there
    are none.

    If the pipeline writes a topic's records to other tables than the group does at the same version, the worker waits
    outside the group (event ``DeclarationRefused``). With ``accept_declaration=True`` its tables replace those of the
    group, and running workers exit as outdated. If an operator removed the group from the ledger, the worker raises
    GroupForgotten; pass the time in the error as ``accept_forgotten`` to begin again at StartAt, as a new group.

    With ``mirror=True`` it also commits its positions to Kafka, after they are committed in Postgres and at most every
    five seconds (``Limits.lag_check``, if less), so that tools show the group's lag. Nothing is read back from Kafka.

    With ``strict=True`` a stopped partition ends the worker; otherwise the other partitions continue. With
    ``synchronous_commit=False`` COMMIT does not wait for the disk. That is safe here: a crash of Postgres loses rows
    and offset together, and the records are read from Kafka again. It is not safe if other systems act on rows that
    they have read before the crash.

    The constructor does no I/O; clients and connections are made in the thread that runs the worker. A worker runs
    once. Raises ConfigError if the declaration, the engine or the configuration contradict each other.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        engine: Engine | URL | str,
        kafka: Mapping[str, Any],
        schema: str = DEFAULT_SCHEMA,
        limits: Limits | None = None,
        partitions: Iterable[tuple[str, int]] | None = None,
        accept_declaration: bool = False,
        accept_forgotten: str | None = None,
        mirror: bool = False,
        strict: bool = False,
        synchronous_commit: bool = True,
        observe: Sequence[Observer] = (),
        tracing: Tracer | None = None,
    ) -> None:
        require_no_frames(pipeline)
        if not isinstance(pipeline, Pipeline):
            raise ConfigError(f"Worker needs a Pipeline, got {type(pipeline).__name__}")
        self.pipeline = pipeline.taken()
        consumer_config(kafka, group=pipeline.group)  # refuse contradictions now, where they were written
        require_engine(pipeline, engine)
        self._engine = postgres_engine(engine)
        self._ledger = GroupLedger(
            worker_engine(self._engine),
            pipeline.group,
            schema=schema,
            version=pipeline.version,
            tables=pipeline.tables_by_topic(schema_translation(engine)),
            accept_declaration=accept_declaration,
            accept_forgotten=accept_forgotten,
            limits=limits,
            synchronous_commit=synchronous_commit,
        )
        self._kafka, self._mirror, self._is_strict = dict(kafka), mirror, strict
        self._partitions: Collection[tuple[str, int]] | None = None if partitions is None else list(partitions)
        self._check_partitions()
        self._stopwatch, self._abort = Stopwatch(), Abort()
        self._board = HealthBoard(stopwatch=self._stopwatch, allowed=self._ledger.limits.transaction_age)
        self._announce = Announcer((self._board, *events.checked(observe)), group=pipeline.group)
        self._tracer = _checked_tracer(tracing)
        if tracing is not None:
            self._announce.add(tracing)
        self._stopping, self._ended = threading.Event(), threading.Event()
        self._begun = threading.Lock()
        self._loop: Loop | None = None

    def __repr__(self) -> str:
        return f"Worker({self.pipeline!r}, engine={shown(self._ledger.engine.url)!r})"

    @property
    def engine(self) -> Engine:
        """The engine as given, or made from the URL, for jobs. The worker itself connects with a separate engine."""
        return self._engine

    @property
    def kafka(self) -> Mapping[str, Any]:
        """The client's configuration, as given."""
        return self._kafka

    @property
    def schema(self) -> str:
        """The ledger's schema."""
        return self._ledger.schema

    @property
    def limits(self) -> Limits:
        """The limits of its transactions and of its waits."""
        return self._ledger.limits

    def _check_partitions(self) -> None:
        if self._partitions is None:
            return
        if not self._partitions:
            raise ConfigError("partitions= is empty: name at least one (topic, number), or omit it to join the group")
        if self.pipeline.pattern is not None:
            raise ConfigError(
                f"partitions= is a fixed list, and {self.pipeline.pattern!r} finds topics: name them in topics="
            )
        if not_read := {topic for topic, _ in self._partitions} - set(self.pipeline.topics):
            raise ConfigError(
                f"partitions= names topics that the pipeline does not read: {', '.join(sorted(not_read))}"
            )

    def health(self) -> Health:
        """The state now; may be called from any thread."""
        return self._board.read()

    def add_observer(self, observer: Observer) -> None:
        """Add an observer, which gets all later events. Raises ConfigError if it is not an observer."""
        for checked in events.checked([observer]):
            self._announce.add(checked)

    @property
    def has_started(self) -> bool:
        """Whether the worker has joined its group, or waits outside it; False while it waits for its servers."""
        return self._board.has_started

    def stop(self, grace: float | None = None) -> None:
        """Ask the worker to finish the open batch and leave; returns at once, from any thread.

        With ``grace``, a worker that has not ended after these seconds is given up. Its connection is closed, so that
        nothing of the batch is committed; its client leaves the group; and it ends with a StopTimeout that names the
        code that has not returned. The next owners of its partitions count a crash.
        """
        self._stopping.set()
        if grace is not None:
            waits = threading.Thread(target=self._give_up_after, args=[_seconds("grace", grace)], daemon=True)
            waits.name = "seekpoint-grace"
            waits.start()

    def _give_up_after(self, grace: float) -> None:
        if not self._ended.wait(grace) and self._loop is not None:
            self._loop.give_up(grace)

    def run(self) -> None:
        """Work until SIGTERM or SIGINT, finishing the open batch; returns when drained.

        A second signal aborts: the open transaction is rolled back, and the next owner reads its records again. An
        async handler is cancelled, and may clean up. A third signal ends the process at once, even if a server never
        answers. Outside the main thread no signal handler is installed. Raises errors that a retry would not fix:
        ConfigError, SchemaMismatch, HandlerOutdated or GroupForgotten. Errors of the handler, of the database and of
        Kafka are raised unchanged.
        """
        with handled(self._on_signal):
            self._run()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        unborn = number == signal.SIGINT and not self._board.has_started  # it waits for its servers, and has no batch
        if unborn or self._stopping.is_set():
            for signum in STOP_SIGNALS:  # the next signal ends the process: an abort needs the database
                signal.signal(signum, signal.SIG_DFL)
            reason = "before the worker had started" if unborn else f"second {signal.Signals(number).name}: aborted"
            self._abort(reason)
        self._stopping.set()

    def _run(self) -> None:
        if not self._begun.acquire(blocking=False):
            raise ConfigError("a worker runs once, and this one has run: create a new Worker")
        loop = self._loop = Loop(
            self.pipeline,
            self._ledger,
            kafka=self._kafka,
            partitions=self._partitions,
            announce=self._announce,
            stopping=self._stopping,
            stopwatch=self._stopwatch,
            abort=self._abort,
            tracer=self._tracer,
            mirror=self._mirror,
            strict=self._is_strict,
            batch_ended=self._board.batch_ended,
        )
        try:
            loop.run()
        finally:
            self._ended.set()
            self._ledger.engine.dispose()

    def running(
        self,
        *,
        wait: bool = True,
        grace: float | None = 25.0,
        on_error: Callable[[BaseException], object] | None = None,
    ) -> Running:
        """Run on a new thread, for the duration of a ``with`` or ``async with`` block.

        Entering waits until the worker has started, or waits outside its group (a reload, other tables); leaving drains
        it, or raises the error that has ended it early. ``health().live`` turns False as soon as an error ends it.
        Installs no signal handler.

        With ``wait=False`` entering returns at once. The worker's thread then waits at most ``Limits.start_wait``
        seconds for brokers or a database that do not answer, ``health().trouble`` names them, and leaving raises a
        permanent error.

        ``on_error`` is called with the error that ended the worker, on its thread, unless entering raises it. The
        logger ``seekpoint.events`` always logs that error, at ERROR, with its traceback.

        Leaving takes at most ``grace`` seconds, and a few more to leave the group. A worker that has not ended by then
        is given up as in :meth:`stop`, and StopTimeout is raised. None waits without limit.
        """
        if on_error is not None and not callable(on_error):
            raise ConfigError(f"on_error={on_error!r}: must be a function that takes the error")
        if inspect.iscoroutinefunction(on_error) or inspect.iscoroutinefunction(type(on_error).__call__):
            raise ConfigError(
                f"on_error={on_error!r} is an async function, and the worker's thread would never await it: pass a "
                "plain function, which may pass the error to your event loop with loop.call_soon_threadsafe(...)"
            )
        seconds = None if grace is None else _seconds("grace", grace)
        return Running(self, self._announce, wait=wait, grace=seconds, on_error=on_error)


def _checked_tracer(tracer: Any) -> Tracer | None:
    if tracer is not None and not callable(getattr(tracer, "transaction", None)):
        raise ConfigError(f"tracing={tracer!r}: must be a seekpoint.metrics.Tracing(), or None")
    return tracer  # type: ignore[no-any-return]


def _seconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= threading.TIMEOUT_MAX:
        raise ConfigError(f"{name}={value!r}: must be a number of seconds, 0 or greater, or None for no limit")
    return value


class Running:
    """A worker on its own thread, for the duration of a block."""

    def __init__(
        self,
        worker: Worker,
        announce: Announcer,
        *,
        wait: bool,
        grace: float | None,
        on_error: Callable[[BaseException], object] | None,
    ) -> None:
        self.worker, self._wait, self._grace, self._on_error = worker, wait, grace, on_error
        self._announce = announce
        self._error: BaseException | None = None
        self._started, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._target, name=f"seekpoint-{worker.pipeline.group}", daemon=True)

    def _target(self) -> None:
        self._announce.add(self._on_event)
        try:
            self.worker.run()
        except BaseException as error:  # noqa: BLE001 -- raised again when the block is left
            if self._ended.is_set():  # the worker was given up, and StopTimeout is raised instead
                return
            self._error = error
            if not self._wait or self._started.is_set():  # otherwise entering raises it
                self._tell(error)
        finally:
            self._started.set()
            self._ended.set()

    def _tell(self, error: BaseException) -> None:
        if self._on_error is None:
            return
        try:
            self._on_error(error)
        except Exception:
            logger.exception("on_error= raised; ignored")

    def _on_event(self, event: events.Event) -> None:
        match event:
            case events.Started() | events.OnStandby() | events.DeclarationRefused():
                self._started.set()
            case events.WorkerStopped(error=StopTimeout() as error):  # its thread has not ended, and may never end
                self._error = error
                if self._started.is_set() or not self._wait:
                    self._tell(error)
                self._started.set()
                self._ended.set()

    def health(self) -> Health:
        """The worker's state now."""
        return self.worker.health()

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._wait:
            return self
        self._started.wait()
        if self._error is not None:
            if not isinstance(self._error, StopTimeout):
                self._thread.join()
            raise self._error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.worker.stop(self._grace)
        self._ended.wait()
        if not isinstance(self._error, StopTimeout):
            self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, trace)
