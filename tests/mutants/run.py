"""Break the lines that the promise hangs on, one at a time: a named test must fail each time.

    python tests/mutants/run.py [--only NAME] [--sample N --seed S] [--jobs N] [--skip-baseline]

Each breakage (:mod:`mutants.breakage`) is a package of links, with the files that it changes written, against which
its test runs on real servers. First all tests must pass on the unbroken package. Prints ``killed NAME by TEST`` or
``survived NAME`` for each; exit code 1 if one survives, or if one no longer fits the code (``stale NAME``: its text is
not there, or the broken code uses a name that is not defined). What survives is run once more by itself at the end,
since some breakages show only if two things happen in a certain order. The last line names those that survived twice.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from mutants.breakage import PACKAGE, ROOT, Breakage, broken, read  # noqa: E402
from mutants.forks import Run, import_stable, run_all  # noqa: E402
from mutants.servers import servers  # noqa: E402

TESTS_FAILED = 1  # pytest's exit code; 2 and above mean that it could not run
UNUSABLE = re.compile(
    r"(?<![.\w])(?:NameError|SyntaxError|ImportError|ModuleNotFoundError): .*"
)  # Python's own, not SQL's
ERROR_AT_SETUP = re.compile("^_+ ERROR at setup of ", re.MULTILINE)
MOST_SECONDS = 240  # a mutant may hang: that is a failure of its test, too
SLOW = ("tests/kafka", "tests/jobs")  # they start first, so that the last to end is a fast one


def main() -> int:
    """Run them all; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="NAME", help="run this one; may be repeated")
    parser.add_argument("--sample", type=int, metavar="N", help="run so many, drawn by --seed: the short form, for CI")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--jobs", type=int, default=2 * (os.cpu_count() or 2), help="at once; tests wait for servers")
    parser.add_argument(
        "--skip-baseline", action="store_true", help="trust that the tests pass on the unbroken package"
    )
    options = parser.parse_args()
    breakages = read(Path(__file__).parent)
    chosen = [b for b in breakages if not options.only or b.name in options.only]
    if not chosen:
        parser.error(f"there is no breakage {options.only}; there are: {', '.join(b.name for b in breakages)}")
    if options.sample is not None and options.sample < len(chosen):
        print(f"{options.sample} of {len(chosen)}, seed {options.seed}", flush=True)
        chosen = random.Random(options.seed).sample(chosen, options.sample)
    chosen.sort(key=lambda b: not b.test.startswith(SLOW))
    began = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # servers and folders go with it
    import_stable()
    with servers() as environment, tempfile.TemporaryDirectory(prefix="seekpoint-mutants-") as folder:
        trial = Trial(Path(folder), environment)
        if not options.skip_baseline and not trial.passes_unbroken(chosen, options.jobs):
            return 1
        again = trial.survivors(chosen, options.jobs)
        survived = [b.name for b in trial.survivors(again, 1, " (second run)")]
    print(
        f"{len(chosen) - len(survived)} killed, {len(survived)} survived in {time.monotonic() - began:.0f} s",
        *survived,
        sep="\n  ",
    )
    return 1 if survived else 0


class Trial:
    """Runs of tests on packages in a folder."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder, self._environment = folder, environment
        self._packages = 0

    def passes_unbroken(self, chosen: Iterable[Breakage], jobs: int) -> bool:
        """Whether all the tests pass as the package is: a test that fails anyway kills nothing."""
        tests: dict[str, set[str]] = {}
        for breakage in chosen:
            tests.setdefault(breakage.test.partition("::")[0], set()).add(breakage.test)
        runs = [
            self._run(file, sorted(tests[file]), {}) for file in sorted(tests, key=lambda f: not f.startswith(SLOW))
        ]
        failed = 0
        for run in run_all(runs, self._environment, jobs=jobs, seconds=MOST_SECONDS * 4):
            if run.code != 0:
                failed += 1
                print(f"{run.name} does not pass on the unbroken package (exit code {run.code})", run.output, sep="\n")
        if failed == 0:
            print(f"the tests of {len(runs)} files pass on the unbroken package", flush=True)
        return failed == 0

    def survivors(self, chosen: Iterable[Breakage], jobs: int, which: str = "") -> list[Breakage]:
        """Run them, print what became of each, and return those that no test has killed."""
        runs, survived = {}, []
        for breakage in chosen:
            try:
                run = self._run(breakage.name, [breakage.test, "-x"], broken(breakage))
                runs[run.name] = run, breakage
            except LookupError as error:
                print(f"stale {breakage.name}: {error}", flush=True)
                survived.append(breakage)
        for run in run_all([run for run, _ in runs.values()], self._environment, jobs=jobs, seconds=MOST_SECONDS):
            words, is_killed = verdict(run)
            print(f"{words}{which} ({run.seconds:.1f} s, CPU {run.cpu_seconds:.1f} s)", flush=True)
            if not is_killed:
                survived.append(runs[run.name][1])
            shutil.rmtree(run.source.parent)
        return survived

    def _run(self, name: str, tests: list[str], texts: Mapping[str, str]) -> Run:
        self._packages += 1
        home = self._folder / str(self._packages)  # not its name: PYTHONPATH is split at each colon
        _link(PACKAGE, home / "src" / "seekpoint", texts)
        (home / "migrations").symlink_to(ROOT / "migrations")
        return Run(name, tests, home / "src", home / "log")


def verdict(run: Run) -> tuple[str, bool]:
    """What to print of a run, and whether its breakage was killed."""
    if run.has_hung:
        return f"killed {run.name} by {run.tests[0]}, which hung", True
    output = run.output
    if unusable := UNUSABLE.search(output):  # any test fails on that
        return f"stale {run.name}: {unusable[0]}", False
    if ERROR_AT_SETUP.search(output):  # a server may be the cause
        return f"its test did not begin: {run.name}\n{output}", False
    failed = re.search(r"^(?:FAILED|ERROR) (\S.*?)(?: - |$)", output, re.MULTILINE)
    if run.code == TESTS_FAILED and failed:
        return f"killed {run.name} by {failed[1]}", True
    return f"survived {run.name}" + (f"\npytest exit code {run.code}\n{output}" if run.code != 0 else ""), False


def _link(original: Path, copy: Path, texts: Mapping[str, str]) -> None:
    """A folder of links to what is in the original, in which some files have other texts."""
    copy.mkdir(parents=True)
    for entry in original.iterdir():
        below = {file: text for file, text in texts.items() if Path(file).parts[0] == entry.name}
        if not below:
            (copy / entry.name).symlink_to(entry)
        elif entry.is_dir():
            _link(entry, copy / entry.name, {str(Path(*Path(file).parts[1:])): text for file, text in below.items()})
        else:
            (copy / entry.name).write_text(below[entry.name])


if __name__ == "__main__":
    sys.exit(main())
