"""A record that waits for its retry while others of its partition continue: order, limits, ends, owners and faults."""

from __future__ import annotations

import random
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from seekpoint import Limits, Partition, Retry, events
from seekpoint.admin import Admin, Where
from seekpoint.errors import Fenced, NotApplied, TooManyDeadLetters
from seekpoint.pipeline.policy import DeadLetterLimits
from seekpoint.records import Cause, State
from support.command import seekpoint
from support.crashing_handlers import CrashingHandler
from support.dead_letter_group import Halt
from support.events import Gate, Run
from support.ledger_worker import wait_until_blocked
from support.worker_group import WorkerGroup
from support.worker_process import WorkerProcess

SOON = Retry(attempts=5, wait_initial=0.2, multiplier=1, jitter=0)
LATE = Retry(attempts=5, wait_initial=3600, wait_max=3600, jitter=0)
LIMITS = Limits(idle_check=0.1, lag_check=0.2)


def start(worker_group: WorkerGroup, name: str, order: str, retry: Retry = SOON, **options: Any) -> Run:
    """A worker whose handler fails as the records say."""
    handle = CrashingHandler(worker_group.record_table)
    pipeline = {"on_poison": "dead_letter", "retry_order": order, **options.pop("pipeline", {})}
    declared = worker_group.pipeline(name, **{"handle": handle, "retry": retry, **pipeline})
    observe = [handle.watch, *options.pop("observe", ())]
    return worker_group.worker(declared, observe=observe, **{"limits": LIMITS, **options})


def states(worker_group: WorkerGroup) -> list[tuple[Any, ...]]:
    """Offset, state and attempts of each dead letter."""
    return [row[1:] for row in worker_group.dead_letters("state", "attempts")]


def make_due(worker_group: WorkerGroup) -> None:
    """Make all waiting records due."""
    worker_group.sql("UPDATE {schema}.dead_letter SET retry_at = clock_timestamp() WHERE state = 'waiting'")


def closed(worker_group: WorkerGroup, count: int) -> bool:
    """Whether this number of records waits no longer."""
    return len([state for _, state, _ in states(worker_group) if state == "replayed"]) == count


def test_others_continue_and_the_record_is_applied_when_it_is_due(worker_group: WorkerGroup) -> None:
    """I1, I4: it is passed as a row, and the transaction that applies it closes that row."""
    name = worker_group.topic()
    stored = worker_group.produce(name, ["ok"] * 5 + ["fail 3"] + ["ok"] * 5)
    run = start(worker_group, name, "none")
    run.reached(name, 11)
    waits = run.seen.wait_for(events.WaitingForRetry, count=3)
    assert (waits.offset, waits.attempt, waits.attempts, waits.wait) == (5, 3, 5, 0.2)
    assert run.seen.wait_for(events.RetrySucceeded).attempt == 4
    run.finish(name, 11)
    assert [event.attempt for event in run.seen.all(events.SingleRecordAttempt)] == [2, 3, 4]
    assert states(worker_group) == [(5, "replayed", 3)]
    worker_group.record_table.assert_holds(name, stored, in_order=False)


def test_later_records_of_its_key_wait_with_it_and_other_keys_continue(worker_group: WorkerGroup) -> None:
    name = worker_group.topic()
    values = [("a", "ok"), ("b", "fail 2"), ("a", "ok"), ("b", "ok"), (None, "ok"), ("b", "fail 1"), ("b", "ok")]
    stored = worker_group.produce(name, values)
    run = start(worker_group, name, "key")
    run.reached(name, 7)
    worker_group.wait(lambda: closed(worker_group, 4))
    run.finish(name, 7)
    assert states(worker_group) == [(1, "replayed", 2), (3, "replayed", 0), (5, "replayed", 1), (6, "replayed", 0)]
    worker_group.record_table.assert_holds(name, stored, in_order=False)
    assert [offset for _, offset in worker_group.record_table.written(name)] == [0, 2, 4, 1, 3, 5, 6]


