"""Objects that depend on live tables (views, foreign keys, publications, children) and prevent a strategy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlalchemy import Connection, text

from seekpoint.admin.table_dependants import DEPENDANTS
from seekpoint.jobs.tables.constraints import ForeignKey, foreign_keys
from seekpoint.jobs.tables.staging_schema import UNLOGGED
from seekpoint.jobs.tables.targets import Target
from seekpoint.sinks.catalog import quoted

# Objects and properties that a swap does not carry over (see carry.py). BEFORE triggers are among them, because they
# may change rows and did not run for the rebuilt ones.
_TIES = text(
    f"""
    {DEPENDANTS}
    UNION SELECT CASE WHEN v.relkind = 'm' THEN 'materialized view ' WHEN r.rulename = '_RETURN' THEN 'view '
                      ELSE format('rule %s of ', r.rulename) END
                 || CAST(CAST(v.oid AS regclass) AS text)
                 || CASE WHEN v.relkind <> 'v' OR r.rulename <> '_RETURN' THEN ''
                         WHEN v.relpersistence = 't' THEN ', which is temporary'
                         ELSE ', which this role cannot replace' END
    FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid JOIN pg_class v ON v.oid = r.ev_class
    WHERE d.classid = CAST('pg_rewrite' AS regclass) AND d.refobjid = to_regclass(:name) AND v.oid <> d.refobjid
          AND (v.relkind <> 'v' OR r.rulename <> '_RETURN' OR v.relpersistence = 't'
               OR NOT pg_has_role(v.relowner, 'USAGE') OR NOT has_schema_privilege(v.relnamespace, 'CREATE'))
    UNION SELECT 'foreign key ' || conname FROM pg_constraint
    WHERE contype = 'f' AND to_regclass(:name) IN (conrelid, confrelid)
    UNION SELECT format('trigger %s, which may change rows before they are written', tgname) FROM pg_trigger
    WHERE tgrelid = to_regclass(:name) AND NOT tgisinternal AND tgtype & 3 = 3 AND tgtype & 20 <> 0
    UNION SELECT format('trigger %s, whose function this role may not execute', tgname) FROM pg_trigger
    WHERE tgrelid = to_regclass(:name) AND NOT tgisinternal AND NOT has_function_privilege(tgfoid, 'EXECUTE')
    UNION SELECT 'constraint ' || conname || ', which is deferrable or an exclusion' FROM pg_constraint
    WHERE conrelid = to_regclass(:name) AND contype <> 't' AND (contype = 'x' OR condeferrable)
    UNION SELECT format('unique index %s, which is invalid', CAST(indexrelid AS regclass)) FROM pg_index
    WHERE indrelid = to_regclass(:name) AND indisunique AND NOT indisvalid
    UNION SELECT 'rule ' || rulename FROM pg_rewrite WHERE ev_class = to_regclass(:name)
    UNION SELECT format('the owner %s, of whom this role is no member', CAST(relowner AS regrole)) FROM pg_class
    WHERE oid = to_regclass(:name) AND NOT pg_has_role(relowner, 'USAGE')
    UNION SELECT format('the owner %s, who may create nothing in its schema', CAST(relowner AS regrole)) FROM pg_class
    WHERE oid = to_regclass(:name) AND NOT has_schema_privilege(relowner, relnamespace, 'CREATE')
    UNION SELECT 'a tablespace, a type or an access method, or is unlogged' FROM pg_class
    WHERE oid = to_regclass(:name) AND (reltablespace <> 0 OR relpersistence <> 'p' OR reloftype <> 0
          OR relam <> (SELECT oid FROM pg_am WHERE amname = current_setting('default_table_access_method')))
    UNION SELECT 'grants that others than its owner gave' FROM pg_class c
    WHERE oid = to_regclass(:name) AND EXISTS (
          SELECT FROM aclexplode(relacl) WHERE grantor <> relowner UNION ALL
          SELECT FROM pg_attribute, aclexplode(attacl) WHERE attrelid = c.oid AND grantor <> relowner)
    UNION SELECT format('sequence %s, which has grants or is used by others', CAST(s.oid AS regclass))
    FROM pg_depend own JOIN pg_class s ON s.oid = own.objid AND s.relkind = 'S'
    WHERE own.classid = CAST('pg_class' AS regclass) AND own.refobjid = to_regclass(:name) AND own.deptype = 'i'
          AND (s.relacl IS NOT NULL OR EXISTS (SELECT FROM pg_depend d WHERE d.refobjid = s.oid AND d.deptype = 'n'))
    UNION SELECT format('statistics targets of index %s', CAST(i.indexrelid AS regclass))
    FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indexrelid
    WHERE i.indrelid = to_regclass(:name) AND coalesce(a.attstattarget, -1) <> -1
    UNION SELECT 'a security label' FROM pg_seclabel
    WHERE classoid = CAST('pg_class' AS regclass) AND objoid = to_regclass(:name)
    ORDER BY what
    """  # noqa: S608 -- a constant
)


MERGE = "use strategy 'merge', the default"


def ties(connection: Connection, target: Target) -> list[str]:
    """Return why the table cannot be swapped: objects depend on the table itself, not on its name. Empty if it can."""
    objects = connection.execute(_TIES, {"name": quoted(*target.path)}).scalars()
    obstacles = [
        dependency for dependency in objects if dependency is not None
    ]  # an object dropped meanwhile has no description
    remedy = MERGE if target.key else "drop that, or give the table a unique key and use strategy 'merge'"
    return [f"{target.name} cannot be swapped, because it has {dependency}: {remedy}" for dependency in obstacles]


# -- other tables that a merge changes -----------------------------------------------------------------------------

_INHERITING = text(
    """
    SELECT format('%I.%I', n.nspname, c.relname) AS child
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE i.inhparent = to_regclass(:name) AND NOT c.relispartition ORDER BY 1
    """
)


def referencing(connection: Connection, target: Target) -> list[ForeignKey]:
    """The foreign keys through which a change of this table changes or deletes rows of other tables."""
    keys = foreign_keys(connection, [target])
    return [key for key in keys if key.to and key.is_whole and (key.on_delete or key.on_update)]


def inheriting(connection: Connection, target: Target) -> list[str]:
    """The tables that inherit from this one: a merge also reads, compares and deletes their rows."""
    return list(connection.execute(_INHERITING, {"name": quoted(*target.path)}).scalars())


def of_inheritance(connection: Connection, target: Target) -> list[str]:
    """Return why a merge is refused: it would delete inheriting tables' rows. Empty if it would not."""
    if not (children := inheriting(connection, target)):
        return []
    why = f"{target.name}: {', '.join(children)} inherit from it, and a merge would also delete their rows"
    return [f"{why}: allow it with --allow-inheritance (Reload(…, allow_inheritance=True))"]


