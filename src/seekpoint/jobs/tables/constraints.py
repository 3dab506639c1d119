"""Foreign keys and unique indexes of live tables, kept by the rebuilt ones: by the same indexes, and by triggers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import sql as ident
from sqlalchemy import Connection, Row, text

from seekpoint.errors import ReloadRefused
from seekpoint.jobs.tables.staging_schema import Composable, Staging, name, rows, run
from seekpoint.jobs.tables.targets import Path, Target
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.sinks.base import TableSink
from seekpoint.sinks.catalog import quoted
from seekpoint.sinks.upsert.upsert import Upsert

# Through to_jsonb: older servers have no such column, and enforce all of them.
_REFERENCES = text(
    """
    SELECT f.conname AS name, n.nspname AS schema, p.relname AS table,
           ARRAY(SELECT CAST(a.attname AS text) FROM unnest(f.conkey) WITH ORDINALITY k (num, n)
                 JOIN pg_attribute a ON a.attrelid = f.conrelid AND a.attnum = k.num ORDER BY k.n) AS columns,
           ARRAY(SELECT CAST(a.attname AS text) FROM unnest(f.confkey) WITH ORDINALITY k (num, n)
                 JOIN pg_attribute a ON a.attrelid = f.confrelid AND a.attnum = k.num ORDER BY k.n) AS to_columns
    FROM pg_constraint f JOIN pg_class p ON p.oid = f.confrelid JOIN pg_namespace n ON n.oid = p.relnamespace
    WHERE f.contype = 'f' AND f.conrelid = to_regclass(:name) AND f.conparentid = 0
          AND coalesce(CAST(to_jsonb(f) ->> 'conenforced' AS boolean), true)
    ORDER BY f.conname
    """
)
_UNIQUE = text(
    """
    SELECT c.relname AS name, pg_get_indexdef(i.indexrelid) AS definition,
           ARRAY(SELECT CAST(a.attname AS text) FROM unnest(CAST(i.indkey AS int2[])) WITH ORDINALITY k (num, n)
                 JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.num
                 WHERE k.n <= i.indnkeyatts ORDER BY k.n) AS columns,
           i.indpred IS NULL AND i.indexprs IS NULL AS is_plain
    FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
    WHERE i.indrelid = to_regclass(:name) AND i.indisunique AND i.indimmediate AND i.indisvalid
    ORDER BY i.indisprimary DESC, c.relname
    """
)


@dataclass(frozen=True, slots=True)
class Reference:
    """A foreign key of a table, and where the rows are that it refers to: the rebuilt ones, where there are such."""

    name: str
    columns: tuple[str, ...]
    parent: Path
    parent_columns: tuple[str, ...]

    def is_broken(self, alias: str) -> Composable:
        """Whether a row refers to one that is not there."""
        named = ident.SQL(" AND ").join(ident.SQL("{} IS NOT NULL").format(name(alias, one)) for one in self.columns)
        same = ident.SQL(" AND ").join(
            ident.SQL("{} = {}").format(name("parent", theirs), name(alias, ours))
            for theirs, ours in zip(self.parent_columns, self.columns, strict=True)
        )
        return ident.SQL("({} AND NOT EXISTS (SELECT FROM {} AS parent WHERE {}))").format(
            named, name(*self.parent), same
        )


def references(
    connection: Connection, staging: Staging, target: Target, found: Sequence[Target]
) -> tuple[Reference, ...]:
    """The foreign keys of a target; ``found`` are all tables of the run."""
    built = {one.path: staging.table(one) for one in found}
    return tuple(
        Reference(
            row.name,
            tuple(row.columns),
            built.get((row.schema, row.table), (row.schema, row.table)),
            tuple(row.to_columns),
        )
        for row in connection.execute(_REFERENCES, {"name": quoted(*target.path)})
    )


def uniques(connection: Connection, target: Target) -> list[Composable]:
    """What follows the table's name in the definition of each unique index but the one of its key."""
    return [_rest(target, row) for row in _others(connection, target)]


def _others(connection: Connection, target: Target) -> list[Row[Any]]:
    found = connection.execute(_UNIQUE, {"name": quoted(*target.path)}).all()
    return [row for row in found if not (row.is_plain and set(row.columns) == set(target.key))]


def _rest(target: Target, row: Row[Any]) -> Composable:
    _, using, rest = row.definition.partition(" USING ")
    if not using:
        raise ReloadRefused([f"{target.name}: unique index {row.name} is not understood: {row.definition}"])
    return ident.SQL(f"USING {rest}")


def may_be_refused(connection: Connection, pipeline: Pipeline, found: Sequence[Target]) -> bool:
    """Whether a table may refuse a row for what other rows are: then it must be known of which record a row is."""
    return any(
        connection.execute(_REFERENCES, {"name": quoted(*target.path)}).first() is not None
        or _may_repeat(connection, target, pipeline)
        for target in found
    )


def _may_repeat(connection: Connection, target: Target, pipeline: Pipeline) -> bool:
    """Whether two records may make rows that a unique index takes for the same."""
    if any(isinstance(feed.sink, Upsert) for feed in target.feeds):
        return bool(_others(connection, target))
    sinks = [sink for sink in pipeline.sinks if isinstance(sink, TableSink)]
    origins = {column for sink in sinks for column in sink.provenance.values()}
    found = connection.execute(_UNIQUE, {"name": quoted(*target.path)}).all()
    drawn = {column.name for column in target.columns if column.is_numbered}
    return any(not (row.is_plain and (set(row.columns) <= origins or drawn & set(row.columns))) for row in found)


def breaks(connection: Connection, table: Path, reference: Reference) -> int:
    """How many rows of the table refer to one that is not there."""
    [(count,)] = rows(
        connection,
        "SELECT count(*) FROM {table} AS child WHERE {broken}",
        table=name(*table),
        broken=reference.is_broken("child"),
    )
    return int(count)


def check_references(connection: Connection, staging: Staging, target: Target, its: Sequence[Reference]) -> None:
    """From now on, refuse rows of the rebuilt table that refer to none, as the live table's foreign keys do.

    By a trigger: a foreign key would keep the rows of the live table that it refers to.
    """
    if not its:
        return
    function = name(staging.schema, f"references_{target.staged}")
    checks = ident.SQL(" ").join(
        ident.SQL(
            "IF {broken} THEN RAISE foreign_key_violation USING MESSAGE = {said}, CONSTRAINT = {named}; END IF;"
        ).format(
            broken=one.is_broken("new"),
            said=ident.Literal(
                f'insert or update on table "{target.name}" violates foreign key constraint "{one.name}"'
            ),
            named=ident.Literal(one.name),
        )
        for one in its
    )
    run(
        connection,
        "CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS {body}",
        function=function,
        body=ident.Literal(ident.SQL("BEGIN {} RETURN NULL; END").format(checks).as_string()),
    )
    run(
        connection,
        "CREATE OR REPLACE TRIGGER seekpoint_references AFTER INSERT OR UPDATE ON {table} FOR EACH ROW "
        "EXECUTE FUNCTION {function}()",
        table=name(*staging.table(target)),
        function=function,
    )
