"""Publications FOR ALL TABLES: a run's own tables are kept out of them, and live tables must be ready for changes."""

from __future__ import annotations

from sqlalchemy import Connection, text

from seekpoint.jobs.tables.staging_schema import UNLOGGED
from seekpoint.jobs.tables.targets import Target
from seekpoint.sinks.catalog import quoted

_FOR_ALL = text("SELECT EXISTS (SELECT FROM pg_publication WHERE puballtables)")
# Of the table and its partitions, those that are published with updates or deletes, and have no replica identity.
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
    """How the name of a new run's schema begins: with :data:`UNLOGGED` where a publication has all tables."""
    return UNLOGGED if connection.execute(_FOR_ALL).scalar() else otherwise


def unidentified(connection: Connection, target: Target) -> list[str]:
    """Why a merge could not change the live table's rows: it is published, and its rows have no identity."""
    publications = connection.execute(_UNIDENTIFIED, {"name": quoted(*target.path)}).scalar()
    if publications is None:
        return []
    why = (
        f"{target.name} is published ({publications}) and has no replica identity, so Postgres refuses to change or "
        "delete its rows: give it a primary key, or ALTER TABLE ... REPLICA IDENTITY USING INDEX (or FULL)"
    )
    return [why]
