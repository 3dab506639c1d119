UPDATE seekpoint.consumer_group SET forgotten=%(its_forgotten)s::JSONB WHERE seekpoint.consumer_group.name = %(group)s::VARCHAR;
