"""Replaying dead letters on a real Postgres: each is applied once, also beside workers and other operators."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import ProgrammingError

from seekpoint import Append, Bytes, Json, Pipeline
from seekpoint.admin import Admin, Where
from seekpoint.errors import ConfigError, Fenced, GroupPaused, HandlerMisuse, HandlerOutdated
from seekpoint.records import Cause, State
from seekpoint.worker.replay.replay_one import Replayer
from support.dead_letter_group import DeadLetterGroup, Halt
from support.fixtures import NewEngine
from support.ledger_worker import scalar, wait_until_blocked
from support.sink_tables import TOPIC, orders

# -- one dead letter ---------------------------------------------------------------------------------------------


def test_a_replay_applies_the_record_and_closes_its_dead_letter(dead_letter_group: DeadLetterGroup) -> None:
    """I1, I4: as a batch of one record, with who did it and why."""
    dead_letter = dead_letter_group.dead_lettered(b"a", b"b", b"c")
    assert dead_letter_group.applied() == [0, 2]
    done = dead_letter_group.new_replay().replay(dead_letter.id, reason="ticket 7")
    assert done.is_applied
    assert done.dead_letter.offset == 1
    assert done.followers == ()
    assert [(len(b), [tuple(s) for s in b.spans]) for b in dead_letter_group.batches[-1:]] == [
        (1, [((TOPIC, 0), 1, 2)])
    ]
    assert dead_letter_group.applied() == [0, 2, 1]
    now = dead_letter_group.new_replay().get(dead_letter.id)
    assert (now.state, now.closed_by, now.closed_reason, now.replays) == (State.REPLAYED, "ada", "ticket 7", 1)
    assert now.closed_at is not None
    assert dead_letter_group.actions() == [("replay", 1, "ada", f"dead letter {dead_letter.id}: ticket 7")]
    assert dead_letter_group.ledger.read()[0].next_offset == 3


def test_a_replay_closes_no_connection_of_the_application(
    dead_letter_group: DeadLetterGroup, new_engine: NewEngine
) -> None:
    """A connection that a handler had is closed afterwards: it is not one of the application's pool."""
    dead_letter = dead_letter_group.dead_lettered(b"a", b"b", b"c")
    session, group = text("SELECT pg_backend_pid()"), dead_letter_group
    engine = new_engine(group.engine.url, pool_size=1, max_overflow=0, pool_timeout=0)
    with engine.connect() as connection:
        before = connection.scalar(session)
    replay = Admin(engine, schema=group.schema).dead_letters(group.pipeline(), actor="ada")
    assert replay.replay(dead_letter.id).is_applied
    with engine.connect() as connection:
        assert connection.scalar(session) == before


def test_a_request_is_one_action_that_is_committed_with_the_first_record(dead_letter_group: DeadLetterGroup) -> None:
    """I1: it is there where a record of it is applied or given up, and only there."""
    dead_letter_group.bad = {b"b", b"c"}
    first, *_ = dead_letter_group.park(*orders(b"b", b"c", b"c"), *orders(b"c", partition=1))
    assert dead_letter_group.new_replay().replay_all(reason="too early").replayed == 0
    assert dead_letter_group.actions() == [], "nothing was applied"
    dead_letter_group.bad = {b"b"}
    summary = dead_letter_group.new_replay().replay_all(reason="fixed")
    assert (summary.replayed, [failed.dead_letter.id for failed in summary.failed]) == (3, [first.id])
    assert dead_letter_group.actions() == [("replay", None, "ada", "4 dead letters: fixed")], (
        "of two partitions: no offset"
    )
    closed = dead_letter_group.new_replay().list(Where(states=(State.REPLAYED,)))
    assert {(dead_letter.closed_by, dead_letter.closed_reason) for dead_letter in closed} == {("ada", "fixed")}
    dead_letter_group.bad = {b"d"}
    dead_letter_group.park(*orders(b"d", b"d", start=3))
    dead_letter_group.new_replay("eve").discard(Where(), reason="no order")
    assert dead_letter_group.actions()[1:] == [("discard", 0, "eve", "3 dead letters: no order")]
    dead_letter_group.new_replay("eve").discard(first.id, reason="again")
    assert len(dead_letter_group.actions()) == 2, "nothing was given up"


