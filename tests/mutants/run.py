"""Break the lines that the promise hangs on, one at a time: a named test must fail each time.

    python tests/mutants/run.py [--only NAME] [--jobs N] [--sample N --seed S]

Each mutant is a copy of the package with one breakage (:mod:`mutants.breakages`, :mod:`mutants.failing`), against
which the tests that guard the line run on real servers. Prints ``killed NAME by TEST`` or ``survived NAME`` for
each; exit code 1 if one survives, if a breakage no longer fits the code (``stale NAME``; its text is not there, or the
broken code uses a name that is not defined), or if the tests do not pass on the unbroken package. What survives is run
once more by itself at the end, since some breakages show only if two things happen in a certain order: ``killed NAME by
TEST (second run)``. The last line names those that survived twice.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "docs" / "site")]

from browsing import NoBrowserError, program  # noqa: E402
from mutants import breakages, failing, in_browser  # noqa: E402
from mutants.breakages import Breakage  # noqa: E402
from seekpoint.testing.servers.pair import start_pair  # noqa: E402

BREAKAGES = (*breakages.BREAKAGES, *failing.FAILING, *in_browser.IN_BROWSER)
TESTS_FAILED = 1  # pytest's exit code; 2 and above mean that it could not run
UNUSABLE = re.compile(
    r"(?<![.\w])(?:NameError|SyntaxError|ImportError|ModuleNotFoundError): .*"
)  # Python's own, not SQL's
MOST_SECONDS = 240  # a mutant may hang: that is a failure of its test, too


def main() -> int:
    """Run them all; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="NAME", help="run this one; may be repeated")
    parser.add_argument("--sample", type=int, metavar="N", help="run so many, drawn by --seed: the short form, for CI")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--jobs", type=int, default=max(2, min(4, (os.cpu_count() or 2) - 1)))
    parser.add_argument(
        "--skip-baseline", action="store_true", help="trust that the tests pass on the unbroken package"
    )
    options = parser.parse_args()
    chosen = [b for b in BREAKAGES if not options.only or b.name in options.only]
    if not chosen:
        parser.error(f"there is no mutant {options.only}; there are: {', '.join(b.name for b in BREAKAGES)}")
    try:
        program()
    except NoBrowserError as error:
        print(f"{len(in_browser.IN_BROWSER)} of the console are left out: {error}")
        chosen = [b for b in chosen if b not in in_browser.IN_BROWSER]
    if options.sample is not None and options.sample < len(chosen):
        print(f"{options.sample} of {len(chosen)}, seed {options.seed}", flush=True)
        chosen = random.Random(options.seed).sample(chosen, options.sample)
    if not chosen:
        return 0
    with start_pair() as pair, tempfile.TemporaryDirectory(prefix="seekpoint-mutants-") as folder:
        servers = {"SEEKPOINT_TEST_DSN": pair.postgres.dsn, "SEEKPOINT_TEST_BROKERS": pair.kafka.bootstrap}
        if not options.skip_baseline and not _baseline(chosen, servers, options.jobs):
            return 1
        with ThreadPoolExecutor(options.jobs) as pool:
            outcomes = list(pool.map(lambda b: _judge(b, Path(folder), servers), chosen))
        again = [b for b, killed in zip(chosen, outcomes, strict=True) if not killed]
        survived = [b.name for b in again if not _judge(b, Path(folder), servers, " (second run)")]
    print(f"{len(chosen) - len(survived)} killed, {len(survived)} survived", *survived, sep="\n  ")
    return 1 if survived else 0


def _baseline(chosen: list[Breakage], servers: dict[str, str], jobs: int) -> bool:
    """A test that fails anyway kills nothing. Each has its own limit of time, and all together have none."""
    tests = sorted({test for b in chosen for test in b.tests})
    code, output = _pytest(tests, ROOT / "src", servers, "-n", str(jobs), seconds=None)
    if code != 0:
        print(output, f"the tests do not pass on the unbroken package (exit code {code})", sep="\n")
    return code == 0


def _judge(breakage: Breakage, folder: Path, servers: dict[str, str], which: str = "") -> bool:
    home = folder / str(BREAKAGES.index(breakage))  # not its name: PYTHONPATH is split at each colon
    try:
        source = _broken_copy(breakage, home)
        code, output = _pytest(breakage.tests, source, servers, "-x")
    except LookupError as error:
        print(f"stale {breakage.name}: {error}", flush=True)
        return False
    except subprocess.TimeoutExpired:
        print(f"killed {breakage.name} by {breakage.tests[0]} (it hung){which}", flush=True)
        return True
    finally:
        shutil.rmtree(home, ignore_errors=True)
    if unusable := UNUSABLE.search(output):  # any test fails on that
        print(f"stale {breakage.name}: {unusable[0]}", flush=True)
        return False
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    if code == TESTS_FAILED and failed:
        print(f"killed {breakage.name} by {failed[1]}{which}", flush=True)
        return True
    print(
        f"survived {breakage.name}{which}",
        *([] if code == 0 else [f"pytest exit code {code}", output]),
        sep="\n",
        flush=True,
    )
    return False


def edited(breakage: Breakage) -> dict[str, str]:
    """The broken text of each file that is touched; raises LookupError where an edit does not fit."""
    texts: dict[str, str] = {}
    for edit in breakage.edits:
        text = texts.get(edit.file) or (ROOT / "src" / "seekpoint" / edit.file).read_text()
        if (n := text.count(edit.old)) != edit.times:
            raise LookupError(f"{edit.file} has {n} times, not {edit.times}: {edit.old!r}")
        texts[edit.file] = text.replace(edit.old, edit.new)
    return texts


def _broken_copy(breakage: Breakage, home: Path) -> Path:
    """The package with the breakage in it."""
    texts = edited(breakage)
    for part in ("src", "migrations"):
        shutil.copytree(ROOT / part, home / part, ignore=shutil.ignore_patterns("__pycache__"))
    for file, text in texts.items():
        (home / "src" / "seekpoint" / file).write_text(text)
    return home / "src"


def _pytest(
    tests: tuple[str, ...] | list[str],
    source: Path,
    servers: dict[str, str],
    *more: str,
    seconds: float | None = MOST_SECONDS,
) -> tuple[int, str]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--no-header",
        "-p",
        "no:cacheprovider",
        "--timeout=120",
        *more,
        *tests,
    ]
    environment = {**os.environ, **servers, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds, check=False
    )
    return done.returncode, done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(main())
