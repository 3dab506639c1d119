"""Formats values for pages: numbers, times and states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

from markupsafe import Markup

from seekpoint.admin import (
    AcceptPlan,
    GroupStatus,
    GroupSummary,
    PartitionStatus,
    PausePlan,
    ResetPlan,
    Sample,
)
from seekpoint.durations import format_ago, format_duration
from seekpoint.ledger.dead_letters import name_bytes
from seekpoint.ledger.positions import Stop
from seekpoint.records import readable

LONGEST = 65_536  # most bytes shown of a key, a value or a header
SPARKLINE, CHART = (120, 24), (720, 160)  # width and height, in pixels
NOT_KNOWN = "\N{EN DASH}"


@dataclass(frozen=True, slots=True)
class State:
    """A state: a word, the sign next to it, and the ``rank`` that sorts the worst first."""

    word: str
    sign: str
    level: str  # ok, note, warning or failure: the class of the style sheet
    rank: int


@dataclass(frozen=True, slots=True)
class Choice:
    """A decision about a stop: a button that leads to the plan with these parameters."""

    label: str
    parameters: Mapping[str, str | int]


STOPPED = State("stopped", "■", "failure", 0)
IDLE = State("no worker", "▲", "failure", 1)
UNKNOWN = State("lag not known", "?", "warning", 2)
DEAD_LETTERS = State("dead letters", "▲", "warning", 3)
PAUSED = State("paused", "‖", "note", 4)
RETRYING = State("retrying", "↻", "warning", 4)
RUNNING = State("running", "●", "ok", 5)
CAUGHT_UP = State("caught up", "●", "ok", 6)


def state_of_group(group: GroupSummary) -> State:
    """The state to show; a pause precedes the worse states that it causes."""
    if group.stopped:
        return STOPPED
    if group.pause is not None:
        return PAUSED
    return _running(group.lag, group.dead_letters, has_worker=group.owned > 0 and group.workers > 0)


def state_of_partition(partition: PartitionStatus, group: GroupStatus) -> State:
    """The state to show, as for the group, or "retrying" if a record is being retried."""
    if partition.position.stop is not None:
        return STOPPED
    if group.pause is not None:
        return PAUSED
    is_tried = partition.position.attempt_offset is not None or partition.waiting > 0
    has_worker = any(worker.is_live and worker.owner == partition.position.owner for worker in group.workers)
    return _running(partition.lag, partition.dead_letters, has_worker=has_worker, is_tried=is_tried)


def _running(lag: int | None, dead_letters: int, *, has_worker: bool, is_tried: bool = False) -> State:
    if not has_worker:
        return IDLE
    if lag is None:
        return UNKNOWN
    if dead_letters:
        return DEAD_LETTERS
    if is_tried:
        return RETRYING
    return RUNNING if lag else CAUGHT_UP


def choices_of(group: str, line: PartitionStatus, stop: Stop) -> list[Choice]:
    """The plans that resolve a stop of this kind; none if it ends without one, or no plan can resolve it."""
    partition = line.position.partition
    where: dict[str, str | int] = {"group": group, "topic": partition.topic, "partition": partition.number}
    match stop.kind:
        case "PoisonStop":
            return [Choice("Skip the record", {"action": "reset", "target": "after-failed", **where})]
        case "OffsetLost" if stop.is_by_retention:  # one way to continue
            return [Choice(_give_up([line], str(partition)), {"action": "accept-lost", **where})]
        case "OffsetLost":
            return [
                Choice("Accept the loss", {"action": "accept-lost", **where}),
                Choice("Read the log from its start", {"action": "reset", "target": "earliest", **where}),
            ]
        case "TopicRecreated":
            topic: dict[str, str | int] = {"action": "accept-topic", "group": group, "topic": partition.topic}
            return [Choice("Read the new topic from its beginning", topic)]
    return []


def _give_up(lines: Sequence[PartitionStatus], where: str) -> str:
    """The text of the button that gives up what retention deleted, with the number of offsets if it is known."""
    lost = [-line.headroom for line in lines if line.headroom is not None and line.headroom < 0]
    return f"Give up {f'{sum(lost):,}' if len(lost) == len(lines) else 'the deleted'} offsets of {where}"


@dataclass(frozen=True, slots=True)
class StopBox:
    """Stops that one decision resolves: all of a topic with the same cause, or a single one."""

    lines: Sequence[PartitionStatus]
    stop: Stop
    choices: Sequence[Choice]

    @property
    def title(self) -> str:
        """The stopped partition, or the topic of several."""
        first = self.lines[0].position.partition
        if len(self.lines) == 1:
            return f"{first} at offset {self.stop.offset:,}"
        return f"{len(self.lines)} partitions of {first.topic}"


def stop_boxes(group: str, partitions: Sequence[PartitionStatus]) -> list[StopBox]:
    """The stops of these partitions; stops by retention or by a recreated topic share one box per topic."""
    together: dict[tuple[object, ...], list[PartitionStatus]] = {}
    for line in partitions:
        if (stop := line.position.stop) is not None:
            partition = line.position.partition
            is_shared = stop.kind == "TopicRecreated" or stop.is_by_retention
            together.setdefault((stop.kind, partition.topic, None if is_shared else partition.number), []).append(line)
    return [_stop_box(group, lines) for lines in together.values()]


def _stop_box(group: str, lines: Sequence[PartitionStatus]) -> StopBox:
    first, stop = lines[0], lines[0].position.stop
    assert stop is not None
    choices = choices_of(group, first, stop)
    if len(lines) > 1 and stop.kind == "OffsetLost":
        topic = first.position.partition.topic
        accept: dict[str, str | int] = {"action": "accept-lost", "group": group, "topic": topic}
        choices = [Choice(_give_up(lines, f"{len(lines)} partitions of {topic}"), accept)]
    return StopBox(lines, stop, choices)


def button_of(plan: object) -> tuple[str, bool]:
    """The text of a plan's button, and whether the plan gives up records."""
    match plan:
        case PausePlan():
            return f"{'Pause' if plan.paused else 'Resume'} {plan.group}", False
        case ResetPlan():
            count = len(plan.moves)
            where = str(plan.moves[0].topic_partition) if count == 1 else f"{count:,} partitions"
            return f"Reset {where}", any(reset.gone or reset.direction == "forward" for reset in plan.moves)
        case AcceptPlan():
            first = plan.acceptances[0]
            where = str(first.partition) if len(plan.acceptances) == 1 else f"{len(plan.acceptances):,} partitions"
            if first.new_topic_id is not None:
                return f"Read the new topic {first.partition.topic}", True
            given_up = sum(abs(acceptance.to_offset - acceptance.from_offset) for acceptance in plan.acceptances)
            return f"Give up {given_up:,} offsets of {where}", True
    return "", False


