"""The statements of one table of sums, composed once: their text never varies from batch to batch.

There are two forms. INSERT .. ON CONFLICT is faster, but CHECK constraints, generated columns, policies and triggers
first see the row to insert, which has the amount instead of the sum: -1 instead of 4, if 1 is taken from a stock of 5.
Tables with any of these get the other form, which updates existing rows and inserts the others.
"""

from __future__ import annotations

from functools import cached_property

from psycopg import sql
from sqlalchemy import Connection, text

from seekpoint.errors import ConfigError
from seekpoint.sinks.accumulate.aggregate import SumTarget
from seekpoint.sinks.catalog import Layout, quoted
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

# Whether the table or a partition checks rows before ON CONFLICT does: by a CHECK constraint, a generated column, a
# policy, a BEFORE INSERT trigger for each row (bits 1, 2 and 4 of tgtype), or a NOT NULL column that gets no value.
# True for a view, because its tables are not examined.
_LOOKS_AT_ROWS = """
    SELECT count(*) > 0
    FROM (SELECT to_regclass({table}) AS relid) AS named CROSS JOIN LATERAL (
        SELECT named.relid UNION SELECT tree.relid FROM pg_partition_tree(named.relid) AS tree
    ) p JOIN pg_class t ON t.oid = p.relid
    WHERE t.relrowsecurity OR t.relkind NOT IN ('r', 'p')
       OR EXISTS (SELECT FROM pg_constraint k WHERE k.contype = 'c' AND k.conrelid = t.oid)
       OR EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = t.oid AND a.attnum > 0 AND (a.attgenerated <> ''
           OR a.attnotnull AND NOT a.atthasdef AND a.attidentity = '' AND a.attname <> ALL (CAST({columns} AS name[]))))
       OR EXISTS (SELECT FROM pg_trigger g WHERE g.tgrelid = t.oid AND NOT g.tgisinternal AND g.tgtype & 7 = 7)
"""
_IS_LOOKED_AT = sql.SQL(_LOOKS_AT_ROWS.format(table="%s", columns="%s"))
_NUMBERS = frozenset({20, 21, 23, 701, 1700})  # integers, double precision, numeric


