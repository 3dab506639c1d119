"""The events that a worker announces, as frozen values: for logs, health, metrics, tests and crash points.

Observers get every event, in order, on the worker's thread: ``Worker(..., observe=[print])``. Two events come from
other threads: ``MembershipRenewed`` from the heartbeat's thread, and ``WorkerStopped`` from a timer's thread if the
worker has not ended within ``stop(grace=)``. Then an observer may still be handling another event. One transaction
announces ``ChunkRead`` (its first records), then ``BatchOpened, Held, ChunkRead…, Applied, Advanced, Committed``. The
chaos suite kills the process inside an observer, at one of these steps.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from time import monotonic
from typing import Any, ClassVar, dataclass_transform
from uuid import UUID

from seekpoint import errors
from seekpoint.errors import ConfigError
from seekpoint.records import Failure, Partition, Span, State, one_line

__all__ = [
    "Activated",
    "Advanced",
    "Applied",
    "Assigned",
    "BatchOpened",
    "Bisecting",
    "ChunkRead",
    "ClaimLost",
    "CodecTrouble",
    "CommitUnknown",
    "Committed",
    "CrashSuspected",
    "DatabaseTrouble",
    "DeadLettered",
    "DeclarationRefused",
    "Draining",
    "Event",
    "Held",
    "KafkaTrouble",
    "LagSampled",
    "MembershipRenewed",
    "MirrorFailed",
    "Observer",
    "OnStandby",
    "OtherCommits",
    "PartitionStopped",
    "Paused",
    "PoolerDetected",
    "Recovered",
    "Refused",
    "Released",
    "Resynced",
    "RetryScheduled",
    "RetrySucceeded",
    "Revoked",
    "SessionReplaced",
    "SingleRecordAttempt",
    "Stalled",
    "StandbyEnded",
    "StartDelayed",
    "Started",
    "Starting",
    "StatusNotStored",
    "SuspectPartAttempt",
    "SuspectsLeft",
    "WaitingForRetry",
    "WorkerStopped",
    "WriteStrategyChanged",
]

logger = logging.getLogger("seekpoint.events")

MOST_KINDS = 10_000  # most kinds of log lines whose last time is stored


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
@dataclass(frozen=True, kw_only=True)
class Event:
    """One event, a frozen dataclass with keyword arguments. ``at`` is monotonic time in seconds."""

    level: ClassVar[int] = logging.DEBUG
    log_pause: ClassVar[float] = 0.0  # least seconds between two log lines of one kind
    text: ClassVar[str] = ""  # the message, with fields in braces ({again}: the next attempt); "": list all fields
    at: float = field(default_factory=monotonic, repr=False, compare=False)

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)

    def __str__(self) -> str:
        message = self._message()
        return f"{type(self).__name__}: {message}" if message else type(self).__name__

    def _message(self) -> str:
        """The message without the event's name."""
        values = self.as_fields()
        if not self.text:
            return ", ".join(f"{name} {value}" for name, value in values.items())
        shown = {name: _listed(v) if isinstance(v, list) else v for name, v in values.items()}
        wait = values.get("wait")
        return self.text.format(**shown, again=f"; again in {wait:.1f} s" if wait else "")

    def as_fields(self) -> dict[str, Any]:
        """The event's fields as plain values (texts, numbers, lists, dicts), for logs and other systems."""
        return {attribute.name: _plain(getattr(self, attribute.name)) for attribute in fields(self) if attribute.repr}

    def log_kind(self) -> Hashable | None:
        """The event's kind: of each kind one event is logged in ``log_pause`` seconds; None: log every event."""
        return type(self).__name__ if self.log_pause else None


def _plain(value: Any) -> Any:  # noqa: PLR0911 -- one case per kind
    match value:
        case Enum():
            return value.value
        case bool() | int() | float() | str() | None:
            return value
        case Partition() | UUID():
            return str(value)
        case Span():
            return f"{value.partition} [{value.start}, {value.end})"
        case Failure():
            return value.summary
        case BaseException():
            return one_line(value)
        case Mapping():
            return {str(_plain(key)): _plain(element) for key, element in value.items()}
        case tuple() | list():
            return [_plain(element) for element in value]
        case frozenset() | set():
            return sorted(map(_plain, value))
    return repr(value)


