"""``make chaos ROUNDS= SEED=``: kill real workers and real servers, and account for every record.

In reading order: ``schedule`` (which faults, and when), ``worker_process``, ``worker_pool``, ``environment``
(servers and table), ``process_faults``, ``cluster_faults``, ``record_faults``, ``editor``, ``checks``, ``report``.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import Any

import psycopg

if __name__ == "__main__":  # run by path: the package is the folder around this file
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from chaos.worker import cluster_faults, process_faults, record_faults
from chaos.worker.checks import EDITED, NOT_PASSED, WAITING, Sampler, account, checks_of, positions
from chaos.worker.editor import Editor
from chaos.worker.environment import Environment
from chaos.worker.fault_context import FaultContext, Injected
from chaos.worker.load import Load
from chaos.worker.report import Report
from chaos.worker.schedule import KILLS, KINDS, Fault, PoolPlan, Round, deal
from chaos.worker.worker_pool import WorkerPool
from seekpoint.testing.child_process import NotReached

_MODULES = (process_faults, cluster_faults, record_faults)
#: A fault of a kind is the function of that name; all kills at a step are one function.
INJECT: Mapping[str, Callable[[FaultContext, Fault], Injected | None]] = {
    kind: process_faults.kill_at_step
    if kind in KILLS
    else next(vars(module)[kind] for module in _MODULES if kind in vars(module))
    for kind in KINDS
}
MAY_FALL = {"rewind", "postgres_killed", "postgres_killed_async"}  # where a position may go back (O4)


#: The open transactions, the oldest first, and which sessions each waits for.
OPEN_TRANSACTIONS = """
SELECT pid, backend_xid, clock_timestamp() - xact_start AS age, state, wait_event_type, wait_event,
       pg_blocking_pids(pid), application_name, left(query, 200)
FROM pg_stat_activity
WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid()
ORDER BY xact_start
"""

KEYS = 2000  # of the records of a pool in which records wait: what waits for one of its key is retried alone


def expected_of(pool: PoolPlan) -> list[str]:
    """The report's counts that this pool raises; small batches take two round trips if one Append alone writes them."""
    is_small = pool.durable and not (pool.awaits or pool.sums or pool.firsts)
    counts = {"small_transactions": is_small, "found": pool.found, "edited": pool.edits, "retried": bool(pool.waits)}
    return [count for count, is_expected in counts.items() if is_expected]


class Failed(AssertionError):  # noqa: N818 -- named after what happened
    """A round has failed; ``findings`` says why."""

    def __init__(self, findings: Sequence[str]) -> None:
        super().__init__(f"{len(findings)} findings")
        self.findings = list(findings)


def play(environment: Environment, round_: Round, report: Report) -> str:
    """Run one round: load, faults, recovery, account. Returns a line about it; raises Failed."""
    began = monotonic()
    try:
        pool = environment.lead(round_.pool)
    except NotReached as stuck:
        raise Failed([f"no pool for this round: {stuck}"]) from stuck
    ready = monotonic() - began
    may_fall = any(fault.kind in MAY_FALL for fault in round_.faults)
    checks = checks_of(round_.pool)
    with Sampler(
        environment.dsn,
        environment.topic,
        environment.base,
        environment.log.alarm,
        may_fall=may_fall,
        checks=checks,
    ) as sampler:
        try:
            outcomes, ends = _under_load(environment, pool, sampler, round_, report)
            environment.log.calm()
        except NotReached as stuck:
            raise Failed([f"stuck: {stuck}", *_autopsy(environment, report)]) from stuck
        finally:
            report.snapshots += sampler.snapshots
    with environment.connect() as connection:
        order = round_.pool.waits or "partition"
        judged = account(connection, environment.topic, environment.base, ends, checks, order=order)
        report.edited += len(connection.execute(EDITED).fetchall())
    report.add(judged)
    for trait in report.of_trait:
        report.of_trait[trait] += judged.records if getattr(round_.pool, trait) else 0
    if judged.differing:
        raise Failed(judged.differing)
    environment.settle(ends)
    return f"pool in {ready:3.1f} s  {'; '.join(outcomes)}  {judged.records:,} records"


