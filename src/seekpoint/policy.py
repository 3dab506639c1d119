"""Pure arithmetic and validation: limits, start positions, waits, and what an SQLSTATE means."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from seekpoint.errors import ConfigError
from seekpoint.records import Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much one transaction may hold, and how long things may take.

    A transaction closes on ``batch_records``, on ``batch_bytes`` of keys and values, after ``batch_age``
    seconds, or as soon as nothing more is waiting to be read; bytes and age are looked at between chunks, so one
    chunk may go beyond them. ``claim_wait`` (seconds) bounds the wait for
    another owner's transaction; one older than ``transaction_age`` (seconds) is abandoned: the server ends it
    where it can (``transaction_timeout``), and a successor's claim does where it cannot. Within
    ``transaction_age`` a worker keeps its partitions while a handler runs, however long it takes.
    ``start_wait`` (seconds) is how long brokers may take to answer for the first time; ``kafka_timeout``
    (seconds) bounds every question put to them afterwards. ``idle_check`` (seconds) is how often a quiet
    worker looks whether somebody moved its positions, ``lag_check`` (seconds) how often it samples its lag.
    """

    batch_records: int = 10_000
    batch_bytes: int = 16 * 1024 * 1024
    batch_age: float = 5.0
    claim_wait: float = 2.0
    transaction_age: float = 300.0
    start_wait: float = 15.0
    kafka_timeout: float = 10.0
    idle_check: float = 1.0
    lag_check: float = 10.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 < value < math.inf:  # NaN is no number of seconds either
                raise ConfigError(f"Limits({name}={value!r}): must be a finite number greater than 0")


@dataclass(frozen=True, slots=True)
class StartAt:
    """Where reading begins where the ledger has no row yet; resolved to numbers once, and stored.

    Build one with :meth:`earliest`, :meth:`latest`, :meth:`time`, :meth:`offsets` or :meth:`committed`.
    """

    kind: str
    at: datetime | None = None
    given: tuple[tuple[Partition, int], ...] = ()

    @classmethod
    def earliest(cls) -> StartAt:
        """At the first record that is still in the log."""
        return cls("earliest")

    @classmethod
    def latest(cls) -> StartAt:
        """Behind the last record; partitions that are added later still start at their offset 0."""
        return cls("latest")

    @classmethod
    def time(cls, at: datetime) -> StartAt:
        """At the first record with a timestamp at or after ``at`` (an aware time), else at the end."""
        if at.tzinfo is None:
            raise ConfigError(f"StartAt.time({at!r}): give an aware time, e.g. datetime(..., tzinfo=UTC)")
        return cls("time", at=at)

    @classmethod
    def offsets(cls, given: Mapping[tuple[str, int], int]) -> StartAt:
        """At the given offset of each ``(topic, partition)``; every partition must be named."""
        try:
            pairs = sorted((Partition(*key), value) for key, value in given.items())
            bad = [f"{partition}: {value}" for partition, value in pairs if value < 0]
        except (TypeError, AttributeError):
            raise ConfigError(f"StartAt.offsets: give {{(topic, partition): offset}}, got {given!r}") from None
        if bad:
            raise ConfigError(f"StartAt.offsets: offsets must be 0 or greater, got {', '.join(bad)}")
        return cls("offsets", given=tuple(pairs))

    @classmethod
    def committed(cls) -> StartAt:
        """Where Kafka's own commits of this group stand: a one-time import (I6); all must exist."""
        return cls("committed")


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that double from ``initial`` to ``ceiling`` seconds, each drawn from its upper half.

    The jitter keeps workers that failed together from coming back together.
    """

    initial: float = 1.0
    ceiling: float = 30.0

    def waits(self, chance: random.Random) -> Iterator[float]:
        """Endless; the first is at most ``initial``."""
        wait = self.initial
        while True:
            yield wait * (0.5 + chance.random() / 2)
            wait = min(wait * 2, self.ceiling)


class Fault(Enum):
    """What a database error says about the work, by its SQLSTATE."""

    TRANSIENT = "try again"
    DATA = "a record's fault"
    PROGRAM = "a mistake in the program or its rights"


# Postgres, Appendix A. Classes: 08 connection, 40 rollback (serialization, deadlock), 53 resources,
# 57 operator intervention, 58 system error, F0 configuration file. Single codes: 25006 read-only
# transaction (a standby after a failover), 25P03/25P04 timeouts that ended the session, 55P03 lock
# not available, 55006 object in use.
_TRANSIENT_CLASSES = frozenset({"08", "40", "53", "57", "58", "F0"})
_TRANSIENT_CODES = frozenset({"25006", "25P03", "25P04", "55P03", "55006"})
# 22 data exception, 23 integrity constraint violation, 44 WITH CHECK OPTION violation, 54 program limit exceeded
# (a value too long for an index, JSON nested too deep for the server's stack).
_DATA_CLASSES = frozenset({"22", "23", "44", "54"})


def fault(sqlstate: str | None) -> Fault:
    """Classify a database error; one without an SQLSTATE is a lost connection."""
    if sqlstate is None or sqlstate[:2] in _TRANSIENT_CLASSES or sqlstate in _TRANSIENT_CODES:
        return Fault.TRANSIENT
    return Fault.DATA if sqlstate[:2] in _DATA_CLASSES else Fault.PROGRAM
