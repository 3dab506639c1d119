"""The options of ``seekpoint status`` that may be without their value, or exclude each other; and its width."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from seekpoint.admin import GroupStatus, PartitionStatus, WorkerStatus
from seekpoint.cli.app import every_command
from seekpoint.cli.status import Line, _print_group
from seekpoint.ledger import Position
from seekpoint.records import Partition
from support.command import seekpoint

AWAY = ["--database-url", "postgresql://nobody@127.0.0.1:1/none"]


@pytest.mark.parametrize(
    ("words", "watch", "groups"),
    [
        ([], None, []),
        (["--watch"], 2, []),
        (["--watch=5"], 5, []),
        (["--watch", "0.5", "g"], 0.5, ["g"]),
        (["--watch", "g"], 2, ["g"]),
        (["g", "--watch", "--sort", "lag"], 2, ["g"]),
        (["--", "--watch"], None, ["--watch"]),
    ],
)
def test_watch_may_be_without_its_seconds(words: list[str], watch: float | None, groups: list[str]) -> None:
    program: Any = every_command()
    params = program.commands["status"].make_context("status", [*AWAY, *words]).params
    assert (params["watch"], [*params["groups"]]) == (watch, groups)


def test_a_check_looks_once() -> None:
    assert "--check looks once" in seekpoint("status", *AWAY, "--check", "--watch", exits=2).stderr


NOW = datetime.now(UTC)
OWNER = uuid4()


def partition(number: int, sample_age: timedelta | None = None) -> PartitionStatus:
    """The partition of a busy topic, with long numbers and times."""
    names = {field.name: None for field in fields(Position)}
    stored: Any = {**names, "partition": Partition("shop-payments", number), "next_offset": 1_234_567_890}
    stored |= {"owner": OWNER, "committed_at": NOW - timedelta(hours=47, minutes=59), "attempts": 0, "epoch": 1_234}
    return PartitionStatus(
        position=Position(**stored),
        end=1_235_802_457,
        lag=1_234_567,
        lag_seconds=3_599.0,
        headroom=123_456_789,
        headroom_seconds=172_740.0,
        sampled_at=NOW,
        host=None,
        pid=None,
        dead_letters=12_345,
        sample_age=sample_age,
        is_sampled=sample_age is not None,
    )


def test_rows_with_usual_values_have_at_most_100_characters(capsys: pytest.CaptureFixture[str]) -> None:
    """What they leave out is in the JSON, e.g. the default client.id, of 45 characters."""
    started = NOW - timedelta(hours=47, minutes=59)
    host = "shop-payments-6d5f9c7b8d-x2v9q"
    worker = WorkerStatus(OWNER, host, 4_194_304, "c" * 45, 12, "1.12.3", started, NOW, "running", is_live=True)
    ages = (12, 12, 119)
    partitions = tuple(partition(n, timedelta(seconds=age)) for n, age in enumerate(ages, 126))
    group = GroupStatus("shop-payments", 12, None, partitions, (worker,), None)
    lines = [Line(group, partition) for partition in partitions]
    _print_group(group, lines)
    shown = capsys.readouterr().out.splitlines()
    assert "shop-payments/127  1234567890  1234567  59 min 59 s  47 h 59 min  12345" in shown[3]
    assert shown[5:7] == [
        "lag and headroom are as of 12 s ago: shop-payments/126, shop-payments/127",
        "lag and headroom are as of 1 min 59 s ago: shop-payments/128",
    ]
    assert max(len(line.rstrip()) for line in shown) <= 100, shown
    described = lines[0].as_dict()
    assert (described["end"], described["epoch"], described["headroom"]) == (1_235_802_457, 1_234, 123_456_789)
    assert (described["worker"]["client_id"], described["worker"]["library"]) == ("c" * 45, "1.12.3")
