"""``seekpoint batch``: what is new in a pipeline's topics, applied by one job in one transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated, Any
from uuid import UUID

import psycopg
import typer
from sqlalchemy.exc import SQLAlchemyError

from seekpoint.cli import spark_session
from seekpoint.cli.errors import terminable
from seekpoint.cli.job_output import left_open
from seekpoint.cli.options import Actor, AsJson, MaxRecords, ServerOptions, StagingOptions, command
from seekpoint.cli.output import answer
from seekpoint.cli.progress_bar import Shown
from seekpoint.errors import SeekpointError
from seekpoint.jobs.batch import BatchDone, BatchJob
from seekpoint.jobs.run import this_driver


@command
def batch(
    context: typer.Context,
    target: Annotated[
        str, typer.Argument(metavar="MODULE:NAME", help="A Pipeline with sinks alone, or a Worker of one.")
    ],
    *,
    reason: Annotated[str, typer.Option(help="Why, for the record.")] = "batch",
    pause: Annotated[
        bool, typer.Option("--pause", help="Stop workers of the group; they continue from the new offsets.")
    ] = False,
    resume: Annotated[UUID | None, typer.Option(metavar="ID", help="Resume this batch.")] = None,
    max_records: MaxRecords = None,
    tasks: StagingOptions,
    servers: ServerOptions,
    actor: Actor = None,
    as_json: AsJson = False,
) -> None:
    """Apply what is new in a pipeline's topics as one job: rows, dead letters and offsets in one transaction.

    From the stored offsets to what can be read now, or to --max-records; --resume keeps the batch's own ends. The
    group's workers wait meanwhile. Ctrl-C leaves the batch open and the group paused, and says how to resume. Exits
    with 1 if the batch was refused or failed: nothing is written.
    """
    with (
        servers.job(context, target) as of,
        terminable(),
        Shown(as_json=as_json) as progress,
        ExitStack() as stack,
    ):
        more: dict[str, Any] = {"limits": of.limits, "actor": actor, "progress": progress}
        more |= tasks.sizes() | {"max_records": max_records}
        more |= spark_session.stager(stack, of, tasks, progress.say)
        made = BatchJob(of.names[0], of.engine, of.kafka, schema=of.schema, **more)
        with _left_open(made):
            done = made.run(reason=reason, pause=pause) if resume is None else made.take_over(resume, pause=pause)
        _print(done, made.source.group, as_json=as_json)


@contextmanager
def _left_open(made: BatchJob) -> Iterator[None]:
    """On Ctrl-C, say how to resume the batch. The batch adds that to its errors itself."""
    try:
        yield
    except KeyboardInterrupt:
        try:
            ours = [run for run in made.runs.list() if run.is_open and run.driver == this_driver()]
        except (SeekpointError, SQLAlchemyError, psycopg.Error):
            raise KeyboardInterrupt(_UNKNOWN) from None
        said = [f"{left_open(run)}; group {made.source.group!r} is paused for it meanwhile" for run in ours]
        raise KeyboardInterrupt(*said) from None


_UNKNOWN = (
    "the database does not answer; if a batch was opened it is left open, and its group paused: `seekpoint reload "
    "status` names it, and how to resume it"
)


def _print(done: BatchDone, group: str, *, as_json: bool) -> None:
    rows = ", ".join(f"{count:,} rows for {name}" for name, count in done.rows.items()) or "no rows"
    dead_letters = f", {done.dead_letters:,} dead letters" if done.dead_letters else ""
    applied = f"{done.records:,} records applied: {rows}{dead_letters}"
    answer(
        done.as_dict(),
        f"{group}: {'nothing is new' if done.is_empty else applied}",
        *(f"{at} is at offset {offset}" for at, offset in done.offsets.items()),
        as_json=as_json,
    )
