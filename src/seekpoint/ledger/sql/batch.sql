-- A batch on the ledger's tables.

-- name: owners
-- Who holds claims and has not given them back. A batch claims under its run's id, and is not meant.
SELECT o.owner, max(o.claimed_at) AS claimed_at
FROM seekpoint.partition_offset AS o
WHERE o.consumer_group = %(group)s
  AND o.owner IS NOT NULL
  AND NOT EXISTS (SELECT FROM seekpoint.reload_run AS run WHERE run.id = o.owner)
GROUP BY o.owner
ORDER BY o.owner;

-- name: set_paused
-- For a moment, under the group's lock, so that no other session sees it: a claim asks whether the group is paused.
-- The pause keeps its reason and its name.
UPDATE seekpoint.consumer_group SET paused = %(paused)s WHERE name = %(group)s;

-- name: held_keys
-- Open dead letters with a key: they block later records of that key.
SELECT count(*)
FROM seekpoint.dead_letter
WHERE consumer_group = %(group)s
  AND state IN ('dead_lettered', 'blocked')
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
-- The first ones of a reprocess.
SELECT record_offset, key, state, cause, error, sqlstate
FROM seekpoint.reprocess_dead_letter
WHERE run = %(run)s
ORDER BY record_offset
LIMIT %(most)s;

-- name: bound
-- The driver may stand still between two statements of the last transaction, but not for ever; the statements
-- themselves take the time that they need.
SELECT set_config('idle_in_transaction_session_timeout', %(idle)s, true);
