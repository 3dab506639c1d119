UPDATE seekpoint.reload_run SET state=%(state)s::VARCHAR, diff_xid=CAST(pg_snapshot_xmin(pg_current_snapshot()) AS TEXT) WHERE seekpoint.reload_run.id = %(its_run)s::UUID;
