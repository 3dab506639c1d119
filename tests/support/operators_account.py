"""Counts of the operators' session, over all its tests; ``make operators`` writes them to operators-report.json."""

from __future__ import annotations

import json
import os
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

REPORT = "SEEKPOINT_OPERATORS_REPORT"
"""The environment's name for the file; without it nothing is written."""


@dataclass
class OperatorsAccount:
    """Counts of the operators' plans: each was ``applied``, ``refused``, or had nothing to do (``unchanged``).

    ``broken`` counts plans whose connection broke, at COMMIT or at a statement; ``rebalanced`` plans while a worker
    left and another joined. ``obeyed`` has the seconds from a plan's COMMIT to the next claims, without rebalances;
    ``mirror_equal`` counts how often Kafka's tool showed the ledger's positions.
    """

    plans: int = 0
    applied: int = 0
    refused: int = 0
    unchanged: int = 0
    broken: int = 0
    rebalanced: int = 0
    snapshots: int = 0
    records: int = 0
    lost: int = 0
    twice: int = 0
    mirror_equal: int = 0
    mirror_unequal: int = 0
    alerts_fired: int = 0
    alerts_silent: int = 0
    children_killed: int = 0
    seeds: list[int] = field(default_factory=list)
    obeyed: list[float] = field(default_factory=list)

    def add_rows(self, stored: Iterable[Any], expected: Iterable[Any]) -> None:
        """Compare written rows with the expected ones, repetitions included; raises AssertionError if they differ."""
        is_there, wanted = Counter(stored), Counter(expected)
        lost, twice = wanted - is_there, is_there - wanted
        self.records += wanted.total()
        self.lost += lost.total()
        self.twice += twice.total()
        assert not lost, f"{lost.total()} lost: {sorted(lost)[:10]}"
        assert not twice, f"{twice.total()} written too often: {sorted(twice)[:10]}"

    def add_mirror(self, shown: Mapping[Any, Any], ledger: Mapping[Any, Any]) -> None:
        """Compare the positions in Kafka's tool with the ledger's; raises AssertionError if they differ."""
        if shown == ledger:
            self.mirror_equal += 1
        else:
            self.mirror_unequal += 1
        assert shown == ledger

    def report(self) -> dict[str, Any]:
        """The counts for JSON, with median and maximum of the seconds."""
        durations = self.obeyed
        seconds = (
            {"median": round(statistics.median(durations), 3), "most": round(max(durations), 3)} if durations else {}
        )
        return asdict(self) | {"obeyed": {"measured": len(durations), **seconds}}

    def write(self) -> None:
        """Write the report to the file that the environment names, and print it."""
        if path := os.environ.get(REPORT):
            text = json.dumps(self.report(), indent=2)
            Path(path).write_text(text + "\n", encoding="utf-8")
            print(f"\n{path}:\n{text}")