def _listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))


# -- lifecycle ------------------------------------------------------------------------------------------


class Starting(Event):
    """The worker connects to brokers and database for the first time, and waits for them if they do not answer."""

    level = logging.INFO
    group: str


class StartDelayed(Event):
    """Brokers or database do not answer: the worker waits for them, at most ``limit`` seconds (None: without limit).

    Announced once; ``KafkaTrouble`` or ``DatabaseTrouble`` follows each attempt.
    """

    level = logging.WARNING
    reason: str
    limit: float | None

    def _message(self) -> str:
        limit = "without limit" if self.limit is None else f"{self.limit:g} s at most"
        return f"{self.reason}; the worker waits, {limit}"


class Started(Event):
    """The worker runs: brokers and database have answered, and the ledger's schema is at the right revision.

    ``tables`` are the tables that sinks and handler write, each with its schema, which ``schema_translate_map`` and the
    search path determine; empty if a lock prevented the lookup.
    """

    level = logging.INFO
    group: str
    owner: str
    tables: tuple[str, ...] = ()

    def _message(self) -> str:
        tables = f", writes {_listed(self.tables)}" if self.tables else ""
        return f"group {self.group}, owner {self.owner:.8}{tables}"


class PoolerDetected(Event):
    """The database answers through a connection pooler: the worker prepares no statements and keeps no temporary table.

    Announced once, before ``Started``. ``announced`` is the backend pid received on connecting, ``answering`` the pid
    of the backend that ran a statement.
    """

    level = logging.INFO
    text = "the database answers through a connection pooler: no prepared statements, no lasting temporary tables"
    announced: int
    answering: int


class OnStandby(Event):
    """A reload to this worker's version is open: the worker waits outside the group until the reload has ended.

    Announced again when the reload's state changes.
    """

    level = logging.INFO
    text = "{reason}"
    run: UUID
    state: str
    reason: str


class StandbyEnded(Event):
    """The reload for which the standby waited has ended in ``state``, and the worker joins the group.

    ``error`` says why the reload failed or was aborted; the worker's claim then raises the group's version itself.
    """

    level = logging.INFO
    run: UUID
    state: str
    error: str | None

    def _message(self) -> str:
        return f"reload {self.run} is {self.state}" + ("" if self.error is None else f": {self.error}")


class DeclarationRefused(Event):
    """The group writes a topic's records to other tables than this worker, which waits outside until they match.

    ``stored`` are the group's tables, ``declared`` this worker's. Announced again when the tables change.
    """

    level = logging.WARNING
    text = "the worker waits outside the group: {reason}"
    topic: str
    stored: tuple[str, ...]
    declared: tuple[str, ...]
    reason: str


class TopicsFound(Event):
    """The brokers have new topics that the pipeline's pattern matches; the worker now reads them."""

    level = logging.INFO
    text = "{topics}"
    topics: tuple[str, ...]


class Draining(Event):
    """The worker was asked to stop, and finishes the open batch first."""

    level = logging.INFO
    text = "the open batch is finished first"


class WorkerStopped(Event):
    """The worker has ended; ``error`` is None after a clean stop."""

    level = logging.INFO
    error: BaseException | None = None

    def _message(self) -> str:
        if self.is_aborted:
            return "aborted"
        return "" if self.error is None else f"by an error: {one_line(self.error)}"

    @property
    def is_aborted(self) -> bool:
        """Whether a signal ended the worker at once (Ctrl-C at the start, or a second signal), which is no failure."""
        return isinstance(self.error, KeyboardInterrupt)


# -- partitions -----------------------------------------------------------------------------------------


class Assigned(Event):
    """Kafka assigned partitions; they are not read before they are active."""

    level = logging.INFO
    text = "{partitions}"
    partitions: tuple[Partition, ...]


class Activated(Event):
    """The partition is claimed and active: reading begins at the stored position."""

    level = logging.INFO
    text = "{partition} at offset {offset}, epoch {epoch}"
    partition: Partition
    offset: int
    epoch: int


