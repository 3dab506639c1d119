SELECT CAST(pg_current_xact_id() AS TEXT) AS pg_current_xact_id_1;
