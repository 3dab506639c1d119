"""SQL statements of requests for replays, which running workers carry out."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Double,
    Integer,
    Interval,
    Text,
    Uuid,
    and_,
    bindparam,
    case,
    func,
    insert,
    literal_column,
    null,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.sql.elements import ColumnElement

from seekpoint.ledger.sql.partition_offset import GROUP
from seekpoint.ledger.tables import consumer_group, replay_request, worker

_request = replay_request.c
_now = func.clock_timestamp()
_requested: ColumnElement[str] = literal_column("'requested'")
_started: ColumnElement[str] = literal_column("'started'")
_failed: ColumnElement[str] = literal_column("'failed'")
_owner = bindparam("its_owner", type_=Uuid)
_is_mine = (
    _request.consumer_group == GROUP,
    _request.id == bindparam("its_id", type_=BigInteger),
    _request.state == _started,
    _request.worker == _owner,
)

# The group's version is the request's; a worker of another one does not take it.
INSERT_REQUEST = (
    insert(replay_request)
    .from_select(
        ["consumer_group", "version", "dead_letters", "state", "actor", "reason"],
        select(
            consumer_group.c.name,
            consumer_group.c.version,
            bindparam("its_dead_letters", type_=ARRAY(BigInteger)),
            _requested,
            bindparam("its_actor", type_=Text),
            bindparam("its_reason", type_=Text),
        ).where(consumer_group.c.name == GROUP),
    )
    .returning(_request.id)
)
# Workers of the group's version that were seen in the last minute, as the view group_status counts them.
COUNT_WORKERS = select(func.count()).where(
    worker.c.consumer_group == GROUP,
    worker.c.version == bindparam("its_version", type_=Integer),
    worker.c.state != literal_column("'ended'"),
    worker.c.seen_at > func.clock_timestamp() - literal_column("interval '1 minute'", Interval),
)
GET_REQUEST = select(replay_request).where(
    _request.consumer_group == GROUP, _request.id == bindparam("its_id", type_=BigInteger)
)
_group = select(consumer_group.c.name).where(consumer_group.c.name == GROUP)
# Not while the group is paused, and by workers of its version alone. One that this process has started, and does not
# have in hand, is one whose COMMIT had no answer when it was taken.
_free = (
    select(_request.id)
    .where(
        _request.consumer_group == GROUP,
        or_(_request.state == _requested, and_(_request.state == _started, _request.worker == _owner)),
        _group.where(
            consumer_group.c.version == _request.version,
            consumer_group.c.version == bindparam("its_version"),
            consumer_group.c.paused.is_(False),
        ).exists(),
    )
    .order_by(_request.id)
    .limit(literal_column("1"))
)
IS_REQUESTED = select(
    _free.exists().label("is_requested"), _group.where(consumer_group.c.paused).exists().label("is_paused")
)
TAKE_REQUEST = (
    update(replay_request)
    .where(_request.id == _free.with_for_update(skip_locked=True).scalar_subquery())
    .values(state=_started, worker=_owner, started_at=_now, seen_at=_now)
    .returning(
        *(_request.id, func.coalesce(_request.remaining, _request.dead_letters).label("dead_letters")),
        *(_request.actor, _request.reason, _request.replayed, _request.failed, _request.refused),
        _request.refusals,
    )
)
REQUEST_SEEN = update(replay_request).where(*_is_mine).values(seen_at=_now)
_state = bindparam("to_state", type_=Text)
_is_handed_back = _state == _requested
# Changes no row where another worker has found it abandoned.
RECORD_REQUEST = (
    update(replay_request)
    .where(*_is_mine)
    .values(
        **{name: bindparam(f"were_{name}", type_=BigInteger) for name in ("replayed", "failed", "refused")},
        state=_state,
        error=bindparam("its_error", type_=Text),
        remaining=bindparam("its_remaining", type_=ARRAY(BigInteger)),
        refusals=bindparam("its_refusals", type_=ARRAY(Text)),
        worker=case((_is_handed_back, null()), else_=_request.worker),
        started_at=case((_is_handed_back, null()), else_=_request.started_at),
        seen_at=_now,
        ended_at=case((_state.in_([literal_column("'done'"), _failed]), _now)),
    )
)
_failing = {"state": _failed, "error": bindparam("its_error", type_=Text), "ended_at": _now}
FAIL_ABANDONED = (
    update(replay_request)
    .where(
        _request.consumer_group == GROUP,
        _request.state == _started,
        _request.seen_at < _now - func.make_interval(0, 0, 0, 0, 0, 0, bindparam("age", type_=Double)),
    )
    .values(**_failing)
)
# Versions only rise: no worker will be of the request's again.
FAIL_OUTDATED = (
    update(replay_request)
    .where(
        _request.consumer_group == GROUP,
        _request.state == _requested,
        _group.where(consumer_group.c.version > _request.version).exists(),
    )
    .values(**_failing)
)
