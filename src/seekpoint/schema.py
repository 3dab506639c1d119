"""Installs and upgrades the ledger's schema, for programs that deploy it: checks its revision, and prints the SQL.

The tables are in a separate schema, built by the Alembic scripts in ``migrations/``. There are four ways to install
them: the command ``seekpoint db upgrade``; a revision in the application's own Alembic tree that calls :func:`upgrade`;
Seekpoint's scripts as a second version location of the application's Alembic; and plain SQL. In each, every step
records its revision in ``<schema>.alembic_version``; :func:`check` reads only that table.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import psycopg
from alembic import op
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.runtime.environment import IncludeNameFn, NameFilterParentNames, NameFilterType
from alembic.script import ScriptDirectory
from sqlalchemy import (
    Connection,
    Dialect,
    Engine,
    MetaData,
    Table,
    func,
    insert,
    inspect,
    select,
    text,
    update,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateSchema, CreateTable, DropTable, SetTableComment
from sqlalchemy.sql import quoted_name

from seekpoint.errors import ConfigError, SchemaMismatch
from seekpoint.ledger.schema_revision import (
    HEAD,
    VERSION_TABLE,
    check,
    compatibility,
    current,
    difference,
    refuse_other_encoding,
    version_table,
)
from seekpoint.ledger.tables import DEFAULT_SCHEMA
from seekpoint.postgres import pooler
from seekpoint.postgres.engine import check_connections, is_autocommit
from seekpoint.postgres.sqlstates import OBJECT_NOT_IN_PREREQUISITE_STATE, sqlstate

__all__ = [
    "BASE",
    "HEAD",
    "check",
    "current",
    "downgrade",
    "not_ours",
    "refuse_losing",
    "refuse_open_runs",
    "run_in_schema",
    "sql",
    "step",
    "upgrade",
    "version_location",
]

__all__ = [
    "HEAD",
    "check",
    "current",
    "downgrade",
    "not_ours",
    "sql",
    "upgrade",
    "version_location",
]

BASE = "base"
"""Alembic's name for the state before the first revision."""

Target: TypeAlias = Engine | Connection | ModuleType

# The schema in which the running steps build. Unset if the host's Alembic runs our scripts, as a version location.
_chosen: ContextVar[str | None] = ContextVar("seekpoint_schema", default=None)

# The groups whose rows the running steps may drop.
_drop: ContextVar[frozenset[str]] = ContextVar("seekpoint_drop", default=frozenset())

_REFUSED = OBJECT_NOT_IN_PREREQUISITE_STATE
_PERMISSION = (
    "Keep a copy (pg_dump), then name the groups whose rows may be dropped: alembic -x seekpoint_drop=GROUP,... , "
    "SEEKPOINT_DROP=GROUP,... in the environment, or seekpoint db downgrade --drop GROUP"
)
_plain = postgresql.dialect(paramstyle="named")  # type: ignore[no-untyped-call]  # leaves percent signs in names alone

# `alembic.op` is one module for the whole process, so only one thread at a time may use it.
_one_thread = threading.Lock()


def upgrade(target: Target, *, to: str | None = None, schema: str = DEFAULT_SCHEMA, since: str = BASE) -> None:
    """Build the ledger's tables, or bring them up to revision ``to``; do nothing if they already have it.

    ``target`` is one of:

    - an ``Engine``: a new transaction, committed at the end;
    - a ``Connection``: inside the caller's transaction, which the caller commits;
    - Alembic's ``op``, in one of the host's revisions: inside the host's migration, online or offline
      (``--sql``). Name ``to`` there, because a revision must do the same thing next year. An offline script cannot ask
      the database for its revision, so it starts at ``since``, the ``to`` of the host's previous call.

    ``schema`` is the name of the Postgres schema, which is created if it does not exist. Concurrent calls wait for one
    another under an advisory lock that lasts as long as the transaction.

    Raises :class:`ConfigError` for a target, name or revision that cannot work, and :class:`SchemaMismatch`
    if the tables are newer than this library, or the database's encoding is not UTF8.
    """
    if to is None and target is op:
        raise ConfigError(f'a migration script must name the revision: upgrade(op, to="{HEAD}")')
    _travel(target, schema, to or HEAD, since, up=True)


