UPDATE seekpoint.consumer_group SET forgotten=NULL WHERE seekpoint.consumer_group.name = %(group)s::VARCHAR;
