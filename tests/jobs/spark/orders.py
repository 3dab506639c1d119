"""The group's pipeline in version 2, as modules that tasks import by name: well behaved, or deadly once."""

from __future__ import annotations

from seekpoint.spark import Env
from support.reload_orders import PLAIN

#: Where tasks look for the database's address.
DATABASE = Env("SEEKPOINT_TEST_SPARK_DATABASE")

# Ends one process only: the first, which creates the marker file.
ONCE = """
import os, signal

def once():
    try:
        os.close(os.open({marker!r}, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)
"""

IN_A_ROW = (
    PLAIN
    + ONCE
    + """
def first(record):
    if record.offset == 25:
        once()
"""
)

BEHIND_COMMIT = (
    PLAIN
    + ONCE
    + """
from seekpoint.jobs.spark import data_sources as staging_source

stage_range = staging_source.stage_range

def deadly(*args, **named):
    staged = stage_range(*args, **named)
    if staged.group == {group!r}:
        once()
    return staged

staging_source.stage_range = deadly
"""
)

#: Its handler version is read from the marker file in the process that calls it, as if that code were deployed there.
DEPLOYED = (
    PLAIN
    + """
import pathlib

made = orders

def orders():
    made.version = int(pathlib.Path({marker!r}).read_text())
    return made
"""
)

#: The first attempt at the last of each hundred records never ends: only a copy on another machine helps.
FOR_EVER = (
    PLAIN
    + """
import os, threading

def first(record):
    if record.offset % 100 == 99:
        try:
            os.close(os.open({marker!r} + str(record.offset), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        threading.Event().wait()
"""
)


def appending(source: str) -> str:
    """The module with an Append to the table ``plain`` in place of the Upsert."""
    [sink] = [line for line in PLAIN.splitlines() if line.startswith("sink = ")]
    append = 'sink = Append(({schema!r}, "plain"), columns=["id", "amount", "at"], row=row)'
    return source.replace(sink, f"from seekpoint import Append\n{append}").replace(", tombstones=True", "")


def expected(count: int = 100) -> list[tuple[int, int, int]]:
    """What version 2 makes of so many records in each of two partitions."""
    return [(n + partition * 1000, 2 * n, n) for partition in (0, 1) for n in range(count)]
