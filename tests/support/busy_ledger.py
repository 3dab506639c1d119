"""Fills a ledger by SQL with data for every page of the console: groups in every state."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode

from sqlalchemy import Engine, text

BUSY, STOPPED, LOST, PAUSED, MANY = "orders-to-warehouse", "invoices", "shipments", "payments", "clickstream"

# Samples of two hours: lag in waves, each partition with a phase of its own.
_FILL = """
INSERT INTO {s}.consumer_group (name, cluster_id, version, declared)
SELECT name, 'cluster-1', 3, jsonb_build_object(topic, jsonb_build_object('version', 3, 'handler', NULL, 'attempts', 5,
  'on_poison', 'dead_letter', 'sinks', jsonb_build_array(jsonb_build_object('kind', 'Upsert', 'tables',
  jsonb_build_array(topic), 'key', jsonb_build_array('id'), 'guarded', true)), 'weakens', CASE WHEN name = 'payments'
  THEN jsonb_build_array('the log is read uncommitted: records of aborted transactions are applied') ELSE '[]' END))
FROM (VALUES ('orders-to-warehouse', 'orders'), ('invoices', 'invoices'), ('shipments', 'shipments'),
             ('payments', 'payments'), ('clickstream', 'clicks')) named(name, topic);
INSERT INTO {s}.consumer_group (name, cluster_id)
SELECT 'team-' || lpad(n::text, 3, '0') || '-events', 'cluster-1' FROM generate_series(6, :groups) n;

INSERT INTO {s}.worker (owner, consumer_group, host, pid, client_id, version, library, state)
SELECT gen_random_uuid(), g.name, 'worker-' || n || '.example', 4100 + n, 'client-' || n, g.version, '0.1.0', 'running'
FROM {s}.consumer_group g, generate_series(1, CASE WHEN g.name LIKE 'team%' THEN 1 ELSE 3 END) n
WHERE g.name NOT LIKE 'team-0_7%';

INSERT INTO {s}.partition_offset (consumer_group, topic, partition, topic_id, first_offset, next_offset, token, epoch,
  owner, claimed_at, committed_at, record_time)
SELECT g.name, coalesce((SELECT min(k) FROM jsonb_object_keys(g.declared) k), 'events'), n, gen_random_uuid(), 0,
  1000000 - abs((900 * (1 + sin(n * 1.7)))::bigint) * CASE WHEN g.name LIKE 'team-__0%' THEN 0 ELSE 1 END,
  gen_random_uuid(), 4, w.owner, now() - interval '3 hours', now() - n * interval '1 second',
  now() - n * interval '2 seconds'
FROM {s}.consumer_group g
CROSS JOIN generate_series(0, CASE g.name WHEN 'clickstream' THEN 119 WHEN 'orders-to-warehouse' THEN 11 ELSE 3 END) n
LEFT JOIN LATERAL (SELECT owner FROM {s}.worker w WHERE w.consumer_group = g.name ORDER BY (w.pid + n) % 3
  LIMIT 1) w ON true;

INSERT INTO {s}.position_sample (consumer_group, topic, partition, topic_id, at, next_offset, log_start, log_end)
SELECT o.consumer_group, o.topic, o.partition, o.topic_id, now() - m * interval '1 minute',
  CASE WHEN m = 0 THEN o.next_offset
       ELSE 1000000 - m * 600 - abs((900 * (1 + sin(o.partition * 1.7 + m / 5.0)))::bigint) END,
  200000 - m * 300, 1000000 - m * 600
FROM {s}.partition_offset o, generate_series(0, CASE WHEN o.consumer_group LIKE 'team%' THEN 1 ELSE 120 END) m;

INSERT INTO {s}.partition_trouble (consumer_group, topic, partition, stop_kind, stop_offset, stopped_at, stop_message,
  stop_choices)
SELECT consumer_group, topic, partition, 'PoisonStop', next_offset, now() - interval '7 minutes',
  'a record of 12 bytes failed 5 times: ValueError: amount is not a number',
  ARRAY['deploy a handler that takes the record: the partition resumes where it stopped',
    'skip the record: offsets reset --after-failed']
FROM {s}.partition_offset WHERE consumer_group = 'invoices' AND partition = 2;
INSERT INTO {s}.partition_trouble (consumer_group, topic, partition, stop_kind, stop_offset, stopped_at, stop_message,
  stop_choices)
SELECT consumer_group, topic, partition, 'OffsetLost', next_offset, now() - interval '2 hours',
  'retention removed 5,210 records that were not read',
  ARRAY['accept the loss: lost accept', 'read the log from its start: offsets reset --to-earliest']
FROM {s}.partition_offset WHERE consumer_group = 'shipments' AND partition = 0;
INSERT INTO {s}.partition_trouble (consumer_group, topic, partition, attempt_offset, attempts, attempts_allowed,
  retry_at, attempt_error)
SELECT consumer_group, topic, partition, next_offset, 2, 5, now() + interval '20 seconds', 'deadlock detected'
FROM {s}.partition_offset WHERE consumer_group = 'orders-to-warehouse' AND partition = 3;
UPDATE {s}.consumer_group SET paused = true, paused_by = 'ada', paused_reason = 'the bank''s maintenance until 14:00'
  WHERE name = 'payments';

INSERT INTO {s}.dead_letter (consumer_group, topic, topic_id, partition, record_offset, key, value, header_names,
  header_values, state, cause, error, error_line, traceback, sqlstate, attempts, version, dead_lettered_at)
