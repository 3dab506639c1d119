"""What claiming costs, and what a commit's hold and advance cost, by the number of active and of moved partitions.

python benchmarks/claims.py [--partitions N] [--rounds N] [--claims-only] [--quick]

Needs only Postgres. Two owners alternately claim all partitions at once, as in a rebalance: rows have the time of
``GroupLedger.claim``, and the server's time for its statement. Other transactions only hold all active partitions and
advance some. Both run on a ledger that was never analyzed, as a new one, and on an analyzed one, with autovacuum off.
Rows show whether a plan reads the whole ledger, which is right only for a few rows. The positions are checked at the
end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any
from uuid import uuid4

from sqlalchemy import Engine, create_engine, event, text

from seekpoint import schema
from seekpoint.ledger import Claim, Expected, GroupLedger, Move
from seekpoint.postgres import round_trip
from seekpoint.postgres.session import Session
from seekpoint.records import Partition
from stage import Stage, arguments, median_ms, ms, say, servers

TOPIC = "orders"
CLUSTER, TOPIC_ID = "benchmark", uuid4()
ANALYZED = {False: "never analyzed", True: "analyzed"}


class Spy:
    """Keeps the last statement of each kind, as the driver received it, for :func:`explain`."""

    def __init__(self, engine: Engine) -> None:
        self.seen: dict[str, tuple[str, Any]] = {}
        event.listen(engine, "before_cursor_execute", self._see)
        self._run, round_trip.rows_of = round_trip.rows_of, self._rows_of  # statements that bypass SQLAlchemy

    def _rows_of(self, driver: Any, *questions: tuple[str, Any], is_prepared: bool = False) -> Any:
        for question in questions:
            self._see(None, None, *question)
        return self._run(driver, *questions, is_prepared=is_prepared)

    def _see(self, _connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        for kind, mark in (("claim", "ON CONFLICT"), ("hold", "FOR NO KEY UPDATE")):
            if mark in statement and "partition_offset" in statement:
                self.seen[kind] = statement, parameters


def explain(engine: Engine, statement: str, parameters: Any) -> tuple[float, float, bool]:
    """The server's milliseconds to plan and to run, and whether the plan reads the whole ledger."""
    with engine.connect() as connection:
        cursor = connection.connection.cursor()
        cursor.execute(f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {statement}", parameters)
        row = cursor.fetchone()
        connection.rollback()
    assert row is not None
    plan = row[0][0]
    return plan["Planning Time"], plan["Execution Time"], '"Seq Scan", "Relation' in _flat(plan)


def _flat(plan: Any) -> str:
    """The plan's node types, each with the relation that it reads."""
    nodes, lines = [plan["Plan"]], []
    while nodes:
        node = nodes.pop()
        nodes += node.get("Plans", [])
        lines.append(json.dumps({k: node[k] for k in ("Node Type", "Relation Name") if k in node}))
    return "\n".join(lines)


@contextmanager
def ledger(stage: Stage, *, analyzed: bool, partitions: int) -> Iterator[tuple[Engine, str]]:
    """A new schema with a ledger of this many rows in one group, ``bench``."""
    name = f"claims_{stage.name}_{partitions}_{'analyzed' if analyzed else 'fresh'}"
    engine = create_engine(stage.url)
    schema.upgrade(engine, schema=name)
    with engine.begin() as tx:
        tx.execute(text(f"ALTER TABLE {name}.partition_offset SET (autovacuum_enabled = off)"))
    _claim(GroupLedger(engine, "bench", schema=name), partitions)
    if analyzed:
        with engine.begin() as tx:
            tx.execute(text(f"ANALYZE {name}.partition_offset"))
    try:
        yield engine, name
        with engine.begin() as tx:
            statistics = "SELECT count(*) FROM pg_stats WHERE schemaname = :name AND tablename = 'partition_offset'"
            known = tx.execute(text(statistics), {"name": name}).scalar_one()
            assert (known > 0) == analyzed, "autovacuum has changed the ledger's statistics"
            tx.execute(text(f"DROP SCHEMA {name} CASCADE"))
    finally:
        engine.dispose()


def _claim(ledger_: GroupLedger, count: int) -> list[Claim]:
    return list(_granted(ledger_, [Partition(TOPIC, number) for number in range(count)]).values())


def _granted(ledger_: GroupLedger, wanted: Sequence[Partition]) -> Mapping[Partition, Claim]:
    claimed = ledger_.claim(wanted, {TOPIC: TOPIC_ID}, cluster_id=CLUSTER, start=lambda _: dict.fromkeys(wanted, 0))
    assert len(claimed.granted) == len(wanted)
    return claimed.granted


def claims(stage: Stage, partitions: int, rounds: int) -> None:
    """Measure claims of all partitions by two owners alternately, and of partitions that are new to the ledger."""
    for analyzed, shown in ANALYZED.items():
        with ledger(stage, analyzed=analyzed, partitions=partitions) as (engine, name):
            spy = Spy(engine)
            owners = [GroupLedger(engine, "bench", schema=name) for _ in range(2)]
            seconds: list[float] = []
            planning: list[float] = []
            running: list[float] = []
            sequential = 0
            wanted = [Partition(TOPIC, number) for number in range(partitions)]
            for n in range(rounds):
                began = perf_counter()
                granted = _granted(owners[n % 2], wanted)
                seconds.append(perf_counter() - began)
                plan, run, reads_all = explain(engine, *spy.seen["claim"])
                planning.append(plan)
                running.append(run)
                sequential += reads_all
            assert granted[wanted[0]].epoch == rounds + 1, "each claim counts its epoch"
            say(
                "claim",
                f"{partitions} partitions, {shown}",
                partitions=partitions,
                claims=rounds,
                **ms("claim", seconds),
                in_database_p50_ms=round(sorted(running)[rounds // 2], 3),
                planning_p50_ms=round(sorted(planning)[rounds // 2], 3),
                sequential_plans=sequential,
            )
    with ledger(stage, analyzed=False, partitions=partitions) as (engine, name):
        seconds = []
        for n in range(rounds):
            began = perf_counter()
            _claim(GroupLedger(engine, f"new-{n}", schema=name), partitions)
            seconds.append(perf_counter() - began)
        say(
            "claim",
            f"{partitions} partitions, rows made",
            partitions=partitions,
            claims=rounds,
            **ms("claim", seconds),
        )


def commits(stage: Stage, active: int, sizes: list[int], rounds: int) -> None:
    """Measure transactions that only hold and advance."""
    for analyzed, shown in ANALYZED.items():
        for touched in sizes:
            with ledger(stage, analyzed=analyzed, partitions=active) as (engine, name):
                _commits(GroupLedger(engine, "bench", schema=name), shown, active, touched, rounds)


def _commits(ledger_: GroupLedger, shown: str, active: int, touched: int, rounds: int) -> None:
    session, held = Session(ledger_.engine), {c.partition: c for c in _claim(ledger_, active)}
    seconds: dict[str, list[float]] = {"hold": [], "advance": [], "commit": [], "whole": []}
    warm = 10  # the driver prepares a statement at its fifth use
    for n in range(rounds + warm):
        moving = [held[Partition(TOPIC, (n + k * (active // touched)) % active)] for k in range(touched)]
        began = perf_counter()
        with session.transaction() as tx:
            transaction = ledger_.hold(tx, [Expected(c, c.next_offset) for c in held.values()])
            has_held = perf_counter()
            moved = ledger_.advance(tx, [Move(c, c.next_offset, c.next_offset + 1) for c in moving], transaction)
            advanced = perf_counter()
        ended = perf_counter()
        held |= {c.partition: c for c in moved}
        if n >= warm:
            for step, took in zip(
                seconds, (has_held - began, advanced - has_held, ended - advanced, ended - began), strict=True
            ):
                seconds[step].append(took)
    session.close()
    positions = ledger_.read()
    assert sum(p.next_offset for p in positions) == touched * (rounds + warm), "the commits are not all there"
    _, running, reads_all = _explain_hold(ledger_, held)
    say(
        "hold and advance",
        f"{active} active, {touched} moved, {shown}",
        active=active,
        moved=touched,
        commits=rounds,
        hold_p50_ms=median_ms(seconds["hold"]),
        advance_p50_ms=median_ms(seconds["advance"]),
        commit_p50_ms=median_ms(seconds["commit"]),
        **ms("whole", seconds["whole"], 0.5, 0.99),
        hold_in_database_ms=round(running, 3),
        hold_reads_all_rows=reads_all,
    )


def _explain_hold(ledger_: GroupLedger, held: dict[Partition, Claim]) -> tuple[float, float, bool]:
    """The times and plan of the statement that holds these claims."""
    spy = Spy(ledger_.engine)
    with ledger_.begin() as tx:
        ledger_.hold(tx.connection, [Expected(c, c.next_offset) for c in held.values()])
    return explain(ledger_.engine, *spy.seen["hold"])


def main() -> None:
    """Measure claims, then commits."""
    parser = arguments(__doc__)
    parser.add_argument("--partitions", type=int, help="partitions of a claim (1000; quick: 100)")
    parser.add_argument("--rounds", type=int, help="rounds of claims; commits have ten times as many (30; quick: 5)")
    parser.add_argument("--claims-only", action="store_true", help="measure no commits")
    options = parser.parse_args()
    partitions = options.partitions or (100 if options.quick else 1000)
    rounds = options.rounds or (5 if options.quick else 30)
    sizes = [size for size in (1, 6, 100, 1000) if size <= partitions]
    with servers(kafka=False) as stage:
        claims(stage, partitions, rounds)
        for active in () if options.claims_only else sizes:
            commits(stage, active, [size for size in sizes if size <= active], rounds * 10)


if __name__ == "__main__":
    main()
