SELECT seekpoint.export_run.id
FROM seekpoint.export_run;
