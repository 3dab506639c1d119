DELETE FROM seekpoint.dead_letter WHERE seekpoint.dead_letter.consumer_group = %(group)s::VARCHAR;
