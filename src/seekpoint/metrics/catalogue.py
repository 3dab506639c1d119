"""Every metric: name, kind, labels and meaning. For Prometheus, names begin with ``seekpoint_``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class Kind(StrEnum):
    """How the values of a metric behave over time."""

    COUNTER = "counter"  # only rises during a process's life
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One metric. ``combine`` says how values with equal labels, of two workers or of all partitions, become one.

    Several workers' gauges of one partition are never added: the greatest counts (:class:`Samples`). ``sources`` are
    "worker" (a :class:`Tally` has it) and "ledger" (a :class:`LedgerGauges` has it).
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    combine: Literal["sum", "max", "min"] = "sum"
    unit: str = ""
    sources: tuple[str, ...] = ("worker",)


_GROUP = ("group",)
_PARTITION = ("group", "topic", "partition")
_BOTH, _LEDGER = ("worker", "ledger"), ("ledger",)


def _counter(name: str, labels: tuple[str, ...], meaning: str) -> Metric:
    return Metric(name, Kind.COUNTER, labels, meaning)


def _gauge(  # noqa: PLR0917 -- a row of the table
    name: str,
    labels: tuple[str, ...],
    meaning: str,
    sources: tuple[str, ...] = ("worker",),
    combine: Literal["sum", "max", "min"] = "sum",
    unit: str = "",
) -> Metric:
    return Metric(name, Kind.GAUGE, labels, meaning, combine, unit, sources)


# -- events, counted in a worker -----------------------------------------------------------------------------------

RECORDS = _counter("records", _GROUP, "Records of committed transactions.")
SINK_ROWS = _counter(
    "sink_rows",
    (*_GROUP, "table"),
    "Rows passed to sinks in committed transactions, including tombstones, without rows that handlers write.",
)
TRANSACTIONS = _counter(
    "transactions",
    (*_GROUP, "outcome"),
    "Transactions by outcome: committed, refused (fenced: nothing was written), unknown (COMMIT was not answered).",
)
DURATION = Metric(
    "transaction_duration_seconds", Kind.HISTOGRAM, _GROUP, "Committed transactions, begin to commit.", unit="seconds"
)
CLAIMS = _counter("claims", _GROUP, "Partitions that were claimed and became active.")
CLAIMS_LOST = _counter("claims_lost", _GROUP, "Claims that another process has taken, or that a reset ended.")
RESYNCS = _counter("resyncs", (*_GROUP, "cause"), "Times that reading resumed at another offset than expected.")
STOPS = _counter("stops", (*_GROUP, "cause"), "Partitions that stopped, by the name of the error.")
RETRIES = _counter("retries", _GROUP, "Records that failed and were scheduled for another attempt.")
ISOLATIONS = _counter("isolations", _GROUP, "Batches that failed and were bisected.")
DEAD_LETTERS = _counter(
    "dead_letters", (*_GROUP, "topic", "state", "cause"), "Records that the position moved past without applying them."
)
CRASH_SUSPICIONS = _counter("crash_suspicions", _GROUP, "Partitions whose owners have crashed without progress.")
TROUBLES = _counter(
    "troubles", (*_GROUP, "server"), "Requests that failed because a server was away: database, kafka, codec."
)
OTHER_COMMITS = _counter(
    "other_commits", _GROUP, "Assigned partitions for which Kafka already held commits that no mirror wrote."
)
MIRROR_FAILURES = _counter("mirror_failures", _GROUP, "Times that positions could not be committed to Kafka.")

# -- the state of a worker -----------------------------------------------------------------------------------------

LIVE = _gauge("live", _GROUP, "1: the worker's thread runs, and no handler has run for too long.", combine="min")
READY = _gauge("ready", _GROUP, "1: the worker is in its group, and nothing is in trouble.", combine="min")
STALE = _gauge("stale", _GROUP, "1: no commit for a minute although records wait or a server is away.", combine="max")
TROUBLE = _gauge("trouble", _GROUP, "1: a server is away, or the group is paused.", combine="max")
WORKER_INFO = _gauge(
    "worker_info", (*_GROUP, "version", "library"), "Workers by handler version and version of Seekpoint."
)
WAITING = _gauge(
    "partition_waiting",
    (*_PARTITION, "cause"),
    "1: the partition waits, for a retry or for its delay.",
)

# -- positions, from both ------------------------------------------------------------------------------------------

NEXT_OFFSET = _gauge("next_offset", _PARTITION, "The position: the offset after the last one applied.", _BOTH)
LAG = _gauge("lag_records", _PARTITION, "Offsets between the position and the last stable offset.", _BOTH)
STOPPED = _gauge(
    "partition_stopped", (*_PARTITION, "cause"), "1: the partition is stopped, by the name of the error.", _BOTH, "sum"
)
LAST_COMMIT = _gauge(
    "last_commit_timestamp_seconds", _PARTITION, "When the position last moved, Unix time.", _BOTH, "max", "seconds"
)

# -- the ledger's alone ----------------------------------------------------------------------------------------------

LEDGER_UP = _gauge("ledger_up", (), "1: the ledger was read for this scrape.", _LEDGER, "min")
KAFKA_UP = _gauge("kafka_up", (), "1: the brokers answered when asked for the ends of the logs.", _LEDGER, "min")
LAG_SECONDS = _gauge(
    "lag_seconds", _PARTITION, "How long the next record has been in its log.", _LEDGER, "max", "seconds"
)
HEADROOM = _gauge(
    "retention_headroom_records", _PARTITION, "Offsets from the start of the log to the position.", _LEDGER, "min"
)
HEADROOM_SECONDS = _gauge(
    "retention_headroom_seconds",
    _PARTITION,
    "Time until retention reaches the position, at its recent rate of deletion.",
    _LEDGER,
    "min",
    "seconds",
)
SAMPLE_AGE = _gauge(
    "sample_age_seconds",
    _PARTITION,
    "Age of the worker's last sample; above 180 s, lag and headroom are exported only if brokers are asked.",
    _LEDGER,
    "max",
    "seconds",
)
OWNED = _gauge(
    "partition_owned", _PARTITION, "1: a worker that was seen in the last minute has the partition.", _LEDGER, "min"
)
DEAD_LETTERS_OPEN = _gauge("dead_letters_open", _PARTITION, "Dead letters that wait for a decision.", _LEDGER)
BLOCKED = _gauge("dead_letters_blocked", _PARTITION, "Open dead letters that are blocked behind their key.", _LEDGER)
RECORDS_WAITING = _gauge(
    "records_waiting",
    _PARTITION,
    "Records that wait for their retries while others of their partition continue.",
    _LEDGER,
)
OLDEST_WAITING = _gauge(
    "oldest_waiting_record_seconds",
    _PARTITION,
    "How long the oldest of these records has been waiting.",
    _LEDGER,
    "max",
    "seconds",
)
PAUSED = _gauge("paused", _GROUP, "1: an operator has paused the group.", _LEDGER, "max")
WORKERS = _gauge("workers", _GROUP, "Workers that were seen in the last minute.", _LEDGER)
RELOAD_SILENT = _gauge(
    "reload_driver_silent_seconds",
    ("run", "state"),
    "Open reload runs: time since the driver's last heartbeat.",
    _LEDGER,
    "max",
    "seconds",
)

CATALOGUE: tuple[Metric, ...] = tuple(metric for metric in list(globals().values()) if isinstance(metric, Metric))