def test_after_the_last_attempt_it_is_a_dead_letter_that_blocks_its_key(worker_group: WorkerGroup) -> None:
    """The order of the key is kept until an operator has decided."""
    name = worker_group.topic()
    stored = worker_group.produce(name, [("a", "fail"), ("a", "ok"), ("b", "ok")])
    run = start(worker_group, name, "key", Retry(attempts=3, wait_initial=0.1, jitter=0))
    dead = run.seen.wait_for(events.DeadLettered)
    assert (dead.offset, dead.failure.cause, dead.failure.attempts) == (0, Cause.HANDLER, 3)
    assert [row[:2] for row in states(worker_group)] == [(0, "dead_lettered"), (1, "blocked")]
    stored += worker_group.produce(name, [("a", "ok"), ("b", "ok")])
    run.finish(name, 5)
    assert [row[:2] for row in states(worker_group)][2:] == [(3, "blocked")]
    worker_group.record_table.assert_holds(name, [stored[2], stored[4]])
    enter = worker_group.record_table.enter
    pipeline = worker_group.pipeline(name, handle=enter, on_poison="dead_letter", retry_order="key")
    done = Admin(worker_group.engine, schema=worker_group.schema).dead_letters(pipeline).replay_all()
    assert (done.replayed, done.is_complete) == (3, True)
    assert [offset for _, offset in worker_group.record_table.written(name)] == [2, 4, 0, 1, 3]


def test_an_error_that_is_not_retried_makes_a_waiting_record_a_dead_letter_at_once(worker_group: WorkerGroup) -> None:
    name = worker_group.topic()
    worker_group.produce(name, ["fail", "ok"])
    raised: list[type[Exception]] = [TimeoutError, KeyError]

    def handle(tx: Any, batch: Any) -> None:
        if any(record.value == "fail" for record in batch):
            raise (raised[0] if run_waits() else raised[1])("now")
        worker_group.record_table.enter(tx, batch)

    def run_waits() -> bool:
        return not worker_group.dead_letters("state")

    retry = Retry(attempts=5, wait_initial=0.1, on=TimeoutError)
    run = start(worker_group, name, "none", retry, pipeline={"handle": handle})
    assert run.seen.wait_for(events.DeadLettered).failure.attempts == 2
    run.finish(name, 2)
    assert states(worker_group) == [(0, "dead_lettered", 2)]


@pytest.mark.parametrize("order", ["key", "none"])
def test_past_the_limit_the_partition_waits_and_others_do_not(worker_group: WorkerGroup, order: str) -> None:
    name = worker_group.topic(2)
    stored = worker_group.produce(name, [(str(n % 2), f"fail {1 + n % 2}") for n in range(6)] + ["ok"])
    run = start(worker_group, name, order, LATE, limits=Limits(idle_check=0.1, lag_check=0.2, waiting=2))
    run.seen.wait_for(events.RetryScheduled)
    assert worker_group.positions()[Partition(name, 0)] <= 2
    assert 1 <= len(states(worker_group)) <= 2
    stored += worker_group.produce(name, ["ok"] * 3, partition=1)
    run.reached(name, 3, 1)
    run.stop()
    run = start(worker_group, name, order, limits=Limits(idle_check=0.1, lag_check=0.2, waiting=2))
    for _ in range(2):
        make_due(worker_group)
    run.reached(name, 7, 0)
    worker_group.wait(lambda: all(state == "replayed" for _, state, _ in states(worker_group)))
    run.stop()
    worker_group.record_table.assert_holds(name, stored, in_order=False)


def test_the_next_owner_retries_it_whatever_its_own_order_is(worker_group: WorkerGroup) -> None:
    name = worker_group.topic()
    stored = worker_group.produce(name, [("k", "fail 1"), ("k", "ok"), ("l", "ok")])
    start(worker_group, name, "key", LATE).finish(name, 3)
    assert [row[:2] for row in states(worker_group)] == [(0, "waiting"), (1, "waiting")]
    make_due(worker_group)
    pipeline = worker_group.pipeline(name, handle=worker_group.record_table.enter)
    run = worker_group.worker(pipeline, limits=LIMITS)
    worker_group.wait(lambda: closed(worker_group, 2))
    run.stop()
    worker_group.record_table.assert_holds(name, stored, in_order=False)
    assert [offset for _, offset in worker_group.record_table.written(name)] == [2, 0, 1]


