DELETE FROM seekpoint.worker WHERE seekpoint.worker.consumer_group = %(group)s::VARCHAR;
