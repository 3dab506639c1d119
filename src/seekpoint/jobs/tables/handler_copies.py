"""Copies of live tables that handlers write in a rebuild, and the redirection of their statements to the copies.

A copy has its table's name. Statements that name a table without a schema find it by ``search_path``; for SQLAlchemy's
tables with a schema the schema is replaced. A statement that names ``schema.table`` itself reaches the live table,
which is detected by the locks that the transaction holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import psycopg
from psycopg import sql
from sqlalchemy import Connection, event, text
from sqlalchemy.exc import DBAPIError

from seekpoint.errors import HandlerMisuse, ReloadRefused, WroteLiveTable
from seekpoint.jobs.run import Tx
from seekpoint.jobs.tables.create_like import LIKE, Sequences, make_like
from seekpoint.jobs.tables.sql_templates import composed, names, run
from seekpoint.jobs.tables.staging_schema import Staging, StagingTables
from seekpoint.jobs.tables.targets import Path, Target
from seekpoint.ledger.tables import metadata
from seekpoint.pipeline.batch import Batch
from seekpoint.pipeline.sink import Handler
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


# The tables that this transaction has read or written, by the locks that it keeps until it ends.
_TOUCHED = text(
    """
    SELECT n.nspname AS schema, c.relname AS name,
           bool_or(l.mode NOT IN ('AccessShareLock', 'RowShareLock')) AS written
    FROM pg_locks l JOIN pg_class c ON c.oid = l.relation JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE l.locktype = 'relation' AND l.pid = pg_backend_pid() AND l.granted
          AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
          AND c.relkind IN ('r', 'p', 'f', 'm') AND c.relpersistence <> 't'
          AND n.nspname NOT IN ('pg_catalog', 'information_schema', :staging)
    GROUP BY 1, 2 ORDER BY 1, 2
    """
)
_LEAD = text(
    "SELECT set_config('search_path', concat_ws(', ', quote_ident(:staging), 'pg_catalog', "
    "nullif(current_setting('search_path'), '')), true), current_setting('search_path') AS before"
)
_NOTIFY = re.compile(r"(?:\s+|--[^\n]*\n|/\*.*?\*/)*NOTIFY\b", re.IGNORECASE | re.DOTALL)
_LEAD_BACK = text("SELECT set_config('search_path', :before, true)")
_OWN = frozenset(table.name for table in metadata.tables.values())


def silence_notify(connection: Connection, staging: str) -> None:
    """Create a ``pg_notify`` that sends nothing in the run's schema, which is first in the handlers' search_path."""
    run(
        connection,
        "CREATE FUNCTION {it}(text, text) RETURNS void LANGUAGE sql AS 'SELECT'",
        it=(staging, "pg_notify"),
    )


class _SilentCursor(psycopg.Cursor[Any]):
    """Refuses NOTIFY by psycopg's own cursor; of SQLAlchemy's statements it is left out before they are sent."""

    def __init__(self, group: str, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._group = group

    def execute(self, query: Any, *args: Any, **options: Any) -> Self:
        """As psycopg's; raises HandlerMisuse for NOTIFY."""
        text = query.as_string(self) if isinstance(query, sql.Composable) else str(query)
        if _NOTIFY.match(text):
            raise HandlerMisuse(
                f"the handler of group {self._group!r} sent NOTIFY by psycopg's own cursor, which would reach live "
                "listeners in a rebuild: send it by tx.execute(), or by SELECT pg_notify(...); nothing was kept"
            )
        return super().execute(query, *args, **options)


