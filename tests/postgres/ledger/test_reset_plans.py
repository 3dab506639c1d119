"""Plans of resets without brokers: a thousand partitions in one transaction, and a plan whose connection breaks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from seekpoint import Limits
from seekpoint.admin import Acceptance, AcceptPlan, Admin, ResetTo, apply_resets
from seekpoint.errors import Fenced, GroupForgotten
from seekpoint.ledger.admin_actions import reset_offset
from seekpoint.ledger.dead_letters import DeadLetters
from seekpoint.ledger.roles import Role
from seekpoint.records import Cause, Failure, NewDeadLetter, RawRecord, State
from support.fixtures import NewEngine
from support.ledger_roles import LedgerRoles
from support.ledger_worker import LedgerWorker
from support.postgres_proxy import PostgresProxy, When
from support.trouble import put_stop

NewLedgerWorker = Callable[..., LedgerWorker]
MANY = 1_000


def rows(engine: Engine, schema: str, query: str) -> list[Any]:
    with engine.begin() as tx:
        return list(tx.execute(text(query.replace("{s}", f'"{schema}"'))).all())


def test_a_plan_counts_the_dead_letters_that_it_supersedes(
    new_worker: NewLedgerWorker, admin: Admin, seekpoint_engine: Engine, seekpoint_schema: str
) -> None:
    """Also what an operator has given up: its record is read and applied again."""
    worker = new_worker(positions={0: 10, 1: 10})
    dead_letters = DeadLetters(worker.ledger)
    failure = Failure(Cause.POISON, "Poison: a test")
    new = [
        NewDeadLetter(RawRecord("t", partition, offset, None, b"k", b"v"), failure, State.DEAD_LETTERED)
        for partition in (0, 1)
        for offset in range(6)
    ]
    with seekpoint_engine.begin() as tx:
        dead_letters.insert(tx, new, {"t": worker.topic_id}, 1)
    states = {2: "skipped", 3: "discarded", 4: "replayed", 5: "superseded"}
    for offset, state in states.items():
        with seekpoint_engine.begin() as tx:
            tx.execute(text(f"UPDATE \"{seekpoint_schema}\".dead_letter SET state = '{state}' "
                            f"WHERE record_offset = {offset}"))  # fmt: skip
    plan = admin.plan_reset("g", ResetTo.offset(1), {"t": [0]})
    assert (
        "4 dead letters will be superseded, and read again: 1 dead_lettered, 1 discarded, 1 replayed, 1 skipped"
    ) in plan.consequences
    assert "2 of these records were given up (discarded or skipped), and are applied again" in plan.consequences
    admin.apply(plan, reason="r")
    counts = rows(seekpoint_engine, seekpoint_schema, "SELECT partition, count(*) FROM {s}.dead_letter "
                 "WHERE state = 'superseded' GROUP BY 1 ORDER BY 1")  # fmt: skip
    assert counts == [(0, 5), (1, 1)]
    assert not [
        consequence
        for consequence in admin.plan_reset("g", ResetTo.offset(20)).consequences
        if "dead letters" in consequence
    ]


@pytest.mark.long
def test_a_plan_of_a_thousand_partitions_is_one_transaction(
    new_worker: NewLedgerWorker, admin: Admin, seekpoint_engine: Engine, seekpoint_schema: str
) -> None:
    """All locks are taken within the second, and a busy partition is named; then nothing is reset."""
    new_worker(positions=dict.fromkeys(range(MANY), 10))
    plan = admin.plan_reset("g", ResetTo.offset(3))
    assert len(plan.moves) == MANY
    with seekpoint_engine.begin() as tx:
        tx.execute(text(f'UPDATE "{seekpoint_schema}".partition_offset SET epoch = epoch WHERE partition = 777'))
        with pytest.raises(Fenced, match=r"^t/777 is locked by .* since 20.* UTC; not all locks could be taken"):
            admin.apply(plan, reason="r", wait=0.1)
    assert rows(seekpoint_engine, seekpoint_schema, "SELECT DISTINCT next_offset FROM {s}.partition_offset") == [(10,)]
    began = perf_counter()
    assert len(admin.apply(plan, reason="r").done) == MANY
    print(f"{MANY} partitions in {perf_counter() - began:.2f} s")
    [(offset, transactions, many)] = rows(
        seekpoint_engine,
        seekpoint_schema,
        "SELECT min(next_offset), count(DISTINCT xmin::text), count(*) FROM {s}.partition_offset WHERE next_offset = 3",
    )
    assert (offset, transactions, many) == (3, 1, MANY)
    [(ids, actions)] = rows(
        seekpoint_engine, seekpoint_schema, "SELECT count(DISTINCT xmin::text), count(*) FROM {s}.admin_action"
    )
    assert (ids, actions) == (1, MANY)


@pytest.fixture
def broken(
    new_worker: NewLedgerWorker, proxy: PostgresProxy, new_engine: NewEngine, seekpoint_schema: str
) -> Callable[..., int]:
    """``broken(when, skip)`` applies a plan of three partitions whose connection breaks there, and applies it again.

    Returns how many resets there were in all.
    """
    worker = new_worker(positions={0: 200, 1: 200, 2: 200})
    through = Admin(new_engine(proxy.dsn, poolclass=NullPool), schema=seekpoint_schema)
    direct = Admin(worker.ledger.engine, schema=seekpoint_schema)

    def positions() -> set[int]:
        return set(direct.positions("g").values())

    def apply(when: When, skip: int = 0) -> int:
        before, target = len(worker.actions()), min(positions()) - 1
        plan = direct.plan_reset("g", ResetTo.offset(target))
        proxy.arm(when, skip=skip)
        try:
            through.apply(plan, reason="first", wait=5)
        except OperationalError:  # SQLAlchemy's, also where the connection is set up
            proxy.wait_until_fired()
        else:
            assert not proxy.fired.is_set()
        if when == "after_commit_delayed":
            proxy.deliver()
        actions = worker.actions()[before:]
        assert {row.reason for row in actions} <= {"first"}
        assert positions() == ({target} if actions else {target + 1}), "all of it or nothing"
        if actions:
            with pytest.raises(Fenced, match="was reset since the plan was made"):
                direct.apply(plan, reason="again")
        else:
            direct.apply(plan, reason="again")
        assert positions() == {target}
        return len(worker.actions()) - before

    return apply


@pytest.mark.long
def test_a_plan_whose_connection_breaks_is_applied_once(broken: Callable[..., int], proxy: PostgresProxy) -> None:
    """I5: at each of its statements and around its COMMIT; applied again it is carried out, or refused as done."""
    for when in ("before_commit", "after_commit", "after_commit_delayed"):
        assert broken(when) == 3, when
        assert proxy.fired.is_set()
    statements = 0
    while proxy.fired.is_set():
        assert broken("at_statement", skip=statements) == 3, statements
        statements += 1
    assert statements > 10, "begin, limits, locks, and three resets"


def test_the_failed_record_may_lie_after_a_gap(
    new_worker: NewLedgerWorker, admin: Admin, seekpoint_engine: Engine
) -> None:
    """Compaction, or a transaction's marker: the position stays at the gap where the failed record is read first."""
    worker = new_worker(positions={0: 100, 1: 100, 2: 100})
    with seekpoint_engine.begin() as tx:
        for partition, offset in ((0, 101), (1, 99)):
            where = f"o.partition = {partition}"
            tx.execute(text(put_stop(f'"{worker.ledger.schema}"', "PoisonStop", str(offset), where)))
    plan = admin.plan_reset("g", ResetTo.after_failed())
    assert [(move.topic_partition.number, move.target) for move in plan.moves] == [(0, 102)]
    admin.apply(plan, reason="the record is empty")
    assert worker.positions()[0] == 102
    assert [(lost.from_offset, lost.to_offset) for lost in admin.lost()] == [(100, 102)]