SELECT 'orders-to-warehouse', 'orders', o.topic_id, n % 12, 1000 + n, convert_to('customer-' || n % 7, 'UTF8'),
  convert_to('{{"id": ' || n || ', "amount": "twelve"}}', 'UTF8'), ARRAY['trace'::bytea], ARRAY['\\x00ff10'::bytea],
  'dead_lettered', CASE WHEN n % 3 = 0 THEN 'decode' ELSE 'handler' END,
  CASE WHEN n % 3 = 0 THEN 'DecodeError: Expected `int`, got `str` - at `$.amount`'
       ELSE 'ValueError: amount is not a number' END,
  CASE WHEN n % 3 > 0 THEN 'shop/handlers.py:' || 40 + n % 3 END, 'Traceback (most recent call last):', NULL, 5, 3,
  now() - n * interval '11 minutes'
FROM generate_series(1, 140) n JOIN {s}.partition_offset o
  ON o.consumer_group = 'orders-to-warehouse' AND o.partition = n % 12;
INSERT INTO {s}.replay_request (consumer_group, version, dead_letters, state, actor, reason, replayed, started_at)
VALUES ('orders-to-warehouse', 3, ARRAY[1, 2, 3], 'started', 'ada', 'handler fixed in release 41', 1, now());

INSERT INTO {s}.admin_action (consumer_group, action, topic, partition, from_offset, to_offset, actor, reason, at)
SELECT (ARRAY['orders-to-warehouse', 'payments', 'invoices'])[1 + n % 3],
  (ARRAY['reset', 'discard', 'replay'])[1 + n % 3],
  'orders', n % 4, 5000 + n, 4000 + n, (ARRAY['ada', 'grace'])[1 + n % 2], 'ticket ' || 4000 + n,
  now() - n * interval '3 hours' FROM generate_series(0, 24) n;
INSERT INTO {s}.lost_range (consumer_group, topic, topic_id, partition, from_offset, to_offset, reason, decision, actor)
SELECT consumer_group, topic, topic_id, partition, 100, 5310, 'retention', 'accepted', 'ada'
FROM {s}.partition_offset WHERE consumer_group = 'shipments' AND partition = 1;

INSERT INTO {s}.reload_run (id, groups, tables, strategy, pipelines, version_from, version_to, state, driver_epoch,
  driver, staging_schema, actor, reason, error, opened_at, changed_at)
VALUES (gen_random_uuid(), ARRAY['orders-to-warehouse'], ARRAY['public.orders'], 'merge', ARRAY['shop:orders'],
        ARRAY[3], ARRAY[4], 'staging', 1, 'host', 's', 'ada', 'amounts in cents', NULL, now() - interval '9 minutes',
        now()),
       (gen_random_uuid(), ARRAY['payments'], ARRAY['public.payments'], 'swap', ARRAY['shop:payments'], ARRAY[2],
        ARRAY[3], 'cut_over', 1, 'host', 's', 'grace', 'late fees', NULL, now() - interval '3 days',
        now() - interval '3 days'),
       (gen_random_uuid(), ARRAY['invoices'], ARRAY['public.invoices'], 'merge', ARRAY['shop:invoices'], ARRAY[2],
        ARRAY[3], 'failed', 1, 'host', 's', 'ada', 'tax rates',
        'difference too large: 4,210 of 9,000 rows change; allow it with --max-deletes', now() - interval '5 days',
        now() - interval '5 days');
INSERT INTO {s}.reload_position (run, consumer_group, topic, partition, topic_id, first_offset, end_offset, next_offset,
  epoch, resets)
SELECT r.id, o.consumer_group, o.topic, o.partition, o.topic_id, 0, o.next_offset,
  CASE r.state WHEN 'staging' THEN o.next_offset * 6 / 10 WHEN 'failed' THEN o.next_offset / 3 ELSE o.next_offset END,
  1, 0
FROM {s}.reload_run r JOIN {s}.partition_offset o ON o.consumer_group = r.groups[1];
ANALYZE {s}.position_sample"""


def fill(engine: Engine, schema: str, groups: int = 40) -> Mapping[str, str]:
    """Fill the ledger; returns a path of the console for each template."""
    with engine.begin() as tx:
        for statement in _FILL.replace("{s}", f'"{schema}"').replace("{{", "{").replace("}}", "}").split(";\n"):
            parameters = {"groups": groups} if ":groups" in statement else {}
            tx.execute(text(statement), parameters)
        (dead_letter,) = tx.execute(text(f'SELECT min(id) FROM "{schema}".dead_letter')).scalars()
        (request,) = tx.execute(text(f'SELECT min(id) FROM "{schema}".replay_request')).scalars()
    return {
        "groups": "",
        "group": path_of("group", group=BUSY),
        "partition": path_of("partition", group=STOPPED, topic="invoices", partition=2),
        "dead_letters": path_of("dead-letters", group=BUSY),
        "dead_letter": path_of("dead-letter", group=BUSY, id=dead_letter),
        "replay": path_of("replay", group=BUSY, id=request),
        "reloads": "reloads",
        "history": "history",
        "health": "health",
        "plan": path_of("plan", action="reset", group=BUSY, target="offset", value=900_000),
        "error": path_of("group", group="none"),
        "reset": path_of("plan", action="reset", group=BUSY, target="offset", value="many"),
    }


def path_of(page: str, /, **parameters: object) -> str:
    """A path of the console."""
    return f"{page}?{urlencode(parameters)}"
