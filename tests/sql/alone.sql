SELECT pg_advisory_xact_lock(hashtextextended(%(name)s::VARCHAR, %(hashtextextended_1)s::INTEGER)) AS pg_advisory_xact_lock_1;
