"""How long ``seekpoint status`` and each page of the console take: 1,000 partitions, 200 groups, a month of samples.

python benchmarks/status_views.py [--partitions N] [--groups N] [--rounds N] [--quick]

Needs only Postgres: the brokers are not asked. *status* is ``Admin.status()`` of all groups, from the first statement
to the values in Python; *group_status* the SQL view that dashboards read; *page* each page of the console, from the
request to the last byte of the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

from sqlalchemy import Connection, create_engine, text
from starlette.testclient import TestClient

from seekpoint import schema
from seekpoint.admin import Admin
from seekpoint.web import create_app
from stage import Stage, arguments, median_ms, ms, say, servers

MONTH = 24 * 60 + 29 * 24  # samples of a partition: a day by the minute, and 29 days by the hour
FILL = """
INSERT INTO {s}.consumer_group (name, cluster_id) SELECT 'g' || n, 'c' FROM generate_series(0, :groups - 1) n;
INSERT INTO {s}.partition_offset
  (consumer_group, topic, partition, topic_id, first_offset, next_offset, token, epoch, record_time)
SELECT 'g' || n % :groups, 'orders', n, gen_random_uuid(), 0, 999990, gen_random_uuid(), 1, now()
FROM generate_series(0, :partitions - 1) n;
INSERT INTO {s}.position_sample (consumer_group, topic, partition, topic_id, at, next_offset, log_start, log_end)
SELECT o.consumer_group, o.topic, o.partition, o.topic_id,
       now() - CASE WHEN n < 1440 THEN n * interval '1 minute' ELSE (n - 1440 + 24) * interval '1 hour' END,
       1000000 - n * 100, 1000000 - n * 110, 1000000 - n * 100
FROM {s}.partition_offset o, generate_series(0, :month - 1) n;
ANALYZE {s}.position_sample;
ANALYZE {s}.partition_offset"""


def fill(tx: Connection, schema_name: str, *, groups: int, partitions: int, month: int = MONTH) -> None:
    """Fill the ledger as workers do: each partition with one group, a lag of ten records, and ``month`` samples."""
    values = {"groups": groups, "partitions": partitions, "month": month}
    for statement in FILL.split(";"):
        used = {name: value for name, value in values.items() if f":{name}" in statement}
        tx.execute(text(statement.replace("{s}", f'"{schema_name}"')), used)


PAGES = (
    *("", "group?group=g0", "partition?group=g0&topic=orders&partition=0"),
    *("dead-letters?group=g0", "reloads", "history"),
)


def console_of(admin: Admin) -> TestClient:
    """A client of the console, without a socket."""
    return TestClient(create_app(admin), base_url="http://localhost", client=("127.0.0.1", 50_000))


def seconds_of(console: TestClient, page: str) -> float:
    """How long one answer takes."""
    began = perf_counter()
    assert console.get(f"/{page}").status_code == 200
    return perf_counter() - began


def run(stage: Stage, partitions: int, groups: int, rounds: int, month: int) -> None:
    """Query one ledger, round by round."""
    engine, name = create_engine(stage.url), f"status_{stage.name}"
    schema.upgrade(engine, schema=name)
    with engine.begin() as tx:
        fill(tx, name, groups=groups, partitions=partitions, month=month)
    admin = Admin(engine, schema=name)

    def view() -> int:
        with engine.connect() as tx:
            return len(tx.execute(text(f'SELECT * FROM "{name}".group_status')).all())

    asked: dict[str, Callable[[], int]] = {"status": lambda: len(admin.status()[0]), "group_status": view}
    for what, ask in asked.items():
        seconds = []
        for _ in range(rounds):
            began = perf_counter()
            assert ask() == groups
            seconds.append(perf_counter() - began)
        mode = f"{what}, {partitions:,} partitions, {groups} groups"
        say("status", mode, partitions=partitions, groups=groups, samples=partitions * month, **ms("whole", seconds))
    with console_of(admin) as console:
        pages = {page: [seconds_of(console, page) for _ in range(rounds)] for page in PAGES}
    slowest = max(pages.values(), key=median_ms)
    for name, seconds in [(f"page /{page}", times) for page, times in pages.items()] + [("slowest page", slowest)]:
        mode = f"{name}, {partitions:,} partitions, {groups} groups"
        say("status", mode, partitions=partitions, groups=groups, samples=partitions * month, **ms("whole", seconds))
    engine.dispose()


def main() -> None:
    """Measure one ledger."""
    parser = arguments(__doc__)
    parser.add_argument("--partitions", type=int, help="partitions of all groups (1000; quick: 100)")
    parser.add_argument("--groups", type=int, help="groups in the ledger (200; quick: 20)")
    parser.add_argument("--rounds", type=int, help="rounds of queries (20; quick: 3)")
    options: Any = parser.parse_args()
    partitions = options.partitions or (100 if options.quick else 1000)
    groups = options.groups or (20 if options.quick else 200)
    with servers(kafka=False) as stage:
        run(stage, partitions, groups, options.rounds or (3 if options.quick else 20), 60 if options.quick else MONTH)


if __name__ == "__main__":
    main()
