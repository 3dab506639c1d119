"""Conditions on the command line: each is understood, or refused in a sentence of ours."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from seekpoint.admin import Where
from seekpoint.cli.dead_letters import app
from seekpoint.cli.options import since
from seekpoint.errors import ConfigError


def test_a_time_before_the_calendar_begins_is_refused() -> None:
    with pytest.raises(ConfigError, match="--since 999999d: that is before the year 1"):
        since("999999d")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cause": "decode"}, "cause='decode': give one of decode, row, .*, e.g. Cause.DECODE"),
        (
            {"states": "waiting"},
            "states=.waiting.: give a tuple of some of dead_lettered, ",
        ),
        ({"states": ("waiting",)}, "give a tuple of some of"),
    ],
)
def test_a_condition_of_the_wrong_type_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Where(**options)


@pytest.mark.parametrize(
    "words",
    [
        ["discard", "--reason", "r", str(2**63)],
        ["discard", "--reason", "r", "0"],
        ["list", "g", "--topic", "t", "--partition", str(2**31)],
    ],
)
def test_numbers_that_no_dead_letter_has_are_wrong_usage(words: list[str]) -> None:
    """Before any database is asked."""
    done = CliRunner().invoke(app, [*words, "--database-url", "postgresql://localhost:1/none"])
    assert done.exit_code == 2
    assert "than or equal to" in " ".join(done.output.replace("│", "").split())
