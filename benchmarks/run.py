"""Asks the questions, round by round, on a broker and a Postgres of its own; medians, ratios, ``bench-report.json``.

python benchmarks/run.py [--only core,peers] [--only "append, key"] [--quick] [--records N] [--rounds N] [--resume FILE]
python benchmarks/run.py --only goals --processors 0,1 [--plan]    what the goals for two processors need; how long

Group after group is asked, in the order of --list. Subjects are interleaved: each round asks every chosen question of
the group once, and with them the questions that they are compared with, so that a ratio never spans two rounds. The
report is written after every row. ``--resume`` continues where a report ended: with the rounds that are missing, or
with questions that it has not. ``--processors`` pins servers and subjects. The exit code is 1 where a subject failed,
0 where all ran, or were peers that cannot be set up here.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from rich.console import Console

import machine
import page
import show
from ask import Asker
from goals import ASKED
from questions import GROUPS, OTHER_ROUNDS, QUESTIONS, ROUNDS, Question, chosen, with_bases
from report import Row

RECORDS, QUICK_RECORDS = 1_000_000, 200_000


def main() -> int:
    """Ask what is asked for; returns the exit code."""
    options = _options()
    console = Console(width=None if sys.stdout.isatty() else 160)
    if options.list:
        for group, about in GROUPS.items():
            console.print(f"[bold]{group}[/]: {about}", highlight=False)
            console.print("".join(f"  {q.name}\n" for q in QUESTIONS.values() if q.group == group), highlight=False)
        return 0
    if options.processors:
        os.sched_setaffinity(0, options.processors)  # servers and subjects inherit it
    session = Session(options, console)
    if options.plan:
        session.show_plan()
        return 0
    if not any(session.missing.values()):
        console.print("nothing is missing: every question chosen has its rounds")
        session.write()  # goals may have changed since
    else:
        session.run()
    show.tables(session.report, console)
    console.print(f"written: {options.output}")
    return int(any(str(row.get("skipped", "")).startswith("failed") for row in session.new))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", default=[], help="groups and questions; goals: what they need; may be repeated", action="append"
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer records; without --only, the core rows in under three minutes"
    )
    parser.add_argument("--records", type=int, help=f"{RECORDS:,}; with --quick {QUICK_RECORDS:,}")
    parser.add_argument("--rounds", type=int, help="(5 of the core, of small transactions and upserts; 3 of others)")
    parser.add_argument("--kind", default="payments", choices=("payments", "flights"), help="of the core's records")
    parser.add_argument("--processors", type=_processors, metavar="0,1", help="servers and subjects share these")
    parser.add_argument("--plan", action="store_true", help="name what would be asked and how long it takes, and end")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="a report to go on with; it is written back")
    parser.add_argument("--output", type=Path, help="bench-report.json")
    parser.add_argument("--list", action="store_true", help="name groups and questions, and end")
    options = parser.parse_args()
    options.records = options.records or (QUICK_RECORDS if options.quick else RECORDS)
    options.output = options.output or options.resume or Path("bench-report.json")
    names = [part.strip() for given in options.only for part in _parts(given)]
    options.for_goals = "goals" in names
    if options.for_goals:
        used = len(options.processors or os.sched_getaffinity(0))
        if used not in ASKED:
            parser.error(f"--only goals: with --processors, there are goals for {' or '.join(map(str, ASKED))}")
        names = [*(name for name in names if name != "goals"), *ASKED[used]]
    try:
        options.chosen = chosen(names, quick=options.quick)
    except LookupError as error:
        parser.error(str(error))
    return options


def _parts(given: str) -> list[str]:
    """A question's name has commas itself: it is taken whole."""
    return [given] if given in QUESTIONS else [part for part in given.split(",") if part]


def _processors(given: str) -> set[int]:
    """Raises ArgumentTypeError for one that this process may not use."""
    try:
        found = {int(number) for number in given.split(",")}
    except ValueError:
        raise argparse.ArgumentTypeError(f"not a list of numbers: {given}") from None
    if unknown := found - os.sched_getaffinity(0):
        raise argparse.ArgumentTypeError(f"no processor for this process: {', '.join(map(str, sorted(unknown)))}")
    return found


