"""Changes of rows, as Debezium reports them: upserts, deletes, changed keys, and updates of some columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from seekpoint.codecs import UNAVAILABLE, Unreadable
from seekpoint.errors import ConfigError, Poison
from seekpoint.pipeline.sink import Row, RowRefused
from seekpoint.records import AnyRecord
from seekpoint.sinks.dedupe import Partial, Truncated

if TYPE_CHECKING:
    from seekpoint.sinks.upsert.open_upsert import OpenUpsert


def key_before(key: Sequence[str], before: Any, record_key: Any) -> tuple[Any, ...] | None:
    """The row's key before a change, from the event's ``before`` or the record's key; None if both lack it."""
    for row in (before, record_key):
        if row is not None and isinstance(row, Mapping):
            values = tuple(map(row.get, key))
            if None not in values and UNAVAILABLE not in values:
                return values
    return None


def require_key_before(writer: object, key: Sequence[str], record: AnyRecord) -> tuple[Any, ...]:
    """The key of the row before a change. Raises Poison if neither the event nor the record's key has it."""
    if (values := key_before(key, record.value.before, record.key)) is not None:
        return values
    if isinstance(record.key, bytes):
        raise ConfigError(f"{writer!r}: no codec decodes the records' keys: give the pipeline key=Debezium()")
    raise Poison(
        f"{writer!r}: neither the event's 'before' nor the record's key has {', '.join(key)} of the row before the "
        "change: make key= the key of the source's table, or set REPLICA IDENTITY FULL there",
        record,
    )


def require_readable(writer: object, row: Row, record: AnyRecord) -> None:
    """Raise Poison if the codec could not read a value of the row exactly."""
    for value in row:
        if type(value) is Unreadable:
            raise Poison(f"{writer!r}: {value.why}", record)


class OpenChanges:
    """Writes rows in order: complete ones by an upsert, those with UNAVAILABLE values by UPDATE, truncates by DELETE.

    An UPDATE or a truncate needs the earlier rows in the table, so the open upsert is finished first; the next complete
    row begins another upsert.
    """

    def __init__(self, begin: Callable[[], OpenUpsert], columns: Sequence[str]) -> None:
        self._begin, self._columns = begin, columns
        self._open: OpenUpsert | None = None
        self._passed = 0  # number of rows before the open upsert
        self._lines = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._open is None:
            return
        upsert, self._open = self._open, None
        try:
            with self._placed():
                upsert.__exit__(kind, error, trace)
        finally:
            self._passed = self._lines

    def write(self, rows: Sequence[Row]) -> None:
        """Take more rows."""
        for is_alone, group in groupby(rows, lambda row: type(row) in {Partial, Truncated}):
            some = list(group)
            if is_alone:
                self.__exit__(None, None, None)
                for row in some:
                    self._write_alone(row)
                    self._lines += 1
                self._passed = self._lines
                continue
            if self._open is None:
                self._open = self._begin().__enter__()
            with self._placed():
                self._open.write(some)
            self._lines += len(some)

    def _write_alone(self, row: Row) -> None:
        self._passed = self._lines
        with self._placed(), self._begin() as upsert:
            if type(row) is Truncated:
                upsert.delete_all(row)
                return
            values = {n: value for n, value in zip(self._columns, row, strict=True) if value is not UNAVAILABLE}
            if not upsert.update(values):
                missing = ", ".join(name for name in self._columns if name not in values)
                raise RowRefused(
                    1,
                    ValueError(
                        f"the table has no row of this key, and the event lacks {missing}, which the source does not "
                        "send if unchanged: let Debezium make a snapshot, or set REPLICA IDENTITY FULL in the source"
                    ),
                )

    @contextmanager
    def _placed(self) -> Iterator[None]:
        """Translate the open upsert's line in a RowRefused to the row's number among all rows."""
        try:
            yield
        except RowRefused as refused:
            line = None if refused.line is None else refused.line + self._passed
            raise RowRefused(line, refused.cause) from refused
