"""How records failed in one attempt, and how the next one applies the batch."""

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

TRIES = 3  # of one batch, at once; then it is given back, and the loop waits
_ROW = re.compile(r"\(\d+,\d+\)")  # a row's place, as the server writes it in any language


class Failed(Exception):  # noqa: N818 -- control: the batch is run again, by parts
    """Some record of what was written failed; nothing of it remains.

    ``named`` are those that failed, where they are known; else empty: it is one of them all. ``fault`` is what the
    error says: other than DATA, it may be no record's fault at all. ``sink`` is the number of the sink whose rows were
    refused; None where it was the handler, or is not known. ``blamed``: the error of each record, by its id, where
    there are several.
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
        """What this record failed with."""
        return self._blamed.get(raw.id, self.error)

    @property
    def was_cancelled(self) -> bool:
        """Whether the server cancelled a statement, mostly for the time that it took."""
        return sqlstate(self.error) == QUERY_CANCELED  # statement_timeout, mostly

    @property
    def is_of_before_alter(self) -> bool:
        """Whether the statement may be of before an ALTER: made again on another connection, it may succeed."""
        return self.cause is Cause.DATABASE and may_be_of_before_alter(self.error)

    @property
    def may_be_of_input(self) -> bool:
        """Whether the server may have been reading a value: an Upsert writes by COPY next, whose errors name it."""
        return self.fault is Fault.PROGRAM and self.sink is not None and may_be_of_input(sqlstate(self.error))

    @property
    def waited(self) -> bool:
        """Whether the statement that was cancelled waited for a lock of one row: that says nothing of its size."""
        error = driver_error(self.error)
        return isinstance(error, psycopg.Error) and _ROW.search(error.diag.context or "") is not None


@dataclass(frozen=True, slots=True)
class Mode:
    """How one attempt applies its batch.

    ``is_bisecting``: in parts, so that the records that fail are found. ``checks_deferred``: each part checks deferred
    constraints, as one of them has refused COMMIT. ``failed``: how the whole batch failed at the attempt before; it is
    not tried as a whole again.
    """

    attempt: int = 1
    is_bisecting: bool = False
    checks_deferred: bool = False
    failed: Failed | None = None

    @property
    def is_patient(self) -> bool:
        """Whether an error that may pass ends the attempt: the whole transaction is tried again first."""
        return self.attempt <= TRIES


FIRST = Mode()  # the first attempt, as a whole
