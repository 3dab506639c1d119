"""``make demo`` with fewer records: every fault, the comparison, and no process or folder left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from support.waiting import until

COMMAND = [sys.executable, "-m", "demo", "demo", "--records", "20000"]


@pytest.mark.usefixtures("seekpoint_dsn", "seekpoint_broker")  # skipped or failed where no server can be started
def test_the_demo(tmp_path: Path) -> None:
    done = subprocess.run([*COMMAND, "--json"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report == json.loads((tmp_path / "demo-report.json").read_text())
    assert report.pop("transactions") > 10
    assert report.pop("seconds") > 0
    assert report.pop("records_per_second") > 0
    assert report.pop("broker").startswith("Apache Kafka 4.")
    assert report.pop("postgres").startswith("PostgreSQL ")
    assert report == {
        "records_in": 20_000,
        "rows_out": 20_000,
        "lost": 0,
        "twice": 0,
        "kills": 4,
        "kills_in_transaction": 4,
        "fenced": 2,
    }
    output = " ".join(done.stderr.split())
    for name in "AB":
        assert output.count(f"killed {name} at ") == 2
    assert output.count(" open in backend ") == 5, "each kill, and the second freeze, with the transaction it met"
    refused = output.count("fenced (seekpoint: claim or position is not the expected one")
    assert refused + output.count("fenced (the ledger: claimed by another)") == 2
    assert "froze A with a batch read and no transaction open; B took over" in output
    assert "froze B with transaction " in output


def started(tmp_path: Path, *, stdout: int, stderr: int) -> tuple[subprocess.Popen[str], Path]:
    """The demo's process, and the folder of its temporary files."""
    folders = tmp_path / "tmp"
    folders.mkdir()
    env = {**os.environ, "TMPDIR": str(folders)}
    return subprocess.Popen(COMMAND, cwd=tmp_path, env=env, text=True, stdout=stdout, stderr=stderr), folders


def _gone(processes: list[psutil.Process], seconds: float) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return all(process.status() == psutil.STATUS_ZOMBIE for process in alive)  # there may be no init that reaps them


def _command(process: psutil.Process) -> str:
    """What it was started with; nothing where it has ended meanwhile."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@pytest.mark.long
@pytest.mark.usefixtures("seekpoint_dsn", "seekpoint_broker")
def test_a_killed_demo_leaves_no_processes_or_folders(tmp_path: Path) -> None:
    demo, folders = started(tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    reached = threading.Event()

    def listen() -> None:
        assert demo.stderr is not None
        for line in demo.stderr:
            if "killed A at " in line:
                reached.set()

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    try:
        assert reached.wait(90), "the demo did not come to its first fault"
        family = psutil.Process(demo.pid).children(recursive=True)
        assert any("demo.worker_process" in _command(process) for process in family)
    finally:
        demo.kill()
        demo.wait()
    assert _gone(family, 30)  # its reaper too, which removes the folders before it ends
    assert not list(folders.iterdir())
    listener.join(10)
    assert demo.stderr is not None
    demo.stderr.close()


FROZEN = """\
import sys, threading
from pathlib import Path
from demo.worker_pool import WorkerProcess

worker = WorkerProcess("A", {}, threading.Condition(), Path("A.log"))
worker.freeze()
while not worker.is_stopped:
    threading.Event().wait(0.01)
print(worker.pid, flush=True)
sys.stdin.read()
"""


def test_a_frozen_worker_dies_with_the_demo(tmp_path: Path) -> None:
    demo = subprocess.Popen(
        [sys.executable, "-c", FROZEN], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert demo.stdin is not None
    assert demo.stdout is not None
    with demo.stdin, demo.stdout:
        frozen = psutil.Process(int(demo.stdout.readline()))
        assert frozen.status() == psutil.STATUS_STOPPED
        demo.kill()
        demo.wait()
    assert _gone([frozen], 20)


@pytest.mark.long
def test_ctrl_c_ends_the_demo_and_removes_everything(tmp_path: Path) -> None:
    demo, folders = started(tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    until(lambda: any(folders.iterdir()), "the first server's folder", 60)
    demo.send_signal(signal.SIGINT)
    output, _ = demo.communicate(timeout=60)
    assert demo.returncode == 130, output
    assert "Traceback" not in output
    assert not list(folders.iterdir())
