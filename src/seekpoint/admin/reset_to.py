"""``ResetTo``: the target of a reset, as an operator names it; a plan turns it into offsets."""

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
    """The target of a reset; build one with a class method. ``str()`` is the command's option."""

    kind: str
    number: int = 0
    moment: datetime | None = None
    ago: timedelta | None = None
    group: str = ""
    targets: tuple[tuple[Partition, int], ...] = ()

    @classmethod
    def offset(cls, offset: int) -> ResetTo:
        """At this offset of each partition. Raises ConfigError for a value that is not an offset."""
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
        """At the position at the time of the plan; records that are applied between plan and reset are read again."""
        return cls("current")

    @classmethod
    def time(cls, moment: datetime) -> ResetTo:
        """At the first record not older than ``moment`` (an aware time), or at the log's end if all are older."""
        return cls("datetime", moment=_aware("--to-datetime", moment))

    @classmethod
    def duration(cls, ago: timedelta) -> ResetTo:
        """At the first record that is not older than ``ago``; at the end of the log if all are older."""
        return cls("datetime", moment=_before_now(ago), ago=ago)

    @classmethod
    def shift(cls, by: int) -> ResetTo:
        """``by`` offsets after the position, or before it if negative; not below 0."""
        return cls("shift", by)

    @classmethod
    def processed(cls, moment: datetime) -> ResetTo:
        """At the group's position in the last sample before ``moment`` (an aware time)."""
        return cls("processed", moment=_aware("--to-processed", moment))

    @classmethod
    def of_group(cls, group: str) -> ResetTo:
        """At the positions of another group of the same ledger."""
        return cls("group", group=group)

    @classmethod
    def kafka(cls, group: str) -> ResetTo:
        """At the offsets that this group has committed to Kafka."""
        return cls("kafka", group=group)

    @classmethod
    def offsets(cls, targets: Mapping[Partition, int]) -> ResetTo:
        """At the given offset of each partition; partitions that are not named keep their positions."""
        if invalid := [f"{partition}: {offset!r}" for partition, offset in targets.items() if not is_offset(offset)]:
            raise ConfigError(f"offsets are whole numbers, 0 or greater; got {', '.join(invalid)}")
        return cls("offsets", targets=tuple(sorted(targets.items())))

    @classmethod
    def after_failed(cls) -> ResetTo:
        """After the failed record at which a partition waits; that record is not applied."""
        return cls("after-failed")

    def __str__(self) -> str:
        time = "" if self.moment is None else self.moment.isoformat()
        if self.ago is not None:
            return f"--by-duration {_in_one_unit(self.ago)} ({time})"
        arguments = {
            "offset": self.number,
            "datetime": time,
            "processed": time,
            "group": self.group,
            "kafka": self.group,
        }
        others = {"shift": f"--shift-by {self.number}", "offsets": "--from-file", "after-failed": "--after-failed"}
        return others.get(self.kind, f"--to-{self.kind} {arguments.get(self.kind, '')}".rstrip())


def _in_one_unit(ago: timedelta) -> str:
    """The duration as ``--by-duration`` takes it: 90s, 5m, 12h, 30d."""
    seconds = round(ago.total_seconds())
    unit, name = next((unit, name) for unit, name in _UNITS if seconds % unit == 0)
    return f"{seconds // unit}{name}"


def _aware(option: str, time: datetime) -> datetime:
    if time.tzinfo is None:
        raise ConfigError(f"{option} {time.isoformat()}: say in which zone, e.g. {time.isoformat()}Z")
    return time


def _before_now(ago: timedelta) -> datetime:
    try:
        return datetime.now(UTC) - ago
    except OverflowError:
        raise ConfigError(f"--by-duration {ago}: that is before the year 1") from None
