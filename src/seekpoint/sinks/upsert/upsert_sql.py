"""The statements of one upsert's table, composed once: their text never varies from batch to batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from psycopg import sql

from seekpoint.sinks.catalog import DELETED, FULL_TYPE, LINE, Layout, quoted, stage_name
from seekpoint.sinks.dedupe import Target

_STORED, _NEW = sql.Identifier("stored"), sql.Identifier("new")  # aliases
Composable = sql.Composable


class UpsertSql:
    """For rows given as arrays of text (``unnest``) and for rows in the stage."""

    def __init__(self, target: Target, layout: Layout) -> None:
        self.target, self.layout = target, layout
        self._table = escaped_name(*target.path)
        self._stage = escaped_name("pg_temp", stage_name(target))

    @property
    def gate(self) -> list[object]:
        """What ``insert`` and ``delete`` compare before they convert any value: are the types still these?

        A table that was altered meanwhile takes no rows then, and the caller asks for its layout again.
        """
        return [list(self.layout.types), quoted(*self.target.path), list(self.layout.numbers)]

    @cached_property
    def insert(self) -> sql.Composed:
        """Rows as one array per column, then the gate."""
        assert self.target.columns is not None
        columns = self.target.columns
        return sql.SQL("{} SELECT {} FROM {} WHERE {} {}").format(
            self._into, self._cast(columns), _given(columns), _GATE, self._conflict
        )

    @cached_property
    def delete(self) -> sql.Composed:
        """Tombstones as one array per column of ``Target.deletes``, then the gate."""
        gone = self.target.deletes
        return sql.SQL("DELETE FROM {} AS {} USING (SELECT {} FROM {}) AS {} WHERE {} AND {}").format(
            self._table, _STORED, self._cast(gone), _given(gone), _NEW, self._matched, _GATE
        )

    @cached_property
    def merge(self) -> sql.Composed:
        """From the stage, the newest row of each key, sorted by key: two writers of the same keys wait in one order."""
        assert self.target.columns is not None
        names = _list(map(escaped_name, self.target.columns))
        return sql.SQL("{} SELECT {} FROM {} WHERE NOT {} {}").format(
            self._into, names, self._newest, escaped_name(DELETED), self._conflict
        )

    @cached_property
    def delete_staged(self) -> sql.Composed:
        """From the stage, those keys whose newest is a tombstone."""
        return sql.SQL("DELETE FROM {} AS {} USING {} WHERE {}.{} AND {}").format(
            self._table, _STORED, self._newest, _NEW, escaped_name(DELETED), self._matched
        )

    # -- parts --------------------------------------------------------------------------------------------

    @cached_property
    def _into(self) -> sql.Composed:
        assert self.target.columns is not None
        overriding = " OVERRIDING SYSTEM VALUE" if self.layout.overriding else ""
        return sql.SQL("INSERT INTO {} AS {} ({}){}").format(
            self._table, _STORED, _list(map(escaped_name, self.target.columns)), sql.SQL(overriding)
        )

    @cached_property
    def _conflict(self) -> Composable:
        target = self.target
        key = _list(map(escaped_name, target.key))
        known = self.layout.columns
        changing = [name for name in target.columns or () if name not in target.key or known[name].has_spellings]
        if not changing:
            return sql.SQL("ON CONFLICT ({}) DO NOTHING").format(key)
        new = escaped_name("excluded")
        changes = _list(sql.SQL("{0} = {1}.{0}").format(escaped_name(name), new) for name in changing)
        update = sql.SQL("ON CONFLICT ({}) DO UPDATE SET {}").format(key, changes)
        guard = self._newer(new)
        return update if guard is None else sql.SQL("{} WHERE {}").format(update, guard)

    @cached_property
    def _matched(self) -> Composable:
        known = self.layout.columns
        equal = [
            sql.SQL("{}.{} {} {}.{}").format(_STORED, name, _as_sql(known[one].equal), _NEW, name)
            for one, name in zip(self.target.key, map(escaped_name, self.target.key), strict=True)
        ]
        guard = self._newer(_NEW)
        return sql.SQL(" AND ").join(equal if guard is None else [*equal, guard])

    def _newer(self, new: Composable) -> sql.Composed | None:
        """Whether the new row is not older than the stored one; one without an order is older than any."""
        column = self.target.order_by or self.target.offset
        if column is None:
            return None
        name = escaped_name(column)
        not_less = _as_sql(self.layout.columns[column].not_less)
        newer = sql.SQL("{0}.{2} IS NULL OR {1}.{2} {3} {0}.{2}").format(_STORED, new, name, not_less)
        elsewhere = [
            sql.SQL(" OR {0}.{2} IS DISTINCT FROM {1}.{2}").format(_STORED, new, escaped_name(name))
            for name in self.target.origin
        ]
        return sql.SQL("({}{})").format(newer, sql.Composed(elsewhere))

    @cached_property
    def _newest(self) -> sql.Composed:
        key = _list(map(escaped_name, self.target.key))
        order = sql.SQL("{} DESC, ").format(escaped_name(self.target.order_by)) if self.target.order_by else sql.SQL("")
        return sql.SQL("(SELECT DISTINCT ON ({0}) * FROM {1} ORDER BY {0}, {2}{3} DESC) AS {4}").format(
            key, self._stage, order, escaped_name(LINE), _NEW
        )

    def _cast(self, columns: Sequence[str]) -> sql.Composed:
        """The text as the column's type, without its modifier: only an assignment says that a text is too long."""
        known = self.layout.columns
        return _list(
            sql.SQL("CAST({0} AS {1}) AS {0}").format(escaped_name(name), _as_sql(known[name].type)) for name in columns
        )


_GATE = sql.SQL(
    f"(SELECT array_agg({FULL_TYPE} ORDER BY a.attnum) = %s::text[] FROM pg_attribute a "  # noqa: S608 -- a constant
    "WHERE a.attrelid = to_regclass(%s) AND a.attnum = ANY(%s::int2[]))"
)


def _given(columns: Sequence[str]) -> sql.Composed:
    arrays = sql.SQL(", ").join([sql.SQL("%s::text[]")] * len(columns))
    return sql.SQL("unnest({}) AS given ({})").format(arrays, _list(map(escaped_name, columns)))


def escaped_name(*parts: str) -> sql.Identifier:
    """A name in these statements, whose ``%`` are doubled: they are always run with parameters, if only ``()``."""
    return sql.Identifier(*map(_spared, parts))


def _as_sql(text: str) -> sql.SQL:
    return sql.SQL(_spared(text))


def _spared(text: str) -> str:
    """Statements are run with parameters, where a lone ``%`` would begin one."""
    return text.replace("%", "%%")


def _list(parts: Iterable[Composable]) -> sql.Composed:
    return sql.SQL(", ").join(parts)
