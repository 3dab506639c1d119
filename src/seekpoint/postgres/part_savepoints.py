"""Parts of a transaction, each kept or undone: the savepoints of the search for a bad record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row


class PartSavepoints:
    """Divides a transaction into parts, one after the other, with one round trip for each (``begin_nested()`` has two).

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
        # A temporary table of a handler's must not hide a table of its name from the parts that follow.
        shown = path if "pg_temp" in path else ", ".join([*filter(None, [path]), "pg_temp"])
        self._path_and_role = (
            sql.SQL("SELECT set_config('search_path', {}, true), set_config('role', {}, true);")
            .format(sql.Literal(shown), sql.Literal(role))
            .as_string()
        )

    def keep(self) -> None:
        """Keep what was written since the part began, and begin the next part.

        It finds tables where the first part did, and as the same role, whatever a handler has set for itself.
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
