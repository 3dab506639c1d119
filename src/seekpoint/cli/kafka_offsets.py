"""``seekpoint offsets import`` and ``offsets mirror``: between the ledger's positions and Kafka's own commits."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

import typer

from seekpoint.admin import ImportPlan, MirrorPlan
from seekpoint.cli.losses import admin_of
from seekpoint.cli.offsets import app
from seekpoint.cli.options import Actor, Apply, Group, KafkaOptions, LedgerOptions, Reason, command
from seekpoint.cli.output import answer


@app.command("import", no_args_is_help=True)
@command
def import_offsets(
    group: Group,
    *,
    from_group: Annotated[str, typer.Option(metavar="OLD", help="The consumer group whose commits are taken.")],
    topic: Annotated[
        list[str] | None, typer.Option("--topic", help="This topic alone; repeat it. Default: all that it committed.")
    ] = None,
    missing: Annotated[
        Literal["earliest", "latest"] | None,
        typer.Option(help="Where partitions without a commit begin.", show_default="refused"),
    ] = None,
    apply: Apply = False,
    reason: Reason = None,
    actor: Actor = None,
    ledger: LedgerOptions,
    brokers: KafkaOptions,
) -> None:
    """Begin topics at what a plain consumer group has committed to Kafka; the group may have the same name. Plan first.

    Without --apply nothing is done. Exits with 1 where the old group has members, before or after its commits were
    read; where a partition has no commit, or a mirror's; and where the group has stored offsets of the topic already.
    """
    admin = admin_of(ledger, brokers, apply, reason)
    plan = admin.plan_import(group, from_group, topic, missing=missing)
    if apply:
        admin.apply(plan, reason=reason or "", actor=actor)
    title = f"{group}: the commits of {from_group} {'are' if apply else 'would be'} its first positions:"
    _print(plan, title, ledger, is_applied=apply)


@app.command("mirror", no_args_is_help=True)
@command
def mirror_offsets(
    group: Group,
    *,
    apply: Apply = False,
    reason: Reason = None,
    actor: Actor = None,
    ledger: LedgerOptions,
    brokers: KafkaOptions,
) -> None:
    """Write a stopped group's positions into Kafka, where a plain consumer of the same name continues. Plan first.

    Without --apply nothing is done. Exits with 1 where the group has members in Kafka, or has moved since the plan was
    made.
    """
    admin = admin_of(ledger, brokers, apply, reason)
    plan = admin.plan_mirror(group)
    if plan.is_done:
        answer(
            asdict(plan) | {"applied": False},
            f"Kafka has the positions of {group} already; nothing to do",
            as_json=ledger.as_json,
        )
        return
    if apply:
        admin.apply(plan, reason=reason or "", actor=actor)
    _print(plan, f"{group}: its positions {'are' if apply else 'would be'} written to Kafka:", ledger, is_applied=apply)


def _print(plan: ImportPlan | MirrorPlan, title: str, ledger: LedgerOptions, *, is_applied: bool) -> None:
    lines = [title, *(f"  - {each}" for each in plan.consequences)]
    if not is_applied:
        lines.append("dry run; --apply does it")
    answer(asdict(plan) | {"applied": is_applied}, *lines, as_json=ledger.as_json)