class AccumulateSql(MergeSql):
    """Statements that merge rows in key order, so that sessions that add to the same rows lock them in one order.

    The server sorts the keys, because Python orders texts differently. The form that updates first locks existing rows
    before it inserts others. So two sessions can still deadlock on a key that is new to only one of them; a deadlock is
    retried. ``updates_first`` selects that form. ``has_distinct``: the temporary table has one row for each key. Raises
    ConfigError for a column that cannot be added to.
    """

    def __init__(
        self, target: SumTarget, layout: Layout, *, updates_first: bool = True, has_distinct: bool = False
    ) -> None:
        super().__init__(target, layout)
        _require_numbers(target, layout)
        self._sums, self._least, self._most = target.add, target.least, target.most
        self.updates_first, self.has_distinct = updates_first, has_distinct

    @property
    def gate(self) -> list[object]:
        """As in the base class; for INSERT .. ON CONFLICT, also that the table still does not check inserted rows."""
        assert self.target.columns is not None
        return super().gate + ([] if self.updates_first else [quoted(*self.target.path), list(self.target.columns)])

    @cached_property
    def insert(self) -> sql.Composed:
        """INSERT of rows, each with another key."""
        return self._merged(self._unnested, updates_first=self.updates_first)

    @cached_property
    def insert_exactly(self) -> sql.Composed:
        """As ``insert``, but updates first, so that errors are about the sums."""
        return self._merged(self._unnested, updates_first=True)

    @cached_property
    def merge(self) -> sql.Composed:
        """INSERT from the temporary table; the server aggregates first if keys may have several rows."""
        rows = self._staged if self.has_distinct else self._aggregated
        return self._merged(rows, updates_first=self.updates_first)

    # -- parts --------------------------------------------------------------------------------------------

    def _merged(self, rows: Composable, *, updates_first: bool) -> sql.Composed:
        if not updates_first:
            return sql.SQL("{} {} ORDER BY {} {}").format(self._into, rows, self._key, self._conflict)
        return sql.SQL(
            "WITH {new} AS MATERIALIZED ({rows}), "
            "locked AS MATERIALIZED (SELECT FROM {table} AS {stored} JOIN {new} ON {same} ORDER BY {ordered} "
            "FOR NO KEY UPDATE OF {stored}), "
            "changed AS (UPDATE {table} AS {stored} SET {changes} FROM {new} "
            "WHERE {same} AND (SELECT count(*) FROM locked) > 0 RETURNING {new_key}), "
            "added AS ({into} SELECT * FROM {new} WHERE NOT EXISTS (SELECT FROM changed WHERE {is_changed}) "
            "ORDER BY {key} {conflict} RETURNING 1) "
            "SELECT 1 FROM changed UNION ALL SELECT 1 FROM added"
        ).format(
            new=NEW,
            rows=rows,
            table=self._table,
            stored=STORED,
            same=self._same_key(STORED, NEW),
            ordered=self._key_of(NEW),
            changes=self._changes(NEW),
            new_key=self._key_of(NEW),
            into=self._into,
            is_changed=self._same_key(sql.Identifier("changed"), NEW),
            key=self._key,
            conflict=self._conflict,
        )

    @property
    def _unnested(self) -> sql.Composed:
        columns = self.target.columns
        assert columns is not None
        values = []
        for name in columns:
            cast = self._cast(name)
            value = sql.SQL("coalesce({}, 0)").format(cast) if name in self._sums else cast
            values.append(sql.SQL("{} AS {}").format(value, escaped_name(name)))
        gate = GATE if self.updates_first else sql.SQL("{} AND NOT ({})").format(GATE, _IS_LOOKED_AT)
        return sql.SQL("SELECT {} FROM {} WHERE {}").format(listed(values), arrays(columns), gate)

    @property
    def _staged(self) -> sql.Composed:
        columns = self.target.columns
        assert columns is not None
        sums = sql.SQL("coalesce({0}, 0) AS {0}")
        values = [sums.format(escaped_name(n)) if n in self._sums else escaped_name(n) for n in columns]
        return sql.SQL("SELECT {} FROM {}").format(listed(values), self._stage)

    @property
    def _aggregated(self) -> sql.Composed:
        """The temporary table's rows, one for each key: a sum beyond the range of its column is an error."""
        values: list[Composable] = [escaped_name(name) for name in self.target.key]
        for name in self._sums:
            kind = self.layout.columns[name].type
            total = "CAST(coalesce(sum({0}), 0) AS {1}) AS {0}"
            values.append(sql.SQL(total).format(escaped_name(name), as_sql(kind)))
        for function, names in (("min", self._least), ("max", self._most)):
            values += [sql.SQL(f"{function}({{0}}) AS {{0}}").format(escaped_name(name)) for name in names]
        return sql.SQL("SELECT {} FROM {} GROUP BY {}").format(listed(values), self._stage, self._key)

    def _key_of(self, alias: Composable) -> sql.Composed:
        return listed(sql.SQL("{}.{}").format(alias, escaped_name(name)) for name in self.target.key)

    @property
    def _conflict(self) -> sql.Composed:
        changes = self._changes(escaped_name("excluded"))
        return sql.SQL("ON CONFLICT ({}) DO UPDATE SET {}").format(self._key, changes)

    def _changes(self, new: Composable) -> sql.Composed:
        """Assignments: a stored NULL counts as 0 in a sum; ``least`` and ``greatest`` ignore NULL."""
        templates = {
            **dict.fromkeys(self._sums, "{0} = coalesce({1}.{0}, 0) + {2}.{0}"),
            **dict.fromkeys(self._least, "{0} = least({1}.{0}, {2}.{0})"),
            **dict.fromkeys(self._most, "{0} = greatest({1}.{0}, {2}.{0})"),
        }
        return listed(sql.SQL(template).format(escaped_name(name), STORED, new) for name, template in templates.items())


def _require_numbers(target: SumTarget, layout: Layout) -> None:
    """Raise ConfigError for a sum whose column is not a plain integer, numeric or double precision."""
    for name in target.add:
        column = layout.types.columns[name]
        if column.dimensions or column.item not in _NUMBERS:
            raise ConfigError(
                f"{target.name}: column {name!r} is {column.named}, and add= takes only integers, numeric and double "
                "precision: make the column one of these. A real keeps seven digits, so a counter would stop counting"
            )
        if layout.types.declared[name].split()[0] != str(column.base):
            raise ConfigError(
                f"{target.name}: column {name!r} is of the domain {column.named}, which would check the amount instead "
                f"of the sum: make the column {layout.columns[name].type}, with a CHECK constraint"
            )


def looks_at_rows(tx: Connection, target: SumTarget) -> bool:
    """Whether the table checks inserted rows, which have the amounts instead of the sums."""
    assert target.columns is not None
    statement = text(_LOOKS_AT_ROWS.format(table=":table", columns=":columns"))
    return bool(tx.execute(statement, {"table": quoted(*target.path), "columns": list(target.columns)}).scalar())