def test_a_replay_that_fails_again_keeps_both_errors(dead_letter_group: DeadLetterGroup) -> None:
    """I4: what it wrote is rolled back, the dead letter stays open, and says how often it was tried."""
    dead_letter = dead_letter_group.dead_lettered(b"b")
    first = dead_letter.error

    def worse(tx: Connection, record: object) -> None:
        raise KeyError("price")

    dead_letter_group.on_record = worse
    for n in (1, 2):
        done = dead_letter_group.new_replay().replay(dead_letter.id)
        assert done.failure is not None
        assert (done.failure.cause, done.failure.error) == (Cause.HANDLER, "KeyError: 'price'")
        now = dead_letter_group.new_replay().get(dead_letter.id)
        assert (now.state, now.error, now.replay_error, now.replays) == (
            State.DEAD_LETTERED,
            first,
            "KeyError: 'price'",
            n,
        )
        assert "in worse" in (now.replay_traceback or "")
        assert (now.closed_at, now.closed_by) == (None, None)
    assert dead_letter_group.applied() == []
    assert dead_letter_group.actions() == []
    dead_letter_group.on_record = lambda tx, record: None
    assert dead_letter_group.new_replay().replay(dead_letter.id).is_applied
    assert dead_letter_group.applied() == [0]


@pytest.mark.parametrize(
    ("table", "value", "cause", "message"),
    [
        ("id int", b"{", Cause.DECODE, "DecodeError: "),
        ("id int", b'{"no": 1}', Cause.ROW, "KeyError: 'id'"),
        ("id int CHECK (id > 0)", b'{"id": -1}', Cause.DATABASE, "CheckViolation: "),
        ("id int UNIQUE DEFERRABLE INITIALLY DEFERRED", b'{"id": 7}', Cause.DATABASE, "UniqueViolation: "),
    ],
    ids=["decode", "row", "sink", "commit"],
)
def test_a_replay_reports_what_is_wrong_again(
    dead_letter_group: DeadLetterGroup, table: str, value: bytes, cause: Cause, message: str
) -> None:
    """I4: the pipeline's own codecs and sinks, and constraints that are asked at COMMIT."""
    with dead_letter_group.engine.begin() as tx:
        tx.execute(text(f'CREATE TABLE "{dead_letter_group.schema}".t ({table})'))
        tx.execute(text(f'INSERT INTO "{dead_letter_group.schema}".t VALUES (7)'))
    sink = Append((dead_letter_group.schema, "t"), columns=["id"], row=lambda r: (r.value["id"],))
    options: dict[str, Any] = {"value": Json(), "handle": None, "sinks": [sink]}
    (dead_letter,) = dead_letter_group.park(*orders(value), **options)
    assert dead_letter.cause is cause
    done = dead_letter_group.new_replay(**options).replay(dead_letter.id)
    assert done.failure is not None
    assert done.failure.cause is cause
    assert done.failure.error.startswith(message)
    assert dead_letter_group.new_replay().get(dead_letter.id).replay_error == done.failure.error
    with dead_letter_group.engine.begin() as tx:
        tx.execute(
            text(f'DROP TABLE "{dead_letter_group.schema}".t; CREATE TABLE "{dead_letter_group.schema}".t (id int)')
        )
    fixed = Append((dead_letter_group.schema, "t"), columns=["id"], row=lambda r: (5,))
    assert dead_letter_group.new_replay(value=Bytes(), handle=None, sinks=[fixed]).replay(dead_letter.id).is_applied
    assert scalar(dead_letter_group.engine, f'SELECT array_agg(id) FROM "{dead_letter_group.schema}".t') == [5]


def test_an_error_that_passes_is_tried_again(dead_letter_group: DeadLetterGroup) -> None:
    """I1: a deadlock is no record's fault: the whole transaction is run again, and applied once."""
    dead_letter = dead_letter_group.dead_lettered(b"b")
    tries: list[int] = []

    def deadlock(tx: Connection, record: object) -> None:
        tries.append(1)
        if len(tries) < 3:
            tx.exec_driver_sql("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40P01'; END $$")

    dead_letter_group.on_record = deadlock
    assert dead_letter_group.new_replay().replay(dead_letter.id).is_applied
    assert (len(tries), dead_letter_group.applied()) == (3, [0])


