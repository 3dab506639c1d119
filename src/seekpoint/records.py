"""Frozen values: partition, span, record, lazy records, and the failure of a record. No I/O."""

from __future__ import annotations

import codecs
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Any, Generic, NamedTuple, TypeVar, overload

import msgspec

V_co = TypeVar("V_co", covariant=True)
K_co = TypeVar("K_co", covariant=True)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Partition(NamedTuple):
    """One partition of one topic; sorts by topic, then number, which is the order of row locks."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.number}"


class Span(NamedTuple):
    """A half-open range of offsets of one partition: ``start`` was the position, ``end`` is the next one."""

    partition: Partition
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.partition} [{self.start}, {self.end})"


class Record(msgspec.Struct, Generic[V_co, K_co], frozen=True, gc=False):
    """One record of a topic, its key and value decoded (or still bytes).

    ``timestamp_ms`` is milliseconds since the epoch, or None if the log has none; ``headers`` are pairs in order,
    duplicates kept; ``leader_epoch`` is the epoch of the leader that appended it, None if the broker reports none.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int | None
    key: K_co
    value: V_co
    headers: tuple[tuple[str, bytes | None], ...] = ()
    leader_epoch: int | None = None

    @property
    def timestamp(self) -> datetime | None:
        """Kafka's timestamp as an aware time in UTC; None if the record has none, or one beyond the year 9999."""
        return utc(self.timestamp_ms)

    @property
    def id(self) -> str:
        """``topic/partition/offset``: the idempotency key for effects outside this database."""
        return f"{self.topic}/{self.partition}/{self.offset}"


def utc(milliseconds: int | None) -> datetime | None:
    """Milliseconds since the epoch as an aware UTC time; None for times that Python cannot hold."""
    if milliseconds is None:
        return None
    try:
        return EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None


RawRecord = Record[bytes | None, bytes | None]


class LazyRecords(Sequence[RawRecord]):
    """Records with their values; the first access to a ``Record`` makes all of them.

    COPY needs ``Record`` objects only for records that fail, and making them takes longer than decoding the values.
    ``make`` makes all ``Record`` objects, and is called once; ``offsets`` does not call it. ``topic`` is the topic of
    all records, None if there may be several; ``size`` is the bytes of keys and values. ``rows`` are the rows for a
    sink, if they were made before the records are applied.
    """

    __slots__ = ("_make", "_objects", "_offsets", "rows", "size", "topic", "values")

    def __init__(
        self,
        values: Sequence[bytes | None],
        make: Callable[[], list[RawRecord]],
        offsets: Callable[[], Sequence[int]],
        *,
        topic: str | None,
        size: int,
    ) -> None:
        self.values, self.topic, self.size = values, topic, size
        self._make: Callable[[], list[RawRecord]] | None = make
        self._offsets: Callable[[], Sequence[int]] | None = offsets
        self._objects: list[RawRecord] = []
        self.rows: Sequence[tuple[Any, ...]] | None = None

    def _records(self) -> list[RawRecord]:
        if self._make is not None:
            self._objects, self._make, self._offsets = self._make(), None, None  # frees the messages
        return self._objects

    @property
    def offsets(self) -> Sequence[int]:
        """The offset of each record."""
        return [record.offset for record in self._objects] if self._offsets is None else self._offsets()

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[RawRecord]:
        return iter(self._records())

    def __reversed__(self) -> Iterator[RawRecord]:
        return reversed(self._records())

    @overload
    def __getitem__(self, index: int) -> RawRecord: ...
    @overload
    def __getitem__(self, index: slice) -> list[RawRecord]: ...
    def __getitem__(self, index: int | slice) -> RawRecord | list[RawRecord]:
        return self._records()[index]


def offsets_of(records: Sequence[RawRecord]) -> Sequence[int]:
    """The offset of each record."""
    return records.offsets if isinstance(records, LazyRecords) else [record.offset for record in records]


def size_of(records: Sequence[RawRecord]) -> int:
    """The bytes of all keys and values."""
    if isinstance(records, LazyRecords):
        return records.size
    return sum(len(r.value or b"") + len(r.key or b"") for r in records)


def size_with_headers(record: RawRecord) -> int:
    """The bytes of a record's key, value and headers."""
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


AnyRecord = Record[Any, Any]


SAID = 1000  # most characters kept of an error's message: it may quote a value of many megabytes
TRACED = 20_000  # most characters kept of a traceback, from the innermost frames


class Cause(StrEnum):
    """The kind of a record's failure."""

    DECODE = "decode"  # a codec could not read key, value or headers
    ROW = "row"  # row= or rows= of a sink raised, or returned something that is not a row
    HANDLER = "handler"  # the handler raised an exception other than Poison
    POISON = "poison"  # the handler raised Poison
    DATABASE = "database"  # the database refused its rows
    CRASHED = "crashed"  # the process that tried it crashed
    BLOCKED = "blocked"  # it did not fail: an earlier record of its key is an open dead letter
    TRANSIENT = "transient"  # a transient error in a single-record attempt; never a dead letter's cause
    ORDER = "order"  # the source's position goes back; never a dead letter's cause
    PROGRAM = "program"  # a program error of the database; never a dead letter's cause


class State(StrEnum):
    """A dead letter's state. The first three are open: the record was not applied, and may still be."""

    DEAD_LETTERED = "dead_lettered"  # an operator has to decide
    BLOCKED = "blocked"  # an earlier record of its key is open, and an operator has to decide about that one first
    WAITING = "waiting"  # the partition's owner tries it again when it is due
    SKIPPED = "skipped"
    REPLAYED = "replayed"
    DISCARDED = "discarded"
    SUPERSEDED = "superseded"