class Session:
    """One run: its rows, and those of the report that it continues."""

    def __init__(self, options: argparse.Namespace, console: Console) -> None:
        self._options, self._console = options, console
        before = json.loads(options.resume.read_text(encoding="utf-8")) if options.resume else {"rows": [], "runs": []}
        self._rows: list[Row] = before["rows"]
        self._runs: list[Row] = before["runs"]
        self.new: list[Row] = []
        self._number = 1 + max((run["run"] for run in self._runs), default=0)
        here = machine.describe()
        self._used = len(options.processors or ()) or here["cores"]
        first = self._runs[0]["cores_used"] if self._runs else self._used
        # Rates on other processors are other rows: a median or a ratio of both would say nothing.
        self._suffix = "" if self._used == first else f" ({self._used} processors)"
        self.missing = {q.name: self._missing(q) for q in options.chosen}
        for run in self._runs:
            if (run["machine"], run["records"], run["kind"]) != (here, options.records, options.kind):
                raise SystemExit(f"{options.resume} was made on another machine, or of other records: begin a new one")

    def _missing(self, question: Question) -> int:
        """Rounds; none of what could not be set up."""
        found = {
            (r["run"], r["round"]): r.get("skipped", "")
            for r in self._rows
            if r["question"] == question.name + self._suffix
        }
        if any(why and not why.startswith("failed") for why in found.values()):
            return 0
        wanted = question.rounds or self._options.rounds or ROUNDS.get(question.group, OTHER_ROUNDS)
        return max(0, wanted - sum(not why for why in found.values()))

    def run(self) -> None:
        """Ask until every chosen question has its rounds."""
        options = self._options
        plan = self._plan()
        with Asker(options, [question for _, question in plan], self._console) as asker:
            self._runs.append(
                {
                    "run": self._number,
                    "at": machine.today(),
                    "records": options.records,
                    "kind": options.kind,
                    "machine": machine.describe(),
                    "cores_used": self._used,
                    **asker.describe(),
                    "versions": machine.versions(),
                }
            )
            progress = show.Progress(plan, self._console, self._usual())
            given_up: set[str] = set()
            for n, question in plan:
                if question.name in given_up:
                    progress.skip()
                    continue
                with progress.asking(n, question):
                    found = asker.ask(question)
                for row in found:
                    name = question.name + self._suffix
                    self.new.append({"question": name, "group": question.group, "run": self._number, "round": n, **row})
                    progress.tell(self.new[-1])
                if any("skipped" in row and not row["skipped"].startswith("failed") for row in found):
                    given_up.add(question.name)
                self.write()

    def _plan(self) -> list[tuple[int, Question]]:
        """Rounds and questions, group by group; no number of a round is given twice, so that no ratio spans two."""
        plan, last = [], 0
        for group in GROUPS:
            mine = [question for question in self._options.chosen if question.group == group]
            rounds = max((self.missing[question.name] for question in mine), default=0)
            for n in range(1, rounds + 1):
                plan += [(last + n, question) for question in self._round(mine, n)]
            last += rounds
        return plan

    def _round(self, questions: Collection[Question], n: int) -> list[Question]:
        """Those that miss so many rounds, with their bases; with ``--quick`` and for the goals only chosen ones."""
        wanted = [question for question in questions if self.missing[question.name] >= n]
        found = wanted if self._options.quick else with_bases(wanted)
        if self._options.for_goals:
            found = [question for question in found if question.name in self.missing]
        return [replace(q, table=self._options.kind) if q.group == "core" else q for q in found]

    def show_plan(self) -> None:
        """What would be asked, how often, and an estimate of the time."""
        plan = self._plan()
        for name, times in Counter(question.name for _, question in plan).items():
            self._console.print(f"{times:>3}  {name}", highlight=False)
        left = show.Progress(plan, self._console, self._usual()).remaining()
        self._console.print(f"{len(plan)} runs, {left}; servers and topics take about a minute more")

    def _usual(self) -> dict[str, float]:
        """Seconds that each question took in the report that is kept, and in the one that is continued."""
        kept = json.loads(page.COPY.read_text(encoding="utf-8"))
        reports = ((kept["rows"], kept["runs"]), (self._rows, self._runs))
        known = [show.durations(rows, runs, self._options.records) for rows, runs in reports]
        return known[0] | known[1]

    @property
    def report(self) -> Row:
        """All of it, up to now."""
        rows = [*self._rows, *self.new]
        return page.with_verdicts({"runs": self._runs, "rows": rows})

    def write(self) -> None:
        """The report to its file, whole or not at all."""
        path: Path = self._options.output
        part = path.with_name(f"{path.name}.part")
        part.write_text(json.dumps(self.report, indent=1) + "\n", encoding="utf-8")
        part.replace(path)


if __name__ == "__main__":
    sys.exit(main())
