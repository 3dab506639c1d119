"""Actions: a plan with its numbers, a reason, and the plan carried out by whom it was shown to."""

from __future__ import annotations

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
from seekpoint.web.present import deed
from seekpoint.web.reading import Reads, check_revision
from seekpoint.web.site import Asked, Page, Site, error_page

FORM = "apply"
MOST = 5_000  # dead letters of a plan


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
    """To close these dead letters, none of which was dead-lettered after ``as_of``, without applying their records."""

    as_of: datetime | None


@dataclass(frozen=True, slots=True)
class ReplayPlan(_DeadLettersPlan):
    """To have a running worker of the group replay these dead letters; ``last_request`` as in the plan of Admin."""

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
    """Plans are made on the read-only pool, and carried out by ``admin``."""

    def __init__(self, site: Site, reads: Reads, admin: Admin) -> None:
        self._site, self._reads, self._admin = site, reads, admin
        self._plans: Mapping[str, Callable[[Admin, Asked], Plan]] = {
            "pause": lambda admin, asked: admin.plan_pause(asked["group"]),
            "resume": lambda admin, asked: admin.plan_resume(asked["group"]),
            "reset": _reset,
            "accept-lost": lambda admin, asked: admin.plan_accept_lost(asked["group"], _place(asked)),
            "accept-topic": _accept_topic,
            "discard": lambda admin, asked: _discard(admin, asked, site),
            "replay": lambda admin, asked: _replay(admin, asked, site),
        }

    async def plan(self, asked: Asked) -> Page:
        """The plan that these parameters ask for, and a form to carry it out; or the form whose value is none."""
        try:
            plan = await self._make(asked)
        except Exception as error:
            if asked.given("action") != "reset" or not isinstance(error, (ConfigError, HTTPException)):
                raise
            return _reset_again(asked, error_page(error))
        return self._page(plan, asked)

    async def _make(self, asked: Asked) -> Plan:
        make = self._plans.get(asked["action"])
        if make is None:
            raise HTTPException(HTTPStatus.BAD_REQUEST, f"there is no action {asked['action']!r}")
        asked.only("action", "group", *PARAMETERS[asked["action"]])
        return await self._reads.ask(lambda admin: make(admin, asked))

    def _page(self, plan: Plan, asked: Asked, refusal: Page | None = None, reason: str = "") -> Page:
        """This plan, with a new token; ``asked`` is kept in its form, to make it again after a refusal."""
        action, packed = asked["action"], urlsafe_b64encode(msgspec.json.encode(plan))
        token = self._site.tokens.issue(asked.access.user, f"{FORM} {action}", packed)
        title = f"{action.replace('-', ' ').capitalize()}: {plan.group}"
        shown: dict[str, Any] = {"action": action, "plan": plan, "packed": packed.decode(), "token": token}
        shown |= {"asked": urlencode(asked.parameters), "refusal": None, "reason": reason}
        shown["deed"], shown["gives_up"] = ("", False) if plan.is_done else _deed(plan)
        page = Page("plan", title, plan, shown, is_live=False)
        if refusal is None:
            return page
        return replace(page, shown={**shown, "refusal": refusal.shown["said"]}, status=refusal.status)

    async def apply(self, asked: Asked) -> str | Page:
        """Carry out the plan of a form; one that is refused is shown again, as it is now, and with the reason."""
        plan: Plan | None = None
        try:
            action, packed, reason = asked["action"], asked["plan"].encode(), asked["reason"].strip()
            if not reason:
                raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, "a reason is needed")
            if not self._site.tokens.redeem(asked["token"], asked.access.user, f"{FORM} {action}", packed):
                raise HTTPException(
                    HTTPStatus.FORBIDDEN, "this form was sent before, is over an hour old, or is not yours"
                )
            plan = msgspec.json.decode(urlsafe_b64decode(packed), type=PLANS[action])
            return await run_in_threadpool(self._carry_out, plan, reason, asked)
        except Exception as error:  # noqa: BLE001 -- what is no refusal is raised
            refusal = error_page(error)
        return await self._again(plan, asked, refusal)

    async def _again(self, plan: Plan | None, asked: Asked, refusal: Page) -> Page:
        """The plan as it is now; the one that was sent while a server is away; else the refusal alone."""
        reason = asked.parameters.get("reason", "")
        again = Asked(asked.access, dict(parse_qsl(asked.parameters.get("asked", ""), keep_blank_values=True)))
        try:
            plan = await self._make(again)
        except Exception as error:  # noqa: BLE001 -- as above
            error_page(error)
            if plan is None or not isinstance(error, (SQLAlchemyError, KafkaUnavailable)):
                given = {"group": again.parameters.get("group"), "reason": reason}
                return replace(refusal, shown={**refusal.shown, **given})
        return self._page(plan, again, refusal, reason)

    def _carry_out(self, plan: Plan, reason: str, asked: Asked) -> str:
        """Returns the page that shows what follows."""
        actor = asked.access.user
        check_revision(self._admin)
        match plan:
            case ResetPlan():
                accept_loss = asked.parameters.get("accept_loss") == "yes"
                self._admin.apply(plan, reason=reason, actor=actor, wait=10.0, accept_loss=accept_loss)
            case DiscardPlan():
                of = self._admin.dead_letters(plan.group, actor=actor)
                done = of.discard(plan.ids, reason=reason, as_of=plan.as_of)
                refused = [one for one in done if one.refusal is not None]
                if refused:
                    first = refused[0]
                    raise Fenced(
                        f"the group was acted on since the plan was made: {len(plan.ids) - len(refused):,} dead "
                        f"letters were discarded; {len(refused):,} are no longer open, or are others now, dead letter "
                        f"{first.dead_letter.id} first: {first.refusal}; make another plan"
                    )
            case ReplayPlan():
                request = self._admin.request_replay(
                    plan.group, plan.ids, reason=reason, actor=actor, last_request=plan.last_request
                )
                return f"replay?{urlencode({'group': plan.group, 'id': request.id})}"
            case PausePlan() | AcceptPlan():
                self._admin.apply(plan, reason=reason, actor=actor)
        return f"group?{urlencode({'group': plan.group})}"


