UPDATE seekpoint.partition_offset SET owner=NULL WHERE seekpoint.partition_offset.consumer_group = %(group)s::VARCHAR AND seekpoint.partition_offset.owner = %(its_run)s::UUID;
