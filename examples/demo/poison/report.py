"""The demo's results, as a table and as JSON."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from demo.poison.handling import RETRY
from demo.poison.judge import Fate, Verdict
from demo.poison.kinds import CRASHING, KINDS
from demo.report import count, named_lines

SHOWN = 5  # dead letters with faults, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The demo's results.

    ``seconds`` is from the first poisoned record produced to the last dead letter replayed, crashes included. The
    rates are records per second of each run, from the first record produced to the last one committed. They leave out
    the records at the end, which contain the crashing ones. ``clean_rows`` and ``clean_records`` are those of the clean
    run; ``replayed`` is the number that the replay returned.
    """

    verdict: Verdict
    seconds: float
    rate_clean: float
    rate_poisoned: float
    clean_records: int
    clean_rows: int
    planned: int
    replayed: int
    deaths: Counter[str]
    seed: int
    broker: str
    postgres: str
    exit_codes: tuple[int, ...] = field(default=())

    @property
    def problems(self) -> list[str]:
        """Why the demo has failed; empty if it has not."""
        v = self.verdict
        together = v.applied + v.open_dead_letters + v.skipped
        too_few = [name for name in CRASHING_NAMES if self.deaths[name] < RETRY.crashes]
        checks = [
            (v.lost, f"{v.lost:,} records are lost"),
            (v.twice, f"{v.twice:,} records are there twice"),
            (v.strange, f"{v.strange:,} rows are not what was sent"),
            (together != v.records, f"applied + dead-lettered + skipped is {together:,}, of {v.records:,} records"),
            (
                v.crashing_dead_lettered < CRASHING,
                f"{v.crashing_dead_lettered} of {CRASHING} crashing records were dead-lettered",
            ),
            (too_few, f"no worker was killed {RETRY.crashes} times by {' and '.join(too_few)}"),
            (v.replayed != self.planned, f"{v.replayed:,} of {self.planned:,} planned dead letters are replayed"),
            (self.replayed != self.planned, f"the replay reports {self.replayed:,} of {self.planned:,}"),
            (self.clean_rows != self.clean_records, f"{self.clean_rows:,} of {self.clean_records:,} clean rows"),
            (any(self.exit_codes), f"the workers did not drain: exit codes {self.exit_codes}"),
        ]
        return [problem for is_wrong, problem in checks if is_wrong] + self._wrong()

    def _wrong(self) -> list[str]:
        wrong = self.verdict.wrong
        more = len(wrong) - SHOWN
        return wrong[:SHOWN] + ([f"and {more:,} more of this kind"] if more > 0 else [])

    def as_json(self) -> str:
        """The report for machines."""
        v = self.verdict
        counted = {name: number for name, number in asdict(v).items() if isinstance(number, int)}
        del counted["strange"], counted["dead_letters"]
        return json.dumps(
            {
                **counted,
                "seconds": round(self.seconds, 2),
                "rate_clean": round(self.rate_clean),
                "rate_poisoned": round(self.rate_poisoned),
                "dead_letters": v.dead_letters,
                "workers_killed": sum(self.deaths.values()),
                "seed": self.seed,
                "kinds": {name: asdict(fate) for name, fate in v.fates.items()},
                "broker": self.broker,
                "postgres": self.postgres,
            },
            indent=2,
        )

    def as_table(self) -> RenderableType:
        """The report for people."""
        return Group(self._of_kinds(), Text(), self._of_all())

    def _of_kinds(self) -> Table:
        shown = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", expand=True)
        for name in ("broken by", "sent", "retries", "results"):
            shown.add_column(name, justify="right" if name in {"sent", "retries"} else "left", no_wrap=True)
        shown.add_column("an error of one", no_wrap=True, ratio=1)  # cut off at the terminal's width
        for name, fate in self.verdict.fates.items():
            shown.add_row(name, f"{fate.sent:,}", f"{fate.retried:,}", _end(fate), Text(fate.error))
        return shown

    def _of_all(self) -> Table:
        v = self.verdict
        share = self.rate_poisoned / self.rate_clean
        lines = [
            ("records", f"{v.records:,}"),
            ("applied", f"{v.applied:,}, of them {v.replayed:,} replayed with the handler fixed"),
            ("dead letters", f"{v.open_dead_letters:,} open, of {v.dead_letters:,} in all"),
            ("skipped", f"{v.skipped:,}"),
            ("lost", count(v.lost)),
            ("twice", count(v.twice)),
            ("crashing", f"{v.crashing_dead_lettered} dead-lettered; workers died {sum(self.deaths.values())} times"),
            ("records/s", f"{self.rate_poisoned:,.0f}, {share:.2f} of {self.rate_clean:,.0f} with nothing broken"),
            ("seconds", f"{self.seconds:.1f}, crashes and replay included"),
            ("broker", self.broker),
            ("database", self.postgres),
        ]
        return named_lines(lines)


CRASHING_NAMES = tuple(kind.name for kind in KINDS if kind.crashes)


def _end(fate: Fate) -> str:
    ends = {
        "applied": fate.applied - fate.replayed,
        "replayed": fate.replayed,
        "dead-lettered": fate.dead_lettered,
        "lost": fate.sent - fate.applied - fate.dead_lettered,
    }
    return ", ".join(f"{number:,} {name}" for name, number in ends.items() if number)
