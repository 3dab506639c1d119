"""Every statement the ledger runs, as constants. Their text never varies: arrays carry what does.

Each is rendered to a snapshot under ``tests/sql``; those that run per batch have an EXPLAIN test. Rows are
always locked in the order (topic, partition): callers sort the arrays, and the scans keep that order.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    DateTime,
    Integer,
    Interval,
    Text,
    Uuid,
    and_,
    bindparam,
    case,
    cast,
    column,
    func,
    insert,
    literal,
    literal_column,
    null,
    or_,
    select,
    table,
    update,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.sql.elements import BindParameter, ColumnElement
from sqlalchemy.sql.selectable import TableValuedAlias

from seekpoint.tables import admin_action, consumer_group, lost_range, partition_offset

offset = partition_offset.c
GROUP: BindParameter[str] = bindparam("group", type_=Text)


def _array(name: str, of: Any) -> BindParameter[Any]:
    return bindparam(name, type_=ARRAY(of))


def _unnest(alias: str, **columns: Any) -> TableValuedAlias:
    """``unnest((SELECT :alias_a), (SELECT :alias_b), ...) AS alias(a, b, ...)``: one row per element.

    Behind a sub-select the planner does not see how long the arrays are and assumes ten elements: it looks each
    row up by the primary key, for one partition and for a thousand, and never reads the table from end to end.
    """
    arrays = [select(_array(f"{alias}_{name}", kind)).scalar_subquery() for name, kind in columns.items()]
    named: list[ColumnElement[Any]] = [column(name, kind) for name, kind in columns.items()]
    return func.unnest(*arrays).table_valued(*named).render_derived(name=alias)


# How the application_name of every transaction of ours begins: successors and people find them by it.
APPLICATION = "seekpoint "

# How a refusal begins. It is raised inside SQL, by casting a text that is no number (22P02 quotes it back):
# in a pipeline COMMIT is on its way before Python could compare a count, and the fence must be shut by then.
REFUSAL = "seekpoint: "
ENDED = "the transaction that held the rows has ended"


def _refuse(problem: str, count: ColumnElement[int]) -> ColumnElement[int]:
    return cast(literal(f"{REFUSAL}{problem}", Text) + count.cast(Text), Integer)


# -- one transaction of a worker (I1, I2, I3) ------------------------------------------------------------

_held = _unnest("held", topic=Text, partition=Integer, claim=Uuid, from_offset=BigInteger)
_locked = (
    select(literal_column("1").label("one"))
    .select_from(partition_offset)
    .where(
        offset.consumer_group == GROUP,
        offset.topic == _held.c.topic,
        offset.partition == _held.c.partition,
        offset.claim == _held.c.claim,  # I2: only the holder of the current claim
        offset.next_offset == _held.c.from_offset,  # I3: only from the exact position that was read
    )
    .with_for_update(key_share=True)
    .lateral("locked")
)


def _set_local(name: str) -> ColumnElement[Any]:
    return func.set_config(literal(name, Text), bindparam(name, type_=Text), True)


def _hold(*settings: str) -> Any:
    """Lock the rows of all placed partitions where claim and position are as expected, or raise.

    A lateral lock per row keeps the plan a loop over the primary key whatever the statistics say. The
    transaction's settings ride along, to save a round trip. Answers the transaction's id.
    """
    rows = select(func.count().label("n")).select_from(_held.join(_locked, literal(True))).cte("rows")
    return select(
        case(
            (rows.c.n == bindparam("expected", type_=Integer), rows.c.n),
            else_=_refuse("claim or position is not the expected one; rows held: ", rows.c.n),
        ).label("held"),
        func.pg_current_xact_id().cast(Text).label("transaction"),
        *(_set_local(name).label(name) for name in settings),
    )


_SETTINGS = ("application_name", "synchronous_commit", "idle_in_transaction_session_timeout")
HOLD = _hold(*_SETTINGS)
# transaction_timeout came with Postgres 17; older servers would refuse the name.
HOLD_17 = _hold(*_SETTINGS, "transaction_timeout")

_moving = _unnest(
    "moving",
    topic=Text,
    partition=Integer,
    claim=Uuid,
    from_offset=BigInteger,
    to_offset=BigInteger,
    leader_epoch=Integer,
    record_time=DateTime(timezone=True),
)
_moved = (
    update(partition_offset)
    .where(
        offset.consumer_group == GROUP,
        offset.topic == _moving.c.topic,
        offset.partition == _moving.c.partition,
        offset.claim == _moving.c.claim,  # I2
        offset.next_offset == _moving.c.from_offset,  # I3
    )
    .values(
        next_offset=_moving.c.to_offset,
        leader_epoch=_moving.c.leader_epoch,
        record_time=func.coalesce(_moving.c.record_time, offset.record_time),
        committed_at=func.clock_timestamp(),
        unreleased_claims=0,
        attempts=0,
        attempt_offset=null(),
    )
    .returning(literal_column("1").label("one"))
    .cte("moved")
)
_count = select(func.count().label("n")).select_from(_moved).cte("rows")
_transaction = bindparam("transaction", type_=Text)

# The last statement before COMMIT. It also refuses if the transaction is not the one that hold began: a
# handler's literal COMMIT would otherwise part the rows from the offset.
ADVANCE = select(
    case(
        (
            and_(
                _count.c.n == bindparam("expected", type_=Integer),
                or_(_transaction.is_(None), func.pg_current_xact_id().cast(Text) == _transaction),
            ),
            _count.c.n,
        ),
        (
            _count.c.n == bindparam("expected", type_=Integer),
            _refuse(f"{ENDED}; rows: ", _count.c.n),
        ),
        else_=_refuse("claim or position is not the expected one; rows advanced: ", _count.c.n),
    ).label("moved")
)

# -- claim, look, release ---------------------------------------------------------------------------------

SETTLE = select(  # claims and moves are durable whatever the batches are, and never wait without bound
    func.set_config(literal("synchronous_commit", Text), literal("on", Text), True),
    func.set_config(literal("lock_timeout", Text), bindparam("lock_timeout", type_=Text), True),
    func.set_config(literal("application_name", Text), bindparam("application_name", type_=Text), True),
    # A record's time near year 1 or 9999 is beyond what Python holds in a zone other than UTC.
    func.set_config(literal("TimeZone", Text), literal("UTC", Text), True),
)

INSERT_GROUP = (
    postgresql.insert(consumer_group)
    .values(name=GROUP, version=bindparam("version", type_=Integer))
    .on_conflict_do_nothing()
)
READ_GROUP = select(consumer_group).where(consumer_group.c.name == GROUP)
SHARE_GROUP = READ_GROUP.with_for_update(read=True)
LOCK_GROUP = READ_GROUP.with_for_update()
UPDATE_GROUP = (
    update(consumer_group)
    .where(consumer_group.c.name == GROUP)
    .values(
        version=bindparam("to_version", type_=Integer),
        cluster_id=bindparam("cluster", type_=Text),
        tables=_array("tables", Text),
    )
)
PAUSE_GROUP = (
    update(consumer_group)
    .where(consumer_group.c.name == GROUP)
    .values(
        paused=bindparam("to_paused"),
        paused_reason=bindparam("reason", type_=Text),
        paused_by=bindparam("actor", type_=Text),
    )
)

_named = _unnest("named", topic=Text)
_first_row = (
    select(offset.topic)
    .where(offset.consumer_group == GROUP, offset.topic == _named.c.topic)
    .order_by(offset.partition)
    .limit(literal_column("1"))
    .lateral("known")
)
KNOWN_TOPICS = select(_first_row.c.topic).select_from(_named.join(_first_row, literal(True)))

_new = _unnest("new", topic=Text, partition=Integer, topic_id=Uuid, start=BigInteger, claim=Uuid)
INSERT_ROWS = insert(partition_offset).from_select(
    ["consumer_group", "topic", "partition", "topic_id", "first_offset", "next_offset", "claim", "epoch"],
    select(
        GROUP,
        _new.c.topic,
        _new.c.partition,
        _new.c.topic_id,
        _new.c.start,
        _new.c.start,
        _new.c.claim,
        literal(0),
    ).order_by(_new.c.topic, _new.c.partition),
)

_wanted = _unnest("wanted", topic=Text, partition=Integer, topic_id=Uuid, claim=Uuid)
_claim = postgresql.insert(partition_offset).from_select(
    [
        "consumer_group",
        "topic",
        "partition",
        "topic_id",
        "first_offset",
        "next_offset",
        "claim",
        "epoch",
        "owner",
        "claimed_at",
    ],
    select(
        GROUP,
        _wanted.c.topic,
        _wanted.c.partition,
        _wanted.c.topic_id,
        literal(0, BigInteger),  # a row that is missing beside others is an added partition: from its beginning
        literal(0, BigInteger),
        _wanted.c.claim,
        literal(1, BigInteger),
        bindparam("owner", type_=Uuid),
        func.clock_timestamp(),
    ).order_by(_wanted.c.topic, _wanted.c.partition),
)
# One statement inserts or updates, in lock order, and answers the committed position even where it had to
# wait for the transaction that moved it. A row of another topic id is left alone and not answered.
CLAIM = _claim.on_conflict_do_update(
    index_elements=[offset.consumer_group, offset.topic, offset.partition],
    set_={
        "claim": _claim.excluded.claim,
        "epoch": offset.epoch + 1,
        "owner": _claim.excluded.owner,
        "claimed_at": _claim.excluded.claimed_at,
        "unreleased_claims": case(
            (or_(offset.owner.is_(None), offset.owner == _claim.excluded.owner), offset.unreleased_claims),
            else_=offset.unreleased_claims + 1,
        ),
    },
    where=offset.topic_id == _claim.excluded.topic_id,
).returning(
    offset.topic,
    offset.partition,
    offset.topic_id,
    offset.claim,
    offset.epoch,
    offset.next_offset,
    offset.leader_epoch,
)

_asked = _unnest("asked", topic=Text, partition=Integer)
_row = select(partition_offset).where(
    offset.consumer_group == GROUP,
    offset.topic == _asked.c.topic,
    offset.partition == _asked.c.partition,
)
_glanced = _row.lateral("o")
_awaited = _row.with_for_update(read=True).lateral("o")
GLANCE = select(_glanced).select_from(_asked.join(_glanced, literal(True)))
# The same under the row's lock: waits for a transaction in flight, so the answer is the settled one.
LOOK = select(_awaited).select_from(_asked.join(_awaited, literal(True)))

_released = _unnest("released", topic=Text, partition=Integer, claim=Uuid)
_let_go = (
    select(offset.topic, offset.partition, offset.claim)
    .where(
        offset.consumer_group == GROUP,
        offset.topic == _released.c.topic,
        offset.partition == _released.c.partition,
        offset.claim == _released.c.claim,  # I2: a stranger's claim is not ours to release
    )
    .with_for_update(key_share=True)
    .lateral("mine")
)
# The successor claims the same rows at the same time: they are locked in order first, then written.
_mine = select(_let_go).select_from(_released.join(_let_go, literal(True))).cte("ordered")
RELEASE = (
    update(partition_offset)
    .where(
        offset.consumer_group == GROUP,
        offset.topic == _mine.c.topic,
        offset.partition == _mine.c.partition,
        offset.claim == _mine.c.claim,
    )
    .values(owner=null(), unreleased_claims=0, attempts=0, attempt_offset=null())
)

# Who holds the row's lock at this moment: the writer's transaction id stands in the row's xmax.
_activity = table(
    "pg_stat_activity",
    column("pid", Integer),
    column("backend_xid"),
    column("application_name", Text),
    column("xact_start", DateTime(timezone=True)),
).alias("activity")
_blocked = partition_offset.alias("blocked")
ABANDONED = (
    select(_activity.c.pid)
    .select_from(_asked)
    .join(
        _blocked,
        and_(
            _blocked.c.consumer_group == GROUP,
            _blocked.c.topic == _asked.c.topic,
            _blocked.c.partition == _asked.c.partition,
        ),
    )
    .join(_activity, _activity.c.backend_xid == literal_column("blocked.xmax"))
    .where(
        _activity.c.application_name.startswith(APPLICATION),
        _activity.c.xact_start < func.clock_timestamp() - cast(bindparam("age"), Interval),
    )
    .distinct()
)
TERMINATE = select(func.pg_terminate_backend(bindparam("pid", type_=Integer)))

# -- read and move ----------------------------------------------------------------------------------------

READ = select(partition_offset).where(offset.consumer_group == GROUP).order_by(offset.topic, offset.partition)
LOCK_ROW = (
    select(partition_offset)
    .where(
        offset.consumer_group == GROUP,
        offset.topic == bindparam("topic", type_=Text),
        offset.partition == bindparam("partition", type_=Integer),
    )
    .with_for_update(key_share=True)
)
# Keeps the owner: whose partition it is has not changed, only where it stands (I5).
MOVE = (
    update(partition_offset)
    .where(
        offset.consumer_group == GROUP,
        offset.topic == bindparam("at_topic", type_=Text),
        offset.partition == bindparam("at_partition", type_=Integer),
    )
    .values(
        next_offset=bindparam("to_offset", type_=BigInteger),
        topic_id=bindparam("to_topic_id", type_=Uuid),
        leader_epoch=null(),  # no record was applied here: an old epoch would report a truncation that never was
        claim=bindparam("to_claim", type_=Uuid),
        epoch=offset.epoch + 1,
        attempts=0,
        attempt_offset=null(),
    )
    .returning(partition_offset)
)
# A pause or resume is a move too: every token of the group is drawn anew, so running workers notice. The rows
# are locked in order first: workers hold them in that order at the same time.
_all = (
    select(offset.topic, offset.partition)
    .where(offset.consumer_group == GROUP)
    .order_by(offset.topic, offset.partition)
    .with_for_update(key_share=True)
    .cte("ordered")
)
REDRAW = (
    update(partition_offset)
    .where(
        offset.consumer_group == GROUP,
        offset.topic == _all.c.topic,
        offset.partition == _all.c.partition,
    )
    .values(claim=func.gen_random_uuid(), epoch=offset.epoch + 1)
)
RECORD_ACTION = insert(admin_action)
RECORD_LOSS = insert(lost_range)
