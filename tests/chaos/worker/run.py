"""``make chaos ROUNDS= SEED=``: kill real workers and real servers, and account for every record.

The modules read in this order: ``schedule`` (what will happen), ``worker`` (who it happens to), ``crew`` and
``arena`` (where), ``blows``, ``upheavals`` and ``failing`` (the faults), ``oracle`` (the judges), ``report``.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic

import psycopg

if __name__ == "__main__":  # run by path: the package is the folder around this file
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from chaos.worker import blows, failing, upheavals
from chaos.worker.arena import Arena
from chaos.worker.crew import Crew
from chaos.worker.field import Field, Strike
from chaos.worker.load import Load
from chaos.worker.log import Stuck
from chaos.worker.oracle import Sampler, account, positions
from chaos.worker.report import Report
from chaos.worker.schedule import KILLS, KINDS, Fault, Round, deal

_PLAIN = (
    blows.kill_at_random,
    blows.zombie_before_writing,
    blows.zombie_in_transaction,
    blows.commit_cut_before,
    blows.commit_cut_after,
    blows.commit_delayed,
    blows.cut_at_hold,
    blows.cut_in_copy,
    blows.cut_at_advance,
    blows.link_frozen,
    blows.backend_terminated,
    upheavals.postgres_killed,
    upheavals.postgres_killed_async,
    upheavals.postgres_frozen,
    upheavals.broker_killed,
    upheavals.broker_frozen,
    upheavals.join,
    upheavals.leave,
    upheavals.rewind,
    upheavals.pause,
    upheavals.storm,
    failing.poison,
    failing.killer,
)
STRIKES: Mapping[str, Callable[[Field, Fault], Strike | None]] = {
    **dict.fromkeys(KILLS, blows.kill_at_step),
    **{strike.__name__: strike for strike in _PLAIN},
}
MAY_FALL = {"rewind", "postgres_killed", "postgres_killed_async"}  # where a position may go back (O4)


class Failed(AssertionError):  # noqa: N818 -- named after what happened
    """The round is lost; ``findings`` say why."""

    def __init__(self, findings: Sequence[str]) -> None:
        super().__init__(f"{len(findings)} findings")
        self.findings = list(findings)


def play(arena: Arena, round_: Round, report: Report) -> str:
    """One round: load, faults, healing, account. Returns a line for people; raises Failed."""
    began = monotonic()
    try:
        crew = arena.lead(round_.crew)
    except Stuck as stuck:
        raise Failed([f"no crew for this round: {stuck}"]) from stuck
    ready = monotonic() - began
    may_fall = any(fault.kind in MAY_FALL for fault in round_.faults)
    with Sampler(arena.dsn, arena.topic, arena.base, may_fall, arena.log.alarm) as sampler:
        try:
            outcomes, ends = _under_load(arena, crew, sampler, round_, report)
            arena.log.calm()
        except Stuck as stuck:
            raise Failed([f"stuck: {stuck}", *_autopsy(arena, report)]) from stuck
        finally:
            report.snapshots += sampler.snapshots
    with arena.connect() as connection:
        judged = account(connection, arena.topic, arena.base, ends)
    report.add(judged)
    if judged.differing:
        raise Failed(judged.differing)
    arena.settle(ends)
    return f"crew in {ready:3.1f} s  {'; '.join(outcomes)}  {judged.records:,} records"


def _under_load(
    arena: Arena, crew: Crew, sampler: Sampler, round_: Round, report: Report
) -> tuple[list[str], dict[int, int]]:
    """The faults, while records keep coming; returns when the ledger stands where the log ends, which is there."""
    outcomes = []
    bootstrap, partitions = arena.pair.kafka.bootstrap, len(arena.base)
    with Load(bootstrap, arena.topic, partitions, round_.portion, lambda: sampler.applied) as load:
        field = Field(arena, crew, sampler, load)
        for number, fault in enumerate(round_.faults):
            if number:
                field.crew.fill()
                field.crew.ready()
            outcomes.append(_strike(field, fault, report))
    ends = arena.ends()
    if forgotten := {p for p, end in load.delivered.items() if end > ends[p]}:
        raise Stuck(f"the broker acknowledged records of partitions {forgotten} that its log does not hold")
    if not sampler.wait_for(ends, seconds=40):
        raise Stuck(f"not caught up within 40 s: the ledger stands at {sampler.positions}, the log ends at {ends}")
    return outcomes, ends


def _autopsy(arena: Arena, report: Report) -> list[str]:
    """The round did not come to its end: whether the rows agree with the ledger at least."""
    try:
        with arena.connect() as connection, connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            judged = account(connection, arena.topic, arena.base, positions(connection, arena.topic))
    except psycopg.OperationalError as error:
        return [f"and the database cannot be asked about its rows: {error}"]
    report.add(judged)
    return judged.differing or ["all rows agree with the ledger"]


def _strike(field: Field, fault: Fault, report: Report) -> str:
    field.records(fault.after)
    strike = STRIKES[fault.kind](field, fault)
    if strike is None:
        report.missed[fault.kind] += 1
        return f"{fault.kind}: did not happen"
    seconds = field.recovered(strike)
    report.happened(fault.kind, seconds)
    return f"{fault.kind}: {seconds:.2f} s"


def run(
    rounds: int, seed: int, *, kinds: Sequence[str] = KINDS, report_path: Path, show: Callable[[str], None] = print
) -> Report:
    """Play all rounds, or up to the first that fails; writes the report and returns it."""
    report, began = Report(seed, tuple(kinds)), monotonic()
    with Arena() as arena:
        report.servers = arena.pair.describe()
        show(f"chaos: seed {seed}, {rounds} rounds, {report.servers}")
        for round_ in deal(seed, rounds, kinds):
            started = monotonic()
            try:
                outcome = play(arena, round_, report)
            except Failed as error:
                report.failure = _failure(arena, round_, error, rounds, seed)
                break
            finally:
                report.rounds = round_.number
            show(f"{round_.number:4}/{rounds}  {round_.crew!s:19} {monotonic() - started:5.1f} s  {outcome}")
    report.seconds = monotonic() - began
    if report.passed:
        shutil.rmtree(arena.folder)
    report.write(report_path, arena.log)
    for line in report.lines(arena.log):
        show(line)
    return report


def _failure(arena: Arena, round_: Round, error: Failed, rounds: int, seed: int) -> list[str]:
    """Everything that one needs to look for the cause."""
    return [
        f"FAILED in {round_}",
        *(f"  {finding}" for finding in error.findings[:50]),
        "what was said last:",
        *(f"  {line}" for line in arena.log.tail(40)),
        f"what each worker said in this round is kept in {arena.folder}",
        f"again: make chaos ROUNDS={rounds} SEED={seed}",
    ]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Kill real workers and real servers, and account for every record.")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--kinds", default=",".join(KINDS), help="only these, separated by commas")
    parser.add_argument("--report", type=Path, default=Path("chaos-report.json"))
    parser.add_argument("--plan", action="store_true", help="print the schedule and do nothing")
    given = parser.parse_args()
    kinds = tuple(given.kinds.split(","))
    if unknown := set(kinds) - set(KINDS):
        parser.error(f"unknown kinds {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    if given.plan:
        for round_ in deal(given.seed, given.rounds, kinds):
            print(round_)
        return
    sys.exit(0 if run(given.rounds, given.seed, kinds=kinds, report_path=given.report).passed else 1)


if __name__ == "__main__":
    main()
