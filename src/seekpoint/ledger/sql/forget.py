"""SQL statements that forget a group, and undo that: constants. They run under the lock of the group's row."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    DateTime,
    Integer,
    Text,
    Uuid,
    bindparam,
    delete,
    false,
    func,
    insert,
    literal,
    literal_column,
    null,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from seekpoint.ledger.sql.dead_letters import whole_dead_letter
from seekpoint.ledger.sql.partition_offset import GROUP
from seekpoint.ledger.tables import (
    BEGUN_AGAIN,
    admin_action,
    consumer_group,
    dead_letter,
    group_topic,
    lost_range,
    partition_offset,
    position_sample,
    replay_request,
    reprocess_dead_letter,
    reprocess_run,
    worker,
)

_offset, _topic, _dead_letter, _lost = partition_offset.c, group_topic.c, dead_letter.c, lost_range.c

# -- what goes ---------------------------------------------------------------------------------------------------

COUNT_DEAD_LETTERS = (
    select(_dead_letter.state, func.count().label("n"))
    .where(_dead_letter.consumer_group == GROUP)
    .group_by(_dead_letter.state)
    .order_by(_dead_letter.state)
)
COUNT_LOSSES = select(func.count()).select_from(lost_range).where(_lost.consumer_group == GROUP)
_runs = select(reprocess_run.c.id).where(reprocess_run.c.consumer_group == GROUP)
COUNT_RUNS = select(func.count()).select_from(reprocess_run).where(reprocess_run.c.consumer_group == GROUP)
COUNT_RUN_DEAD_LETTERS = (
    select(func.count()).select_from(reprocess_dead_letter).where(reprocess_dead_letter.c.run.in_(_runs))
)
COUNT_REQUESTS = select(func.count()).select_from(replay_request).where(replay_request.c.consumer_group == GROUP)
COUNT_POSITIONS = select(func.count()).select_from(partition_offset).where(_offset.consumer_group == GROUP)
# In the order of their records. A result of many megabytes is read as it comes.
EVERY_DEAD_LETTER = (
    select(*whole_dead_letter())
    .where(_dead_letter.consumer_group == GROUP)
    .order_by(_dead_letter.topic, _dead_letter.partition, _dead_letter.record_offset, _dead_letter.id)
)

EVERY_RUN_DEAD_LETTER = (
    select(
        reprocess_run.c.topic,
        reprocess_run.c.partition,
        reprocess_run.c.topic_id,
        reprocess_run.c.version,
        *reprocess_dead_letter.c,
    )
    .join(reprocess_run, reprocess_run.c.id == reprocess_dead_letter.c.run)
    .where(reprocess_run.c.consumer_group == GROUP)
    .order_by(reprocess_dead_letter.c.run, reprocess_dead_letter.c.record_offset)
)

# -- forget ------------------------------------------------------------------------------------------------------

# In the order of workers' locks: a release may be on its way.
LOCK_POSITIONS = (
    select(partition_offset)
    .where(_offset.consumer_group == GROUP)
    .order_by(_offset.topic, _offset.partition)
    .with_for_update()
)
TOPICS = select(group_topic).where(_topic.consumer_group == GROUP).order_by(_topic.topic)
DELETE_POSITIONS = delete(partition_offset).where(_offset.consumer_group == GROUP)
DELETE_TOPICS = delete(group_topic).where(_topic.consumer_group == GROUP)
DELETE_DEAD_LETTERS = delete(dead_letter).where(_dead_letter.consumer_group == GROUP)
DELETE_LOSSES = delete(lost_range).where(_lost.consumer_group == GROUP)
DELETE_RUN_DEAD_LETTERS = delete(reprocess_dead_letter).where(reprocess_dead_letter.c.run.in_(_runs))
DELETE_RUNS = delete(reprocess_run).where(reprocess_run.c.consumer_group == GROUP)
DELETE_REQUESTS = delete(replay_request).where(replay_request.c.consumer_group == GROUP)
DELETE_SAMPLES = delete(position_sample).where(position_sample.c.consumer_group == GROUP)
DELETE_WORKERS = delete(worker).where(worker.c.consumer_group == GROUP)
FORGET = (
    update(consumer_group)
    .where(consumer_group.c.name == GROUP)
    .values(forgotten=bindparam("its_forgotten", type_=JSONB))
)
FORGOTTEN = (
    select(consumer_group.c.name, consumer_group.c.forgotten)
    .where(consumer_group.c.forgotten.is_not(None))
    .order_by(consumer_group.c.name)
)

# -- undo it, or begin again -----------------------------------------------------------------------------------------

# Each with a token that no worker has ever had (I5).
RESTORE_POSITION = insert(partition_offset).values(
    consumer_group=GROUP,
    topic=bindparam("its_topic", type_=Text),
    partition=bindparam("its_partition", type_=Integer),
    topic_id=bindparam("its_topic_id", type_=Uuid),
    first_offset=bindparam("its_first_offset", type_=BigInteger),
    next_offset=bindparam("its_next_offset", type_=BigInteger),
    leader_epoch=bindparam("its_leader_epoch", type_=Integer),
    token=func.gen_random_uuid(),
    epoch=bindparam("its_epoch", type_=BigInteger),
    committed_at=bindparam("its_committed_at", type_=DateTime(timezone=True)),
    record_time=bindparam("its_record_time", type_=DateTime(timezone=True)),
)
RESTORE_TOPIC = insert(group_topic).values(
    consumer_group=GROUP,
    topic=bindparam("its_topic", type_=Text),
    version=bindparam("its_version", type_=Integer),
    tables=bindparam("its_tables", type_=ARRAY(Text)),
    replaced=bindparam("its_replaced", type_=Integer),
)
# null() is SQL's; None would be JSON's.
REMEMBER = update(consumer_group).where(consumer_group.c.name == GROUP).values(forgotten=null())
# A group like one that has never run. Its tables stay: rows of it may be in them.
BEGIN_AGAIN = REMEMBER.values(
    version=bindparam("to_version", type_=Integer),
    cluster_id=null(),
    paused=false(),
    paused_by=null(),
    paused_reason=null(),
    declared=null(),
)
# What was done before it was to positions that are no more. After an undo they are as they were, and it still counts.
LAST_BEGIN = select(func.coalesce(func.max(admin_action.c.id), literal_column("0"))).where(
    admin_action.c.consumer_group == GROUP, admin_action.c.action == literal(BEGUN_AGAIN, Text)
)