def test_the_handler_runs_as_in_a_worker(dead_letter_group: DeadLetterGroup) -> None:
    """I1: in the session's own zone, without our lock limit; and always durable."""
    seen: list[tuple[str, ...]] = []

    def look(tx: Connection, record: object) -> None:
        names = ("TimeZone", "lock_timeout", "synchronous_commit", "transaction_isolation")
        seen.append(tuple(tx.exec_driver_sql(f"SHOW {name}").scalar_one() for name in names))

    with dead_letter_group.engine.connect() as tx:
        plain = tuple(tx.exec_driver_sql(f"SHOW {name}").scalar_one() for name in ("TimeZone", "lock_timeout"))
    dead_letter = dead_letter_group.dead_lettered(b"b")
    dead_letter_group.on_record = look
    zoned = dead_letter_group.engine.execution_options()
    assert dead_letter_group.new_replay(engine=zoned).replay(dead_letter.id).is_applied
    assert seen == [(*plain, "on", "read committed")]


def test_what_a_handler_sets_for_one_dead_letter_is_not_there_for_the_next(dead_letter_group: DeadLetterGroup) -> None:
    """I1: each replay is a transaction, and what its handler leaves on the session ends with it."""
    dead_letter_group.bad = {b"a", b"b", b"c", b"d"}
    dead_letter_group.park(*orders(b"a", b"b", b"c", b"d"))
    dead_letter_group.bad.clear()
    seen_rows: list[tuple[int, str]] = []

    def look(tx: Connection, record: Any) -> None:
        asked = tx.execute(text("SELECT pg_backend_pid(), current_setting('work_mem')")).one()
        seen_rows.append((asked[0], asked[1]))
        if record.offset == 1:
            tx.execute(text("SET work_mem = '77MB'"))

    dead_letter_group.on_record = look
    assert dead_letter_group.new_replay().replay_all().replayed == 4
    (first, before), (two, _), (three, after), (four, _) = seen_rows
    assert first == two != three == four
    assert {after, before} == {before}
    with dead_letter_group.engine.connect() as tx:
        assert tx.scalar(text("SELECT pg_backend_pid()")) not in {first, three}


def test_a_handler_that_ends_the_transaction_is_found(dead_letter_group: DeadLetterGroup) -> None:
    """I1: a bug of the program and not of the record: the dead letter stays open."""
    dead_letter = dead_letter_group.dead_lettered(b"b")
    dead_letter_group.on_record = lambda tx, record: tx.exec_driver_sql("ROLLBACK; BEGIN")
    with pytest.raises(HandlerMisuse, match=f"dead letter {dead_letter.id} stays open"):
        dead_letter_group.new_replay().replay(dead_letter.id)
    dead_letter_group.on_record = lambda tx, record: tx.commit()
    with pytest.raises(HandlerMisuse, match=r"called commit\(\)"):
        dead_letter_group.new_replay().replay(dead_letter.id)
    dead_letter_group.on_record = lambda tx, record: tx.exec_driver_sql("SELECT * FROM no_such_table")
    with pytest.raises(ProgrammingError):
        dead_letter_group.new_replay().replay(dead_letter.id)
    now = dead_letter_group.new_replay().get(dead_letter.id)
    assert (now.state, now.replays, dead_letter_group.applied()) == (State.DEAD_LETTERED, 0, [])


def test_what_is_no_dead_letter_of_the_group(dead_letter_group: DeadLetterGroup) -> None:
    """I4."""
    with pytest.raises(ConfigError, match="there is no group 'g' in the ledger"):
        dead_letter_group.new_replay().plan()
    dead_letter_group.process(orders(b"a"))
    with pytest.raises(ConfigError, match="group 'g' has no dead letter 4711"):
        dead_letter_group.new_replay().replay(4711)
    with pytest.raises(ConfigError, match="takes a group's name or its Pipeline, got a int"):
        Admin(dead_letter_group.engine).dead_letters(7)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="give an aware time"):
        Where(since=__import__("datetime").datetime(2026, 1, 1))
    with pytest.raises(ConfigError, match="name the topic, too"):
        Where(partition=1)


# -- whom it refuses ---------------------------------------------------------------------------------------------


def refusal(work: Callable[[], object]) -> str:
    """What is said by the refusal that the work must meet."""
    with pytest.raises(Fenced) as refused:
        work()
    return refused.value.reason


