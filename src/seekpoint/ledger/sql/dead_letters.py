"""The statements on ``dead_letter``, as constants; each has a snapshot under ``tests/sql``."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    DateTime,
    Integer,
    LargeBinary,
    Text,
    Uuid,
    bindparam,
    case,
    cast,
    distinct,
    func,
    literal_column,
    null,
    or_,
    select,
    true,
    tuple_,
    update,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.sql.elements import ColumnElement

from seekpoint.ledger.sql.partition_offset import ASKED, GROUP, array, is_row_of
from seekpoint.ledger.tables import IS_OPEN, dead_letter, partition_offset

_time = DateTime(timezone=True)
_dead_letter = dead_letter.c
_offset = partition_offset.c
_OWN = {"id", "consumer_group", "dead_lettered_at", "replays", "replayed_at"}
_OWN |= {"replay_error", "replay_traceback", "closed_at", "closed_by", "closed_reason"}
_GIVEN = [column for column in dead_letter.columns if column.name not in _OWN]

# Run once per record, in a pipeline: values of many megabytes would make one array of them larger than a message
# may be, and arrays of headers are ragged. A record that was passed before (the position was reset, or a
# failover lost commits) opens its dead letter again: earlier decisions were about another reading of it.
_insert = (
    postgresql.insert(dead_letter)
    .inline()
    .values(consumer_group=GROUP, **{c.name: bindparam(f"its_{c.name}", type_=c.type) for c in _GIVEN})
)
INSERT_DEAD_LETTERS = _insert.on_conflict_do_update(
    constraint="dead_letter_record_key",
    set_={
        **{column.name: _insert.excluded[column.name] for column in _GIVEN},
        "dead_lettered_at": func.clock_timestamp(),
        "replays": 0,
        **dict.fromkeys(("replayed_at", "replay_error", "replay_traceback"), null()),
        **dict.fromkeys(("closed_at", "closed_by", "closed_reason"), null()),
    },
)

# The keys that have an open dead letter, of the topic as it is today: offsets of an earlier one come before nothing.
# From key to key along dead_letter_key_idx, one descent each: of a key that blocks 300,000 records, one is read. Each
# step asks for the next entry of the index, whosever it is, and then whether it is of this partition: with the
# partition among the conditions, a planner without statistics would find all of its dead letters first, and sort them.
_today = (
    select(_offset.topic_id)
    .where(*is_row_of(ASKED))
    .limit(literal_column("1"))  # keeps it a lookup per row
    .lateral("today")
)
_step = (
    select(
        ASKED.c.topic,
        ASKED.c.partition,
        _today.c.topic_id,
        cast(null(), LargeBinary).label("key"),
        cast(literal_column("''"), LargeBinary).label("hash"),  # before all hashes
        cast(null(), BigInteger).label("first"),
    )
    .select_from(ASKED.join(_today, true()))
    .cte("step", recursive=True)
)
_place = (_dead_letter.consumer_group, _dead_letter.topic_id, _dead_letter.partition, func.sha256(_dead_letter.key))
_next = (
    select(*_place[:3], _dead_letter.key, _place[3].label("hash"), _dead_letter.record_offset)
    .where(
        tuple_(*_place) > tuple_(GROUP, _step.c.topic_id, _step.c.partition, _step.c.hash),
        _dead_letter.key.is_not(None),
        IS_OPEN,
    )
    .order_by(*_place, _dead_letter.record_offset)
    .limit(literal_column("1"))
    .lateral("next")
)
_steps = _step.union_all(
    select(_step.c.topic, _step.c.partition, _step.c.topic_id, _next.c.key, _next.c.hash, _next.c.record_offset)
    .select_from(_step.join(_next, true()))
    .where(
        _next.c.consumer_group == GROUP,
        _next.c.topic_id == _step.c.topic_id,
        _next.c.partition == _step.c.partition,
    )
)
OPEN_KEYS = select(_steps.c.topic, _steps.c.partition, _steps.c.key, _steps.c.first).where(_steps.c.key.is_not(None))

COUNT_OPEN = (
    select(_dead_letter.topic, _dead_letter.partition, func.count().label("n"))
    .where(_dead_letter.consumer_group == GROUP, IS_OPEN)
    .group_by(_dead_letter.topic, _dead_letter.partition)
    .order_by(_dead_letter.topic, _dead_letter.partition)
)

# -- for people ------------------------------------------------------------------------------------------------


def _whole(value: ColumnElement[Any]) -> list[ColumnElement[Any]]:
    """A dead letter's columns; the value may be left out, its size is always there."""
    columns: list[ColumnElement[Any]] = []
    for each in dead_letter.columns:
        if each.name == "value":
            columns += [value.label("value"), func.octet_length(each).label("size")]
        elif each.name != "consumer_group":
            columns.append(each)
    return columns


def whole_dead_letter() -> list[ColumnElement[Any]]:
    """Every column of a dead letter."""
    return _whole(_dead_letter.value)


_mine = (_dead_letter.consumer_group == GROUP, _dead_letter.id == bindparam("id", type_=BigInteger))
GET_DEAD_LETTER = select(*whole_dead_letter()).where(*_mine)
LOCK_DEAD_LETTER = GET_DEAD_LETTER.with_for_update()
FIND_DEAD_LETTER = select(_dead_letter.topic, _dead_letter.partition).where(*_mine)

# Ids are unique among all groups: people need to type nothing else.
GROUP_OF_DEAD_LETTER = select(_dead_letter.consumer_group).where(_dead_letter.id == bindparam("id", type_=BigInteger))


