"""The rows that frames have staged, only from attempts that a task reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from psycopg import sql as ident
from sqlalchemy import Connection

from seekpoint.errors import ReloadRefused
from seekpoint.jobs.frames.rows import FrameAttempt
from seekpoint.jobs.staging.stage import Staged
from seekpoint.jobs.staging.staged_rows import StagedRows
from seekpoint.jobs.tables.sql_templates import Composable, name, names, rows
from seekpoint.jobs.tables.staging_schema import LINE, MISSING, OFFSET, PLACE, Staging
from seekpoint.jobs.tables.targets import PipelineSource, Target
from seekpoint.records import Partition
from seekpoint.sinks.catalog import DELETED

_UNION = ident.SQL(" UNION ALL ")


@dataclass(frozen=True, slots=True)
class StagedFrame:
    """The staged rows of one frame: its attempts, and the table's columns that they contain.

    ``partitions`` are those of the micro-batch; a row's ``PLACE`` is an index into these.
    """

    frame: str
    columns: tuple[str, ...]
    attempts: Sequence[FrameAttempt]
    partitions: Sequence[Partition]


class FrameRows(StagedRows):
    """The staged rows, by the index of the frame's sink. Rows have their record's place and offset."""

    def __init__(
        self,
        connection: Connection,
        staging: Staging,
        sources: Sequence[PipelineSource],
        chosen: Sequence[Staged],
        frames: Mapping[int, StagedFrame],
    ) -> None:
        super().__init__(connection, staging, sources, chosen)
        self._frames = frames

    def columns(self, target: Target) -> tuple[str, ...]:
        """The columns that the frame writes."""
        return self._frame(target).columns

    def counts(self, target: Target) -> int:
        """The number of rows that the tasks have reported."""
        return sum(attempt.rows for attempt in self._frame(target).attempts)

    def check(self, target: Target) -> None:
        """Raise ReloadRefused if a table does not have all its task's rows, or a key's rows have no order."""
        for attempt in self._frame(target).attempts:
            path = (self._staging.schema, attempt.name)
            counted = rows(self._connection, "SELECT count(*) FROM {table}", table=path)[0][0]
            if counted != attempt.rows:
                raise ReloadRefused([f"{'.'.join(path)} has {counted} rows, and its task reported {attempt.rows}"])
        self.check_order(target)

    def check_order(self, target: Target) -> None:
        """Raise ReloadRefused if nothing says which of two different rows of one key is the newer one."""
        branches = self._branches(target, self.columns(target), placed=True)
        if not target.dedupes or not branches:
            return
        order = (*target.key, *([target.order_by] if target.order_by else []), PLACE, OFFSET)
        duplicates = rows(
            self._connection,
            "SELECT {place}, {offset} FROM ({all}) AS staged GROUP BY {order} "
            "HAVING count(DISTINCT CAST(ROW({columns}) AS text)) > 1 LIMIT 1",  # json has no equality
            columns=names(self.columns(target)),
            place=name(PLACE),
            offset=name(OFFSET),
            all=_UNION.join(branches),
            order=names(order),
        )
        for place, offset in duplicates:
            frame = self._frame(target)
            origin = "" if offset is None else f" of the record at {frame.partitions[place]} offset {offset}"
            remedy = (
                f"make one row of each key ({', '.join(target.key)}), or name a column that orders them (order_by=)"
            )
            if target.order_by is not None:
                origin += f", with equal values of {target.order_by!r}"
                remedy = f"give the rows of one key ({', '.join(target.key)}) different values"
                if offset is None:
                    remedy += ", or keep the record's partition and offset: then the row of the later record is newer"
            raise ReloadRefused(
                [f"{frame.frame} makes several rows of one key{origin}, and nothing says which is the newest: {remedy}"]
            )

    def shown(self, target: Target) -> str:
        """The table and the frame that writes it, in messages."""
        return f"{target.name}, of {self._frame(target).frame},"

    def keys(self, target: Target) -> Composable | None:
        """A query of the rows' keys; None if there are no rows."""
        branches = self._branches(target, target.key, placed=False)
        return _UNION.join(branches) if branches else None

    def _frame(self, target: Target) -> StagedFrame:
        return self._frames[target.feeds[0].number]

    def _branches(self, target: Target, columns: Sequence[str], *, placed: bool) -> list[Composable]:
        place = ident.SQL(", {}, false AS {}, NULL::text[] AS {}").format(
            names((PLACE, OFFSET, LINE)), name(DELETED), name(MISSING)
        )
        selected = ident.SQL("SELECT {}{} FROM {}")
        return [
            selected.format(
                names(columns), place if placed else ident.SQL(""), name(self._staging.schema, attempt.name)
            )
            for attempt in self._frame(target).attempts
        ]
