"""SQL statements that purge closed dead letters: constants."""

from __future__ import annotations

from sqlalchemy import DateTime, Text, bindparam, delete, func, literal_column, select

from seekpoint.ledger.sql.partition_offset import GROUP, array
from seekpoint.ledger.tables import IS_OPEN, dead_letter, reprocess_dead_letter, reprocess_run

_dead_letter, _time = dead_letter.c, DateTime(timezone=True)

CLOCK = select(func.clock_timestamp(type_=_time))
_is_purged = (
    _dead_letter.consumer_group == GROUP,
    ~IS_OPEN,
    # A skipped record's was never open.
    func.coalesce(_dead_letter.closed_at, _dead_letter.dead_lettered_at) < bindparam("before", type_=_time),
)
COUNT_CLOSED = (
    select(_dead_letter.state, func.count().label("n"))
    .where(*_is_purged)
    .group_by(_dead_letter.state)
    .order_by(_dead_letter.state)
)
# Those of ended runs over a range: no purge deletes them.
COUNT_RUN_DEAD_LETTERS = (
    select(func.count())
    .select_from(reprocess_dead_letter)
    .join(reprocess_run, reprocess_run.c.id == reprocess_dead_letter.c.run)
    .where(
        reprocess_run.c.consumer_group == GROUP,
        reprocess_run.c.state != literal_column("'open'"),
        reprocess_dead_letter.c.dead_lettered_at < bindparam("before", type_=_time),
    )
)
# One that another session has locked may be opened again there, and is left to the next purge.
_unlocked = (
    select(_dead_letter.id)
    .where(*_is_purged, _dead_letter.state == func.any(array("states", Text)))
    .with_for_update(skip_locked=True)
)
_deleted = delete(dead_letter).where(_dead_letter.id.in_(_unlocked)).returning(_dead_letter.state).cte("deleted")
DELETE_CLOSED = select(_deleted.c.state, func.count().label("n")).group_by(_deleted.c.state).order_by(_deleted.c.state)
