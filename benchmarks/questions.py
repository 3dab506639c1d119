"""Every question that the benchmarks answer: its script, its arguments, and the questions that it is compared with.

``run.py`` asks them. Rows, goals and tables use the questions' names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

HERE = Path(__file__).parent
GROUPS = {
    "core": "the floor, the hand-written loops, the tutorials' loops, append and upsert",
    "batches": "records per transaction, synchronous_commit on and off",
    "upserts": "upserts by how many keys are in the table already; ready rows by the same SQL; settings; sums",
    "changes": "Debezium's events, applied by an upsert and by Debezium's JDBC sink",
    "peers": "Flink, Kafka Connect, Pathway, Quix Streams, Spark",
    "operations": "claims, commits, status, bad records, latency, topic ids, rebalances, slow databases, bloat, memory",
    "workers": "how many workers the server can use",
    "ledger": "what the ledger's two statements and monitoring cost",
    "records": "records of 100 B and 1 KB, and flights of 20 columns",
    "handlers": "handler styles, one record per transaction, columnar",
    "delays": "5 ms more for each round trip to the broker, or to the database",
    "reloads": "staging a rebuilt table, seconds under the lock, verify, and what a row costs on the way",
    "profile": "where each microsecond goes",
}
"""In the order in which they are asked: the most important first, for short runs."""
DELAY = 0.005  # seconds
ROUNDS = {"core": 5, "batches": 5, "upserts": 5}  # of a group, unless the run sets --rounds
OTHER_ROUNDS = 3
GUARANTEES = {
    "floor.py": "none",
    "loop.py": "at least once",
    "bare.py": "exactly once while nothing fails",
    "append.py": "exactly once",
    "observed.py": "exactly once",
    "upsert.py": "exactly once",
    "debezium.py": "exactly once",
    "accumulate.py": "exactly once",
    "upsert_sql.py": "none",
}
"""The guarantees of scripts that do not print one."""

LABELS = {
    "append": "Seekpoint append",
    "sums": "Seekpoint sums",
    "replaced": "Seekpoint upsert of the sums' table",
    "upsert sql": "ready rows by the upsert's SQL",
    "upsert": "Seekpoint upsert",
    "debezium": "Seekpoint upsert of Debezium's events",
    "floor": "ready rows by COPY",
    "loop": "hand-written loop, commit to Kafka",
    "bare": "hand-written loop, offsets in Postgres",
    "seeds, sync, crc32c": "kafka-python + crc32c, commit after each poll",
    "seeds, async, crc32c": "kafka-python + crc32c, async commit",
    "seeds, sync, write": "kafka-python + crc32c, executemany, commit",
    "seeds, sync": "kafka-python, commit after each poll",
    "seeds, async": "kafka-python, async commit after each poll",
    "flink xa": "Flink JDBC sink, XA",
    "flink": "Flink JDBC sink,",
    "connect aiven-insert": "Kafka Connect, Aiven's JDBC sink, insert",
    "connect": "Kafka Connect JDBC sink,",
    "spark kafka-append": "Spark reads Kafka, JDBC writer, append",
    "spark": "Spark JDBC writer,",
    "pathway": "Pathway",
    "quix": "Quix Streams",
}
"""By the beginning of a question's name; longer names come first."""


@dataclass(frozen=True)
class Question:
    """One question. It reads ``limit`` records (None: all) of a topic that has ``share`` of the run's records.

    ``cases``: the script prints several rows, which differ in their mode. ``against`` names the questions that it is
    compared with in a round; with ``cases``, its own cases. ``rounds`` is None if the run sets the number.
    ``broker_delay`` and ``database_delay`` (seconds) are not None if the connection goes through a proxy.
    ``has_servers``: the script starts its own servers. ``own_options``: the script takes ``--quick``.
    ``in_service``: Python's garbage collector runs as often as by default; else rarely, as under ``seekpoint run``.
    """

    name: str
    group: str
    script: str
    arguments: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    table: str = "payments"
    key: bool = False
    batch: int = 10_000
    parallelism: int = 1
    synchronous: bool = True
    share: float = 1.0
    limit: int | None = None
    rounds: int | None = None
    quick: bool = False
    cases: bool = False
    own_options: bool = False
    has_servers: bool = False
    broker_delay: float | None = None
    database_delay: float | None = None
    in_service: bool = False

    @property
    def label(self) -> str:
        """Its name in tables and plots, for readers who have not seen the scripts."""
        for name, label in LABELS.items():
            if self.name == name or self.name.startswith((f"{name},", f"{name} ")):
                return f"{label}{self.name.removeprefix(name)}"
        return self.name

    @property
    def is_peer(self) -> bool:
        """Whether it runs another program, which may not be installed."""
        return self.script.startswith("peers.")


