SELECT seekpoint.worker.owner, seekpoint.worker.consumer_group, seekpoint.worker.host, seekpoint.worker.pid, seekpoint.worker.client_id, seekpoint.worker.version, seekpoint.worker.library, seekpoint.worker.started_at, seekpoint.worker.seen_at, seekpoint.worker.state
FROM seekpoint.worker
WHERE seekpoint.worker.consumer_group = any(%(names)s::TEXT[]) ORDER BY seekpoint.worker.consumer_group, seekpoint.worker.started_at, seekpoint.worker.owner;
