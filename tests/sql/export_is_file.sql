SELECT EXISTS (SELECT *
FROM seekpoint.export_manifest
WHERE seekpoint.export_manifest.file = %(its_file)s::VARCHAR) AS anon_1;
