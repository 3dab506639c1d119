DELETE FROM seekpoint.worker WHERE seekpoint.worker.owner IN (SELECT seekpoint.worker.owner
FROM seekpoint.worker
WHERE seekpoint.worker.seen_at < clock_timestamp() - CAST('1 day' AS INTERVAL) FOR UPDATE SKIP LOCKED);
