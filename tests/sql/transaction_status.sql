SELECT pg_xact_status(CAST(CAST(%(transaction)s::VARCHAR AS TEXT) AS xid8)) AS pg_xact_status_1;