def _if_given(name: str, kind: Any, condition: ColumnElement[bool]) -> ColumnElement[bool]:
    return or_(bindparam(name, type_=kind).is_(None), condition)


_order = (_dead_letter.topic, _dead_letter.partition, _dead_letter.record_offset, _dead_letter.id)
# The exception's type, with which an error's text begins: `type: message`, `type`, or `type (note)`; NULL for others.
_exception = func.substring(_dead_letter.error, r"^[^\s:]+(?=:|$| \()")
_key = cast(bindparam("key", type_=LargeBinary), LargeBinary)  # of bytes the driver names no type
_conditions = (
    _dead_letter.consumer_group == GROUP,
    _if_given("topic", Text, _dead_letter.topic == bindparam("topic", type_=Text)),
    _if_given("partition", Integer, _dead_letter.partition == bindparam("partition", type_=Integer)),
    _if_given("states", ARRAY(Text), _dead_letter.state == func.any(array("states", Text))),
    _if_given("cause", Text, _dead_letter.cause == bindparam("cause", type_=Text)),
    _if_given("from_offset", BigInteger, _dead_letter.record_offset >= bindparam("from_offset", type_=BigInteger)),
    _if_given("to_offset", BigInteger, _dead_letter.record_offset < bindparam("to_offset", type_=BigInteger)),
    _if_given("error", Text, func.strpos(_dead_letter.error, bindparam("error", type_=Text)) > 0),
    _if_given("exception", Text, _exception == bindparam("exception", type_=Text)),
    _if_given("error_line", Text, _dead_letter.error_line == bindparam("error_line", type_=Text)),
    or_(_key.is_(None), _dead_letter.key == _key),
    _if_given("since", _time, _dead_letter.dead_lettered_at >= bindparam("since", type_=_time)),
)
IN_ORDER = (
    select(_dead_letter.id)
    .where(_dead_letter.consumer_group == GROUP, _dead_letter.id == func.any(array("ids", BigInteger)))
    .order_by(*_order)
)
CHOSEN_DEAD_LETTERS = (
    select(*_whole(cast(null(), LargeBinary)))
    .where(_dead_letter.consumer_group == GROUP, _dead_letter.id == func.any(array("ids", BigInteger)))
    .order_by(*_order)
)
# By its place, not by its id: the last dead letter of the page before may have been deleted meanwhile.
_after = [bindparam(f"after_{each.name}", type_=each.type) for each in _order]
LIST_DEAD_LETTERS = (
    select(*_whole(case((bindparam("with_values", type_=Boolean), _dead_letter.value))))
    .where(
        *_conditions,
        _if_given("after_id", BigInteger, tuple_(*_order) > tuple_(*_after)),
    )
    .order_by(*_order)
    .limit(bindparam("most", type_=BigInteger))
)
# Grouped in a query around it: the pattern of the exception is a parameter, and another one in each clause.
_failed = (
    select(
        *(_dead_letter.cause, _exception.label("exception"), _dead_letter.error_line, _dead_letter.topic),
        *(_dead_letter.id, _dead_letter.dead_lettered_at, _dead_letter.error),
    )
    .where(*_conditions)
    .subquery("failed")
)
_failure = (_failed.c.cause, _failed.c.exception, _failed.c.error_line)
DEAD_LETTERS_BY_CAUSE = (
    select(
        *_failure,
        func.count().label("count"),
        func.array_agg(distinct(_failed.c.topic)).label("topics"),
        func.min(_failed.c.dead_lettered_at).label("first_at"),
        func.max(_failed.c.dead_lettered_at).label("last_at"),
        func.min(_failed.c.id).label("first_id"),
        func.min(_failed.c.error).label("error"),
    )
    .group_by(*_failure)
    .order_by(func.count().desc(), func.min(_failed.c.id))
)

# -- replay and discard  -----------------------------------------------------------------------------------------

# The topic id is the dead letter's own: a key's order means something within one life of the topic. Grouped, so that
# the planner does not look for the least offset by walking over all keys.
FIRST_OF_KEY = (
    select(func.min(_dead_letter.record_offset))
    .where(
        _dead_letter.consumer_group == GROUP,
        _dead_letter.topic_id == bindparam("topic_id", type_=Uuid),
        _dead_letter.partition == bindparam("partition", type_=Integer),
        func.sha256(_dead_letter.key) == func.sha256(bindparam("key", type_=LargeBinary)),
        _dead_letter.key == bindparam("key", type_=LargeBinary),
        IS_OPEN,
    )
    .group_by(_dead_letter.key)
)
_replayed = bindparam("replayed", type_=Boolean)
CLOSE_DEAD_LETTER = (
    update(dead_letter)
    .where(_dead_letter.consumer_group == GROUP, _dead_letter.id == bindparam("closing", type_=BigInteger), IS_OPEN)
    .values(
        state=bindparam("to_state", type_=Text),
        closed_at=func.clock_timestamp(),
        closed_by=bindparam("actor", type_=Text),
        closed_reason=bindparam("reason", type_=Text),
        replays=_dead_letter.replays + case((_replayed, 1), else_=0),
        replayed_at=case((_replayed, func.clock_timestamp()), else_=_dead_letter.replayed_at),
    )
)
FAILED_AGAIN = (
    update(dead_letter)
    .where(_dead_letter.consumer_group == GROUP, _dead_letter.id == bindparam("failing", type_=BigInteger), IS_OPEN)
    .values(
        replays=_dead_letter.replays + 1,
        replayed_at=func.clock_timestamp(),
        replay_error=bindparam("its_error", type_=Text),
        replay_traceback=bindparam("its_traceback", type_=Text),
    )
)
