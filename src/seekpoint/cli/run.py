"""``seekpoint run``: one worker, as a process, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import logging
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Annotated

import typer

from seekpoint import events
from seekpoint.cli.errors import FAILED, masked
from seekpoint.cli.options import ServerOptions, command, refuse_extras
from seekpoint.cli.output import numbered
from seekpoint.pipeline.policy import Limits
from seekpoint.worker.import_by_name import load
from seekpoint.worker.worker import Worker

logger = logging.getLogger("seekpoint.cli")

Target = Annotated[
    str, typer.Argument(metavar="MODULE:NAME", help="A Pipeline, a Worker, or a function that returns one.")
]


@command
def run(
    context: typer.Context,
    target: Target,
    *,
    servers: ServerOptions,
    accept_declaration: Annotated[
        bool,
        typer.Option("--accept-declaration", help="Replace the tables that the group writes, at the same version."),
    ] = False,
    start_wait: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", help="How long brokers and database may be away at the start.", show_default="no limit"
        ),
    ] = None,
) -> None:
    """Run a worker until SIGTERM or Ctrl-C, finishing the batch in hand; a second signal aborts.

    Modules are imported from the current directory first. Events go to stderr, unless the module itself has
    set up logging.
    """
    made = load(target, from_here=True)
    _set_up_logging()
    if isinstance(made, Worker):
        refuse_extras(context, target)
        worker = made
    else:
        url, settings = servers.named()
        worker = Worker(
            made,
            engine=url,
            kafka=settings,
            schema=servers.schema,
            limits=Limits(start_wait=start_wait),
            accept_declaration=accept_declaration,
        )
    with _first_signal_told(worker):
        worker.run()
    health = worker.health()
    logger.info("drained: %s in %s", numbered(health.records, "record"), numbered(health.transactions, "transaction"))
    if stopped := sorted(health.stopped):
        typer.echo(f"error: {numbered(len(stopped), 'partition')} stopped: {', '.join(map(str, stopped))}", err=True)
        raise typer.Exit(FAILED)


@contextmanager
def _first_signal_told(worker: Worker) -> Iterator[None]:
    """Say at once that a signal was heard: the batch in hand may take a while. Before the start there is none."""
    heard, told = socket.socketpair()  # a signal's number comes through it; a handler could not print safely
    told.setblocking(False)

    def tell() -> None:
        while number := heard.recv(1):
            if number[0] in {signal.SIGTERM, signal.SIGINT}:
                if not worker.has_started:
                    return
                typer.echo("stopping after the batch in hand; Ctrl-C again aborts", err=True)
                return

    teller = threading.Thread(target=tell, name="seekpoint-signals", daemon=True)
    teller.start()
    before = signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        told.close()
        teller.join(1.0)
        heard.close()


class _Masking(logging.Formatter):
    """No password gets into the log, whatever wrote the message; what ended the worker is printed by the command."""

    def format(self, record: logging.LogRecord) -> str:
        match record.args:
            case (group, events.WorkerStopped(error=BaseException(), is_aborted=False)):
                record = copy(record)
                record.msg, record.args = "%sStopped, by an error", (group,)
                record.exc_info = record.exc_text = None
        return masked(super().format(record))


def _set_up_logging() -> None:
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Masking("%(asctime)s %(levelname)-7s %(name)s %(message)s"))
    root.addHandler(handler)
    logging.getLogger("seekpoint").setLevel(logging.INFO)
    # It warns of each statement after one that failed in the same pipeline: a handler's, while a record is searched.
    logging.getLogger("psycopg").setLevel(logging.ERROR)
