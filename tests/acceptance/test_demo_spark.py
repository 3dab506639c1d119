"""``make demo-spark`` with fewer records: each fault, both comparisons, and no file for a driver to begin from.

All of it: ``make demo-spark``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from demo.servers import SMALLEST

ENDLESS = 900.0  # seconds: four sessions of Spark, each of which takes a minute on a busy machine
COMMAND = [sys.executable, "-m", "demo", "demo-spark", "--records", str(SMALLEST), "--json"]


@pytest.mark.long
@pytest.mark.timeout(ENDLESS + 60)  # it fails by the process's end, which shows what it printed
@pytest.mark.usefixtures("seekpoint_dsn", "seekpoint_broker")  # skipped or failed where no server can be started
def test_the_demo(tmp_path: Path) -> None:
    done = subprocess.run(COMMAND, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=ENDLESS)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report == json.loads((tmp_path / "spark-report.json").read_text())
    counts = {name: report[name] for name in ("records_in", "rows_out", "lost", "twice", "sums_that_differ")}
    assert counts == {"records_in": SMALLEST, "rows_out": SMALLEST, "lost": 0, "twice": 0, "sums_that_differ": 0}
    assert report["sums"] > 10
    assert (report["drivers"], report["kills"], report["fenced"], report["files_left"]) == (4, 2, 1, 0)
    assert (report["kills_while_staging"], report["kills_in_transaction"]) == (1, 1)
    assert report["task_processes_killed"] >= 2
    stderr = " ".join(done.stderr.split())
    assert stderr.count("deleted its folder") == 2
    assert "driver B continues from the ledger alone" in stderr
    assert "C ended, exit code 4 (fenced)" in stderr
