"""SQL statements for resets as plans: what a plan is made from, and the locks under which it is carried out."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    DateTime,
    Integer,
    Text,
    Uuid,
    and_,
    bindparam,
    cast,
    column,
    func,
    literal,
    literal_column,
    or_,
    select,
    table,
    true,
)

from seekpoint.ledger.sql.partition_offset import ASKED, GROUP, array, is_at, is_row_of, unnest
from seekpoint.ledger.sql.reload_run import CLOSED
from seekpoint.ledger.tables import IS_RESET, admin_action, dead_letter, partition_offset, position_sample, reload_run
from seekpoint.records import State

_action, _sample = admin_action.c, position_sample.c

# The id of each partition's last reset: a plan that was made before another one was applied is refused by it.
LAST_RESETS = (
    select(_action.topic, _action.partition, func.max(_action.id).label("id"))
    .where(_action.consumer_group == GROUP, IS_RESET)
    .group_by(_action.topic, _action.partition)
)

# The id of the group's last action of these kinds, as it is of a plan that these outdate.
LAST_ACTION = select(func.max(_action.id)).where(
    _action.consumer_group == GROUP, _action.action == func.any(array("actions", Text))
)

# The id of the last forgetting: after it the group may have begun again, and its positions mean something else.
LAST_FORGET = select(func.max(_action.id)).where(
    _action.consumer_group == GROUP, _action.action == literal_column("'forget'")
)

# -- the locks ---------------------------------------------------------------------------------------------------

TIME_LIMIT = select(func.set_config(literal("statement_timeout", Text), bindparam("timeout", type_=Text), true()))
_row = select(partition_offset).where(*is_row_of(ASKED))
_held = _row.with_for_update(key_share=True).lateral("o")
_free = _row.with_for_update(key_share=True, skip_locked=True).lateral("o")
# In the order of the arrays, which callers sort: the order of workers' locks.
LOCK_ROWS = select(_held).select_from(ASKED.join(_held, literal(True)))
# The rows that no other session has locked.
FREE_ROWS = select(_free.c.topic, _free.c.partition).select_from(ASKED.join(_free, literal(True)))
_activity = table(
    "pg_stat_activity",
    column("backend_xid"),
    column("application_name", Text),
    column("xact_start", DateTime(timezone=True)),
).alias("activity")
_blocked = partition_offset.alias("blocked")
# Since when a session has locked a row; nothing where this login may not see other sessions.
LOCKED_SINCE = (
    select(_activity.c.application_name, _activity.c.xact_start)
    .select_from(_blocked.join(_activity, _activity.c.backend_xid == literal_column("blocked.xmax")))
    .where(*is_at(_blocked.c))
)

# -- what a plan is made from ------------------------------------------------------------------------------------

# The last sample before a moment: of records that are not sure to have been applied then, none is passed.
_before = (
    select(_sample.topic, _sample.partition, _sample.topic_id, _sample.next_offset)
    .where(
        _sample.consumer_group == GROUP,
        _sample.topic == ASKED.c.topic,
        _sample.partition == ASKED.c.partition,
        _sample.at <= bindparam("moment", type_=DateTime(timezone=True)),
    )
    .order_by(_sample.at.desc())
    .limit(literal_column("1"))
    .lateral("before")
)
SAMPLES_BEFORE = select(_before).select_from(ASKED.join(_before, literal(True)))
_run = reload_run.c
OPEN_RUNS_OF_GROUP = (
    select(_run.id, _run.state, _run.strategy, _run.driver)
    .where(
        func.array_position(_run.groups, cast(GROUP, Text)).is_not(None),
        _run.state.not_in([literal_column(f"'{state}'") for state in CLOSED]),
    )
    .order_by(_run.opened_at)
)

_dead_letter = dead_letter.c
MOVED = unnest("moved", topic_id=Uuid, partition=Integer, to_offset=BigInteger)
# What a reset supersedes, by state.
DEAD_LETTERS_FROM = (
    select(_dead_letter.state, func.count().label("n"))
    .select_from(MOVED)
    .join(
        dead_letter,
        and_(
            _dead_letter.topic_id == MOVED.c.topic_id,
            _dead_letter.partition == MOVED.c.partition,
            _dead_letter.record_offset >= MOVED.c.to_offset,
        ),
    )
    .where(_dead_letter.consumer_group == GROUP, _dead_letter.state != literal(State.SUPERSEDED.value, Text))
    .group_by(_dead_letter.state)
    .order_by(_dead_letter.state)
)

# -- what was done -----------------------------------------------------------------------------------------------

_topics, _partition = array("topics", Text), bindparam("its_partition", type_=Integer)
_before_id = bindparam("before_id", type_=BigInteger)
_filter = (
    or_(bindparam("its_action", type_=Text).is_(None), _action.action == bindparam("its_action", type_=Text)),
    or_(bindparam("its_actor", type_=Text).is_(None), _action.actor == bindparam("its_actor", type_=Text)),
    or_(_before_id.is_(None), _action.id < _before_id),  # the next page
)
HISTORY = (
    select(admin_action)
    .where(
        _action.consumer_group == GROUP,
        or_(_topics.is_(None), _action.topic == func.any(_topics)),
        or_(_partition.is_(None), _action.partition == _partition),
        *_filter,
    )
    .order_by(_action.id.desc())
    .limit(bindparam("most", type_=BigInteger))
)
RECENT_ACTIONS = (
    select(admin_action).where(*_filter).order_by(_action.id.desc()).limit(bindparam("most", type_=BigInteger))
)
