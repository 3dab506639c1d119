SELECT seekpoint.reload_run.state, seekpoint.reload_run.error
FROM seekpoint.reload_run
WHERE seekpoint.reload_run.id = %(its_run)s::UUID;
