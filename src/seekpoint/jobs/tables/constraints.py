"""Foreign keys and unique indexes of live tables, enforced on the rebuilt ones by triggers and equal indexes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from psycopg import sql as ident
from sqlalchemy import Connection, text

from seekpoint.jobs.tables.indexes import Index, indexes
from seekpoint.jobs.tables.sql_templates import Composable, composed, rows, run
from seekpoint.jobs.tables.staging_schema import Staging
from seekpoint.jobs.tables.targets import Path, Target
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.runs.run import values_of
from seekpoint.sinks.base import ORIGINS, TableSink
from seekpoint.sinks.catalog import quoted

# Foreign keys from and to the tables, their partitions, and the tables that inherit from them. A key of a partitioned
# table also has a row per partition, with conparentid set. conenforced is read through to_jsonb, because older servers,
# which enforce every key, lack that column.
_FOREIGN_KEYS = text(
    """
    WITH RECURSIVE own (name, oid) AS (
        SELECT t.name, CAST(to_regclass(t.name) AS oid) FROM unnest(CAST(:names AS text[])) AS t (name)
        UNION SELECT own.name, i.inhrelid FROM pg_inherits i JOIN own ON i.inhparent = own.oid
    )
    SELECT f.conname AS name, format('%I.%I', cn.nspname, c.relname) AS child,
           CAST(ARRAY[n.nspname, p.relname] AS text[]) AS parent,
           ARRAY(SELECT CAST(a.attname AS text) FROM unnest(f.conkey) WITH ORDINALITY k (num, n)
                 JOIN pg_attribute a ON a.attrelid = f.conrelid AND a.attnum = k.num ORDER BY k.n) AS columns,
           ARRAY(SELECT CAST(a.attname AS text) FROM unnest(f.confkey) WITH ORDINALITY k (num, n)
                 JOIN pg_attribute a ON a.attrelid = f.confrelid AND a.attnum = k.num ORDER BY k.n) AS parent_columns,
           CAST(f.confdeltype AS text) AS on_delete, CAST(f.confupdtype AS text) AS on_update,
           child.name AS of, parent.name AS to, f.conparentid = 0 AS is_whole,
           f.conrelid = to_regclass(child.name) AND coalesce(CAST(to_jsonb(f) ->> 'conenforced' AS boolean), true)
           AS is_checked
    FROM pg_constraint f JOIN pg_class c ON c.oid = f.conrelid JOIN pg_namespace cn ON cn.oid = c.relnamespace
    JOIN pg_class p ON p.oid = f.confrelid JOIN pg_namespace n ON n.oid = p.relnamespace
    LEFT JOIN own child ON child.oid = f.conrelid LEFT JOIN own parent ON parent.oid = f.confrelid
    WHERE f.contype = 'f' AND (child.oid IS NOT NULL OR parent.oid IS NOT NULL)
    ORDER BY 2, 1
    """
)
_ACTIONS = {"c": "CASCADE", "n": "SET NULL", "d": "SET DEFAULT"}


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """A foreign key from ``child`` to ``parent``; ``of`` and ``to`` are the run's targets of these names, or None.

    ``on_delete`` and ``on_update`` are actions that change rows. ``is_whole``: it is not a partition's part of another
    foreign key. ``is_checked``: Postgres enforces it on the table ``of`` itself.
    """

    name: str
    child: str
    columns: tuple[str, ...]
    parent: Path
    parent_columns: tuple[str, ...]
    on_delete: str | None
    on_update: str | None
    of: Target | None
    to: Target | None
    is_whole: bool
    is_checked: bool

    def __str__(self) -> str:
        actions = [f"ON {event} {action}" for event, action in (("DELETE", self.on_delete), ("UPDATE", self.on_update))
                   if action]  # fmt: skip
        return f"{self.child} refers to it by {self.name} ({', '.join(actions)})"

    @property
    def violation(self) -> str:
        """Postgres' message for a row without a referenced row."""
        table = "" if self.of is None else self.of.name
        return f'insert or update on table "{table}" violates foreign key constraint "{self.name}"'

    def is_broken(self, alias: str) -> Composable:
        """A condition: the row's referenced row does not exist."""
        named = ident.SQL(" AND ").join(
            composed("{column} IS NOT NULL", column=(alias, column)) for column in self.columns
        )
        same = ident.SQL(" AND ").join(
            composed("{theirs} = {ours}", theirs=("parent", theirs), ours=(alias, ours))
            for theirs, ours in zip(self.parent_columns, self.columns, strict=True)
        )
        missing = "({named} AND NOT EXISTS (SELECT FROM {parent} AS parent WHERE {same}))"
        return composed(missing, named=named, parent=self.parent, same=same)


