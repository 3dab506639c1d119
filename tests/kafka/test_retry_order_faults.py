"""Records that wait for their retries: lost answers to COMMIT, and topics that are recreated."""

from __future__ import annotations

from typing import Any

import pytest

from kafka.test_retry_order import LATE, LIMITS, SOON, closed, make_due, start, states
from seekpoint import Limits, Partition, events
from seekpoint.admin import Admin, Where
from seekpoint.errors import ConfigError, Fenced, TopicRecreated
from seekpoint.pipeline.policy import DeadLetterLimits
from seekpoint.records import Failure, State
from seekpoint.worker.replay.retries import Retrier
from support.crashing_handlers import CrashingHandler
from support.events import Gate, Run
from support.ledger_worker import scalar
from support.postgres_proxy import PostgresProxy, When
from support.worker_group import WorkerGroup

pytestmark = pytest.mark.usefixtures("short_backoff")

# Each transaction of a waiting record, by words that only its statement has.
STEPS = {
    "it is set waiting": "dead_letter_record_key",
    "an attempt begins": "crashes + CASE",
    "it fails again": "replay_error = CASE",
    "it is applied": "replays + CASE",
}
KEYED = [("a", "ok"), ("b", "fail 2"), ("a", "ok"), ("b", "ok"), ("c", "ok")]


def is_asked(worker_group: WorkerGroup) -> bool:
    """Whether a session waits for a lock on the group's positions: it asks whether the COMMIT took effect."""
    positions = f"{worker_group.schema}.partition_offset"
    query = f"""
        SELECT count(*) FROM pg_locks
        WHERE relation = '{positions}'::regclass AND cardinality(pg_blocking_pids(pid)) > 0"""
    return bool(scalar(worker_group.engine, query))


@pytest.mark.repeats("when", "order")
@pytest.mark.parametrize("order", ["key", "none"])
@pytest.mark.parametrize("when", ["before_commit", "after_commit", "after_commit_delayed"])
@pytest.mark.parametrize("step", STEPS)
def test_an_answer_to_commit_is_lost(
    worker_group: WorkerGroup, proxy: PostgresProxy, step: str, when: When, order: str
) -> None:
    """I1, I4: whether that COMMIT took effect or not, each record is applied once, and each failure is counted once."""
    name = worker_group.topic()
    proxy.arm(when, STEPS[step])
    limits = Limits(idle_check=0.1, lag_check=0.2, claim_wait=20.0)
    run = start(worker_group, name, order, engine=proxy.dsn, limits=limits)
    stored = worker_group.produce(name, KEYED)
    proxy.wait_until_fired()
    if when == "after_commit_delayed":
        worker_group.wait(lambda: is_asked(worker_group))
        assert proxy.deliver() == "COMMIT"
    worker_group.wait_for_position(name, 5)
    worker_group.wait(lambda: closed(worker_group, 2 if order == "key" else 1))
    run.stop()
    assert proxy.counts[when] == 1
    assert states(worker_group) == [(1, "replayed", 2), (3, "replayed", 0)][: 2 if order == "key" else 1]
    worker_group.record_table.assert_holds(name, stored, in_order=False)
    if order == "key":
        written = [offset for _, offset in worker_group.record_table.written(name)]
        assert [offset for offset in written if offset in {1, 3}] == [1, 3]
    assert {crashes for *_, crashes in worker_group.dead_letters("crashes")} <= {0, 1}, "one attempt at a time"


