"""What an operator can do, as messages quote it: the command first, and the method of ``Ledger`` where it helps."""

from __future__ import annotations

from shlex import quote
from uuid import UUID

from seekpoint.records import Partition

_DO_IT = "--apply --reason WHY"


def resume(group: str) -> str:
    """Resume a paused group."""
    return f"seekpoint groups resume {quote(group)} {_DO_IT}"


def undo_forget(group: str) -> str:
    """Put the positions of a forgotten group back."""
    return f"seekpoint groups forget {quote(group)} --undo {_DO_IT}"


def reset_to_offset(group: str, at: Partition) -> str:
    """Reset one partition to an offset of one's choice."""
    return f"{reset_to(group, at, 'OFFSET')} (or {_method(at, '<offset>')}, log=None, reason=...))"


def reset_to(group: str, at: Partition, offset: int | str) -> str:
    """Reset one partition to this offset."""
    return f"seekpoint offsets reset {quote(group)} --topic {quote(_place(at))} --to-offset {offset} {_DO_IT}"


def skip_record(group: str, at: Partition, offset: int) -> str:
    """Continue after the record at this offset, in front of which the partition waits."""
    command = f"seekpoint offsets reset {quote(group)} --topic {quote(_place(at))} --after-failed {_DO_IT}"
    return f"{command} (or {_method(at, offset + 1)}, log=None, lost='poison', reason=...))"


def accept_lost(group: str, at: Partition, to: int, log: tuple[int, int], lost: str | None = None) -> str:
    """Give up what the log does not have any more, and continue at ``to``."""
    why = "" if lost is None else f"lost={lost!r}, "
    command = f"seekpoint lost accept {quote(group)} {quote(_place(at))} {_DO_IT}"
    return f"{command} (or {_method(at, to)}, log={log}, {why}reason=...))"


def accept_truncated(group: str, at: Partition) -> str:
    """Give up what a truncated log had, from an offset that the operator names."""
    return f"seekpoint lost accept {quote(group)} {quote(_place(at))} --to-offset OFFSET {_DO_IT}"


def restart_topic(group: str, at: Partition, topic_id: UUID) -> str:
    """Read a topic that was created again from its beginning; the method does so for one partition."""
    command = accept_topic(group, at.topic, "--from-beginning")
    return f"{command} (or {_method(at, 0)}, {topic_id=}, log=None, reason=...))"


def accept_topic(group: str, topic: str, where: str) -> str:
    """Read a topic that was created again, from ``where`` (options)."""
    return f"seekpoint topics accept {quote(group)} {quote(topic)} {where} {_DO_IT}"


def _place(at: Partition) -> str:
    return f"{at.topic}:{at.number}"


def _method(at: Partition, to: int | str) -> str:
    return f"Ledger.reset_offset({at.topic!r}, {at.number}, to={to}"
