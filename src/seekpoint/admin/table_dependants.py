"""Finds objects that depend on a table, not on its name, and would follow it to another name or schema."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, text

from seekpoint.sinks.catalog import quoted

_VIEWS = """
    SELECT 'view ' || CAST(CAST(r.ev_class AS regclass) AS text) AS what
    FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid
    WHERE d.classid = CAST('pg_rewrite' AS regclass) AND d.refobjid = to_regclass(:name) AND r.ev_class <> d.refobjid
"""
# Reads the catalogs: the view pg_publication_tables fails if a publication is dropped meanwhile.
DEPENDANTS = """
    SELECT 'publication ' || p.pubname AS what
    FROM pg_publication p, (SELECT to_regclass(:name) UNION SELECT pg_partition_ancestors(to_regclass(:name))) own (oid)
    JOIN pg_class c USING (oid)
    WHERE p.puballtables AND c.relpersistence = 'p'
          OR EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = c.oid)
          OR EXISTS (SELECT FROM pg_publication_namespace n WHERE n.pnpubid = p.oid AND n.pnnspid = c.relnamespace)
    UNION SELECT pg_describe_object(d.classid, d.objid, 0)
    FROM pg_class c JOIN pg_type t ON t.oid = c.reltype
    JOIN pg_depend d ON (d.refclassid = CAST('pg_class' AS regclass) AND d.refobjid = c.oid)
         OR (d.refclassid = CAST('pg_type' AS regclass) AND d.refobjid IN (t.oid, t.typarray))
    LEFT JOIN pg_policy own ON d.classid = CAST('pg_policy' AS regclass) AND own.oid = d.objid AND own.polrelid = c.oid
    WHERE c.oid = to_regclass(:name) AND d.deptype = 'n' AND own.oid IS NULL AND d.classid IN (
          CAST('pg_proc' AS regclass), CAST('pg_policy' AS regclass), CAST('pg_class' AS regclass))
    UNION SELECT 'partitions' FROM pg_class WHERE oid = to_regclass(:name) AND relkind = 'p'
    UNION SELECT 'inheritance' FROM pg_inherits WHERE to_regclass(:name) IN (inhrelid, inhparent)
"""
_OUTSIDE = text(
    f"""
    {_VIEWS} UNION {DEPENDANTS}
    UNION SELECT format('foreign key %s of %s', conname, CAST(conrelid AS regclass)) FROM pg_constraint
    WHERE contype = 'f' AND confrelid = to_regclass(:name)
          AND conrelid <> ALL (SELECT to_regclass(n) FROM unnest(CAST(:together AS text[])) n)
    UNION SELECT format('default of %s, which draws from its sequence', CAST(a.adrelid AS regclass))
    FROM pg_depend owned JOIN pg_depend d ON d.refobjid = owned.objid AND d.classid = CAST('pg_attrdef' AS regclass)
    JOIN pg_attrdef a ON a.oid = d.objid
    WHERE owned.classid = CAST('pg_class' AS regclass) AND owned.refobjid = to_regclass(:name)
          AND owned.deptype IN ('a', 'i') AND a.adrelid <> owned.refobjid
    ORDER BY what
    """  # noqa: S608 -- a constant
)
# Properties of a table that its successor must also have. Only names are compared: a trigger with the same name may do
# something else.
_PROPERTIES = text(
    """
    SELECT 'owner ' || CAST(CAST(relowner AS regrole) AS text) AS what FROM pg_class WHERE oid = to_regclass(:name)
    UNION SELECT 'storage that survives a crash' FROM pg_class
    WHERE oid = to_regclass(:name) AND relpersistence = 'p'
    UNION SELECT CASE relreplident WHEN 'f' THEN 'replica identity FULL' ELSE 'a non-default replica identity' END
    FROM pg_class WHERE oid = to_regclass(:name) AND relreplident <> 'd'
    UNION SELECT 'row security' FROM pg_class WHERE oid = to_regclass(:name) AND relrowsecurity
    UNION SELECT 'forced row security' FROM pg_class WHERE oid = to_regclass(:name) AND relforcerowsecurity
    UNION SELECT 'policy ' || polname FROM pg_policy WHERE polrelid = to_regclass(:name)
    UNION SELECT 'trigger ' || tgname FROM pg_trigger WHERE tgrelid = to_regclass(:name) AND NOT tgisinternal
    UNION SELECT 'rule ' || rulename FROM pg_rewrite WHERE ev_class = to_regclass(:name)
    UNION SELECT format('grant of %s to %s', g.privilege_type,
                        CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE CAST(CAST(g.grantee AS regrole) AS text) END)
    FROM pg_class c, aclexplode(c.relacl) g WHERE c.oid = to_regclass(:name) AND g.grantee <> c.relowner
    UNION SELECT format('grant of %s (%s) to %s', g.privilege_type, a.attname,
                        CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE CAST(CAST(g.grantee AS regrole) AS text) END)
    FROM pg_attribute a, aclexplode(a.attacl) g WHERE a.attrelid = to_regclass(:name) AND NOT a.attisdropped
    ORDER BY what
    """
)

Path = tuple[str, str]
"""A table's schema and name."""


def dependants(connection: Connection, path: Path, together: Collection[Path]) -> list[str]:
    """Objects that would follow this table to its new place, except the tables that move with it."""
    parameters = {"name": quoted(*path), "together": [quoted(*moved) for moved in together]}
    descriptions = connection.execute(_OUTSIDE, parameters).scalars()
    # An object dropped meanwhile has no description.
    return [description for description in descriptions if description is not None]


def missing_properties(connection: Connection, live: Path, successor: Path) -> list[str]:
    """Properties of the live table that its successor lacks: owner, grants, triggers, row security."""
    has, lacks = (
        connection.execute(_PROPERTIES, {"name": quoted(*path)}).scalars().all() for path in (live, successor)
    )
    return sorted(set(has) - set(lacks))
