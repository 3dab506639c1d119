"""Runs and reports the reload chaos."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from chaos.reload.reload_chaos import STAGERS, ReloadChaos, draw_schedule
from seekpoint.testing.servers.postgres import PostgresServer

KILLED = ("drivers", "workers", "workers on standby", "tasks", "postgres")


@dataclass(frozen=True)
class Account:
    """The counts of a run. ``passed`` only if every kind of fault happened and nothing is wrong."""

    seed: int
    rounds: int
    reloads: dict[str, int]
    killed: dict[str, int]
    records: int
    compared: int
    differences: int
    polls: int
    torn: int
    interrupted: int
    worst_lock_seconds: float
    median_lock_seconds: float
    seconds: float
    findings: list[str]

    @property
    def never(self) -> list[str]:
        """The kinds of faults that did not happen."""
        return [kind for kind in KILLED if not self.killed[kind]]

    @property
    def passed(self) -> bool:
        """Whether all faults happened, the table was read, and nothing is wrong."""
        return not (self.findings or self.never or self.torn or self.differences) and self.polls > 0

    def lines(self) -> list[str]:
        """The account as lines."""
        killed = ", ".join(f"{count} {kind}" for kind, count in self.killed.items())
        return [
            f"{self.rounds} reloads ({', '.join(f'{n} {how}' for how, n in sorted(self.reloads.items()))})",
            f"killed: {killed}",
            f"{self.records:,} records; {self.compared:,} rows compared, {self.differences} differences",
            f"{self.polls:,} reads, {self.torn} torn ({self.interrupted} times Postgres did not answer)",
            f"lock: worst {self.worst_lock_seconds:.3f} s, median {self.median_lock_seconds:.3f} s",
            f"{self.seconds:.0f} s in all; seed {self.seed}",
            *(f"FAILED: {finding}" for finding in self.findings[:50]),
            *(f"FAILED: no {kind} were killed, so this proves nothing about it" for kind in self.never),
        ]

    def write(self, path: Path) -> None:
        """Write the account as JSON."""
        values: dict[str, Any] = {**vars(self), "passed": self.passed}
        path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def run(
    postgres: PostgresServer,
    bootstrap: str,
    *,
    rounds: int,
    seed: int,
    stagers: Sequence[str] = STAGERS,
    show: Callable[[str], None] = print,
) -> Account:
    """Run ``rounds`` rounds, or up to the first that fails."""
    began, played = monotonic(), 0
    with ReloadChaos(postgres, bootstrap, seed, show) as chaos:
        findings = chaos.counts.findings
        try:
            for plan in draw_schedule(seed, rounds, stagers):
                chaos.round(plan)
                played += 1
            chaos.compare_at_end()
        except Exception as error:  # noqa: BLE001 -- the account has it
            findings.append(f"{type(error).__name__}: {error}")
    counts, reader = chaos.counts, chaos.reader
    locks = sorted(counts.lock_seconds) or [0.0]
    return Account(
        seed=seed,
        rounds=played,
        reloads=dict(counts.reloads),
        killed={kind: counts.killed[kind] for kind in KILLED},
        records=sum(len(log.records) for log in chaos.load.logs),
        compared=counts.compared,
        differences=len(counts.differing),
        polls=reader.polls,
        torn=len(reader.torn),
        interrupted=reader.interrupted,
        worst_lock_seconds=locks[-1],
        median_lock_seconds=locks[len(locks) // 2],
        seconds=monotonic() - began,
        findings=[*findings, *chaos.load.strange, *counts.differing[:10], *reader.torn[:10]],
    )
