UPDATE seekpoint.reprocess_run SET state='abandoned', changed_at=clock_timestamp() WHERE seekpoint.reprocess_run.id = %(its_run)s::UUID AND seekpoint.reprocess_run.state = 'open';
