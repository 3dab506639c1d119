"""``seekpoint reload``: rebuilds tables from the log and replaces the live ones, while workers continue.

Exit codes: 0 if the rebuilt rows are live, or the command did its work; 1 if a run was refused or failed; 2 if the
command, its configuration or the pipeline is wrong; 130 if Ctrl-C or SIGTERM left a run open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from uuid import UUID

import typer

from seekpoint.admin import Admin, Runs
from seekpoint.cli import job_output as shown
from seekpoint.cli import spark_session
from seekpoint.cli.errors import terminable
from seekpoint.cli.exit_codes import FAILED
from seekpoint.cli.options import (
    Actor,
    ArchiveRoot,
    AsJson,
    Job,
    KafkaOptions,
    LedgerOptions,
    ReadOptions,
    ServerOptions,
    Targets,
    Topics,
    command,
    duration,
)
from seekpoint.cli.output import answer
from seekpoint.cli.progress_bar import Shown
from seekpoint.errors import ConfigError, ReloadOver
from seekpoint.jobs.reload import CutOver, Driver, Reload, Report, Run
from seekpoint.jobs.reload.cutover_limits import MAX_DELETES, MAX_WAIT
from seekpoint.jobs.run_progress import progress_of
from seekpoint.ledger.tables import BATCHES, PUBLISHING

app = typer.Typer(
    help="Rebuild tables from the log: run, resume, status, abort, sweep.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,  # locals hold the database's URL
)

Reason = Annotated[str, typer.Option(help="Why, for the record.")]
RunId = Annotated[UUID, typer.Argument(metavar="ID", help="The run, as `reload status` names it.")]


@dataclass(frozen=True, kw_only=True)
class BoundsOptions:
    """Limits of a cut-over."""

    max_wait: Annotated[
        str,
        typer.Option(metavar="TIME", help="Refuse the cut-over if workers would wait longer for it: 2s, 5m."),
    ] = f"{MAX_WAIT:g}s"
    max_deletes: Annotated[
        float,
        typer.Option(
            metavar="SHARE", help="Refuse a merge that deletes more than this share of a table's rows.", min=0, max=1
        ),
    ] = MAX_DELETES
    allow_cascades: Annotated[
        bool,
        typer.Option("--allow-cascades", help="A merge may change other tables by ON DELETE and ON UPDATE actions."),
    ] = False
    allow_inheritance: Annotated[
        bool, typer.Option("--allow-inheritance", help="A merge may change and delete rows of inheriting tables.")
    ] = False

    def limits(self) -> dict[str, Any]:
        """The limits as arguments of :class:`Reload`."""
        names = ("max_deletes", "allow_cascades", "allow_inheritance")
        return {"max_wait": duration(self.max_wait, "--max-wait").total_seconds()} | {
            name: getattr(self, name) for name in names
        }


@dataclass(frozen=True, kw_only=True)
class CutOverOptions(BoundsOptions, ReadOptions):
    """Options of a cut-over, and of how its run reads the log."""


Strategy = Literal["merge", "swap"]


# -- runs --------------------------------------------------------------------------------------------------


@app.command(no_args_is_help=True)
@command
def run(
    context: typer.Context,
    targets: Targets,
    *,
    strategy: Annotated[Strategy, typer.Option(help="How the rebuilt rows become the live ones.")] = "merge",
    topic: Topics = None,
    reason: Reason = "reload",
    resume: Annotated[UUID | None, typer.Option(metavar="ID", help="Resume this run at its next step.")] = None,
    cut_over: CutOverOptions,
    servers: ServerOptions,
    archive: ArchiveRoot = None,
    actor: Actor = None,
    as_json: AsJson = False,
) -> None:
    """Rebuild the tables of these pipelines from the log and cut over to them, in one transaction; workers continue.

    Ctrl-C leaves the run open, and says how to resume it. Exits with 1, without a change of live tables, if the run was
    refused or failed.
    """
    with (
        servers.job(context, *targets, topics=topic or ()) as of,
        _driven(of, cut_over, archive, as_json=as_json, actor=actor) as drive,
    ):
        drive(lambda reload: _opened(reload, resume, strategy, reason))


@app.command("resume")
@command
def resume_(
    context: typer.Context,
    id: Annotated[  # noqa: A002
        UUID | None, typer.Argument(metavar="[ID]", help="The run; without it, the only one that is open.")
    ] = None,
    *,
    ledger: LedgerOptions,
    cut_over: CutOverOptions,
    brokers: KafkaOptions,
) -> None:
    """Resume an open run at its next step, with the same pipelines; workers continue.

    Use it to try a refused cut-over again with other limits. Exits with 1 if the cut-over is refused again, or the run
    fails.
    """
    run = _open_run(Admin(ledger.engine(), schema=ledger.schema).runs, id)
    servers = ServerOptions(database_url=ledger.database_url, schema=ledger.schema, **vars(brokers))
    with (
        servers.job(context, *run.pipelines) as of,
        _driven(of, cut_over, None, as_json=ledger.as_json) as drive,
    ):
        drive(lambda reload: _opened(reload, run.id, "merge", ""))


@app.command()
@command
def status(
    id: Annotated[UUID | None, typer.Argument(metavar="[ID]", help="One run; without it, all of them.")] = None,  # noqa: A002
    *,
    ledger: LedgerOptions,
    limit: Annotated[int, typer.Option(help="Show at most this many runs.", min=1)] = 20,
) -> None:
    """List the runs of reloads, verifications and batches, newest first; or show one run's progress and next steps.

    Reads only the database: asks no brokers, and does not disturb workers and drivers.
    """
    engine = ledger.engine()
    if id is not None:
        progress = progress_of(engine, ledger.schema, id)
        if ledger.as_json:
            answer(shown.progress_as_dict(progress), as_json=True)
        else:
            answer(None, *shown.shown(progress), as_json=False)
            shown.print_places(progress)
            answer(None, *shown.choices(progress), as_json=False)
        return
    runs = Admin(engine, schema=ledger.schema).runs.list()
    if runs and not ledger.as_json:
        shown.print_list(runs[:limit])
    else:
        answer([shown.as_dict(run) for run in runs[:limit]], "no runs are on record", as_json=ledger.as_json)
    if len(runs) > limit:
        typer.echo(f"these are the newest {limit} of {len(runs)}; --limit shows more", err=True)


@app.command()
@command
def abort(
    id: RunId,  # noqa: A002
    *,
    reason: Annotated[str, typer.Option(help="Why, for the record.")],
    ledger: LedgerOptions,
) -> None:
    """Abort an open run: its driver fails at the next step, staged rows are dropped, live tables do not change.

    Waits for the current step. Exits with 1 if the run has already ended.
    """
    if not reason.strip():
        raise ConfigError("--reason is empty: say why the run is aborted")
    ended = Admin(ledger.engine(), schema=ledger.schema).runs.abort(id, reason)
    answer(shown.as_dict(ended), f"{id}: {shown.state(ended)}", as_json=ledger.as_json)
    if not ledger.as_json:
        _hint(ended)


@app.command()
@command
def sweep(
    *,
    ledger: LedgerOptions,
    gone_after: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="Fail runs whose driver has sent no heartbeat for this long: 90s, 30m, 12h, 7d."
        ),
    ] = "1d",
) -> None:
    """Drop the staging schemas of ended runs, and fail the runs whose driver sent no heartbeat for a day.

    Exits with 1 if a schema is still in use, which the next sweep tries again.
    """
    runs = Admin(ledger.engine(), schema=ledger.schema).runs
    swept = runs.sweep(duration(gone_after, "--gone-after"))
    unswept = [run for run in runs.list() if not run.is_open and not run.swept]
    lines = [f"{run_id}: its schema is dropped" for run_id in swept]
    if not swept and not unswept:
        lines = ["there is nothing to sweep"]
    answer({"swept": swept, "left": [shown.as_dict(run) for run in unswept]}, *lines, as_json=ledger.as_json)
    for run in unswept:
        typer.echo(f"{run.id}: schema {run.staging_schema} is still in use, or others created objects in it", err=True)
    if unswept:
        raise typer.Exit(FAILED)


# -- inside ------------------------------------------------------------------------------------------------


@contextmanager
def reload_of(
    of: Job,
    progress: Shown,
    read: ReadOptions,
    archive: str | None,
    **options: Any,
) -> Iterator[Reload]:
    """A reload of a job's pipelines; this process or Spark's tasks read the log."""
    arguments: dict[str, Any] = {"limits": of.limits, "progress": progress, "processes": read.processes, **options}
    arguments |= read.sizes()
    with ExitStack() as stack:
        if archive is not None:
            from seekpoint.jobs.export import Archive  # noqa: PLC0415 -- pyarrow, an extra

            arguments["archive"] = Archive(archive, of.engine, schema=of.schema)
        arguments |= spark_session.stager(stack, of, read, progress.say)
        yield Reload(of.names, of.engine, of.kafka, schema=of.schema, **arguments)


@contextmanager
def _driven(
    of: Job, cut_over: CutOverOptions, archive: str | None, *, as_json: bool, **options: Any
) -> Iterator[Callable[[Callable[[Reload], Driver]], None]]:
    """Yield a function that drives a run of these pipelines to its end; its argument opens or takes over the run."""
    reports: list[Report] = []
    with ExitStack() as stack:
        stack.enter_context(terminable())
        progress = stack.enter_context(Shown(terminal_only=as_json))
        options |= {"compared": compared_into(reports, progress), **cut_over.limits()}
        reload = stack.enter_context(reload_of(of, progress, cut_over, archive, **options))

        def drive(opened: Callable[[Reload], Driver]) -> None:
            driver = opened(reload)
            say_begun(driver, progress)
            with left_open(driver):
                outcome = reload.run(driver)
            print_outcome(reload.runs.get(driver.run.id), outcome, reports, driver.notes, as_json=as_json)

        yield drive


def compared_into(reports: list[Report], progress: Shown) -> Callable[[Report], None]:
    """A callback that shows a comparison before the cut-over, and appends it to ``reports``."""

    def compared(report: Report) -> None:
        reports.append(report)
        for sentence in shown.differences(report):
            progress.say(sentence)

    return compared


def say_begun(driver: Driver, progress: Shown) -> None:
    """Print the run, its state, its plan and its warnings."""
    progress.say(f"{driver.run.id}: {driver.run.state}, {', '.join(driver.run.tables)} by {driver.run.strategy}")
    for sentence in (*driver.plan, *stays(driver.run), *driver.notes):
        progress.say(sentence)


def _open_run(runs: Runs, id: UUID | None) -> Run:  # noqa: A002
    """The run to resume. Raises ConfigError if several are possible, or the run's pipelines have no names."""
    if id is not None:
        run = runs.get(id)
    else:
        open_runs = [run for run in runs.list() if run.is_open and run.strategy in PUBLISHING]
        if len(open_runs) != 1:
            listed = "; ".join(f"{run.id} ({run.state}, {', '.join(run.tables)})" for run in open_runs) or "none"
            raise ConfigError(f"give the id of the run to resume; open runs: {listed}")
        [run] = open_runs
    _require_reload(run)
    if run.is_of_frames:
        raise ConfigError(f"{run.id} rebuilds a SparkPipeline's tables: resume it with `{shown.resume(run)}`")
    if not all(run.pipelines):
        raise ConfigError(
            f"{run.id} was opened by a program, without the MODULE:NAME of its pipelines: name them in "
            f"`{shown.resume(run)}`"
        )
    return run


