"""``ResetTo``: where a reset puts positions, as an operator says it; a plan makes offsets of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from seekpoint.errors import ConfigError
from seekpoint.ledger.admin_actions import is_offset
from seekpoint.records import Partition

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


@dataclass(frozen=True, slots=True)
class ResetTo:
    """Where a reset puts positions; build one with a class method. ``str()`` is the command's option."""

    kind: str
    number: int = 0
    at: datetime | None = None
    ago: timedelta | None = None
    group: str = ""
    given: tuple[tuple[Partition, int], ...] = ()

    @classmethod
    def offset(cls, offset: int) -> ResetTo:
        """At this offset of each partition. Raises ConfigError for what is no offset."""
        if not is_offset(offset):
            raise ConfigError(f"--to-offset takes an offset: a whole number, 0 or greater; not {offset!r}")
        return cls("offset", offset)

    @classmethod
    def earliest(cls) -> ResetTo:
        """At the first offset that is still in the log."""
        return cls("earliest")

    @classmethod
    def latest(cls) -> ResetTo:
        """After the last record that can be read when the plan is made."""
        return cls("latest")

    @classmethod
    def current(cls) -> ResetTo:
        """At the position when the plan is made: back to there, where it is applied later."""
        return cls("current")

    @classmethod
    def time(cls, at: datetime) -> ResetTo:
        """At the first record with a timestamp at or after ``at`` (an aware time), else at the end."""
        return cls("datetime", at=_aware("--to-datetime", at))

    @classmethod
    def duration(cls, ago: timedelta) -> ResetTo:
        """At the first record that is not older than this, else at the end."""
        return cls("datetime", at=_before_now(ago), ago=ago)

    @classmethod
    def shift(cls, by: int) -> ResetTo:
        """So many offsets after the position, or before it where ``by`` is negative; at 0 at the least."""
        return cls("shift", by)

    @classmethod
    def processed(cls, at: datetime) -> ResetTo:
        """Where the group was at ``at`` (an aware time), by the last sample before it."""
        return cls("processed", at=_aware("--to-processed", at))

    @classmethod
    def of_group(cls, group: str) -> ResetTo:
        """At the positions of another group of the same ledger."""
        return cls("group", group=group)

    @classmethod
    def kafka(cls, group: str) -> ResetTo:
        """At the offsets that are committed to Kafka under this group's name."""
        return cls("kafka", group=group)

    @classmethod
    def offsets(cls, given: Mapping[Partition, int]) -> ResetTo:
        """At the given offset of each partition; partitions that are not named keep their positions."""
        if bad := [f"{at}: {offset!r}" for at, offset in given.items() if not is_offset(offset)]:
            raise ConfigError(f"offsets are whole numbers, 0 or greater; got {', '.join(bad)}")
        return cls("offsets", given=tuple(sorted(given.items())))

    @classmethod
    def after_failed(cls) -> ResetTo:
        """After the record that a partition waits in front of because it failed: that record is not applied."""
        return cls("after-failed")

    def __str__(self) -> str:
        time = "" if self.at is None else self.at.isoformat()
        if self.ago is not None:
            return f"--by-duration {_in_one_unit(self.ago)} ({time})"
        given = {"offset": self.number, "datetime": time, "processed": time, "group": self.group, "kafka": self.group}
        others = {"shift": f"--shift-by {self.number}", "offsets": "--from-file", "after-failed": "--after-failed"}
        return others.get(self.kind, f"--to-{self.kind} {given.get(self.kind, '')}".rstrip())


def _in_one_unit(ago: timedelta) -> str:
    """As ``--by-duration`` takes it: 90s, 5m, 12h, 30d."""
    seconds = round(ago.total_seconds())
    unit, name = next((unit, name) for unit, name in _UNITS if seconds % unit == 0)
    return f"{seconds // unit}{name}"


def _aware(option: str, at: datetime) -> datetime:
    if at.tzinfo is None:
        raise ConfigError(f"{option} {at.isoformat()}: say in which zone, e.g. {at.isoformat()}Z")
    return at


def _before_now(ago: timedelta) -> datetime:
    try:
        return datetime.now(UTC) - ago
    except OverflowError:
        raise ConfigError(f"--by-duration {ago}: that is before the year 1") from None
