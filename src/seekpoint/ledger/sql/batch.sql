-- A batch on the ledger's tables.

-- name: owners
-- The owners of claims that were not released, without batches, which claim under their run's id.
SELECT o.owner, max(o.claimed_at) AS claimed_at
FROM seekpoint.partition_offset AS o
WHERE o.consumer_group = %(group)s
  AND o.owner IS NOT NULL
  AND NOT EXISTS (SELECT FROM seekpoint.reload_run AS run WHERE run.id = o.owner)
GROUP BY o.owner
ORDER BY o.owner;

-- name: set_paused
-- Lifts the pause for the batch's claim, and sets it again in the same transaction, so that no other session sees the
-- change. The pause keeps its reason and its actor.
UPDATE seekpoint.consumer_group SET paused = %(paused)s WHERE name = %(group)s;

-- name: held_keys
-- Open dead letters with a key: they block later records of that key.
SELECT count(*)
FROM seekpoint.dead_letter
WHERE consumer_group = %(group)s
  AND state IN ('dead_lettered', 'blocked', 'waiting')
  AND key IS NOT NULL
  AND topic_id = ANY (%(topic_ids)s::uuid[]);

-- name: last_reprocess
-- The newest reprocess over exactly this range that is open, or has applied it.
SELECT run.id, run.state
FROM seekpoint.reload_run AS run
JOIN seekpoint.reload_position AS position ON position.run = run.id
WHERE run.strategy = 'reprocess'
  AND run.state NOT IN ('aborted', 'failed')
  AND position.consumer_group = %(group)s
  AND position.topic = %(topic)s
  AND position.partition = %(partition)s
  AND position.topic_id = %(topic_id)s
  AND position.first_offset = %(from_offset)s
  AND position.end_offset = %(to_offset)s
ORDER BY run.opened_at DESC, run.id
LIMIT 1;

-- name: reprocess_dead_letters
-- The first dead letters of a reprocess.
SELECT record_offset, key, state, cause, error, sqlstate
FROM seekpoint.reprocess_dead_letter
WHERE run = %(run)s
ORDER BY record_offset
LIMIT %(most)s;

-- name: bound
-- Bounds the pauses of a driver between two statements of the transaction that publishes; the statements themselves may
-- take the time that they need.
SELECT set_config('idle_in_transaction_session_timeout', %(idle)s, true);

-- name: unswept
-- Batches of only this group that are open, or have ended and may have left staged rows.
SELECT id, groups, tables, strategy, pipelines, version_from, version_to, state, driver_epoch, driver, staging_schema,
       swept, diff_xid, actor, reason, error, archive, opened_at, changed_at, differences
FROM seekpoint.reload_run
WHERE NOT swept AND strategy = 'batch' AND groups = ARRAY[%(group)s::text]
ORDER BY opened_at;

-- name: delete_published
-- Deletes applied and swept micro-batches, because a stream makes one every few seconds; the last one stays until the
-- next one.
WITH published AS (
    SELECT id
    FROM seekpoint.reload_run
    WHERE swept
      AND state = 'cut_over'
      AND strategy = 'batch'
      AND groups = ARRAY[%(group)s::text]
      AND reason = %(reason)s
    FOR UPDATE SKIP LOCKED
), positions AS (
    DELETE FROM seekpoint.reload_position USING published WHERE run = published.id
), staged AS (
    DELETE FROM seekpoint.reload_staged USING published WHERE run = published.id
)
DELETE FROM seekpoint.reload_run AS run USING published WHERE run.id = published.id;
