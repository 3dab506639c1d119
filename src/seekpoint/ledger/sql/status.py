"""SQL statements for what operators look at: running workers, samples of positions and logs, declarations.

None of these rows is needed for the offsets. Nothing here locks a row of ``partition_offset``.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    DateTime,
    Double,
    Integer,
    Interval,
    Text,
    Uuid,
    and_,
    bindparam,
    cast,
    delete,
    extract,
    func,
    insert,
    literal,
    literal_column,
    or_,
    select,
    update,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import JSONB

from seekpoint.ledger.sql.partition_offset import GROUP, array, is_row_of, unnest
from seekpoint.ledger.sql.reload_run import CLOSED
from seekpoint.ledger.tables import (
    consumer_group,
    group_status,
    lag,
    lost_range,
    partition_offset,
    position_sample,
    reload_position,
    reload_run,
    worker,
)

_now = func.clock_timestamp()

# Display waits for nothing for long, and need not survive a crash of the server.
CONFIGURE = select(
    func.set_config(literal("statement_timeout", Text), bindparam("timeout", type_=Text), True),
    func.set_config(literal("lock_timeout", Text), bindparam("timeout", type_=Text), True),
    func.set_config(literal("synchronous_commit", Text), literal("off", Text), True),
    func.set_config(literal("application_name", Text), bindparam("application_name", type_=Text), True),
)

# -- running workers -------------------------------------------------------------------------------------------

_seen = postgresql.insert(worker).values(
    owner=bindparam("its_owner", type_=Uuid),
    consumer_group=GROUP,
    host=bindparam("its_host", type_=Text),
    pid=bindparam("its_pid", type_=Integer),
    client_id=bindparam("its_client", type_=Text),
    version=bindparam("its_version", type_=Integer),
    library=bindparam("its_library", type_=Text),
    state=bindparam("its_state", type_=Text),
    trouble=bindparam("its_trouble", type_=Text),
)
WORKER_SEEN = _seen.on_conflict_do_update(
    index_elements=[worker.c.owner],
    set_={"seen_at": _now, "state": _seen.excluded.state, "trouble": _seen.excluded.trouble},
)
_unseen = (
    select(worker.c.owner)
    .where(worker.c.seen_at < _now - cast(literal_column("'1 day'"), Interval))
    .with_for_update(skip_locked=True)  # every worker deletes them
)
DELETE_UNSEEN = delete(worker).where(worker.c.owner.in_(_unseen))

# -- samples -----------------------------------------------------------------------------------------------------

offset, sample = partition_offset.c, position_sample.c
SAMPLED = unnest("sampled", topic=Text, partition=Integer, log_start=BigInteger, log_end=BigInteger)
# The position as it is stored, by its owner alone: two workers that both believe to have a partition write one row.
INSERT_SAMPLES = insert(position_sample).from_select(
    ["consumer_group", "topic", "partition", "topic_id", "next_offset", "log_start", "log_end"],
    select(
        offset.consumer_group,
        offset.topic,
        offset.partition,
        offset.topic_id,
        offset.next_offset,
        SAMPLED.c.log_start,
        SAMPLED.c.log_end,
    ).where(*is_row_of(SAMPLED), offset.owner == bindparam("its_owner", type_=Uuid)),
)
PRUNED = unnest("pruned", topic=Text, partition=Integer)
_hour = func.date_trunc(literal("hour", Text), sample.at, type_=DateTime(timezone=True))
_row: ColumnElement[Any] = literal_column("position_sample.ctid")
_old = (
    select(
        _row.label("ctid"),
        sample.at,
        func.row_number().over(partition_by=[sample.topic, sample.partition, _hour], order_by=sample.at).label("place"),
    )
    .where(
        sample.consumer_group == GROUP,
        sample.topic == PRUNED.c.topic,
        sample.partition == PRUNED.c.partition,
        sample.at < _now - cast(literal_column("'1 day'"), Interval),
    )
    .subquery("old")
)
_a_month_ago = _now - cast(literal_column("'30 days'"), Interval)
_pruned = select(_old.c.ctid).where(or_(_old.c.place > 1, _old.c.at < _a_month_ago))
# Of a day ago and before, the first one of each hour is kept, for a month. Rows are found by their address and in one
# pass: a comparison of each row with the earlier ones is quadratic where the server has no statistics yet.
PRUNE_SAMPLES = delete(position_sample).where(_row == func.any(func.array(_pruned.scalar_subquery())))

# -- what pipelines declare --------------------------------------------------------------------------------------

_declared = func.coalesce(consumer_group.c.declared, cast(literal_column("'{}'"), JSONB))
_mine = bindparam("its_declared", type_=JSONB)
# By topic, and only by the version that the group is at: an older worker is refused, and its declaration is not the
# group's. The row is not locked where nothing changes.
STORE_DECLARED = (
    update(consumer_group)
    .where(
        consumer_group.c.name == GROUP,
        consumer_group.c.version == bindparam("its_version", type_=Integer),
        # Not containment: an array contains one that has fewer members.
        consumer_group.c.declared.is_distinct_from(_declared.concat(_mine)),
    )
    .values(declared=_declared.concat(_mine))
)

# -- what operators read -------------------------------------------------------------------------------------------

_among = func.any(array("names", Text))
GROUPS = select(consumer_group).order_by(consumer_group.c.name)
GROUP_STATUS = select(group_status).order_by(group_status.c.consumer_group)
POSITIONS = (
    select(partition_offset)
    .where(offset.consumer_group == _among)
    .order_by(offset.consumer_group, offset.topic, offset.partition)
)
_lag_now = select(lag, func.statement_timestamp(type_=DateTime(timezone=True)).label("now"))
LAG_OF_ALL = _lag_now.order_by(lag.c.consumer_group, lag.c.topic, lag.c.partition)
TOPIC_IDS = select(offset.consumer_group, offset.topic, offset.partition, offset.topic_id)
LAG = _lag_now.where(lag.c.consumer_group == _among)
# As the view group_status counts them; of display alone, as a worker in a long handler is not seen.
IS_LIVE = and_(
    worker.c.state != literal_column("'ended'"), worker.c.seen_at > _now - cast(literal_column("'1 minute'"), Interval)
)
WORKERS = (
    select(worker, IS_LIVE.label("is_live"))
    .where(worker.c.consumer_group == _among)
    .order_by(worker.c.consumer_group, worker.c.started_at, worker.c.owner)
)
SILENT_DRIVERS = select(
    reload_run.c.id,
    reload_run.c.state,
    cast(extract("epoch", _now - reload_run.c.changed_at), Double).label("silent"),
).where(reload_run.c.state.not_in([literal_column(f"'{state}'") for state in CLOSED]))
# The newest first: a page shows the last ones.
LOST_RANGES = (
    select(lost_range)
    .where(
        lost_range.c.consumer_group == _among,
        or_(
            bindparam("its_topic", type_=Text).is_(None),
            and_(
                lost_range.c.topic == bindparam("its_topic", type_=Text),
                lost_range.c.partition == bindparam("its_partition", type_=Integer),
            ),
        ),
    )
    .order_by(lost_range.c.id.desc())
    .limit(bindparam("most", type_=Integer))
)
_is_open = reload_run.c.state.not_in([literal_column(f"'{state}'") for state in CLOSED])
OPEN_RUNS = (
    select(
        reload_run.c.id,
        reload_run.c.strategy,
        reload_run.c.state,
        reload_run.c.driver,
        reload_run.c.groups,
        reload_run.c.pipelines,
        reload_run.c.version_to,
        (_now - reload_run.c.changed_at).label("silence"),
    )
    .where(_is_open)
    .order_by(reload_run.c.opened_at)
)

# -- what pages of the console read --------------------------------------------------------------------------------

_since = _now - bindparam("since", type_=Interval)
# An hour has sixty samples of each partition, a month hundreds.
SAMPLES = (
    select(position_sample)
    .where(
        sample.consumer_group == GROUP,
        sample.topic == PRUNED.c.topic,
        sample.partition == PRUNED.c.partition,
        sample.at >= _since,
    )
    .order_by(sample.topic, sample.partition, sample.at)
)
_read = func.coalesce(func.sum(reload_position.c.next_offset - reload_position.c.first_offset), 0)
_wanted = func.coalesce(func.sum(reload_position.c.end_offset - reload_position.c.first_offset), 0)
RUNS = (
    select(reload_run, cast(_read, BigInteger).label("read"), cast(_wanted, BigInteger).label("wanted"))
    .outerjoin(reload_position, reload_position.c.run == reload_run.c.id)
    .where(or_(~bindparam("only_open", type_=Boolean), _is_open))
    .group_by(reload_run.c.id)
    .order_by(reload_run.c.opened_at.desc(), reload_run.c.id)
    .limit(bindparam("most", type_=Integer))
)
