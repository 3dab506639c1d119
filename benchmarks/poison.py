"""Throughput with one bad record in 10, 100, … against none: for sinks and handlers, with named and unnamed errors.

python benchmarks/poison.py [--records N] [--rounds N] [--only SUBJECT] [--shares 1000,100] [--quick]

One worker over the demo's flights. One record in N is made bad by ``row=`` or the handler, is found, and becomes a dead
letter. ``of_clean`` is the ratio to the rate without bad records, of the same subject and round; rate and ratio are
medians of the rounds. Machines are shared and noisy: compare the rows of one run.
"""

from __future__ import annotations

import logging
import secrets
import statistics
import threading
from itertools import product
from multiprocessing import get_context
from operator import attrgetter
from time import monotonic
from typing import Any

from sqlalchemy import Connection, create_engine, insert, text

from demo.flights import TOPIC, Feed, Flight, table
from demo.wire import create_topic
from seekpoint import Append, Batch, Json, Pipeline, Poison, Worker, events
from seekpoint.pipeline.policy import DeadLetterLimits, Retry
from setting import flights, upgrade
from stage import Stage, arguments, say, servers

SHARES = (0, 100_000, 1_000, 100, 10)  # 0: none
SUBJECTS = {
    "Append, row= raises": "dead-lettered before it reaches the server",
    "Append, CHECK": "the server names the line",
    "Append, foreign key": "the server names nothing: found by bisecting",
    "handler, Poison named": "the handler names the record",
    "handler, CHECK": "the handler names nothing: found by bisecting",
}
COLUMNS = Flight.__struct_fields__
PARTITIONS = 6
GOOD_YEAR, BAD_YEAR = 2013, 1


def pipeline(subject: str, share: int, group: str) -> Pipeline:
    """Writes the flights, and makes one in ``share`` bad in the subject's way."""
    values = attrgetter(*COLUMNS)

    def is_bad(record: Any) -> bool:
        return share > 0 and record.value.id % share == share // 2

    def row(record: Any) -> tuple[Any, ...]:
        columns: tuple[Any, ...] = values(record.value)
        if not is_bad(record):
            return columns
        if subject.endswith("raises"):
            raise ValueError("broken")
        if subject.endswith("CHECK"):
            return (-1, *columns[1:])
        return (columns[0], BAD_YEAR, *columns[2:])

    def handle(tx: Connection, batch: Batch[Flight, Any]) -> None:
        if subject.endswith("named"):
            for record in batch:
                if is_bad(record):
                    raise Poison("broken", *(r for r in batch if is_bad(r)))
        tx.execute(insert(table), [dict(zip(COLUMNS, row(record), strict=True)) for record in batch])

    writes: dict[str, Any] = {"handle": handle} if subject.startswith("handler") else {}
    return Pipeline(
        group,
        topics=TOPIC,
        value=Json(Flight),
        sinks=[] if writes else [Append("flights", columns=COLUMNS, row=row)],
        on_poison="dead_letter",
        retry=Retry(attempts=1),
        dead_letter_limits=DeadLetterLimits(consecutive=None, ratio=None),
        **writes,
    )


def measure(subject: str, share: int, stage: Stage, records: int) -> float:
    """Records per second of one worker until every record is passed; checks rows and dead letters."""
    logging.getLogger("seekpoint.events").setLevel(logging.ERROR)  # a log line per dead letter would be measured, too
    engine = create_engine(stage.url)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as tx:
        table.drop(tx, checkfirst=True)
        table.create(tx)
        tx.exec_driver_sql("ALTER TABLE flights SET (autovacuum_enabled = false)")
        if subject.endswith("CHECK"):
            tx.exec_driver_sql("ALTER TABLE flights ADD CHECK (id >= 0)")
        if subject.endswith("foreign key"):
            tx.exec_driver_sql(
                f"DROP TABLE IF EXISTS years; CREATE TABLE years AS SELECT {GOOD_YEAR} AS year;"
                "ALTER TABLE years ADD PRIMARY KEY (year); ALTER TABLE flights ADD FOREIGN KEY (year) REFERENCES years"
            )
        tx.exec_driver_sql("CHECKPOINT")
    group = f"poison-{secrets.token_hex(4)}"
    began: list[float] = []
    done, passed = threading.Event(), [0]

    def observe(event: events.Event) -> None:
        if isinstance(event, events.ChunkRead) and not began:
            began.append(monotonic())
        if isinstance(event, events.Committed):
            passed[0] += sum(span.end - span.start for span in event.spans)
            if passed[0] >= records:
                done.set()

    kafka = {"bootstrap.servers": stage.brokers}
    with Worker(pipeline(subject, share, group), engine=engine, kafka=kafka, observe=[observe]).running():
        assert done.wait(600), f"only {passed[0]} records after 600 s"
        seconds = monotonic() - began[0]
    with engine.connect() as tx:
        rows = tx.execute(text("SELECT count(*) FROM flights")).scalar_one()
    engine.dispose()
    parked = stage.parked(group)
    assert rows + parked == records, f"{rows} rows and {parked} dead letters of {records} records"
    assert (parked > 0) == (0 < share <= records)
    return records / seconds


def main() -> None:
    """Measure all, each in a new process, and print the medians."""
    parser = arguments(__doc__)
    parser.add_argument("--records", type=int, help="(200,000; quick: 20,000)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", choices=list(SUBJECTS), metavar="SUBJECT", help="may be repeated")
    parser.add_argument("--shares", default=",".join(map(str, SHARES)), help="one bad record in N; 0: none")
    options = parser.parse_args()
    records = options.records or (20_000 if options.quick else 200_000)
    shares = [0, *sorted({*map(int, options.shares.split(","))} - {0}, reverse=True)]
    rates: dict[tuple[str, int], list[float]] = {}
    with servers() as stage, get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        upgrade(stage.url)
        create_topic(stage.brokers, TOPIC, PARTITIONS)
        Feed(stage.brokers, flights(records)).send()
        for _ in range(options.rounds):
            for case in product(options.only or SUBJECTS, shares):
                rates.setdefault(case, []).append(pool.apply(measure, (*case, stage, records)))
    for (subject, share), case_rates in rates.items():
        of_clean = statistics.median(a / b for a, b in zip(case_rates, rates[subject, 0], strict=True))
        say(
            "poison",
            f"{subject}, {f'1 in {share:,}' if share else 'none'} bad",
            records=records,
            records_per_second=round(statistics.median(case_rates)),
            of_clean=round(of_clean, 2),
            how_it_is_found=SUBJECTS[subject],
        )


if __name__ == "__main__":
    main()
