"""How far a command is: what is said, where, and how often."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from sqlalchemy import create_engine
from typer.testing import CliRunner

from seekpoint.admin import Admin, ReplacePlan, ReplaceResult, ReplayRequest
from seekpoint.cli import progress_bar as progress
from seekpoint.cli import replay_requests
from seekpoint.cli.groups import app
from seekpoint.cli.options import LedgerOptions
from seekpoint.cli.progress_bar import Shown, progress_text


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "monotonic", clock)
    return clock


def test_a_line_every_few_seconds_and_at_the_ends(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Shown() as shown:
        shown("staging", 0, 3_000)
        for second in range(1, 12):
            clock.now += 1
            shown("staging", second * 250, 3_000)
        clock.now += 1
        shown("staging", 3_000, 3_000)
        for _ in range(3):
            shown("comparing", 0, 0)
            shown("comparing", 1, 1)
            shown("cutting over", 0, 0)
    assert capsys.readouterr().err.splitlines() == [
        "staging: 0 of 3,000 records",
        "staging: 1,250 of 3,000 records, 250/s, 7 s left",
        "staging: 2,500 of 3,000 records, 250/s, 2 s left",
        "staging: 3,000 records, 250/s",
        "comparing",
        "cutting over",
    ]


def test_what_others_did_before_does_not_count_for_the_rate() -> None:
    assert progress_text(1_000, 2_000, 100, 10) == "1,000 of 2,000 records, 10/s, 1 min 40 s left"


def test_the_first_seconds_say_nothing_of_the_end() -> None:
    assert progress_text(10, 1_000_000, 10, 4.9) == "10 of 1,000,000 records, 2/s"
    assert progress_text(10, 1_000_000, 10, 5.0) == "10 of 1,000,000 records, 2/s, 5 d 18 h left"


def test_keys_are_not_called_records(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Shown() as shown:
        shown("warming up", 0, 300)
        clock.now += 1
        shown("warming up", 300, 300)
    assert capsys.readouterr().err.splitlines() == ["warming up: 0 of 300 keys", "warming up: 300 keys, 300/s"]


def test_replace_counts_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "postgresql+psycopg://localhost:1/none"
    plan = ReplacePlan("old", "new", 1, 2, (), False, 4, (), False, (None, None), ())

    def replace_group(*_: Any, progress: Any, **__: Any) -> ReplaceResult:
        progress("new catches up", 1, 4)
        return ReplaceResult((), resumed=True)

    monkeypatch.setattr(LedgerOptions, "engine", lambda _: create_engine(url))
    monkeypatch.setattr(Admin, "plan_replace", lambda *_, **__: plan)
    monkeypatch.setattr(Admin, "replace_group", replace_group)
    words = ["replace", "old", "--by", "new", "--database-url", url, "--apply", "--reason", "r"]
    assert "new catches up: 1 of 4 offsets\n" in CliRunner().invoke(app, words).stderr


def test_the_next_table_has_a_rate_of_its_own(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Shown() as shown:
        shown("warming up", 0, 1_000)
        clock.now += 60
        shown("warming up", 1_000, 1_000)
        shown("warming up", 0, 50_000)
        clock.now += 6
        shown("warming up", 3_000, 50_000)
    assert capsys.readouterr().err.splitlines()[-1] == "warming up: 3,000 of 50,000 keys, 500/s, 1 min 34 s left"


def test_programs_get_nothing_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    with Shown(terminal_only=True) as shown:
        shown("staging", 1, 2)
        shown.say("a sentence")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("terminal_only", [False, True])
def test_a_terminal_gets_a_bar_also_where_json_goes_elsewhere(
    monkeypatch: pytest.MonkeyPatch, terminal_only: bool
) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, color_system=None, width=120)
    monkeypatch.setattr(progress, "Console", lambda **_: console)
    with Shown(terminal_only=terminal_only) as shown:
        shown("staging", 0, 2_000)
        shown("staging", 500, 2_000)
        shown.say("[a sentence]")
        shown("catching_up", 12, 12)
    assert "of 2,000 records" in screen.getvalue()
    assert "[a sentence]" in screen.getvalue()
    assert "catching_up" in screen.getvalue()


def test_a_step_without_a_total_has_not_that_of_the_step_before(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=120)
    monkeypatch.setattr(progress, "Console", lambda **_: console)
    totals = []
    with Shown() as shown:
        for step, total in (("opening", 0), ("staging", 2_000), ("comparing", 0)):
            shown(step, 0, total)
            assert shown._bar is not None
            totals.append([(task.description, task.total) for task in shown._bar.tasks])
    assert totals == [[("opening", None)], [("staging", 2_000)], [("comparing", None)]]


def test_a_replay_that_draws_others_along_is_never_shown_as_2_of_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """With key order, a request of one dead letter also replays the later ones of its key."""
    monkeypatch.setattr(replay_requests, "POLL", 0.0)
    now = datetime.now(UTC)
    asked = ReplayRequest(
        id=3,
        group="g",
        version=1,
        dead_letters=(7,),
        state="started",
        actor="ada",
        reason="fixed",
        worker=None,
        replayed=0,
        failed=0,
        refused=0,
        refusals=(),
        error=None,
        requested_at=now,
        started_at=now,
        ended_at=None,
    )
    answers = iter([replace(asked, replayed=2), replace(asked, replayed=2, failed=1, ended_at=now)])
    admin: Any = SimpleNamespace(replay_request=lambda group, id_: next(answers))
    shown: list[tuple[int, int]] = []
    ended = replay_requests.follow(admin, asked, 60, lambda done, total: shown.append((done, total)))
    assert ended.has_ended
    assert shown == [(2, 2), (3, 3)]
