"""Publish strategy ``swap``: renames the rebuilt table into the live one's place, in the cut-over's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, text

from seekpoint.errors import ReloadRefused
from seekpoint.jobs.tables.carry import carried, lock_views
from seekpoint.jobs.tables.create_like import draw_from_live
from seekpoint.jobs.tables.dependencies import ties
from seekpoint.jobs.tables.indexes import indexes
from seekpoint.jobs.tables.sql_templates import run
from seekpoint.jobs.tables.staging_schema import Staging, comment
from seekpoint.jobs.tables.targets import Target
from seekpoint.runs.run import SHORT_LOCK_WAIT, Tx
from seekpoint.sinks.catalog import quoted


def swap(tx: Tx, staging: Staging, target: Target) -> None:
    """Rename the rebuilt table into the live one's place; the live one moves to the staging schema, and is swept."""
    connection = tx.connection
    run(connection, "SET LOCAL lock_timeout = {wait}", wait=f"{round(SHORT_LOCK_WAIT * 1000)}ms")
    lock_views(connection, target.path)
    run(connection, "LOCK TABLE {live} IN ACCESS EXCLUSIVE MODE", live=target.path)
    if reasons := ties(connection, target):
        raise ReloadRefused(reasons)
    schema, table = target.path
    old = f"old_{target.staged}"
    new = staging.table(target)
    run(connection, "COMMENT ON TABLE {new} IS {comment}", new=new, comment=comment(connection, target.path))
    draw_from_live(connection, staging, target)
    names = _unaltered(connection, staging, target)
    with carried(connection, target.path, new):
        run(connection, "ALTER TABLE {live} RENAME TO {old}", live=target.path, old=(old,))
        run(connection, "ALTER TABLE {old} SET SCHEMA {there}", old=(schema, old), there=(staging.schema,))
        if target.staged != table:
            run(connection, "ALTER TABLE {new} RENAME TO {table}", new=new, table=(table,))
        run(connection, "ALTER TABLE {new} SET SCHEMA {here}", new=(staging.schema, table), here=(schema,))
        for n, index in enumerate(names):
            built = (schema, staging.index(target, n))
            run(connection, "ALTER INDEX {built} RENAME TO {index}", built=built, index=(index,))


def _unaltered(connection: Connection, staging: Staging, target: Target) -> list[str]:
    """The live table's index names. Raises ReloadRefused if that table was altered after the rebuilt one was made."""
    rebuilt = staging.table(target)
    live_indexes = indexes(connection, target.path)
    expected = {staging.index(target, n): (index.is_unique, index.using) for n, index in enumerate(live_indexes)}
    is_same = expected == {index.name: (index.is_unique, index.using) for index in indexes(connection, rebuilt)}
    if not is_same or _shape(connection, target.path) != _shape(connection, rebuilt):
        raise ReloadRefused([f"{target.name} was altered since it was rebuilt: abort this run and open another one"])
    return [index.name for index in live_indexes]


def _shape(connection: Connection, table: tuple[str, str]) -> Sequence[Row[Any]]:
    return connection.execute(_SHAPE, {"name": quoted(*table)}).all()


_SHAPE = text(
    """
    SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attgenerated,
           pg_get_expr(d.adbin, d.adrelid), CAST(NULLIF(a.attcollation, 0) AS regcollation), a.attstorage,
           concat_ws(' ', a.attcompression, a.attidentity, nullif(a.attstattarget, -1), a.attoptions,
                     s.seqtypid, s.seqstart, s.seqincrement, s.seqmin, s.seqmax, s.seqcache, s.seqcycle)
    FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    LEFT JOIN pg_sequence s
    ON a.attidentity <> '' AND s.seqrelid = CAST(pg_get_serial_sequence(:name, a.attname) AS regclass)
    WHERE a.attrelid = to_regclass(:name) AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL SELECT conname, pg_get_expr(conbin, conrelid), NULL, NULL, NULL, NULL, NULL, NULL FROM pg_constraint
    WHERE conrelid = to_regclass(:name) AND contype = 'c'
    UNION ALL SELECT '', concat_ws(' ', c.reloptions, t.reloptions), NULL, NULL, NULL, NULL, NULL, NULL
    FROM pg_class c LEFT JOIN pg_class t ON t.oid = c.reltoastrelid WHERE c.oid = to_regclass(:name)
    ORDER BY 1, 2
    """
)
