SELECT DISTINCT seekpoint.export_manifest.archive
FROM seekpoint.export_manifest ORDER BY seekpoint.export_manifest.archive;
