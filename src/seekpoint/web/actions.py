"""Actions: shows a plan, asks for a reason, and carries the plan out for the user who has seen it."""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, urlencode

import msgspec
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from seekpoint.admin import AcceptPlan, Admin, PausePlan, ResetPlan, ResetTo
from seekpoint.errors import ConfigError, Fenced, KafkaUnavailable
from seekpoint.records import Partition
from seekpoint.web.filters import FILTER, where_of
from seekpoint.web.present import button_of
from seekpoint.web.reading import Reads, check_revision
from seekpoint.web.site import Page, PageRequest, Site, error_page

FORM = "apply"
MOST = 5_000  # most dead letters in a plan


@dataclass(frozen=True, slots=True)
class _DeadLettersPlan:
    group: str
    ids: tuple[int, ...]
    consequences: tuple[str, ...]

    @property
    def is_done(self) -> bool:
        """Whether there is nothing to do."""
        return not self.ids


@dataclass(frozen=True, slots=True)
class DiscardPlan(_DeadLettersPlan):
    """A plan to close these dead letters without applying their records; none is newer than ``as_of``."""

    as_of: datetime | None


@dataclass(frozen=True, slots=True)
class ReplayPlan(_DeadLettersPlan):
    """A plan to have a running worker replay these dead letters; ``last_request`` as in Admin's plan."""

    last_request: int


Plan = PausePlan | ResetPlan | AcceptPlan | DiscardPlan | ReplayPlan
PLANS: Mapping[str, type[Any]] = {
    "pause": PausePlan, "resume": PausePlan, "reset": ResetPlan, "accept-lost": AcceptPlan,
    "accept-topic": AcceptPlan, "discard": DiscardPlan, "replay": ReplayPlan,
}  # fmt: skip


_PLACE = ("topic", "partition")
PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "pause": (), "resume": (), "reset": (*_PLACE, "target", "value"), "accept-lost": _PLACE,
    "accept-topic": ("topic", "at"), "discard": ("ids", *FILTER), "replay": ("ids", *FILTER),
}  # fmt: skip


