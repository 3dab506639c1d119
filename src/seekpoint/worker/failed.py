"""How records failed in one attempt, and how the next attempt applies the batch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import psycopg

from seekpoint.postgres.sqlstates import (
    QUERY_CANCELED,
    Fault,
    driver_error,
    may_be_of_before_alter,
    may_be_of_input,
    sqlstate,
)
from seekpoint.records import Cause, RawRecord, one_line

TRIES = 3  # attempts at one batch without a pause; then the loop backs off
_ROW = re.compile(r"\(\d+,\d+\)")  # a row's place, as the server writes it in any language


class Failed(Exception):  # noqa: N818 -- control: the batch is run again, by parts
    """One of the records to be written failed, and none was written.

    ``named`` are the records that failed; empty if they are not known. If ``fault`` is not DATA, there may be no record
    at fault. ``sink`` is the index of the sink whose rows were refused; None for the handler, or if not known.
    ``blamed`` has the errors by record id, if there are several.
    """

    def __init__(
        self,
        error: BaseException,
        cause: Cause,
        named: Sequence[RawRecord] = (),
        *,
        fault: Fault = Fault.DATA,
        sink: int | None = None,
        blamed: Mapping[str, BaseException] = MappingProxyType({}),
    ) -> None:
        super().__init__(one_line(error))
        self.error, self.cause, self.named = error, cause, tuple(named)
        self.fault, self.sink, self._blamed = fault, sink, blamed

    def error_of(self, raw: RawRecord) -> BaseException:
        """The error of this record."""
        return self._blamed.get(raw.id, self.error)

    @property
    def was_cancelled(self) -> bool:
        """Whether the server cancelled a statement, in most cases by ``statement_timeout``."""
        return sqlstate(self.error) == QUERY_CANCELED

    @property
    def is_of_before_alter(self) -> bool:
        """Whether the statement may have been prepared before an ALTER: another connection prepares it again."""
        return self.cause is Cause.DATABASE and may_be_of_before_alter(self.error)

    @property
    def may_be_of_input(self) -> bool:
        """Whether a value may have caused the error: then an Upsert tries COPY next, whose errors name the row."""
        return self.fault is Fault.PROGRAM and self.sink is not None and may_be_of_input(sqlstate(self.error))

    @property
    def waited(self) -> bool:
        """Whether the cancelled statement waited for a row's lock, so that its size is not the cause."""
        error = driver_error(self.error)
        return isinstance(error, psycopg.Error) and _ROW.search(error.diag.context or "") is not None


@dataclass(frozen=True, slots=True)
class Mode:
    """How one attempt applies its batch.

    ``is_bisecting``: in parts, to find the records that fail. ``checks_deferred``: each part checks deferred
    constraints, because one of them refused COMMIT. ``failed``: how the whole batch failed on the previous attempt, so
    it is not tried as a whole again.
    """

    attempt: int = 1
    is_bisecting: bool = False
    checks_deferred: bool = False
    failed: Failed | None = None

    @property
    def is_patient(self) -> bool:
        """Whether a transient error ends the attempt: the whole transaction is tried again first."""
        return self.attempt <= TRIES


FIRST = Mode()  # the first attempt, as a whole
