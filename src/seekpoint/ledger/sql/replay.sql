-- The session in which a dead letter is replayed. None of these touches a table.

-- name: remember_session
-- The settings of the handler's session, before our own statements change them.
SELECT current_setting('TimeZone') AS timezone, current_setting('lock_timeout') AS lock_timeout;

-- name: as_worker
-- Handler and sinks run as in a worker's transaction, with its timeouts: see hold in worker.sql.
SELECT pg_current_xact_id()::text AS transaction,
       set_config('TimeZone', %(timezone)s, true) AS timezone,
       set_config('lock_timeout', %(lock_timeout)s, true) AS lock_timeout,
       set_config('idle_in_transaction_session_timeout', (%(transaction_age)s::integer)::text, true) AS idle,
       CASE WHEN current_setting('server_version_num')::integer >= 170000
            THEN set_config('transaction_timeout', (%(transaction_age)s::integer + 1)::text, true) END AS age;

-- name: current_transaction
SELECT pg_current_xact_id()::text;

-- name: transaction_status
-- NULL for a transaction that ended too long ago.
SELECT pg_xact_status(%(transaction)s::text::xid8);
