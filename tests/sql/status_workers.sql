SELECT seekpoint.worker.owner, seekpoint.worker.consumer_group, seekpoint.worker.host, seekpoint.worker.pid, seekpoint.worker.client_id, seekpoint.worker.version, seekpoint.worker.library, seekpoint.worker.started_at, seekpoint.worker.seen_at, seekpoint.worker.state, seekpoint.worker.trouble, seekpoint.worker.state != 'ended' AND seekpoint.worker.seen_at > clock_timestamp() - CAST('1 minute' AS INTERVAL) AS is_live
FROM seekpoint.worker
WHERE seekpoint.worker.consumer_group = any(%(names)s::TEXT[]) ORDER BY seekpoint.worker.consumer_group, seekpoint.worker.started_at, seekpoint.worker.owner;
