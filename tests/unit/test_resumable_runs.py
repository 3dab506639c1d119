"""Which command resumes or ends an open run, in the messages of those that do not."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from seekpoint.cli.reload import _open_run, _opened
from seekpoint.errors import ConfigError
from seekpoint.jobs.reload.take_over import require_its_versions, take_over
from seekpoint.ledger.tables import FRAMES_MARK
from seekpoint.runs.run import Run

ID, TIME = UUID(int=7), datetime(2026, 11, 29, tzinfo=UTC)
KAFKA = {"bootstrap.servers": "localhost:1"}
ABORT = f"seekpoint reload abort {ID} --reason"


def run(strategy: str, *, of_frames: bool = False, state: str = "staging") -> Run:
    schema = f"seekpoint_reload_{FRAMES_MARK if of_frames else ''}{ID.hex}"
    return Run(
        ID, ("g",), ("t",), strategy, ("m:p",), (1,), (1,), state, 1, "d", schema, False, None, "a", "r", None, None,
        None, TIME, TIME,
    )  # fmt: skip


def runs(opened: Run) -> Any:
    return SimpleNamespace(get=lambda _: opened)


@pytest.mark.parametrize("of_frames", [False, True])
@pytest.mark.parametrize("resumed_by_spark", [False, True])
def test_a_verify_is_ended_and_taken_over_by_none(of_frames: bool, resumed_by_spark: bool) -> None:
    """I4: its next step would be a cut-over."""
    verify = run("verify", of_frames=of_frames)
    with pytest.raises(ConfigError, match="is a verify, which cannot be resumed") as refused:
        take_over(runs(verify), ID, [], KAFKA, of_frames=resumed_by_spark)
    assert ABORT in str(refused.value)
    assert "--resume" not in str(refused.value)


@pytest.mark.parametrize("of_frames", [False, True])
def test_the_commands_say_how_a_verify_ends(of_frames: bool) -> None:
    verify = run("verify", of_frames=of_frames)
    reload: Any = SimpleNamespace(runs=runs(verify))
    for refuse in (lambda: _open_run(runs(verify), ID), lambda: _opened(reload, ID, "merge", "")):
        with pytest.raises(ConfigError, match="is a verify, not a reload, and cannot be resumed: end it") as refused:
            refuse()
        assert ABORT in str(refused.value)
    ended = run("verify", of_frames=of_frames, state="verified")
    with pytest.raises(ConfigError, match="cannot be resumed: run verify again"):
        _open_run(runs(ended), ID)


def test_a_batch_and_a_reload_of_the_other_kind_are_resumed_by_the_command_that_is_named() -> None:
    for opened, by_spark, command in (
        (run("batch"), False, f"seekpoint batch MODULE:NAME --resume {ID}"),
        (run("batch"), True, f"seekpoint batch MODULE:NAME --resume {ID}"),
        (run("merge"), True, f"seekpoint reload resume {ID}"),
        (run("merge", of_frames=True), False, f"seekpoint spark reload MODULE:NAME --resume {ID}"),
    ):
        with pytest.raises(ConfigError) as refused:
            take_over(runs(opened), ID, [], KAFKA, of_frames=by_spark)
        assert command in str(refused.value)


def test_a_verify_of_other_groups_is_not_called_a_reload() -> None:
    with pytest.raises(ConfigError, match=f"^verify {ID} is of groups g"):
        require_its_versions(run("verify"), [])
