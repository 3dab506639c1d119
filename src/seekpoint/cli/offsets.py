"""``seekpoint offsets``: reset positions by plan, show who reset them, and export them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from seekpoint.admin import Action, ActionFilter, Admin, Reset, ResetPlan, ResetResult, ResetTo
from seekpoint.cli.errors import FAILED, plain
from seekpoint.cli.offset_files import as_csv, read_offsets
from seekpoint.cli.options import (
    Actor,
    Apply,
    Group,
    KafkaOptions,
    LedgerOptions,
    Reason,
    ago,
    command,
    require_brokers,
    require_reason,
)
from seekpoint.cli.output import answer, moment, print_table
from seekpoint.errors import ConfigError

app = typer.Typer(help="Reset a group's positions by plan; import, mirror and export them.", no_args_is_help=True)

Topic = Annotated[
    list[str] | None,
    typer.Option("--topic", metavar="TOPIC[:0,1]", help="A topic, or some of its partitions; repeat it."),
]
Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write it to this file.")]


@dataclass(frozen=True, kw_only=True)
class TargetOptions:
    """Where to; exactly one of them."""

    to_offset: Annotated[int | None, typer.Option(help="At this offset.", min=0)] = None
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="At the start of the log.")] = False
    to_latest: Annotated[bool, typer.Option("--to-latest", help="At the end of the log.")] = False
    to_current: Annotated[
        bool, typer.Option("--to-current", help="At the position as it is now, for a plan that is applied later.")
    ] = False
    to_datetime: Annotated[
        str | None, typer.Option(metavar="TIME", help="At the first record from then on: 2026-08-01T12:00Z.")
    ] = None
    by_duration: Annotated[
        str | None, typer.Option(metavar="TIME", help="At the first record that is not older: 1h, PT1H.")
    ] = None
    shift_by: Annotated[int | None, typer.Option(help="So many offsets forward, or backward: -100.")] = None
    to_processed: Annotated[
        str | None, typer.Option(metavar="TIME", help="Where the group was then, by the last sample before.")
    ] = None
    to_group: Annotated[str | None, typer.Option(metavar="GROUP", help="At the positions of another group.")] = None
    to_kafka: Annotated[str | None, typer.Option(metavar="GROUP", help="At Kafka's commits of this group.")] = None
    from_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="At the offsets of Kafka's CSV, or of JSON, as export writes.")
    ] = None
    after_failed: Annotated[
        bool, typer.Option("--after-failed", help="After the failed record that the partition waits in front of.")
    ] = False

    def target(self, group: str) -> ResetTo | None:
        """The one that is given, None where none is. Raises ConfigError for several."""
        made: dict[str, Callable[[Any], ResetTo]] = {
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
        given = {name: value for name in made if (value := getattr(self, name)) is not None and value is not False}
        if len(given) > 1:
            raise ConfigError(f"give one target, not {' and '.join('--' + name.replace('_', '-') for name in given)}")
        return next((made[name](value) for name, value in given.items()), None)


@app.command("reset", no_args_is_help=True)
@command
def reset(
    group: Group,
    *,
    topic: Topic = None,
    all_topics: Annotated[bool, typer.Option("--all-topics", help="All partitions of the group.")] = False,
    target: TargetOptions,
    plan: Annotated[
        Path | None, typer.Option("--plan", metavar="FILE", help="Carry out the plan that --out has written.")
    ] = None,
    out: Out = None,
    apply: Apply = False,
    reason: Reason = None,
    actor: Actor = None,
    wait: Annotated[str, typer.Option(metavar="TIME", help="How long to try to take all locks: 60s, 5m.")] = "60s",
    each: Annotated[bool, typer.Option("--each", help="A transaction for each partition, not one for all.")] = False,
    wait_until_applied: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="After a backward reset, wait so long until workers are where it was."),
    ] = None,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Reset to the logs' starts where retention has removed offsets.")
    ] = False,
    ledger: LedgerOptions,
    brokers: KafkaOptions,
) -> None:
    """Reset positions of a group, whose workers may run: they continue at the new positions within a second.

    The plan has absolute offsets, and says what follows; without --apply nothing is done. It is one transaction: all
    locks are taken within a second, or none and it is tried again. Exits with 1 where a partition was reset since the
    plan was made, has passed a forward target, or is before a backward one, and where its locks cannot be taken.
    """
    require_reason(apply, reason)
    seconds = ago(wait, "--wait").total_seconds()
    until = None if wait_until_applied is None else ago(wait_until_applied, "--wait-until-applied").total_seconds()
    settings = brokers.settings()
    if settings:
        require_brokers(settings)
    admin = Admin(ledger.engine(), settings, schema=ledger.schema)
    made = _plan(admin, group, plan, target.target(group), _scope(topic, all_topics=all_topics, needed=plan is None))
    if out is not None:
        try:
            out.write_bytes(made.to_json())
        except OSError as error:
            raise ConfigError(f"{out} cannot be written: {error.strerror}") from None
    result = None
    if apply:
        result = admin.apply(made, reason=reason or "", actor=actor, wait=seconds, each=each, accept_loss=accept_loss)
    _print(made, result, as_json=ledger.as_json)
    if result is not None and until is not None:
        admin.wait_until_applied(group, result, until)
    if result is not None and result.refused:
        raise typer.Exit(FAILED)


def _plan(
    admin: Admin, group: str, file: Path | None, target: ResetTo | None, topics: dict[str, list[int] | None] | None
) -> ResetPlan:
    """The plan of the file, or a new one. Raises ConfigError where neither or both are named."""
    if (file is None) == (target is None):
        raise ConfigError("give one target, such as --to-offset, --to-earliest or --shift-by, or --plan FILE")
    if target is not None:
        return admin.plan_reset(group, target, topics)
    try:
        found = ResetPlan.from_json((file or Path()).read_bytes())
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    if topics is not None:
        raise ConfigError("a plan has its partitions: leave --topic out")
    if found.group != group:
        raise ConfigError(f"{file} is a plan for group {found.group!r}, not for {group!r}")
    return found


def _print(plan: ResetPlan, result: ResetResult | None, *, as_json: bool) -> None:
    report: dict[str, Any] = asdict(plan) | {"applied": result is not None and bool(result.done)}
    if as_json:
        answer(report | {"result": None if result is None else asdict(result)}, as_json=True)
        return
    if result is not None:
        for done in result.done:
            typer.echo(plain(f"{done.partition} is reset from {done.from_offset} to {done.to_offset}"))
        for refused in result.refused:
            typer.echo(plain(f"refused: {refused}"))
        for skipped in result.skipped:
            typer.echo(plain(f"skipped: {skipped}"))
    if plan.is_done and not (result is not None and result.skipped):
        typer.echo(plain(f"{plan.group}: every partition is at its target ({plan.target}); nothing to do"))
    elif result is None:
        rows = [(x.topic, x.partition, x.position, x.target, x.target - x.position, _direction(x)) for x in plan.resets]
        columns = ("topic", "partition", "offset before", "offset after", "shift", "direction")
        print_table(f"would reset {plan.group} {plan.target}", columns, rows, numeric=columns[1:5])
        answer(None, *(f"  - {said}" for said in plan.consequences), "dry run; --apply does it", as_json=False)


def _direction(reset: Reset) -> str:
    is_back_to_here = reset.direction == "backward" and reset.target == reset.position
    return "back to here" if is_back_to_here else reset.direction


@app.command("history", no_args_is_help=True)
@command
def show_history(
    group: Group,
    *,
    topic: Annotated[list[str] | None, typer.Option("--topic", help="Of this topic alone; repeat it.")] = None,
    action: Annotated[str | None, typer.Option(help="Of this kind alone, such as reset or pause.")] = None,
    by: Annotated[str | None, typer.Option("--by", metavar="ACTOR", help="By this actor alone.")] = None,
    limit: Annotated[int, typer.Option(help="At most so many.", min=1)] = 100,
    ledger: LedgerOptions,
) -> None:
    """Show who did what to a group and its positions, when and why; the newest first.

    A request for a replay is one row, however many dead letters it replays.
    """
    only = ActionFilter(action, by)
    found = Admin(ledger.engine(), schema=ledger.schema).history(group, topic, limit=limit, only=only)
    if ledger.as_json:
        answer([asdict(each) for each in found], as_json=True)
        return
    columns = ("at", "action", "topic", "partition", "from", "to", "actor", "reason")
    print_table(None, columns, map(_row, found), numeric=("partition", "from", "to"))


def _row(done: Action) -> tuple[object, ...]:
    where = (done.topic, done.partition, done.from_offset, done.to_offset)
    return (moment(done.at), done.action, *where, done.actor, done.reason)


@app.command("export", no_args_is_help=True)
@command
def export_offsets(group: Group, *, topic: Topic = None, ledger: LedgerOptions) -> None:
    """Print a group's positions as Kafka's CSV (topic,partition,offset), or as JSON; `reset --from-file` reads both."""
    scope = _scope(topic, all_topics=False, needed=False)
    found = Admin(ledger.engine(), schema=ledger.schema).positions(group, scope)
    lines = [{"topic": at.topic, "partition": at.number, "offset": offset} for at, offset in found.items()]
    answer(lines, *as_csv(found).splitlines(), as_json=ledger.as_json)


# -- what options mean -------------------------------------------------------------------------------------------


def _scope(given: Sequence[str] | None, *, all_topics: bool, needed: bool) -> dict[str, list[int] | None] | None:
    """Partitions by topic, None for all. Raises ConfigError for a text that names none, and where both or none is."""
    if bool(given) and all_topics:
        raise ConfigError("give --topic or --all-topics, not both")
    if not given:
        if needed and not all_topics:
            raise ConfigError("say which partitions: --topic orders, --topic orders:0,1, or --all-topics")
        return None
    found: dict[str, list[int] | None] = {}
    for text in given:
        topic, colon, numbers = text.partition(":")
        parts = numbers.split(",") if colon else []
        if not topic or not all(part.isdecimal() for part in parts):
            raise ConfigError(f"--topic takes a topic, or one with partitions, as in orders:0,1; not {text!r}")
        known = found.get(topic, [])
        found[topic] = [*known, *map(int, parts)] if colon and known is not None else None
    return found


def _time(option: str, text: str) -> datetime:
    try:
        return datetime.fromisoformat(text.strip())
    except ValueError:
        raise ConfigError(f"{option} takes a time with its zone, such as 2026-08-01T12:00Z; not {text!r}") from None


_ISO = re.compile(r"P(?:(\d+)D)?(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?")


def _duration(text: str) -> timedelta:
    """Kafka's ``PT1H30M``, or ``1h``. Raises ConfigError."""
    if (found := _ISO.fullmatch(text.strip())) is None or not any(found.groups()):
        return ago(text, "--by-duration")
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    try:
        return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    except OverflowError:
        raise ConfigError(f"--by-duration {text}: nothing is so old") from None