class Actions:
    """Makes plans on the read-only pool, and carries them out with ``admin``."""

    def __init__(self, site: Site, reads: Reads, admin: Admin) -> None:
        self._site, self._reads, self._admin = site, reads, admin
        self._plans: Mapping[str, Callable[[Admin, PageRequest], Plan]] = {
            "pause": lambda admin, request: admin.plan_pause(request["group"]),
            "resume": lambda admin, request: admin.plan_resume(request["group"]),
            "reset": _reset,
            "accept-lost": lambda admin, request: admin.plan_accept_lost(request["group"], _place(request)),
            "accept-topic": _accept_topic,
            "discard": lambda admin, request: _discard(admin, request, site),
            "replay": lambda admin, request: _replay(admin, request, site),
        }

    async def plan(self, request: PageRequest) -> Page:
        """The plan's page for these parameters, with a form to apply it; for an invalid reset, the reset's form."""
        try:
            plan = await self._make(request)
        except Exception as error:
            if request.get("action") != "reset" or not isinstance(error, (ConfigError, HTTPException)):
                raise
            return _reset_again(request, error_page(error))
        return self._page(plan, request)

    async def _make(self, request: PageRequest) -> Plan:
        make = self._plans.get(request["action"])
        if make is None:
            raise HTTPException(HTTPStatus.BAD_REQUEST, f"there is no action {request['action']!r}")
        request.only("action", "group", *PARAMETERS[request["action"]])
        return await self._reads.ask(lambda admin: make(admin, request))

    def _page(self, plan: Plan, request: PageRequest, refusal: Page | None = None, reason: str = "") -> Page:
        """The plan's page, with a new token; its form keeps ``request``, to plan again after a refusal."""
        action, packed = request["action"], urlsafe_b64encode(msgspec.json.encode(plan))
        token = self._site.tokens.issue(request.access.user, f"{FORM} {action}", packed)
        title = f"{action.replace('-', ' ').capitalize()}: {plan.group}"
        shown: dict[str, Any] = {"action": action, "plan": plan, "packed": packed.decode(), "token": token}
        shown |= {"asked": urlencode(request.parameters), "refusal": None, "reason": reason}
        shown["button"], shown["gives_up"] = ("", False) if plan.is_done else _button_of(plan)
        page = Page("plan", title, plan, shown, is_live=False)
        if refusal is None:
            return page
        return replace(page, shown={**shown, "refusal": refusal.shown["said"]}, status=refusal.status)

    async def apply(self, request: PageRequest) -> str | Page:
        """Carry out the plan of a form; after a refusal, show a new plan, with the reason."""
        plan: Plan | None = None
        try:
            action, packed, reason = request["action"], request["plan"].encode(), request["reason"].strip()
            if not reason:
                raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, "a reason is needed")
            if not self._site.tokens.redeem(request["token"], request.access.user, f"{FORM} {action}", packed):
                raise HTTPException(
                    HTTPStatus.FORBIDDEN, "this form was sent before, is over an hour old, or is not yours"
                )
            plan = msgspec.json.decode(urlsafe_b64decode(packed), type=PLANS[action])
            return await run_in_threadpool(self._carry_out, plan, reason, request)
        except Exception as error:  # noqa: BLE001 -- error_page() raises errors that are not refusals
            refusal = error_page(error)
        return await self._again(plan, request, refusal)

    async def _again(self, plan: Plan | None, request: PageRequest, refusal: Page) -> Page:
        """A new plan with the refusal; the sent plan if a server is away; otherwise only the refusal."""
        reason = request.parameters.get("reason", "")
        again = PageRequest(
            request.access, dict(parse_qsl(request.parameters.get("asked", ""), keep_blank_values=True))
        )
        try:
            plan = await self._make(again)
        except Exception as error:  # noqa: BLE001 -- as above
            error_page(error)
            if plan is None or not isinstance(error, (SQLAlchemyError, KafkaUnavailable)):
                fields = {"group": again.parameters.get("group"), "reason": reason}
                return replace(refusal, shown={**refusal.shown, **fields})
        return self._page(plan, again, refusal, reason)

    def _carry_out(self, plan: Plan, reason: str, request: PageRequest) -> str:
        """Carry out the plan; returns the path of the page that shows the effect."""
        actor = request.access.user
        check_revision(self._admin)
        match plan:
            case ResetPlan():
                accept_loss = request.parameters.get("accept_loss") == "yes"
                self._admin.apply(plan, reason=reason, actor=actor, wait=10.0, accept_loss=accept_loss)
            case DiscardPlan():
                of = self._admin.dead_letters(plan.group, actor=actor)
                outcomes = of.discard(plan.ids, reason=reason, as_of=plan.as_of)
                refused = [discarded for discarded in outcomes if discarded.refusal is not None]
                if refused:
                    first = refused[0]
                    raise Fenced(
                        f"the group was acted on since the plan was made: {len(plan.ids) - len(refused):,} dead "
                        f"letters were discarded; {len(refused):,} are no longer open, or were dead-lettered again, "
                        f"the first is dead letter {first.dead_letter.id}: {first.refusal}; make another plan"
                    )
            case ReplayPlan():
                replay = self._admin.request_replay(
                    plan.group, plan.ids, reason=reason, actor=actor, last_request=plan.last_request
                )
                return f"replay?{urlencode({'group': plan.group, 'id': replay.id})}"
            case PausePlan() | AcceptPlan():
                self._admin.apply(plan, reason=reason, actor=actor)
        return f"group?{urlencode({'group': plan.group})}"


def _button_of(plan: Plan) -> tuple[str, bool]:
    match plan:
        case DiscardPlan():
            return f"Discard {len(plan.ids):,} dead letters", True
        case ReplayPlan():
            return f"Replay {len(plan.ids):,} dead letters", False
    return button_of(plan)


def _reset_again(request: PageRequest, refusal: Page) -> Page:
    """The form of a reset with the typed values, and the reason for their refusal."""
    group, topic, partition = (request.get(name) for name in ("group", *_PLACE))
    if group is None:
        return refusal
    shown: dict[str, Any] = {"group": group, "topic": topic, "partition": partition, "refusal": refusal.shown["said"]}
    shown |= {name: request.get(name) or "" for name in ("target", "value")}
    return replace(refusal, template="reset", title=f"Reset: {group}", shown=shown)


