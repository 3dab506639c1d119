"""Why a record was not applied, as a plain value that can be stored, shown and compared. No I/O."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import FrameType

from seekpoint.records import RawRecord

SAID = 1000  # characters of an error that are passed on: a message may quote a value of many megabytes
TRACED = 20_000  # characters of a traceback that are kept: the innermost ones


class Cause(StrEnum):
    """What kind of thing went wrong with a record."""

    DECODE = "decode"  # a codec could not read key, value or headers
    ROW = "row"  # row= or rows= of a sink raised, or made something that is no row
    HANDLER = "handler"  # the handler raised, and goes on raising when the record is tried again
    POISON = "poison"  # the handler said so itself
    DATABASE = "database"  # the database refused what was made of it
    KILLED = "killed"  # the process that tried it never came back
    HELD = "held"  # nothing: an earlier record of its key is a dead letter
    TRANSIENT = "transient"  # the database refused it alone with a transient error; never of a dead letter
    PROGRAM = (
        "program"  # the database reports a mistake of the program, perhaps not the record's; never of a dead letter
    )


class State(StrEnum):
    """Where a dead letter stands. The first two are open: somebody has to decide."""

    PARKED = "parked"
    HELD = "held"
    SKIPPED = "skipped"
    REPLAYED = "replayed"
    DISCARDED = "discarded"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong with one record. All text is without NUL characters and lone surrogates: Postgres takes it.

    ``error`` is one line, ``type: message (notes)``; ``sqlstate`` the database's code where it was the database;
    ``attempts`` how often the record was tried; ``where`` the innermost line of the user's own code.
    """

    cause: Cause
    error: str
    traceback: str | None = field(default=None, repr=False)
    sqlstate: str | None = None
    attempts: int = 1
    where: str | None = None

    @property
    def told(self) -> str:
        """The error, and where in the user's code it came from."""
        return f"{self.error} (at {self.where})" if self.where else self.error

    @classmethod
    def of(cls, error: BaseException, cause: Cause, *, attempts: int = 1) -> Failure:
        """The failure that this exception was."""
        original = getattr(error, "orig", None)  # SQLAlchemy's wrapping adds the whole statement to the message
        told = original if isinstance(original, BaseException) else error
        state = getattr(told, "sqlstate", None)
        # Each message is bounded by itself: one of many megabytes would leave nothing of the lines that raised it.
        trace = "".join(_bounded(part, "\n") for part in traceback.format_exception(error))
        return cls(
            cause,
            " ".join([one_line(told), *(f"({storable(note)})" for note in notes(told))]),
            storable(trace[-TRACED:]),
            state if isinstance(state, str) else None,
            attempts,
            users_line(error),
        )


HELD_BEHIND = Failure(Cause.HELD, "an earlier record of its key is a dead letter", attempts=0)


@dataclass(frozen=True, slots=True)
class Aside:
    """A record that is not applied, though its offset is passed: it goes to the dead letters with its batch."""

    record: RawRecord
    failure: Failure
    state: State


_NOT_THE_USERS = (str(Path(__file__).parent), sysconfig.get_paths()["stdlib"])


def users_line(error: BaseException) -> str | None:
    """The innermost line of the user's own code on the way to the error: ``ingest.py:14 in post``."""
    return _users_line(traceback.walk_tb(error.__traceback__))


def running_line(frame: FrameType) -> str | None:
    """The innermost line of the user's own code that a thread is at now: ``ingest.py:14 in post``."""
    return _users_line(reversed(list(traceback.walk_stack(frame))))


def _users_line(frames: Iterable[tuple[FrameType, int]]) -> str | None:
    """Of frames from the outermost on, the last one of the user's own code."""
    found = None
    for frame, line in frames:
        file = frame.f_code.co_filename
        if "site-packages" not in file and not file.startswith((*_NOT_THE_USERS, "<")):
            found = f"{Path(file).name}:{line} in {frame.f_code.co_name}"
    return None if found is None else storable(found)


def storable(text: str) -> str:
    """The text as Postgres can hold it: NUL and lone surrogates written out."""
    if "\0" in text:
        text = text.replace("\0", "\\x00")
    return text.encode("utf-8", "backslashreplace").decode()


def notes(error: BaseException) -> list[str]:
    """The notes of an exception; those that are no text, or in no list, are left out."""
    found = getattr(error, "__notes__", None)
    return [note for note in found if isinstance(note, str)] if isinstance(found, list | tuple) else []


def add_note(error: BaseException, note: str) -> None:
    """``add_note``, also where the exception's ``__notes__`` is no list."""
    with suppress(AttributeError, TypeError):  # an exception's class may allow none: a note is not worth another error
        if not isinstance(getattr(error, "__notes__", []), list):
            error.__notes__ = notes(error)
        error.add_note(note)


def one_line(error: BaseException) -> str:
    """``type: message`` on one line, bounded in length, storable."""
    try:
        said = str(error)
    except Exception as failed:  # noqa: BLE001 -- parking must not fail because of how an error tells itself
        said = f"(its message cannot be told: {type(failed).__name__})"
    return storable(" ".join(f"{type(error).__name__}: {_bounded(said)}".split()).rstrip(":"))


def _bounded(said: str, end: str = "") -> str:
    return said if len(said) <= SAID else f"{said[:SAID]}… ({len(said)} characters){end}"
