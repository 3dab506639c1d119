"""SQL statements of a worker, as constants: what varies is passed in arrays.

Statements of operators are in :mod:`seekpoint.ledger.sql.admin`.

Each is rendered to a snapshot under ``tests/sql``; those that run per batch have an EXPLAIN test. Rows are
always locked in the order (topic, partition): callers sort the arrays, and the scans keep that order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from psycopg.sql import Literal
from sqlalchemy import (
    ARRAY,
    BigInteger,
    DateTime,
    Double,
    Integer,
    Interval,
    Text,
    Uuid,
    and_,
    bindparam,
    case,
    cast,
    column,
    false,
    func,
    literal,
    literal_column,
    null,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.sql.elements import BindParameter, ColumnElement
from sqlalchemy.sql.selectable import CTE, LateralFromClause, Select, TableValuedAlias

from seekpoint.ledger.sql import arrays as columns_of
from seekpoint.ledger.tables import consumer_group, partition_offset

offset = partition_offset.c
GROUP: BindParameter[str] = bindparam("group", type_=Text)


def constant(value: str) -> ColumnElement[str]:
    """A text that never varies, in the statement itself: the fast path sends no parameters but those it is given."""
    return literal_column(Literal(value).as_string(), Text)


ZERO: ColumnElement[int] = literal_column("0", Integer)
ONE: ColumnElement[int] = literal_column("1", Integer)


def array(name: str, of: Any) -> BindParameter[Any]:
    return bindparam(name, type_=ARRAY(of))


def unnest(alias: str, **columns: Any) -> TableValuedAlias:
    """``unnest((SELECT :alias_a), (SELECT :alias_b), ...) AS alias(a, b, ...)``: one row per element.

    Through a sub-select the planner does not see the arrays' lengths and assumes ten elements: it looks each row up by
    the primary key, for one partition and for a thousand, and never scans the table.
    """
    arrays = [select(array(f"{alias}_{name}", kind)).scalar_subquery() for name, kind in columns.items()]
    named: list[ColumnElement[Any]] = [column(name, kind) for name, kind in columns.items()]
    return func.unnest(*arrays).table_valued(*named).render_derived(name=alias)


def arrays(given: TableValuedAlias, rows: Sequence[Sequence[Any]]) -> dict[str, list[Any]]:
    """The parameters of an :func:`unnest`: rows of values, in the order of its columns, as one array a column."""
    return columns_of(rows, *_names(given))


@lru_cache
def _names(given: TableValuedAlias) -> tuple[str, ...]:
    """The parameters of an :func:`unnest`, in the order of its columns."""
    return tuple(f"{given.name}_{each.name}" for each in given.c)


def is_row_of(given: TableValuedAlias | CTE) -> tuple[ColumnElement[bool], ...]:
    """The partition's row, by its primary key: of this group, unless the given rows name theirs."""
    return (
        offset.consumer_group == given.c.get("consumer_group", GROUP),
        offset.topic == given.c.topic,
        offset.partition == given.c.partition,
    )


def is_at(columns: Any, prefix: str = "") -> tuple[ColumnElement[bool], ...]:
    """The rows of one partition, whose topic and number are parameters of this prefix."""
    return (
        columns.consumer_group == GROUP,
        columns.topic == bindparam(f"{prefix}topic", type_=Text),
        columns.partition == bindparam(f"{prefix}partition", type_=Integer),
    )


def lock_each(name: str, given: TableValuedAlias, *conditions: ColumnElement[bool]) -> LateralFromClause:
    """The row of each given partition, locked, where the conditions are met.

    A lateral lock per row keeps the plan a loop over the primary key, whatever the statistics say of a table of more
    than a few pages; one of up to about 100 analyzed rows is read whole for each partition, which takes below 1 ms.
    """
    row: Select[Any] = select(literal_column("1").label("one")).where(*is_row_of(given), *conditions)
    return row.with_for_update(key_share=True).lateral(name)


def _to_update(name: str, rows: TableValuedAlias, locked: LateralFromClause | None = None) -> CTE:
    """The rows, those that could be locked where a lock is asked for, each with the group's name: to join an UPDATE.

    The planner must not see the name as a constant: where it knows nothing of a table yet, it takes the rows of a
    group for a handful, and would read all of them instead of looking each one up.
    """
    source = rows if locked is None else rows.join(locked, true())
    query = select(GROUP.label("consumer_group"), rows).select_from(source)
    return query.cte(name).prefix_with("MATERIALIZED")


