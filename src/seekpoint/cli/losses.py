"""``seekpoint lost`` and ``seekpoint topics``: what was lost, and decisions that let a partition continue."""

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

lost = typer.Typer(help="Offsets that no worker applies: list them; accept a loss.", no_args_is_help=True)
topics = typer.Typer(help="Topics that were created again: accept one.", no_args_is_help=True)


@lost.command("list")
@command
def list_lost(
    groups: Annotated[
        list[str] | None, typer.Argument(metavar="[GROUP]...", help="Names of groups. Default: all.")
    ] = None,
    *,
    ledger: LedgerOptions,
) -> None:
    """List ranges of offsets that no worker applies: why, and who has decided that. The oldest first."""
    found = Admin(ledger.engine(), schema=ledger.schema).lost(groups or ())
    if ledger.as_json:
        answer([asdict(each) for each in found], as_json=True)
    elif not found:
        typer.echo("nothing is lost")
    else:
        rows = [
            (each.group, str(each.partition), each.from_offset, each.to_offset, each.reason, each.decision, each.actor,
             each.operator_reason, moment(each.at))
            for each in found
        ]  # fmt: skip
        columns = ("group", "partition", "from", "to", "reason", "decision", "by", "because", "at")
        print_table(None, columns, rows, numeric=("from", "to"))


@lost.command("accept", no_args_is_help=True)
@command
def accept_lost(
    group: Group,
    where: Annotated[
        str | None,
        typer.Argument(metavar="[TOPIC[:PARTITION]]", help="What has stopped. Default: all partitions of the group."),
    ] = None,
    *,
    to_offset: Annotated[
        int | None,
        typer.Option(help="Continue there, in a truncated log. Default: where it ended.", metavar="N", min=0),
    ] = None,
    apply: Apply = False,
    reason: Reason = None,
    actor: Actor = None,
    ledger: LedgerOptions,
    brokers: KafkaOptions,
) -> None:
    """Give up what logs do not have any more, and continue at their first offset, or at their end. Plan first.

    A log that was truncated and written again continues where it ended; --to-offset says where, if no worker has seen
    it. Without --apply nothing is done. Exits with 1 where that offset is needed, and where the partition is not as it
    was when the plan was made.
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
    at: Annotated[int | None, typer.Option(help="Continue at this offset, in each partition.", min=0)] = None,
    apply: Apply = False,
    reason: Reason = None,
    actor: Actor = None,
    ledger: LedgerOptions,
    brokers: KafkaOptions,
) -> None:
    """Let a group read a topic that was deleted and created again. Plan first; one transaction for all partitions.

    Without --apply nothing is done. Exits with 1 where a partition is not as it was when the plan was made.
    """
    if from_beginning == (at is not None):
        raise ConfigError("say where to continue in the new topic: --from-beginning, or --at OFFSET")
    admin = admin_of(ledger, brokers, apply, reason)
    _carry_out(admin, admin.plan_accept_topic(group, topic, at=at), ledger, apply=apply, reason=reason, actor=actor)


def admin_of(ledger: LedgerOptions, brokers: KafkaOptions, apply: bool, reason: str | None) -> Admin:
    """An ``Admin`` that asks the brokers, for a command that may carry a plan out."""
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
    lines = [f"  - {each}" for each in plan.consequences]
    if plan.is_done:
        lines = [*plan.consequences, "nothing to do"]
    elif not apply:
        lines = ["would be accepted:", *lines, "dry run; --apply does it"]
    else:
        lines = ["accepted:", *lines]
    answer(asdict(plan) | {"applied": is_applied}, *lines, as_json=ledger.as_json)
