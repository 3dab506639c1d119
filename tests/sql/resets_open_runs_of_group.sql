SELECT seekpoint.reload_run.id, seekpoint.reload_run.state, seekpoint.reload_run.strategy, seekpoint.reload_run.driver
FROM seekpoint.reload_run
WHERE array_position(seekpoint.reload_run.groups, CAST(%(group)s::VARCHAR AS TEXT)) IS NOT NULL AND (seekpoint.reload_run.state NOT IN ('verified', 'cut_over', 'aborted', 'failed')) ORDER BY seekpoint.reload_run.opened_at;