class Revoked(Event):
    """Kafka revoked partitions; ``lost`` if another member may already have them."""

    level = logging.INFO
    partitions: tuple[Partition, ...]
    lost: bool

    def _message(self) -> str:
        return _listed(self.partitions) + ("; another member may have them already" if self.lost else "")


class Released(Event):
    """The worker released its claims."""

    partitions: tuple[Partition, ...]


class Stalled(Event):
    """A claim waits for another owner's transaction; ``terminated`` names the backends that were terminated."""

    level = logging.WARNING
    partitions: tuple[Partition, ...]
    terminated: tuple[int, ...] = ()

    def _message(self) -> str:
        return f"{_listed(self.partitions)}: another transaction has locked their rows" + (
            f"; terminated backends {_listed(self.terminated)}" if self.terminated else ""
        )


class PartitionStopped(Event):
    """The partition is not read until its cause has ended or an operator decides; the others continue."""

    level = logging.ERROR
    partition: Partition
    error: errors.PartitionStopped

    def _message(self) -> str:
        return str(self.error)


class Paused(Event):
    """The group is paused by an operator; its partitions wait."""

    level = logging.WARNING
    text = "{reason}"
    reason: str


# -- one transaction ------------------------------------------------------------------------------------


class BatchOpened(Event):
    """A transaction's first records were read, before any statement was sent."""

    attempt: int


class Held(Event):
    """The rows of the partitions that the batch may read are locked: claims and positions are as expected."""

    partitions: int


class ChunkRead(Event):
    """The worker read records from the client, for this batch or a later one."""

    records: int


class Applied(Event):
    """Sinks and handler have finished; offsets are not advanced yet, and the server's last answers may be missing."""

    records: int


class Advanced(Event):
    """The offsets are advanced inside the transaction; COMMIT is next."""

    spans: tuple[Span, ...]


class Committed(Event):
    """Rows and offsets became visible together (I1). ``rows`` counts the rows passed to sinks, by table."""

    spans: tuple[Span, ...]
    records: int
    seconds: float
    rows: Mapping[str, int] = field(default_factory=dict)


class SessionReplaced(Event):
    """A handler had changed its database session beyond the transaction: the connection was closed after COMMIT.

    ``changed`` names the settings, temporary tables or locks. Logged once a minute.
    """

    level = logging.WARNING
    log_pause = 60.0
    text = "the handler changed its session ({changed}): the connection was closed after COMMIT"
    group: str
    changed: tuple[str, ...]


class WriteStrategyChanged(Event):
    """An ``Upsert`` writes large transactions with another write strategy from now on: ``"copy"`` or ``"stage"``.

    ``rows`` is the size of the first such transaction; ``conflicts`` counts how often COPY into the table met an
    existing key.
    """

    sink: str
    strategy: str
    rows: int
    conflicts: int


class LagSampled(Event):
    """The lag of each partition, active or stopped, in offsets up to the last stable offset.

    ``not_due`` are partitions whose next record is delayed or scheduled for retry. ``unknown`` are those whose lag is
    not known: the position is past the log's end, the topic was recreated, or no broker answers for the log.
    """

    lag: Mapping[Partition, int]
    not_due: frozenset[Partition] = frozenset()
    unknown: frozenset[Partition] = frozenset()


# -- what goes wrong ------------------------------------------------------------------------------------


class RetryScheduled(Event):
    """A record failed, and is tried again in ``wait`` seconds; its partition waits at this offset until then.

    It failed on attempt ``attempt`` of ``attempts``; ``then`` is what happens after the last one.
    """

    level = logging.WARNING
    text = (
        "{partition} at offset {offset}: {failure}; attempt {attempt} of {attempts} failed, the next attempt is in "
        "{wait:.1f} s; after the last: {then}"
    )
    partition: Partition
    offset: int
    attempt: int
    attempts: int
    wait: float
    failure: Failure
    then: str


