UPDATE seekpoint.consumer_group SET version=%(to_version)s::INTEGER WHERE seekpoint.consumer_group.name = %(group)s::VARCHAR;
