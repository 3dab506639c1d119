"""The results of a run, as text and as ``chaos-report.json``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.worker.checks import Account
from chaos.worker.event_log import EventLog

EXPECTED = {
    "small_transactions": "a transaction of two round trips",
    "found": "a topic that appeared",
    "edited": "a dead letter that was edited and replayed",
    "retried": "a retry of a record that waited while others continued",
}
TRAITS = ("sums", "changes", "cloud_events", "firsts")  # of pools, whose records are counted


@dataclass
class Report:
    """The counts of a whole run."""

    seed: int
    kinds: tuple[str, ...]
    small_transactions: int = 0
    expected: Sequence[str] = ("small_transactions",)  # counts that a run of these pools must not leave at zero
    servers: str = ""
    rounds: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    records: int = 0
    of_trait: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(TRAITS, 0)))
    found: int = 0
    edited: int = 0
    waited: int = 0
    retried: int = 0
    lost: int = 0
    twice: int = 0
    snapshots: int = 0
    seconds: float = 0.0
    recovery: dict[str, float] = field(default_factory=dict)
    failure: list[str] = field(default_factory=list)

    def happened(self, kind: str, seconds: float) -> None:
        """Count a fault that happened, and the seconds until its partitions were committed to again."""
        self.faults[kind] += 1
        self.recovery[kind] = max(seconds, self.recovery.get(kind, 0.0))

    def add(self, account: Account) -> None:
        """Add the account of a round."""
        self.records += account.records
        self.lost += len(account.lost)
        self.twice += len(account.twice)

    @property
    def vacuous(self) -> list[str]:
        """The kinds of faults, and of what workers and operators do, that never happened."""
        never = [EXPECTED[count] for count in self.expected if not getattr(self, count)]
        return [*never, *(kind for kind in self.kinds if not self.faults[kind])]

    @property
    def passed(self) -> bool:
        """Whether all kinds of faults happened, and nothing is wrong."""
        return not (self.failure or self.vacuous or self.lost or self.twice)

    def as_dict(self, log: EventLog) -> dict[str, Any]:
        """The values for ``chaos-report.json``."""
        return {
            "seed": self.seed,
            "rounds": self.rounds,
            "faults": {kind: self.faults[kind] for kind in self.kinds},
            "fences": log.totals["Refused"],
            "unknown_commits": log.totals["CommitUnknown"],
            "rebalances": log.totals["rebalances"],
            "records": self.records,
            **self.of_trait,
            "topics_found": self.found,
            "topics_stopped": log.totals["TopicStopped"],
            "edited": self.edited,
            "waited": self.waited,
            "retried": self.retried,
            "dead_lettered": log.totals["DeadLettered"],
            "lost": self.lost,
            "twice": self.twice,
            "worst_recovery_seconds": round(max(self.recovery.values(), default=0.0), 2),
            "worst_recovery_by_kind": {kind: round(self.recovery[kind], 2) for kind in sorted(self.recovery)},
            "snapshots": self.snapshots,
            "fatal_clients": log.totals["fatal"],
            "transactions": log.totals["Committed"],
            "small_transactions": self.small_transactions,
            "suspect_ranges": log.totals["CrashSuspected"],
            "careful_seconds": round(log.careful_seconds, 1),
            "seconds": round(self.seconds, 1),
            "servers": self.servers,
            "passed": self.passed,
        }

    def write(self, path: Path, log: EventLog) -> None:
        """Write ``chaos-report.json``."""
        path.write_text(json.dumps(self.as_dict(log), indent=2) + "\n", encoding="utf-8")

    def lines(self, log: EventLog) -> list[str]:
        """The report in lines of text."""
        data = self.as_dict(log)
        lines = [f"{self.servers}; seed {self.seed}, {self.rounds} rounds, {sum(self.faults.values())} faults:"]
        lines += [
            f"  {kind:24} {self.faults[kind]:4}   worst recovery {self.recovery.get(kind, 0.0):5.2f} s"
            for kind in self.kinds
        ]
        lines += [
            f"{self.records:,} records in {data['transactions']:,} transactions: lost {self.lost}, twice {self.twice}",
            f"{self.small_transactions:,} of them in two round trips",
            f"{self.of_trait['sums']:,} records in sums, each once; {self.of_trait['changes']:,} changes of rows",
            f"{self.of_trait['cloud_events']:,} CloudEvents, {self.of_trait['firsts']:,} records for rows that stay",
            f"{self.found} topics found, {data['topics_stopped']} stops of topics without a table",
            f"{self.edited:,} dead letters edited and replayed",
            f"{self.waited:,} waits for a retry while others continued, {self.retried:,} records applied by one",
            f"{data['fences']} fenced, {data['unknown_commits']} unknown COMMITs, {data['rebalances']} rebalances",
            f"{data['suspect_ranges']} suspect ranges, {data['careful_seconds']} s in small parts, of all partitions",
            f"{self.snapshots:,} snapshots, worst recovery {data['worst_recovery_seconds']} s, {self.seconds:.0f} s",
        ]
        never = [f"FAILED: {kind} never truly happened, so this run proves nothing about it" for kind in self.vacuous]
        return lines + (self.failure or never)
