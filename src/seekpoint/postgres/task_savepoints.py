"""Savepoints of tasks that share one transaction.

A rollback to a savepoint undoes everything written after the savepoint, by whichever task. Another task would not
notice this, and its records' offsets would be committed without their rows. So the rollback is refused if another task
has used the connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from sqlalchemy import Connection, event

from seekpoint.errors import HandlerMisuse


@dataclass(eq=False, slots=True)
class _Savepoint:
    has_others: bool = False  # a task outside of the savepoint has used the connection since
    is_ending: bool = False  # the savepoint's ROLLBACK waits for earlier statements of other tasks


# A task inherits its parent's savepoint.
_own: ContextVar[tuple[_Savepoint, ...]] = ContextVar("savepoints", default=())


class TaskSavepoints:
    """The open savepoints of the tasks of one handler call, the innermost last."""

    def __init__(self) -> None:
        self._open: list[_Savepoint] = []
        self._misuse: HandlerMisuse | None = None

    @contextmanager
    def watched(self, tx: Connection) -> Iterator[None]:
        """Watch the connection's savepoints in the block. At its end raise a HandlerMisuse that the handler caught."""
        listeners: dict[str, Callable[..., None]] = {
            "savepoint": self._begins,
            "release_savepoint": self._released,
            "rollback_savepoint": self._rolls_back,
        }
        for name, listener in listeners.items():
            event.listen(tx, name, listener)
        try:
            yield
        except Exception as error:  # an ExceptionGroup of the tasks, or the handler's own error
            if self._misuse is None or self._misuse is error:
                raise
            raise self._misuse from error
        finally:
            for name, listener in listeners.items():
                event.remove(tx, name, listener)
        if self._misuse is not None:
            raise self._misuse

    def used(self) -> None:
        """Note that the current task sends a statement. Raises HandlerMisuse if a pending rollback would undo it."""
        savepoints = _own.get()
        for savepoint in [*self._open]:
            if savepoint not in savepoints:
                savepoint.has_others = True
                if savepoint.is_ending:
                    self._refuse()
            elif savepoint.is_ending:  # this statement is the ROLLBACK
                self._open.remove(savepoint)

    def _begins(self, _tx: Connection, _name: str | None) -> None:
        savepoint = _Savepoint()
        self._open.append(savepoint)
        _own.set((*_own.get(), savepoint))

    def _released(self, _tx: Connection, _name: str, _context: None) -> None:
        if self._open:
            self._open.pop()

    def _rolls_back(self, _tx: Connection, _name: str, _context: None) -> None:
        if self._open:
            if self._open[-1].has_others:
                self._refuse()
            self._open[-1].is_ending = True

    def _refuse(self) -> None:
        self._misuse = HandlerMisuse(
            "one task of the handler rolled a savepoint back while another task used the connection: what the other "
            "task wrote would be lost, but the offsets of its records committed. Let tasks that use savepoints write "
            "one after the other (asyncio.Lock), or start them within one savepoint"
        )
        raise self._misuse