def downgrade(
    target: Target,
    *,
    to: str = BASE,
    schema: str = DEFAULT_SCHEMA,
    since: str | None = None,
    drop: Collection[str] = (),
) -> None:
    """Downgrade the ledger's tables to revision ``to``; ``"base"`` drops them all.

    The SQL itself refuses, online and in offline scripts, while a step would drop rows of ``partition_offset``,
    open dead letters or rows of ``lost_range``: the error names the groups and the consequence. ``drop`` are the
    groups whose rows may be dropped, in addition to those of ``alembic -x seekpoint_drop=GROUP,...`` and of the
    environment variable ``SEEKPOINT_DROP``. The schema itself stays, because it may have another owner, and grants.
    ``target``, ``schema`` and errors are those of :func:`upgrade`; a refusal is a ConfigError. ``since`` is where an
    offline script starts.
    """
    if isinstance(drop, str):
        raise ConfigError(f"drop= takes several group names: write drop=[{drop!r}]")
    _travel(target, schema, to, since or HEAD, up=False, drop=drop)


def sql(*, schema: str = DEFAULT_SCHEMA, to: str | None = None, since: str = BASE) -> str:
    """Return the statements of :func:`upgrade` from ``since`` to ``to`` as plain SQL, in one transaction.

    They include the row in ``<schema>.alembic_version``, so :func:`check` passes afterwards. Raises
    :class:`ConfigError` for a name or revision that cannot work.
    """
    _refuse_bad_name(schema)
    script = StringIO()
    context = _context(
        dialect_name="postgresql",
        dialect_opts={"paramstyle": "named"},  # psycopg's own quoting would double each percent sign in a name
        opts={"as_sql": True, "output_buffer": script},
    )
    with _one_thread, Operations.context(context):
        _run(schema, _steps(since, to or HEAD, up=True))
    return f"BEGIN;\n\n{script.getvalue()}COMMIT;\n"


def not_ours(schema: str = DEFAULT_SCHEMA) -> IncludeNameFn:
    """Return a hook for the host's ``env.py`` that excludes the ledger's schema from its autogenerate.

    Pass it to ``context.configure(include_schemas=True, include_name=not_ours())``: without it, autogenerate
    would propose to drop our tables. If the host already has a hook, call this one from it.
    """

    def include_name(name: str | None, type_: NameFilterType, parent_names: NameFilterParentNames) -> bool:
        return (name if type_ == "schema" else parent_names.get("schema_name")) != schema

    return include_name


def version_location() -> Path:
    """Return the folder of our Alembic revisions, for ``version_locations``: in a wheel or in a checkout."""
    return _scripts_folder() / "versions"


@contextmanager
def step(*, to: str | None, since: str | None, compatible_with: str | None = None) -> Iterator[str]:
    """Wrap one of Seekpoint's revision scripts: yield the schema in which to build, and record the step at its end.

    Only for the scripts in ``migrations/versions``. ``to`` and ``since`` are revisions; None is the state before the
    first. ``compatible_with`` is the oldest revision whose library works with the tables of ``to``, if an older one
    does: services that share a ledger can then be upgraded one after the other. Each step records its revision because
    in a second version location the host's Alembic, which does not know our version table, runs our scripts.
    """
    context = op.get_context()
    schema = _chosen.get()
    if schema is None:
        schema = (context.config and context.config.get_main_option("seekpoint_schema")) or DEFAULT_SCHEMA
        _refuse_bad_name(schema)
    if (context.version_table, context.version_table_schema) == (VERSION_TABLE, schema):
        raise ConfigError(
            f"this Alembic keeps its own versions in schema {schema!r}: give the ledger another schema, "
            "or migrate the ledger separately with `seekpoint db upgrade`"
        )
    if not context.as_sql and (since or "") < (to or ""):
        assert context.connection is not None, "only an offline script has no connection"
        refuse_other_encoding(context.connection)
    if since is None:
        _create_schema(context, schema)
    yield quoted_name(schema, None)  # in a plain str, Alembic's ALTER TABLE would take a dot for the end of a name
    _record(schema, to, since)
    if to is not None and compatible_with is not None:
        op.execute(SetTableComment(_marked(schema, compatibility(to, compatible_with))))


def refuse_losing(
    schema: str, table: str, *, what: str, then: str, where: str = "true", named: str = "consumer_group"
) -> None:
    """Add SQL that fails if rows of this table would be dropped; only for the scripts in ``migrations/versions``.

    ``what`` names the rows and ``then`` the consequence; ``where`` selects the rows that count, ``named`` is the column
    with the group's name. Ignores groups whose rows may be dropped (see :func:`downgrade`).
    """
    context = op.get_context()
    name = _plain.identifier_preparer.format_table(Table(table, MetaData(), schema=schema))
    groups = ", ".join(_literal(group) for group in sorted(_droppable(context)))
    body = f"""
DECLARE
    kept text;
BEGIN
    LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE;
    SELECT string_agg(quote_literal(of_group) || ' (' || n || ')', ', ' ORDER BY of_group) INTO kept
    FROM (
        SELECT {named} AS of_group, count(*) AS n FROM {name}
        WHERE {where} AND {named} <> ALL (ARRAY[{groups}]::text[]) GROUP BY {named}
    ) AS counted;
    IF kept IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = '{_REFUSED}', MESSAGE =
            {_literal(f"seekpoint: this downgrade would drop {what} of groups ")} || kept || {_literal(f": {then}")},
            HINT = {_literal(_PERMISSION)};
    END IF;
END
"""  # noqa: S608 -- every name and value is quoted
    _run_block(body)


