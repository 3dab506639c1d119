"""Flink, one JVM: SQL from Kafka to JDBC (append, upsert), and a DataStream job with XA (exactly once). Both tables.

To warm up, the job first runs into a second table in the same JVM; the second run counts.
"""

from __future__ import annotations

from functools import partial

import psycopg
from psycopg import sql

from peers import jars, kinds
from peers.processes import JOBS, printed, started
from peers.trial import Measured, SkippedError, Trial, play
from peers.watch import Seen, watch
from seekpoint.testing.servers.java import find_java
from seekpoint.testing.servers.process import Folder

CHECKPOINT = 1000  # milliseconds; with XA, rows appear a checkpoint at a time
TYPES = {"bigint": "BIGINT", "integer": "INT", "smallint": "SMALLINT"}  # the rest is text, which the database reads
HEAP = "2g"
_OPEN = ("java.lang", "java.util", "java.net", "java.nio", "java.util.concurrent")  # packages that Flink's scripts open


def run(trial: Trial, *, mode: str) -> Measured:
    """Run ``parallelism`` slots, with batches of ``batch`` rows."""
    if mode == "xa":
        _prepared_allowed(trial)
    kinds.fresh(trial.kind, trial.dsn, key=mode == "upsert", warm=True)
    java, libraries, folder = find_java(), jars.classpath("flink"), Folder("peer-flink")
    try:
        classes = jars.compiled(java, JOBS / "FlinkJob.java", libraries, folder.path)
        command = [str(java), f"-Xmx{HEAP}", f"-Djava.io.tmpdir={folder.path}"]
        for package in _OPEN:
            command += ["--add-opens", f"java.base/{package}=ALL-UNNAMED"]
        command += ["-cp", jars.joined([classes, *libraries]), "FlinkJob", mode]
        seen, seconds = _measure(trial, command, exactly_once=mode == "xa")
    finally:
        folder.close()
        _forget_prepared(trial)
    kinds.verify(trial.kind, trial.dsn, trial.records)
    return Measured(
        jars.version("flink", "flink-clients"),
        seconds,
        trial.records if mode == "xa" else seen.records,
        {"append": "at least once", "upsert": "at least once, idempotent by key", "xa": "exactly once"}[mode],
        None if mode == "xa" else seen.cpu_seconds,  # counted from the first visible row, which is late with XA
        {
            "parallelism": trial.parallelism,
            "batch": trial.batch,
            "checkpoint_ms": CHECKPOINT,
            "reWriteBatchedInserts": True,
            "heap": HEAP,
            "warmed": "the same job before, in the same JVM",
            "clock": "from the first record read to the last visible row"
            if mode == "xa"
            else "first to last visible row",
            "recommended_by": "Flink, JDBC SQL connector (sink.buffer-flush.*), DataStream JDBC connector "
            "(JdbcExactlyOnceOptions.withTransactionPerConnection, maxRetries 0 for Postgres); pgJDBC",
        },
    )


def _measure(trial: Trial, command: list[str], *, exactly_once: bool) -> tuple[Seen, float]:
    database = trial.database
    env = {
        "PEER_BROKERS": trial.brokers,
        "PEER_TOPIC": trial.kind.name,
        "PEER_GROUP": trial.group("flink"),
        "PEER_COLUMNS": ", ".join(f"`{c}` {TYPES.get(t, 'STRING')}" for c, t in trial.kind.columns.items()),
        "PEER_URL": trial.jdbc,
        "PEER_HOST": database["host"],
        "PEER_PORT": database["port"],
        "PEER_DATABASE": database["dbname"],
        "PEER_USER": database["user"],
        "PEER_PASSWORD": database["password"],
        "PEER_PARALLELISM": str(trial.parallelism),
        "PEER_BATCH": str(trial.batch),
        "PEER_CHECKPOINT": str(CHECKPOINT),
    }
    with started("flink", command, env) as child:
        seen = watch(trial, child, all_of_it=exactly_once)
        seconds = seen.last - printed(child, "FIRST") / 1000 if exactly_once else seen.seconds
    return seen, seconds


def _prepared_allowed(trial: Trial) -> None:
    with psycopg.connect(trial.dsn) as connection:
        row = connection.execute("SHOW max_prepared_transactions").fetchone()
    if row is None or int(row[0]) < 2 * trial.parallelism + 2:
        raise SkippedError("XA needs a server with max_prepared_transactions above 0: use benchmarks/run.py")


def _forget_prepared(trial: Trial) -> None:
    """Roll back the prepared transactions that an ended job has left, with their locks."""
    with psycopg.connect(trial.dsn, autocommit=True) as connection:
        left = connection.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()").fetchall()
        for (gid,) in left:
            connection.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))


MODES = {mode: partial(run, mode=mode) for mode in ("append", "upsert", "xa")}

if __name__ == "__main__":
    play("flink", MODES)
