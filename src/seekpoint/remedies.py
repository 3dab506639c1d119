"""Commands that messages quote for operators."""

from __future__ import annotations

import re
from shlex import quote

from seekpoint.records import Partition

_DO_IT = "--apply --reason WHY"
_TABLE = "seekpoint db table MODULE:NAME"
_PRINTS = re.compile(rf" \(`{_TABLE}[^`]*` prints the statement\)|; `{_TABLE}[^`]*` prints the statement, too")


def pause(group: str) -> str:
    """Pause a group."""
    return f"seekpoint groups pause {quote(group)} {_DO_IT}"


def resume(group: str) -> str:
    """Resume a paused group."""
    return f"seekpoint groups resume {quote(group)} {_DO_IT}"


def undo_forget(group: str) -> str:
    """Restore a forgotten group's positions."""
    return f"seekpoint groups forget {quote(group)} --undo {_DO_IT}"


def reset_to_offset(group: str, partition: Partition) -> str:
    """Reset one partition to an offset that the operator chooses."""
    return reset_to(group, partition, "OFFSET")


def reset_to(group: str, partition: Partition, offset: int | str) -> str:
    """Reset one partition to this offset."""
    return f"seekpoint offsets reset {quote(group)} --topic {quote(_place(partition))} --to-offset {offset} {_DO_IT}"


def skip_record(group: str, partition: Partition) -> str:
    """Skip the record at which the partition has stopped."""
    return f"seekpoint offsets reset {quote(group)} --topic {quote(_place(partition))} --after-failed {_DO_IT}"


def accept_lost(group: str, partition: Partition) -> str:
    """Accept that the log no longer has some records, and continue after them."""
    return f"seekpoint lost accept {quote(group)} {quote(_place(partition))} {_DO_IT}"


def accept_truncated(group: str, partition: Partition) -> str:
    """Accept the loss of truncated records, and continue at an offset that the operator names."""
    return f"seekpoint lost accept {quote(group)} {quote(_place(partition))} --to-offset OFFSET {_DO_IT}"


def accept_topic(group: str, topic: str, where: str) -> str:
    """Read a topic that was created again, from ``where`` (options)."""
    return f"seekpoint topics accept {quote(group)} {quote(topic)} {where} {_DO_IT}"


def create_table() -> str:
    """Create the table of a sink."""
    return f"create the table (`{_TABLE}` prints the statement)"


def change_table() -> str:
    """How to print the statements that add what a sink's table lacks."""
    return f"`{_TABLE} --database-url …` prints the statement"


def without_command(message: str) -> str:
    """Remove the ``seekpoint db table`` command, which takes no SparkPipeline, for sinks of DataFrames."""
    return _PRINTS.sub("", message)


def for_pipeline(message: str, name: str) -> str:
    """Name the pipeline in the message's ``seekpoint db table`` command."""
    return message.replace(_TABLE, f"seekpoint db table {quote(name)}")


def for_topic(message: str, topic: str) -> str:
    """Name a topic that a pattern matches in the message's ``seekpoint db table`` command."""
    return message.replace(_TABLE, f"{_TABLE} --topic {quote(topic)}")


def _place(partition: Partition) -> str:
    return f"{partition.topic}:{partition.number}"
