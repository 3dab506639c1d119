SELECT seekpoint.generation.table_schema, seekpoint.generation.table_name, seekpoint.generation.number, seekpoint.generation.current, seekpoint.generation.parent, seekpoint.generation.run, seekpoint.generation.changed_at, generation.xmin::text AS turned
FROM seekpoint.generation
WHERE seekpoint.generation.run = %(by_run)s::UUID ORDER BY seekpoint.generation.table_schema, seekpoint.generation.table_name;
