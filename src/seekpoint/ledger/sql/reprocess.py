"""SQL statements of runs that apply a bounded range of a partition again.

A run's row is locked after the group's and the partition's. Nothing here changes a row of ``partition_offset``.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Integer, Text, Uuid, bindparam, case, func, insert, literal_column, select, update

from seekpoint.ledger.sql.partition_offset import GROUP, is_at
from seekpoint.ledger.tables import IS_LEFT_OUT, dead_letter, reprocess_dead_letter, reprocess_run

_run, _dead = reprocess_run.c, reprocess_dead_letter.c
_is_run = _run.id == bindparam("its_run", type_=Uuid)
_is_open = _run.state == literal_column("'open'")
_transaction = func.pg_current_xact_id().cast(Text)

# The newest over exactly this range, into the same tables.
LAST_RUN = (
    select(reprocess_run)
    .where(
        *is_at(_run),
        _run.topic_id == bindparam("its_topic_id", type_=Uuid),
        _run.from_offset == bindparam("its_from", type_=BigInteger),
        _run.to_offset == bindparam("its_to", type_=BigInteger),
        _run.target_schema.is_not_distinct_from(bindparam("its_schema", type_=Text)),
    )
    .order_by(_run.opened_at.desc(), _run.id)
    .limit(literal_column("1"))
)
_GIVEN = ["id", "topic", "partition", "topic_id", "from_offset", "to_offset", "next_offset", "target_schema"]
INSERT_RUN = insert(reprocess_run).values(
    consumer_group=GROUP,
    state=literal_column("'open'"),
    **{name: bindparam(f"its_{name}", type_=_run[name].type) for name in [*_GIVEN, "version", "actor", "reason"]},
)
ABANDON_RUN = (
    update(reprocess_run)
    .where(_is_run, _is_open)
    .values(state=literal_column("'abandoned'"), changed_at=func.clock_timestamp())
)
GET_RUN = select(reprocess_run).where(_is_run)
LOCK_RUN = GET_RUN.with_for_update()

# In the transaction that has written the rows. It changes no row where a COMMIT was sent since the transaction began,
# or where the run is not where the records were read from (I1, I3, of the run).
_to = bindparam("moving_to", type_=BigInteger)
ADVANCE_RUN = (
    update(reprocess_run)
    .where(
        _is_run,
        _is_open,
        _run.next_offset == bindparam("moving_from", type_=BigInteger),
        _transaction == bindparam("transaction", type_=Text),
    )
    .values(
        next_offset=_to,
        records=_run.records + bindparam("applied", type_=BigInteger),
        dead_letters=_run.dead_letters + bindparam("failed", type_=BigInteger),
        state=case((_to == _run.to_offset, literal_column("'done'")), else_=_run.state),
        changed_at=func.clock_timestamp(),
    )
)

INSERT_RUN_DEAD_LETTERS = insert(reprocess_dead_letter)
RUN_DEAD_LETTERS = (
    select(_dead.record_offset, _dead.key, _dead.state, _dead.cause, _dead.error, _dead.sqlstate)
    .where(_dead.run == bindparam("its_run", type_=Uuid))
    .order_by(_dead.record_offset)
    .limit(bindparam("most", type_=Integer))
)
# The keys that the run's own dead letters block, with the first offset of each.
BLOCKED_KEYS = (
    select(_dead.key, func.min(_dead.record_offset).label("first"))
    .where(_dead.run == bindparam("its_run", type_=Uuid), _dead.key.is_not(None))
    .group_by(_dead.key)
)

# The group's own dead letters of a range whose records are not applied: a replay does so, or they were given up.
LEFT_OUT = select(dead_letter.c.record_offset, dead_letter.c.state).where(
    *is_at(dead_letter.c),
    dead_letter.c.topic_id == bindparam("its_topic_id", type_=Uuid),
    dead_letter.c.record_offset >= bindparam("from_offset", type_=BigInteger),
    dead_letter.c.record_offset < bindparam("to_offset", type_=BigInteger),
    IS_LEFT_OUT,
)
