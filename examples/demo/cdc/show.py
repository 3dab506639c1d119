"""The demonstration: servers, Debezium, two workers, changes, kills, comparison."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from time import monotonic

from rich.console import Console
from sqlalchemy import Engine, create_engine, text

from demo.cdc.changes import Changes
from demo.cdc.connect import Connect
from demo.cdc.report import CONNECT_KILLS, KILLS, Report, compare, has_arrived
from demo.cdc.tables import PARTITIONS, SCHEMAS, TOPIC
from demo.faults import is_open, open_transaction
from demo.show import TIMES
from demo.wire import create_topic
from demo.worker_pool import WorkerPool
from seekpoint import schema
from seekpoint.testing import start_pair
from seekpoint.testing.servers.process import Folder

SEED = 2026
STATEMENTS = 20_000  # of the source, at least
# A row without its unchanged text takes a statement of its own, so that batches are small.
LIMITS = {"batch_records": 200, "claim_wait": 1.0, "transaction_age": 30.0}
LOGICAL = {"wal_level": "logical"}
LONG = 600.0  # seconds for steps that depend on the number of statements


class CopyPool(WorkerPool):
    """The workers that copy the table."""

    program = "demo.cdc.worker_process"


def perform(statements: int = STATEMENTS, *, seed: int = SEED, console: Console) -> Report:
    """Run the demo on its own servers, and return the results. Progress goes to ``console``.

    Raises ServerFailed if a server cannot be started, and DemoFailed if a step fails.
    """
    with console.status("starting Postgres and Kafka"):
        pair = start_pair(own=True, settings=LOGICAL, progress=console.print)
    with pair, closing(Folder("demo")) as folder:
        console.print(pair.describe(), highlight=False)
        engine = create_engine(pair.postgres.url)
        prepare_tables(engine)
        create_topic(pair.kafka.bootstrap, TOPIC, PARTITIONS)
        kafka = {"bootstrap.servers": pair.kafka.bootstrap, **TIMES}
        order = {"database": pair.postgres.url, "kafka": kafka, "limits": LIMITS}
        began = monotonic()
        try:
            with (
                closing(Connect(pair.postgres.url, pair.kafka.bootstrap)) as connect,
                CopyPool(order, PARTITIONS, folder.path) as pool,
                Changes(engine, seed) as changes,
            ):
                connect.start()
                pool.start_two()
                kills = _fault(pool, connect, engine, console.print)
                pool.wait("the source's table to be changed often", lambda: changes.has_made(statements), LONG)
                changes.finish()
                pool.wait("the copy to have the last rows", lambda: has_arrived(engine), LONG)
                pool.stop()
                return compare(
                    engine,
                    statements=changes.statements,
                    events=pool.committed,
                    kills=kills,
                    connect_kills=CONNECT_KILLS,
                    seconds=monotonic() - began,
                    servers=pair.describe(),
                )
        finally:
            engine.dispose()


def prepare_tables(engine: Engine) -> None:
    """Create the ledger, the source's table and its copy."""
    schema.upgrade(engine)
    with engine.begin() as connection:
        for statement in SCHEMAS.split(";")[:-1]:
            connection.execute(text(statement))


def _fault(pool: WorkerPool, connect: Connect, engine: Engine, tell: Callable[[str], None]) -> int:
    """Kill workers inside their transactions, and Connect in between; returns how many workers had one open."""
    in_transaction = 0
    for n in range(KILLS):
        pool.wait("both workers to share the partitions", lambda: pool.settled)
        in_transaction += _kill(pool, "AB"[n % 2], "Applied" if n < 2 else "Advanced", engine, tell)
        if n % 2:
            connect.kill()
            connect.start()
            tell("killed Kafka Connect, and started it again: Debezium sends changes again")
    return in_transaction


def _kill(pool: WorkerPool, name: str, step: str, engine: Engine, tell: Callable[[str], None]) -> bool:
    """Kill a worker at this step of its transaction, and start another; whether the transaction was open."""
    worker = pool[name]
    worker.break_at(step)
    pool.wait(f"worker {name} to come to {step}", lambda: worker.at_break == step)
    open_ = open_transaction(engine, worker)
    worker.kill()
    tell(f"killed worker {name} in transaction {None if open_ is None else open_.xid}")
    if open_ is not None:
        pool.wait("Postgres to roll it back", lambda: not is_open(engine, open_))
    pool.start(name)
    return open_ is not None
