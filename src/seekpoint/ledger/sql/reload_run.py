"""The statements on runs, their positions and what they staged: constants, each with a snapshot under ``tests/sql``."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Integer,
    Interval,
    Select,
    Text,
    Uuid,
    and_,
    bindparam,
    cast,
    func,
    insert,
    literal,
    literal_column,
    null,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB

from seekpoint.ledger.sql.partition_offset import GROUP, unnest
from seekpoint.ledger.tables import (
    BEGUN_AGAIN,
    IS_LEFT_OUT,
    IS_RESET,
    LOWER_FIRST,
    RELOAD_CLOSED,
    admin_action,
    consumer_group,
    dead_letter,
    lost_range,
    partition_offset,
    reload_position,
    reload_run,
    reload_staged,
)

_run, _at, _staged = reload_run.c, reload_position.c, reload_staged.c
_offset, _dead_letter, _action = partition_offset.c, dead_letter.c, admin_action.c
_ID = bindparam("its_run", type_=Uuid)
_groups = bindparam("groups", type_=ARRAY(Text))

CLOSED = RELOAD_CLOSED
_is_open = _run.state.not_in([literal_column(f"'{state}'") for state in CLOSED])

# A step may take longer than a statement of the application may, and a task waits for Kafka in its transaction.
UNHURRIED = select(
    func.set_config(literal("statement_timeout", Text), literal("0", Text), literal_column("true")),
    func.set_config(literal("idle_in_transaction_session_timeout", Text), literal("0", Text), literal_column("true")),
)

# -- the run -------------------------------------------------------------------------------------------------

GROUPS = select(consumer_group).order_by(consumer_group.c.name)
# While a run is put on record. A worker looks for a run to its version under its group's lock, before it raises that.
SHARE_GROUPS = GROUPS.where(consumer_group.c.name == func.any(_groups)).with_for_update(read=True)
INSERT_RUN = insert(reload_run)
INSERT_POSITIONS = insert(reload_position)
OPEN_RUNS = select(reload_run).where(_is_open).order_by(_run.opened_at)
ALL_RUNS = select(reload_run).order_by(_run.opened_at.desc(), _run.id)
GET_RUN = select(reload_run).where(_run.id == _ID)
# After an unknown commit: waits for the transaction, if it has not ended.
SETTLED_RUN = GET_RUN.with_for_update(read=True)
_update = update(reload_run).where(_run.id == _ID)
# The first statement of each step. It locks the run's row until the step has ended, and is the driver's heartbeat.
STEP = _update.values(changed_at=func.clock_timestamp()).returning(reload_run)
TAKE_OVER = (
    _update.where(_is_open)
    .values(
        driver_epoch=_run.driver_epoch + 1,
        driver=bindparam("driver_name", type_=Text),
        changed_at=func.clock_timestamp(),
    )
    .returning(reload_run)
)
TRANSITION = _update.values(state=bindparam("to_state", type_=Text))
DIFFED = _update.values(
    state="compared",
    diff_xid=func.pg_snapshot_xmin(func.pg_current_snapshot()).cast(Text),
    differences=bindparam("its_differences", type_=JSONB),
)
CLOSE = (
    _update.where(_is_open)
    .values(
        state=bindparam("to_state", type_=Text),
        error=bindparam("its_error", type_=Text),
        changed_at=func.clock_timestamp(),
    )
    .returning(_run.id, _run.groups)
)
SWEPT = _update.values(swept=true())
# A run whose row is locked is in a step: its driver is alive.
_unheard = (
    select(_run.id)
    .where(_is_open, _run.changed_at < func.clock_timestamp() - cast(bindparam("age"), Interval))
    .with_for_update(skip_locked=True)
)
GONE = (
    update(reload_run)
    .where(_run.id.in_(_unheard))
    .values(
        state="failed",
        error=literal("its driver is gone: nothing was heard of it since ", Text) + cast(_run.changed_at, Text),
    )
    .returning(_run.id, _run.groups)
)
UNSWEPT = select(reload_run).where(~_run.swept, ~_is_open).order_by(_run.opened_at)


def _guard(state: str) -> Select[Any]:
    return select(literal_column("1")).where(_run.id == _ID, _run.state == state).with_for_update(read=True)


# The last statement of every transaction that stages: a run that is over takes no more rows.
GUARD = _guard("staging")
# For what frames write: they replace the driver's passes over handlers, after the ranges were staged.
GUARD_FRAMES = _guard("staged")

# -- positions -----------------------------------------------------------------------------------------------

# Snapshot offsets: every position of all groups as of one moment, with the number of its resets.
_resets = (
    select(func.count())
    .where(
        _action.consumer_group == _offset.consumer_group,
        _action.topic == _offset.topic,
        _action.partition == _offset.partition,
        IS_RESET,
    )
    .scalar_subquery()
)
_offsets = (
    select(partition_offset)
    .where(_offset.consumer_group == func.any(_groups))
    .order_by(_offset.consumer_group, _offset.topic, _offset.partition)
)
OFFSETS = _offsets.add_columns(_resets.label("resets"))
# The locks of the cut-over, in this order, like all transactions that lock several; the groups' rows are locked before.
# What the rows are then is read by another statement: this one's sub-selects would see what was before the wait.
LOCK_OFFSETS = _offsets.with_for_update(key_share=True)
POSITIONS = select(reload_position).where(_at.run == _ID).order_by(_at.consumer_group, _at.topic, _at.partition)
_moving = unnest("moving", consumer_group=Text, topic=Text, partition=Integer, to_offset=BigInteger)
_move = update(reload_position).where(
    _at.run == _ID,
    _at.consumer_group == _moving.c.consumer_group,
    _at.topic == _moving.c.topic,
    _at.partition == _moving.c.partition,
)
ADVANCE_STAGED = _move.values(next_offset=_moving.c.to_offset)
# The snapshot offsets of a run that is still staging.
EXTEND_STAGED = _move.values(end_offset=_moving.c.to_offset)

# A batch job claims under its run's id. An owner that stays after the run would look like a worker.
DISOWN = (
    update(partition_offset)
    .where(partition_offset.c.consumer_group == GROUP, partition_offset.c.owner == bindparam("its_run", type_=Uuid))
    .values(owner=null())
)

# -- what is left out ------------------------------------------------------------------------------------------

_within = unnest("within", topic=Text, partition=Integer, topic_id=Uuid, from_offset=BigInteger, to_offset=BigInteger)
_of_ours = and_(
    _dead_letter.consumer_group == GROUP,
    _dead_letter.topic == _within.c.topic,
    _dead_letter.topic_id == _within.c.topic_id,
    _dead_letter.partition == _within.c.partition,
    _dead_letter.record_offset >= _within.c.from_offset,
    _dead_letter.record_offset < _within.c.to_offset,
)
LETTERS = select(_dead_letter.topic, _dead_letter.partition, _dead_letter.record_offset).where(_of_ours, IS_LEFT_OUT)
LOST = (
    select(lost_range.c.topic, lost_range.c.topic_id, lost_range.c.partition, lost_range.c.from_offset,
           lost_range.c.to_offset, lost_range.c.reason, lost_range.c.at)
    .where(lost_range.c.consumer_group == GROUP)
    .order_by(lost_range.c.at, lost_range.c.id)
)  # fmt: skip
_begin = admin_action.alias("began")
_last_begin = select(func.coalesce(func.max(_begin.c.id), literal_column("0"))).where(
    _begin.c.consumer_group == GROUP, _begin.c.action == literal(BEGUN_AGAIN, Text)
)
_is_of_these_positions = _action.id > _last_begin.correlate(None).scalar_subquery()
RESETS = (
    select(_action.topic, _action.partition, _action.from_offset, _action.to_offset, _action.at)
    .where(_action.consumer_group == GROUP, IS_RESET, _is_of_these_positions)
    .order_by(_action.id)
)
# The first offset of each partition before a reset has lowered it.
FIRST_OFFSETS = (
    select(_action.topic, _action.partition, func.max(_action.from_offset).label("first_offset"))
    .where(_action.consumer_group == GROUP, _action.action == literal(LOWER_FIRST, Text), _is_of_these_positions)
    .group_by(_action.topic, _action.partition)
)

# -- what was staged -------------------------------------------------------------------------------------------

INSERT_STAGED = insert(reload_staged)
STAGED = (
    select(reload_staged)
    .where(_staged.run == _ID)
    .order_by(_staged.consumer_group, _staged.topic, _staged.partition, _staged.from_offset, _staged.table_name)
)

# -- the cut-over ------------------------------------------------------------------------------------------------

RAISE_VERSION = (
    update(consumer_group).where(consumer_group.c.name == GROUP).values(version=bindparam("to_version", type_=Integer))
)
