DELETE FROM seekpoint.generation WHERE seekpoint.generation.table_schema = %(of_schema)s::VARCHAR AND seekpoint.generation.table_name = %(of_table)s::VARCHAR;