# The prefix of the application_name of all workers' transactions: the next owner and operators find them by it.
APPLICATION = "seekpoint "

# The prefix of a refusal. It is raised inside SQL, by casting a text that is no number (22P02 quotes it): in a
# pipeline COMMIT is sent before Python could compare a count.
REFUSAL = "seekpoint: "
ENDED = "the transaction that held the rows has ended"


# A reset clears the suspect range.
NO_SUSPECTS: Mapping[str, Any] = {"suspect_end": null(), "suspect_part_end": null(), "suspect_running": false()}

# An advance or a reset clears the attempts at the record at the old position.
NO_ATTEMPT: Mapping[str, Any] = {
    "attempt_offset": null(),
    "attempts": ZERO,
    "attempt_crashes": ZERO,
    "attempt_running": false(),
    "attempt_error": null(),
    "retry_at": null(),
    "attempts_allowed": null(),
    "attempt_policy": null(),
}
# A claim, a reset and a commit end a stop: the next read finds the cause again, if there still is one. It may find a
# truncated log longer than it was: where it ended is kept until a reset or a commit.
NO_STOP: Mapping[str, Any] = {
    "stop_kind": null(),
    "stop_offset": null(),
    "stop_message": null(),
    "stop_choices": null(),
    "stopped_at": null(),
}
DECIDED: Mapping[str, Any] = {**NO_STOP, "stop_log_end": null()}


def _refuse(problem: str, count: ColumnElement[int]) -> ColumnElement[int]:
    return cast(constant(f"{REFUSAL}{problem}") + count.cast(Text), Integer)


def _expected(count: ColumnElement[int], problem: str) -> ColumnElement[int]:
    """How many rows they are; refused where they are not as many as ``expected``."""
    return case((count == bindparam("expected", type_=Integer), count), else_=_refuse(problem, count))


# -- one transaction of a worker (I1, I2, I3) ------------------------------------------------------------

HELD = unnest("held", topic=Text, partition=Integer, token=Uuid, from_offset=BigInteger)
_locked = lock_each(
    "locked",
    HELD,
    offset.token == HELD.c.token,  # I2: only the holder of the current claim
    offset.next_offset == HELD.c.from_offset,  # I3: only from the exact position that was read
)
_NOT_EXPECTED = "claim or position is not the expected one; rows"


def set_local(name: str) -> ColumnElement[Any]:
    """Change a setting until the transaction ends, to the parameter of its name."""
    return func.set_config(constant(name), bindparam(name, type_=Text), true()).label(name)


def _hold(*settings: str) -> Any:
    """Lock the rows of all active partitions where claim and position are as expected, or raise.

    The transaction's settings are sent along, to save a round trip. Returns the transaction's id.
    """
    rows = select(func.count().label("n")).select_from(HELD.join(_locked, true())).cte("rows")
    return select(
        _expected(rows.c.n, f"{_NOT_EXPECTED} held: ").label("held"),
        func.pg_current_xact_id().cast(Text).label("transaction"),
        *map(set_local, settings),
    )


_SETTINGS = ("application_name", "synchronous_commit", "idle_in_transaction_session_timeout")
HOLD = _hold(*_SETTINGS)
# transaction_timeout came with Postgres 17; older servers would refuse the name.
HOLD_17 = _hold(*_SETTINGS, "transaction_timeout")

MOVING = unnest(
    "moving",
    topic=Text,
    partition=Integer,
    token=Uuid,
    from_offset=BigInteger,
    to_offset=BigInteger,
    leader_epoch=Integer,
    record_time=DateTime(timezone=True),
)