def _opened(reload: Reload, resume: UUID | None, strategy: Strategy, reason: str) -> Driver:
    if resume is None:
        return reload.open(strategy=strategy, reason=reason)
    _require_reload(reload.runs.get(resume))
    return reload.take_over(resume)


def _require_reload(run: Run) -> None:
    """Raise ConfigError for a batch, which another command resumes, and for a verify, which none does."""
    if run.strategy in BATCHES:
        raise ConfigError(f"{run.id} is a {run.strategy}, not a reload: resume it with `{shown.resume(run)}`")
    if run.strategy == "verify":
        end = f"end it with `{shown.abort(run)}`, and " if run.is_open else ""
        raise ConfigError(f"{run.id} is a verify, not a reload, and cannot be resumed: {end}run verify again")


@contextmanager
def left_open(driver: Driver) -> Iterator[None]:
    """After Ctrl-C or a transient error, say how to resume the open run."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_left(driver.run)) from None
    except ReloadOver:
        raise
    except Exception as error:
        if driver.run.is_open:
            error.add_note(_left(driver.run))
        raise


def stays(run: Run) -> Iterator[str]:
    """Sentences about groups whose version was not raised: their workers may run other code than the rebuild."""
    for group, old, new in zip(run.groups, run.version_from, run.version_to, strict=True):
        if old == new:
            yield (
                f"group {group!r} stays at version {new}: its workers continue with the code they have; raise "
                "version= if you fixed that code"
            )


def _left(run: Run) -> str:
    return shown.left_open(run) if run.is_open else f"{run.id} is {run.state}"


def print_outcome(
    run: Run, outcome: CutOver, reports: Sequence[Report], notes: Sequence[str], *, as_json: bool
) -> None:
    versions = ", ".join(
        f"{group} at version {version}" for group, version in zip(run.groups, run.version_to, strict=True)
    )
    under = f"{outcome.records} records, {outcome.keys} keys" if outcome.records >= 0 else "COMMIT had no answer"
    tries = "" if outcome.tries == 1 else f", on attempt {outcome.tries}"
    answer(
        shown.as_dict(run)
        | {
            "lock_seconds": round(outcome.lock_seconds, 4),
            "records": outcome.records,
            "keys": outcome.keys,
            "tries": outcome.tries,
            "warnings": [*stays(run), *notes],
            "compared": [
                {name: getattr(difference, name) for name in ("table", "equal", "missing", "extra", "different")}
                for report in reports
                for difference in report.tables
            ],
        },
        f"{', '.join(run.tables)}: cut over; {versions}",
        f"workers waited {outcome.lock_seconds:.3f} s ({under} under the lock{tries})",
        as_json=as_json,
    )
    if not as_json:
        _hint(run)


def _hint(run: Run) -> None:
    if not run.swept:
        typer.echo(
            f"schema {run.staging_schema} is still in use: drop it later with `seekpoint reload sweep`", err=True
        )
