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
from seekpoint.cli.errors import FAILED, masked
from seekpoint.cli.options import confirm, require_reason
from seekpoint.cli.output import answer, numbered

POLL = 0.5  # seconds
Progress = Callable[[int, int], None]  # how many are done, of how many


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
    """Store the request, and return what is no part of it, too; or show the plan, and return None.

    Exits with 1 where a plan that is only shown refuses some.
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
    """The request when it has ended, or as it is after so many seconds."""
    until = monotonic() + seconds
    while not request.has_ended and (left := until - monotonic()) > 0:
        sleep(min(POLL, left))
        request = admin.replay_request(request.group, request.id)
        done = request.replayed + request.failed + request.refused
        progress(done, max(done, len(request.dead_letters)))  # others of their keys are drawn along
    return request


def print_request(request: ReplayRequest, refused: Sequence[Planned] = (), *, is_awaited: bool, as_json: bool) -> None:
    """Print how the request is; exits with 1 where some were refused, or it was awaited and not all are replayed."""
    error = None if request.error is None else masked(request.error)
    tried = request.replayed + request.failed + request.refused
    counts = f"{request.replayed} replayed, {request.failed} failed again, {request.refused} refused"
    why = f": {error}" if error else ""
    said = f"request {request.id} ({numbered(len(request.dead_letters), 'dead letter')}) is {request.state}{why}"
    see = f"seekpoint dead-letters replay-request {shlex.quote(request.group)} {request.id} shows how it is"
    lines = [f"{said}; {counts}" if tried or request.has_ended else said, *([] if request.has_ended else [see])]
    lines += [f"refused: {masked(sentence)}" for sentence in request.refusals]
    if (more := request.refused - len(request.refusals)) and request.refusals:
        lines.append(f"and {more:,} more were refused")
    lines += [_refused(one) for one in refused]
    report = {"applied": True, "request": asdict(request) | {"error": error}, "refused": _places(refused)}
    answer(report, *lines, as_json=as_json)
    is_complete = request.state == "done" and not request.failed and not request.refused
    if refused or (is_awaited and not is_complete):
        raise typer.Exit(FAILED)


def _print_plan(plan: ReplayPlan, *, as_json: bool) -> None:
    if plan.planned and not as_json:
        print_plan(plan.planned)
    count = f"dry run: {_count(plan)} would be replayed, {len(plan.refused):,} refused; --apply does it"
    lines = [*(f"  - {each}" for each in plan.consequences), count] if plan.planned else [NOTHING]
    answer(
        {"applied": False, "planned": _places(plan.planned), "consequences": plan.consequences}, *lines, as_json=as_json
    )
    if plan.refused:
        raise typer.Exit(FAILED)


def _count(plan: ReplayPlan) -> str:
    more = f", and {plan.drawn_along:,} more of their keys" if plan.drawn_along else ""
    return f"{numbered(len(plan.ids), 'dead letter')}{more}"


def _refused(one: Planned) -> str:
    return f"refused, and no part of it: dead letter {one.dead_letter.id}: {masked(one.refusal or '')}"


def _places(planned: Sequence[Planned]) -> list[dict[str, Any]]:
    return [
        as_place(one.dead_letter, refusal=None if one.refusal is None else masked(one.refusal), after=one.after)
        for one in planned
    ]
