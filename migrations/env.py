"""Alembic's environment for writing the ledger's next revision; see alembic.ini beside this file.

Databases are migrated through :mod:`seekpoint.schema`, which needs none of this.
"""

from __future__ import annotations

import os

from alembic import context
from alembic.runtime.environment import NameFilterParentNames, NameFilterType
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from seekpoint.errors import ConfigError
from seekpoint.ledger.tables import DEFAULT_SCHEMA, metadata
from seekpoint.schema import not_ours

_theirs = not_ours(DEFAULT_SCHEMA)


def _only_ours(name: str | None, type_: NameFilterType, parent_names: NameFilterParentNames) -> bool:
    return not _theirs(name, type_, parent_names)


def _run() -> None:
    url = os.environ.get("SEEKPOINT_DATABASE_URL")
    if context.is_offline_mode() or not url:
        raise ConfigError("set SEEKPOINT_DATABASE_URL to a scratch database; for plain SQL run `seekpoint db sql`")
    with create_engine(url, poolclass=NullPool).connect() as connection:
        context.configure(
            connection=connection,
            target_metadata=metadata,
            version_table_schema=DEFAULT_SCHEMA,
            include_schemas=True,
            include_name=_only_ours,
            compare_server_default=True,
        )
        with context.begin_transaction():
            context.run_migrations()


_run()