def _core() -> Iterator[Question]:
    for key, suffix in ((False, ""), (True, ", key")):
        floor = f"floor{suffix}"
        yield Question(floor, "core", "floor.py", key=key, quick=not key)
        yield Question(f"loop{suffix}", "core", "loop.py", key=key, against=(floor,), quick=not key)
        yield Question(f"bare{suffix}", "core", "bare.py", key=key, against=(floor, f"loop{suffix}"))
        against = (floor, f"loop{suffix}", f"bare{suffix}", *(() if key else ("seeds, sync", "seeds, sync, crc32c")))
        yield Question(f"append{suffix}", "core", "append.py", key=key, against=against, quick=not key)
        append = partial(Question, group="core", script="append.py", key=key)
        yield append(f"append{suffix}, in a service", against=(floor, f"append{suffix}"), in_service=True)
        yield append(f"append{suffix}, 2 workers", parallelism=2, against=(floor, f"append{suffix}"))
    yield Question("upsert", "core", "upsert.py", against=("floor", "append", "floor, key", "append, key"), quick=True)
    yield Question("upsert, 2 workers", "core", "upsert.py", parallelism=2, against=("floor", "floor, key", "upsert"))
    for mode in ("sync", "async", "sync-crc32c", "async-crc32c", "sync-write"):
        name = f"seeds, {mode.replace('-', ', ')}"
        yield Question(name, "core", "peers.kafka_python", (mode,), against=("floor",), quick=mode == "sync")


def _workers() -> Iterator[Question]:
    for several in (3, 4, 6):
        name, against = f"append, {several} workers", ("floor", "append")
        yield Question(name, "workers", "append.py", parallelism=several, against=against)


def _upserts() -> Iterator[Question]:
    for conflicts in (50, 100):
        name = f"upsert, {conflicts} % conflicts"
        arguments, ready = ("--conflicts", str(conflicts)), f"upsert sql, {conflicts} % conflicts"
        yield Question(ready, "upserts", "upsert_sql.py", arguments)
        yield Question(name, "upserts", "upsert.py", arguments, against=("upsert", ready))
    yield Question(
        "upsert, 10,000,000 rows", "upserts", "upsert.py", ("--large",), ("upsert",), "payments_spread", share=0.5
    )
    yield Question("what an upsert costs", "upserts", "upsert_sql.py", ("--study",), rounds=1, cases=True)


def _changes() -> Iterator[Question]:
    for table, suffix in (("payments_changes", ""), ("payments_changes_plain", ", no schemas")):
        of = partial(Question, group="changes", table=table, share=0.2)
        yield of(f"debezium{suffix}", script="debezium.py")
        for mode in ("changes", "changes-unnest"):
            name = f"connect {mode}{suffix}"
            yield of(name, script="peers.connect", arguments=(mode,), against=(f"debezium{suffix}",))


def _sums() -> Iterator[Question]:
    for keys in (1_000, 100_000, 10_000_000):
        arguments, name = ("--keys", str(keys)), f"replaced, {keys:,} keys"
        yield Question(name, "upserts", "accumulate.py", (*arguments, "--upsert"))
        yield Question(f"sums, {keys:,} keys", "upserts", "accumulate.py", arguments, against=(name,))
    hot = partial(Question, group="upserts", script="accumulate.py", arguments=("--keys", "1"))
    yield hot("sums, one key")
    for workers in (2, 4):
        yield hot(f"sums, one key, {workers} workers", parallelism=workers, against=("sums, one key",))


def _ledger() -> Iterator[Question]:
    for batch in (1_000, 10_000):
        yield Question(f"ledger, {batch:,}", "ledger", "ledger.py", batch=batch, limit=500_000)
    yield Question("append, unobserved", "ledger", "observed.py", ("off",))
    yield Question("append, observed", "ledger", "observed.py", ("on",), against=("append, unobserved",))


LIMITS = {1: 5_000, 10: 50_000, 100: 200_000}  # of small batches, for which a million records take minutes


def _batches() -> Iterator[Question]:
    for batch in (1, 10, 100, 1_000, 50_000):
        floor = f"floor, {batch:,}"
        append = f"append, {batch:,}"
        limit, loop = LIMITS.get(batch), f"loop, {batch:,}"
        yield Question(floor, "batches", "floor.py", batch=batch, limit=limit)
        yield Question(loop, "batches", "loop.py", batch=batch, limit=limit, against=(floor,))
        yield Question(append, "batches", "append.py", batch=batch, limit=limit, against=(floor, loop))
    for batch in (1, 10, 100, 1_000, 10_000):
        on = "append" if batch == 10_000 else f"append, {batch:,}"
        name = f"append, {batch:,}, synchronous_commit off"
        limit = LIMITS.get(batch)
        yield Question(name, "batches", "append.py", batch=batch, limit=limit, synchronous=False, against=(on,))


def _records() -> Iterator[Question]:
    for table, short, share in (
        ("payments_100b", "100 B", 1.0),
        ("payments_1kb", "1 KB", 0.2),
        ("flights", "flights", 0.5),
    ):
        for script in ("floor", "loop", "bare", "append"):
            against = () if script == "floor" else (f"floor, {short}",)
            yield Question(f"{script}, {short}", "records", f"{script}.py", (), against, table, share=share)