def error_attribute(error: BaseException, name: str) -> Any:
    """An exception's attribute; None if the exception lacks it, or if the attribute is a property that raises."""
    try:
        return getattr(error, name, None)
    except Exception:  # noqa: BLE001 -- a failing property must not hide the error that is described
        return None


@dataclass(frozen=True, slots=True)
class Failure:
    """Why one record failed. Its texts have no NUL characters or lone surrogates, so Postgres can store them.

    ``error`` is one line, ``type: message (notes)``; ``sqlstate`` the database's code, if the database refused it;
    ``attempts`` how often the record was tried; ``where`` the innermost line of the user's own code.
    """

    cause: Cause
    error: str
    traceback: str | None = field(default=None, repr=False)
    sqlstate: str | None = None
    attempts: int = 1
    where: str | None = None

    @property
    def summary(self) -> str:
        """The error, and the line of the user's code that raised it."""
        return f"{self.error} (at {self.where})" if self.where else self.error

    @classmethod
    def of(cls, error: BaseException, cause: Cause, *, attempts: int = 1) -> Failure:
        """Describe an exception as a failure."""
        state = error_attribute(_without_statement(error), "sqlstate")
        # Each part is cut separately: otherwise a message of many megabytes would leave no room for the frames.
        trace = "".join(_bounded(part, "\n") for part in traceback.format_exception(error))
        return cls(
            cause,
            one_line(error),
            storable(trace[-TRACED:]),
            state if isinstance(state, str) else None,
            attempts,
            users_line(error),
        )


BLOCKED_BY_KEY = Failure(Cause.BLOCKED, "an earlier record of its key is not applied yet", attempts=0)


@dataclass(frozen=True, slots=True)
class NewDeadLetter:
    """A record to be dead-lettered or skipped in the transaction that passes its offset.

    ``wait``: seconds until a waiting record is due.
    """

    record: RawRecord
    failure: Failure
    state: State
    wait: float | None = None


_NOT_THE_USERS = (str(Path(__file__).parent), sysconfig.get_paths()["stdlib"])


def users_line(error: BaseException) -> str | None:
    """The innermost line of the user's own code in an error's traceback: ``ingest.py:14 in post``."""
    return _users_line(traceback.walk_tb(error.__traceback__))


def running_line(frame: FrameType) -> str | None:
    """The innermost line of the user's own code that a thread is at now: ``ingest.py:14 in post``."""
    return _users_line(reversed(list(traceback.walk_stack(frame))))


def _users_line(frames: Iterable[tuple[FrameType, int]]) -> str | None:
    """The last frame of the user's own code; ``frames`` begin with the outermost."""
    location = None
    for frame, line in frames:
        file = frame.f_code.co_filename
        if "site-packages" not in file and not file.startswith((*_NOT_THE_USERS, "<")):
            location = f"{Path(file).name}:{line} in {frame.f_code.co_name}"
    return None if location is None else storable(location)


def storable(text: str) -> str:
    """The text as Postgres can store it: NUL and lone surrogates are escaped."""
    if "\0" in text:
        text = text.replace("\0", "\\x00")
    return text.encode("utf-8", "backslashreplace").decode()


def readable(data: bytes, *, is_cut: bool = False) -> str | None:
    """The bytes as text, None if they are not UTF-8 or have control characters other than newlines and tabs.

    ``is_cut``: ignore an incomplete character at the end.
    """
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(data, final=not is_cut)
    except UnicodeDecodeError:
        return None
    return text if all(char.isprintable() or char in "\n\t" for char in text) else None


def notes(error: BaseException) -> list[str]:
    """The notes of an exception; omits anything but strings in a list or tuple."""
    added_notes = getattr(error, "__notes__", None)
    return [note for note in added_notes if isinstance(note, str)] if isinstance(added_notes, list | tuple) else []


def add_note(error: BaseException, note: str) -> None:
    """Add a note, even if the exception's ``__notes__`` is not a list."""
    with suppress(AttributeError, TypeError):  # the exception's class may allow no notes
        if not isinstance(getattr(error, "__notes__", []), list):
            error.__notes__ = notes(error)
        error.add_note(note)


def one_line(error: BaseException) -> str:
    """``type: message (notes)`` on one line, each part bounded in length, storable, without SQLAlchemy's statement."""
    reported = _without_statement(error)
    try:
        message = str(reported)
    except Exception as failed:  # noqa: BLE001 -- dead-lettering must not fail because of an error's own __str__
        message = f"(its message cannot be read: {type(failed).__name__})"
    line = " ".join(f"{type(reported).__name__}: {_bounded(message)}".split()).rstrip(":")
    return storable(with_notes(line, reported, error))


def with_notes(line: str, *errors: BaseException) -> str:
    """The line, then each different note of these errors in parentheses."""
    added = dict.fromkeys(" ".join(_bounded(note).split()) for error in errors for note in notes(error))
    return " ".join([line, *(f"({note})" for note in added)])


def _without_statement(error: BaseException) -> BaseException:
    """The driver's error inside SQLAlchemy's error, whose message has the whole statement; others unchanged."""
    original = error_attribute(error, "orig")
    return original if isinstance(original, BaseException) else error


def _bounded(text: str, end: str = "") -> str:
    return text if len(text) <= SAID else f"{text[:SAID]}… ({len(text)} characters){end}"


def numbered(count: int, noun: str) -> str:
    """A count with its noun: ``1 record``, ``2,000 records``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
