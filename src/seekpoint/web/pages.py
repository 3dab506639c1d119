"""What each page reads and shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from http import HTTPStatus
from time import monotonic
from types import SimpleNamespace
from typing import Any, TypeVar

import msgspec
from starlette.exceptions import HTTPException

from seekpoint.admin import (
    ActionFilter,
    Admin,
    BrokersAway,
    DeadLetterCause,
    GroupStatus,
    GroupSummary,
    Level,
    PartitionStatus,
    ReloadStatus,
    portable,
)
from seekpoint.ledger.dead_letters import DeadLetter
from seekpoint.ledger.roles import Role
from seekpoint.records import Cause, Partition, utc
from seekpoint.web import present
from seekpoint.web.filters import FILTER, where_of
from seekpoint.web.reading import Answer, Reads
from seekpoint.web.site import Asked, Page, Site
from seekpoint.worker.replay.dead_letter_admin import portable_value

T = TypeVar("T")

PARTITIONS, DEAD_LETTERS, ACTIONS, LOST = 100, 100, 200, 100  # on a page
BROKERS_AWAY = 30.0  # seconds for which brokers that did not answer are not asked
DIAGNOSED = 30.0  # seconds for which a diagnosis is shown
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
HIDDEN = ("key", "value", "headers", "error", "traceback", "replay_error", "replay_traceback")
TEXTS = frozenset({"message", "attempt_error", "error", "trouble"})  # of errors: they may quote a record


class Pages:
    """One method a page; each returns what its template shows, and the same as data."""

    def __init__(self, site: Site, reads: Reads) -> None:
        self._site, self._reads = site, reads
        self._reads_log = site.shows_payloads and bool(reads.admin.kafka)
        self._brokers_away = 0.0, ""  # until when they are not asked, and why

    async def groups(self, asked: Asked) -> Page:
        """Every group in a line, the worst first."""
        asked.only()

        def read(admin: Admin) -> tuple[list[GroupSummary], list[str], list[ReloadStatus]]:
            found, doubts = self._asked(admin, lambda of: of.groups())
            return found, doubts, admin.reloads(is_open=True)

        answer = await self._reads.read("groups", read)
        found, doubts, runs = answer.value
        lines = [(present.state_of_group(group), group) for group in found]
        lines.sort(key=lambda line: (line[0].rank, -(line[1].lag or 0), line[1].name))
        data = [{"state": state.word, "group": group} for state, group in lines]
        return _page(answer, "groups", "Groups", data, lines=lines, runs=runs, doubts=doubts)

    async def group(self, asked: Asked) -> Page:
        """A group: its partitions, a hundred on a page, workers, what weakens the guarantee, what was lost."""
        asked.only("group", "page")
        name, number = asked["group"], max(1, asked.whole("page", 1))

        def read(admin: Admin) -> dict[str, Any]:
            group, doubts = self._status(admin, name)
            lines = [(present.state_of_partition(at, group), at) for at in group.partitions]
            lines.sort(key=lambda line: (line[0].rank, -(line[1].lag or 0), line[1].position.partition))
            pages = max(1, -(-len(lines) // PARTITIONS))
            shown = min(number, pages)
            of_page = lines[(shown - 1) * PARTITIONS : shown * PARTITIONS]
            drawn = admin.samples(name, [at.position.partition for _, at in of_page], HOUR)
            return {
                "group": group,
                "doubts": doubts,
                "lines": [
                    (state, at, present.sparkline(drawn[at.position.partition], state.level)) for state, at in of_page
                ],
                "samples": [{"partition": at, "samples": each} for at, each in drawn.items()],
                "number": shown,
                "pages": pages,
                "boxes": present.stop_boxes(name, group.partitions),
                "last": next(iter(admin.history(name, limit=1)), None),
                "explanation": admin.explain(name),
                "lost": admin.lost([name], limit=LOST),
            }

        answer = await self._reads.read(("group", name, number), read)
        found = answer.value
        data = {each: found[each] for each in ("group", "doubts", "explanation", "lost", "samples")}
        shown = {"totals": _totals(found["group"]), "reads_log": self._reads_log, **found}
        return _page(answer, "group", name, self._public(data), **shown)

    async def partition(self, asked: Asked) -> Page:
        """A partition: its positions over the last day, its row in the ledger, its history and losses."""
        asked.only("group", "topic", "partition")
        name, at = asked["group"], Partition(asked["topic"], asked.whole("partition"))

        def read(admin: Admin) -> dict[str, Any]:
            group, doubts = self._status(admin, name)
            line = next((each for each in group.partitions if each.position.partition == at), None)
            drawn = admin.samples(name, [at], DAY)[at]
            return {
                "group": group,
                "line": line,
                "state": None if line is None else present.state_of_partition(line, group),
                "doubts": doubts,
                "samples": drawn,
                "history": admin.history(name, [at.topic], partition=at.number),
                "lost": admin.lost([name], partition=at, limit=LOST),
            }

        answer = await self._reads.read(("partition", name, at), read)
        found = answer.value
        chart = present.positions_chart(found["samples"])
        data = {each: found[each] for each in ("line", "doubts", "samples", "history", "lost")}
        shown = {"at": at, "chart": chart, "reads_log": self._reads_log, **found}
        return _page(answer, "partition", f"{at} of {name}", self._public(data), **shown)

    async def record(self, asked: Asked) -> Page:
        """The record that a partition is stopped at, or that is tried again, as the log has it, with its error."""
        asked.only("group", "topic", "partition")
        name, at = asked["group"], Partition(asked["topic"], asked.whole("partition"))
        if not self._site.shows_payloads:
            raise HTTPException(HTTPStatus.FORBIDDEN, "records are not shown here")

        answer = await self._reads.read(("record", name, at), lambda admin: admin.record_in_front(name, at))
        found, one = answer.value, answer.value.record
        parts = ("topic", "partition", "offset", "timestamp_ms", "key", "value")
        data = {each: portable_value(getattr(one, each)) for each in parts}
        data |= {"error": found.error, "attempts": found.attempts}
        shown = {"group": name, "one": one, "found": found, "produced": utc(one.timestamp_ms)}
        return _page(answer, "record", f"{at} offset {one.offset}", data, is_live=False, **shown)

    async def dead_letters(self, asked: Asked) -> Page:
        """The open dead letters of a group that meet a filter: how many of each failure, and a hundred of them."""
        asked.only("group", "after", *FILTER)
        name, where = asked["group"], where_of(asked, shows_payloads=self._site.shows_payloads)
        after = asked.whole("after") if "after" in asked.parameters else None

        def read(admin: Admin) -> tuple[Sequence[DeadLetterCause], list[DeadLetter]]:
            of = admin.dead_letters(name)
            last = None if after is None else of.get(after)
            return of.by_cause(where), list(of.list(where, limit=DEAD_LETTERS + 1, after=last))

        answer = await self._reads.read(("dead letters", name, where, after), read)
        causes, found = answer.value[0], answer.value[1][:DEAD_LETTERS]
        following = found[-1].id if len(answer.value[1]) > DEAD_LETTERS else None
        total = sum(one.count for one in causes)
        data = {
            "total": total,
            "causes": self._public(causes),
            "dead_letters": [self._portable(one, name) for one in found],
        }
        narrowed = {each: value for each in FILTER if (value := asked.given(each))}
        shown: dict[str, Any] = {"group": name, "causes": causes, "found": found, "total": total, "narrowed": narrowed}
        shown |= {"after": after, "following": following}
        return _page(answer, "dead_letters", f"Dead letters of {name}", data, **shown)

    async def dead_letter(self, asked: Asked) -> Page:
        """One dead letter, with its record as far as it may be shown."""
        asked.only("group", "id")
        name, number = asked["group"], asked.whole("id")

        def read(admin: Admin) -> tuple[DeadLetter, DeadLetter | None]:
            of = admin.dead_letters(name)
            one = of.get(number)
            return one, of.first_of_key(one) if one.cause is Cause.BLOCKED and one.is_open else None

        answer = await self._reads.read(("dead letter", name, number), read)
        one, first = answer.value
        shown: dict[str, Any] = {"group": name, "one": one, "first": None if first is None else first.id}
        data = self._portable(one, name) | {"first_of_key": shown["first"]}
        return _page(answer, "dead_letter", f"Dead letter {number}", data, is_live=False, **shown)

    async def replay(self, asked: Asked) -> Page:
        """A request for a replay, until a worker has ended it."""
        asked.only("group", "id")
        name, number = asked["group"], asked.whole("id")
        answer = await self._reads.read(("replay", name, number), lambda admin: admin.replay_request(name, number))
        one = answer.value
        data = self._public(one)
        return _page(answer, "replay", f"Replay {number}", data, is_live=not one.has_ended, group=name, one=one)

    async def reloads(self, asked: Asked) -> Page:
        """Runs of reloads and batches, the newest first."""
        asked.only()
        answer = await self._reads.read("reloads", lambda admin: admin.reloads())
        return _page(answer, "reloads", "Reloads", self._public(answer.value), runs=answer.value)

    async def history(self, asked: Asked) -> Page:
        """What was done to a group, or to all: who, when and why; a page of it, by action and actor."""
        asked.only("group", "action", "actor", "before")
        name, narrowed = asked.given("group"), {each: asked.given(each) or None for each in ("action", "actor")}
        before = asked.whole("before") if "before" in asked.parameters else None
        only = ActionFilter(**narrowed, before_id=before)

        def read(admin: Admin) -> list[tuple[str, Any]]:
            if name is None:
                return admin.recent_actions(limit=ACTIONS + 1, only=only)
            return [(name, action) for action in admin.history(name, limit=ACTIONS + 1, only=only)]

        answer = await self._reads.read(("history", name, only), read)
        actions = answer.value[:ACTIONS]
        data = [{"group": group, "action": action} for group, action in actions]
        older = actions[-1][1].id if len(answer.value) > ACTIONS else None
        shown: dict[str, Any] = {
            "group": name,
            "actions": actions,
            "older": older,
            "before": before,
            "narrowed": narrowed,
        }
        return _page(answer, "history", "History", data, **shown)

    async def health(self, asked: Asked) -> Page:
        """What the doctor finds."""
        asked.only()
        answer = await self._reads.read(
            "health", lambda admin: admin.doctor(Role.READER), keep=DIAGNOSED, any_revision=True
        )
        rank = [Level.FAILURE, Level.WARNING, Level.OK].index
        findings = sorted(answer.value.findings, key=lambda one: rank(one.level))
        return _page(answer, "health", "Health", answer.value, is_live=False, diagnosis=answer.value, findings=findings)

    def _status(self, admin: Admin, name: str) -> tuple[GroupStatus, list[str]]:
        (group,), doubts = self._asked(admin, lambda of: of.status([name]))
        return group, doubts

    def _asked(self, admin: Admin, question: Callable[[Admin], tuple[list[T], list[str]]]) -> tuple[list[T], list[str]]:
        """An answer of the brokers, too; those that gave none are left alone for a while: each page would wait."""
        until, away = self._brokers_away
        if monotonic() < until:
            found, doubts = question(Admin(admin.engine, schema=admin.schema, limits=admin.limits))
            return found, [*doubts, away]
        found, doubts = question(admin)
        for doubt in doubts:
            if isinstance(doubt, BrokersAway):
                self._brokers_away = monotonic() + BROKERS_AWAY, doubt
        return found, doubts

    def _public(self, data: Any) -> Any:
        """Data as JSON has it, without texts of errors where these may not be shown."""
        found = msgspec.to_builtins(data, enc_hook=str)
        return found if self._site.shows_payloads else _without_texts(found)

    def _portable(self, one: DeadLetter, group: str) -> dict[str, Any]:
        found = portable(one, group)
        return found if self._site.shows_payloads else {k: v for k, v in found.items() if k not in HIDDEN}


def _without_texts(data: Any) -> Any:
    match data:
        case dict():
            return {name: _without_texts(value) for name, value in data.items() if name not in TEXTS}
        case list() | tuple():
            return [_without_texts(value) for value in data]
    return data


def _totals(group: GroupStatus) -> SimpleNamespace:
    """Of all its partitions; None where one of them is not known."""

    def total(of: Callable[[PartitionStatus], float | None], join: Callable[[Sequence[float]], float]) -> float | None:
        values = [of(at) for at in group.partitions]
        known = [value for value in values if value is not None]
        return join(known) if known and len(known) == len(values) else None

    return SimpleNamespace(
        lag=total(lambda at: at.lag, sum),
        lag_seconds=total(lambda at: at.lag_seconds, max),
        headroom_seconds=total(lambda at: at.headroom_seconds, min),
        headroom=total(lambda at: at.headroom, min),
        dead_letters=sum(at.dead_letters for at in group.partitions),
        blocked=sum(at.blocked for at in group.partitions),
        stopped=sum(at.position.stop is not None for at in group.partitions),
        age=max((at.age for at in group.partitions if at.age is not None), default=None),
    )


def _page(answer: Answer[Any], template: str, title: str, data: Any, *, is_live: bool = True, **shown: Any) -> Page:
    return Page(template, title, data, shown, answer.age, answer.error, is_live)
