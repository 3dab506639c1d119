DELETE FROM seekpoint.reprocess_run WHERE seekpoint.reprocess_run.consumer_group = %(group)s::VARCHAR;