def headroom(line: PartitionStatus | GroupSummary | SimpleNamespace) -> str:
    """Headroom in time; in records if time is not known, because retention has deleted nothing lately."""
    if line.headroom_seconds is None and line.headroom is not None:
        return f"{line.headroom:,} records"
    return age(line.headroom_seconds)


def dead_letters(line: PartitionStatus | GroupSummary | SimpleNamespace) -> str:
    """The numbers of open dead letters, of those blocked behind their key, and of waiting records, and how long these
    wait.
    """
    parts = [f"{line.blocked:,} blocked"] if line.blocked else []
    if line.waiting:
        parts.append(f"{line.waiting:,} waiting, the oldest for {age(line.oldest_waiting_seconds)}")
    return f"{line.dead_letters:,}" + (f" ({', '.join(parts)})" if parts else "")


def number(value: float | None) -> str:
    """A number with a comma between thousands; a dash if it is not known."""
    return NOT_KNOWN if value is None else f"{value:,.0f}"


def age(value: float | timedelta | None) -> str:
    """A duration in seconds as text; a dash if it is not known."""
    return NOT_KNOWN if value is None else format_duration(value)


def ago(value: datetime | None) -> str:
    """How long ago a moment was; a dash if there is none."""
    return NOT_KNOWN if value is None else format_ago(value)


