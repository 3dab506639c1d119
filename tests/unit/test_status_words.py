"""The options of ``seekpoint status`` that may be without their value, or exclude each other."""

from __future__ import annotations

from typing import Any

import pytest

from seekpoint.cli.app import every_command
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
