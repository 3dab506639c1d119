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

-- name: bound
-- The driver may stand still between two statements of the last transaction, but not for ever; the statements
-- themselves take the time that they need.
SELECT set_config('idle_in_transaction_session_timeout', %(idle)s, true);
