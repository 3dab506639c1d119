UPDATE seekpoint.reload_run SET state=%(state)s::VARCHAR, error=(%(param_1)s::VARCHAR || CAST(seekpoint.reload_run.changed_at AS TEXT)) WHERE seekpoint.reload_run.id IN (SELECT seekpoint.reload_run.id
FROM seekpoint.reload_run
WHERE (seekpoint.reload_run.state NOT IN ('verified', 'cut_over', 'aborted', 'failed')) AND seekpoint.reload_run.changed_at < clock_timestamp() - CAST(%(age)s AS INTERVAL) FOR UPDATE SKIP LOCKED) RETURNING seekpoint.reload_run.id, seekpoint.reload_run.groups;
