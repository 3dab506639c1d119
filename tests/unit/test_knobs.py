"""What a run draws for its knobs, by the seed alone, and that a value which no test used fails a run of all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from seekpoint import Limits, Pipeline, Retry, Text
from seekpoint.kafka.config import DEFAULTS
from seekpoint.worker import apply, reader
from support.knobs import VALUES, Knobs, draw
from support.pytest_run import run_pytest


def test_a_seed_draws_the_same_values_again_and_seeds_in_a_row_draw_each() -> None:
    assert draw(7) == draw(7)
    for name, values in VALUES.items():
        assert {draw(seed)[name] for seed in range(10)} == set(values)


def test_values_are_set_until_the_test_ends_and_explicit_ones_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def now() -> list[object]:
        pipeline = Pipeline("g", topics="t", value=Text(), handle=lambda tx, batch: None)
        return [
            Limits().batch_records,
            Retry().jitter,
            pipeline.retry.jitter,
            vars(reader)["CHUNK"],
            vars(apply)["MOST_RECORDS_IN_ONE_INSERT"],
            DEFAULTS.get("queued.min.messages"),
        ]

    before = now()
    with monkeypatch.context() as patch:
        Knobs({"batch_records": 3, "jitter": 1.0, "chunk": 7, "small_batch": 1, "queued_messages": 1}, patch)
        assert now() == [3, 1.0, 1.0, 7, 1, 1]
        assert Limits(batch_records=20).batch_records == 20
    assert now() == before == [10_000, 0.5, 0.5, 500, 100, None]


@pytest.mark.long("runs pytest")
def test_a_value_that_no_test_used_fails_a_run_of_all_tests(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text("def test_other(): ...")
    every = run_pytest(tmp_path, "-p", "support.knobs")
    assert every.returncode == 1, every.stdout
    assert every.stdout.count(": no tests used it") == len(VALUES)
    assert run_pytest(tmp_path, "-p", "support.knobs", "test_other.py").returncode == 0
