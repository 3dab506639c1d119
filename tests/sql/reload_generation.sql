SELECT seekpoint.generation.table_schema, seekpoint.generation.table_name, seekpoint.generation.number, seekpoint.generation.current, seekpoint.generation.parent, seekpoint.generation.run, seekpoint.generation.changed_at, generation.xmin::text AS turned
FROM seekpoint.generation
WHERE seekpoint.generation.table_schema = %(of_schema)s::VARCHAR AND seekpoint.generation.table_name = %(of_table)s::VARCHAR;