def test_an_owner_that_has_lost_its_claim_applies_nothing(worker_group: WorkerGroup) -> None:
    """I2: it was about to try the record when another process claimed the partition."""
    name = worker_group.topic()
    stored = worker_group.produce(name, ["fail 1", "ok"])
    gate = Gate(events.SingleRecordAttempt)
    first = start(worker_group, name, "none", partitions=[(name, 0)], observe=[gate])
    gate.wait()
    second = start(
        worker_group, name, "none", partitions=[(name, 0)], pipeline={"handle": worker_group.record_table.enter}
    )
    worker_group.wait(lambda: closed(worker_group, 1))
    gate.open()
    first.ends_with(Fenced, "was claimed by another worker")
    assert first.seen.all(events.Refused)
    second.stop()
    worker_group.record_table.assert_holds(name, stored, in_order=False)


def test_a_claim_waits_for_the_retry_that_runs(worker_group: WorkerGroup) -> None:
    """I2: the partition's row is locked: the record is applied by its owner, and the next one finds it closed."""
    name, halt = worker_group.topic(), Halt()
    stored = worker_group.produce(name, ["fail 1", "ok"])
    handler = CrashingHandler(worker_group.record_table)

    def handle(tx: Any, batch: Any) -> None:
        handler(tx, batch)
        if any(record.value == "fail 1" for record in batch):
            halt(tx, batch)

    first = start(
        worker_group, name, "none", partitions=[(name, 0)], pipeline={"handle": handle}, observe=[handler.watch]
    )
    halt.wait()
    second = start(worker_group, name, "none", partitions=[(name, 0)], limits=Limits(claim_wait=20, lag_check=0.2))
    wait_until_blocked(worker_group.engine, by=halt.pid)
    halt.open()
    second.seen.wait_for(events.Activated)
    assert states(worker_group) == [(0, "replayed", 1)]
    first.ends_with(Fenced, "was claimed by another worker")
    second.stop()
    worker_group.record_table.assert_holds(name, stored, in_order=False)


def test_a_record_that_crashes_its_retry_is_dead_lettered(worker_group: WorkerGroup) -> None:
    name = worker_group.topic()
    stored = worker_group.produce(name, ["ok", "fail 1 exit", "ok"])
    codes = []
    for _ in range(2):
        process = a_process(worker_group, name, crashes=2)
        codes.append(process.ended())
    process = a_process(worker_group, name, crashes=2)
    process.wait_for("DeadLettered")
    process.terminate()
    process.ended()
    assert codes == [3, 3]
    assert worker_group.dead_letters("state", "cause") == [(0, 1, "dead_lettered", "crashed")]
    worker_group.record_table.assert_holds(name, [stored[0], stored[2]])


def a_process(
    worker_group: WorkerGroup, name: str, order: str = "none", crashes: int = 10, **more: Any
) -> WorkerProcess:
    return worker_group.worker_process(
        name,
        handle="crashing",
        on_poison="dead_letter",
        retry_order=order,
        retry={"attempts": 50, "wait_initial": 0.05, "multiplier": 1, "crashes": crashes},
        partitions=[(name, 0)],
        limits={"idle_check": 0.1, "lag_check": 0.1, "waiting": 4},
        **more,
    )


STEPS = ("Held", "Applied", "Advanced", "Committed", "WaitingForRetry", "SingleRecordAttempt", "RetrySucceeded")


@pytest.mark.long
@pytest.mark.repeats("seed", "order")
@pytest.mark.parametrize("order", ["key", "none"])
@pytest.mark.parametrize("seed", range(2))
def test_owners_are_killed_at_any_step(worker_group: WorkerGroup, seed: int, order: str) -> None:
    """I1, I4: each record is applied exactly once, and with ``key`` each key's in the order of the log."""
    chance, name = random.Random(seed), worker_group.topic()
    keys = [chance.choice("abcd") for _ in range(60)]
    values = [(key, chance.choice(["ok", "ok", "fail 1", "fail 2"])) for key in keys]
    stored = worker_group.produce(name, values)

    def is_done() -> bool:
        all_closed = all(state == "replayed" for _, state, _ in states(worker_group))
        return worker_group.positions().get(Partition(name, 0)) == len(stored) and all_closed

    kills = 0
    while kills < 8 and not is_done():
        stop_at = (chance.choice(STEPS), chance.randint(1, 4))
        process = a_process(worker_group, name, order, stop_at=stop_at)
        worker_group.wait(lambda process=process: process.is_stopped or is_done(), 60)  # type: ignore[misc]
        process.kill()
        kills += 1
    last = a_process(worker_group, name, order)
    worker_group.wait(is_done, 60)
    last.terminate()
    last.ended()
    print(f"seed {seed}, {order}: {kills} kills, {len(states(worker_group))} records waited")
    worker_group.record_table.assert_holds(name, stored, in_order=False)
    if order == "key":
        by_key = defaultdict(list)
        for _, offset in worker_group.record_table.written(name):
            by_key[keys[offset]].append(offset)
        assert all(offsets == sorted(offsets) for offsets in by_key.values()), f"seed {seed}: {dict(by_key)}"


