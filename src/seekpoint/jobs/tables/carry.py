"""Carries owner, grants, triggers, policies, views etc. from a live table to the rebuilt table that replaces it.

Queries of the catalogs return statements with schema-qualified names. Settings that must precede the rows (storage
parameters, statistics targets) are applied when the rebuilt table is created. All others are applied after the rename,
because only then does the live table's name refer to the rebuilt table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from psycopg import sql as ident
from sqlalchemy import Connection, Text, TextClause, bindparam, text

from seekpoint.jobs.tables.sql_templates import run
from seekpoint.jobs.tables.targets import Path
from seekpoint.sinks.catalog import quoted

_NAME = bindparam("name", type_=Text)
# How rows are stored and sampled. If these settings of the live table change later, the swap is refused: the table was
# altered.
_STORAGE = text(
    """
    SELECT format('ALTER TABLE %s SET (%s)', :onto, string_agg(format('%s%I = %L', o.prefix, o.name, o.value), ', '))
    FROM (SELECT '' AS prefix, option_name AS name, option_value AS value
          FROM pg_class c, pg_options_to_table(c.reloptions) WHERE c.oid = to_regclass(:name)
          UNION ALL SELECT 'toast.', option_name, option_value
          FROM pg_class c JOIN pg_class t ON t.oid = c.reltoastrelid, pg_options_to_table(t.reloptions)
          WHERE c.oid = to_regclass(:name)) o
    HAVING count(*) > 0
    UNION ALL SELECT format('ALTER TABLE %s ALTER %I SET STATISTICS %s', :onto, attname, attstattarget)
    FROM pg_attribute
    WHERE attrelid = to_regclass(:name) AND attnum > 0 AND NOT attisdropped AND coalesce(attstattarget, -1) <> -1
    UNION ALL SELECT format('ALTER TABLE %s ALTER %I SET (%s)', :onto, attname,
                            (SELECT string_agg(format('%I = %L', option_name, option_value), ', ')
                             FROM pg_options_to_table(attoptions)))
    FROM pg_attribute
    WHERE attrelid = to_regclass(:name) AND attnum > 0 AND NOT attisdropped AND attoptions IS NOT NULL
    """
).bindparams(_NAME, bindparam("onto", type_=Text))
# Sequences would move to the staging schema with the old table; statistics keep names that the new table needs.
_DETACHED = text(
    """
    SELECT format('ALTER SEQUENCE %s OWNED BY NONE', CAST(d.objid AS regclass))
    FROM pg_depend d JOIN pg_class s ON s.oid = d.objid AND s.relkind = 'S'
    WHERE d.classid = CAST('pg_class' AS regclass) AND d.refobjid = to_regclass(:name) AND d.deptype = 'a'
    UNION ALL SELECT format('DROP STATISTICS %I.%I', n.nspname, s.stxname)
    FROM pg_statistic_ext s JOIN pg_namespace n ON n.oid = s.stxnamespace WHERE s.stxrelid = to_regclass(:name)
    """
)
# The owner comes first, because grants depend on it. Default privileges may have given the rebuilt table (:built)
# grants that the live one lacks.
_ATTACHED = text(
    """
    WITH live AS (SELECT * FROM pg_class WHERE oid = to_regclass(:name)),
    named AS (SELECT attnum, attname, attacl, attidentity FROM pg_attribute
              WHERE attrelid = to_regclass(:name) AND attnum > 0 AND NOT attisdropped)
    SELECT what FROM (
    SELECT 1, format('ALTER TABLE %s OWNER TO %I', :name, pg_get_userbyid(relowner)) FROM live
    UNION ALL SELECT DISTINCT 2, format('REVOKE ALL ON %s FROM %s', :name, coalesce(quote_ident(r.rolname), 'PUBLIC'))
    FROM pg_class b CROSS JOIN aclexplode(b.relacl) g LEFT JOIN pg_roles r ON r.oid = g.grantee
    WHERE b.oid = to_regclass(:built) AND g.grantee <> b.relowner
    UNION ALL SELECT 3, format('REVOKE ALL ON %s FROM %I', :name, pg_get_userbyid(relowner)) FROM live
    WHERE relacl IS NOT NULL
    UNION ALL SELECT 4, format('GRANT %s ON %s TO %s%s', g.privilege_type, :name,
                               coalesce(quote_ident(r.rolname), 'PUBLIC'),
                               CASE WHEN g.is_grantable THEN ' WITH GRANT OPTION' END)
    FROM live CROSS JOIN aclexplode(relacl) g LEFT JOIN pg_roles r ON r.oid = g.grantee
    UNION ALL SELECT 4, format('GRANT %s (%I) ON %s TO %s%s', g.privilege_type, attname, :name,
                               coalesce(quote_ident(r.rolname), 'PUBLIC'),
                               CASE WHEN g.is_grantable THEN ' WITH GRANT OPTION' END)
    FROM named CROSS JOIN aclexplode(attacl) g LEFT JOIN pg_roles r ON r.oid = g.grantee
    UNION ALL SELECT 5, format('ALTER SEQUENCE %s OWNED BY %s.%I', CAST(d.objid AS regclass), :name, attname)
    FROM pg_depend d JOIN pg_class s ON s.oid = d.objid AND s.relkind = 'S' JOIN named ON attnum = d.refobjsubid
    WHERE d.classid = CAST('pg_class' AS regclass) AND d.refobjid = to_regclass(:name) AND d.deptype = 'a'
    UNION ALL SELECT 5, format('ALTER SEQUENCE %I.%I RENAME TO %I', n.nspname, made.relname, own.relname)
    FROM named JOIN pg_class own ON own.oid = CAST(pg_get_serial_sequence(:name, attname) AS regclass)
    JOIN pg_namespace n ON n.oid = own.relnamespace
    JOIN pg_class made ON made.oid = CAST(pg_get_serial_sequence(:built, attname) AS regclass)
    WHERE attidentity <> ''
    UNION ALL SELECT 6, format('COMMENT ON SEQUENCE %s IS %L', own.name, obj_description(CAST(own.name AS regclass)))
    FROM named, pg_get_serial_sequence(:name, attname) own (name)
    WHERE attidentity <> '' AND obj_description(CAST(own.name AS regclass)) IS NOT NULL
    UNION ALL SELECT 5, format('ALTER TABLE %s REPLICA IDENTITY %s', :name, CASE relreplident
                               WHEN 'f' THEN 'FULL' WHEN 'n' THEN 'NOTHING' ELSE coalesce(
                               (SELECT format('USING INDEX %I', i.relname) FROM pg_index
                                JOIN pg_class i ON i.oid = indexrelid WHERE indrelid = live.oid AND indisreplident),
                               'NOTHING') END)
    FROM live WHERE relreplident <> 'd'
    UNION ALL SELECT 5, format('ALTER TABLE %s CLUSTER ON %I', :name, i.relname)
    FROM pg_index JOIN pg_class i ON i.oid = indexrelid WHERE indrelid = to_regclass(:name) AND indisclustered
    UNION ALL SELECT 5, format('COMMENT ON INDEX %s IS %L', CAST(indexrelid AS regclass), obj_description(indexrelid))
    FROM pg_index WHERE indrelid = to_regclass(:name) AND obj_description(indexrelid) IS NOT NULL
    UNION ALL SELECT 7, format('COMMENT ON CONSTRAINT %I ON %s IS %L', conname, :name, obj_description(oid))
    FROM pg_constraint WHERE conrelid = to_regclass(:name) AND obj_description(oid) IS NOT NULL
    UNION ALL SELECT 5, format('COMMENT ON COLUMN %s.%I IS %L', :name, attname, col_description(live.oid, attnum))
    FROM live, named WHERE col_description(live.oid, attnum) IS NOT NULL
    UNION ALL SELECT 6, pg_get_statisticsobjdef(oid) FROM pg_statistic_ext WHERE stxrelid = to_regclass(:name)
    UNION ALL SELECT 7, format('ALTER STATISTICS %I.%I OWNER TO %I', n.nspname, stxname, pg_get_userbyid(stxowner))
    FROM pg_statistic_ext JOIN pg_namespace n ON n.oid = stxnamespace WHERE stxrelid = to_regclass(:name)
    UNION ALL SELECT 7, format('ALTER STATISTICS %I.%I SET STATISTICS %s', n.nspname, stxname, stxstattarget)
    FROM pg_statistic_ext JOIN pg_namespace n ON n.oid = stxnamespace
    WHERE stxrelid = to_regclass(:name) AND coalesce(stxstattarget, -1) <> -1
    UNION ALL SELECT 7, format('COMMENT ON STATISTICS %I.%I IS %L', n.nspname, stxname, obj_description(s.oid))
    FROM pg_statistic_ext s JOIN pg_namespace n ON n.oid = stxnamespace
    WHERE stxrelid = to_regclass(:name) AND obj_description(s.oid) IS NOT NULL
    UNION ALL SELECT 6, format('CREATE POLICY %I ON %s AS %s FOR %s TO %s%s%s', polname, :name,
                               CASE WHEN polpermissive THEN 'PERMISSIVE' ELSE 'RESTRICTIVE' END,
                               CASE polcmd WHEN 'r' THEN 'SELECT' WHEN 'a' THEN 'INSERT' WHEN 'w' THEN 'UPDATE'
                                           WHEN 'd' THEN 'DELETE' ELSE 'ALL' END,
                               (SELECT string_agg(coalesce(quote_ident(rolname), 'PUBLIC'), ', ')
                                FROM unnest(polroles) role LEFT JOIN pg_roles ON pg_roles.oid = role),
                               ' USING (' || pg_get_expr(polqual, polrelid) || ')',
                               ' WITH CHECK (' || pg_get_expr(polwithcheck, polrelid) || ')')
    FROM pg_policy WHERE polrelid = to_regclass(:name)
    UNION ALL SELECT 7, format('COMMENT ON POLICY %I ON %s IS %L', polname, :name, obj_description(oid))
    FROM pg_policy WHERE polrelid = to_regclass(:name) AND obj_description(oid) IS NOT NULL
    UNION ALL SELECT 7, format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', :name) FROM live WHERE relrowsecurity
    UNION ALL SELECT 7, format('ALTER TABLE %s FORCE ROW LEVEL SECURITY', :name) FROM live WHERE relforcerowsecurity
    UNION ALL SELECT 6, pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = to_regclass(:name) AND NOT tgisinternal
    UNION ALL SELECT 7, format('ALTER TABLE %s %s TRIGGER %I', :name, CASE tgenabled
                               WHEN 'D' THEN 'DISABLE' WHEN 'R' THEN 'ENABLE REPLICA' ELSE 'ENABLE ALWAYS' END, tgname)
    FROM pg_trigger WHERE tgrelid = to_regclass(:name) AND NOT tgisinternal AND tgenabled <> 'O'
    UNION ALL SELECT 7, format('COMMENT ON TRIGGER %I ON %s IS %L', tgname, :name, obj_description(oid))
    FROM pg_trigger WHERE tgrelid = to_regclass(:name) AND obj_description(oid) IS NOT NULL
    -- The view stays itself: its grants, comment and owner, and what others made of it. Its options are given again.
    UNION ALL SELECT DISTINCT 8, format('CREATE OR REPLACE VIEW %s%s AS %s', CAST(v.oid AS regclass),
                               (SELECT format(' WITH (%s)',
                                string_agg(format('%I = %L', option_name, option_value), ', '))
                                FROM pg_options_to_table(v.reloptions) HAVING count(*) > 0), pg_get_viewdef(v.oid))
    FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid AND r.rulename = '_RETURN'
    JOIN pg_class v ON v.oid = r.ev_class AND v.relkind = 'v'
    WHERE d.classid = CAST('pg_rewrite' AS regclass) AND d.refobjid = to_regclass(:name)
    ) AS attached (step, what) ORDER BY step, what
    """
).bindparams(_NAME)
_VIEWS = text(
    """
    SELECT DISTINCT format('ALTER VIEW %s OWNER TO %I', CAST(v.oid AS regclass), pg_get_userbyid(v.relowner))
    FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid JOIN pg_class v ON v.oid = r.ev_class AND v.relkind = 'v'
    WHERE d.classid = CAST('pg_rewrite' AS regclass) AND d.refobjid = to_regclass(:name) ORDER BY 1
    """
)
# An unqualified name could mean a session's temporary table of the same name.
_SEARCH = text("SELECT set_config('search_path', :path, true)")
_SEARCHED = text("SELECT current_setting('search_path')")


def give_storage(connection: Connection, live: Path, built: Path) -> None:
    """Give a rebuilt table the live one's storage parameters and statistics targets."""
    _run_each(connection, _printed(connection, _STORAGE, name=quoted(*live), onto=quoted(*built)))