def refuse_open_runs(schema: str) -> None:
    """Refuse, in the SQL, while a run is open; only for the scripts in ``migrations/versions``."""
    name = _plain.identifier_preparer.format_table(Table("reload_run", MetaData(), schema=schema))
    hint = "Let it end, or abort it (seekpoint reload abort, in the version that opened it), then migrate"
    _run_block(f"""
DECLARE
    still_open text;
BEGIN
    LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE;  -- none is opened meanwhile
    SELECT string_agg(CAST(id AS text), ', ' ORDER BY opened_at) INTO still_open FROM {name}
    WHERE state NOT IN ('verified', 'cut_over', 'aborted', 'failed');
    IF still_open IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = '{_REFUSED}',
            MESSAGE = 'seekpoint: the schema cannot be changed while a run is open: ' || still_open,
            HINT = {_literal(hint)};
    END IF;
END
""")  # noqa: S608 -- every name and value is quoted


def run_in_schema(schema: str, statements: str) -> None:
    """Run statements that name tables as ``seekpoint.TABLE`` in this schema; only for ``migrations/versions``.

    Each statement must end at the end of a line, and is sent separately, because asyncpg takes one at a time.
    """
    named = statements.replace(f"{DEFAULT_SCHEMA}.", f"{_plain.identifier_preparer.quote(schema)}.")
    for statement in named.rstrip().removesuffix(";").split(";\n"):
        op.execute(text(statement.replace(":", r"\:")))


def _run_block(body: str) -> None:
    """Run a DO block. Raises ConfigError if the block raises ``_REFUSED``."""
    tag = next(tag for tag in (f"$seekpoint{n or ''}$" for n in itertools.count()) if tag not in body)
    try:
        op.execute(text(f"DO {tag}{body}{tag}".replace(":", r"\:")))
    except DBAPIError as error:
        if sqlstate(error) != _REFUSED:
            raise
        raise ConfigError(_message(error.orig)) from None


def _message(refusal: Any) -> str:
    """The server's message and hint, from the error of psycopg or of the host's driver (asyncpg)."""
    if isinstance(refusal, psycopg.Error):
        return f"{refusal.diag.message_primary}. {refusal.diag.message_hint}"
    cause = refusal.__cause__  # asyncpg's own error, inside SQLAlchemy's
    return f"{getattr(cause, 'message', refusal)}. {getattr(cause, 'hint', '')}"


def _droppable(context: MigrationContext) -> set[str]:
    """The groups whose rows a downgrade may drop. A value with a comma counts both as one name and as a list."""
    texts = [os.environ.get("SEEKPOINT_DROP", "")]
    if context.environment_context is not None:
        pairs = (argument.partition("=") for argument in context.environment_context.get_x_argument())
        texts += [value for name, _, value in pairs if name == "seekpoint_drop"]
    named = {part.strip() for value in texts for part in (value, *value.split(","))}
    return (named | _drop.get()) - {""}


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _travel(target: Target, schema: str, to: str, since: str, *, up: bool, drop: Collection[str] = ()) -> None:
    _refuse_bad_name(schema)
    if isinstance(target, Engine):
        _refuse_other_database(target.dialect)
        # READ COMMITTED, whatever the engine's default: a snapshot from before the lock would not have the changes that
        # the lock's previous holder committed.
        with (
            check_connections(target).connect().execution_options(isolation_level="READ COMMITTED") as connection,
            connection.begin(),
        ):
            _travel(connection, schema, to, since, up=up, drop=drop)
    elif isinstance(target, Connection):
        context = _context(connection=target)
        revision = _locked_revision(context, schema)
        with _one_thread, Operations.context(context):
            _run(schema, _steps(revision, to, up=up), drop)
    elif target is op:
        context = op.get_context()
        revision = since if context.as_sql else _locked_revision(context, schema)
        _run(schema, _steps(revision, to, up=up), drop)
    else:
        raise ConfigError(
            f"expected an Engine, a Connection or Alembic's op, not {type(target).__name__}; "
            "with an AsyncEngine write "
            "`async with engine.begin() as connection: await connection.run_sync(seekpoint.schema.upgrade)`"
        )