def _delays() -> Iterator[Question]:
    for script, name in (("append.py", "append"), ("loop.py", "loop"), ("peers.kafka_python", "seeds, sync")):
        arguments = ("sync",) if script.startswith("peers.") else ()
        base = Question(f"{name}, through proxies", "delays", script, arguments, broker_delay=0.0, database_delay=0.0)
        late = replace(base, against=(base.name,))
        yield base
        yield replace(late, name=f"{name}, broker 5 ms", broker_delay=DELAY)
        if script.endswith(".py"):
            yield replace(late, name=f"{name}, database 5 ms", database_delay=DELAY)


def _peers() -> Iterator[Question]:
    modes = {
        "flink": ("append", "upsert", "xa"),
        "connect": ("insert", "upsert"),
        "pathway": ("append", "snapshot"),
        "spark": ("append", "upsert"),
        "quix": ("insert", "upsert"),
    }
    for several, suffix in ((1, ""), (2, ", 2")):
        for peer, names in modes.items():
            if several > 1 and peer == "quix":  # one process, one thread
                continue
            for mode in names:
                ours = "upsert" if mode in {"upsert", "snapshot"} else "append"
                yield Question(
                    f"{peer} {mode}{suffix}",
                    "peers",
                    f"peers.{peer}",
                    (mode,),
                    (ours if several == 1 else f"{ours}, {several} workers", "floor"),
                    parallelism=several,
                )
    yield Question("connect aiven-insert", "peers", "peers.connect", ("aiven-insert",), ("append", "floor"))
    yield Question("spark kafka-append", "peers", "peers.spark", ("kafka-append",), ("append", "floor"))


def _handlers() -> Iterator[Question]:
    yield Question("handlers", "handlers", "handlers.py", against=("Append",), cases=True, own_options=True)
    yield Question("small", "handlers", "small.py", cases=True, own_options=True)
    yield Question("columnar", "handlers", "columnar.py", against=("json, rows",), cases=True)


def _reloads() -> Iterator[Question]:
    most = partial(Question, group="reloads", script="staging.py", table="payments_staged", share=4.0)
    yield most("staging, JDBC", arguments=("jdbc",), parallelism=2)
    yield most("staging, one process", arguments=("local",), against=("staging, JDBC",))
    against = ("staging, JDBC", "staging, one process")
    yield most("staging, 2 processes", arguments=("pool",), against=against, parallelism=2)
    yield most("staging, Spark", arguments=("spark",), against=against, parallelism=2)
    yield Question(
        "reload", "reloads", "reloads.py", (), (), "totals", share=4.0, rounds=1, cases=True, own_options=True
    )
    yield Question("costs", "reloads", "costs.py", rounds=1, cases=True)


def _operations() -> Iterator[Question]:
    of = partial(Question, group="operations", rounds=1, cases=True, own_options=True)
    yield of("claims, 1,000", script="claims.py", arguments=("--claims-only",))
    yield of("status", script="status_views.py")
    yield of("commits, 1 of 1,000", script="commits.py", arguments=("--one-of", "1000"))
    bad = ("--only", "Append, CHECK", "--shares", "1000", "--rounds", "5")
    yield of("poison", script="poison.py", arguments=bad, has_servers=True)
    yield of("retries", script="retry_order.py", has_servers=True)
    for name in ("latency", "topic_ids", "commits", "rebalance", "slow", "bloat", "memory", "claims"):
        yield of(name, script=f"{name}.py")


def _profile() -> Iterator[Question]:
    yield Question("profile", "profile", "microseconds.py", cases=True)
    yield Question("profile, key", "profile", "microseconds.py", key=True, cases=True)


_MAKERS = (
    *(_core, _batches, _sums, _upserts, _changes, _peers, _operations, _workers),
    *(_ledger, _records, _handlers, _delays, _reloads, _profile),
)
QUESTIONS = {question.name: question for make in _MAKERS for question in make()}


def chosen(only: Collection[str], *, quick: bool = False) -> list[Question]:
    """The questions of these groups and names, in the registry's order; without names all, or the ``quick`` ones.

    Raises LookupError for an unknown name.
    """
    if unknown := set(only) - set(GROUPS) - set(QUESTIONS):
        raise LookupError(f"no group or question is called {', '.join(sorted(unknown))}: --list names them")
    return [
        question
        for question in QUESTIONS.values()
        if (question.group in only or question.name in only if only else question.quick or not quick)
    ]


def with_bases(questions: Collection[Question]) -> list[Question]:
    """These questions and their bases, in the registry's order."""
    names = {question.name for question in questions}
    wanted = names | {base for question in questions if not question.cases for base in question.against}
    return [question for question in QUESTIONS.values() if question.name in wanted]
