"""Exchanges the tables of two groups: pairs them, lists what prevents the exchange, and carries it out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from secrets import token_hex

from psycopg import sql as ident
from sqlalchemy import Connection, text

from seekpoint.admin.table_dependants import Path, dependants, missing_properties
from seekpoint.sinks.copy import driver_of

TABLE_WAIT = "300ms"  # to wait for a table's lock: sessions that queue after this one wait just as long

_PATHS = text(
    """
    SELECT n.nspname, c.relname, c.relkind, n.nspname || '.' || c.relname AS name,
           pg_has_role(c.relowner, 'USAGE') AS owned, has_schema_privilege(n.oid, 'CREATE') AS creates
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname || '.' || c.relname = ANY(:names) AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
    ORDER BY name
    """
)
_MAY_CREATE = text("SELECT has_database_privilege(current_database(), 'CREATE')")


def pairs(connection: Connection, old: set[str], new: set[str]) -> dict[Path, Path] | list[str]:
    """The old group's tables, sorted, with the new group's tables of these names; or why they do not match."""
    reasons = [f"both write {name}: let the new group write to another schema" for name in sorted(old & new)]
    tables = {row.name: row for row in connection.execute(_PATHS, {"names": sorted(old | new)})}
    reasons += [f"there is no table {name}" for name in sorted((old | new) - tables.keys())]
    by_name: tuple[dict[str, Path], dict[str, Path]] = {}, {}
    for side, names in zip(by_name, (old, new), strict=True):
        for row in (tables[name] for name in sorted(names & tables.keys())):
            if row.relname in side:
                reasons.append(f"{row.name} and {'.'.join(side[row.relname])} have the same name in two schemas")
            side[row.relname] = (row.nspname, row.relname)
    live, successors = by_name
    for tables_of_group, other_tables, group in ((live, successors, "old"), (successors, live, "new")):
        reasons += [
            f"only the {group} group declares a table {name!r} ({'.'.join(tables_of_group[name])}): both must write "
            "tables of the same names"
            for name in sorted(tables_of_group.keys() - other_tables.keys())
        ]
    if not old or not new:
        reasons.append("a pipeline that has not declared its tables cannot be replaced: name them in writes=")
    return reasons or {live[name]: successors[name] for name in sorted(live)}


def obstacles(connection: Connection, tables: Mapping[Path, Path]) -> Iterator[str]:
    """Reasons why this login cannot exchange the tables, or what the exchange would break."""
    together = [*tables, *tables.values()]
    for row in connection.execute(_PATHS, {"names": [".".join(path) for path in together]}):
        if row.relkind != "r":
            yield f"{row.name} is not an ordinary table"
        if not row.owned:
            yield f"{row.name} belongs to a role of which this login is not a member"
        if not row.creates:
            yield f"this login may not create tables in the schema of {row.name}"
    if not connection.execute(_MAY_CREATE).scalar_one():
        yield "this login may not create the schema through which tables are exchanged: GRANT CREATE ON DATABASE"
    for path in together:
        for dependant in dependants(connection, path, together):
            yield f"{'.'.join(path)} has {dependant}, which would follow it to the other schema: drop that first"
    for live, successor in tables.items():
        for property_ in missing_properties(connection, live, successor):
            yield f"{'.'.join(live)} has {property_}, but {'.'.join(successor)} does not: create it there, too"


def exchange_tables(connection: Connection, tables: Mapping[Path, Path]) -> None:
    """Exchange the schemas of each pair's two tables; indexes, constraints and owned sequences move with them.

    Uses a third schema, which is dropped at the end, because both tables may have indexes of the same name.
    """
    driver = driver_of(connection)

    def run(statement: str, **names: Path | tuple[str]) -> None:
        driver.execute(ident.SQL(statement).format(**{key: ident.Identifier(*name) for key, name in names.items()}))

    driver.execute(ident.SQL("SET LOCAL lock_timeout = {}").format(ident.Literal(TABLE_WAIT)))
    for path in sorted([*tables, *tables.values()]):
        run("LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE", table=path)
    between = f"seekpoint_replace_{token_hex(6)}"
    run("CREATE SCHEMA {between}", between=(between,))
    for live, successor in tables.items():
        (here, name), there = live, successor[0]
        run("ALTER TABLE {table} SET SCHEMA {between}", table=live, between=(between,))
        run("ALTER TABLE {table} SET SCHEMA {here}", table=successor, here=(here,))
        run("ALTER TABLE {table} SET SCHEMA {there}", table=(between, name), there=(there,))
    run("DROP SCHEMA {between}", between=(between,))
