SELECT seekpoint.export_manifest.file
FROM seekpoint.export_manifest
WHERE seekpoint.export_manifest.file != '';