def test_a_row_that_is_gone_when_its_failure_is_stored_ends_no_worker(
    worker_group: WorkerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its group was replaced or forgotten after the retry was rolled back."""
    name, failure = worker_group.topic(), Retrier._failure

    def of_a_row_that_is_gone(self: Retrier, *about: Any) -> Failure:
        worker_group.sql("DELETE FROM {schema}.dead_letter")
        return failure(self, *about)

    monkeypatch.setattr(Retrier, "_failure", of_a_row_that_is_gone)
    worker_group.produce(name, ["fail", "ok"])
    run = start(worker_group, name, "none", SOON)
    run.seen.wait_for(events.SingleRecordAttempt)
    worker_group.wait(lambda: not states(worker_group))
    worker_group.produce(name, ["ok"])
    run.finish(name, 3)
    worker_group.record_table.assert_holds(name, [(0, 1), (0, 2)])


def test_an_error_that_ends_the_worker_during_a_retry_is_no_crash(worker_group: WorkerGroup) -> None:
    """I4: three workers in a row end in the attempt; the next one applies the record."""
    name = worker_group.topic()
    stored = worker_group.produce(name, ["fail", "ok"])

    def handle(_tx: Any, batch: Any) -> None:
        if any(record.value == "fail" for record in batch):
            raise (ConfigError if states(worker_group) else TimeoutError)("no password")
        worker_group.record_table.enter(_tx, batch)

    for _ in range(3):
        run = start(worker_group, name, "none", SOON, pipeline={"handle": handle})
        run.ends_with(ConfigError, "no password")
        assert worker_group.dead_letters("state", "crashes") == [(0, 0, "waiting", 0)]
    run = start(worker_group, name, "none", pipeline={"handle": worker_group.record_table.enter})
    worker_group.wait(lambda: closed(worker_group, 1))
    run.stop()
    worker_group.record_table.assert_holds(name, stored, in_order=False)


def test_a_row_that_may_not_be_applied_yet_waits_and_others_are_retried(worker_group: WorkerGroup) -> None:
    """A forged row is beyond the position; the worker keeps its claim."""
    name = worker_group.topic()
    stored = worker_group.produce(name, ["fail 1", "fail 1", "ok"])
    run = start(worker_group, name, "none", LATE)
    run.reached(name, 3)
    worker_group.sql("UPDATE {schema}.dead_letter SET record_offset = 7 WHERE record_offset = 0")
    make_due(worker_group)
    worker_group.wait(lambda: closed(worker_group, 1))
    run.stop()
    assert not run.seen.all(events.Refused)
    assert states(worker_group) == [(1, "replayed", 1), (7, "waiting", 1)]
    assert "will be read again" in worker_group.dead_letters("replay_error")[1][-1]
    worker_group.record_table.assert_holds(name, stored[1:], in_order=False)


def test_i2_a_failure_under_a_lost_claim_is_not_stored(
    worker_group: WorkerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I2: another worker claims the partition after the attempt's transaction was rolled back."""
    name, failure = worker_group.topic(), Retrier._failure

    def as_another_claims(self: Retrier, *about: Any) -> Failure:
        worker_group.sql("UPDATE {schema}.partition_offset SET token = gen_random_uuid(), owner = gen_random_uuid()")
        worker_group.sql("UPDATE {schema}.dead_letter SET attempts = 4, crashes = 1")
        return failure(self, *about)

    monkeypatch.setattr(Retrier, "_failure", as_another_claims)
    worker_group.produce(name, ["fail", "ok"])
    run = start(worker_group, name, "none", SOON, partitions=[(name, 0)])
    run.ends_with(Fenced, "was claimed by another worker")
    assert worker_group.dead_letters("attempts", "crashes") == [(0, 0, 4, 1)]


# -- another topic under the same name ----------------------------------------------------------------------------

RECREATED = "it waited for its retry when its topic was deleted and created again"


def recreate(worker_group: WorkerGroup, name: str, values: list[Any]) -> list[tuple[int, int]]:
    """Delete the topic, and create it again with these records."""
    worker_group.delete_topic(name)
    worker_group.topic(name=name)
    return worker_group.produce(name, values)


def restart(worker_group: WorkerGroup, name: str) -> None:
    """Decide to read the new topic from its beginning."""
    topic_id = worker_group.topic_id(name)
    worker_group.ledger.reset_offset(name, 0, 0, topic_id=topic_id, log=None, reason="restart", lost="recreated")


def rows_of(worker_group: WorkerGroup, name: str) -> list[tuple[Any, ...]]:
    """Offset, state and error of the topic's dead letters."""
    query = "SELECT record_offset, state, error FROM {schema}.dead_letter WHERE topic = '%s' ORDER BY 1"
    return [tuple(row) for row in worker_group.sql(query % name)]


def stopped(run: Run) -> None:
    """Wait until the partition has stopped because its topic was recreated."""
    run.seen.wait_for(events.PartitionStopped, lambda event: isinstance(event.error, TopicRecreated))


def test_i4_what_waits_when_its_topic_is_recreated_is_never_applied(worker_group: WorkerGroup) -> None:
    """I4: not while the partition is stopped, and after the decision it is a dead letter that blocks no new record."""
    name, other = worker_group.topic(), worker_group.topic()
    worker_group.produce(name, [("k", "fail 1"), ("k", "ok"), ("l", "fail 1"), ("m", "ok")])
    worker_group.produce(other, ["ok"] * 5 + ["fail 1"])  # the handler counts by partition and offset
    handle = CrashingHandler(worker_group.record_table)
    topics: Any = [name, other]
    options = {"on_poison": "dead_letter", "retry_order": "key", "retry": LATE, "handle": handle}
    # Records of an earlier topic did not fail again: they do not count.
    options["dead_letter_limits"] = DeadLetterLimits(consecutive=1)
    pipeline = worker_group.pipeline(topics, **options)
    run = worker_group.worker(pipeline, limits=LIMITS, observe=[handle.watch])
    run.reached(name, 4)
    run.reached(other, 6)
    new = recreate(worker_group, name, [("k", "ok"), ("l", "ok"), ("m", "ok")])
    stopped(run)
    make_due(worker_group)
    worker_group.wait(lambda: closed(worker_group, 1))  # the other topic's
    assert [row[:2] for row in rows_of(worker_group, name)] == [(0, "waiting"), (1, "waiting"), (2, "waiting")]
    restart(worker_group, name)
    worker_group.wait(lambda: {*new} <= {*worker_group.record_table.written(name)})
    worker_group.wait(lambda: not any(row[1] == "waiting" for row in rows_of(worker_group, name)))
    run.stop()
    first, second, third = rows_of(worker_group, name)
    assert (first[:2], second[:2], third[:2]) == ((0, "dead_lettered"), (1, "blocked"), (2, "dead_lettered"))
    assert RECREATED in first[2]
    assert RECREATED in third[2]
    assert sorted(worker_group.record_table.written(name)) == sorted([(0, 3), *new])
    dead_letters = Admin(worker_group.engine, schema=worker_group.schema).dead_letters(pipeline)
    refused = dead_letters.replay_all(Where(states=(State.DEAD_LETTERED, State.BLOCKED)))
    assert refused.replayed == 0
    assert sorted(worker_group.record_table.written(name)) == sorted([(0, 3), *new])


def test_i2_a_retry_that_was_about_to_begin_when_the_new_topic_was_accepted_applies_nothing(
    worker_group: WorkerGroup,
) -> None:
    """I2, I4: the decision has drawn another claim; the record is another topic's."""
    name, gate = worker_group.topic(), Gate(events.SingleRecordAttempt)
    worker_group.produce(name, ["fail 1", "ok"])
    run = start(worker_group, name, "none", SOON, observe=[gate])
    gate.wait()
    new = recreate(worker_group, name, ["ok", "ok", "ok"])
    restart(worker_group, name)
    gate.open()
    worker_group.wait(lambda: rows_of(worker_group, name)[0][1] == "dead_lettered")
    worker_group.wait_for_position(name, 3)
    run.stop()
    assert RECREATED in rows_of(worker_group, name)[0][2]
    assert sorted(worker_group.record_table.written(name)) == sorted([(0, 1), *new])
    assert worker_group.positions() == {Partition(name, 0): 3}
