"""The SQL that creates a ledger's roles, and grants to each only the privileges that it needs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from seekpoint.errors import ConfigError
from seekpoint.ledger.roles import COLUMNS, ON_DATABASE, ON_TARGETS, RIGHTS, Role, granted
from seekpoint.ledger.tables import DEFAULT_SCHEMA

_HEAD = """\
-- Roles of the ledger in schema {schema}. Run it as a superuser, or as a role that may create roles, is a member of
-- {owner} and owns the ledger; again after each upgrade of the ledger. It can be repeated: privileges that a role has
-- and does not need are revoked in the same transaction. Roles have no LOGIN: GRANT them to your services' logins.
BEGIN;
"""
_CREATE = """\
DO $seekpoint$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = {literal}) THEN
        CREATE ROLE {name} NOLOGIN;
    END IF;
END $seekpoint$;
"""
# Only objects with another owner are changed, because a change of owner locks the table.
_OWN = """\
DO $seekpoint$
DECLARE
    other record;
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_namespace
               WHERE nspname = {schema_literal} AND pg_catalog.pg_get_userbyid(nspowner) <> {literal}) THEN
        ALTER SCHEMA {schema} OWNER TO {name};
    END IF;
    FOR other IN SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
                 WHERE n.nspname = {schema_literal} AND c.relkind IN ('r', 'p', 'v')
                       AND pg_catalog.pg_get_userbyid(c.relowner) <> {literal} ORDER BY c.relname LOOP
        EXECUTE pg_catalog.format('ALTER TABLE {format_schema}.%I OWNER TO {format_name}', other.relname);
    END LOOP;
END $seekpoint$;
"""
_DATABASE = """\
DO $seekpoint$ BEGIN
    EXECUTE pg_catalog.format('GRANT {privileges} ON DATABASE %I TO {format_name}', pg_catalog.current_database());
END $seekpoint$;
"""


def role_script(
    *, schema: str = DEFAULT_SCHEMA, names: Mapping[Role, str] | None = None, targets: Collection[str] = ()
) -> str:
    """SQL for psql that creates the roles and grants their privileges on the ledger; one transaction, repeatable.

    ``names`` replaces ``seekpoint_owner``, ``seekpoint_writer`` and so on; ``targets`` are tables that pipelines write,
    as ``schema.table`` or ``table``. Raises ConfigError for a name that Postgres would truncate, for two roles with one
    name, and for an empty target.
    """
    chosen = {role: (names or {}).get(role, f"seekpoint_{role}") for role in Role}
    for name in (schema, *chosen.values()):
        _require_name(name)
    if doubled := sorted({name for name in chosen.values() if list(chosen.values()).count(name) > 1}):
        raise ConfigError(f"two roles have the name {doubled[0]!r}: give each role another name")
    return "\n".join([_HEAD.format(schema=_quote(schema), owner=_quote(chosen[Role.OWNER])),
                      *_lines(schema, chosen, [_target(target) for target in targets]), "COMMIT;", ""])  # fmt: skip


def _lines(schema: str, names: Mapping[Role, str], targets: Collection[str]) -> Iterator[str]:
    owner, quoted = _words(names[Role.OWNER]), _quote(schema)
    for name in names.values():
        yield _CREATE.format(**_words(name))
    yield _OWN.format(schema=quoted, schema_literal=_literal(schema), format_schema=_in_format(quoted), **owner)
    for role, rights in RIGHTS.items():
        name = _quote(names[role])
        yield f"-- {role}"
        yield f"REVOKE ALL ON ALL TABLES IN SCHEMA {quoted} FROM {name};"
        yield f"REVOKE ALL ON SCHEMA {quoted} FROM {name};"
        yield f"GRANT USAGE ON SCHEMA {quoted} TO {name};"
        for privileges, tables in granted(rights):
            among = ", ".join(f"{quoted}.{table}" for table in tables)
            yield f"GRANT {', '.join(privileges)} ON {among} TO {name};"
        for table, columns in COLUMNS.get(role, {}).items():
            yield f"GRANT SELECT ({', '.join(columns)}) ON {quoted}.{table} TO {name};"
        if role in ON_DATABASE:
            yield _DATABASE.format(privileges=", ".join(ON_DATABASE[role]), **_words(names[role]))
        if targets and role in ON_TARGETS:
            yield f"GRANT {', '.join(ON_TARGETS[role])} ON {', '.join(targets)} TO {name};"


def _words(name: str) -> dict[str, str]:
    """A role's name as an identifier, as a literal, and inside the literal of a format."""
    return {"name": _quote(name), "literal": _literal(name), "format_name": _in_format(_quote(name))}


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _in_format(identifier: str) -> str:
    return identifier.replace("'", "''").replace("%", "%%")


def _target(target: str) -> str:
    parts = target.split(".", 1)
    for part in parts:
        _require_name(part)
    return ".".join(map(_quote, parts))


def _require_name(name: str) -> None:
    if not name or "\0" in name or "$seekpoint$" in name or "\n" in name or len(name.encode()) > 63:
        raise ConfigError(
            f"{name!r} cannot be a name in the script: a name needs 1 to 63 bytes, without line feeds, NUL or "
            "$seekpoint$"
        )
