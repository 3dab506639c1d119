"""Policies of a pipeline and limits of a worker: start positions, retries, poison records, dead letters."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from operator import index
from typing import Literal, TypeGuard

from seekpoint.errors import ConfigError
from seekpoint.records import Partition

RetryOrder = Literal["partition", "key", "none"]
"""Which records wait during a record's retry: all of its partition, those of its key, or none."""

LONGEST_SAMPLING = 120  # seconds: a sample older than three minutes says nothing about the lag


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a transaction's size, and of times.

    A batch is committed at ``batch_records``, at ``batch_bytes`` of keys and values, after ``batch_age`` seconds, or as
    soon as no more records are ready; bytes and age are checked between chunks, so one chunk may exceed them. Up to one
    more batch is read ahead while the server works. With a handler, the first batch has at most 500 records; later ones
    as many as take about ``transaction_target`` seconds by the measured time per record, but at most ``batch_records``.
    ``claim_wait`` (seconds) bounds the wait for another owner's transaction. A transaction older than
    ``transaction_age`` (seconds) is ended by the server (``transaction_timeout``, Postgres 17 and later), otherwise by
    the next owner's claim. While a handler runs, a worker keeps its partitions until the transaction has that age.
    ``start_wait`` (seconds) is how long a starting worker waits for brokers and a database that do not answer; None
    sets no limit. ``kafka_timeout`` (seconds) bounds every request to brokers. ``idle_check`` (seconds) is how often an
    idle worker checks whether its positions were reset, ``lag_check`` (seconds) how often it samples its lag.
    ``waiting`` is how many records of one partition may wait for their retries while others continue
    (``Pipeline(retry_order=)``); then the partition waits. ``sample_positions`` (seconds, 120 at most) is how often it
    stores its positions and the ends of their logs, for the ledger's views; 0: never.
    """

    batch_records: int = 10_000
    batch_bytes: int = 16 * 1024 * 1024
    batch_age: float = 5.0
    transaction_target: float = 5.0
    claim_wait: float = 2.0
    transaction_age: float = 300.0
    start_wait: float | None = None
    kafka_timeout: float = 10.0
    idle_check: float = 1.0
    lag_check: float = 10.0
    sample_positions: float = 60.0
    waiting: int = 1000

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if name == "start_wait" and value is None:
                continue
            if name in {"batch_records", "batch_bytes", "waiting"}:
                _whole(self, name)
            elif name == "sample_positions":
                if not _is_number(value) or not (value == 0 or 1 <= value <= LONGEST_SAMPLING):
                    raise ConfigError(
                        f"Limits(sample_positions={value!r}): must be from 1 to {LONGEST_SAMPLING}, or 0 for never"
                    )
            elif not _is_number(value) or not 0 < value < math.inf:  # refuses NaN, too
                allowed = ", or None for no limit" if name == "start_wait" else ""
                raise ConfigError(
                    f"Limits({name}={value!r}): must be a finite number of seconds greater than 0{allowed}"
                )


@dataclass(frozen=True, slots=True)
class StartAt:
    """The first position of partitions without a row in the ledger; resolved to offsets once, and stored.

    Build one with :meth:`earliest`, :meth:`latest`, :meth:`time`, :meth:`offsets` or :meth:`committed`.
    """

    kind: str
    moment: datetime | None = None
    positions: tuple[tuple[Partition, int], ...] = ()

    @classmethod
    def earliest(cls) -> StartAt:
        """At the first record that is still in the log."""
        return cls("earliest")

    @classmethod
    def latest(cls) -> StartAt:
        """After the last record; partitions that are added later still start at offset 0."""
        return cls("latest")

    @classmethod
    def time(cls, moment: datetime) -> StartAt:
        """At the first record with a timestamp at or after ``moment`` (an aware time), otherwise at the end."""
        if moment.tzinfo is None:
            raise ConfigError(f"StartAt.time({moment!r}): give an aware time, e.g. datetime(..., tzinfo=UTC)")
        return cls("time", moment=moment)

    @classmethod
    def offsets(cls, positions: Mapping[tuple[str, int], int]) -> StartAt:
        """At the given offset of each ``(topic, partition)``; every partition must be named."""
        try:
            # index() refuses floats, which Postgres would round: records would be lost or repeated.
            pairs = sorted((Partition(topic, index(n)), index(value)) for (topic, n), value in positions.items())
            invalid = [f"{partition}: {value}" for partition, value in pairs if value < 0]
        except (TypeError, ValueError, AttributeError):
            raise ConfigError(f"StartAt.offsets: give {{(topic, partition): offset}}, got {positions!r}") from None
        if invalid:
            raise ConfigError(f"StartAt.offsets: offsets must be 0 or greater, got {', '.join(invalid)}")
        return cls("offsets", positions=tuple(pairs))

    @classmethod
    def committed(cls) -> StartAt:
        """At this group's committed offsets in Kafka, imported once (I6); every partition must have one."""
        return cls("committed")


