"""A whole siege, and its account: for people, and for the test that holds it to its word."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from chaos.reload.run_reloads import STAGERS, Siege, deal
from seekpoint.testing.servers.postgres import PostgresServer

FOES = ("drivers", "workers", "workers standing by", "tasks", "postgres")


@dataclass(frozen=True)
class Account:
    """What a siege was, in numbers. ``passed`` only if every kind of fault truly happened and nothing is wrong."""

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
        return [foe for foe in FOES if not self.killed[foe]]

    @property
    def passed(self) -> bool:
        """Whether it proves anything, and nothing is wrong."""
        return not (self.findings or self.never or self.torn or self.differences) and self.polls > 0

    def lines(self) -> list[str]:
        """For people."""
        killed = ", ".join(f"{count} {foe}" for foe, count in self.killed.items())
        return [
            f"{self.rounds} reloads ({', '.join(f'{n} {how}' for how, n in sorted(self.reloads.items()))})",
            f"killed: {killed}",
            f"{self.records:,} records; {self.compared:,} rows compared, {self.differences} differences",
            f"{self.polls:,} reads, {self.torn} torn ({self.interrupted} times Postgres did not answer)",
            f"lock: worst {self.worst_lock_seconds:.3f} s, median {self.median_lock_seconds:.3f} s",
            f"{self.seconds:.0f} s in all; seed {self.seed}",
            *(f"FAILED: {finding}" for finding in self.findings[:50]),
            *(f"FAILED: no {foe} were killed, so this proves nothing about it" for foe in self.never),
        ]

    def write(self, path: Path) -> None:
        """As JSON."""
        said: dict[str, Any] = {**vars(self), "passed": self.passed}
        path.write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")


def besiege(
    postgres: PostgresServer,
    bootstrap: str,
    *,
    rounds: int,
    seed: int,
    stagers: Sequence[str] = STAGERS,
    show: Callable[[str], None] = print,
) -> Account:
    """Play so many rounds, or up to the first that does not come to its end."""
    began, played = monotonic(), 0
    with Siege(postgres, bootstrap, seed, show) as siege:
        findings = siege.tally.findings
        try:
            for plan in deal(seed, rounds, stagers):
                siege.round(plan)
                played += 1
            siege.last_account()
        except Exception as error:  # noqa: BLE001 -- the account tells it
            findings.append(f"{type(error).__name__}: {error}")
    tally, reader = siege.tally, siege.reader
    locks = sorted(tally.lock_seconds) or [0.0]
    return Account(
        seed=seed,
        rounds=played,
        reloads=dict(tally.reloads),
        killed={foe: tally.killed[foe] for foe in FOES},
        records=sum(len(log.records) for log in siege.load.logs),
        compared=tally.compared,
        differences=len(tally.differing),
        polls=reader.polls,
        torn=len(reader.torn),
        interrupted=reader.interrupted,
        worst_lock_seconds=locks[-1],
        median_lock_seconds=locks[len(locks) // 2],
        seconds=monotonic() - began,
        findings=[*findings, *siege.load.strange, *tally.differing[:10], *reader.torn[:10]],
    )