def _under_load(
    environment: Environment, pool: WorkerPool, sampler: Sampler, round_: Round, report: Report
) -> tuple[list[str], dict[int, int]]:
    """Inject the faults under load, and wait until all records are passed; returns outcomes and end offsets."""
    outcomes = []
    bootstrap, partitions = environment.pair.kafka.bootstrap, len(environment.base)
    log, plan, mark = environment.log, pool.plan, environment.log.mark()
    has_absent = plan.found and environment.add_topics()
    options: dict[str, Any] = {
        "keys": KEYS if plan.waits or plan.cloud_events else 0,
        "as_events": plan.cloud_events,
        "also": [*environment.found, *environment.absent],
    }
    with (
        Load(bootstrap, environment.topic, partitions, round_.portion, lambda: sampler.applied, **options) as load,
        Editor(environment, load, report.seed) if plan.edits else ExitStack(),
    ):
        context = FaultContext(environment, pool, sampler, load, mark)
        for number, fault in enumerate(round_.faults):
            if number:
                context.pool.fill()
                context.pool.ready()
            outcomes.append(_inject(context, fault, report))
        if has_absent:
            log.wait("TopicStopped", since=mark)
    ends = environment.ends()
    if forgotten := {p for p, end in load.delivered.items() if end > ends[p]}:
        raise NotReached(f"the broker acknowledged records of partitions {forgotten} that its log does not hold")
    if not sampler.wait_for(ends, seconds=40):
        raise NotReached(f"no position moved for 40 s: the ledger is at {sampler.positions}, the log ends at {ends}")
    if waiting := sampler.wait_until_none(WAITING, [environment.topic], seconds=40):
        raise NotReached(f"{waiting} records still wait for their retries after 40 s")
    found = environment.found_ends()
    if behind := sampler.wait_until_none(NOT_PASSED, [list(found), list(found.values())], seconds=40):
        raise NotReached(f"{behind} records of found topics {list(found)} are not applied after 40 s")
    report.found += plan.found
    return outcomes, ends


def _autopsy(environment: Environment, report: Report) -> list[str]:
    """Compare the rows with the ledger's positions, after a round that did not come to its end."""
    try:
        with environment.connect() as connection, connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            judged = account(connection, environment.topic, environment.base, positions(connection, environment.topic))
            sessions = [str(session) for session in connection.execute(OPEN_TRANSACTIONS).fetchall()]
    except psycopg.OperationalError as error:
        return [f"and the database cannot be asked about its rows: {error}"]
    report.add(judged)
    return [*(judged.differing or ["all rows agree with the ledger"]), "open transactions:", *sessions]


def _inject(context: FaultContext, fault: Fault, report: Report) -> str:
    context.records(fault.after)
    injected = INJECT[fault.kind](context, fault)
    if injected is None:
        report.missed[fault.kind] += 1
        return f"{fault.kind}: did not happen"
    seconds = context.recovered(injected)
    report.happened(fault.kind, seconds)
    return f"{fault.kind}: {seconds:.2f} s"


def run(
    rounds: int,
    seed: int,
    *,
    kinds: Sequence[str] = KINDS,
    pools: str = "",
    report_path: Path,
    show: Callable[[str], None] = print,
) -> Report:
    """Run all rounds, or up to the first that fails; writes the report and returns it."""
    dealt = deal(seed, rounds, kinds, pools)
    kinds = tuple(kind for kind in kinds if any(fault.kind == kind for round_ in dealt for fault in round_.faults))
    report, began = Report(seed, kinds), monotonic()
    report.expected = sorted({count for round_ in dealt for count in expected_of(round_.pool)})
    with Environment() as environment:
        report.servers = environment.pair.describe()
        show(f"chaos: seed {seed}, {rounds} rounds, {report.servers}")
        for round_ in dealt:
            started = monotonic()
            try:
                outcome = play(environment, round_, report)
            except Failed as error:
                report.failure = _failure(environment, round_, error, rounds, report)
                break
            finally:
                report.rounds = round_.number
            show(f"{round_.number:4}/{rounds}  {round_.pool!s:19} {monotonic() - started:5.1f} s  {outcome}")
    totals = environment.log.totals
    report.seconds = monotonic() - began
    report.small_transactions, report.waited = totals["CommittedSmall"], totals["WaitingForRetry"]
    report.retried = totals["RetrySucceeded"]
    if report.passed:
        shutil.rmtree(environment.folder)
    report.write(report_path, environment.log)
    for line in report.lines(environment.log):
        show(line)
    return report


def _failure(environment: Environment, round_: Round, error: Failed, rounds: int, report: Report) -> list[str]:
    """Findings and last events; writes all events to a file."""
    events = "\n".join(map(str, environment.log.since(0)))
    (environment.folder / "events.log").write_text(events + "\n", encoding="utf-8")
    return [
        f"FAILED in {round_}",
        *(f"  {finding}" for finding in error.findings[:50]),
        "the last events:",
        *(f"  {line}" for line in environment.log.tail(40)),
        f"all events of this round, and what workers wrote to stderr, are kept in {environment.folder}",
        f"again: make chaos ROUNDS={rounds} SEED={report.seed}",
    ]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Kill real workers and real servers, and account for every record.")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--kinds", default=",".join(KINDS), help="only these, separated by commas")
    parser.add_argument("--pools", default="", help="only rounds of pools whose description has this text")
    parser.add_argument("--report", type=Path, default=Path("chaos-report.json"))
    parser.add_argument("--plan", action="store_true", help="print the schedule and do nothing")
    args = parser.parse_args()
    kinds = tuple(args.kinds.split(","))
    if unknown := set(kinds) - set(KINDS):
        parser.error(f"unknown kinds {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    if args.plan:
        for round_ in deal(args.seed, args.rounds, kinds, args.pools):
            print(round_)
        return
    report = run(args.rounds, args.seed, kinds=kinds, pools=args.pools, report_path=args.report)
    sys.exit(0 if report.passed else 1)


if __name__ == "__main__":
    main()