def foreign_keys(connection: Connection, targets: Sequence[Target]) -> list[ForeignKey]:
    """All foreign keys from and to these tables, their partitions, and the tables that inherit from them."""
    targets_by_name = {quoted(*target.path): target for target in targets}
    return [
        ForeignKey(
            **values_of(row)
            | {"on_delete": _ACTIONS.get(row.on_delete), "on_update": _ACTIONS.get(row.on_update)}
            | {"of": targets_by_name.get(row.of), "to": targets_by_name.get(row.to)}
        )
        for row in connection.execute(_FOREIGN_KEYS, {"names": list(targets_by_name)})
    ]


def references(connection: Connection, staging: Staging, target: Target, targets: Sequence[Target]) -> list[ForeignKey]:
    """A target's foreign keys; instead of one of the run's ``targets``, they reference its rebuilt table."""
    built = {table.path: staging.table(table) for table in targets}
    return [replace(key, parent=built.get(key.parent, key.parent)) for key in _checked(connection, target)]


def _checked(connection: Connection, target: Target) -> list[ForeignKey]:
    return [key for key in foreign_keys(connection, [target]) if key.is_whole and key.is_checked]


def uniques(connection: Connection, target: Target) -> Sequence[Composable]:
    """The definition (after the table's name) of each unique index except that of the target's key."""
    return [ident.SQL(index.using) for index in _others(connection, target)]


def _others(connection: Connection, target: Target) -> list[Index]:
    enforced = (index for index in indexes(connection, target.path) if index.is_enforced)
    return [index for index in enforced if not (index.is_plain and set(index.columns) == set(target.key))]


def may_be_refused(connection: Connection, pipeline: Pipeline, targets: Sequence[Target]) -> bool:
    """Whether a constraint may refuse a row because of other rows, so that each row must lead to its record."""
    return any(_checked(connection, target) or _may_repeat(connection, target, pipeline) for target in targets)


def _may_repeat(connection: Connection, target: Target, pipeline: Pipeline) -> bool:
    """Whether two records may make rows that are equal in a unique index."""
    if target.dedupes or target.sums is not None:
        return bool(_others(connection, target))
    distinct = _distinct(target, pipeline)
    return any(
        not (index.is_plain and any(columns <= set(index.columns) for columns in distinct))
        for index in indexes(connection, target.path)
        if index.is_enforced
    )


def _distinct(target: Target, pipeline: Pipeline) -> list[set[str]]:
    """Columns in which no two rows of an Append can be equal: numbers from a sequence, and the record's origin."""
    sinks = [feed.sink for feed in target.feeds]
    written = [expected_columns(sink, pipeline) for sink in sinks]
    distinct = [
        {column.name}
        for column in target.columns
        if column.is_numbered and not any(columns is None or column.name in columns for columns in written)
    ]
    origin = sinks[0].provenance
    if len(sinks) == 1 and sinks[0].rows_of is None and len(origin) == len(ORIGINS):
        distinct.append(set(origin.values()))
    return distinct


def expected_columns(sink: TableSink, pipeline: Pipeline) -> tuple[str, ...] | None:
    """The columns that the sink will write; None if the first row decides that."""
    return sink.expected([codec for topic, codec in pipeline.codecs.items() if sink.takes(topic)])


def breaks(connection: Connection, table: Path, reference: ForeignKey) -> int:
    """The number of rows whose referenced row does not exist."""
    broken = reference.is_broken("child")
    [(count,)] = rows(connection, "SELECT count(*) FROM {table} AS child WHERE {broken}", table=table, broken=broken)
    return int(count)


def check_references(connection: Connection, staging: Staging, target: Target, keys: Sequence[ForeignKey]) -> None:
    """Enforce the live table's foreign keys on the rebuilt table, with a trigger.

    A real foreign key to a live table would prevent deletes of the referenced rows.
    """
    if not keys:
        return
    checks = ident.SQL(" ").join(
        composed(
            "IF {broken} THEN RAISE foreign_key_violation USING MESSAGE = {message}, CONSTRAINT = {named}; END IF;",
            broken=key.is_broken("new"),
            message=key.violation,
            named=key.name,
        )
        for key in keys
    )
    function = (staging.schema, f"references_{target.staged}")
    run(
        connection,
        "CREATE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS {body}",
        function=function,
        body=composed("BEGIN {checks} RETURN NULL; END", checks=checks).as_string(),
    )
    run(
        connection,
        "CREATE TRIGGER seekpoint_references AFTER INSERT OR UPDATE ON {built} FOR EACH ROW "
        "EXECUTE FUNCTION {function}()",
        built=staging.table(target),
        function=function,
    )
