"""Replays by a running worker of the group: the plan, the request, and how it ends."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict
from time import monotonic, sleep
from typing import Any

import typer

from seekpoint.admin import Admin, Chosen, Planned, ReplayPlan, ReplayRequest
from seekpoint.cli.dead_letter_output import NOTHING, as_place, print_plan
from seekpoint.cli.exit_codes import FAILED
from seekpoint.cli.masking import masked
from seekpoint.cli.options import confirm, require_reason
from seekpoint.cli.output import answer
from seekpoint.records import numbered

POLL = 0.5  # seconds
Progress = Callable[[int, int], None]  # dead letters done, and their total


def request_by_worker(
    admin: Admin,
    group: str,
    chosen: Chosen,
    *,
    apply: bool,
    is_sure: bool,
    reason: str | None,
    actor: str | None,
    as_json: bool,
) -> tuple[ReplayRequest, list[Planned]] | None:
    """Store the request, and return it with the refused dead letters; or show the plan, and return None.

    Exits with 1 if a plan that is only shown refuses some.
    """
    require_reason(apply, reason)
    plan = admin.plan_replay(group, chosen)
    if not apply or plan.is_done:
        _print_plan(plan, as_json=as_json)
        return None
    if not is_sure:
        confirm(f"have a worker of {group} replay {_count(plan)}?")
    request = admin.request_replay(group, plan.ids, reason=reason or "", actor=actor, last_request=plan.last_request)
    return request, plan.refused


def follow(admin: Admin, request: ReplayRequest, seconds: float, progress: Progress) -> ReplayRequest:
    """Wait at most ``seconds`` for the request's end; returns its state then."""
    until = monotonic() + seconds
    while not request.has_ended and (remaining := until - monotonic()) > 0:
        sleep(min(POLL, remaining))
        request = admin.replay_request(request.group, request.id)
        ended = request.replayed + request.failed + request.refused
        progress(ended, max(ended, len(request.dead_letters)))  # later dead letters of their keys are replayed, too
    return request


def print_request(request: ReplayRequest, refused: Sequence[Planned] = (), *, is_awaited: bool, as_json: bool) -> None:
    """Print the request. Exits with 1 if ``refused`` is not empty, or if a wait has ended before all are replayed."""
    error = None if request.error is None else masked(request.error)
    tried = request.replayed + request.failed + request.refused
    counts = f"{request.replayed} replayed, {request.failed} failed again, {request.refused} refused"
    why = f": {error}" if error else ""
    summary = f"request {request.id} ({numbered(len(request.dead_letters), 'dead letter')}) is {request.state}{why}"
    see = f"`seekpoint dead-letters replay-request {shlex.quote(request.group)} {request.id}` shows its state"
    lines = [f"{summary}; {counts}" if tried or request.has_ended else summary, *([] if request.has_ended else [see])]
    lines += [f"refused: {masked(sentence)}" for sentence in request.refusals]
    if (unlisted := request.refused - len(request.refusals)) and request.refusals:
        lines.append(f"and {unlisted:,} more were refused")
    lines += [_refused(replay) for replay in refused]
    report = {"applied": True, "request": asdict(request) | {"error": error}, "refused": _places(refused)}
    answer(report, *lines, as_json=as_json)
    is_complete = request.state == "done" and not request.failed and not request.refused
    if refused or (is_awaited and not is_complete):
        raise typer.Exit(FAILED)


def _print_plan(plan: ReplayPlan, *, as_json: bool) -> None:
    if plan.planned and not as_json:
        print_plan(plan.planned)
    count = f"dry run: {_count(plan)} would be replayed, {len(plan.refused):,} refused; --apply does it"
    lines = [*(f"  - {consequence}" for consequence in plan.consequences), count] if plan.planned else [NOTHING]
    answer(
        {"applied": False, "planned": _places(plan.planned), "consequences": plan.consequences}, *lines, as_json=as_json
    )
    if plan.refused:
        raise typer.Exit(FAILED)


def _count(plan: ReplayPlan) -> str:
    suffix = f", and {plan.drawn_along:,} more of their keys" if plan.drawn_along else ""
    return f"{numbered(len(plan.ids), 'dead letter')}{suffix}"


def _refused(replay: Planned) -> str:
    return f"refused, so not in the request: dead letter {replay.dead_letter.id}: {masked(replay.refusal or '')}"


def _places(planned: Sequence[Planned]) -> list[dict[str, Any]]:
    return [
        as_place(
            replay.dead_letter, refusal=None if replay.refusal is None else masked(replay.refusal), after=replay.after
        )
        for replay in planned
    ]
