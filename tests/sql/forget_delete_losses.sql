DELETE FROM seekpoint.lost_range WHERE seekpoint.lost_range.consumer_group = %(group)s::VARCHAR;
