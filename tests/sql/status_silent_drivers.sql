SELECT seekpoint.reload_run.id, seekpoint.reload_run.state, CAST(EXTRACT(epoch FROM clock_timestamp() - seekpoint.reload_run.changed_at) AS DOUBLE PRECISION) AS silent
FROM seekpoint.reload_run
WHERE (seekpoint.reload_run.state NOT IN ('verified', 'cut_over', 'aborted', 'failed'));
