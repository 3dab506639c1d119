WITH ordered AS
(SELECT seekpoint.partition_offset.topic AS topic, seekpoint.partition_offset.partition AS partition
FROM seekpoint.partition_offset
WHERE seekpoint.partition_offset.consumer_group = %(group)s::VARCHAR ORDER BY seekpoint.partition_offset.topic, seekpoint.partition_offset.partition FOR NO KEY UPDATE)
 UPDATE seekpoint.partition_offset SET token=gen_random_uuid(), epoch=(seekpoint.partition_offset.epoch + %(epoch_1)s::BIGINT) FROM ordered WHERE seekpoint.partition_offset.consumer_group = %(group)s::VARCHAR AND seekpoint.partition_offset.topic = ordered.topic AND seekpoint.partition_offset.partition = ordered.partition;
