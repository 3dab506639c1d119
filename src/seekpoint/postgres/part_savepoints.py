"""The savepoints of a bisection: parts of a transaction, each kept or undone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row


class PartSavepoints:
    """Divides a transaction into parts, with one round trip for each (``begin_nested()`` needs two).

    ``prepare`` is called before each part. ``is_lent``: a handler may have set another search_path or role, so each
    part that follows sets them as they were before the first.
    """

    def __init__(self, driver: psycopg.Connection[Any], prepare: Callable[[], None]) -> None:
        self.is_lent = False
        self._driver, self._prepare = driver, prepare
        self._path_and_role = ""

    def begin(self) -> None:
        """Begin the first part."""
        self._prepare()
        asked = "SELECT current_setting('search_path'), current_setting('role'); SAVEPOINT seekpoint_part"
        path, role = self._driver.cursor(row_factory=tuple_row).execute(asked, prepare=False).fetchone() or ("", "none")
        # A handler's temporary table must not hide a table of the same name from later parts.
        shown = path if "pg_temp" in path else ", ".join([*filter(None, [path]), "pg_temp"])
        self._path_and_role = (
            sql.SQL("SELECT set_config('search_path', {}, true), set_config('role', {}, true);")
            .format(sql.Literal(shown), sql.Literal(role))
            .as_string()
        )

    def keep(self) -> None:
        """Keep what was written since the part began, and begin the next part.

        search_path and role are set as before the first part, in case a handler has changed them.
        """
        self._prepare()
        again = self._path_and_role if self.is_lent else ""
        self._command(f"RELEASE SAVEPOINT seekpoint_part; {again} SAVEPOINT seekpoint_part")

    def undo(self) -> None:
        """Undo what was written since the part began, and begin it again."""
        self._prepare()
        self._command("ROLLBACK TO SAVEPOINT seekpoint_part")

    def _command(self, command: str) -> None:
        self._driver.execute(command, prepare=False)  # two commands in one cannot be prepared
