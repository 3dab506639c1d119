"""The statements of a batch on the ledger's tables: constants, each with a snapshot under ``tests/sql``."""

from __future__ import annotations

from sqlalchemy import ARRAY, Text, Uuid, bindparam, exists, func, literal, literal_column, select, update

from seekpoint.ledger.sql.partition_offset import GROUP
from seekpoint.ledger.tables import IS_OPEN, consumer_group, dead_letter, partition_offset, reload_run

_offset, _dead_letter = partition_offset.c, dead_letter.c

# Who holds claims and has not given them back. A batch claims under its run's id, and is not meant.
OWNERS = (
    select(_offset.owner, func.max(_offset.claimed_at).label("claimed_at"))
    .where(
        _offset.consumer_group == GROUP,
        _offset.owner.is_not(None),
        ~exists().where(reload_run.c.id == _offset.owner),
    )
    .group_by(_offset.owner)
    .order_by(_offset.owner)
)
# For a moment, under the group's lock, so that no other session sees it: a claim asks whether the group is paused.
# The pause keeps its reason and its name.
SET_PAUSED = update(consumer_group).where(consumer_group.c.name == GROUP).values(paused=bindparam("to_paused"))
# Open dead letters with a key: they block later records of that key.
HELD_KEYS = select(func.count()).where(
    _dead_letter.consumer_group == GROUP,
    IS_OPEN,
    _dead_letter.key.is_not(None),
    _dead_letter.topic_id == func.any(bindparam("topic_ids", type_=ARRAY(Uuid))),
)
# The driver may stand still between two statements of the last transaction, but not for ever; the statements
# themselves take the time that they need.
BOUND = select(
    func.set_config(
        literal("idle_in_transaction_session_timeout", Text),
        bindparam("idle", type_=Text),
        literal_column("true"),
    )
)

__all__ = ["BOUND", "HELD_KEYS", "OWNERS", "SET_PAUSED"]
