SELECT named.name, coalesce(
    (SELECT n.nspname || '.' || c.relname FROM pg_catalog.pg_class c
     JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
     WHERE c.relname = named.name AND c.relkind IN ('r', 'p', 'v', 'm', 'f') AND c.relpersistence <> 't'
           AND pg_catalog.pg_table_is_visible(c.oid)),
    CASE WHEN strpos(named.name, '.') = 0 THEN current_schema() || '.' || named.name END,
    named.name) AS qualified
FROM unnest(CAST(%(declared_name)s AS text[])) AS named(name);
