"""Detects what a handler has changed on its session beyond the transaction: settings, role, temporary tables, locks.

A worker's transactions share one session. Its state is read in the round trip of COMMIT and compared with the state
before the first handler had it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Any

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from seekpoint.postgres.sent_statements import Sent

MOST_SETTINGS = 500  # of an application's own whose names are kept

# The settings that a session can change. Those of an application's own (with a dot) are in no view of the server: their
# names come from handlers' statements and from the source of functions. And whether a function takes advisory locks.
_NAMES = r"""
WITH functions AS MATERIALIZED (
    SELECT prosrc FROM pg_proc WHERE pronamespace <> 'pg_catalog'::regnamespace
), names AS MATERIALIZED (
    SELECT name FROM pg_settings WHERE context IN ('user', 'superuser') AND left(name, 12) <> 'transaction_'
    UNION SELECT name FROM unnest(%(named)s::text[]) name
    UNION SELECT lower(found[1]) FROM functions,
        regexp_matches(prosrc, $re$(?:\mset_config\s*\(\s*'|\mset\s+(?:session\s+)?)(\w+\.[\w.]+)$re$, 'gi') AS found
)
SELECT (SELECT array_agg(name ORDER BY name) FROM names),
       (SELECT array_agg(coalesce(current_setting(name, true), '') ORDER BY name) FROM names),
       EXISTS (SELECT FROM functions WHERE prosrc ILIKE '%%advisory_lock%%'), row_to_json(asked)::text
"""
# Temporary tables depend on the session's own schema, and for that there is an index. A sink's are Seekpoint's.
_ASK = r"""
FROM (SELECT
    (SELECT md5(string_agg(coalesce(current_setting(name, true), ''), E'\x01')) FROM unnest({names}) name) AS settings,
    concat(current_user, ' ', session_user) AS role,
    (SELECT string_agg(channel, ',' ORDER BY channel) FROM pg_listening_channels() channel) AS "LISTEN",
    (SELECT string_agg(name, ',' ORDER BY name) FROM pg_cursors WHERE name <> '') AS "cursors WITH HOLD",
    (SELECT string_agg(name, ',' ORDER BY name) FROM pg_prepared_statements WHERE from_sql) AS "PREPARE",
    (SELECT string_agg(c.relname, ',' ORDER BY c.relname) FROM pg_depend d JOIN pg_class c ON c.oid = d.objid
     WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = pg_my_temp_schema()
           AND d.classid = 'pg_class'::regclass AND left(c.relname, 10) <> 'seekpoint_') AS "temporary tables",
    {locks} AS "advisory locks"
) asked
"""
_SETTINGS = """
SELECT array_agg(coalesce(current_setting(name, true), '') ORDER BY place)
FROM unnest(%(names)s::text[]) WITH ORDINALITY AS given (name, place)
"""
_LOCKS = """
    (SELECT string_agg(concat_ws(' ', classid, objid, objsubid, mode), ',' ORDER BY classid, objid, objsubid, mode)
     FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid())
"""
_SURVEY = _NAMES + _ASK.format(names="(SELECT array_agg(name ORDER BY name) FROM names)", locks=_LOCKS)


class NamedSettings:
    """Settings that handlers' statements have named so far, on any session, and whether they take advisory locks."""

    def __init__(self) -> None:
        self.settings: set[str] = set()
        self.asks_locks = False

    def learn(self, sent: Sent) -> tuple[str, ...]:
        """What these statements may have changed and the question did not include; later sessions' questions do."""
        new = sorted(sent.settings - self.settings)
        found = [*new, *(["settings"] if sent.sets_any else [])]
        if len(self.settings) < MOST_SETTINGS:
            self.settings.update(new)
        if sent.takes_session_lock and not self.asks_locks:
            self.asks_locks = True
            found.append("advisory locks")
        return tuple(found)


class SessionState:
    """The state of a session before a handler had it, compared with the state when a transaction ends.

    The first row of ``survey`` is passed to :meth:`begin`.
    """

    def __init__(self, known: NamedSettings) -> None:
        self.survey = (_SURVEY, {"named": sorted(known.settings)})
        self._asks_locks = known.asks_locks
        self._question: str | None = None

    def begin(self, row: tuple[Any, ...]) -> None:
        """Keep this state. The question's text has the names: as a parameter they take three times as long."""
        self._names, self._values, has_lockers, before = row
        self._before: dict[str, Any] = json.loads(before)
        self._asks_locks = self._asks_locks or has_lockers
        names = f"{sql.Literal(self._names).as_string()}::text[]"
        asked = _ASK.format(names=names, locks=_LOCKS if self._asks_locks else "NULL")
        self._question = f"SELECT row_to_json(asked)::text {asked}"

    def ask(self, driver: psycopg.Connection[Any]) -> None:
        """Run the survey, between two transactions."""
        self.begin(_between(driver, *self.survey))

    def commit(self, driver: psycopg.Connection[Any]) -> tuple[str, ...]:
        """COMMIT, and read the state in the same round trip; returns what has changed (I1).

        Raises COMMIT's error. ``("unknown",)`` where COMMIT has succeeded and the question has failed.
        """
        if self._question is None:
            driver.__class__.commit(driver)
            return ("unknown",)
        row = _between(driver, self._question, commit=True)
        if row is None:
            return ("unknown",)
        now = json.loads(row[0])
        if not self._asks_locks:
            now["advisory locks"] = self._before["advisory locks"]
        changed = [what for what, after in now.items() if self._before[what] != after]
        return tuple(self._settings(driver, changed) if "settings" in changed else changed)

    def _settings(self, driver: psycopg.Connection[Any], changed: list[str]) -> list[str]:
        """Replace the entry ``settings`` by the names of those that have changed."""
        values = _between(driver, _SETTINGS, {"names": self._names})[0]
        each = zip(self._names, self._values, values, strict=True)
        names = [f"setting {name}" for name, then, after in each if then != after]
        return [*names, *(what for what in changed if what != "settings")]


def _between(
    driver: psycopg.Connection[Any],
    question: str,
    parameters: Mapping[str, Any] | None = None,
    *,
    commit: bool = False,
) -> Any:
    """The only row of a query outside of transactions; ``commit`` sends COMMIT before it.

    None where COMMIT has succeeded and the query has failed. psycopg sends no BEGIN while a statement is outstanding:
    COMMIT, or an empty one.
    """
    asking, ending = psycopg.Cursor(driver, row_factory=tuple_row), psycopg.Cursor(driver)
    mode = ExitStack()
    try:
        pipeline = mode.enter_context(driver.pipeline())
        if commit and driver.info.transaction_status != TransactionStatus.IDLE:
            ending.execute("COMMIT", prepare=False)
        else:
            driver.pgconn.send_query_params(b"", None)
            pipeline.result_queue.append(None)
        asking.execute(question, parameters)
        mode.close()
    except psycopg.Error:
        with suppress(psycopg.Error):  # which follows from the first one
            mode.close()
        if ending.statusmessage != "COMMIT":
            raise
        return None
    if ending.statusmessage not in {None, "COMMIT"}:
        raise psycopg.errors.InFailedSqlTransaction(f"COMMIT was answered with {ending.statusmessage}")
    return asking.fetchone()
