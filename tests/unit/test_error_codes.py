"""Each error's text has its code once, and ``seekpoint explain CODE`` prints what the page says about it."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from typer.testing import CliRunner

from seekpoint.cli.app import app
from seekpoint.cli.error_codes import error_entries
from seekpoint.errors import (
    BatchRefused,
    ConfigError,
    FrameFailed,
    OffsetLost,
    RangeLost,
    SeekpointError,
    StopTimeout,
)
from seekpoint.jobs.staging.task_errors import error_as_text, error_of
from seekpoint.ledger.positions import Stop
from seekpoint.records import Partition
from support.every_row import for_each

ORDERS = Partition("orders", 3)
ERRORS = {
    "orders/3 stopped at offset 41: retention has passed it [SP1201]\nChoices:\n  - skip it": OffsetLost(
        ORDERS, 41, "retention has passed it", choices=["skip it"]
    ),
    "the batch cannot be run: [SP1402]\n  - workers own partitions": BatchRefused(["workers own partitions"]),
    "the handler has not returned [SP1303]": StopTimeout("the handler has not returned", 3.0),
    "orders/3 cannot be read at offset 7: it is gone [SP1406]": RangeLost(ORDERS, 7, "it is gone"),
    "frame 'sums' failed [SP1405]": FrameFailed("frame 'sums' failed"),
    " [SP1001]": ConfigError(),  # of users' code
}


@for_each(ERRORS.items())
def test_the_first_line_ends_with_the_code(row: tuple[str, SeekpointError]) -> None:
    text, error = row
    assert str(error) == text


@for_each(ERRORS.values())
def test_an_error_of_a_task_has_its_code_once(error: SeekpointError) -> None:
    assert str(error_of(error_as_text(error))) == str(error)


@for_each(ERRORS.values())
def test_the_text_is_without_the_code(error: SeekpointError) -> None:
    assert error.text == str(error).replace(f" [{error.code}]", "")


def test_a_stop_in_the_ledger_has_the_code_of_its_error() -> None:
    now = datetime.now(UTC)
    assert Stop("OffsetLost", 1, "why", (), now).code == OffsetLost.code
    assert Stop("of a newer version", 1, "why", (), now).code == "SP1200"


def explained(*arguments: str) -> tuple[int, str]:
    outcome = CliRunner().invoke(app, ["explain", *arguments])
    return outcome.exit_code, outcome.output


@for_each(error_entries())
def test_a_code_is_explained(code: str) -> None:
    exit_code, printed = explained(code)
    assert exit_code == 0
    entry = error_entries()[code]
    assert printed.split()[:3] == [code, entry.error, "Safe:"]
    assert "](" not in printed, "links lead nowhere in a terminal"
    exit_code, printed = explained(code, "--json")
    assert json.loads(printed) == {"code": code, "error": entry.error, "text": entry.text}


def test_an_unknown_code_is_refused_with_the_known_ones() -> None:
    exit_code, printed = explained("SP9999")
    assert exit_code == 2
    assert "there is no error with code SP9999; the codes are SP1000, " in printed