def notes(connection: Connection, targets: Sequence[Target]) -> Iterator[str]:
    """Describe what a merge of these tables may change in other tables."""
    for target in targets:
        for key in referencing(connection, target):
            yield f"{target.name}: {key}"
        for child in inheriting(connection, target):
            yield f"{target.name}: {child} inherits from it, and a merge also compares and changes its rows"


# -- publications --------------------------------------------------------------------------------------------------

_FOR_ALL = text("SELECT EXISTS (SELECT FROM pg_publication WHERE puballtables)")
# The table and its partitions that are published with updates or deletes, but have no replica identity.
_UNIDENTIFIED = text(
    """
    WITH own (oid) AS (SELECT to_regclass(:name) UNION SELECT relid FROM pg_partition_tree(to_regclass(:name))),
    above (oid, own) AS (SELECT oid, oid FROM own
                         UNION SELECT a.relid, own.oid FROM own, pg_partition_ancestors(own.oid) a)
    SELECT string_agg(DISTINCT CAST(p.pubname AS text), ', ') AS publications
    FROM own JOIN pg_class c USING (oid) JOIN above ON above.own = own.oid JOIN pg_class o ON o.oid = above.oid
    JOIN pg_publication p ON p.pubupdate OR p.pubdelete
    WHERE c.relkind = 'r' AND c.relpersistence = 'p'
          AND (p.puballtables
               OR EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = o.oid)
               OR EXISTS (SELECT FROM pg_publication_namespace n
                          WHERE n.pnpubid = p.oid AND n.pnnspid = o.relnamespace))
          AND CASE c.relreplident
                WHEN 'f' THEN false
                WHEN 'd' THEN NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)
                WHEN 'i' THEN NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisreplident)
                ELSE true END
    """
)


def prefix_of(connection: Connection, otherwise: str) -> str:
    """The prefix of a new run's schema: :data:`UNLOGGED` if a publication has all tables."""
    return UNLOGGED if connection.execute(_FOR_ALL).scalar() else otherwise


def unidentified(connection: Connection, target: Target) -> list[str]:
    """Return why Postgres would refuse a merge: the table is published without a replica identity. Empty if not."""
    publications = connection.execute(_UNIDENTIFIED, {"name": quoted(*target.path)}).scalar()
    if publications is None:
        return []
    why = (
        f"{target.name} is published ({publications}) and has no replica identity, so Postgres refuses to change or "
        "delete its rows: give it a primary key, or ALTER TABLE ... REPLICA IDENTITY USING INDEX (or FULL)"
    )
    return [why]