def moment(value: datetime | None) -> str:
    """A time in UTC, to the second; a dash if there is none."""
    return NOT_KNOWN if value is None else f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def octets(value: bytes | None) -> str:
    """Bytes as text if they are UTF-8 without control characters, otherwise in hexadecimal; at most ``LONGEST``."""
    if value is None:
        return "null"
    part = value[:LONGEST]
    text = readable(part, is_cut=len(value) > LONGEST)
    return part.hex(" ") if text is None else text


def cut(value: bytes | None) -> str:
    """A sentence about the bytes that :func:`octets` omits; empty if it shows all."""
    is_long = value is not None and len(value) > LONGEST
    return f"The first {LONGEST:,} of {len(value or b''):,} bytes are shown." if is_long else ""


def header_name(name: str) -> str:
    """A header's name; in hexadecimal, like a value, if its bytes are not UTF-8."""
    return octets(name_bytes(name))


def sparkline(samples: Sequence[Sample], level: str = "") -> Markup:
    """The lag over time, as a line from 0 to its maximum, which is shown next to it; a dash without two samples.

    ``level`` is how bad the state is, and decides the line's colour.
    """
    if len(samples) < 2:
        return Markup('<span class="faint">{}</span>').format(NOT_KNOWN)
    times, lags, (width, height) = [sample.at for sample in samples], [sample.lag for sample in samples], SPARKLINE
    label = f"lag, {number(lags[0])} to {number(lags[-1])}, at most {number(max(lags))}"
    return Markup(
        '<span class="spark {level}"><svg viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img" '
        'aria-label="{label}"><polyline points="{points}"/></svg><span class="scale">{high}<br>0</span></span>'
    ).format(
        level=level,
        high=number(max(lags)),
        w=width,
        h=height,
        label=label,
        points=_points(times, lags, max(lags), width, height),
    )


def positions_chart(samples: Sequence[Sample]) -> Markup:
    """Position and end of the log over time, and the lag between them."""
    if len(samples) < 2:
        return Markup('<p class="faint">Fewer than two samples: nothing to draw yet.</p>')
    times, lags = [sample.at for sample in samples], [sample.lag for sample in samples]
    low = min(sample.next_offset for sample in samples)
    high = max(max(sample.log_end, sample.next_offset) for sample in samples)
    drawn = {
        "end": [sample.log_end - low for sample in samples],
        "position": [sample.next_offset - low for sample in samples],
    }
    offsets = _chart("Position and end of the log", times, drawn, (low, high))
    return offsets + _chart("Lag", times, {"lag": lags}, (0, max(lags)))


def _chart(what: str, times: Sequence[datetime], lines: Mapping[str, Sequence[int]], bounds: tuple[int, int]) -> Markup:
    (width, height), (low, high) = CHART, map(number, bounds)
    drawn = Markup("").join(
        Markup('<polyline class="{}" points="{}"/>').format(
            name, _points(times, values, bounds[1] - bounds[0], width, height)
        )
        for name, values in lines.items()
    )
    return Markup(
        '<div class="chart"><p><span>{what}</span><span>{low} to {high}</span></p><svg viewBox="0 0 {w} {h}" '
        'preserveAspectRatio="none" role="img" aria-label="{what}, from {low} to {high}">{drawn}</svg>'
        "<p><span>{begin}</span><span>{end}</span></p></div>"
    ).format(
        what=what, w=width, h=height, low=low, high=high, drawn=drawn, begin=moment(times[0]), end=moment(times[-1])
    )


def _points(times: Sequence[datetime], values: Sequence[int], high: int, width: int, height: int) -> str:
    begin, span = times[0], max((times[-1] - times[0]).total_seconds(), 1.0)
    return " ".join(
        f"{(time - begin).total_seconds() / span * (width - 2) + 1:.1f},"
        f"{height - 2 - value / max(high, 1) * (height - 4):.1f}"
        for time, value in zip(times, values, strict=True)
    )
