"""Copies of live tables that handlers write in a rebuild, with the same names and indexes."""

from __future__ import annotations

from sqlalchemy import Connection, text

from seekpoint.errors import ReloadRefused
from seekpoint.jobs.tables.create_like import LIKE, Sequences, make_like
from seekpoint.jobs.tables.sql_templates import composed, names, run
from seekpoint.jobs.tables.staging_schema import Staging, StagingTables
from seekpoint.jobs.tables.targets import Target
from seekpoint.sinks.catalog import quoted

# In an order in which the indexes of a table and of its copy correspond.
_INDEXES = text(
    """
    SELECT c.relname AS name, i.indisunique || substring(pg_get_indexdef(i.indexrelid) FROM ' USING .*$') AS what
    FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
    WHERE i.indrelid = to_regclass(:name) ORDER BY what, c.oid
    """
)
_DRAWN = text(
    """
    SELECT a.attname FROM pg_attribute a
    CROSS JOIN LATERAL (
        SELECT CAST(pg_get_serial_sequence(:name, a.attname) AS regclass) AS sequence
    ) s
    WHERE a.attrelid = to_regclass(:name) AND a.attnum > 0 AND NOT a.attisdropped AND s.sequence IS NOT NULL
          AND pg_sequence_last_value(s.sequence) IS NOT NULL
    """
)


def make_copy(connection: Connection, staging: Staging, target: Target, numbers: Sequences) -> None:
    """Make the empty copy, with all indexes and under their names: handlers' ON CONFLICT may name them.

    Columns that a sequence fills get one of the copy's own: it is known afterwards whether their numbers were drawn.
    """
    make_like(connection, staging.table(target), target.path, numbers, prefix=target.staged, like=LIKE)
    live, made = (connection.execute(_INDEXES, {"name": quoted(*path)}).all() for path in
                  (target.path, staging.table(target)))  # fmt: skip
    if [row.what for row in live] != [row.what for row in made]:
        raise ReloadRefused([f"{target.name}: its copy has other indexes than the table: report this as a bug"])
    called = [(old.name, new.name) for new, old in zip(live, made, strict=True)]
    for n, (old, _) in enumerate(called):  # through names that none of them has
        _rename(connection, staging, old, f"{target.staged}_n{n}")
    for n, (_, new) in enumerate(called):
        _rename(connection, staging, f"{target.staged}_n{n}", new)


def _rename(connection: Connection, staging: Staging, old: str, new: str) -> None:
    run(connection, "ALTER INDEX {old} RENAME TO {new}", old=(staging.schema, old), new=(new,))


def tag_indexes(connection: Connection, staging: Staging, target: Target, live: list[str]) -> None:
    """Before a swap: give the copy's indexes names of its own; ``live`` are those of the live table's, in order."""
    for n, called in enumerate(live):
        _rename(connection, staging, called, f"{target.staged}_i{n}")


def owned_columns(connection: Connection, staging: Staging, target: Target) -> tuple[str, ...]:
    """The columns whose values the handler sets: all but those that were filled from a sequence.

    Raises ReloadRefused where the key is one of these, as the rebuilt rows have other numbers than the live ones.
    """
    drawn = set(connection.scalars(_DRAWN, {"name": quoted(*staging.table(target))}))
    if numbered := drawn & set(target.key):
        reason = (
            f"{target.name}: its key {', '.join(target.key)} has numbers that the database draws "
            f"({', '.join(sorted(numbered))}), which are others in rebuilt rows: give it a unique key of what the "
            "records say, e.g. their topic, partition and offset"
        )
        raise ReloadRefused([reason])
    return tuple(column for column in target.all_columns if column not in drawn)


def watch(tables: StagingTables) -> None:
    """From now on, store which keys of the copy are written, by triggers: a handler's SQL may write any."""
    old, new = (names(tables.target.key, side) for side in ("old", "new"))
    body = composed(
        "IF TG_OP = 'TRUNCATE' THEN INSERT INTO {touched} SELECT {key} FROM {built}; RETURN NULL; END IF; "
        "IF TG_OP <> 'INSERT' THEN INSERT INTO {touched} VALUES ({old}); END IF; "
        "IF TG_OP <> 'DELETE' THEN INSERT INTO {touched} VALUES ({new}); END IF;",
        **tables.parts,
        old=old,
        new=new,
    )
    tables.add_trigger("touched", "AFTER INSERT OR UPDATE OR DELETE ON {built} FOR EACH ROW", body)
    tables.add_trigger("emptied", "BEFORE TRUNCATE ON {built} FOR EACH STATEMENT", body)
