"""Asks the questions, round by round, on a broker and a Postgres of its own; medians, ratios, ``bench-report.json``.

python benchmarks/run.py [--only core,peers] [--only "append, key"] [--quick] [--records N] [--rounds N] [--resume FILE]

Subjects are interleaved: each round asks every chosen question once, and with them the questions that they are compared
with, so that a ratio never spans two runs. The report is written after every row. ``--resume`` continues where a report
ended: with the rounds that are missing, or with questions that it has not. The exit code is 1 where a subject failed,
0 where all ran, or were peers that cannot be set up here.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console

import machine
import show
from ask import Asker
from goals import judge
from questions import GROUPS, QUESTIONS, Question, chosen, with_bases
from report import Row, summary

RECORDS, QUICK_RECORDS = 1_000_000, 200_000
ROUNDS = 3


def main() -> int:
    """Ask what is asked for; returns the exit code."""
    options = _options()
    console = Console(width=None if sys.stdout.isatty() else 160)
    if options.list:
        for group, about in GROUPS.items():
            console.print(f"[bold]{group}[/]: {about}", highlight=False)
            console.print("".join(f"  {q.name}\n" for q in QUESTIONS.values() if q.group == group), highlight=False)
        return 0
    if options.cores:
        os.sched_setaffinity(0, range(options.cores))
    session = Session(options, console)
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
    parser.add_argument("--only", default=[], help="groups and questions; may be repeated", action="append")
    parser.add_argument(
        "--quick", action="store_true", help="fewer records; without --only, the core rows in under three minutes"
    )
    parser.add_argument("--records", type=int, help=f"{RECORDS:,}; with --quick {QUICK_RECORDS:,}")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--kind", default="payments", choices=("payments", "flights"), help="of the core's records")
    parser.add_argument("--cores", type=int, help="servers and subjects share so many processors")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="a report to go on with; it is written back")
    parser.add_argument("--output", type=Path, help="bench-report.json")
    parser.add_argument("--list", action="store_true", help="name groups and questions, and end")
    options = parser.parse_args()
    options.records = options.records or (QUICK_RECORDS if options.quick else RECORDS)
    options.output = options.output or options.resume or Path("bench-report.json")
    names = [part.strip() for given in options.only for part in _parts(given)]
    try:
        options.chosen = chosen(names, quick=options.quick)
    except LookupError as error:
        parser.error(str(error))
    return options


def _parts(given: str) -> list[str]:
    """A question's name has commas itself: it is taken whole."""
    return [given] if given in QUESTIONS else [part for part in given.split(",") if part]


class Session:
    """One run: its rows, and those of the report that it continues."""

    def __init__(self, options: argparse.Namespace, console: Console) -> None:
        self._options, self._console = options, console
        before = json.loads(options.resume.read_text(encoding="utf-8")) if options.resume else {"rows": [], "runs": []}
        self._rows: list[Row] = before["rows"]
        self._runs: list[Row] = before["runs"]
        self.new: list[Row] = []
        self._number = 1 + max((run["run"] for run in self._runs), default=0)
        self.missing = {q.name: self._missing(q) for q in options.chosen}
        here = machine.describe()
        for run in self._runs:
            if (run["machine"], run["records"], run["kind"]) != (here, options.records, options.kind):
                raise SystemExit(f"{options.resume} was made on another machine, or of other records: begin a new one")

    def _missing(self, question: Question) -> int:
        """Rounds; none of what could not be set up."""
        found = {(r["run"], r["round"]): r.get("skipped", "") for r in self._rows if r["question"] == question.name}
        if any(why and not why.startswith("failed") for why in found.values()):
            return 0
        return max(0, (question.rounds or self._options.rounds) - sum(not why for why in found.values()))

    def run(self) -> None:
        """Ask until every chosen question has its rounds."""
        options = self._options
        plan = [(n, question) for n in range(1, max(self.missing.values()) + 1) for question in self._round(n)]
        with Asker(options, [question for _, question in plan], self._console) as asker:
            self._runs.append(
                {
                    "run": self._number,
                    "at": machine.today(),
                    "records": options.records,
                    "kind": options.kind,
                    "machine": machine.describe(),
                    "cores_used": options.cores or machine.describe()["cores"],
                    **asker.describe(),
                    "versions": machine.versions(),
                }
            )
            progress = show.Progress(plan, self._console)
            given_up: set[str] = set()
            for n, question in plan:
                if question.name in given_up:
                    progress.skip()
                    continue
                with progress.asking(n, question):
                    found = asker.ask(question)
                for row in found:
                    self.new.append(
                        {"question": question.name, "group": question.group, "run": self._number, "round": n, **row}
                    )
                    progress.tell(self.new[-1])
                if any("skipped" in row and not row["skipped"].startswith("failed") for row in found):
                    given_up.add(question.name)
                self.write()

    def _round(self, n: int) -> list[Question]:
        """What is asked in the n-th round; with ``--quick`` no bases that were not chosen."""
        wanted = [question for question in self._options.chosen if self.missing[question.name] >= n]
        found = wanted if self._options.quick else with_bases(wanted)
        return [replace(q, table=self._options.kind) if q.group == "core" else q for q in found]

    @property
    def report(self) -> Row:
        """All of it, up to now."""
        rows = [*self._rows, *self.new]
        against = {question.name: question.against for question in QUESTIONS.values()}
        return {"runs": self._runs, "goals": judge(rows), "summary": summary(rows, against), "rows": rows}

    def write(self) -> None:
        """The report to its file, whole or not at all."""
        path: Path = self._options.output
        part = path.with_name(f"{path.name}.part")
        part.write_text(json.dumps(self.report, indent=1) + "\n", encoding="utf-8")
        part.replace(path)


if __name__ == "__main__":
    sys.exit(main())
