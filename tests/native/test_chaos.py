"""Chaos with compiled text: the rows are COPY text that no Python code has made."""

from __future__ import annotations

from pathlib import Path

from chaos.worker.run import run

KINDS = ("kill_at_applied", "cut_in_copy", "commit_cut_after", "poison", "crashing_record")
SEED = 20261123


def test_faults_lose_nothing_and_apply_nothing_twice(tmp_path: Path) -> None:
    print(f"seed {SEED}")
    report = run(len(KINDS), SEED, kinds=KINDS, native="text", report_path=tmp_path / "chaos-report.json")
    assert report.passed, "\n".join(report.failure or report.vacuous)
    assert (report.lost, report.twice) == (0, 0)
    assert report.compiled_chunks > 0
    assert report.small_transactions > 0
