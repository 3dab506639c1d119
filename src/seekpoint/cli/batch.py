"""``seekpoint batch``: applies the new records of a pipeline's topics as one job, in one transaction."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID

import psycopg
import typer
from sqlalchemy.exc import SQLAlchemyError

from seekpoint.cli import spark_session
from seekpoint.cli.errors import terminable
from seekpoint.cli.job_output import left_open
from seekpoint.cli.masking import masked
from seekpoint.cli.options import Actor, AsJson, MaxRecords, ServerOptions, StagingOptions, command, partition_named
from seekpoint.cli.output import answer, cut
from seekpoint.cli.progress_bar import Shown
from seekpoint.errors import ConfigError, SeekpointError
from seekpoint.jobs.batch import BatchDone, BatchJob
from seekpoint.ledger.tables import LARGEST_BIGINT
from seekpoint.records import Partition
from seekpoint.runs.run import this_driver

_RANGE = re.compile(r"(\d{1,19})\.\.(\d{1,19})")


@dataclass(frozen=True, kw_only=True)
class RangeOptions:
    """The range to apply again, and options that only apply to it."""

    range: Annotated[
        str | None,
        typer.Option(
            metavar="TOPIC:PARTITION:FROM..TO",
            help="Apply offsets FROM to TO - 1 again: orders:0:100..200. No position moves.",
        ),
    ] = None
    accept_repeats: Annotated[
        bool,
        typer.Option("--accept-repeats", help="With --range: permit duplicate rows, and older values over newer ones."),
    ] = False
    restart: Annotated[
        bool,
        typer.Option("--restart", help="With --range: start again, even if a run over this range is open or done."),
    ] = False

    def accepted(self) -> dict[str, Any]:
        """The arguments that belong to the range."""
        return {"accept_repeats": self.accept_repeats, "restart": self.restart}

    def span(self, reason: str | None, others: Mapping[str, object]) -> tuple[Partition, int, int] | None:
        """The range, None if there is none. Raises ConfigError for an invalid range or conflicting options."""
        options = others
        if self.range is None:
            options = {"--accept-repeats": self.accept_repeats, "--restart": self.restart}
        if wrong := [option for option, value in options.items() if value]:
            relation = "works only with" if self.range is None else "cannot be combined with"
            raise ConfigError(f"{wrong[0]} {relation} --range: remove {wrong[0]}")
        if self.range is None:
            return None
        if not (reason or "").strip():
            raise ConfigError("--range needs --reason: say why; the ledger stores it in admin_action")
        partition, _, offsets = self.range.rpartition(":")
        if (match := _RANGE.fullmatch(offsets)) is None or int(match[2]) > LARGEST_BIGINT:
            raise ConfigError(
                "--range takes TOPIC:PARTITION:FROM..TO, as in orders:0:100..200, which reads 100 to 199; not "
                f"{self.range!r}"
            )
        return partition_named(partition), int(match[1]), int(match[2])


@command
def batch(
    context: typer.Context,
    target: Annotated[
        str, typer.Argument(metavar="MODULE:NAME", help="A Pipeline that has only sinks, or a Worker of one.")
    ],
    *,
    reason: Annotated[
        str | None, typer.Option(help="Why, for the record. Default: `batch`; needed with --range.")
    ] = None,
    pause: Annotated[
        bool, typer.Option("--pause", help="Stop the group's workers meanwhile; they continue from the new offsets.")
    ] = False,
    resume: Annotated[UUID | None, typer.Option(metavar="ID", help="Resume this batch.")] = None,
    max_records: MaxRecords = None,
    again: RangeOptions,
    tasks: StagingOptions,
    servers: ServerOptions,
    actor: Actor = None,
    as_json: AsJson = False,
) -> None:
    """Apply the new records of a pipeline's topics as one job: rows, dead letters and offsets in one transaction.

    It reads from the stored offsets to the logs' stable ends, or at most --max-records offsets; --resume keeps the
    batch's end offsets. The group's workers wait meanwhile. Ctrl-C leaves the batch open and the group paused, and says
    how to resume. Exits with 1 if the batch was refused or failed: nothing is written.

    --range applies again records that the group has applied, while its workers run; no position changes. To resume an
    interrupted run, repeat the command.
    """
    span = again.span(reason, {"--pause": pause, "--resume": resume, "--max-records": max_records})
    with (
        servers.job(context, target) as of,
        terminable(),
        Shown(terminal_only=as_json) as progress,
        ExitStack() as stack,
    ):
        arguments: dict[str, Any] = {"limits": of.limits, "actor": actor, "progress": progress}
        arguments |= tasks.sizes() | {"max_records": max_records}
        arguments |= spark_session.stager(stack, of, tasks, progress.say)
        job = BatchJob(of.names[0], of.engine, of.kafka, schema=of.schema, **arguments)
        with _left_open(job):
            if span is not None:
                result = job.reprocess(*span, reason=reason or "", **again.accepted())
            elif resume is None:
                result = job.run(reason=reason or "batch", pause=pause)
            else:
                result = job.take_over(resume, pause=pause)
        _print(result, job.source.group, as_json=as_json)


@contextmanager
def _left_open(job: BatchJob) -> Iterator[None]:
    """On Ctrl-C, say how to resume the batch; its errors already say so."""
    try:
        yield
    except KeyboardInterrupt:
        try:
            open_runs = [run for run in job.runs.list() if run.is_open and run.driver == this_driver()]
        except (SeekpointError, SQLAlchemyError, psycopg.Error):
            raise KeyboardInterrupt(_UNKNOWN) from None
        paused = f"; group {job.source.group!r} is paused for it meanwhile"
        messages = [left_open(run) + (paused if run.strategy == "batch" else "") for run in open_runs]
        raise KeyboardInterrupt(*messages) from None


_UNKNOWN = (
    "the database does not answer; if a batch was opened, it is still open and its group paused: `seekpoint reload "
    "status` lists the batch, and says how to resume it"
)


def _print(result: BatchDone, group: str, *, as_json: bool) -> None:
    rows = ", ".join(f"{count:,} rows for {name}" for name, count in result.rows.items()) or "no rows"
    dead_letters = f", {result.dead_letters:,} dead letters" if result.dead_letters else ""
    applied = f"{result.records:,} records applied: {rows}{dead_letters}"
    failures = [failure | {"error": masked(failure["error"])} for failure in result.as_dict()["failures"]]
    answer(
        result.as_dict() | {"failures": failures},
        f"{group}: {'no new records' if result.is_empty else applied}",
        *(f"  offset {failure.offset}: {failure.cause}: {cut(masked(failure.error))}" for failure in result.failures),
        *(f"{partition} is at offset {offset}" for partition, offset in result.offsets.items()),
        as_json=as_json,
    )
