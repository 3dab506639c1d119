"""Checks the database privileges that a pipeline of DataFrames needs, before anything is claimed."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, text

from seekpoint.errors import ConfigError
from seekpoint.jobs.reload.open import of_rights
from seekpoint.jobs.tables.targets import Target
from seekpoint.sinks.catalog import quoted

_UNREADABLE = text(
    """
    SELECT quote_ident(current_user) AS role
    WHERE NOT has_table_privilege(CAST(to_regclass(:name) AS oid), 'SELECT')
    """
)


def require_rights(connection: Connection, tables: Sequence[Target]) -> None:
    """Raise ConfigError, with the GRANT to run, if the role may not stage rows for these tables."""
    missing = of_rights(connection)
    for target in tables:
        table = quoted(*target.path)
        for row in connection.execute(_UNREADABLE, {"name": table}):
            missing.append(
                f"role {row.role} may not read {table}, and tasks stage rows in tables that are made like it: "
                f"GRANT SELECT ON {table} TO {row.role}"
            )
    if missing:
        raise ConfigError("; ".join(missing))
