SELECT seekpoint.consumer_group.name, seekpoint.consumer_group.forgotten
FROM seekpoint.consumer_group
WHERE seekpoint.consumer_group.forgotten IS NOT NULL ORDER BY seekpoint.consumer_group.name;