def test_another_version_of_the_handler_is_refused(dead_letter_group: DeadLetterGroup) -> None:
    """I5: an older one as a worker's would be; a newer one until a worker has raised the group to it."""
    dead_letter = dead_letter_group.dead_lettered(b"b", version=2)
    older, newer = dead_letter_group.new_replay(version=1), dead_letter_group.new_replay(version=3)
    with pytest.raises(HandlerOutdated, match="is at handler version 2, this pipeline is version 1"):
        older.replay(dead_letter.id)
    with pytest.raises(HandlerOutdated):
        older.plan()
    with pytest.raises(ConfigError, match="start a worker of version 3 first"):
        newer.replay_all()
    assert dead_letter_group.applied() == []
    dead_letter_group.process(orders(b"x", start=1), version=3)
    assert newer.replay(dead_letter.id).is_applied


def test_a_paused_group_is_left_alone(dead_letter_group: DeadLetterGroup) -> None:
    """I5: a pause means that no results are written; a discard writes no results."""
    dead_letter_group.bad = {b"b"}
    first, second = dead_letter_group.park(*orders(b"b", b"b"))
    dead_letter_group.bad.clear()
    dead_letter_group.ledger.pause(reason="an index", actor="eve")
    for work in (
        lambda: dead_letter_group.new_replay().replay(first.id),
        dead_letter_group.new_replay().replay_all,
        dead_letter_group.new_replay().plan,
    ):
        with pytest.raises(GroupPaused, match="paused by eve: an index"):
            work()
    assert [d.refusal for d in dead_letter_group.new_replay().discard(second.id, reason="a test")] == [None]
    admin = Admin(dead_letter_group.engine, schema=dead_letter_group.schema)
    mine = admin.dead_letters(dead_letter_group.pipeline(), while_paused=True)
    assert mine.replay(first.id).is_applied
    assert dead_letter_group.applied() == [0]
    dead_letter_group.ledger.resume()


def test_dead_letters_of_an_earlier_topic_are_refused(dead_letter_group: DeadLetterGroup) -> None:
    """I4: their offsets are other records' now; they can be exported and discarded."""
    dead_letter = dead_letter_group.dead_lettered(b"a", b"b")
    dead_letter_group.ledger.reset_offset(TOPIC, 0, to=0, topic_id=uuid4(), log=None, reason="created anew")
    (planned,) = dead_letter_group.new_replay().plan()
    message = refusal(lambda: dead_letter_group.new_replay().replay(dead_letter.id))
    assert message == planned.refusal
    assert f"dead letter {dead_letter.id} (orders/0 offset 1) is from an earlier topic 'orders'" in message
    assert [refused.refusal for refused in dead_letter_group.new_replay().replay_all().refused] == [message]
    assert [line["offset"] for line in dead_letter_group.new_replay().export()] == [1]
    assert [d.refusal for d in dead_letter_group.new_replay().discard(dead_letter.id, reason="old topic")] == [None]
    assert dead_letter_group.applied() == [0]


def test_other_dead_letters_that_cannot_be_replayed(dead_letter_group: DeadLetterGroup) -> None:
    """I4: skipped without a value; of a topic that the pipeline does not read; read without their headers."""
    dead_letter_group.bad = {b"b"}
    dead_letter_group.process(orders(b"b"), on_poison="skip")
    (skipped,) = dead_letter_group.dead_letters()
    assert "was skipped, and its value is not kept" in refusal(
        lambda: dead_letter_group.new_replay().replay(skipped.id)
    )
    (dead_letter,) = dead_letter_group.park(*orders(b"b", start=1))
    other_replay = Admin(dead_letter_group.engine, schema=dead_letter_group.schema).dead_letters(
        Pipeline("g", topics="other", value=Bytes(), handle=dead_letter_group.handle)
    )
    with pytest.raises(ConfigError, match=r"of topic 'orders', which Pipeline\('g', topics=\['other'\]\) does not"):
        other_replay.replay(dead_letter.id)
    with dead_letter_group.engine.begin() as tx:
        error = "Unreadable: its headers cannot be read: invalid start byte"
        tx.execute(text(f"UPDATE \"{dead_letter_group.schema}\".dead_letter SET cause = 'decode', error = '{error}'"))
    assert "is incomplete: its headers cannot be read" in refusal(
        lambda: dead_letter_group.new_replay().replay(dead_letter.id)
    )
    with dead_letter_group.engine.begin() as tx:
        tx.execute(text(f'UPDATE "{dead_letter_group.schema}".partition_offset SET next_offset = 1'))
    message = refusal(lambda: dead_letter_group.new_replay().replay(dead_letter.id))
    assert message.endswith("the position is before it, at 1, so it will be read again")
    assert dead_letter_group.applied() == []


