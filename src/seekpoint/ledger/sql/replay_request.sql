-- Requests for replays, which running workers carry out.

-- name: insert_request
-- The request gets the group's version; workers of other versions do not take it.
INSERT INTO seekpoint.replay_request (consumer_group, version, dead_letters, state, actor, reason)
SELECT name, version, %(dead_letters)s::bigint[], 'requested', %(actor)s, %(reason)s
FROM seekpoint.consumer_group
WHERE name = %(group)s
RETURNING id;

-- name: count_workers
-- Workers of the group's version that were seen in the last minute, as the view group_status counts them.
SELECT count(*)
FROM seekpoint.worker
WHERE consumer_group = %(group)s
  AND version = %(version)s
  AND state <> 'ended'
  AND seen_at > clock_timestamp() - interval '1 minute';

-- name: get_request
SELECT id, consumer_group, version, dead_letters, state, actor, reason, worker, replayed, failed, refused, error,
       requested_at, started_at, seen_at, ended_at, remaining, refusals
FROM seekpoint.replay_request
WHERE consumer_group = %(group)s AND id = %(id)s;

-- name: is_requested
-- The same conditions as take_request, without its lock.
SELECT EXISTS (
           SELECT FROM seekpoint.replay_request AS request
           JOIN seekpoint.consumer_group AS its_group ON its_group.name = request.consumer_group
           WHERE request.consumer_group = %(group)s
             AND (request.state = 'requested' OR (request.state = 'started' AND request.worker = %(owner)s))
             AND its_group.version = request.version
             AND its_group.version = %(version)s
             AND NOT its_group.paused
       ) AS is_requested,
       EXISTS (SELECT FROM seekpoint.consumer_group WHERE name = %(group)s AND paused) AS is_paused;

-- name: take_request
-- Not while the group is paused, and only by workers of its version. A request that this process has started, but is
-- not working on, was taken by a COMMIT that was not answered.
UPDATE seekpoint.replay_request
SET state = 'started', worker = %(owner)s, started_at = clock_timestamp(), seen_at = clock_timestamp()
WHERE id = (
    SELECT request.id
    FROM seekpoint.replay_request AS request
    JOIN seekpoint.consumer_group AS its_group ON its_group.name = request.consumer_group
    WHERE request.consumer_group = %(group)s
      AND (request.state = 'requested' OR (request.state = 'started' AND request.worker = %(owner)s))
      AND its_group.version = request.version
      AND its_group.version = %(version)s
      AND NOT its_group.paused
    ORDER BY request.id
    LIMIT 1
    FOR UPDATE OF request SKIP LOCKED
)
RETURNING id, coalesce(remaining, dead_letters) AS dead_letters, actor, reason, replayed, failed, refused, refusals;

-- name: request_seen
UPDATE seekpoint.replay_request
SET seen_at = clock_timestamp()
WHERE consumer_group = %(group)s AND id = %(id)s AND state = 'started' AND worker = %(owner)s;

-- name: record_request
-- A request that is given back is requested again. Changes no row if another worker has found it abandoned.
UPDATE seekpoint.replay_request
SET replayed = %(replayed)s,
    failed = %(failed)s,
    refused = %(refused)s,
    state = %(state)s::text,
    error = %(error)s,
    remaining = %(remaining)s::bigint[],
    refusals = %(refusals)s::text[],
    worker = CASE WHEN %(state)s::text <> 'requested' THEN worker END,
    started_at = CASE WHEN %(state)s::text <> 'requested' THEN started_at END,
    seen_at = clock_timestamp(),
    ended_at = CASE WHEN %(state)s::text IN ('done', 'failed') THEN clock_timestamp() END
WHERE consumer_group = %(group)s AND id = %(id)s AND state = 'started' AND worker = %(owner)s;

-- name: fail_abandoned
UPDATE seekpoint.replay_request
SET state = 'failed', error = %(error)s, ended_at = clock_timestamp()
WHERE consumer_group = %(group)s
  AND state = 'started'
  AND seen_at < clock_timestamp() - make_interval(secs => %(age)s);

-- name: fail_outdated
-- Versions only rise, so no worker will have the request's version again.
UPDATE seekpoint.replay_request AS request
SET state = 'failed', error = %(error)s, ended_at = clock_timestamp()
FROM seekpoint.consumer_group AS its_group
WHERE request.consumer_group = %(group)s
  AND request.state = 'requested'
  AND its_group.name = request.consumer_group
  AND its_group.version > request.version;
