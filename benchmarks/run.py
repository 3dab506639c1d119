"""Asks the questions round by round, on a new broker and Postgres; writes medians and ratios to a report.

python benchmarks/run.py [--only core,peers] [--only "append, key"] [--quick] [--records N] [--rounds N] [--resume FILE]
python benchmarks/run.py --only goals --processors 0,1 [--plan]    the questions of the goals for two processors

Groups are asked in the order of --list. Each round asks every chosen question of the group once, and the questions
that they are compared with, so that a ratio never spans two rounds. The report is written after every row. ``--resume``
continues a report with the rounds or questions that it lacks. ``--processors`` pins servers and subjects. The exit code
is 1 if a subject failed; a peer that cannot be set up here is skipped.
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
    """Ask the chosen questions; returns the exit code."""
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
        console.print("nothing is missing: every chosen question has its rounds")
        session.write()  # goals may have changed since
    else:
        session.run()
    show.tables(session.report, console)
    console.print(f"written: {options.output}")
    return int(any(str(row.get("skipped", "")).startswith("failed") for row in session.new))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", default=[], help="groups and questions, or `goals` for their questions; repeatable", action="append"
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer records; without --only, the core rows in under three minutes"
    )
    parser.add_argument("--records", type=int, help=f"{RECORDS:,}; with --quick {QUICK_RECORDS:,}")
    parser.add_argument("--rounds", type=int, help="(5 for the core, small transactions and upserts; 3 for others)")
    parser.add_argument("--kind", default="payments", choices=("payments", "flights"), help="the core's records")
    parser.add_argument("--processors", type=_processors, metavar="0,1", help="servers and subjects share these")
    parser.add_argument("--plan", action="store_true", help="show the plan and an estimate of its time, and exit")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="the report to continue, which is overwritten")
    parser.add_argument("--output", type=Path, help="bench-report.json")
    parser.add_argument("--list", action="store_true", help="show groups and questions, and exit")
    options = parser.parse_args()
    options.records = options.records or (QUICK_RECORDS if options.quick else RECORDS)
    options.output = options.output or options.resume or Path("bench-report.json")
    names = [part.strip() for argument in options.only for part in _parts(argument)]
    options.for_goals = "goals" in names
    if options.for_goals:
        used = len(options.processors or os.sched_getaffinity(0))
        if used not in ASKED:
            parser.error(
                f"--only goals: there are goals for {' or '.join(map(str, ASKED))} processors, not for {used}: choose "
                "them with --processors"
            )
        names = [*(name for name in names if name != "goals"), *ASKED[used]]
    try:
        options.chosen = chosen(names, quick=options.quick)
    except LookupError as error:
        parser.error(str(error))
    return options


def _parts(argument: str) -> list[str]:
    """The comma-separated names in an argument; a question's name may contain commas."""
    return [argument] if argument in QUESTIONS else [part for part in argument.split(",") if part]


def _processors(argument: str) -> set[int]:
    """The processors. Raises ArgumentTypeError for one that this process may not use."""
    try:
        processors = {int(number) for number in argument.split(",")}
    except ValueError:
        raise argparse.ArgumentTypeError(f"not a list of numbers: {argument}") from None
    if unknown := processors - os.sched_getaffinity(0):
        raise argparse.ArgumentTypeError(f"this process may not use {', '.join(map(str, sorted(unknown)))}")
    return processors


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
                raise SystemExit(f"{options.resume} is from another machine, or of other records: begin a new report")

    def _missing(self, question: Question) -> int:
        """The number of missing rounds; 0 for a question that could not be set up."""
        rounds = {
            (r["run"], r["round"]): r.get("skipped", "")
            for r in self._rows
            if r["question"] == question.name + self._suffix
        }
        if any(why and not why.startswith("failed") for why in rounds.values()):
            return 0
        wanted = question.rounds or self._options.rounds or ROUNDS.get(question.group, OTHER_ROUNDS)
        return max(0, wanted - sum(not why for why in rounds.values()))

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
                    rows = asker.ask(question)
                for row in rows:
                    name = question.name + self._suffix
                    self.new.append({"question": name, "group": question.group, "run": self._number, "round": n, **row})
                    progress.tell(self.new[-1])
                if any("skipped" in row and not row["skipped"].startswith("failed") for row in rows):
                    given_up.add(question.name)
                self.write()

    def _plan(self) -> list[tuple[int, Question]]:
        """Rounds and questions, group by group; each round has its own number, so that no ratio spans two."""
        plan, last = [], 0
        for group in GROUPS:
            mine = [question for question in self._options.chosen if question.group == group]
            rounds = max((self.missing[question.name] for question in mine), default=0)
            for n in range(1, rounds + 1):
                plan += [(last + n, question) for question in self._round(mine, n)]
            last += rounds
        return plan

    def _round(self, questions: Collection[Question], n: int) -> list[Question]:
        """Questions that lack ``n`` rounds, with their bases; only chosen ones with ``--quick`` and for the goals."""
        wanted = [question for question in questions if self.missing[question.name] >= n]
        to_ask = wanted if self._options.quick else with_bases(wanted)
        if self._options.for_goals:
            to_ask = [question for question in to_ask if question.name in self.missing]
        return [replace(q, table=self._options.kind) if q.group == "core" else q for q in to_ask]

    def show_plan(self) -> None:
        """What would be asked, how often, and an estimate of the time."""
        plan = self._plan()
        for name, times in Counter(question.name for _, question in plan).items():
            self._console.print(f"{times:>3}  {name}", highlight=False)
        left = show.Progress(plan, self._console, self._usual()).remaining()
        self._console.print(f"{len(plan)} runs, {left}; servers and topics take about a minute more")

    def _usual(self) -> dict[str, float]:
        """Seconds that each question took in the stored report, and in the one that is continued."""
        kept = json.loads(page.COPY.read_text(encoding="utf-8"))
        reports = ((kept["rows"], kept["runs"]), (self._rows, self._runs))
        known = [show.durations(rows, runs, self._options.records) for rows, runs in reports]
        return known[0] | known[1]

    @property
    def report(self) -> Row:
        """The report up to now."""
        rows = [*self._rows, *self.new]
        return page.with_verdicts({"runs": self._runs, "rows": rows})

    def write(self) -> None:
        """Write the report to its file, atomically."""
        path: Path = self._options.output
        part = path.with_name(f"{path.name}.part")
        part.write_text(json.dumps(self.report, indent=1) + "\n", encoding="utf-8")
        part.replace(path)


if __name__ == "__main__":
    sys.exit(main())