class OnPoison(StrEnum):
    """The failure policy for poison records."""

    STOP = "stop"  # the partition stops before the record until an operator decides; the others continue
    DEAD_LETTER = "dead_letter"  # the transaction that passes its offset stores the whole record
    SKIP = "skip"  # the position moves past the record, which is stored without its value (I4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often, and when, a record is tried again after its handler raised.

    A record is tried ``attempts`` times in total; then it is poison. The wait after the n-th failure is ``wait_initial
    * multiplier ** (n - 1)`` seconds, at most ``wait_max``; the share ``jitter`` of each wait is random, so that
    records that failed together are not retried together. During the wait its partition waits, without an open
    transaction (``Pipeline(retry_order=)`` lets other records continue); other partitions continue. ``on`` names the
    exceptions that are retried (``asyncio.CancelledError`` counts as a TimeoutError). Any other exception is poison at
    once, as are all data errors (of a codec, ``Poison``, a row that the database refuses). Transient errors of the
    database (a deadlock, a lost connection) do not count: the whole transaction is run again, without limit, while the
    claim is held. They count as an attempt only if a single record raises them while others are applied; after the last
    attempt its partition stops.

    ``crashes``: after this many consecutive owners have crashed without progress, the next owner applies their records
    in small parts. A record whose single-record attempts have crashed the process this many times is poison.
    """

    attempts: int = 5
    wait_initial: float = 1.0
    wait_max: float = 60.0
    multiplier: float = 2.0
    jitter: float = 0.5
    on: type[Exception] | tuple[type[Exception], ...] = (Exception,)
    crashes: int = 2

    def __post_init__(self) -> None:
        kinds: object = (self.on,) if isinstance(self.on, type) else self.on
        if not isinstance(kinds, tuple) or not all(
            isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds
        ):
            raise ConfigError(f"Retry(on={self.on!r}): name classes of Exception in a tuple, e.g. on=(TimeoutError,)")
        for name in ("attempts", "crashes"):
            _whole(self, name)
        for name, least in (("wait_initial", 0.0), ("wait_max", 0.0), ("multiplier", 1.0), ("jitter", 0.0)):
            value = getattr(self, name)
            if not _is_number(value) or not least <= value < math.inf:
                raise ConfigError(f"Retry({name}={value!r}): must be a finite number, {least:g} or greater")
        if self.jitter > 1:
            raise ConfigError(f"Retry(jitter={self.jitter!r}): must be a share of the wait, at most 1")

    def wait(self, failures: int, chance: random.Random) -> float:
        """Seconds to wait after the n-th failure (from 1)."""
        return self.longest(failures) * (1 - self.jitter * chance.random())

    def longest(self, failures: int) -> float:
        """The longest wait that :meth:`wait` may return."""
        try:
            return min(self.wait_max, self.wait_initial * self.multiplier ** (failures - 1))
        except OverflowError:
            return self.wait_max


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterLimits:
    """Stops a worker before it turns a whole topic into dead letters; None sets no limit.

    ``consecutive`` limits how many records of one partition in a row are dead-lettered or skipped, ``ratio`` their
    share of the last ``window`` passed records. Records that are blocked behind their key are not counted.
    """

    consecutive: int | None = 100
    ratio: float | None = 0.5
    window: int = 1000

    def __post_init__(self) -> None:
        if self.consecutive is not None:
            _whole(self, "consecutive")
        _whole(self, "window")
        ratio: object = self.ratio
        if ratio is not None and not (_is_number(ratio) and 0 < ratio <= 1):
            raise ConfigError(f"DeadLetterLimits(ratio={ratio!r}): must be above 0 and at most 1, or None")


def _is_number(number: object) -> TypeGuard[int | float]:
    """Whether the value is an int or float, but not a bool, which is an int in Python."""
    return isinstance(number, int | float) and not isinstance(number, bool)


def _whole(settings: object, name: str) -> None:
    value = getattr(settings, name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{type(settings).__name__}({name}={value!r}): must be a whole number, 1 or greater")
