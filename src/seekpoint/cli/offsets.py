"""``seekpoint offsets``: reset positions by plan, show who reset them, and export them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from seekpoint.admin import Action, ActionFilter, Admin, Reset, ResetPlan, ResetResult, ResetTo
from seekpoint.admin.spark_offsets import spark_json
from seekpoint.cli.exit_codes import FAILED
from seekpoint.cli.masking import plain
from seekpoint.cli.offset_files import as_csv, read_offsets
from seekpoint.cli.options import (
    Actor,
    Apply,
    Group,
    KafkaOptions,
    LedgerOptions,
    Reason,
    command,
    duration,
    require_brokers,
    require_reason,
)
from seekpoint.cli.output import answer, moment, print_table
from seekpoint.cli.progress_bar import Shown
from seekpoint.errors import ConfigError
from seekpoint.jobs.reload import Reload
from seekpoint.jobs.reload.cutover_limits import MAX_WAIT
from seekpoint.jobs.staging.consolidate import RANGE
from seekpoint.worker.import_by_name import load_pipeline

app = typer.Typer(help="Reset a group's positions by plan; import, mirror and export them.", no_args_is_help=True)

Topic = Annotated[
    list[str] | None,
    typer.Option("--topic", metavar="TOPIC[:0,1]", help="A topic, or some of its partitions (repeatable)."),
]
Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the plan to this file.")]


@dataclass(frozen=True, kw_only=True)
class TargetOptions:
    """The target of a reset; exactly one of these options."""

    to_offset: Annotated[int | None, typer.Option(help="To this offset.", min=0)] = None
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the start of the log.")] = False
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end of the log.")] = False
    to_current: Annotated[
        bool, typer.Option("--to-current", help="To the current position, for a plan that is applied later.")
    ] = False
    to_datetime: Annotated[
        str | None, typer.Option(metavar="TIME", help="To the first record at this time or later: 2026-08-01T12:00Z.")
    ] = None
    by_duration: Annotated[
        str | None, typer.Option(metavar="TIME", help="To the first record that is not older than this: 1h, PT1H.")
    ] = None
    shift_by: Annotated[int | None, typer.Option(help="By this many offsets forward, or backward: -100.")] = None
    to_processed: Annotated[
        str | None, typer.Option(metavar="TIME", help="To the position at this time, by the last sample before it.")
    ] = None
    to_group: Annotated[str | None, typer.Option(metavar="GROUP", help="To the positions of another group.")] = None
    to_kafka: Annotated[
        str | None, typer.Option(metavar="GROUP", help="To the offsets that this group committed to Kafka.")
    ] = None
    from_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="To the offsets in this file: Kafka's CSV, JSON, or Spark's JSON, as export writes them.",
        ),
    ] = None
    after_failed: Annotated[
        bool, typer.Option("--after-failed", help="To the offset after the failed record at which the partition waits.")
    ] = False

    def target(self, group: str) -> ResetTo | None:
        """The given target, None if there is none. Raises ConfigError for several targets."""
        makers: dict[str, Callable[[Any], ResetTo]] = {
            "to_offset": ResetTo.offset,
            "to_earliest": lambda _: ResetTo.earliest(),
            "to_latest": lambda _: ResetTo.latest(),
            "to_current": lambda _: ResetTo.current(),
            "to_datetime": lambda text: ResetTo.time(_time("--to-datetime", text)),
            "by_duration": lambda text: ResetTo.duration(_duration(text)),
            "shift_by": ResetTo.shift,
            "to_processed": lambda text: ResetTo.processed(_time("--to-processed", text)),
            "to_group": ResetTo.of_group,
            "to_kafka": ResetTo.kafka,
            "from_file": lambda file: ResetTo.offsets(read_offsets(file, group)),
            "after_failed": lambda _: ResetTo.after_failed(),
        }
        options = {name: value for name in makers if (value := getattr(self, name)) is not None and value is not False}
        if len(options) > 1:
            raise ConfigError(f"give one target, not {' and '.join('--' + name.replace('_', '-') for name in options)}")
        return next((makers[name](value) for name, value in options.items()), None)


@dataclass(frozen=True, kw_only=True)
class RebuildOptions:
    """Whether the tables are rebuilt to match the new positions."""

    rebuild: Annotated[
        str | None,
        typer.Option(metavar="MODULE:NAME", help="Rebuild this pipeline's tables to match the targets, by a reload."),
    ] = None
    max_wait: Annotated[
        str, typer.Option(metavar="TIME", help="With --rebuild: how long workers may wait for the cut-over.")
    ] = f"{MAX_WAIT:g}s"
    range_records: Annotated[
        int, typer.Option(help="With --rebuild: read at most this many offsets at once.", min=1)
    ] = RANGE

    def check(self, *, separately: bool) -> None:
        """Raise ConfigError for conflicting options, before any server is asked."""
        if self.rebuild is None:
            return
        if separately:
            raise ConfigError("--rebuild resets all positions and tables in one transaction: omit --each")
        load_pipeline(self.rebuild, from_here=True)

    def reset(self, ledger: LedgerOptions, kafka: dict[str, Any], plan: ResetPlan, **arguments: Any) -> ResetResult:
        """Carry out the plan and rebuild the tables, which may delete all rows of records past the targets."""
        actor, pipeline = arguments.pop("actor"), load_pipeline(self.rebuild or "", from_here=True)
        with Shown(terminal_only=ledger.as_json) as progress:
            reload = Reload(
                [pipeline],
                ledger.engine(),
                kafka,
                schema=ledger.schema,
                actor=actor,
                progress=progress,
                max_wait=duration(self.max_wait, "--max-wait").total_seconds(),
                max_deletes=1.0,
                range_records=self.range_records,
            )
            return reload.reset(plan, **arguments)


@app.command("reset", no_args_is_help=True)
@command
def reset(
    group: Group,
    *,
    topic: Topic = None,
    all_topics: Annotated[bool, typer.Option("--all-topics", help="All partitions of the group.")] = False,
    target: TargetOptions,
    plan: Annotated[
        Path | None, typer.Option("--plan", metavar="FILE", help="Carry out a plan that --out has written.")
    ] = None,
    out: Out = None,
    apply: Apply = False,
    reason: Reason = None,
    actor: Actor = None,
    wait: Annotated[str, typer.Option(metavar="TIME", help="How long to try to take all locks: 60s, 5m.")] = "60s",
    separately: Annotated[
        bool, typer.Option("--each", help="A transaction for each partition, not one for all.")
    ] = False,
    wait_until_applied: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="After a backward reset, wait at most this long until workers reach the old positions again.",
        ),
    ] = None,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Reset to the log's start if retention has deleted the target.")
    ] = False,
    rebuilding: RebuildOptions,
    ledger: LedgerOptions,
    brokers: KafkaOptions,
) -> None:
    """Reset a group's positions; running workers continue at the new positions within a second.

    The plan has absolute offsets and the consequences; without --apply nothing is done. A reset that would count
    records twice in sums is refused, unless --rebuild rebuilds the tables, too. A reset is one transaction, which takes
    all locks within a second, or releases them and tries again. Exits with 1 if a partition was reset since the plan
    was made, has passed a forward target, or is before a backward one, or if its locks cannot be taken.
    """
    require_reason(apply, reason)
    seconds = duration(wait, "--wait").total_seconds()
    until = None if wait_until_applied is None else duration(wait_until_applied, "--wait-until-applied").total_seconds()
    if settings := brokers.settings():
        require_brokers(settings)
    rebuilding.check(separately=separately)
    admin = Admin(ledger.engine(), settings, schema=ledger.schema)
    scope = _scope(topic, all_topics=all_topics, plan=plan)
    reset_plan = _plan(admin, group, plan, target.target(group), scope)
    _write(out, reset_plan)
    result = None
    arguments: dict[str, Any] = {"actor": actor, "reason": reason or "", "accept_loss": accept_loss}
    if apply and rebuilding.rebuild is not None:
        result = rebuilding.reset(ledger, settings, reset_plan, **arguments)
    elif apply:
        result = admin.apply(reset_plan, wait=seconds, each=separately, **arguments)
    _print(reset_plan, result, as_json=ledger.as_json)
    if result is not None and until is not None:
        admin.wait_until_applied(group, result, until)
    if result is not None and result.refused:
        raise typer.Exit(FAILED)


def _write(file: Path | None, plan: ResetPlan) -> None:
    if file is None:
        return
    try:
        file.write_bytes(plan.to_json())
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}") from None


def _plan(
    admin: Admin, group: str, file: Path | None, target: ResetTo | None, topics: dict[str, list[int] | None] | None
) -> ResetPlan:
    """The plan from the file, or a new plan. Raises ConfigError for neither a file nor a target, or both."""
    if (file is None) == (target is None):
        raise ConfigError("give one target, such as --to-offset, --to-earliest or --shift-by, or --plan FILE")
    if target is not None:
        return admin.plan_reset(group, target, topics)
    try:
        plan = ResetPlan.from_json((file or Path()).read_bytes())
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    if plan.group != group:
        raise ConfigError(f"{file} is a plan for group {plan.group!r}, not for {group!r}")
    return plan


def _print(plan: ResetPlan, result: ResetResult | None, *, as_json: bool) -> None:
    report: dict[str, Any] = asdict(plan) | {"applied": result is not None and bool(result.done)}
    if as_json:
        answer(report | {"result": None if result is None else asdict(result)}, as_json=True)
        return
    if result is not None:
        for applied in result.done:
            typer.echo(plain(f"{applied.partition} is reset from {applied.from_offset} to {applied.to_offset}"))
        for refused in result.refused:
            typer.echo(plain(f"refused: {refused}"))
        for skipped in result.skipped:
            typer.echo(plain(f"skipped: {skipped}"))
    if plan.is_done and not (result is not None and result.skipped):
        typer.echo(plain(f"{plan.group}: every partition is at its target ({plan.target}); nothing to do"))
    elif result is None:
        rows = [
            (move.topic, move.partition, move.position, move.target, move.target - move.position, _direction(move))
            for move in plan.resets
        ]
        columns = ("topic", "partition", "offset before", "offset after", "shift", "direction")
        print_table(f"would reset {plan.group} {plan.target}", columns, rows, numeric=columns[1:5])
        answer(
            None,
            *(f"  - {consequence}" for consequence in plan.consequences),
            "dry run; --apply does it",
            as_json=False,
        )


def _direction(reset: Reset) -> str:
    is_back_to_here = reset.direction == "backward" and reset.target == reset.position
    return "back to here" if is_back_to_here else reset.direction


@app.command("history", no_args_is_help=True)
@command
def show_history(
    group: Group,
    *,
    topic: Annotated[list[str] | None, typer.Option("--topic", help="Only this topic (repeatable).")] = None,
    action: Annotated[str | None, typer.Option(help="Only this kind of action, such as reset or pause.")] = None,
    by: Annotated[str | None, typer.Option("--by", metavar="ACTOR", help="Only this actor's actions.")] = None,
    limit: Annotated[int, typer.Option(help="Show at most this many.", min=1)] = 100,
    ledger: LedgerOptions,
) -> None:
    """Show the actions on a group and its positions: who, when and why; the newest first.

    A request for a replay is one row, however many dead letters it replays.
    """
    only = ActionFilter(action, by)
    history = Admin(ledger.engine(), schema=ledger.schema).history(group, topic, limit=limit, only=only)
    if ledger.as_json:
        answer([asdict(entry) for entry in history], as_json=True)
        return
    columns = ("at", "action", "topic", "partition", "from", "to", "actor", "reason")
    print_table(None, columns, map(_row, history), numeric=("partition", "from", "to"))


def _row(action: Action) -> tuple[object, ...]:
    where = (action.topic, action.partition, action.from_offset, action.to_offset)
    return (moment(action.at), action.action, *where, action.actor, action.reason)


@app.command("export", no_args_is_help=True)
@command
def export_offsets(
    group: Group,
    *,
    topic: Topic = None,
    layout: Annotated[
        Literal["csv", "spark"],
        typer.Option("--format", help="Kafka's CSV, or the JSON for startingOffsets of Spark's Kafka source."),
    ] = "csv",
    ledger: LedgerOptions,
) -> None:
    """Print a group's positions as Kafka's CSV (topic,partition,offset), as Spark's JSON, or with --json as a list.

    `offsets reset --from-file` reads all three.
    """
    if ledger.as_json and layout == "spark":
        raise ConfigError("--format spark already prints JSON, in Spark's form: omit --json")
    scope = _scope(topic, all_topics=not topic, plan=None)
    positions = Admin(ledger.engine(), schema=ledger.schema).positions(group, scope)
    lines = [
        {"topic": partition.topic, "partition": partition.number, "offset": offset}
        for partition, offset in positions.items()
    ]
    text = spark_json(positions) if layout == "spark" else as_csv(positions)
    answer(lines, *text.splitlines(), as_json=ledger.as_json)


# -- parsing of options -------------------------------------------------------------------------------------------


def _scope(texts: Sequence[str] | None, *, all_topics: bool, plan: Path | None) -> dict[str, list[int] | None] | None:
    """Partitions by topic; None for all, or if a plan names them. Raises ConfigError if the options are invalid."""
    if plan is not None:
        if texts or all_topics:
            raise ConfigError("the plan already names its partitions: omit --topic and --all-topics")
        return None
    if texts and all_topics:
        raise ConfigError("give --topic or --all-topics, not both")
    if not texts:
        if not all_topics:
            raise ConfigError("say which partitions: --topic orders, --topic orders:0,1, or --all-topics")
        return None
    scope: dict[str, list[int] | None] = {}
    for text in texts:
        topic, colon, numbers = text.partition(":")
        parts = numbers.split(",") if colon else []
        if not topic or not all(re.fullmatch("[0-9]{1,9}", part) for part in parts):
            raise ConfigError(f"--topic takes a topic, or one with partitions, as in orders:0,1; not {text!r}")
        partitions = scope.get(topic, [])
        scope[topic] = [*partitions, *map(int, parts)] if colon and partitions is not None else None
    return scope


def _time(option: str, text: str) -> datetime:
    try:
        return datetime.fromisoformat(text.strip())
    except ValueError:
        raise ConfigError(f"{option} takes a time with its zone, such as 2026-08-01T12:00Z; not {text!r}") from None


_ISO = re.compile(r"P(?:(\d+)D)?(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?")


def _duration(text: str) -> timedelta:
    """Kafka's ``PT1H30M``, or ``1h``. Raises ConfigError."""
    if (match := _ISO.fullmatch(text.strip())) is None or not any(match.groups()):
        return duration(text, "--by-duration")
    try:
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    except (OverflowError, ValueError):  # int() takes no more than 4,300 digits
        raise ConfigError(f"--by-duration {text} is too long: no record can be that old") from None
