"""The demo's results, as a table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from demo.report import count

FEWEST = 10  # polls in one reload: fewer prove nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Reloaded:
    """One reload. ``rows`` are those of the table when it was compared, after the cut-over.

    ``differences`` are rows: those that ``verify`` finds afterwards, and those that differ from the rows that plain
    Python computes. ``worker_pause_seconds`` is the longest time without progress of a partition, from the middle of
    the run until the new version's workers had taken over all partitions; ``kill_pause_seconds`` the longest before,
    while the killed worker's session timed out. ``staging_rows_per_second`` counts from the request to the last range,
    Spark's start included. ``applied`` are records that workers committed meanwhile.
    """

    strategy: str
    staged_by: str
    rows: int
    torn_reads: int
    polls: int
    differences_by_verify: int
    differences_by_python: int
    lock_seconds: float
    tries: int
    records_under_lock: int
    keys_under_lock: int
    worker_pause_seconds: float
    kill_pause_seconds: float
    kills_in_transaction: int
    staging_rows_per_second: float
    applied: int
    seconds: float

    @property
    def differences(self) -> int:
        """The sum of both comparisons."""
        return self.differences_by_verify + self.differences_by_python

    def as_dict(self) -> dict[str, Any]:
        """The values for JSON, the totals' names first."""
        first = ("strategy", "rows", "torn_reads", "polls", "differences")
        every = asdict(self) | {"differences": self.differences}
        return {key: _rounded(every[key]) for key in (*first, *(key for key in every if key not in first))}

    @property
    def problems(self) -> list[str]:
        """What is wrong with the reload."""
        checks = [
            (self.torn_reads, f"{self.torn_reads:,} of {self.polls:,} reads saw a torn table"),
            (self.polls < FEWEST, f"the table was read only {self.polls} times, which proves nothing"),
            (self.differences_by_verify, f"verify finds {self.differences_by_verify:,} rows that differ"),
            (self.differences_by_python, f"{self.differences_by_python:,} rows are not what the records make"),
            (not self.kills_in_transaction, "no worker was killed inside a transaction"),
            (not self.applied, "the workers applied nothing meanwhile"),
        ]
        return [f"{self.strategy}: {problem}" for is_wrong, problem in checks if is_wrong]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The demo's results. ``rate`` is how many records a second were produced meanwhile."""

    reloads: Sequence[Reloaded]
    records: int
    rate: int
    seconds: float
    exit_codes: Sequence[int]
    complaints: Sequence[str]
    servers: Mapping[str, str]

    @property
    def problems(self) -> list[str]:
        """Why the demo has failed; empty if it has not."""
        problems = [problem for reload in self.reloads for problem in reload.problems]
        problems += [f"read: {complaint}" for complaint in self.complaints[:5]]
        if any(self.exit_codes):
            problems.append(f"the workers did not drain: exit codes {tuple(self.exit_codes)}")
        return problems

    def as_json(self) -> str:
        """The report for machines: sums and worst values, and each reload below."""
        totals = {
            "strategy": ", ".join(reload.strategy for reload in self.reloads),
            "rows": max(reload.rows for reload in self.reloads),
            "torn_reads": sum(reload.torn_reads for reload in self.reloads),
            "polls": sum(reload.polls for reload in self.reloads),
            "differences": sum(reload.differences for reload in self.reloads),
            "lock_seconds": max(reload.lock_seconds for reload in self.reloads),
            "worker_pause_seconds": max(reload.worker_pause_seconds for reload in self.reloads),
            "staging_rows_per_second": min(reload.staging_rows_per_second for reload in self.reloads),
            "kills_in_transaction": sum(reload.kills_in_transaction for reload in self.reloads),
            "records": self.records,
            "live_records_per_second": self.rate,
            "seconds": self.seconds,
        }
        report = {key: _rounded(value) for key, value in totals.items()}
        reloads = {"reloads": [reload.as_dict() for reload in self.reloads]}
        return json.dumps(report | reloads | dict(self.servers), indent=2)

    def as_table(self) -> RenderableType:
        """The report for people."""
        shown = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        shown.add_column("")
        for reload in self.reloads:
            shown.add_column(reload.strategy, justify="right", no_wrap=True)
        lines: list[tuple[str, list[Any]]] = [
            ("rows", [f"{r.rows:,}" for r in self.reloads]),
            ("torn reads", [f"{count(r.torn_reads)} of {r.polls:,}" for r in self.reloads]),
            ("rows that differ", [count(r.differences) for r in self.reloads]),
            ("seconds under the lock", [f"{r.lock_seconds:.3f}" for r in self.reloads]),
            ("keys checked under it", [f"{r.keys_under_lock:,}" for r in self.reloads]),
            ("longest pause, s", [f"{r.worker_pause_seconds:.2f}" for r in self.reloads]),
            ("pause after the kill, s", [f"{r.kill_pause_seconds:.2f}" for r in self.reloads]),
            ("rows staged a second", [f"{r.staging_rows_per_second:,.0f}" for r in self.reloads]),
            ("staged by", [r.staged_by for r in self.reloads]),
            ("applied meanwhile", [f"{r.applied:,}" for r in self.reloads]),
            ("seconds in all", [f"{r.seconds:.1f}" for r in self.reloads]),
        ]
        for name, values in lines:
            shown.add_row(name, *values)
        whole = f"{self.records:,} records, {self.rate:,} a second meanwhile, {self.seconds:.0f} s in all"
        return Group(shown, Text(), Text(whole), *(Text(name) for name in self.servers.values()))


def _rounded(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value