def test_a_wait_for_a_waiting_record_ends_when_it_is_applied(
    worker_group: WorkerGroup, threads: ThreadPoolExecutor
) -> None:
    """Never with the word that it was applied before it was."""
    name = worker_group.topic()
    worker_group.produce(name, ["fail 1", "ok"])
    run = start(worker_group, name, "none", LATE)
    run.reached(name, 2)
    assert worker_group.ledger.wait_until_applied(name, 0, 1).applied
    with pytest.raises(NotApplied, match=r"dead letter \d+ waits for its retry: TimeoutError: no answer for 0") as late:
        worker_group.ledger.wait_until_applied(name, 0, 0, timeout=0.1)
    assert "tried 1 times, and again in" in str(late.value)
    waiting = threads.submit(worker_group.ledger.wait_until_applied, name, 0, 0, timeout=30)
    make_due(worker_group)
    assert waiting.result(30).state is State.REPLAYED
    run.stop()


def test_while_the_group_is_paused_nothing_is_retried(worker_group: WorkerGroup) -> None:
    name = worker_group.topic()
    stored = worker_group.produce(name, ["fail 1", "ok"])
    run = start(worker_group, name, "none", LATE)
    run.reached(name, 2)
    worker_group.ledger.pause(reason="a migration")
    run.seen.wait_for(events.Paused)
    make_due(worker_group)
    tried = len(run.seen.all(events.SingleRecordAttempt))
    worker_group.ledger.resume()
    worker_group.wait(lambda: closed(worker_group, 1))
    assert (tried, run.seen.all(events.SingleRecordAttempt)[0].attempt) == (0, 2)
    run.stop()
    worker_group.record_table.assert_holds(name, stored, in_order=False)


@pytest.mark.parametrize(("to", "applied"), [(3, [1, 0]), (0, [1, 0, 1])])
def test_a_reset_forwards_leaves_it_waiting_and_one_before_it_reads_it_again(
    worker_group: WorkerGroup, to: int, applied: list[int]
) -> None:
    name = worker_group.topic()
    worker_group.produce(name, ["fail 1", "ok", "fail", "fail"])
    run = start(worker_group, name, "none", LATE, partitions=[(name, 0)])
    run.reached(name, 4)
    worker_group.sql("UPDATE {schema}.dead_letter SET state = 'discarded' WHERE record_offset > 1")
    run.stop()
    worker_group.ledger.reset_offset(name, 0, 2 if to else 0, reason="again", log=None)
    if to:
        worker_group.ledger.reset_offset(name, 0, 4, reason="past them", log=None)
    make_due(worker_group)
    enter: Any = worker_group.record_table.enter
    values = {"handle": lambda tx, batch: enter(tx, [record for record in batch if record.offset < 2])}
    run = start(worker_group, name, "none", partitions=[(name, 0)], pipeline=values)
    worker_group.wait(lambda: (0, 0) in worker_group.record_table.written(name))
    worker_group.wait_for_position(name, 4)
    run.stop()
    assert sorted(offset for _, offset in worker_group.record_table.written(name)) == sorted(applied)


