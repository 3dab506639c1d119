"""``seekpoint batch``: what is new in a pipeline's topics, applied by one job in one transaction."""

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
from seekpoint.cli.errors import masked, terminable
from seekpoint.cli.job_output import left_open
from seekpoint.cli.options import Actor, AsJson, MaxRecords, ServerOptions, StagingOptions, command, partition_named
from seekpoint.cli.output import answer, cut
from seekpoint.cli.progress_bar import Shown
from seekpoint.errors import ConfigError, SeekpointError
from seekpoint.jobs.batch import BatchDone, BatchJob
from seekpoint.jobs.run import this_driver
from seekpoint.ledger.tables import LARGEST_BIGINT
from seekpoint.records import Partition

_RANGE = re.compile(r"(\d{1,19})\.\.(\d{1,19})")


@dataclass(frozen=True, kw_only=True)
class RangeOptions:
    """Which range is applied again, and what may come of it."""

    range: Annotated[
        str | None,
        typer.Option(
            metavar="TOPIC:PARTITION:FROM..TO",
            help="Apply these offsets, to before TO, again: orders:0:100..200. No position moves.",
        ),
    ] = None
    accept_repeats: Annotated[
        bool,
        typer.Option("--accept-repeats", help="With --range: also where rows come twice, or older values come back."),
    ] = False
    restart: Annotated[
        bool,
        typer.Option("--restart", help="With --range: begin again, where a run over it is open or done."),
    ] = False

    def accepted(self) -> dict[str, Any]:
        """What goes with the range."""
        return {"accept_repeats": self.accept_repeats, "restart": self.restart}

    def span(self, reason: str | None, others: Mapping[str, object]) -> tuple[Partition, int, int] | None:
        """The range; None where there is none. Raises ConfigError, also for options that do not go together."""
        options = others
        if self.range is None:
            options = {"--accept-repeats": self.accept_repeats, "--restart": self.restart}
        if wrong := [option for option, value in options.items() if value]:
            raise ConfigError(
                f"{wrong[0]} does not go {'without' if self.range is None else 'with'} --range: remove it"
            )
        if self.range is None:
            return None
        if not (reason or "").strip():
            raise ConfigError("--range needs --reason: say why, for people who read admin_action later")
        partition, _, offsets = self.range.rpartition(":")
        if (found := _RANGE.fullmatch(offsets)) is None or int(found[2]) > LARGEST_BIGINT:
            raise ConfigError(
                "--range takes TOPIC:PARTITION:FROM..TO, as in orders:0:100..200, which reads 100 to 199; not "
                f"{self.range!r}"
            )
        return partition_named(partition), int(found[1]), int(found[2])


@command
def batch(
    context: typer.Context,
    target: Annotated[
        str, typer.Argument(metavar="MODULE:NAME", help="A Pipeline with sinks alone, or a Worker of one.")
    ],
    *,
    reason: Annotated[
        str | None, typer.Option(help="Why, for the record. Default: `batch`; needed with --range.")
    ] = None,
    pause: Annotated[
        bool, typer.Option("--pause", help="Stop workers of the group; they continue from the new offsets.")
    ] = False,
    resume: Annotated[UUID | None, typer.Option(metavar="ID", help="Resume this batch.")] = None,
    max_records: MaxRecords = None,
    again: RangeOptions,
    tasks: StagingOptions,
    servers: ServerOptions,
    actor: Actor = None,
    as_json: AsJson = False,
) -> None:
    """Apply what is new in a pipeline's topics as one job: rows, dead letters and offsets in one transaction.

    From the stored offsets to what can be read now, or to --max-records; --resume keeps the batch's own ends. The
    group's workers wait meanwhile. Ctrl-C leaves the batch open and the group paused, and says how to resume. Exits
    with 1 if the batch was refused or failed: nothing is written.

    --range applies records again that the group has applied, while its workers run; the positions stay where they are.
    Give the same command again to resume a run that was ended.
    """
    span = again.span(reason, {"--pause": pause, "--resume": resume, "--max-records": max_records})
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
            if span is not None:
                done = made.reprocess(*span, reason=reason or "", **again.accepted())
            elif resume is None:
                done = made.run(reason=reason or "batch", pause=pause)
            else:
                done = made.take_over(resume, pause=pause)
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
        paused = f"; group {made.source.group!r} is paused for it meanwhile"
        said = [left_open(run) + (paused if run.strategy == "batch" else "") for run in ours]
        raise KeyboardInterrupt(*said) from None


_UNKNOWN = (
    "the database does not answer; if a batch was opened it is left open, and its group paused: `seekpoint reload "
    "status` names it, and how to resume it"
)


def _print(done: BatchDone, group: str, *, as_json: bool) -> None:
    rows = ", ".join(f"{count:,} rows for {name}" for name, count in done.rows.items()) or "no rows"
    dead_letters = f", {done.dead_letters:,} dead letters" if done.dead_letters else ""
    applied = f"{done.records:,} records applied: {rows}{dead_letters}"
    failures = [failure | {"error": masked(failure["error"])} for failure in done.as_dict()["failures"]]
    answer(
        done.as_dict() | {"failures": failures},
        f"{group}: {'nothing is new' if done.is_empty else applied}",
        *(f"  offset {one.offset}: {one.cause}: {cut(masked(one.error))}" for one in done.failures),
        *(f"{at} is at offset {offset}" for at, offset in done.offsets.items()),
        as_json=as_json,
    )
