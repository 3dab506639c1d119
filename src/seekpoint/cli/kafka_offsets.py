"""``seekpoint offsets import`` and ``offsets mirror``: import positions from Kafka, and write positions to Kafka."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

import typer

from seekpoint.admin import ImportPlan, MirrorPlan
from seekpoint.cli.losses import admin_of
from seekpoint.cli.offsets import app
from seekpoint.cli.options import Actor, Apply, Group, KafkaOptions, LedgerOptions, Reason, command
from seekpoint.cli.output import answer
from seekpoint.errors import ConfigError


@app.command("import", no_args_is_help=True)
@command
def import_offsets(
    group: Group,
    *,
    from_group: Annotated[
        str | None, typer.Option(metavar="OLD", help="The consumer group whose commits to import.")
    ] = None,
    from_checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="The checkpoint of a Spark query, a folder or a URL, whose offsets to import."
        ),
    ] = None,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", help="Only this topic (repeatable). Default: all with commits.")
    ] = None,
    missing: Annotated[
        Literal["earliest", "latest"] | None,
        typer.Option(help="Where to start partitions without a commit.", show_default="refused"),
    ] = None,
    apply: Apply = False,
    reason: Reason = None,
    actor: Actor = None,
    ledger: LedgerOptions,
    brokers: KafkaOptions,
) -> None:
    """Start topics at the offsets that a plain consumer group or a Spark query has committed.

    The consumer group may have the same name. Without --apply nothing is done. Exits with 1 if the old group has
    members, before or after its commits were read; if a partition has no commit, or one that a mirror wrote; if the
    commits have changed since the plan was made; or if the group already has stored offsets of the topic.
    """
    if (from_group is None) == (from_checkpoint is None):
        raise ConfigError("give either --from-group OLD or --from-checkpoint DIR")
    admin = admin_of(ledger, brokers, apply, reason)
    plan = admin.plan_import(group, from_group, topic, from_checkpoint=from_checkpoint, missing=missing)
    if apply:
        admin.apply(plan, reason=reason or "", actor=actor)
    title = (
        f"{group}: the commits of {from_group or from_checkpoint} {'are' if apply else 'would be'} its first positions:"
    )
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
    """Write a stopped group's positions into Kafka, where a plain consumer of the same name continues.

    Without --apply nothing is done. Exits with 1 if the group has members in Kafka, or its positions have changed since
    the plan was made.
    """
    admin = admin_of(ledger, brokers, apply, reason)
    plan = admin.plan_mirror(group)
    if plan.is_done:
        answer(
            asdict(plan) | {"applied": False},
            f"Kafka already has the positions of {group}; nothing to do",
            as_json=ledger.as_json,
        )
        return
    if apply:
        admin.apply(plan, reason=reason or "", actor=actor)
    _print(plan, f"{group}: its positions {'are' if apply else 'would be'} written to Kafka:", ledger, is_applied=apply)


def _print(plan: ImportPlan | MirrorPlan, title: str, ledger: LedgerOptions, *, is_applied: bool) -> None:
    lines = [title, *(f"  - {consequence}" for consequence in plan.consequences)]
    if not is_applied:
        lines.append("dry run; --apply does it")
    answer(asdict(plan) | {"applied": is_applied}, *lines, as_json=ledger.as_json)
