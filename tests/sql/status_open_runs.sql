SELECT seekpoint.reload_run.id, seekpoint.reload_run.strategy, seekpoint.reload_run.state, seekpoint.reload_run.driver, seekpoint.reload_run.groups, seekpoint.reload_run.pipelines, seekpoint.reload_run.version_to, clock_timestamp() - seekpoint.reload_run.changed_at AS silence
FROM seekpoint.reload_run
WHERE (seekpoint.reload_run.state NOT IN ('verified', 'cut_over', 'aborted', 'failed')) ORDER BY seekpoint.reload_run.opened_at;
