UPDATE seekpoint.reload_run SET swept=true WHERE seekpoint.reload_run.id = %(its_run)s::UUID;
