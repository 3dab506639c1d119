"""``seekpoint spark``: runs pipelines of DataFrames in a process with a Spark session."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote
from uuid import UUID

import typer

from seekpoint.admin import Admin
from seekpoint.cli import spark_session
from seekpoint.cli.errors import say, terminable
from seekpoint.cli.log_format import LogFormat, log_own_lines, set_up_logging
from seekpoint.cli.options import Actor, AsJson, ServerOptions, command, duration
from seekpoint.cli.output import answer
from seekpoint.cli.progress_bar import Shown
from seekpoint.cli.reload import BoundsOptions, Reason, Strategy, compared_into, left_open, print_outcome, say_begun
from seekpoint.cli.verify import print_report
from seekpoint.errors import ConfigError, required
from seekpoint.jobs.frames.reload import MAX_WAIT, FrameReload, bound_pipeline
from seekpoint.jobs.reload import Report
from seekpoint.jobs.reload.cutover_limits import Bounds
from seekpoint.kafka.ranges import MOST_OFFSETS
from seekpoint.worker.signal_handlers import handled

if TYPE_CHECKING:
    from seekpoint.spark import Env, FramesVerified

app = typer.Typer(
    help="Pipelines of Spark DataFrames: run one as a stream or over the available records, verify, reload.",
    no_args_is_help=True,
)


@dataclass(frozen=True, kw_only=True)
class SessionOptions:
    """The Spark session of the command, and the size of its tasks."""

    master: Annotated[
        str, typer.Option(metavar="MASTER", help="Where tasks run: local[4], spark://host:7077, yarn, k8s://….")
    ] = "local[*]"
    spark_conf: Annotated[
        list[str] | None, typer.Option("--spark-conf", metavar="KEY=VALUE", help="Spark setting (repeatable).")
    ] = None
    range_records: Annotated[
        int,
        typer.Option(help="At most this many offsets per task; fewer if Spark would have idle slots.", min=1),
    ] = MOST_OFFSETS


@dataclass(frozen=True, kw_only=True)
class BatchingOptions:
    """When micro-batches start, and where they end."""

    trigger: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="A micro-batch every 10s, 1m, …; at once if more can be read. Default: 10s."),
    ] = None
    available_now: Annotated[bool, typer.Option("--available-now", help="Apply what can be read now, and exit.")] = (
        False
    )
    max_records: Annotated[
        int | None, typer.Option(help="At most this many offsets per micro-batch. Default: all.", min=1)
    ] = None
    max_bytes: Annotated[
        int | None,
        typer.Option(help="About this many bytes per micro-batch, by a sample of the records. Default: all.", min=1),
    ] = None

    def seconds(self) -> float:
        """The trigger in seconds. Raises ConfigError."""
        if self.available_now and self.trigger is not None:
            raise ConfigError("--trigger is for a stream, and --available-now ends: omit one of them")
        return duration(self.trigger or "10s", "--trigger").total_seconds()


@app.command("run", no_args_is_help=True)
@command
def run(
    context: typer.Context,
    target: Annotated[str, typer.Argument(metavar="MODULE:NAME", help="A SparkPipeline.")],
    *,
    batching: BatchingOptions,
    session: SessionOptions,
    servers: ServerOptions,
    log_format: Annotated[LogFormat, typer.Option(help="How events are written to stderr.")] = LogFormat.TEXT,
    as_json: AsJson = False,
) -> None:
    """Apply a SparkPipeline's records until SIGTERM or Ctrl-C, finishing the open micro-batch; a second one aborts.

    Modules are imported from the current directory first. Executors need SEEKPOINT_DATABASE_URL in their environment
    and, if the pipeline has a codec, its modules. There is no checkpoint: however a run ends, the next one continues at
    the ledger's positions. Exits with 1 if a frame fails: nothing of that micro-batch is written.
    """
    log_own_lines(context, log_format)
    seconds = batching.seconds()
    group, kafka, database = _prepared(target, session, servers)
    set_up_logging(log_format)
    say.get()(logging.INFO, f"starting Spark on {session.master}")
    from seekpoint.spark import run as run_frames  # noqa: PLC0415 -- as above

    with spark_session.spark_session(session.master, session.spark_conf) as spark, _stopping() as stop:
        result = run_frames(
            spark,
            target,
            kafka=kafka,
            database=database,
            schema=servers.schema,
            trigger=seconds,
            available_now=batching.available_now,
            max_records=batching.max_records,
            max_bytes=batching.max_bytes,
            range_records=session.range_records,
            stop=stop,
        )
    micro_batches = "1 micro-batch" if result.micro_batches == 1 else f"{result.micro_batches:,} micro-batches"
    rows = "".join(f", {count:,} rows for {name}" for name, count in result.rows.items())
    dead_letters = f", {result.dead_letters:,} dead letters" if result.dead_letters else ""
    answer(
        asdict(result) | {"group": group},
        f"{group}: {result.records:,} records applied in {micro_batches}{rows}{dead_letters}",
        *(f"{partition} is at offset {offset}" for partition, offset in result.offsets.items()),
        as_json=as_json,
    )


@app.command("verify", no_args_is_help=True)
@command
def verify(
    target: Annotated[str, typer.Argument(metavar="MODULE:NAME", help="A SparkPipeline.")],
    *,
    differences: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Write all rows that differ as Parquet files, to DIR/RUN/TABLE."),
    ] = None,
    session: SessionOptions,
    servers: ServerOptions,
    as_json: AsJson = False,
) -> None:
    """Rebuild a SparkPipeline's tables, compare them with the live ones at the same offsets, and drop the rebuild.

    Shows how many rows are equal, missing, extra and different, with up to five rows of each kind of difference; DIR
    may be any path to which Spark can write. Live tables do not change, and a stream of the group continues. Exits with
    1 if one row differs.
    """
    _, kafka, database = _prepared(target, session, servers)
    from seekpoint.spark import verify as verify_frames  # noqa: PLC0415 -- pyspark, an extra

    with terminable(), Shown(terminal_only=as_json) as progress:
        progress.say(f"starting Spark on {session.master}")
        with spark_session.spark_session(session.master, session.spark_conf) as spark:
            verified = verify_frames(
                spark,
                target,
                kafka=kafka,
                database=database,
                schema=servers.schema,
                range_records=session.range_records,
                progress=progress,
            )
            paths = None if differences is None else _write_differences(verified, differences, progress)
    print_report(verified.report, paths, as_json=as_json)


def _write_differences(verified: FramesVerified, root: str, progress: Shown) -> dict[str, str]:
    """Write the differing rows below this path; returns the path of each table that differs."""
    paths = {table: f"{root.rstrip('/')}/{verified.run.id}/{quote(table)}" for table in verified.differences}
    for table, path in paths.items():
        progress.say(f"writing the rows of {table} that differ to {path}")
        verified.differences[table].write.parquet(path)
    return paths


@dataclass(frozen=True, kw_only=True)
class ReloadOptions(BoundsOptions):
    """Limits of a cut-over, for which a stream of micro-batches waits."""

    max_wait: Annotated[
        str,
        typer.Option(metavar="TIME", help="Refuse the cut-over if a micro-batch would wait longer for it: 30s."),
    ] = f"{MAX_WAIT:g}s"


@app.command("reload", no_args_is_help=True)
@command
def reload(
    target: Annotated[str, typer.Argument(metavar="MODULE:NAME", help="A SparkPipeline.")],
    *,
    strategy: Annotated[Strategy, typer.Option(help="How the rebuilt rows become the live ones.")] = "merge",
    reason: Reason = "reload",
    resume: Annotated[UUID | None, typer.Option(metavar="ID", help="Resume this run at its next step.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan.")] = False,
    bounds: ReloadOptions,
    session: SessionOptions,
    servers: ServerOptions,
    actor: Actor = None,
    as_json: AsJson = False,
) -> None:
    """Rebuild a SparkPipeline's tables from the log and cut over to them, in one transaction; a stream continues.

    Ctrl-C leaves the run open, and says how to resume it. Exits with 1 if the run was refused or failed; then
    nothing live was touched.
    """
    if dry_run and resume is not None:
        raise ConfigError("--dry-run shows the plan of a new run, and --resume continues one: omit one of them")
    limits = bounds.limits()
    _, kafka, database = _prepared(target, session, servers)
    reports: list[Report] = []
    with terminable(), Shown(terminal_only=as_json) as progress:
        progress.say(f"starting Spark on {session.master}")
        with (
            spark_session.spark_session(session.master, session.spark_conf) as spark,
            bound_pipeline(
                spark,
                target,
                kafka,
                database=database,
                schema=servers.schema,
                range_records=session.range_records,
            ) as bound,
        ):
            reloading = FrameReload(
                bound,
                Admin(bound.engine, schema=servers.schema).runs,
                bounds=Bounds(**limits),
                compared=compared_into(reports, progress),
                progress=progress,
            )
            if resume is None:
                plan = reloading.plan(strategy)
                if dry_run:
                    answer(plan.as_dict(), *plan.sentences(), as_json=as_json)
                    return
                for sentence in plan.sentences():
                    progress.say(sentence)
                driver = reloading.open(strategy, actor=actor, reason=reason)
            else:
                driver = reloading.take_over(resume)
            say_begun(driver, progress)
            with left_open(driver):
                outcome = reloading.run(driver)
            print_outcome(reloading.runs.get(driver.run.id), outcome, reports, driver.notes, as_json=as_json)


def _prepared(target: str, session: SessionOptions, servers: ServerOptions) -> tuple[str, dict[str, Any], Env]:
    """The pipeline's group, and brokers and database for tasks. Raises ConfigError before Java starts."""
    spark_session.require_master(session.master)
    with required("Spark needs pyspark", "spark"):
        from seekpoint.jobs.frames.declarations import load_spark_pipeline  # noqa: PLC0415 -- an extra
    group = load_spark_pipeline(target, from_here=True).group
    # Set before the session, whose Java inherits the environment.
    return group, *spark_session.for_tasks(*servers.named())


@contextmanager
def _stopping() -> Iterator[threading.Event]:
    """An event that the first SIGTERM or SIGINT sets; the second one raises KeyboardInterrupt.

    Enter it after the Spark session, because pyspark sets a handler for SIGINT when a session starts.
    """
    stop, speak = threading.Event(), say.get()  # context variables are not set in the other thread

    def hear(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    def report() -> None:  # on a thread, because a signal's handler cannot print safely
        stop.wait()
        speak(logging.INFO, "stopping after the open micro-batch; Ctrl-C again aborts")

    with handled(hear) as is_main_thread:
        if is_main_thread:
            threading.Thread(target=report, name="seekpoint-signals", daemon=True).start()
        yield stop
