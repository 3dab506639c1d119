SELECT seekpoint.partition_offset.consumer_group, seekpoint.partition_offset.topic, seekpoint.partition_offset.partition, seekpoint.partition_offset.topic_id
FROM seekpoint.partition_offset;
