SELECT seekpoint.consumer_group.name, seekpoint.consumer_group.cluster_id, seekpoint.consumer_group.version, seekpoint.consumer_group.tables, seekpoint.consumer_group.paused, seekpoint.consumer_group.paused_reason, seekpoint.consumer_group.paused_by, seekpoint.consumer_group.created_at, seekpoint.consumer_group.declared, seekpoint.consumer_group.forgotten
FROM seekpoint.consumer_group
WHERE seekpoint.consumer_group.name = any(%(groups)s::TEXT[]) ORDER BY seekpoint.consumer_group.name FOR SHARE;
