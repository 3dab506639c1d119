SELECT seekpoint.partition_offset.owner, max(seekpoint.partition_offset.claimed_at) AS claimed_at
FROM seekpoint.partition_offset
WHERE seekpoint.partition_offset.consumer_group = %(group)s::VARCHAR AND seekpoint.partition_offset.owner IS NOT NULL AND NOT (EXISTS (SELECT *
FROM seekpoint.reload_run
WHERE seekpoint.reload_run.id = seekpoint.partition_offset.owner)) GROUP BY seekpoint.partition_offset.owner ORDER BY seekpoint.partition_offset.owner;
