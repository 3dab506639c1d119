SELECT seekpoint.lost_range.id, seekpoint.lost_range.consumer_group, seekpoint.lost_range.topic, seekpoint.lost_range.topic_id, seekpoint.lost_range.partition, seekpoint.lost_range.from_offset, seekpoint.lost_range.to_offset, seekpoint.lost_range.reason, seekpoint.lost_range.decision, seekpoint.lost_range.actor, seekpoint.lost_range.at
FROM seekpoint.lost_range
WHERE seekpoint.lost_range.consumer_group = any(%(names)s::TEXT[]) ORDER BY seekpoint.lost_range.id;