def _moved(moving: CTE) -> CTE:
    """How many positions were moved, where token and position are as expected."""
    # After a single-record attempt or a part of a suspect range: later records may still crash the process. The next
    # owner has to apply them in parts, too, up to the end of the range.
    is_careful = and_(
        or_(offset.attempt_running, offset.suspect_running),
        or_(offset.suspect_end.is_(None), moving.c.to_offset < offset.suspect_end),
    )
    moved = (
        update(partition_offset)
        .where(
            *is_row_of(moving),
            offset.token == moving.c.token,  # I2
            offset.next_offset == moving.c.from_offset,  # I3
        )
        .values(
            next_offset=moving.c.to_offset,
            leader_epoch=moving.c.leader_epoch,
            record_time=func.coalesce(moving.c.record_time, offset.record_time),
            committed_at=func.clock_timestamp(),
            unreleased_claims=case((is_careful, offset.unreleased_claims), else_=ZERO),
            suspect_end=case((is_careful, offset.suspect_end)),
            suspect_part_end=case((and_(is_careful, ~offset.suspect_running), offset.suspect_part_end)),
            suspect_running=false(),
            **NO_ATTEMPT,
            **DECIDED,
        )
        .returning(literal_column("1").label("one"))
        .cte("moved")
    )
    return select(func.count().label("n")).select_from(moved).cte("rows")


_count = _moved(_to_update("moving", MOVING))
_transaction = bindparam("transaction", type_=Text)

# It also refuses if the transaction is not the one that hold began: after a handler's COMMIT, rows and offset would
# not be committed together. After it a worker only records attempts, in the same transaction.
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
        else_=_refuse(f"{_NOT_EXPECTED} advanced: ", _count.c.n),
    ).label("moved")
)

_held = lock_each(
    "locked",
    MOVING,
    offset.token == MOVING.c.token,  # I2
    offset.next_offset == MOVING.c.from_offset,  # I3
)


def _hold_and_advance(*settings: str) -> Any:
    """Lock the rows of a batch's partitions in order and move them, or raise; the transaction's rows come after it."""
    rows = _moved(_to_update("moving", MOVING, _held))
    moved = _expected(rows.c.n, f"{_NOT_EXPECTED} advanced: ").label("moved")
    return select(moved, *map(set_local, settings))


HOLD_AND_ADVANCE = _hold_and_advance(*_SETTINGS)
HOLD_AND_ADVANCE_17 = _hold_and_advance(*_SETTINGS, "transaction_timeout")


def _all_or_refused(changed: CTE, why: str, label: str) -> Select[Any]:
    """How many rows were changed; refused with ``why`` where they are not as many as ``expected``."""
    rows = select(func.count().label("n")).select_from(changed).cte("rows")
    return select(_expected(rows.c.n, why).label(label))


# An attempt at the record at the position. One that is about to begin has no error yet; error and time of the previous
# one are kept until its own outcome is known. Only the token is compared: the position may have been advanced in this
# transaction. The rows are locked in order first.
NOTED = unnest(
    "noted",
    topic=Text,
    partition=Integer,
    token=Uuid,
    offset=BigInteger,
    number=Integer,
    error=Text,
    wait=Double,
    allowed=Integer,
    policy=Text,
)
_notable = _to_update("ordered", NOTED, lock_each("tried", NOTED, offset.token == NOTED.c.token))  # I2
_again = offset.attempt_offset == _notable.c.offset
_begins = _notable.c.error.is_(None)
_written = (
    update(partition_offset)
    .where(*is_row_of(_notable), offset.token == _notable.c.token)
    .values(
        attempt_offset=_notable.c.offset,
        attempts=_notable.c.number,
        attempt_crashes=case((_again, offset.attempt_crashes), else_=ZERO),
        attempt_running=_begins,
        attempt_error=func.coalesce(_notable.c.error, case((_again, offset.attempt_error))),
        retry_at=case(
            (and_(_begins, _again), offset.retry_at),
            else_=func.clock_timestamp() + _notable.c.wait * literal_column("interval '1 second'", Interval),
        ),
        attempts_allowed=_notable.c.allowed,
        attempt_policy=_notable.c.policy,
    )
    .returning(literal_column("1").label("one"))
    .cte("written")
)
RECORD_ATTEMPTS = _all_or_refused(_written, "the claim is not the expected one; attempts noted: ", "noted")