class WaitingForRetry(Event):
    """A record failed, and waits in the ledger for its retry in ``wait`` seconds; others of its partition continue.

    It failed on attempt ``attempt`` of ``attempts``; attempt 0 means that it only waits for an earlier record of its
    key. Such events are logged once a minute for each key.
    """

    level = logging.WARNING
    log_pause = 60.0
    text = (
        "{partition} at offset {offset} waits for its retry: {failure}; attempt {attempt} of {attempts} failed, the "
        "next attempt is in {wait:.1f} s"
    )
    partition: Partition
    offset: int
    attempt: int
    attempts: int
    wait: float
    failure: Failure
    key: bytes | None = field(default=None, repr=False, compare=False)

    def log_kind(self) -> Hashable | None:
        """The key of a record that waits for an earlier one; None for other records: each is logged."""
        return None if self.attempt else (self.partition, self.key)

    def _message(self) -> str:
        if self.attempt:
            return super()._message()
        return f"{self.partition} at offset {self.offset} waits for the retry of an earlier record of its key"


class RetrySucceeded(Event):
    """A record that had failed was applied on attempt ``attempt``."""

    level = logging.INFO
    text = "{partition} at offset {offset} was applied on attempt {attempt}"
    partition: Partition
    offset: int
    attempt: int


class Bisecting(Event):
    """A batch failed and is bisected: run again in parts, until the failing records are found."""

    level = logging.INFO
    text = "a batch failed and is run again in parts, to find the failing records: {error}"
    error: BaseException


class DeadLettered(Event):
    """The position moved past a record that was not applied: its dead letter is committed with the batch (I4).

    Records that are blocked behind their key are logged once a minute for each key.
    """

    level = logging.WARNING
    log_pause = 60.0
    text = "{partition} at offset {offset}: {state}, {failure}"
    partition: Partition
    offset: int
    state: State
    failure: Failure
    key: bytes | None = field(default=None, repr=False, compare=False)

    def log_kind(self) -> Hashable | None:
        """The key of a blocked record; None for other dead letters: each is logged."""
        return (self.partition, self.key) if self.state is State.BLOCKED else None


class SingleRecordAttempt(Event):
    """A record is about to be tried in a separate transaction; the ledger has already stored this ``attempt``."""

    partition: Partition
    offset: int
    attempt: int


class CrashSuspected(Event):
    """Owners of this partition crashed without progress: its records up to ``until`` are applied in small parts."""

    level = logging.WARNING
    text = (
        "{partition}: {crashes} owners crashed without progress; records before offset {until} are applied in small "
        "parts"
    )
    partition: Partition
    crashes: int
    until: int


class SuspectPartAttempt(Event):
    """A part of a suspect range is about to be applied in a separate transaction; the ledger has its end."""

    partition: Partition
    start: int
    end: int


class SuspectsLeft(Event):
    """``left`` offsets of the suspect range remain; 0: all were tried, or the crashing record was found."""

    partition: Partition
    left: int


class Refused(Event):
    """A transaction was fenced: nothing of it was written."""

    level = logging.WARNING
    text = "{reason}"
    reason: str


class ClaimLost(Event):
    """Another process has the claim, or the offset was reset."""

    level = logging.WARNING
    text = "{partition}: another process has the claim now, or the offset was reset"
    partition: Partition


class Resynced(Event):
    """The position in the ledger differs from the worker's, and the worker resumes at the ledger's position.

    ``cause``: ``reply lost`` (the ledger is ahead: an unanswered COMMIT took effect) or ``rolled back``
    (the ledger is at an earlier position: a failover, or a crash without synchronous commit, lost commits).
    """

    level = logging.WARNING
    text = "{partition}: expected offset {expected}, found {found} ({cause})"
    partition: Partition
    expected: int
    found: int
    cause: str


class CommitUnknown(Event):
    """COMMIT was sent, but not answered; the ledger will show whether it took effect."""

    level = logging.WARNING
    text = "COMMIT was not answered; the ledger will show whether it took effect: {error}"
    error: Exception


class DatabaseTrouble(Event):
    """A transient error of the database; the next attempt is in ``wait`` seconds."""

    level = logging.WARNING
    text = "{error}{again}"
    error: Exception
    wait: float = 0.0


class StatusNotStored(Event):
    """Rows that only operators read (workers, samples, declarations) are not stored; the worker is not affected.

    Announced once, until storing succeeds.
    """

    level = logging.WARNING
    text = "status rows for operators are not stored (the worker is not affected): {error}"
    error: Exception


