"""``seekpoint groups``: lists, pauses, resumes, replaces and forgets groups."""

from __future__ import annotations

import re
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from seekpoint.admin import Admin, ForgetPlan, ForgetResult, GroupSummary, PausePlan, ReplacePlan, ReplaceResult
from seekpoint.cli.masking import plain
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
from seekpoint.cli.output import ago, answer, headroom, print_table
from seekpoint.cli.progress_bar import Shown
from seekpoint.durations import format_duration
from seekpoint.errors import ConfigError
from seekpoint.records import numbered

app = typer.Typer(help="List groups; pause one, resume it, replace it, or forget it.", no_args_is_help=True)

NUMERIC = ("version", "partitions", "owned", "workers", "lag", "lag time", "headroom", "stopped", "dead letters")


@app.command("list")
@command
def list_groups(
    *,
    forgotten: Annotated[bool, typer.Option("--forgotten", help="Only groups that were forgotten.")] = False,
    ledger: LedgerOptions,
    brokers: KafkaOptions,
) -> None:
    """List groups: version, pause, partitions, workers, lag and headroom, stopped partitions, open dead letters.

    Without brokers (--kafka, --kafka-config) lag comes from the workers' samples, and "as of" is the age of the oldest
    sample; lag is empty if any partition's sample is older than three minutes.
    """
    settings = brokers.settings()
    if settings:
        require_brokers(settings)
    admin = Admin(ledger.engine(), settings, schema=ledger.schema)
    if forgotten:
        _list_forgotten(admin, as_json=ledger.as_json)
        return
    summaries, doubts = admin.groups()
    for doubt in doubts:
        typer.echo(f"warning: {doubt}", err=True)
    if ledger.as_json:
        answer([_as_dict(group) for group in summaries], as_json=True)
        return
    if not summaries:
        typer.echo("no worker has claimed anything yet")
        return
    columns = ("group", "version", "paused", "partitions", "owned", "workers", "lag", "lag time", "headroom", "as of")
    print_table(None, (*columns, "stopped", "dead letters", "committed"), map(_row, summaries), numeric=NUMERIC)


@app.command("pause", no_args_is_help=True)
@command
def pause(
    group: Group, *, apply: Apply = False, reason: Reason = None, actor: Actor = None, ledger: LedgerOptions
) -> None:
    """Pause a group: its workers are fenced before their next commit, keep their partitions, and wait.

    Without --apply nothing is done. Exits with 1 if the group was paused or resumed since the plan was made.
    """
    _carry_out(group, ledger, paused=True, apply=apply, reason=reason, actor=actor)


@app.command("resume", no_args_is_help=True)
@command
def resume(
    group: Group, *, apply: Apply = False, reason: Reason = None, actor: Actor = None, ledger: LedgerOptions
) -> None:
    """Let a paused group's workers continue at the stored offsets. Without --apply nothing is done."""
    _carry_out(group, ledger, paused=False, apply=apply, reason=reason, actor=actor)


@app.command("replace", no_args_is_help=True)
@command
def replace(
    group: Group,
    *,
    by: Annotated[str, typer.Option("--by", metavar="GROUP", help="The group that runs the newer handler.")],
    wait: Annotated[
        str, typer.Option(metavar="TIME", help="How long to wait until that group reaches GROUP's positions: 60s, 2h.")
    ] = "60s",
    accept_differences: Annotated[
        bool,
        typer.Option("--accept-differences", help="Replace even if open dead letters or retries differ."),
    ] = False,
    apply: Apply = False,
    reason: Reason = None,
    actor: Actor = None,
    ledger: LedgerOptions,
) -> None:
    """Replace a group's tables and positions with those of another group, which runs a newer handler in parallel.

    Waits for the other group, pauses GROUP, waits for the last records, and exchanges tables, positions and
    dead letters in one transaction. Workers of the newer handler continue as GROUP; the other group is paused. Without
    --apply nothing is done. If the command was killed, repeat it, or undo the pause with `groups resume`. Exits with 1
    if the groups cannot be exchanged, or if --wait ends first.
    """
    require_reason(apply, reason)
    seconds = duration(wait, "--wait").total_seconds()
    admin = Admin(ledger.engine(), schema=ledger.schema)
    plan, result = admin.plan_replace(group, by=by), None
    if apply and not plan.is_done:
        with Shown(unit="offsets", terminal_only=ledger.as_json) as progress:
            result = admin.replace_group(
                plan,
                reason=reason or "",
                actor=actor,
                wait=seconds,
                accept_differences=accept_differences,
                progress=progress,
            )
    answer(
        asdict(plan) | {"applied": result is not None, "result": None if result is None else asdict(result)},
        *_replace_lines(plan, result),
        as_json=ledger.as_json,
    )


def _replace_lines(plan: ReplacePlan, result: ReplaceResult | None) -> list[str]:
    if plan.is_done:
        return [f"{plan.by} has replaced {plan.group}, and is paused; nothing to do"]
    if result is None:
        consequences = [f"  - {consequence}" for consequence in plan.consequences]
        differ = [f"  - only with --accept-differences: {difference}" for difference in plan.differences]
        return [f"would replace {plan.group} with {plan.by}:", *consequences, *differ, "dry run; --apply does it"]
    waited = "" if result.seconds is None else f", after a pause of {format_duration(result.seconds)}"
    runs = f"its workers of version {plan.version_to} continue{waited}" if result.resumed else "it stays paused"
    return [
        f"{plan.by} has replaced {plan.group}, which is at handler version {plan.version_to}: {runs}",
        f"{plan.by} is paused: forget it, and drop its tables, once {plan.group} runs well",
    ]