class Redirect:
    """Redirects one group's handler to the copies in a run's schema."""

    def __init__(self, group: str, staging: str, found: Sequence[Target]) -> None:
        self._group, self._staging = group, staging
        self._live: Mapping[Path, Target] = {
            path: target for target in found if target.handled_as for path in (target.path, target.handled_as)
        }
        self._schemas = sorted({path[0] for path in self._live})
        self._markers = {schema: f"{staging}_of_{n}" for n, schema in enumerate(self._schemas)}
        self._marked = re.compile(rf'\b{re.escape(staging)}_of_(\d+)\.("(?:[^"]|"")+"|[\w$]+)')

    def handler(self, handle: Handler) -> Handler:
        """The handler, with its statements redirected to the copies while it runs."""

        def led(tx: Connection, batch: Batch[Any, Any]) -> None:
            try:
                with self._leading(tx):
                    return handle(tx, batch)
            except Exception as error:
                self._refuse_blamed(error)
                raise

        return led

    @contextmanager
    def _leading(self, tx: Connection) -> Iterator[None]:
        """Redirect statements in the block; where it fails, the savepoint around it restores the setting."""
        given = tx.get_execution_options().get("schema_translate_map") or {}
        led = {schema: self._markers.get(to, to) for schema, to in given.items()}
        tx.execution_options(schema_translate_map={**self._markers, **led})
        event.listen(tx, "before_cursor_execute", self._rewrite, retval=True)
        try:
            before = tx.execute(_LEAD, {"staging": self._staging}).one().before
            driver: Any = tx.connection.driver_connection
            driver.cursor_factory = self._cursor  # until the handler returns
            yield
            tx.execute(_LEAD_BACK, {"before": before})
        finally:
            event.remove(tx, "before_cursor_execute", self._rewrite)
            tx.execution_options(schema_translate_map=given)

    def _cursor(self, *args: Any, **options: Any) -> psycopg.Cursor[Any]:
        return _SilentCursor(self._group, *args, **options)

    def _rewrite(
        self, _connection: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, _many: bool
    ) -> tuple[str, Any]:
        """Tables that are rebuilt go to their copies, all others of these schemas to where they are."""
        if _NOTIFY.match(statement):  # the live listeners were notified of these records
            return "SELECT 1 WHERE false", parameters
        return self._marked.sub(self._place, statement), parameters

    def _place(self, found: re.Match[str]) -> str:
        schema, said = self._schemas[int(found[1])], found[2]
        table = said[1:-1].replace('""', '"').replace("%%", "%") if said[0] == '"' else said
        where = self._staging if (schema, table) in self._live else '"{}"'.format(schema.replace('"', '""'))
        return f"{where}.{said}"

    def check(self, tx: Tx, *, reading: bool = True) -> None:
        """Raise WroteLiveTable where the transaction has written a table that is no copy, or read one that has a copy.

        Call it before the transaction uses live tables for other reasons; ``reading=False`` where it has read some.
        """
        for row in tx.connection.execute(_TOUCHED, {"staging": self._staging}):
            path = (row.schema, row.name)
            is_ours = row.schema == tx.schema and row.name in _OWN
            if (path in self._live and (reading or row.written)) or (row.written and not is_ours):
                raise self._refusal(path, "wrote" if row.written else "read")

    def _refuse_blamed(self, error: Exception) -> None:
        """Raise WroteLiveTable for a violated constraint of a live table: the handler wrote there."""
        told = error.orig if isinstance(error, DBAPIError) else error
        diagnosis = getattr(told, "diag", None)
        schema, table = getattr(diagnosis, "schema_name", None), getattr(diagnosis, "table_name", None)
        if schema is None or table is None or schema == self._staging or schema.startswith("pg_temp"):
            return
        raise self._refusal((schema, table), "wrote") from error

    def _refusal(self, path: Path, did: str) -> WroteLiveTable:
        table = ".".join(path)
        if path in self._live:
            where = (
                "and has a copy of it to write: leave the schema out of the statement (and put it into the role's "
                "search_path for the workers), or use a SQLAlchemy Table, whose schema is led to the copy; that goes "
                "for views, functions and triggers that name it, too"
            )
        else:
            where = "which it does not declare: name it in writes=[...], so that a copy of it is built as well"
        return WroteLiveTable(
            self._group, table, f"the handler of group {self._group!r} {did} the live table {table}, {where}. Nothing "
            "of it was kept, and this run has ended: start another one with the fixed handler"
        )  # fmt: skip