def test_too_many_that_fail_for_good_end_the_worker_and_stay_waiting(worker_group: WorkerGroup) -> None:
    name = worker_group.topic()
    worker_group.produce(name, ["fail"] * 5)
    limits = {"dead_letter_limits": DeadLetterLimits(consecutive=2)}
    run = start(worker_group, name, "none", Retry(attempts=2, wait_initial=0.1), pipeline=limits)
    run.ends_with(TooManyDeadLetters, "more than 2 waiting records in a row failed on every attempt")
    assert [state for _, state, _ in states(worker_group)].count("dead_lettered") == 2
    assert [state for _, state, _ in states(worker_group)].count("waiting") == 3
    assert worker_group.dead_letters("crashes") == [(0, n, 0) for n in range(5)], "that was no crash"


def test_an_error_of_the_program_is_no_attempt(worker_group: WorkerGroup) -> None:
    """The record waits until the program is repaired."""
    name = worker_group.topic()
    stored = worker_group.produce(name, ["fail 1", "ok"])
    run = start(worker_group, name, "none", LATE)
    run.reached(name, 2)
    run.stop()
    worker_group.sql("ALTER TABLE {schema}.book RENAME TO away")
    make_due(worker_group)
    run = start(worker_group, name, "none", pipeline={"handle": worker_group.record_table.enter})
    run.seen.wait_for(events.SingleRecordAttempt, count=3)
    assert states(worker_group) == [(0, "waiting", 1)]
    (error,) = worker_group.dead_letters("replay_error")
    assert "UndefinedTable" in error[2]
    worker_group.sql("ALTER TABLE {schema}.away RENAME TO book")
    worker_group.wait(lambda: closed(worker_group, 1))
    run.stop()
    worker_group.record_table.assert_holds(name, stored, in_order=False)


def test_an_operator_may_retry_it_now_or_give_it_up(worker_group: WorkerGroup) -> None:
    name = worker_group.topic()
    stored = worker_group.produce(name, ["fail", "fail", "ok"])
    run = start(worker_group, name, "none", LATE)
    run.reached(name, 3)
    run.stop()
    enter = worker_group.record_table.enter
    pipeline = worker_group.pipeline(name, handle=enter, on_poison="dead_letter")
    dead_letters = Admin(worker_group.engine, schema=worker_group.schema).dead_letters(pipeline)
    assert not list(dead_letters.list()), "no operator has to decide"
    first, second = dead_letters.list(Where(states=(State.WAITING,)))
    assert first.retry_at is not None
    assert dead_letters.replay(first.id).is_applied
    assert dead_letters.discard(second.id, reason="test order")[0].refusal is None
    assert [row[:2] for row in states(worker_group)] == [(0, "replayed"), (1, "discarded")]
    worker_group.record_table.assert_holds(name, [stored[0], stored[2]], in_order=False)


def test_status_counts_what_waits(worker_group: WorkerGroup) -> None:
    name = worker_group.topic()
    worker_group.produce(name, ["fail", "ok"])
    run = start(worker_group, name, "none", LATE)
    run.reached(name, 2)
    admin = Admin(worker_group.engine, schema=worker_group.schema)
    (status,), _ = admin.status([worker_group.group])
    (partition,) = status.partitions
    assert (partition.waiting, partition.dead_letters) == (1, 0)
    assert partition.overdue_seconds is None
    (began,) = worker_group.sql("SELECT dead_lettered_at FROM {schema}.dead_letter")
    make_due(worker_group)
    worker_group.wait(lambda: states(worker_group) == [(0, "waiting", 2)])
    assert worker_group.sql("SELECT dead_lettered_at FROM {schema}.dead_letter") == [began], "it waits since then"
    worker_group.sql("UPDATE {schema}.dead_letter SET dead_lettered_at = dead_lettered_at - interval '2 hours'")
    (status,), _ = admin.status([worker_group.group])
    (group,) = [group for group in admin.groups()[0] if group.name == worker_group.group]
    assert group.waiting == 1
    for seconds in (status.partitions[0].oldest_waiting_seconds, group.oldest_waiting_seconds):
        assert seconds is not None
        assert 7200 <= seconds < 7500
    shown = seekpoint("status", worker_group.group, *worker_group.database_options).stdout
    assert "1 records that the lag does not count wait for their retries, the oldest for 2 h" in shown
    listed = seekpoint("groups", "list", *worker_group.database_options).stdout
    assert "0 (1 waiting for up to 2 h" in listed
    run.stop()
