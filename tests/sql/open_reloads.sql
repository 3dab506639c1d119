SELECT seekpoint.reload_run.id, seekpoint.reload_run.state, seekpoint.reload_run.driver, seekpoint.reload_run.version_to[array_position(seekpoint.reload_run.groups, CAST(%(group)s::VARCHAR AS TEXT))] AS version
FROM seekpoint.reload_run
WHERE (seekpoint.reload_run.state NOT IN ('verified', 'cut_over', 'aborted', 'failed')) AND seekpoint.reload_run.strategy IN ('merge', 'swap') AND seekpoint.reload_run.version_to[array_position(seekpoint.reload_run.groups, CAST(%(group)s::VARCHAR AS TEXT))] > (SELECT seekpoint.consumer_group.version
FROM seekpoint.consumer_group
WHERE seekpoint.consumer_group.name = %(group)s::VARCHAR) ORDER BY seekpoint.reload_run.opened_at;
