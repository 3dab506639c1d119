SELECT 1
FROM seekpoint.reload_run
WHERE seekpoint.reload_run.id = %(its_run)s::UUID AND seekpoint.reload_run.state = %(state_1)s::VARCHAR FOR SHARE;
