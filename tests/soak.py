"""Run the suite again and again, and note each run: a test that fails now and then is a fault until its cause is known.

    python tests/soak.py --test 12 --busy 6 --all 3 --file soak.jsonl

``--test`` counts runs of the tests of ``make test``, ``--busy`` how many of them run next to two processes that keep
both cores busy, ``--all`` runs of the tests of ``make test-all``. Each run is one line of the file: what ran, commit,
seed, the knobs' seed (the runs of a file take one after the other), start, seconds, exit code, pytest's last line, and
the tests that failed; the output of a run that failed is in the same folder, in ``soak-<knobs' seed>.log``.
Started again with the same file, it continues: runs of this commit that the file has are not repeated. At the end it
lists what the file has, commit by commit. Exit code 1 if a run of this commit failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SELECTED = {"test": "not long", "busy": "not long", "all": "long"}
BUSY_PROCESSES = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the runs that are missing; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--test", type=int, default=12, metavar="N", help="runs of `make test`'s tests (12)")
    parser.add_argument("--busy", type=int, default=6, metavar="N", help="of these, next to busy processes (6)")
    parser.add_argument("--all", type=int, default=3, metavar="N", help="runs of `make test-all`'s tests (3)")
    parser.add_argument("--file", type=Path, default=ROOT / "soak.jsonl", help="where runs are noted (soak.jsonl)")
    parser.add_argument("--processes", default="3", metavar="N", help="test processes (3)")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the busy processes end with it
    commit = _git("rev-parse", "HEAD") + ("+changes" if _git("status", "--porcelain", "--untracked-files=no") else "")
    runs = _noted(options.file)
    wanted = {"test": options.test - options.busy, "busy": options.busy, "all": options.all}
    for kind, count in wanted.items():
        for number in range(sum((run["commit"], run["kind"]) == (commit, kind) for run in runs), count):
            print(f"{kind} {number + 1} of {count}", flush=True)
            run, output = _run(kind, commit, options.processes, knobs=len(runs))
            if run["exit_code"]:
                options.file.with_name(f"{options.file.stem}-{len(runs)}.log").write_text(output, encoding="utf-8")
            runs.append(run)
            with options.file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(run) + "\n")
            print(f"  exit code {run['exit_code']} after {run['seconds']} s: {run['last_line']}", flush=True)
    print(*_summary(runs), sep="\n")
    return 1 if any(run["exit_code"] for run in runs if run["commit"] == commit) else 0


def _summary(runs: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Lines: the runs of each commit, those that failed with their seeds, and the tests that failed in them."""
    for commit in dict.fromkeys(run["commit"] for run in runs):
        kinds = {kind: [run for run in runs if (run["commit"], run["kind"]) == (commit, kind)] for kind in SELECTED}
        failed = [run for group in kinds.values() for run in group if run["exit_code"]]
        counts = ", ".join(f"{len(group)} {kind}" for kind, group in kinds.items())
        yield f"{commit}: {counts}; {len(failed)} failed"
        for run in failed:
            seeds = f"seed {run['seed']}, knobs {run.get('knobs', 'none')}"
            yield f"  {run['kind']}, {seeds}, {run['started']}: {run['last_line']}"
            yield from (f"    {test}" for test in run["failed"])


def _noted(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def _run(kind: str, commit: str, processes: str, *, knobs: int) -> tuple[dict[str, Any], str]:
    """Make one run; returns its line of the file, and what it printed."""
    seed = time.time_ns() % 1_000_000
    seeds = {"SEED": str(seed), "SEEKPOINT_SEED": str(seed), "SEEKPOINT_KNOBS": str(knobs)}
    environment = {**os.environ, "SEEKPOINT_REQUIRE_SERVERS": "1", **seeds}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-m", "pytest", "-q", "-n", processes, "--dist", "loadgroup", "-m", SELECTED[kind]]
    started, began = datetime.now(UTC), time.monotonic()
    with ExitStack() as stack:
        if kind == "busy":
            stack.enter_context(_busy())
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines() or [""]
    run = {
        "kind": kind,
        "commit": commit,
        "seed": seed,
        "knobs": knobs,
        "started": started.isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - began),
        "exit_code": done.returncode,
        "last_line": lines[-1],
        "failed": [line for line in lines if re.match(r"(FAILED|ERROR) ", line)],
    }
    return run, done.stdout + done.stderr


@contextmanager
def _busy() -> Iterator[None]:
    """Processes that never wait."""
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY_PROCESSES)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
