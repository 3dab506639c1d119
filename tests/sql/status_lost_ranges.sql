SELECT seekpoint.lost_range.id, seekpoint.lost_range.consumer_group, seekpoint.lost_range.topic, seekpoint.lost_range.topic_id, seekpoint.lost_range.partition, seekpoint.lost_range.from_offset, seekpoint.lost_range.to_offset, seekpoint.lost_range.reason, seekpoint.lost_range.decision, seekpoint.lost_range.actor, seekpoint.lost_range.at, seekpoint.lost_range.operator_reason
FROM seekpoint.lost_range
WHERE seekpoint.lost_range.consumer_group = any(%(names)s::TEXT[]) AND (%(its_topic)s::VARCHAR IS NULL OR seekpoint.lost_range.topic = %(its_topic)s::VARCHAR AND seekpoint.lost_range.partition = %(its_partition)s::INTEGER) ORDER BY seekpoint.lost_range.id DESC
 LIMIT %(most)s::INTEGER;
