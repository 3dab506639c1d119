"""The table with its constraints, the handler with its bugs, and the same handler fixed."""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Sequence
from datetime import date
from operator import attrgetter
from pathlib import Path
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Connection,
    DateTime,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    TextClause,
    text,
)

from demo import flights
from demo.flights import Flight
from demo.poison.kinds import ID
from seekpoint import Batch, Handler, Pipeline, Poison, Record, Retry, events
from seekpoint.codecs import Json

CLEAN, POISONED = "flights_clean", "flights"  # topic, table and group
EXITED = 66  # the exit code of a worker that a record ends by os._exit()
RETRY = Retry(attempts=4, wait_initial=0.1, wait_max=1.0)
INT2, MILES = 32_767, 1_000_000  # the largest smallint; the factor of a wrong distance


class Notice(Flight, frozen=True, gc=False):
    """A flight as it arrives, not checked yet."""

    hour: int | None  # type: ignore[assignment]  # which the table will refuse
    trouble: str | None = None


LENGTHS = {"carrier": 2, "tailnum": 6, "origin": 3, "dest": 3}
NULLABLE = {"dep_time", "dep_delay", "arr_time", "arr_delay", "tailnum", "air_time"}


def _column(plain: Column[Any]) -> Column[Any]:
    kind = String(LENGTHS[plain.name]) if plain.name in LENGTHS else plain.type
    return Column(plain.name, kind, nullable=plain.name in NULLABLE)


def make_table(name: str) -> Table:
    """A table with the flights' columns, in their order, with types, lengths and constraints."""
    return Table(
        name,
        MetaData(),
        Column("id", BigInteger, primary_key=True, autoincrement=False),
        *(_column(column) for column in flights.table.c if column.name != "id"),
        CheckConstraint("distance > 0", name=f"{name}_distance_check"),
    )


_ARRAYS = {SmallInteger: "smallint", Integer: "integer", BigInteger: "bigint", String: "text", DateTime: "timestamptz"}


def _insert(table: Table) -> TextClause:
    """A statement that inserts all rows. Text is not cast to varchar: a cast truncates text that the column refuses."""
    columns = ", ".join(table.c.keys())
    arrays = ", ".join(f"CAST(:{c.name} AS {_ARRAYS[type(c.type)]}[])" for c in table.c)
    return text(f"INSERT INTO {table.name} ({columns}) SELECT * FROM unnest({arrays})")


class FixedHandler:
    """The fixed handler: corrects broken records, and writes them."""

    def __init__(self, table: Table) -> None:
        self._insert, self._names = _insert(table), tuple(table.c.keys())
        self._row = attrgetter(*self._names)

    def __call__(self, tx: Connection, batch: Batch[Notice, bytes | None]) -> None:
        """Write the batch."""
        self.write(tx, [corrected(record) for record in batch])

    def write(self, tx: Connection, notices: Sequence[Flight]) -> None:
        """Write all rows by one statement."""
        columns = zip(*map(self._row, notices), strict=True)
        tx.execute(self._insert, dict(zip(self._names, map(list, columns), strict=True)))


def corrected(record: Record[Notice, bytes | None]) -> Flight:
    """The flight as it was before its record was broken."""
    notice = record.value
    distance = abs(notice.distance)
    true_id = dict(record.headers)[ID]
    assert true_id is not None
    return Flight(
        **{name: getattr(notice, name) for name in Flight.__struct_fields__}
        | {
            "id": int(true_id),
            "month": (notice.month - 1) % 12 + 1,
            "day": (notice.day - 1) % 31 + 1,
            "origin": notice.origin[:3],
            "dest": notice.dest.rstrip("\0"),
            "distance": distance // MILES if distance > INT2 else distance,
            "hour": notice.sched_dep_time // 100,
            "minute": notice.sched_dep_time % 100,
        }
    )


class Outages:
    """Simulates an external service that fails for some records until they were delayed once or twice.

    Its state is in files, because another process may read the record again. It observes the worker's events.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, event: events.Event) -> None:
        """Store how often a record was delayed."""
        if isinstance(event, events.RetryScheduled):
            self._file(event.partition.number, event.offset).write_text(str(event.attempt), encoding="utf-8")

    def ask(self, record: Record[Notice, bytes | None], times: int) -> None:
        """Raise TimeoutError until the record was delayed ``times`` times."""
        file = self._file(record.partition, record.offset)
        if not file.exists() or int(file.read_text(encoding="utf-8")) < times:
            raise TimeoutError(f"the external service did not answer for {record.id}")

    def tries(self) -> dict[str, int]:
        """How often each record was delayed, by ``partition-offset``."""
        return {file.name: int(file.read_text(encoding="utf-8")) for file in self._folder.iterdir()}

    def _file(self, partition: int, offset: int) -> Path:
        return self._folder / f"{partition}-{offset}"


class BuggyHandler(FixedHandler):
    """The handler as it was deployed: it does not check its records enough, and some of them crash it."""

    def __init__(self, table: Table, outages: Outages) -> None:
        super().__init__(table)
        self._outages = outages

    def __call__(self, tx: Connection, batch: Batch[Notice, bytes | None]) -> None:
        """Check every notice, then write them all."""
        notices = []
        for record in batch:
            notice = record.value
            if notice.trouble is not None:
                self._meet(notice.trouble, record)
            if notice.month > 12:
                raise Poison(f"no such month: {notice.month}")
            date(notice.year, notice.month, notice.day)
            notices.append(notice)
        if late := [record for record in batch if record.value.minute > 59]:
            raise Poison("no such minute", *late)
        self.write(tx, notices)

    def _meet(self, trouble: str, record: Record[Notice, bytes | None]) -> None:
        if trouble == "exit":
            os._exit(EXITED)
        if trouble == "segfault":
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # no core file in the user's folder
            ctypes.string_at(0)
        self._outages.ask(record, int(trouble.removeprefix("outage ")))


def make_pipeline(name: str, handle: Handler) -> Pipeline:
    """The pipeline of one topic, whose table and group have the same name."""
    return Pipeline(
        name,
        topics=name,
        value=Json(Notice),
        handle=handle,
        writes=[name],
        on_poison="dead_letter",
        retry=RETRY,
    )
