UPDATE seekpoint.consumer_group SET cluster_id=%(cluster)s::VARCHAR, version=%(to_version)s::INTEGER, tables=%(tables)s::TEXT[] WHERE seekpoint.consumer_group.name = %(group)s::VARCHAR;
