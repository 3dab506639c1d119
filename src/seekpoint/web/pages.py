"""The pages of the console: the data that each reads and shows."""

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
)
from seekpoint.ledger.dead_letters import DeadLetter
from seekpoint.ledger.roles import Role
from seekpoint.records import Cause, Partition, utc
from seekpoint.web import present
from seekpoint.web.filters import FILTER, where_of
from seekpoint.web.reading import Answer, Reads
from seekpoint.web.site import Page, PageRequest, Site
from seekpoint.worker.replay.group_dead_letters import portable, portable_value

T = TypeVar("T")

PARTITIONS, DEAD_LETTERS, ACTIONS, LOST = 100, 100, 200, 100  # on a page
BROKERS_AWAY = 30.0  # seconds for which brokers that did not answer are not asked again
DIAGNOSED = 30.0  # seconds for which a diagnosis is shown
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
HIDDEN = ("key", "value", "edited_value", "headers", "error", "traceback", "replay_error", "replay_traceback")
TEXTS = frozenset({"message", "attempt_error", "error", "trouble"})  # keys of errors, which may quote a record


class Pages:
    """One method per page; each returns the values of its template, and the same data for JSON."""

    def __init__(self, site: Site, reads: Reads) -> None:
        self._site, self._reads = site, reads
        self._reads_log = site.shows_payloads and bool(reads.admin.kafka)
        self._brokers_away = 0.0, ""  # until when the brokers are not asked, and why

    async def groups(self, request: PageRequest) -> Page:
        """All groups, one per line, the worst first."""
        request.only()

        def read(admin: Admin) -> tuple[list[GroupSummary], list[str], list[ReloadStatus]]:
            groups, doubts = self._ask_brokers(admin, lambda of: of.groups())
            return groups, doubts, admin.reloads(is_open=True)

        answer = await self._reads.read("groups", read)
        groups, doubts, runs = answer.value
        lines = [(present.state_of_group(group), group) for group in groups]
        lines.sort(key=lambda line: (line[0].rank, -(line[1].lag or 0), line[1].name))
        data = [{"state": state.word, "group": group} for state, group in lines]
        return _page(answer, "groups", "Groups", data, lines=lines, runs=runs, doubts=doubts)

    async def group(self, request: PageRequest) -> Page:
        """A group: its partitions (a hundred per page), workers, guarantee and lost ranges."""
        request.only("group", "page")
        name, number = request["group"], max(1, request.integer("page", 1))

        def read(admin: Admin) -> dict[str, Any]:
            group, doubts = self._status(admin, name)
            lines = [(present.state_of_partition(partition, group), partition) for partition in group.partitions]
            lines.sort(key=lambda line: (line[0].rank, -(line[1].lag or 0), line[1].position.partition))
            pages = max(1, -(-len(lines) // PARTITIONS))
            shown = min(number, pages)
            of_page = lines[(shown - 1) * PARTITIONS : shown * PARTITIONS]
            drawn = admin.samples(name, [partition.position.partition for _, partition in of_page], HOUR)
            return {
                "group": group,
                "doubts": doubts,
                "lines": [
                    (state, partition, present.sparkline(drawn[partition.position.partition], state.level))
                    for state, partition in of_page
                ],
                "samples": [{"partition": partition, "samples": series} for partition, series in drawn.items()],
                "number": shown,
                "pages": pages,
                "boxes": present.stop_boxes(name, group.partitions),
                "last": next(iter(admin.history(name, limit=1)), None),
                "explanation": admin.explain(name),
                "lost": admin.lost([name], limit=LOST),
            }

        answer = await self._reads.read(("group", name, number), read)
        facts = answer.value
        data = {key: facts[key] for key in ("group", "doubts", "explanation", "lost", "samples")}
        shown = {"totals": _totals(facts["group"]), "reads_log": self._reads_log, **facts}
        return _page(answer, "group", name, self._public(data), **shown)

    async def partition(self, request: PageRequest) -> Page:
        """A partition: its positions over the last day, its row in the ledger, its history and losses."""
        request.only("group", "topic", "partition")
        name, partition = request["group"], Partition(request["topic"], request.integer("partition"))

        def read(admin: Admin) -> dict[str, Any]:
            group, doubts = self._status(admin, name)
            line = next((status for status in group.partitions if status.position.partition == partition), None)
            drawn = admin.samples(name, [partition], DAY)[partition]
            return {
                "group": group,
                "line": line,
                "state": None if line is None else present.state_of_partition(line, group),
                "doubts": doubts,
                "samples": drawn,
                "history": admin.history(name, [partition.topic], partition=partition.number),
                "lost": admin.lost([name], partition=partition, limit=LOST),
            }

        answer = await self._reads.read(("partition", name, partition), read)
        facts = answer.value
        chart = present.positions_chart(facts["samples"])
        data = {key: facts[key] for key in ("line", "doubts", "samples", "history", "lost")}
        shown = {"at": partition, "chart": chart, "reads_log": self._reads_log, **facts}
        return _page(answer, "partition", f"{partition} of {name}", self._public(data), **shown)

    async def record(self, request: PageRequest) -> Page:
        """The record that stopped a partition or is being retried, as in the log, with its error."""
        request.only("group", "topic", "partition")
        name, partition = request["group"], Partition(request["topic"], request.integer("partition"))
        if not self._site.shows_payloads:
            raise HTTPException(HTTPStatus.FORBIDDEN, "records are not shown here")

        answer = await self._reads.read(
            ("record", name, partition), lambda admin: admin.record_in_front(name, partition)
        )
        in_front, record = answer.value, answer.value.record
        parts = ("topic", "partition", "offset", "timestamp_ms", "key", "value")
        data = {part: portable_value(getattr(record, part)) for part in parts}
        data |= {"error": in_front.error, "attempts": in_front.attempts}
        shown = {"group": name, "one": record, "found": in_front, "produced": utc(record.timestamp_ms)}
        return _page(answer, "record", f"{partition} offset {record.offset}", data, is_live=False, **shown)

    async def dead_letters(self, request: PageRequest) -> Page:
        """The open dead letters of a group that meet a filter: their number by cause, and a page of them."""
        request.only("group", "after", *FILTER)
        name, where = request["group"], where_of(request, shows_payloads=self._site.shows_payloads)
        after = request.integer("after") if "after" in request.parameters else None

        def read(admin: Admin) -> tuple[Sequence[DeadLetterCause], list[DeadLetter]]:
            of = admin.dead_letters(name)
            last = None if after is None else of.get(after)
            return of.by_cause(where), list(of.list(where, limit=DEAD_LETTERS + 1, after=last))

        answer = await self._reads.read(("dead letters", name, where, after), read)
        causes, dead_letters = answer.value[0], answer.value[1][:DEAD_LETTERS]
        following = dead_letters[-1].id if len(answer.value[1]) > DEAD_LETTERS else None
        total = sum(cause.count for cause in causes)
        data = {
            "total": total,
            "causes": self._public(causes),
            "dead_letters": [self._portable(dead_letter, name) for dead_letter in dead_letters],
        }
        narrowed = {key: value for key in FILTER if (value := request.get(key))}
        shown: dict[str, Any] = {
            "group": name,
            "causes": causes,
            "found": dead_letters,
            "total": total,
            "narrowed": narrowed,
        }
        shown |= {"after": after, "following": following}
        return _page(answer, "dead_letters", f"Dead letters of {name}", data, **shown)

    async def dead_letter(self, request: PageRequest) -> Page:
        """One dead letter, with the parts of its record that may be shown."""
        request.only("group", "id")
        name, number = request["group"], request.integer("id")

        def read(admin: Admin) -> tuple[DeadLetter, DeadLetter | None]:
            of = admin.dead_letters(name)
            dead_letter = of.get(number)
            is_blocked = dead_letter.cause is Cause.BLOCKED and dead_letter.is_open
            return dead_letter, of.first_of_key(dead_letter) if is_blocked else None

        answer = await self._reads.read(("dead letter", name, number), read)
        dead_letter, first = answer.value
        shown: dict[str, Any] = {"group": name, "one": dead_letter, "first": None if first is None else first.id}
        data = self._portable(dead_letter, name) | {"first_of_key": shown["first"]}
        return _page(answer, "dead_letter", f"Dead letter {number}", data, is_live=False, **shown)

    async def replay(self, request: PageRequest) -> Page:
        """A request for a replay; refreshed until it has ended."""
        request.only("group", "id")
        name, number = request["group"], request.integer("id")
        answer = await self._reads.read(("replay", name, number), lambda admin: admin.replay_request(name, number))
        replay = answer.value
        shown: dict[str, Any] = {"group": name, "one": replay}
        return _page(answer, "replay", f"Replay {number}", self._public(replay), is_live=not replay.has_ended, **shown)

    async def reloads(self, request: PageRequest) -> Page:
        """Runs of reloads and batches, the newest first."""
        request.only()
        answer = await self._reads.read("reloads", lambda admin: admin.reloads())
        return _page(answer, "reloads", "Reloads", self._public(answer.value), runs=answer.value)

    async def history(self, request: PageRequest) -> Page:
        """The actions on a group, or on all groups; a page of them, by action and actor."""
        request.only("group", "action", "actor", "before")
        name, narrowed = request.get("group"), {key: request.get(key) or None for key in ("action", "actor")}
        before = request.integer("before") if "before" in request.parameters else None
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

    async def health(self, request: PageRequest) -> Page:
        """The findings of ``doctor``."""
        request.only()
        answer = await self._reads.read(
            "health", lambda admin: admin.doctor(Role.READER), keep=DIAGNOSED, any_revision=True
        )
        rank = [Level.FAILURE, Level.WARNING, Level.OK].index
        findings = sorted(answer.value.findings, key=lambda finding: rank(finding.level))
        return _page(answer, "health", "Health", answer.value, is_live=False, diagnosis=answer.value, findings=findings)

    def _status(self, admin: Admin, name: str) -> tuple[GroupStatus, list[str]]:
        (group,), doubts = self._ask_brokers(admin, lambda of: of.status([name]))
        return group, doubts

    def _ask_brokers(
        self, admin: Admin, question: Callable[[Admin], tuple[list[T], list[str]]]
    ) -> tuple[list[T], list[str]]:
        """Ask with brokers; for a while after they did not answer, without them, because each page would wait."""
        until, away = self._brokers_away
        if monotonic() < until:
            groups, doubts = question(Admin(admin.engine, schema=admin.schema, limits=admin.limits))
            return groups, [*doubts, away]
        groups, doubts = question(admin)
        for doubt in doubts:
            if isinstance(doubt, BrokersAway):
                self._brokers_away = monotonic() + BROKERS_AWAY, doubt
        return groups, doubts

    def _public(self, data: Any) -> Any:
        """Data for JSON, without errors' texts if these may not be shown."""
        plain = msgspec.to_builtins(data, enc_hook=str)
        return plain if self._site.shows_payloads else _without_texts(plain)

    def _portable(self, dead_letter: DeadLetter, group: str) -> dict[str, Any]:
        fields = portable(dead_letter, group)
        return (
            fields
            if self._site.shows_payloads
            else {name: value for name, value in fields.items() if name not in HIDDEN}
        )


def _without_texts(data: Any) -> Any:
    match data:
        case dict():
            return {name: _without_texts(value) for name, value in data.items() if name not in TEXTS}
        case list() | tuple():
            return [_without_texts(value) for value in data]
    return data


def _totals(group: GroupStatus) -> SimpleNamespace:
    """Totals of the group's partitions; None if any partition's number is not known."""

    def total(of: Callable[[PartitionStatus], float | None], join: Callable[[Sequence[float]], float]) -> float | None:
        values = [of(partition) for partition in group.partitions]
        numbers = [value for value in values if value is not None]
        return join(numbers) if numbers and len(numbers) == len(values) else None

    return SimpleNamespace(
        lag=total(lambda partition: partition.lag, sum),
        lag_seconds=total(lambda partition: partition.lag_seconds, max),
        headroom_seconds=total(lambda partition: partition.headroom_seconds, min),
        headroom=total(lambda partition: partition.headroom, min),
        dead_letters=sum(partition.dead_letters for partition in group.partitions),
        blocked=sum(partition.blocked for partition in group.partitions),
        waiting=sum(partition.waiting for partition in group.partitions),
        oldest_waiting_seconds=max(
            (partition.oldest_waiting_seconds or 0 for partition in group.partitions), default=0
        ),
        stopped=sum(partition.position.stop is not None for partition in group.partitions),
        age=max((partition.age for partition in group.partitions if partition.age is not None), default=None),
    )


def _page(answer: Answer[Any], template: str, title: str, data: Any, *, is_live: bool = True, **shown: Any) -> Page:
    return Page(template, title, data, shown, answer.age, answer.error, is_live)