def test_a_forgotten_group_has_no_positions_to_reset_or_export(new_worker: NewLedgerWorker, admin: Admin) -> None:
    new_worker(positions={0: 100}).ledger.pause(reason="it has ended")
    admin.apply(admin.plan_forget("g", export_to=None), reason="it has ended")
    with pytest.raises(GroupForgotten):
        admin.plan_reset("g", ResetTo.offset(3))
    with pytest.raises(GroupForgotten):
        admin.positions("g")


def test_a_plan_that_waits_for_a_lock_too_long_is_refused(
    new_worker: NewLedgerWorker, seekpoint_engine: Engine
) -> None:
    """With what to do, and not as an error of the database."""
    worker = new_worker(positions={0: 100})
    admin = Admin(seekpoint_engine, schema=worker.ledger.schema, limits=Limits(transaction_age=0.2))
    plan = admin.plan_pause("g")
    with seekpoint_engine.begin() as tx:
        tx.execute(text(f'SELECT FROM "{worker.ledger.schema}".consumer_group FOR UPDATE'))
        with pytest.raises(Fenced, match=r"another session has locked group 'g' .*nothing was done; try again"):
            admin.apply(plan, reason="an index")
    admin.apply(plan, reason="an index")


def test_a_loss_is_accepted_once(new_worker: NewLedgerWorker, admin: Admin) -> None:
    """Also where the partition continues where it was: what the log has there may be other records."""
    worker = new_worker(positions={0: 100})
    (row,) = worker.ledger.read()
    accepted = Acceptance(row.partition, row.topic_id, None, 100, 100, (0, 100), last_reset=None)
    plan = AcceptPlan("g", (accepted,), ())
    admin.apply(plan, reason="a test")
    with pytest.raises(Fenced, match="acted on since the plan was made: nothing was done; make another plan"):
        admin.apply(plan, reason="a test")
    assert len(admin.history("g")) == 1