def _context(**options: Any) -> MigrationContext:
    """Make an Alembic context, without Alembic's log lines about the context."""
    thread, log = threading.get_ident(), logging.getLogger(MigrationContext.__module__)

    def is_anothers(record: logging.LogRecord) -> bool:
        return record.thread != thread

    log.addFilter(is_anothers)
    try:
        return MigrationContext.configure(**options)
    finally:
        log.removeFilter(is_anothers)


def _locked_revision(context: MigrationContext, schema: str) -> str:
    """Wait until no other session migrates this schema; return its revision."""
    connection = context.connection
    assert connection is not None, "only an offline script has no connection"
    _refuse_other_database(connection.dialect)
    if is_autocommit(connection):
        raise ConfigError(
            "the schema is changed in one transaction, but this connection is in autocommit mode: "
            'open it with execution_options(isolation_level="READ COMMITTED")'
        )
    pooler.detect(connection)
    key = func.hashtextextended(f"seekpoint schema {schema}", 0)
    connection.execute(select(func.pg_advisory_xact_lock(key)))
    revision = current(connection, schema)
    if revision is None:
        return BASE
    if revision not in _known(_scripts()):
        raise SchemaMismatch(difference(schema, revision))
    return revision


def _steps(here: str, to: str, *, up: bool) -> Sequence[Callable[[], None]]:
    """The functions of our scripts that lead from one revision to another; none if both are the same."""
    scripts = _scripts()
    line = (BASE, *_known(scripts))
    for revision in (here, to):
        if revision not in line:
            raise ConfigError(f"this version of Seekpoint has no schema revision {revision!r}, only {', '.join(line)}")
    low, high = (here, to) if up else (to, here)
    between = [scripts.get_revision(name).module for name in line[line.index(low) + 1 : line.index(high) + 1]]
    return [module.upgrade for module in between] if up else [module.downgrade for module in reversed(between)]


def _run(schema: str, steps: Sequence[Callable[[], None]], drop: Collection[str] = ()) -> None:
    """Run steps of our scripts in the Alembic context that ``op`` uses now."""
    token, permission = _chosen.set(schema), _drop.set(frozenset(drop))
    try:
        for change in steps:
            change()
    finally:
        _chosen.reset(token)
        _drop.reset(permission)


def _create_schema(context: MigrationContext, schema: str) -> None:
    # Postgres checks the privilege before the name: it refuses CREATE SCHEMA IF NOT EXISTS to a role that may not
    # create schemas, even if the schema exists. So check first, unless this is an offline script.
    if context.as_sql or not inspect(context.connection).has_schema(schema):
        op.execute(CreateSchema(schema, if_not_exists=True))


def _marked(schema: str, comment: str) -> Table:
    versions = version_table(schema)
    versions.comment = comment
    return versions


def _record(schema: str, to: str | None, since: str | None) -> None:
    versions = version_table(schema)
    if to is None:
        op.execute(DropTable(versions))
    elif since is None:
        op.execute(CreateTable(versions))
        op.execute(insert(versions).values(version_num=op.inline_literal(to)))
    else:
        condition = versions.c.version_num == op.inline_literal(since)
        op.execute(update(versions).where(condition).values(version_num=op.inline_literal(to)))


def _scripts_folder() -> Path:
    package = Path(__file__).resolve().parent
    for folder in (package / "migrations", package.parent.parent / "migrations"):
        if (folder / "versions").is_dir():
            return folder
    raise ConfigError(f"this installation of seekpoint in {package} has no migrations: install it again")


def _scripts() -> ScriptDirectory:
    return ScriptDirectory(str(_scripts_folder()))


def _known(scripts: ScriptDirectory) -> Sequence[str]:
    return sorted(script.revision for script in scripts.walk_revisions())


def _refuse_other_database(dialect: Dialect) -> None:
    if dialect.name != "postgresql":
        raise ConfigError(f"the ledger lives in Postgres, not in {dialect.name}")


def _refuse_bad_name(schema: str) -> None:
    """Refuse names that Postgres truncates or reserves, and ``public``, which may have the application's versions."""
    if not schema or "\0" in schema or len(schema.encode()) > 63:
        raise ConfigError(f"schema name {schema!r}: must have 1 to 63 bytes and no NUL character")
    if schema in {"public", "information_schema"} or schema.startswith("pg_"):
        raise ConfigError(f"the ledger needs a separate schema, not {schema!r}; the default is {DEFAULT_SCHEMA!r}")
