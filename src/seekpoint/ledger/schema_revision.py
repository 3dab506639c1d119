"""Checks the revision of the ledger's tables.

The part of :mod:`seekpoint.schema` that a worker needs at its start; imports no Alembic.
"""

from __future__ import annotations

import re
import shlex

from psycopg.sql import Identifier
from sqlalchemy import (
    Column,
    Connection,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    func,
    inspect,
    literal,
    select,
)

from seekpoint.errors import SchemaMismatch
from seekpoint.ledger.tables import DEFAULT_SCHEMA

HEAD = "0001"
"""The revision that this library reads and writes. Ids are four digits, so that they sort."""

OLDEST = "0001"  # the first one that there was

VERSION_TABLE = "alembic_version"
STRANGER = (
    f"another Alembic keeps its versions there; give the ledger a separate schema (--schema, default {DEFAULT_SCHEMA})"
)


def check(connection: Connection, schema: str = DEFAULT_SCHEMA) -> None:
    """Return if the ledger's tables are at :data:`HEAD`, or at a newer revision marked as compatible with it.

    Raises :class:`SchemaMismatch`, with both revisions and the command to run, if the tables are missing, older or
    newer, or the database's encoding is not UTF8: no other encoding stores every error's text. Reads only
    ``<schema>.alembic_version``.
    """
    refuse_other_encoding(connection)
    revision = current(connection, schema)
    if revision != HEAD and not (
        revision is not None and revision > HEAD and _is_compatible(connection, schema, revision)
    ):
        raise SchemaMismatch(difference(schema, revision))


def compatibility(revision: str, since: str) -> str:
    """The comment of the version table that marks a revision: libraries of ``since`` and later work with it."""
    return f"{revision} is compatible with {since} and later"


def _is_compatible(connection: Connection, schema: str, revision: str) -> bool:
    """Whether the newer ``revision`` is marked as compatible; the mark of an earlier revision does not count."""
    name = Identifier(schema, VERSION_TABLE).as_string()
    oid = func.to_regclass(literal(name, Text))
    comment = connection.scalar(select(func.obj_description(oid, literal("pg_class", Text))))
    marked = re.fullmatch(r"(\d{4}) is compatible with (\d{4}) and later", comment or "")
    return marked is not None and marked[1] == revision and marked[2] <= HEAD


def current(connection: Connection, schema: str = DEFAULT_SCHEMA) -> str | None:
    """Return the revision of the ledger's tables in this database, or None if there are none.

    Raises :class:`SchemaMismatch` if the version table has several revisions: then it belongs to another Alembic
    environment.
    """
    versions = version_table(schema)
    if not inspect(connection).has_table(versions.name, schema=versions.schema):
        return None
    revisions = connection.scalars(select(versions.c.version_num).order_by(versions.c.version_num)).all()
    if len(revisions) > 1:
        raise SchemaMismatch(f"{schema}.{VERSION_TABLE} holds {', '.join(revisions)}: {STRANGER}")
    return revisions[0] if revisions else None


def version_table(schema: str) -> Table:
    """The version table, with the columns that Alembic itself would create."""
    return Table(
        VERSION_TABLE,
        MetaData(),
        Column("version_num", String(32), nullable=False),
        PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
        schema=schema,
    )


def refuse_other_encoding(connection: Connection) -> None:
    """Raise SchemaMismatch unless the database's encoding is UTF8: a dead letter's error may have any character."""
    encoding = connection.scalar(select(func.current_setting("server_encoding")))
    if encoding != "UTF8":
        raise SchemaMismatch(
            f"the encoding of this database is {encoding}, but the ledger needs UTF8: a record whose error has other "
            "characters could not be dead-lettered. Create a database with CREATE DATABASE ... ENCODING 'UTF8' "
            "TEMPLATE template0, and move your tables there (pg_dump, pg_restore)"
        )


def difference(schema: str, revision: str | None) -> str:
    """The message of a SchemaMismatch: how the database differs from this library, and the fix."""
    command = "seekpoint db upgrade"
    if schema != DEFAULT_SCHEMA:
        command += f" --schema {shlex.quote(schema)}"
    fix = f"run `{command}`, or your own Alembic's upgrade if it carries the ledger"
    if revision is None:
        return f"schema {schema!r} has no ledger tables, and this library needs revision {HEAD}: {fix}"
    where = f"the ledger in schema {schema!r} is at revision {revision}"
    if not re.fullmatch(r"\d{4}", revision) or revision < OLDEST:
        return f"{where}, which is not a revision of Seekpoint's (the newest is {HEAD}): {STRANGER}"
    if revision < HEAD:
        return f"{where}, older than revision {HEAD}, which this library needs: {fix}"
    return f"{where}, newer than revision {HEAD} of this library: update Seekpoint to the version that migrated it"
