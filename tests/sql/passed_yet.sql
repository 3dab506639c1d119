SELECT seekpoint.partition_offset.next_offset, seekpoint.partition_offset.topic_id, seekpoint.partition_offset.stop_kind
FROM seekpoint.partition_offset
WHERE seekpoint.partition_offset.consumer_group = %(group)s::VARCHAR AND seekpoint.partition_offset.topic = %(topic)s::VARCHAR AND seekpoint.partition_offset.partition = %(partition)s::INTEGER;