def test_a_pause_is_carried_out_once(new_worker: NewLedgerWorker, admin: Admin) -> None:
    new_worker(positions={0: 100})
    plan = admin.plan_pause("g")
    admin.apply(plan, reason="a test")
    admin.apply(admin.plan_resume("g"), reason="a test")
    with pytest.raises(Fenced, match="acted on since the plan was made: it was paused and resumed"):
        admin.apply(plan, reason="a test")
    assert [action.action for action in admin.history("g")] == ["resume", "pause"]


@pytest.fixture
def roles(new_worker: NewLedgerWorker, seekpoint_engine: Engine, seekpoint_schema: str) -> Iterator[LedgerRoles]:
    roles = LedgerRoles(seekpoint_engine.url, seekpoint_schema, owner=seekpoint_engine.url.username)
    roles.script()
    yield roles
    roles.drop()


LOCK = "UPDATE {s}.partition_offset SET epoch = epoch WHERE partition = 1"


@pytest.mark.long
def test_a_busy_partition_is_named_to_an_operator_who_may_not_see_other_sessions(
    new_worker: NewLedgerWorker, roles: LedgerRoles, seekpoint_schema: str
) -> None:
    """Of a session of another role, its name is visible, and not since when it has a transaction."""
    new_worker(positions={0: 10, 1: 10, 2: 10})
    admin = Admin(roles.engine(Role.OPERATOR), schema=seekpoint_schema)
    plan = admin.plan_reset("g", ResetTo.offset(3))
    with roles.engine(Role.WRITER).begin() as tx:
        tx.execute(text(LOCK.replace("{s}", f'"{seekpoint_schema}"')))
        with pytest.raises(Fenced, match=r"^t/1 is locked by .* \(since when is not visible to this login\); not all"):
            admin.apply(plan, reason="r", wait=0.1)
        result = admin.apply(plan, reason="r", wait=0.1, each=True)
    assert [done.partition.number for done in result.done] == [0, 2]
    assert [refused.split(" is locked")[0] for refused in result.refused] == ["t/1"]


def test_resets_that_are_done_are_reported_whatever_ends_the_next_one(
    new_worker: NewLedgerWorker, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_worker(positions={0: 10, 1: 10, 2: 10})
    plan = admin.plan_reset("g", ResetTo.offset(3))

    def fails(tx: Any, partition: Any, *args: Any, **more: Any) -> Any:
        if partition.number == 1:
            raise TypeError("an error of ours")
        return reset_offset(tx, partition, *args, **more)

    monkeypatch.setattr(apply_resets, "reset_offset", fails)
    result = admin.apply(plan, reason="r", each=True)
    assert [done.partition.number for done in result.done] == [0]
    assert [refused.split(":")[:2] for refused in result.refused] == [["t/1", " TypeError"]]


def test_partitions_of_a_plan_have_one_wait(
    new_worker: NewLedgerWorker,
    admin: Admin,
    seekpoint_engine: Engine,
    seekpoint_schema: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    new_worker(positions=dict.fromkeys(range(4), 10))
    plan = admin.plan_reset("g", ResetTo.offset(3))
    now, waited = [1000.0], list[float]()

    def wait(seconds: float) -> None:
        waited.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(apply_resets, "monotonic", lambda: now[0])
    monkeypatch.setattr(apply_resets, "sleep", wait)
    monkeypatch.setattr(apply_resets, "LOCKS", 0.05)
    with seekpoint_engine.begin() as tx:
        tx.execute(text(f'UPDATE "{seekpoint_schema}".partition_offset SET epoch = epoch'))
        result = admin.apply(plan, reason="r", wait=2.0, each=True)
    assert len(result.refused) == 4
    assert sum(waited) < 2.0


def test_partitions_that_have_left_their_target_are_named(new_worker: NewLedgerWorker, admin: Admin) -> None:
    """When the plan was made there was nothing to do for them."""
    worker = new_worker(positions={0: 10, 1: 20, 2: 10})
    plan = admin.plan_reset("g", ResetTo.offset(10))
    assert [move.topic_partition.number for move in plan.moves] == [1]
    nothing = admin.plan_reset("g", ResetTo.offset(10), {"t": [2]})
    assert nothing.is_done
    worker.commit({0: 15, 2: 11})
    result = admin.apply(plan, reason="r")
    assert [done.partition.number for done in result.done] == [1]
    message = "t/{} was at its target 10 when the plan was made, and is at {} now: make another plan"
    assert result.skipped == (message.format(0, 15), message.format(2, 11))
    assert admin.apply(nothing, reason="r").skipped == (message.format(2, 11),)