def _place(request: PageRequest) -> Partition | str | None:
    """A partition, a topic, or None for the whole group."""
    if "partition" in request.parameters:
        return Partition(request["topic"], request.integer("partition"))
    return request.get("topic")


def _reset(admin: Admin, request: PageRequest) -> ResetPlan:
    text = (request.get("value") or "").strip()
    topics = None
    if request.parameters.keys() & {*_PLACE}:
        topics = {request["topic"]: [request.integer("partition")] if "partition" in request.parameters else None}
    return admin.plan_reset(request["group"], _target(request["target"], text), topics)


def _target(target: str, text: str) -> ResetTo:
    match target:
        case "offset" | "shift":
            try:
                number = int(text)
            except ValueError:
                raise ConfigError(f"{target} takes a whole number, not {text!r}") from None
            return ResetTo.offset(number) if target == "offset" else ResetTo.shift(number)
        case "datetime" | "processed":
            try:
                time = datetime.fromisoformat(text)
            except ValueError:
                raise ConfigError(f"{target} takes a time such as 2026-11-22T14:00Z, not {text!r}") from None
            return ResetTo.time(time) if target == "datetime" else ResetTo.processed(time)
        case "earliest":
            return ResetTo.earliest()
        case "latest":
            return ResetTo.latest()
        case "after-failed":
            return ResetTo.after_failed()
    raise ConfigError(f"there is no target {target!r}")


def _accept_topic(admin: Admin, request: PageRequest) -> AcceptPlan:
    offset = (request.get("at") or "").strip()
    return admin.plan_accept_topic(request["group"], request["topic"], offset=request.integer("at") if offset else None)


def _chosen(admin: Admin, request: PageRequest, site: Site) -> tuple[dict[int, datetime], list[str]]:
    """The dead letters that ids or filter select, with their times; and sentences about omitted ones."""
    of = admin.dead_letters(request["group"])
    if request.get("ids"):
        named = request["ids"].split(",")
        # int() takes no more than 4,300 digits; the largest id has 19.
        if len(named) > MOST or not all(re.fullmatch("[0-9]{1,19}", number) for number in named):
            raise HTTPException(HTTPStatus.BAD_REQUEST, f"ids= takes at most {MOST:,} numbers, separated by commas")
        planned = of.plan_discard(int(number) for number in named)
        refused = [
            f"dead letter {discard.dead_letter.id}: {discard.refusal}"
            for discard in planned
            if discard.refusal is not None
        ]
        accepted = [discard.dead_letter for discard in planned if discard.refusal is None]
        return {dead_letter.id: dead_letter.dead_lettered_at for dead_letter in accepted}, refused
    dead_letters = [
        (dead_letter.id, dead_letter.dead_lettered_at)
        for dead_letter in of.list(where_of(request, shows_payloads=site.shows_payloads), limit=MOST + 1)
    ]
    notes = [f"only the first {MOST:,} are part of this plan: make another one after it"] if dead_letters[MOST:] else []
    return dict(dead_letters[:MOST]), notes


def _discard(admin: Admin, request: PageRequest, site: Site) -> DiscardPlan:
    chosen, notes = _chosen(admin, request, site)
    sentences = [
        f"{len(chosen):,} dead letters are closed; their records are not applied, and are kept with the reason",
        "dead letters that they block (keep_key_order) can then be replayed",
    ]
    as_of = max(chosen.values(), default=None)
    return DiscardPlan(request["group"], tuple(chosen), (*(sentences if chosen else ()), *notes), as_of)


def _replay(admin: Admin, request: PageRequest, site: Site) -> ReplayPlan:
    chosen, notes = _chosen(admin, request, site)
    plan = admin.plan_replay(request["group"], chosen)
    sentences = [f"{len(plan.ids):,} dead letters are replayed; one that fails again stays open", *plan.consequences]
    notes += [f"dead letter {replay.dead_letter.id}: {replay.refusal}" for replay in plan.refused]
    return ReplayPlan(request["group"], plan.ids, (*(sentences if plan.ids else ()), *notes), plan.last_request)
