UPDATE seekpoint.consumer_group SET paused=%(to_paused)s WHERE seekpoint.consumer_group.name = %(group)s::VARCHAR;