@app.command("forget", no_args_is_help=True)
@command
def forget(
    group: Group,
    *,
    undo: Annotated[bool, typer.Option("--undo", help="Restore the positions of a forgotten group.")] = False,
    export: Annotated[
        Path | None,
        typer.Option(
            "--export",
            metavar="FILE",
            help="Write dead letters and lost ranges to this file first.",
            show_default="GROUP-forgotten-TIME.jsonl",
        ),
    ] = None,
    no_export: Annotated[bool, typer.Option("--no-export", help="Delete them without a copy.")] = False,
    apply: Apply = False,
    reason: Reason = None,
    actor: Actor = None,
    ledger: LedgerOptions,
) -> None:
    """Forget a paused group: delete positions, dead letters, lost ranges and samples; its name and history stay.

    Dead letters and lost ranges are written to a file first. Workers that start under the name are refused until
    --undo restores the positions, or `run --accept-forgotten` begins again. Without --apply nothing is done. Exits
    with 1 if the group is not paused, has an open run, or has changed since the plan was made.
    """
    if no_export and export is not None:
        raise ConfigError("give --export FILE or --no-export, not both")
    require_reason(apply, reason)
    admin = Admin(ledger.engine(), schema=ledger.schema)
    file = None if no_export else export or Path(_file_of(group))
    plan = admin.plan_undo_forget(group) if undo else admin.plan_forget(group, export_to=file)
    result = admin.apply(plan, reason=reason or "", actor=actor) if apply and not plan.is_done else None
    answer(
        asdict(plan) | {"applied": result is not None, "result": None if result is None else asdict(result)},
        *_forget_lines(plan, result),
        as_json=ledger.as_json,
    )


def _file_of(group: str) -> str:
    return f"{re.sub(r'[^A-Za-z0-9._-]', '_', group)}-forgotten-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.jsonl"


def _forget_lines(plan: ForgetPlan, result: ForgetResult | None) -> list[str]:
    if plan.is_done:
        now = "not forgotten" if plan.undo else f"forgotten since {plan.forgotten_at}"
        return [f"{plan.group} is {now}; nothing to do"]
    if result is None:
        verb = "undo the forgetting of" if plan.undo else "forget"
        consequences = [f"  - {consequence}" for consequence in plan.consequences]
        return [f"would {verb} {plan.group}:", *consequences, "dry run; --apply does it"]
    if plan.undo:
        return [f"{plan.group} has its {numbered(result.partitions, 'position')} again, and is paused"]
    counts = f"{numbered(result.dead_letters, 'dead letter')} and {numbered(result.lost_ranges, 'lost range')}"
    if result.run_dead_letters:
        counts += f", and {numbered(result.run_dead_letters, 'dead letter')} of reprocesses"
    copied = "" if result.file is None else f", which are in {result.file}"
    return [f"{plan.group} is forgotten, with {counts}{copied}"]


def _list_forgotten(admin: Admin, *, as_json: bool) -> None:
    forgotten = admin.forgotten()
    if as_json:
        answer([asdict(group) for group in forgotten], as_json=True)
    elif not forgotten:
        typer.echo("no group is forgotten")
    else:
        rows = [(group.name, group.partitions, group.forgotten_at, group.by, group.reason) for group in forgotten]
        print_table(None, ("group", "partitions", "forgotten at", "by", "reason"), rows, numeric=NUMERIC)


def _carry_out(
    group: str, ledger: LedgerOptions, *, paused: bool, apply: bool, reason: str | None, actor: str | None
) -> None:
    require_reason(apply, reason)
    admin = Admin(ledger.engine(), schema=ledger.schema)
    plan = admin.plan_pause(group) if paused else admin.plan_resume(group)
    if apply and not plan.is_done:
        admin.apply(plan, reason=reason or "", actor=actor)
    answer(asdict(plan) | {"applied": apply and not plan.is_done}, *_lines(plan, apply=apply), as_json=ledger.as_json)


def _lines(plan: PausePlan, *, apply: bool) -> list[str]:
    verb, word = ("pause", "paused") if plan.paused else ("resume", "resumed")
    if plan.is_done:
        pauser = f" by {plan.paused_by or 'unknown'}: {plan.paused_reason or 'no reason given'}" if plan.paused else ""
        return [f"{plan.group} is {'paused' if plan.paused else 'not paused'}{pauser}; nothing to do"]
    if apply:
        return [f"{plan.group} is {word}"]
    return [
        f"would {verb} {plan.group}:",
        *(f"  - {consequence}" for consequence in plan.consequences),
        "dry run; --apply does it",
    ]


def _as_dict(group: GroupSummary) -> dict[str, Any]:
    return asdict(group) | {"age": None if group.age is None else group.age.total_seconds()}


def _row(group: GroupSummary) -> tuple[object, ...]:
    paused = "" if group.pause is None else plain(f"by {group.pause.by or 'unknown'}")
    lag_time = None if group.lag_seconds is None else format_duration(group.lag_seconds)
    room = headroom(group.headroom, group.headroom_seconds)
    is_known = group.lag is not None or group.headroom is not None
    as_of = f"{format_duration(group.age)} ago" if group.age is not None else "now" if is_known else ""
    counts = (group.partitions, group.owned, group.workers, group.lag, lag_time, room, as_of, group.stopped)
    parts = [f"{group.blocked} blocked"] if group.blocked else []
    if group.waiting:
        parts.append(f"{group.waiting} waiting for up to {format_duration(group.oldest_waiting_seconds or 0)}")
    dead = f"{group.dead_letters} ({', '.join(parts)})" if parts else str(group.dead_letters)
    return (group.name, group.version, paused, *counts, dead, ago(group.committed_at))
