SELECT seekpoint.reload_run.id, seekpoint.reload_run.state, seekpoint.reload_run.driver, seekpoint.reload_run.groups, seekpoint.reload_run.version_to
FROM seekpoint.reload_run
WHERE (seekpoint.reload_run.state NOT IN ('verified', 'cut_over', 'aborted', 'failed')) AND seekpoint.reload_run.strategy IN ('merge', 'swap') ORDER BY seekpoint.reload_run.opened_at;
