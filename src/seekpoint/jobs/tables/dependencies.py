"""What depends on a table itself, and not on its name: why a swap or a new generation is refused."""

from __future__ import annotations

from sqlalchemy import Connection, text

from seekpoint.jobs.tables.targets import Path, Target
from seekpoint.sinks.catalog import quoted

DDL_WAIT = 300  # milliseconds for the lock of a swap: whoever comes behind us waits as long


# From the catalogs alone: the view pg_publication_tables fails where anybody drops a publication meanwhile.
_TIES = text(
    """
    SELECT 'view ' || CAST(CAST(r.ev_class AS regclass) AS text) AS what
    FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid
    WHERE d.classid = CAST('pg_rewrite' AS regclass) AND d.refobjid = to_regclass(:name) AND r.ev_class <> d.refobjid
    UNION SELECT 'foreign key ' || conname FROM pg_constraint
    WHERE contype = 'f' AND to_regclass(:name) IN (conrelid, confrelid)
    UNION SELECT 'trigger ' || tgname FROM pg_trigger WHERE tgrelid = to_regclass(:name) AND NOT tgisinternal
    UNION SELECT 'constraint ' || conname || ', which is deferrable or an exclusion' FROM pg_constraint
    WHERE conrelid = to_regclass(:name) AND (contype = 'x' OR condeferrable)
    UNION SELECT 'rule ' || rulename FROM pg_rewrite WHERE ev_class = to_regclass(:name)
    UNION SELECT 'another owner' FROM pg_class
    WHERE oid = to_regclass(:name) AND relowner <> to_regrole(quote_ident(current_user))
    UNION SELECT 'storage parameters' FROM pg_class WHERE oid = to_regclass(:name) AND reloptions IS NOT NULL
    UNION SELECT 'a replica identity' FROM pg_class WHERE oid = to_regclass(:name) AND relreplident <> 'd'
    UNION SELECT 'a tablespace, or is unlogged' FROM pg_class
    WHERE oid = to_regclass(:name) AND (reltablespace <> 0 OR relpersistence <> 'p')
    UNION SELECT 'row security' FROM pg_class
    WHERE oid = to_regclass(:name) AND (relrowsecurity OR relforcerowsecurity)
    UNION SELECT 'grants' FROM pg_class WHERE oid = to_regclass(:name) AND relacl IS NOT NULL
    UNION SELECT 'sequence ' || CAST(CAST(objid AS regclass) AS text) FROM pg_depend
    WHERE refobjid = to_regclass(:name) AND classid = CAST('pg_class' AS regclass) AND deptype IN ('a', 'i')
          AND EXISTS (SELECT FROM pg_class c WHERE c.oid = objid AND c.relkind = 'S')
    UNION SELECT 'publication ' || p.pubname
    FROM pg_publication p, (SELECT to_regclass(:name) UNION SELECT pg_partition_ancestors(to_regclass(:name))) own (oid)
    JOIN pg_class c USING (oid)
    WHERE p.puballtables AND c.relpersistence = 'p'
          OR EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = c.oid)
          OR EXISTS (SELECT FROM pg_publication_namespace n WHERE n.pnpubid = p.oid AND n.pnnspid = c.relnamespace)
    UNION SELECT pg_describe_object(d.classid, d.objid, 0)
    FROM pg_class c JOIN pg_type t ON t.oid = c.reltype
    JOIN pg_depend d ON (d.refclassid = CAST('pg_class' AS regclass) AND d.refobjid = c.oid)
         OR (d.refclassid = CAST('pg_type' AS regclass) AND d.refobjid IN (t.oid, t.typarray))
    WHERE c.oid = to_regclass(:name) AND d.deptype = 'n' AND d.classid IN (
          CAST('pg_proc' AS regclass), CAST('pg_policy' AS regclass), CAST('pg_class' AS regclass))
    UNION SELECT 'grants of columns' FROM pg_attribute WHERE attrelid = to_regclass(:name) AND attacl IS NOT NULL
    UNION SELECT 'statistics ' || stxname FROM pg_statistic_ext WHERE stxrelid = to_regclass(:name)
    UNION SELECT 'partitions' FROM pg_class WHERE oid = to_regclass(:name) AND relkind = 'p'
    UNION SELECT 'inheritance' FROM pg_inherits WHERE to_regclass(:name) IN (inhrelid, inhparent)
    ORDER BY what
    """
)


MERGE = "use strategy 'merge', the default"


def ties(connection: Connection, target: Target) -> list[str]:
    """What a renaming would break: everything that hangs on the table itself and not on its name."""
    if target.view is not None:
        return [f"{target.name} is kept in generations, and cannot be swapped: use strategy 'generation' or 'merge'"]
    found = _hanging_on(connection, target.path)
    remedy = MERGE if target.key else "drop that, or give the table a unique key and use strategy 'merge'"
    return [f"{target.name} cannot be swapped, for it has {what}: {remedy}" for what in found]


def hanging(connection: Connection, table: Path) -> list[str]:
    """What a table has that a new generation would not have."""
    kept = ("grants", "storage parameters", "inheritance")  # a new generation is given the same
    found = _hanging_on(connection, table)
    return [what for what in found if what not in kept and not what.startswith("sequence ")]


def _hanging_on(connection: Connection, table: Path) -> list[str]:
    found = connection.execute(_TIES, {"name": quoted(*table)}).scalars()
    return [what for what in found if what is not None]  # what was dropped since has no description


def without_generations(connection: Connection, target: Target) -> list[str]:
    """Why there can be no new generation of this table."""
    if target.handled_as is not None:  # adopting it would help nobody: a handler cannot write a view
        others = "'merge'" if target.view is not None else "'merge' or 'swap'"
        return [f"{target.name} is written by a handler, and its copy is no generation: use strategy {others}"]
    if target.view is None:
        reason = (
            f"{target.name} is not kept in generations: run `seekpoint reload enable-generations {target.name}`, or "
            f"call "
            f"Generations(engine).enable({target.name!r}), once" + (f"; or {MERGE}" if target.key else "")
        )
        return [reason]
    return [
        f"{'.'.join(target.path)}, which counts, has {what}, and a new generation would not: drop it, or use 'merge'"
        for what in hanging(connection, target.path)
    ]