def _deed(plan: Plan) -> tuple[str, bool]:
    match plan:
        case DiscardPlan():
            return f"Discard {len(plan.ids):,} dead letters", True
        case ReplayPlan():
            return f"Replay {len(plan.ids):,} dead letters", False
    return deed(plan)


def _reset_again(asked: Asked, refusal: Page) -> Page:
    """The form of a reset with what was typed, beside why that is no reset."""
    group, topic, partition = (asked.given(name) for name in ("group", *_PLACE))
    if group is None:
        return refusal
    shown: dict[str, Any] = {"group": group, "topic": topic, "partition": partition, "refusal": refusal.shown["said"]}
    shown |= {name: asked.given(name) or "" for name in ("target", "value")}
    return replace(refusal, template="reset", title=f"Reset: {group}", shown=shown)


def _place(asked: Asked) -> Partition | str | None:
    """A partition, a topic, or None for the whole group."""
    topic = asked.given("topic")
    if topic is None or "partition" not in asked.parameters:
        return topic
    return Partition(topic, asked.whole("partition"))


def _reset(admin: Admin, asked: Asked) -> ResetPlan:
    given = (asked.given("value") or "").strip()
    topics = None
    if "topic" in asked.parameters:
        topics = {asked["topic"]: [asked.whole("partition")] if "partition" in asked.parameters else None}
    return admin.plan_reset(asked["group"], _target(asked["target"], given), topics)


def _target(target: str, given: str) -> ResetTo:
    match target:
        case "offset" | "shift":
            try:
                number = int(given)
            except ValueError:
                raise ConfigError(f"{target} takes a whole number, not {given!r}") from None
            return ResetTo.offset(number) if target == "offset" else ResetTo.shift(number)
        case "datetime" | "processed":
            try:
                at = datetime.fromisoformat(given)
            except ValueError:
                raise ConfigError(f"{target} takes a time such as 2026-11-22T14:00Z, not {given!r}") from None
            return ResetTo.time(at) if target == "datetime" else ResetTo.processed(at)
        case "earliest":
            return ResetTo.earliest()
        case "latest":
            return ResetTo.latest()
        case "after-failed":
            return ResetTo.after_failed()
    raise ConfigError(f"there is no target {target!r}")


def _accept_topic(admin: Admin, asked: Asked) -> AcceptPlan:
    at = (asked.given("at") or "").strip()
    return admin.plan_accept_topic(asked["group"], asked["topic"], at=asked.whole("at") if at else None)


def _chosen(admin: Admin, asked: Asked, site: Site) -> tuple[dict[int, datetime], list[str]]:
    """The dead letters that ids or a filter name, with their times, and a sentence for those that are no part of it."""
    of = admin.dead_letters(asked["group"])
    if asked.given("ids"):
        named = asked["ids"].split(",")
        if len(named) > MOST or not all(one.isascii() and one.isdigit() for one in named):
            raise HTTPException(HTTPStatus.BAD_REQUEST, f"ids are at most {MOST:,} numbers, with commas between them")
        planned = of.plan_discard(int(one) for one in named)
        refused = [f"dead letter {one.dead_letter.id}: {one.refusal}" for one in planned if one.refusal is not None]
        return {one.dead_letter.id: one.dead_letter.dead_lettered_at for one in planned if one.refusal is None}, refused
    found = [
        (one.id, one.dead_lettered_at)
        for one in of.list(where_of(asked, shows_payloads=site.shows_payloads), limit=MOST + 1)
    ]
    more = [f"only the first {MOST:,} are part of this plan: make another one after it"] if found[MOST:] else []
    return dict(found[:MOST]), more


def _discard(admin: Admin, asked: Asked, site: Site) -> DiscardPlan:
    found, more = _chosen(admin, asked, site)
    what = [
        f"{len(found):,} dead letters are closed; their records are not applied, and are kept with the reason",
        "what they block for keep_key_order can be replayed then",
    ]
    as_of = max(found.values(), default=None)
    return DiscardPlan(asked["group"], tuple(found), (*(what if found else ()), *more), as_of)


def _replay(admin: Admin, asked: Asked, site: Site) -> ReplayPlan:
    found, more = _chosen(admin, asked, site)
    plan = admin.plan_replay(asked["group"], found)
    what = [f"{len(plan.ids):,} dead letters are replayed; one that fails again stays open", *plan.consequences]
    more += [f"dead letter {one.dead_letter.id}: {one.refusal}" for one in plan.refused]
    return ReplayPlan(asked["group"], plan.ids, (*(what if plan.ids else ()), *more), plan.last_request)
