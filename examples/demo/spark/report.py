"""The demo's results, as a table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from rich.table import Table

from demo.report import Comparison, count, named_lines

KILLS = 2  # of drivers


@dataclass(slots=True)
class Outcome:
    """Counts of the faults that were observed, not of those that were attempted."""

    drivers: int = 0
    kills: int = 0
    kills_while_staging: int = 0
    kills_in_transaction: int = 0
    task_processes_killed: int = 0
    fenced: int = 0
    files_left: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The demo's results. ``sums`` is the number of rows with sums, and how many of them differ."""

    comparison: Comparison
    sums: tuple[int, int]
    outcome: Outcome
    seconds: float
    exit_code: int
    servers: Mapping[str, str]

    @property
    def problems(self) -> list[str]:
        """Why the demo has failed; empty if it has not."""
        o = self.outcome
        checks = [
            *self.comparison.problems,
            (self.sums[1], f"{self.sums[1]:,} rows of sums are not what the records add up to"),
            (not self.sums[0], "there are no sums, which proves nothing"),
            (not o.kills_while_staging, "no driver was killed while tasks staged"),
            (not o.kills_in_transaction, "no driver was killed in an open transaction that had written rows"),
            (not o.task_processes_killed, "no process of a task was killed"),
            (not o.fenced, "two drivers ran at once, and none was fenced"),
            (o.files_left, f"{o.files_left} folders of killed drivers are left: a driver may have read their files"),
            (self.exit_code, f"the last driver did not end after its micro-batch: exit code {self.exit_code}"),
        ]
        return [problem for is_wrong, problem in checks if is_wrong]

    def as_json(self) -> str:
        """The report for machines."""
        c = self.comparison
        rows = {"records_in": c.records_in, "rows_out": c.rows_out, "lost": c.lost, "twice": c.twice}
        sums = {"sums": self.sums[0], "sums_that_differ": self.sums[1]}
        seconds = {"seconds": round(self.seconds, 2), "records_per_second": round(c.records_in / self.seconds)}
        return json.dumps(
            {**rows, **sums, "transactions": c.transactions, **asdict(self.outcome), **seconds, **self.servers},
            indent=2,
        )

    def as_table(self) -> Table:
        """The report for people."""
        c, o = self.comparison, self.outcome
        lines = [
            *c.lines,
            ("sums", f"{self.sums[0]:,} rows, {count(self.sums[1])} of them differ"),
            ("micro-batches", f"{c.transactions:,}, each one transaction of rows, sums and offsets"),
            (
                "drivers",
                f"{o.drivers}; {o.kills} killed with SIGKILL, one while tasks staged, one inside an open transaction",
            ),
            ("tasks", f"{o.task_processes_killed} of their Python processes killed with SIGKILL"),
            ("two at once", f"the older one fenced: {o.fenced}"),
            ("checkpoint", "none: each driver began in an empty folder, those of killed drivers were deleted"),
            ("records/s", f"{c.records_in / self.seconds:,.0f} over {self.seconds:.1f} s, all faults included"),
            *self.servers.items(),
        ]
        return named_lines(lines)
