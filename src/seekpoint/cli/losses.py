"""``seekpoint lost`` and ``seekpoint topics``: list losses, and accept them so that partitions continue."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from seekpoint.admin import AcceptPlan, Admin
from seekpoint.cli.options import (
    Actor,
    Apply,
    Group,
    KafkaOptions,
    LedgerOptions,
    Reason,
    command,
    partition_named,
    require_brokers,
    require_reason,
)
from seekpoint.cli.output import answer, moment, print_table
from seekpoint.errors import ConfigError

lost = typer.Typer(help="Offsets that no worker will apply: list them; accept a loss.", no_args_is_help=True)
topics = typer.Typer(help="Topics that were deleted and created again: accept one.", no_args_is_help=True)


@lost.command("list")
@command
def list_lost(
    groups: Annotated[
        list[str] | None, typer.Argument(metavar="[GROUP]...", help="Names of groups. Default: all.")
    ] = None,
    *,
    ledger: LedgerOptions,
) -> None:
    """List ranges of offsets that no worker will apply, with reasons and who decided; the oldest first."""
    ranges = Admin(ledger.engine(), schema=ledger.schema).lost(groups or ())
    if ledger.as_json:
        answer([asdict(lost_range) for lost_range in ranges], as_json=True)
    elif not ranges:
        typer.echo("nothing is lost")
    else:
        rows = [
            (lost_range.group, str(lost_range.partition), lost_range.from_offset, lost_range.to_offset,
             lost_range.reason, lost_range.decision, lost_range.actor, lost_range.operator_reason,
             moment(lost_range.at))
            for lost_range in ranges
        ]  # fmt: skip
        columns = ("group", "partition", "from", "to", "reason", "decision", "by", "because", "at")
        print_table(None, columns, rows, numeric=("from", "to"))


@lost.command("accept", no_args_is_help=True)
@command
def accept_lost(
    group: Group,
    where: Annotated[
        str | None,
        typer.Argument(
            metavar="[TOPIC[:PARTITION]]", help="The stopped topic or partition. Default: all of the group."
        ),
    ] = None,
    *,
    to_offset: Annotated[
        int | None,
        typer.Option(help="Where to continue in a truncated log. Default: where that log ended.", metavar="N", min=0),
    ] = None,
    apply: Apply = False,
    reason: Reason = None,
    actor: Actor = None,
    ledger: LedgerOptions,
    brokers: KafkaOptions,
) -> None:
    """Give up records that the logs no longer have, and continue at the log's first offset, or at its end.

    If a log was truncated and written again, the position becomes the offset of the truncation; if no worker has seen
    that offset, give it with --to-offset. Without --apply nothing is done. Exits with 1 if a required --to-offset is
    missing, or the partition has changed since the plan was made.
    """
    admin = admin_of(ledger, brokers, apply, reason)
    _carry_out(
        admin,
        admin.plan_accept_lost(
            group, partition_named(where) if where is not None and ":" in where else where, to_offset=to_offset
        ),
        ledger,
        apply=apply,
        reason=reason,
        actor=actor,
    )


@topics.command("accept", no_args_is_help=True)
@command
def accept_topic(
    group: Group,
    topic: Annotated[str, typer.Argument(help="The topic that was created again.")],
    *,
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="Continue at the first offset.")] = False,
    offset: Annotated[
        int | None, typer.Option("--at", help="Continue at this offset, in each partition.", min=0)
    ] = None,
    apply: Apply = False,
    reason: Reason = None,
    actor: Actor = None,
    ledger: LedgerOptions,
    brokers: KafkaOptions,
) -> None:
    """Let a group read a topic that was deleted and created again; all partitions in one transaction.

    Without --apply nothing is done. Exits with 1 if a partition has changed since the plan was made.
    """
    if from_beginning == (offset is not None):
        raise ConfigError("say where to continue in the new topic: --from-beginning, or --at OFFSET")
    admin = admin_of(ledger, brokers, apply, reason)
    _carry_out(
        admin, admin.plan_accept_topic(group, topic, offset=offset), ledger, apply=apply, reason=reason, actor=actor
    )


def admin_of(ledger: LedgerOptions, brokers: KafkaOptions, apply: bool, reason: str | None) -> Admin:
    """An ``Admin`` with brokers, for a command that may apply a plan."""
    require_reason(apply, reason)
    settings = brokers.settings()
    require_brokers(settings)
    return Admin(ledger.engine(), settings, schema=ledger.schema)


def _carry_out(
    admin: Admin, plan: AcceptPlan, ledger: LedgerOptions, *, apply: bool, reason: str | None, actor: str | None
) -> None:
    is_applied = apply and not plan.is_done
    if is_applied:
        admin.apply(plan, reason=reason or "", actor=actor)
    lines = [f"  - {consequence}" for consequence in plan.consequences]
    if plan.is_done:
        lines = [*plan.consequences, "nothing to do"]
    elif not apply:
        lines = ["would be accepted:", *lines, "dry run; --apply does it"]
    else:
        lines = ["accepted:", *lines]
    answer(asdict(plan) | {"applied": is_applied}, *lines, as_json=ledger.as_json)