# -- at the same time --------------------------------------------------------------------------------------------


def test_two_operators_at_once_apply_it_once(dead_letter_group: DeadLetterGroup, threads: ThreadPoolExecutor) -> None:
    """I1: the second one waits, and its error says who was first, and when."""
    dead_letter = dead_letter_group.dead_lettered(b"b")
    dead_letter_group.on_record = halt = Halt()
    first = threads.submit(dead_letter_group.new_replay("ada").replay, dead_letter.id, reason="mine")
    halt.wait()
    second = threads.submit(dead_letter_group.new_replay("bob").replay, dead_letter.id)
    wait_until_blocked(dead_letter_group.engine, by=halt.pid)
    halt.open()
    assert first.result(30).is_applied
    with pytest.raises(Fenced, match=r"^dead letter \d+ \(orders/0 offset 0\) was replayed by ada at 20.*: mine \[SP"):
        second.result(30)
    assert dead_letter_group.applied() == [0]


def test_a_second_operator_replays_what_the_first_one_failed_on(
    dead_letter_group: DeadLetterGroup, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1: a failure does not close it. The second one may be applied before the first one's error is kept."""
    dead_letter = dead_letter_group.dead_lettered(b"b")
    halt = Halt()

    def halt_and_fail(tx: Connection, record: object) -> None:
        is_first = halt.pid == 0
        halt(tx, record)
        if is_first:
            raise ValueError("not yet")

    dead_letter_group.on_record = halt_and_fail
    first = threads.submit(dead_letter_group.new_replay("ada").replay, dead_letter.id)
    halt.wait()
    second = threads.submit(dead_letter_group.new_replay("bob").replay, dead_letter.id)
    wait_until_blocked(dead_letter_group.engine, by=halt.pid)
    keep = Replayer._keep

    def keep_after_the_second(replayer: Replayer, *failure: Any) -> None:
        assert second.result(30).is_applied
        keep(replayer, *failure)

    monkeypatch.setattr(Replayer, "_keep", keep_after_the_second)  # else either session may be first
    halt.open()
    assert second.result(30).is_applied
    with pytest.raises(Fenced, match="was replayed by bob"):  # its error has no open dead letter
        first.result(30)
    assert dead_letter_group.applied() == [0]


def test_a_dead_letter_that_a_reset_passed_belongs_to_the_stream(dead_letter_group: DeadLetterGroup) -> None:
    """I1, I5: dead-lettered, reset past it, replayed: applied once, by the worker that reads it again."""
    dead_letter = dead_letter_group.dead_lettered(b"a", b"b", b"c")
    dead_letter_group.ledger.reset_offset(TOPIC, 0, to=1, actor="eve", log=None, reason="ticket 9")
    message = refusal(lambda: dead_letter_group.new_replay().replay(dead_letter.id))
    assert "was superseded by eve at 20" in message
    assert message.endswith(": reset to 1: ticket 9")
    dead_letter_group.process(orders(b"b", b"c", start=1))
    assert dead_letter_group.applied() == [0, 2, 1, 2]
    assert refusal(lambda: dead_letter_group.new_replay().replay(dead_letter.id)) == message
    assert dead_letter_group.states() == {1: "superseded"}


def test_a_rewind_waits_for_a_replay_in_hand(dead_letter_group: DeadLetterGroup, threads: ThreadPoolExecutor) -> None:
    """I5: and a replay that comes after it finds the dead letter superseded."""
    dead_letter = dead_letter_group.dead_lettered(b"b")
    dead_letter_group.on_record = halt = Halt()
    replay = threads.submit(dead_letter_group.new_replay().replay, dead_letter.id)
    halt.wait()
    move = threads.submit(dead_letter_group.ledger.reset_offset, TOPIC, 0, 0, log=None, reason="again")
    wait_until_blocked(dead_letter_group.engine, by=halt.pid)
    halt.open()
    assert replay.result(30).is_applied
    move.result(30)
    assert dead_letter_group.states() == {0: "superseded"}
    dead_letter_group.process(orders(b"b"))
    assert dead_letter_group.applied() == [0, 0]  # a rewind applies again what was applied, and says so
