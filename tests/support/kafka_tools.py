"""Runs Kafka's ``kafka-consumer-groups``, of the same release as the tests' broker; fetched once, as the broker is."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from seekpoint.records import Partition
from seekpoint.testing.servers.jars import KAFKA_VERSION, classpath, locked_jars
from seekpoint.testing.servers.java import find_java
from seekpoint.testing.servers.process import ServerFailed

LOCK = Path(__file__).with_name("kafka-tools.lock")
COMMAND = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


class CommittedOffset(NamedTuple):
    """A line of ``--describe``: the committed offset, the end offset, and the lag; None for ``-``."""

    current: int | None
    end: int | None
    lag: int | None


def describe(broker: str, *groups: str) -> dict[tuple[str, Partition], CommittedOffset]:
    """The tool's lines about these groups, by group and partition."""
    words = [word for group in groups for word in ("--group", group)]
    tools = {}
    for line in _run(broker, "--describe", *words).splitlines():
        cells = line.split()
        if len(cells) >= 6 and cells[0] in groups:
            numbers = (None if cell == "-" else int(cell) for cell in cells[3:6])
            tools[cells[0], Partition(cells[1], int(cells[2]))] = CommittedOffset(*numbers)
    return tools


def _run(broker: str, *words: str) -> str:
    paths = ":".join(map(str, [*classpath(), _jar()]))
    command = [str(find_java()), "-XX:TieredStopAtLevel=1", "-cp", paths, COMMAND]
    done = subprocess.run(
        [*command, "--bootstrap-server", broker, *words], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _jar() -> str:
    """The tool's jar. Without it the test is skipped, or fails if SEEKPOINT_REQUIRE_KAFKA_TOOLS is set."""
    try:
        [jar] = locked_jars(LOCK)
    except ServerFailed as error:
        (pytest.fail if os.environ.get("SEEKPOINT_REQUIRE_KAFKA_TOOLS") else pytest.skip)(str(error))
    assert KAFKA_VERSION in jar.name, f"{LOCK.name} names another release than the broker's, {KAFKA_VERSION}"
    return str(jar)
