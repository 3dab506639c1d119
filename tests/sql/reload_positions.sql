SELECT seekpoint.reload_position.run, seekpoint.reload_position.consumer_group, seekpoint.reload_position.topic, seekpoint.reload_position.partition, seekpoint.reload_position.topic_id, seekpoint.reload_position.first_offset, seekpoint.reload_position.end_offset, seekpoint.reload_position.next_offset, seekpoint.reload_position.epoch, seekpoint.reload_position.resets
FROM seekpoint.reload_position
WHERE seekpoint.reload_position.run = %(its_run)s::UUID ORDER BY seekpoint.reload_position.consumer_group, seekpoint.reload_position.topic, seekpoint.reload_position.partition;
