"""Throughput with one bad record in 10, 100, … against none: for sinks and handlers, named by the database and not.

python benchmarks/poison.py [--records N] [--rounds N] [--only SUBJECT] [--shares 1000,100]

One worker over the demo's flights; one record in so many is made bad by ``row=`` or
the handler, is found, and parked as a dead letter with its offset. Each rate is compared with the clean one of the
same subject and round. Machines are shared and noisy: compare the rows of one run. Writes ``poison-bench.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import subprocess
import sys
import threading
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from time import monotonic
from typing import Any

from rich.console import Console
from rich.table import Table
from sqlalchemy import Connection, create_engine, insert, text

from demo.flights import TOPIC, Feed, Flight, table
from demo.wire import create_topic
from seekpoint import Append, Batch, Json, Pipeline, Poison, Worker, events, schema
from seekpoint.pipeline.policy import DeadLetterLimits, Retry
from seekpoint.testing.servers.kafka_and_postgres import start_pair

SHARES = (0, 100_000, 1_000, 100, 10)  # 0: none
SUBJECTS = {
    "Append, row= raises": "set aside before it reaches the server",
    "Append, CHECK": "the server names the line",
    "Append, foreign key": "the server names nothing: found by halves",
    "handler, Poison named": "the handler names the record",
    "handler, CHECK": "nobody names it: found by halves",
}
POSTGRES = {"shared_buffers": "1GB", "max_wal_size": "8GB"}
COLUMNS = Flight.__struct_fields__
PARTITIONS = 6
GOOD_YEAR, BAD_YEAR = 2013, 1


def pipeline(subject: str, share: int, group: str) -> Pipeline:
    """Writes the flights, and makes one in ``share`` bad in the subject's own way."""
    values = attrgetter(*COLUMNS)

    def is_bad(record: Any) -> bool:
        return share > 0 and record.value.id % share == share // 2

    def row(record: Any) -> tuple[Any, ...]:
        made: tuple[Any, ...] = values(record.value)
        if not is_bad(record):
            return made
        if subject.endswith("raises"):
            raise ValueError("broken")
        if subject.endswith("CHECK"):
            return (-1, *made[1:])
        return (made[0], BAD_YEAR, *made[2:])

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


def measure(subject: str, share: int) -> dict[str, Any]:
    """One worker until every record is passed; checks that rows and dead letters are all of them."""
    engine = create_engine(os.environ["BENCH_URL"])
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
    schema.upgrade(engine)
    group, records = f"poison-{secrets.token_hex(4)}", int(os.environ["BENCH_RECORDS"])
    began: list[float] = []
    done, passed = threading.Event(), [0]

    def observe(event: events.Event) -> None:
        if isinstance(event, events.ChunkRead) and not began:
            began.append(monotonic())
        if isinstance(event, events.Committed):
            passed[0] += sum(span.end - span.start for span in event.spans)
            if passed[0] >= records:
                done.set()

    brokers = {"bootstrap.servers": os.environ["BENCH_BROKERS"]}
    worker = Worker(pipeline(subject, share, group), engine=engine, kafka=brokers, observe=[observe])
    with worker.running():
        assert done.wait(600), f"only {passed[0]} records after 600 s"
        seconds = monotonic() - began[0]
    with engine.connect() as tx:
        rows = tx.execute(text("SELECT count(*) FROM flights")).scalar_one()
        parked = tx.execute(
            text("SELECT count(*) FROM seekpoint.dead_letter WHERE consumer_group = :group"), {"group": group}
        ).scalar_one()
    engine.dispose()
    assert rows + parked == records, f"{rows} rows and {parked} dead letters of {records} records"
    assert (parked > 0) == (0 < share <= records)
    rate = round(records / seconds)
    return {"subject": subject, "share": share, "parked": parked, "seconds": round(seconds, 3), "rate": rate}


def main() -> int:
    """Run them all; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", choices=list(SUBJECTS), metavar="SUBJECT", help="may be repeated")
    parser.add_argument("--shares", default=",".join(map(str, SHARES)), help="one bad record in so many; 0: none")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure[0], int(options.measure[1]))))
        return 0
    shares = sorted({0, *map(int, options.shares.split(","))}, key=lambda share: -share if share else float("-inf"))
    console = Console()
    with start_pair(own=True, settings=POSTGRES) as pair:
        os.environ |= {
            "BENCH_BROKERS": pair.kafka.bootstrap,
            "BENCH_URL": str(pair.postgres.url),
            "BENCH_RECORDS": str(options.records),
        }
        _fill(options.records, pair.kafka.bootstrap)
        rows = [
            _run(subject, share, n, console)
            for n in range(options.rounds)
            for subject in options.only or SUBJECTS
            for share in shares
        ]
        report = {"servers": pair.describe(), "records": options.records, "rounds": options.rounds, "rows": rows}
    report["summary"] = summary = _summary(rows)
    Path("poison-bench.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    _show(summary, f"{report['servers']}; medians of {options.rounds} rounds, {options.records:,} records", console)
    return 0


def _fill(records: int, brokers: str) -> None:
    from setting import flights  # noqa: PLC0415 -- reads the environment when it is imported

    create_topic(brokers, TOPIC, PARTITIONS)
    Feed(brokers, flights(records)).send()


def _run(subject: str, share: int, n: int, console: Console) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", __file__, "--measure", subject, str(share)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{subject}, 1 in {share}, failed:\n{done.stderr[-5000:]}")
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    console.print(f"round {n + 1}: {subject:<22} {_share(share):>12} {row['rate']:>9,} records/s")
    return row


def _share(share: int) -> str:
    return f"1 in {share:,}" if share else "none"


def _summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Medians of the rounds, and of the ratios to the clean rate of the same round."""
    rates: dict[tuple[str, int], list[int]] = {}
    for row in rows:
        rates.setdefault((row["subject"], row["share"]), []).append(row["rate"])
    return [
        {
            "subject": subject,
            "share": share,
            "rate": round(statistics.median(found)),
            "of_clean": round(statistics.median(a / b for a, b in zip(found, rates[subject, 0], strict=True)), 2),
        }
        for (subject, share), found in rates.items()
    ]


def _show(summary: Sequence[dict[str, Any]], title: str, console: Console) -> None:
    shown = Table(title=title)
    shown.add_column("subject")
    shown.add_column("how a bad record is found")
    shares = list(dict.fromkeys(row["share"] for row in summary))
    for share in shares:
        shown.add_column(_share(share), justify="right")
    for subject, how in SUBJECTS.items():
        found = {row["share"]: row for row in summary if row["subject"] == subject}
        if found:
            cells = [f"{found[0]['rate']:,}/s", *(f"{found[share]['of_clean']:.2f}" for share in shares[1:])]
            shown.add_row(subject, how, *cells)
    console.print(shown)


if __name__ == "__main__":
    sys.exit(main())
