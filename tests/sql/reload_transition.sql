UPDATE seekpoint.reload_run SET state=%(to_state)s::VARCHAR WHERE seekpoint.reload_run.id = %(its_run)s::UUID;
