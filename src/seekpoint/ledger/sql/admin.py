"""SQL statements on whole groups and of operators, as constants.

New groups and topics, pauses, resets, abandoned sessions, and the rows of ``admin_action`` and ``lost_range``.
"""

from __future__ import annotations

from sqlalchemy import (
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
    select,
    table,
    text,
    update,
)
from sqlalchemy.dialects import postgresql

from seekpoint.ledger.sql.partition_offset import (
    APPLICATION,
    ASKED,
    DECIDED,
    FIRST_COLUMNS,
    GROUP,
    NO_ATTEMPT,
    NO_SUSPECTS,
    READ_GROUP,
    array,
    first_rows,
    is_at,
    is_row_of,
    unnest,
)
from seekpoint.ledger.tables import (
    IS_RESET,
    PUBLISHING,
    RELOAD_CLOSED,
    admin_action,
    consumer_group,
    dead_letter,
    group_topic,
    lost_range,
    partition_offset,
    reload_run,
)
from seekpoint.records import State

offset = partition_offset.c

# -- the group -------------------------------------------------------------------------------------------------

INSERT_GROUP = (
    postgresql.insert(consumer_group)
    .values(name=GROUP, version=bindparam("version", type_=Integer))
    .on_conflict_do_nothing()
)
# Not FOR UPDATE, which would shut out the foreign key's own lock (FOR KEY SHARE): a worker that inserts a
# dead letter while it holds its rows would wait for a pause that waits for it.
LOCK_GROUP = READ_GROUP.with_for_update(key_share=True)
UPDATE_GROUP = (
    update(consumer_group)
    .where(consumer_group.c.name == GROUP)
    .values(
        version=bindparam("to_version", type_=Integer),
        cluster_id=bindparam("cluster", type_=Text),
        tables=array("tables", Text),
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

# -- open reloads (workers of the newer version wait as standbys) ------------------------------------------------

_run = reload_run.c
# NULL, and so never greater, where the run is not of this group.
_version_to = _run.version_to[func.array_position(_run.groups, cast(GROUP, Text))]
OPEN_RELOADS = (
    select(_run.id, _run.state, _run.driver, _version_to.label("version"))
    .where(
        _run.state.not_in([literal_column(f"'{state}'") for state in RELOAD_CLOSED]),
        _run.strategy.in_([literal_column(f"'{strategy}'") for strategy in PUBLISHING]),
        _version_to > select(consumer_group.c.version).where(consumer_group.c.name == GROUP).scalar_subquery(),
    )
    .order_by(_run.opened_at)
)
OUTCOME_OF_RUN = select(_run.state, _run.error).where(_run.id == bindparam("its_run", type_=Uuid))

# -- topics that have no row yet -------------------------------------------------------------------------------

NEW = unnest("new", topic=Text, partition=Integer, topic_id=Uuid, start=BigInteger)
INSERT_ROWS = insert(partition_offset).from_select(FIRST_COLUMNS, first_rows(NEW, NEW.c.start, 0))

# -- the tables that records of a topic are written to ---------------------------------------------------------

_topic_row = group_topic.c
TABLES_OF_TOPICS = select(_topic_row.topic, _topic_row.version, _topic_row.tables, _topic_row.replaced).where(
    _topic_row.consumer_group == GROUP, _topic_row.topic == func.any(array("declared_topic", Text))
)
_stored = postgresql.insert(group_topic).values(
    consumer_group=GROUP,
    topic=bindparam("its_topic", type_=Text),
    version=bindparam("its_version", type_=Integer),
    tables=array("its_tables", Text),
)
STORE_TABLES = _stored.on_conflict_do_update(
    index_elements=[_topic_row.consumer_group, _topic_row.topic],
    set_={
        "version": _stored.excluded.version,
        "tables": _stored.excluded.tables,
        "replaced": _topic_row.replaced + bindparam("replacements", type_=Integer),
        "changed_at": func.clock_timestamp(),
    },
)
# By the catalog: `orders` and `public.orders` are one table. Needs no right on the schemas. A name with a dot that is
# not one table's own name has its schema already; a table that is not there is expected where CREATE TABLE puts it.
QUALIFIED = text(
    """
SELECT named.name, coalesce(
    (SELECT n.nspname || '.' || c.relname FROM pg_catalog.pg_class c
     JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
     WHERE c.relname = named.name AND c.relkind IN ('r', 'p', 'v', 'm', 'f') AND c.relpersistence <> 't'
           AND pg_catalog.pg_table_is_visible(c.oid)),
    CASE WHEN strpos(named.name, '.') = 0 THEN current_schema() || '.' || named.name END,
    named.name) AS qualified
FROM unnest(CAST(:declared_name AS text[])) AS named(name)
"""
).columns(name=Text, qualified=Text)

# -- abandoned sessions ---------------------------------------------------------------------------

# The session that holds the row's lock now: its transaction id is the row's xmax.
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
    .select_from(ASKED)
    .join(
        _blocked,
        and_(
            _blocked.c.consumer_group == GROUP,
            _blocked.c.topic == ASKED.c.topic,
            _blocked.c.partition == ASKED.c.partition,
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

# -- read and reset ----------------------------------------------------------------------------------------

READ = select(partition_offset).where(offset.consumer_group == GROUP).order_by(offset.topic, offset.partition)
LOCK_ROW = select(partition_offset).where(*is_at(offset)).with_for_update(key_share=True)
# Keeps the owner: only the position has changed (I5).
RESET_OFFSET = (
    update(partition_offset)
    .where(*is_at(offset, "at_"))
    .values(
        # Of another topic nothing was applied; in front of the first offset, what is there will be.
        first_offset=case(
            (offset.topic_id != bindparam("to_topic_id", type_=Uuid), bindparam("to_offset", type_=BigInteger)),
            else_=func.least(offset.first_offset, bindparam("to_offset", type_=BigInteger)),
        ),
        next_offset=bindparam("to_offset", type_=BigInteger),
        topic_id=bindparam("to_topic_id", type_=Uuid),
        leader_epoch=null(),  # no record was applied here: an old epoch would report a truncation that never was
        token=bindparam("to_token", type_=Uuid),
        epoch=offset.epoch + 1,
        unreleased_claims=0,
        **NO_ATTEMPT,
        **DECIDED,
        **NO_SUSPECTS,
    )
    .returning(partition_offset)
)
# A dead letter's offset lies before the position. Where the position is put in front of it, the record will be read
# again, and what becomes of it then is what counts.
SUPERSEDE = (
    update(dead_letter)
    .where(
        dead_letter.c.consumer_group == GROUP,
        dead_letter.c.topic_id == bindparam("at_topic_id", type_=Uuid),
        dead_letter.c.partition == bindparam("at_partition", type_=Integer),
        dead_letter.c.record_offset >= bindparam("to_offset", type_=BigInteger),
        dead_letter.c.state != literal(State.SUPERSEDED.value, Text),
    )
    .values(
        state=literal(State.SUPERSEDED.value, Text),
        closed_at=func.clock_timestamp(),
        closed_by=bindparam("actor", type_=Text),
        closed_reason=bindparam("reason", type_=Text),
    )
)
# A pause or resume draws new tokens for the whole group, which fences its workers. The rows
# are locked in order first: workers hold them in that order at the same time.
_all = (
    select(offset.topic, offset.partition)
    .where(offset.consumer_group == GROUP)
    .order_by(offset.topic, offset.partition)
    .with_for_update(key_share=True)
    .cte("ordered")
)
REDRAW = update(partition_offset).where(*is_row_of(_all)).values(token=func.gen_random_uuid(), epoch=offset.epoch + 1)
RECORD_ACTION = insert(admin_action).values(consumer_group=GROUP)
LAST_RESET = (
    select(admin_action.c.to_offset, admin_action.c.actor, admin_action.c.reason, admin_action.c.at)
    .where(*is_at(admin_action.c, "at_"), IS_RESET)
    .order_by(admin_action.c.id.desc())
    .limit(literal_column("1"))
)
RECORD_LOSS = insert(lost_range).values(consumer_group=GROUP)

# One session at a time has this name, until its transaction ends: a lock where there may be no row yet to lock.
ALONE = select(func.pg_advisory_xact_lock(func.hashtextextended(bindparam("name", type_=Text), 0)))
