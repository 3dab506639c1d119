"""``seekpoint reprocess``: a bounded range of one partition through its pipeline again, beside the live position."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Annotated, Any

import typer

from seekpoint.cli.errors import masked, plain, terminable
from seekpoint.cli.options import Actor, Apply, AsJson, Reason, ServerOptions, command, partition_named, require_reason
from seekpoint.cli.output import answer, cut, numbered
from seekpoint.cli.progress_bar import Shown
from seekpoint.errors import ConfigError
from seekpoint.jobs.reprocess import Reprocess, Reprocessed, ReprocessPlan, RunDeadLetter
from seekpoint.ledger.tables import LARGEST_BIGINT
from seekpoint.worker.import_by_name import load_pipeline
from seekpoint.worker.replay.dead_letter_admin import portable_value

_RANGE = re.compile(r"(\d{1,19})\.\.(\d{1,19})")


@command
def reprocess(
    context: typer.Context,
    target: Annotated[str, typer.Argument(metavar="MODULE:PIPELINE", help="The Pipeline, or a Worker of it.")],
    partition: Annotated[str, typer.Argument(metavar="TOPIC:PARTITION", help="Of which partition: orders:0.")],
    offsets: Annotated[str, typer.Argument(metavar="FROM..TO", help="From this offset to before that one: 100..200.")],
    *,
    accept_old_values: Annotated[
        bool,
        typer.Option("--accept-old-values", help="Also where tables may get older values in place of newer ones."),
    ] = False,
    restart: Annotated[
        bool,
        typer.Option("--restart", help="Begin again, where a run over this range is open or done. Default: resume it."),
    ] = False,
    apply: Apply = False,
    reason: Reason = None,
    servers: ServerOptions,
    actor: Actor = None,
    as_json: AsJson = False,
) -> None:
    """Apply a bounded range of a partition again, while workers run; the group's position stays where it is.

    The log must have the range, and the group must have applied it. Without --apply nothing is done, and the plan says
    what follows for the tables. The run's own position is stored with its rows: give the same command again to resume
    a run that was ended. What fails becomes a dead letter of the run. Exits with 1 where the range is refused.
    """
    require_reason(apply, reason)
    at, span = partition_named(partition), _range(offsets)
    with servers.job(context, target) as of, terminable(), Shown(as_json=as_json) as progress:
        pipeline = load_pipeline(of.names[0], from_here=True)
        more: dict[str, Any] = {"schema": of.schema, "limits": of.limits, "actor": actor, "progress": progress}
        made = Reprocess(pipeline, of.engine, of.kafka, **more)
        plan = made.plan(at, *span, accept_old_values=accept_old_values, restart=restart)
        done = made.apply(plan, reason=reason or "") if apply else None
    _print(plan, done, as_json=as_json)


def _range(text: str) -> tuple[int, int]:
    if (found := _RANGE.fullmatch(text)) is None or int(found[2]) > LARGEST_BIGINT:
        raise ConfigError(f"a range is FROM..TO, as in 100..200, which reads 100 to 199; not {text!r}")
    return int(found[1]), int(found[2])


def _failure(one: RunDeadLetter) -> dict[str, Any]:
    return asdict(one) | {"key": portable_value(one.key), "error": masked(one.error)}


def _print(plan: ReprocessPlan, done: Reprocessed | None, *, as_json: bool) -> None:
    if as_json:
        result = None if done is None else asdict(done) | {"failures": [_failure(one) for one in done.failures]}
        answer(asdict(plan) | {"applied": done is not None, "result": result}, as_json=True)
        return
    span = f"{plan.at} [{plan.from_offset}, {plan.to_offset})"
    if done is None:
        resumed = f", resuming run {plan.run} at offset {plan.next_offset}" if plan.is_resumed else ""
        lines = [f"would reprocess {span} of {plan.group}{resumed}", *(f"  - {said}" for said in plan.consequences)]
        answer(None, *lines, "dry run; --apply does it", as_json=False)
        return
    dead = f", {numbered(done.dead_letters, 'dead letter')}" if done.dead_letters else ""
    typer.echo(plain(f"{span} of {plan.group}: {numbered(done.records, 'record')} applied{dead} (run {done.run})"))
    for one in done.failures:
        typer.echo(plain(f"  offset {one.offset}: {one.cause}: {cut(one.error)}"))
