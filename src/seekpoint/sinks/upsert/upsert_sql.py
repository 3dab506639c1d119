"""The statements of one upsert's table, composed once: their text never varies from batch to batch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from psycopg import sql

from seekpoint.sinks.catalog import DELETED, LINE
from seekpoint.sinks.upsert.merge_sql import (
    GATE,
    NEW,
    STORED,
    Composable,
    MergeSql,
    arrays,
    as_sql,
    escaped_name,
    listed,
)


class UpsertSql(MergeSql):
    """Statements that write the newest row of each key, or delete it; or write the first row of each key."""

    @cached_property
    def insert(self) -> sql.Composed:
        """INSERT of rows."""
        assert self.target.columns is not None
        columns = self.target.columns
        return sql.SQL("{} SELECT {} FROM {} WHERE {} {}").format(
            self._into, self._casts(columns), arrays(columns), GATE, self._conflict
        )

    @cached_property
    def delete(self) -> sql.Composed:
        """DELETE by tombstones: one array for each column of ``Target.deletes``."""
        columns = self.target.deletes
        return sql.SQL("DELETE FROM {} AS {} USING (SELECT {} FROM {}) AS {} WHERE {} AND {}").format(
            self._table, STORED, self._casts(columns), arrays(columns), NEW, self._matched, GATE
        )

    @cached_property
    def delete_all(self) -> sql.Composed:
        """DELETE of every row that is not newer: one array for each column of ``Target.deletes``; keys are NULL."""
        columns, guard = self.target.deletes, self._not_less(self.target.offset or "", NEW)
        return sql.SQL("DELETE FROM {} AS {} USING (SELECT {} FROM {}) AS {} WHERE {} AND {}").format(
            self._table, STORED, self._casts(columns), arrays(columns), NEW, guard, GATE
        )

    @cached_property
    def merge(self) -> sql.Composed:
        """INSERT of the newest row of each key in the stage."""
        assert self.target.columns is not None
        names = listed(map(escaped_name, self.target.columns))
        return sql.SQL("{} SELECT {} FROM {} WHERE NOT {} {}").format(
            self._into, names, self._newest, escaped_name(DELETED), self._conflict
        )

    @cached_property
    def delete_staged(self) -> sql.Composed:
        """DELETE of the keys whose newest row in the stage is a tombstone."""
        return sql.SQL("DELETE FROM {} AS {} USING {} WHERE {}.{} AND {}").format(
            self._table, STORED, self._newest, NEW, escaped_name(DELETED), self._matched
        )

    def update(self, columns: Sequence[str]) -> sql.Composed:
        """UPDATE of these columns of existing rows."""
        return sql.SQL("UPDATE {} AS {} SET {} FROM (SELECT {} FROM {}) AS {} WHERE {} AND {}").format(
            self._table, STORED, self._set(columns), self._casts(columns), arrays(columns), NEW, self._matched, GATE
        )

    @cached_property
    def stored(self) -> sql.Composed:
        """SELECT of the rows with these keys: one array for each column of the key."""
        key = self.target.key
        return sql.SQL("SELECT FROM {} AS {}, (SELECT {} FROM {}) AS {} WHERE {} AND {}").format(
            self._table, STORED, self._casts(key), arrays(key), NEW, self._same_key(STORED, NEW), GATE
        )

    @cached_property
    def steps_back(self) -> sql.Composed | None:
        """SELECT of the stage's first row that is lower than an earlier one: its number from 1, and both positions."""
        if not self.target.has_position:
            return None
        parts = {"line": escaped_name(LINE), "position": escaped_name(self.target.order_by or ""), "stage": self._stage}
        so_far = listed(map(escaped_name, (*self.target.key, *self.target.origin)))
        return sql.SQL(
            "SELECT (SELECT count(*) FROM (SELECT {line} FROM {stage}) AS counted "
            "WHERE counted.{line} <= back.{line}), before, {position} FROM (SELECT {line}, before, {position} FROM "
            "(SELECT {line}, {position}, max({position}) OVER (PARTITION BY {so_far} ORDER BY {line}) AS before "
            "FROM {stage}) AS staged WHERE {position} < before UNION ALL "
            "SELECT {new}.{line}, {stored}.{position}, {new}.{position} FROM (SELECT * FROM {stage}) AS {new} "
            "JOIN {table} AS {stored} ON {is_back}) AS back ORDER BY {line} LIMIT 1"
        ).format(**parts, so_far=so_far, new=NEW, stored=STORED, table=self._table, is_back=self._is_back)

    @cached_property
    def step_back(self) -> sql.Composed:
        """SELECT of the first row whose position is lower than the stored one: its number from 1, and both positions.

        The parameters are one array for each column of ``Target.deletes``.
        """
        columns = self.target.deletes
        rows = sql.SQL("SELECT {}, {line} FROM unnest({}) WITH ORDINALITY AS rows ({}, {line})").format(
            self._casts(columns),
            sql.SQL(", ").join([sql.SQL("%s::text[]")] * len(columns)),
            listed(map(escaped_name, columns)),
            line=escaped_name(LINE),
        )
        return sql.SQL(
            "SELECT {new}.{line}, {stored}.{position}, {new}.{position} FROM ({rows}) AS {new} "
            "JOIN {table} AS {stored} ON {is_back} ORDER BY 1 LIMIT 1"
        ).format(
            new=NEW,
            line=escaped_name(LINE),
            stored=STORED,
            position=escaped_name(self.target.order_by or ""),
            rows=rows,
            table=self._table,
            is_back=self._is_back,
        )

    # -- parts --------------------------------------------------------------------------------------------

    @property
    def _is_back(self) -> sql.Composed:
        """The condition that the new row of the same partition is later in the log, and older at the source."""
        offset, position = escaped_name(self.target.offset or ""), escaped_name(self.target.order_by or "")
        return sql.SQL(
            "{} AND NOT {} AND {new}.{offset} > {stored}.{offset} AND {new}.{position} < {stored}.{position}"
        ).format(
            self._same_key(STORED, NEW), self._elsewhere(NEW), new=NEW, stored=STORED, offset=offset, position=position
        )

    def _set(self, columns: Sequence[str]) -> sql.Composed:
        """The assignments of an UPDATE; of the key's columns only those whose equal values may have two spellings."""
        layout_columns, key = self.layout.columns, self.target.key
        changing = [name for name in columns if name not in key or layout_columns[name].has_spellings] or key
        return listed(sql.SQL("{0} = {1}.{0}").format(escaped_name(name), NEW) for name in changing)

    @cached_property
    def _conflict(self) -> Composable:
        target = self.target
        layout_columns = self.layout.columns
        changing = [
            name for name in target.columns or () if name not in target.key or layout_columns[name].has_spellings
        ]
        if target.keeps_first or not changing:
            return sql.SQL("ON CONFLICT ({}) DO NOTHING").format(self._key)
        new = escaped_name("excluded")
        changes = listed(sql.SQL("{0} = {1}.{0}").format(escaped_name(name), new) for name in changing)
        update = sql.SQL("ON CONFLICT ({}) DO UPDATE SET {}").format(self._key, changes)
        guard = self._newer(new)
        return update if guard is None else sql.SQL("{} WHERE {}").format(update, guard)

    @cached_property
    def _matched(self) -> Composable:
        same_key, guard = self._same_key(STORED, NEW), self._newer(NEW)
        return same_key if guard is None else sql.SQL("{} AND {}").format(same_key, guard)

    def _newer(self, new: Composable) -> sql.Composed | None:
        """The condition that the new row is not older than the stored one; NULL is older than any."""
        order_by, offset = self.target.order_by, self.target.offset
        if order_by is None and offset is None:
            return None
        if order_by is None or offset is None:
            newer = self._not_less(order_by or offset or "", new)
            return newer if order_by is not None else sql.SQL("({} OR {})").format(self._elsewhere(new), newer)
        # A tombstone has no position: it deletes rows of its partition only.
        position, has_none = self._not_less(order_by, new), sql.SQL("{}.{} IS NULL").format(new, escaped_name(order_by))
        return sql.SQL("CASE WHEN {} THEN {} ELSE {} AND ({} OR {}) END").format(
            self._elsewhere(new), position, self._not_less(offset, new), has_none, position
        )

    def _not_less(self, column: str, new: Composable) -> sql.Composed:
        """The condition that the new row's value is not less than the stored one; NULL is less than any."""
        not_less = as_sql(self.layout.columns[column].not_less)
        return sql.SQL("({0}.{2} IS NULL OR {1}.{2} {3} {0}.{2})").format(STORED, new, escaped_name(column), not_less)

    def _elsewhere(self, new: Composable) -> Composable:
        """The condition that the new row comes from another partition than the stored one."""
        elsewhere = [
            sql.SQL("{0}.{2} IS DISTINCT FROM {1}.{2}").format(STORED, new, escaped_name(name))
            for name in self.target.origin
        ]
        return sql.SQL("({})").format(sql.SQL(" OR ").join(elsewhere)) if elsewhere else sql.SQL("false")

    @cached_property
    def _newest(self) -> sql.Composed:
        order = sql.SQL("{} DESC, ").format(escaped_name(self.target.order_by)) if self.target.order_by else sql.SQL("")
        if self.target.has_position:  # a tombstone gets the position of the change before it
            order = sql.SQL("max({}) OVER (PARTITION BY {} ORDER BY {}) DESC NULLS LAST, ").format(
                escaped_name(self.target.order_by or ""),
                listed(map(escaped_name, (*self.target.key, *self.target.origin))),
                escaped_name(LINE),
            )
        last = sql.SQL("" if self.target.keeps_first else " DESC")
        return sql.SQL("(SELECT DISTINCT ON ({0}) * FROM {1} ORDER BY {0}, {2}{3}{4}) AS {5}").format(
            self._key, self._stage, order, escaped_name(LINE), last, NEW
        )