class OtherCommits(Event):
    """Kafka has commits of this group that no mirror wrote: another consumer uses or has used the group's name.

    Only the ledger's positions count. Announced once for each partition, before a mirror replaces the commit.
    """

    level = logging.WARNING
    commits: Mapping[Partition, int]

    def _message(self) -> str:
        commits = _listed(f"{partition} at {offset}" for partition, offset in sorted(self.commits.items()))
        return f"Kafka holds commits of this group that differ from the ledger's positions, which count: {commits}"


class MirrorFailed(Event):
    """The positions cannot be committed to Kafka for display; the worker is not affected.

    Announced at the third consecutive failure (a rebalance refuses commits, too), and not again until a commit
    succeeds.
    """

    level = logging.WARNING
    text = "the positions are not mirrored to Kafka (the worker is not affected): {error}"
    error: str


class Recovered(Event):
    """Database, brokers or the codec's service answer again."""

    level = logging.INFO


class KafkaTrouble(Event):
    """The brokers do not answer; the client reconnects automatically. The next request is in ``wait`` seconds."""

    level = logging.WARNING
    text = "{error}{again}"
    error: str
    wait: float = 0.0


class CodecTrouble(Event):
    """A service that a codec needs (a schema registry) does not answer; the next request is in ``wait`` seconds."""

    level = logging.WARNING
    text = "{error}{again}"
    error: str
    wait: float = 0.0


class MembershipRenewed(Event):
    """The group membership was renewed during a long transaction."""


Observer = Callable[[Event], None]


def checked(observe: Any) -> tuple[Observer, ...]:
    """Check ``observe=`` and return its observers. Raises ConfigError for a class or an async function among them."""
    if callable(observe) or isinstance(observe, str | Mapping) or not isinstance(observe, Iterable):
        raise ConfigError(f"observe= takes a list of functions, e.g. observe=[print], got {observe!r}")
    observers = tuple(observe)
    for observer in observers:
        if not callable(observer) or inspect.isclass(observer):
            raise ConfigError(f"observe=: {observer!r} is not a function that takes an event")
        if inspect.iscoroutinefunction(observer) or inspect.iscoroutinefunction(getattr(observer, "__call__", None)):  # noqa: B004
            raise ConfigError(
                f"observe=: {observer!r} is an async function, which nothing would await; use a plain one"
            )
    return observers


class Announcer:
    """Passes every event to the observers, and logs it to ``seekpoint.events``: the group's name and a sentence.

    The log record has the event's fields, its name (``event``) and the ``group`` as attributes (``extra``).

    An exception of an observer is logged and ignored.
    """

    def __init__(self, observers: Sequence[Observer] = (), *, group: str = "") -> None:
        self._observers, self._group = checked(observers), group
        self._has_ended = False
        self._logged: dict[Hashable, float] = {}  # by kind: the time of the last log line

    def end(self, event: Event) -> None:
        """Announce the last event; later ones, from a thread that was given up, are dropped."""
        self(event)
        self._has_ended = True

    def add(self, observer: Observer) -> None:
        """Add an observer, which gets all later events."""
        self._observers = (*self._observers, observer)

    def __call__(self, event: Event) -> None:
        if self._has_ended:
            return
        if isinstance(event, WorkerStopped) and event.error is not None and not event.is_aborted:
            self._log(event, logging.ERROR, event.error)
        elif logger.isEnabledFor(event.level) and self._is_due(event):
            self._log(event, event.level)
        for observer in self._observers:
            try:
                observer(event)
            except Exception:
                logger.exception("an observer raised on %r; ignored", event)

    def _log(self, event: Event, level: int, error: BaseException | None = None) -> None:
        group = self._group or getattr(event, "group", "")
        extra = {**event.as_fields(), "event": type(event).__name__, "group": group}
        logger.log(level, "%s%s", f"{group}: " if group else "", event, exc_info=error, extra=extra)

    def _is_due(self, event: Event) -> bool:
        if (kind := event.log_kind()) is None:
            return True
        now, last = event.at, self._logged.get(kind)
        if last is not None and now - last < event.log_pause:
            return False
        if len(self._logged) >= MOST_KINDS:
            self._logged.clear()  # there may be millions of keys
        self._logged[kind] = now
        return True