# A suspect range, its end stored once; and the part of it that is about to be tried, if any. No end: it is over.
SUSPECTED = unnest("suspected", topic=Text, partition=Integer, token=Uuid, end_offset=BigInteger, part_end=BigInteger)
_range = _to_update("ordered", SUSPECTED, lock_each("own", SUSPECTED, offset.token == SUSPECTED.c.token))  # I2
_watched = (
    update(partition_offset)
    .where(*is_row_of(_range), offset.token == _range.c.token)
    .values(
        suspect_end=case(
            (and_(_range.c.end_offset.is_not(None), offset.suspect_end > offset.next_offset), offset.suspect_end),
            else_=_range.c.end_offset,
        ),
        suspect_part_end=_range.c.part_end,
        suspect_running=_range.c.part_end.is_not(None),
        unreleased_claims=case((_range.c.end_offset.is_(None), ZERO), else_=offset.unreleased_claims),
    )
    .returning(literal_column("1").label("one"))
    .cte("watched")
)
RECORD_SUSPECTS = _all_or_refused(_watched, "the claim is not the expected one; ranges noted: ", "suspected")

# -- claim, read, release ---------------------------------------------------------------------------------

CONFIGURE = select(  # claims and resets are durable whatever batches are, and their waits are bounded
    func.set_config(constant("synchronous_commit"), constant("on"), true()),
    func.set_config(constant("lock_timeout"), bindparam("lock_timeout", type_=Text), true()),
    func.set_config(constant("application_name"), bindparam("application_name", type_=Text), true()),
    # A record's time near year 1 or 9999 is beyond what Python holds in a zone other than UTC.
    func.set_config(constant("TimeZone"), constant("UTC"), true()),
)

READ_GROUP = select(consumer_group).where(consumer_group.c.name == GROUP)
SHARE_GROUP = READ_GROUP.with_for_update(read=True)
_named = unnest("named", topic=Text)
_first_row = (
    select(offset.topic)
    .where(offset.consumer_group == GROUP, offset.topic == _named.c.topic)
    .order_by(offset.partition)
    .limit(literal_column("1"))
    .lateral("known")
)
KNOWN_TOPICS = select(_first_row.c.topic).select_from(_named.join(_first_row, literal(True)))

FIRST_COLUMNS = ["consumer_group", "topic", "partition", "topic_id", "first_offset", "next_offset", "token", "epoch"]


def first_rows(given: TableValuedAlias, start: ColumnElement[int], epoch: int) -> Select[Any]:
    """Values of ``FIRST_COLUMNS`` for partitions that have no row yet, in the order in which rows are locked.

    The server draws the tokens: random, and so unique across failovers (I5).
    """
    place, token = (given.c.topic, given.c.partition), func.gen_random_uuid()
    return select(GROUP, *place, given.c.topic_id, start, start, token, literal_column(str(epoch))).order_by(*place)


WANTED = unnest("wanted", topic=Text, partition=Integer, topic_id=Uuid)
_claim = postgresql.insert(partition_offset).from_select(
    [*FIRST_COLUMNS, "owner", "claimed_at"],
    # A row that is missing beside others is an added partition: from its beginning.
    first_rows(WANTED, ZERO, 1).add_columns(bindparam("owner", type_=Uuid), func.clock_timestamp()),
)
_seconds_until_retry = func.greatest(
    func.extract("epoch", offset.retry_at - func.clock_timestamp()).cast(Double), literal_column("0")
)
# The previous owner is this process, or has released the partition: an attempt that has not ended was cancelled, and is
# not counted. Any other owner has crashed in it, or must be treated so.
_alive = or_(offset.owner.is_(None), offset.owner == _claim.excluded.owner)
# One statement inserts or updates, in lock order, and answers the committed position even where it had to
# wait for the transaction that moved it. A row of another topic id is left alone and not answered.
CLAIM = _claim.on_conflict_do_update(
    index_elements=[offset.consumer_group, offset.topic, offset.partition],
    set_={
        "token": _claim.excluded.token,
        "epoch": offset.epoch + ONE,
        "owner": _claim.excluded.owner,
        "claimed_at": _claim.excluded.claimed_at,
        "unreleased_claims": case((_alive, offset.unreleased_claims), else_=offset.unreleased_claims + ONE),
        "attempts": case((and_(offset.attempt_running, _alive), offset.attempts - ONE), else_=offset.attempts),
        "attempt_crashes": case(
            (and_(offset.attempt_running, ~_alive), offset.attempt_crashes + ONE), else_=offset.attempt_crashes
        ),
        "attempt_error": case((and_(offset.attempt_running, ~_alive), null()), else_=offset.attempt_error),
        "attempt_running": false(),
        **NO_STOP,
        "suspect_part_end": case((and_(offset.suspect_running, _alive), null()), else_=offset.suspect_part_end),
        "suspect_running": false(),
    },
    where=offset.topic_id == _claim.excluded.topic_id,
).returning(
    offset.topic,
    offset.partition,
    # As Claim has them; without the topic id, which is the one that was asked for.
    offset.token,
    offset.epoch,
    offset.next_offset,
    offset.leader_epoch,
    offset.unreleased_claims,
    case((offset.suspect_end > offset.next_offset, offset.suspect_end)).label("suspect_end"),
    case((offset.suspect_part_end > offset.next_offset, offset.suspect_part_end)).label("suspect_part_end"),
    # As Attempt has them. At or past the position: compaction may have taken the records between the two.
    case((and_(offset.attempts > ZERO, offset.attempt_offset >= offset.next_offset), offset.attempt_offset)).label(
        "attempt_offset"
    ),
    offset.attempts,
    offset.attempt_error,
    case((offset.retry_at.is_not(None), _seconds_until_retry)).label("wait"),  # greatest() would overlook the NULL
    offset.attempts_allowed,
    offset.attempt_policy,
    offset.attempt_crashes,
)

