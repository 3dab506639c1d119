"""A reset as a plan of absolute offsets and directions, for a file; and its result."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

import msgspec

from seekpoint.errors import ConfigError
from seekpoint.records import Partition

FORMAT = 1  # of the file
Direction = Literal["forward", "backward", "none"]


@dataclass(frozen=True, slots=True)
class Reset:
    """The reset of one partition, from its position when the plan was made to the absolute offset ``target``.

    ``wanted`` is before ``target`` if the log begins later: ``[wanted, target)`` can no longer be read. ``direction``
    is "none" if the partition is at its target; with ``--to-current`` it is "backward", because positions advance until
    the plan is applied. ``last_reset`` is the id of the partition's last reset; ``log`` has the start and end of its
    log as the brokers reported them, None if they were not asked. ``is_exact``: the reset is refused unless the
    position is still ``position``.
    """

    topic: str
    partition: int
    topic_id: UUID
    position: int
    target: int
    wanted: int
    last_reset: int | None
    log: tuple[int, int] | None
    direction: Direction
    is_exact: bool = False

    @property
    def topic_partition(self) -> Partition:
        """The partition that is reset."""
        return Partition(self.topic, self.partition)

    @property
    def gone(self) -> int:
        """How many offsets, from ``wanted`` on, retention has removed from the log."""
        return max(0, self.target - self.wanted)

    @property
    def is_past_end(self) -> bool:
        """Whether the position was past the end of the log: the log was truncated."""
        return self.log is not None and self.position > self.log[1]


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """A reset of a group's positions as absolute offsets, for :meth:`Admin.apply`; ``consequences`` in words.

    ``counts_twice`` are the tables whose sums would count records twice: :meth:`Admin.apply` refuses the plan, and
    :meth:`seekpoint.jobs.Reload.reset` carries it out, with the tables rebuilt.

    The plan is valid for its cluster and topics, until one of its partitions is reset or the group is forgotten;
    ``last_forget`` is the id of the last forget. Positions may advance meanwhile, but not past a forward target; a
    backward target must not be past the position.
    """

    group: str
    cluster_id: str | None
    last_forget: int | None
    target: str
    made_at: datetime
    resets: tuple[Reset, ...]
    consequences: tuple[str, ...]
    format: int = FORMAT
    counts_twice: tuple[str, ...] = ()

    @property
    def is_done(self) -> bool:
        """Whether there is nothing to do."""
        return not self.moves

    @property
    def moves(self) -> tuple[Reset, ...]:
        """The partitions that are not at their target."""
        return tuple(reset for reset in self.resets if reset.direction != "none")

    @property
    def needs_accept_loss(self) -> bool:
        """Whether retention has removed a wanted offset: :meth:`Admin.apply` needs ``accept_loss=True``."""
        return any(reset.gone for reset in self.moves)

    def to_json(self) -> bytes:
        """The plan for a file, as JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2)

    @classmethod
    def from_json(cls, text: bytes) -> ResetPlan:
        """Read a plan that :meth:`to_json` has written. Raises ConfigError for another text or format."""
        try:
            plan = msgspec.json.decode(text, type=cls)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise ConfigError(f"this is not a plan of `seekpoint offsets reset --out`: {error}") from None
        if plan.format != FORMAT:
            raise ConfigError(f"the plan has format {plan.format}, but this version reads {FORMAT}: make another plan")
        return plan


@dataclass(frozen=True, slots=True)
class ResetDone:
    """A partition that was reset, from its position at that moment to the target."""

    partition: Partition
    topic_id: UUID
    from_offset: int
    to_offset: int


@dataclass(frozen=True, slots=True)
class ResetResult:
    """The result of a plan; ``refused`` has a sentence for each partition that was not reset although others were.

    ``skipped`` has one for each partition that was at its target when the plan was made, but no longer is.
    """

    done: tuple[ResetDone, ...]
    refused: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
