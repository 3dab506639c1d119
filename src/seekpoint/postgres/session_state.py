"""Finds the state that a handler leaves in its session after COMMIT: settings, role, temporary tables, locks.

A worker's transactions share one session. One query, sent together with COMMIT, lists the differences from the state
before the first handler had the session.

No view of the server lists settings with a dot (``app.tenant``), so RESET ALL follows the query. But RESET ALL would
also undo settings that application code made on a new connection; such a connection is replaced instead, see
:func:`is_configured_by_code`.
"""

from __future__ import annotations

import json
from typing import Any

import psycopg
from psycopg import sql
from psycopg.pq.abc import PGresult
from sqlalchemy import Engine

from seekpoint.postgres.engine import arguments_of
from seekpoint.postgres.round_trip import Statement, StatementFailed, commit, round_trip, texts
from seekpoint.postgres.sqlstates import INVALID_SQL_STATEMENT_NAME

_RESET = Statement("RESET ALL")

# The settings that a session can change.
_SETTINGS = Statement("""
SELECT json_object_agg(name, coalesce(current_setting(name, true), '') ORDER BY name)::text
FROM pg_settings WHERE context IN ('user', 'superuser') AND left(name, 12) <> 'transaction_'
""")
# Finds temporary tables by their dependency on the session's schema, which is indexed. Sinks' tables do not count.
_QUESTION = """
SELECT row_to_json(state)::text
FROM (SELECT
    (SELECT json_agg(name) FROM unnest({names}::text[], {values}::text[]) before (name, setting)
     WHERE coalesce(current_setting(name, true), '') <> setting) AS settings,
    concat(current_user, ' ', session_user) AS role,
    (SELECT json_agg(channel ORDER BY channel) FROM pg_listening_channels() channel) AS "LISTEN",
    (SELECT json_agg(name ORDER BY name) FROM pg_cursors WHERE name <> '') AS "cursors WITH HOLD",
    (SELECT json_agg(name ORDER BY name) FROM pg_prepared_statements WHERE from_sql) AS "PREPARE",
    (SELECT json_agg(c.relname ORDER BY c.relname) FROM pg_depend d JOIN pg_class c ON c.oid = d.objid
     WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = pg_my_temp_schema()
           AND d.classid = 'pg_class'::regclass AND left(c.relname, 10) <> 'seekpoint_') AS "temporary tables",
    (SELECT json_agg(concat_ws(' ', classid, objid, objsubid, mode) ORDER BY classid, objid, objsubid, mode)
     FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()) AS "advisory locks"
) state
"""


def is_configured_by_code(engine: Engine) -> bool:
    """Whether the application's code may change settings of a new connection, which RESET ALL would undo.

    Settings in the URL or ``connect_args`` are defaults, which RESET ALL keeps; listeners of ``begin`` run at each
    BEGIN.
    """
    pool, dialect = engine.pool, engine.dialect
    creator = next(iter(arguments_of(pool)[0]), None)
    codes: list[Any] = [*pool.dispatch.connect, *pool.dispatch.checkout, *dialect.dispatch.do_connect, creator]
    modules = {str(getattr(code, "__module__", None)).partition(".")[0] for code in codes}
    return not modules <= {"sqlalchemy", "seekpoint"} or getattr(dialect, "client_encoding", None) is not None


class SessionState:
    """The state of a session before a handler had it, compared with the state when a transaction ends."""

    def __init__(self, driver: psycopg.Connection[Any]) -> None:
        settings = json.loads(*texts(driver, _SETTINGS))
        names, values = (sql.Literal([*texts]).as_string(driver) for texts in (settings, settings.values()))
        question = Statement(_QUESTION.format(names=names, values=values))
        self._before: dict[str, Any] = json.loads(*texts(driver, question))
        self._question = question._replace(is_prepared=True)

    def commit(self, driver: psycopg.Connection[Any]) -> tuple[str, ...]:
        """COMMIT (I1), and read the state in the same round trip; returns the names of changed settings and other
        state.

        Raises COMMIT's error. Returns ``("unknown",)`` if COMMIT has succeeded and the query has failed.
        """
        try:
            return self._changed(commit(driver, self._question, _RESET)[0])
        except StatementFailed as failed:
            if failed.error.sqlstate != INVALID_SQL_STATEMENT_NAME:
                return ("unknown",)
        try:  # psycopg's DEALLOCATE ALL after a ROLLBACK TO has dropped the prepared query
            return self._changed(round_trip(driver, [self._question, _RESET])[0])
        except (StatementFailed, psycopg.Error):
            return ("unknown",)

    def _changed(self, answer: PGresult) -> tuple[str, ...]:
        """The names of settings and other state that have changed."""
        state = json.loads(answer.get_value(0, 0) or b"")
        settings = [f"setting {name}" for name in state.pop("settings") or ()]
        return (*settings, *(name for name, value in state.items() if self._before[name] != value))