# A stop, and what can be decided. The claim or reset that the worker stopped under must be the row's (I2): another one
# has ended the stop. One statement per row: arrays of choices differ in length.
_stop_kind, _stop_offset = bindparam("kind", type_=Text), bindparam("at_offset", type_=BigInteger)
STOP = (
    update(partition_offset)
    .where(
        *is_at(offset, "at_"),
        offset.token == bindparam("its_token", type_=Uuid),
    )
    .values(
        stop_kind=_stop_kind,
        stop_offset=_stop_offset,
        stop_message=bindparam("message", type_=Text),
        stop_choices=array("choices", Text),
        stopped_at=case(
            (and_(offset.stop_kind == _stop_kind, offset.stop_offset == _stop_offset), offset.stopped_at),
            else_=func.clock_timestamp(),
        ),
        # A log that has grown since was truncated all the same. Where the new end is NULL, the earlier one stays.
        stop_log_end=func.least(bindparam("log_end", type_=BigInteger), offset.stop_log_end),
    )
)

ASKED = unnest("asked", topic=Text, partition=Integer)
_row = select(partition_offset).where(*is_row_of(ASKED))
_glanced = _row.limit(literal_column("1")).lateral("o")  # the limit keeps it a lookup per row
_awaited = _row.with_for_update(read=True).lateral("o")
POSITIONS = select(_glanced).select_from(ASKED.join(_glanced, literal(True)))
# Under the row's lock: waits for a transaction in flight.
POSITIONS_LOCKED = select(_awaited).select_from(ASKED.join(_awaited, literal(True)))


# Ours by its token; or by its owner, where a reset drew another token and kept the owner (I5). An owner is drawn for
# one process: whatever another one has claimed since matches neither (I2).
def _is_ours(token: ColumnElement[Any]) -> ColumnElement[bool]:
    return or_(offset.token == token, offset.owner == bindparam("owner", type_=Uuid))


RELEASED = unnest("released", topic=Text, partition=Integer, token=Uuid)
_let_go = lock_each("mine", RELEASED, _is_ours(RELEASED.c.token))  # I2: another's claim is not ours to release
# The successor claims the same rows at the same time: they are locked in order first, then written.
_mine = _to_update("ordered", RELEASED, _let_go)
RELEASE = (
    update(partition_offset)
    .where(*is_row_of(_mine), _is_ours(_mine.c.token))
    .values(
        owner=null(),
        # An attempt that has not ended was given up: its record did not kill this process.
        attempts=case((offset.attempt_running, offset.attempts - 1), else_=offset.attempts),
        attempt_running=false(),
        suspect_part_end=case((offset.suspect_running, null()), else_=offset.suspect_part_end),
        suspect_running=false(),
    )
)
