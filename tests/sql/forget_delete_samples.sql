DELETE FROM seekpoint.position_sample WHERE seekpoint.position_sample.consumer_group = %(group)s::VARCHAR;