def lock_views(connection: Connection, live: Path) -> None:
    """Lock the views on the table before the table itself, in the order of readers, to avoid a deadlock.

    To set the owner that a view already has locks only the view; ``LOCK TABLE`` would also lock its other tables.
    """
    with _whole_names(connection):
        _run_each(connection, _printed(connection, _VIEWS, name=quoted(*live)))


@contextmanager
def carried(connection: Connection, live: Path, built: Path) -> Iterator[None]:
    """Wrap the exchange of the tables' names; afterwards the rebuilt table has the live one's properties."""
    with _whole_names(connection):
        attached = _printed(connection, _ATTACHED, name=quoted(*live), built=quoted(*built))
        _run_each(connection, _printed(connection, _DETACHED, name=quoted(*live)))
    yield
    with _whole_names(connection):
        _run_each(connection, attached)


def _run_each(connection: Connection, statements: Sequence[str]) -> None:
    for statement in statements:
        run(connection, "{it}", it=ident.SQL(statement))


def _printed(connection: Connection, query: TextClause, **names: Any) -> Sequence[str]:
    return connection.execute(query, names).scalars().all()


@contextmanager
def _whole_names(connection: Connection) -> Iterator[None]:
    """Empty the search path, so that the catalogs print schema-qualified names."""
    before = connection.execute(_SEARCHED).scalar_one()
    connection.execute(_SEARCH, {"path": ""})
    yield
    connection.execute(_SEARCH, {"path": before})
