"""``seekpoint run``: runs pipelines in one process or several, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import gc
import logging
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from seekpoint.cli import parent_link
from seekpoint.cli.errors import say
from seekpoint.cli.exit_codes import FAILED
from seekpoint.cli.log_format import LogFormat, log_own_lines, set_up_logging
from seekpoint.cli.options import ServerOptions, address_of_worker, command, refuse_extras
from seekpoint.cli.parent_link import ParentLink
from seekpoint.cli.probes import listening
from seekpoint.cli.supervisor import Supervisor, WorkerProcess
from seekpoint.cli.systemd import notify, notifying
from seekpoint.cli.workers_of_process import ProcessWorkers
from seekpoint.errors import ConfigError
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.pipeline.policy import Limits
from seekpoint.records import numbered
from seekpoint.worker.import_by_name import load
from seekpoint.worker.tracer import Tracer
from seekpoint.worker.worker import Worker

RARELY = (100_000, 50, 100)  # allocations before a collection, and how many before one of the next generation

Target = Annotated[
    str, typer.Argument(metavar="MODULE:NAME", help="A Pipeline, a Worker, or a function that returns one.")
]
Targets = Annotated[
    list[str],
    typer.Argument(
        metavar="MODULE:NAME...", help="Pipelines, Workers, or functions that return one; several run on a thread each."
    ),
]


@dataclass(frozen=True, kw_only=True)
class StartOptions:
    """How workers start, run, commit and end."""

    accept_declaration: Annotated[
        bool,
        typer.Option("--accept-declaration", help="Let the group declare other tables, at the same version."),
    ] = False
    accept_forgotten: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Start as a new group, although it was forgotten at this time."),
    ] = None
    mirror: Annotated[
        bool, typer.Option("--mirror", help="Commit the positions to Kafka, too, for tools that show lag.")
    ] = False
    strict: Annotated[
        bool, typer.Option("--strict", help="End if a partition stops, instead of continuing with the others.")
    ] = False
    no_synchronous_commit: Annotated[
        bool,
        typer.Option(
            "--no-synchronous-commit",
            help="Do not wait for the disk at COMMIT: a crash of Postgres loses rows and offsets together.",
        ),
    ] = False
    start_wait: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", help="How long brokers and database may be away at the start.", show_default="no limit"
        ),
    ] = None


@command
def run(
    context: typer.Context,
    targets: Targets,
    *,
    servers: ServerOptions,
    start: StartOptions,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Answer probes and Prometheus by HTTP: /live, /ready, /stale, /metrics.",
            show_default="no port",
        ),
    ] = None,
    tracing: Annotated[
        bool, typer.Option("--tracing", help="Make a span for each transaction, by OpenTelemetry's global provider.")
    ] = False,
    log_format: Annotated[LogFormat, typer.Option(help="How events are written to stderr.")] = LogFormat.TEXT,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Run N worker processes; worker K listens on PORT + K - 1.",
            show_default="this process",
        ),
    ] = None,
) -> None:
    """Run workers until SIGTERM or Ctrl-C, finishing the open batch; a second signal aborts.

    Modules are imported from the current directory first. Several pipelines share the process: if one ends with an
    error, all drain. Events go to stderr, unless the module itself has set up logging.
    """
    log_own_lines(context, log_format)
    parent = parent_link.parent
    if workers is not None and parent is None:
        set_up_logging(log_format)
        raise typer.Exit(_run_processes(workers, listen))
    thresholds = gc.get_threshold()
    loaded = [load(target, from_here=True) for target in _each_once(targets)]
    set_up_logging(log_format)
    if all(isinstance(runnable, Worker) for runnable in loaded):
        refuse_extras(context, targets[0])
    arguments = {
        "limits": Limits(start_wait=start.start_wait),
        "accept_declaration": start.accept_declaration,
        "accept_forgotten": start.accept_forgotten,
        "mirror": start.mirror,
        "strict": start.strict,
        "synchronous_commit": not start.no_synchronous_commit,
        "tracing": _tracer() if tracing else None,
    }
    running = ProcessWorkers([_worker(runnable, servers, arguments) for runnable in loaded])
    _run_here(running, listen, parent, keep_gc=gc.get_threshold() != thresholds)


def _run_here(running: ProcessWorkers, listen: str | None, parent: ParentLink | None, *, keep_gc: bool) -> None:
    """Run these workers until they have drained. Raises typer.Exit if a partition is stopped."""
    if listen is not None and parent is not None:
        listen = address_of_worker(listen, parent.number)
    with ExitStack() as stack:
        if listen is not None:
            running.count()
        stack.enter_context(listening(listen, running.state, running))
        stack.enter_context(notifying(lambda: running.state().live))
        stack.enter_context(_first_signal_told(running))
        stack.enter_context(rare_collections(unless=keep_gc))
        if parent is not None:
            stack.enter_context(parent.reporting(running))
        running.run()
    running.log_totals()
    if stopped := running.stopped():
        message = f"{numbered(len(stopped), 'partition')} stopped: {', '.join(map(str, stopped))}"
        say.get()(logging.ERROR, message)
        raise typer.Exit(FAILED)


def _each_once(targets: Sequence[str]) -> Sequence[str]:
    if len({*targets}) < len(targets):
        raise ConfigError("a pipeline is named twice: for more workers of a group, start more processes (--workers)")
    return targets


def _worker(runnable: Pipeline | Worker, servers: ServerOptions, arguments: Mapping[str, Any]) -> Worker:
    """The target if it is a worker, otherwise a worker of this pipeline on the servers that the options name."""
    if isinstance(runnable, Worker):
        return runnable
    url, settings = servers.named()
    return Worker(runnable, engine=url, kafka=settings, schema=servers.schema, **arguments)


def _tracer() -> Tracer:
    from seekpoint.metrics.tracing import Tracing  # noqa: PLC0415 -- an extra

    return Tracing()


def _run_processes(count: int, listen: str | None) -> int:
    """Run this command in ``count`` processes. Returns the exit code. Raises ConfigError for a wrong ``--listen``."""
    if listen is not None:
        # Raises ConfigError for a last port that is too high, before a process is started.
        address_of_worker(listen, count)
    return Supervisor(lambda number: WorkerProcess(number, sys.argv[1:]), count).run()


@contextmanager
def rare_collections(*, unless: bool = False) -> Iterator[None]:
    """Run Python's garbage collector rarely within the block: reference counts free a batch's objects.

    For a worker's own process; a service keeps its settings. Does nothing if the program has set the collector.
    """
    if unless or not gc.isenabled():
        yield
        return
    before = gc.get_threshold()
    gc.freeze()  # modules imported so far stay
    gc.set_threshold(*RARELY)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


@contextmanager
def _first_signal_told(workers: ProcessWorkers) -> Iterator[None]:
    """Print at once that a signal has arrived, because the open batch may take a while; after a worker's start."""
    receiver, sender = socket.socketpair()  # carries the signal's number, because a handler cannot print safely
    sender.setblocking(False)
    speak = say.get()  # read here, because the other thread has no context variables

    def tell() -> None:
        while number := receiver.recv(1):
            if number[0] in {signal.SIGTERM, signal.SIGINT}:
                notify("STOPPING=1")
                if not workers.has_started:
                    return
                speak(logging.INFO, "stopping after the open batch; Ctrl-C again aborts")
                return

    teller = threading.Thread(target=tell, name="seekpoint-signals", daemon=True)
    teller.start()
    before = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        sender.close()
        teller.join(1.0)
        receiver.close()
