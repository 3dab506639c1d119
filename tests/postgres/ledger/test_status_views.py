"""Samples and the views: lag in records and in time, headroom, what is not known; pruning."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, select, text

from seekpoint.ledger.status import StatusTables, WorkerProcess
from seekpoint.ledger.tables import group_status, in_schema, lag
from support.ledger_worker import LedgerWorker

NewLedgerWorker = Callable[..., LedgerWorker]
PROCESS = WorkerProcess("host-1", 4711, "orders-1", "0.1.0")


def status_of(worker: LedgerWorker) -> StatusTables:
    return StatusTables(worker.ledger, PROCESS)


def view(worker: LedgerWorker, which: Any) -> list[Any]:
    with worker.ledger.engine.connect() as tx:
        return list(tx.execute(select(which).order_by(which.c[0]), execution_options=in_schema(worker.ledger.schema)))


def execute(worker: LedgerWorker, statement: str, **values: Any) -> Any:
    with worker.ledger.engine.begin() as tx:
        done = tx.execute(text(statement.replace("{s}", f'"{worker.ledger.schema}"')), values)
        return done.all() if done.returns_rows else done.rowcount


def age(worker: LedgerWorker, by: str) -> None:
    """All samples are so much older."""
    execute(worker, f"UPDATE {{s}}.position_sample SET at = at - interval '{by}'")


def test_lag_and_headroom_of_a_sample(new_worker: NewLedgerWorker) -> None:
    worker = new_worker(positions={0: 5, 1: 7})
    status_of(worker).seen("running")
    status_of(worker).sample({worker.topic_partition(0): (2, 25), worker.topic_partition(1): (0, 7)})
    first, second = sorted(view(worker, lag), key=lambda row: row.partition)
    assert (first.next_offset, first.lag_records, first.headroom_records) == (5, 20, 3)
    assert (second.lag_records, second.lag_seconds, second.headroom_records) == (0, 0.0, 7)
    assert (first.owner, first.host, first.pid) == (worker.ledger.owner, "host-1", 4711)
    assert first.owned
    assert first.sample_age < timedelta(minutes=1)
    (group,) = view(worker, group_status)
    assert (group.partitions, group.owned, group.stopped, group.workers) == (2, 2, 0, 1)
    assert (group.lag_records, group.unknown_lag, group.headroom_records) == (20, 0, 3)


@pytest.mark.parametrize("change", ["state = 'ended'", "seen_at = seen_at - interval '1 minute'"])
def test_a_worker_that_has_ended_or_was_not_seen_lately_has_no_partition(
    new_worker: NewLedgerWorker, change: str
) -> None:
    worker = new_worker(positions={0: 5})
    assert [row.owned for row in view(worker, lag)] == [False], "its row is not written yet"
    status_of(worker).seen("running")
    assert [row.owned for row in view(worker, lag)] == [True]
    execute(worker, f"UPDATE {{s}}.worker SET {change}")
    assert [(row.owned, row.owner) for row in view(worker, lag)] == [(False, worker.ledger.owner)]


@pytest.mark.parametrize("minutes", [2, 4])
def test_an_old_sample_says_nothing_of_the_lag(new_worker: NewLedgerWorker, minutes: int) -> None:
    """With all workers dead, a small lag that no owner updates must not look healthy."""
    worker = new_worker(positions={0: 5, 1: 5})
    status_of(worker).sample({worker.topic_partition(0): (0, 6), worker.topic_partition(1): (0, 6)})
    age(worker, f"{minutes} minutes")
    status_of(worker).sample({worker.topic_partition(1): (0, 6)})
    first, second = sorted(view(worker, lag), key=lambda row: row.partition)
    (group,) = view(worker, group_status)
    is_known = minutes == 2
    assert (first.lag_records, first.headroom_records) == ((1, 5) if is_known else (None, None))
    assert second.lag_records == 1
    assert (group.lag_records, group.unknown_lag) == ((2, 0) if is_known else (None, 1))
    assert group.sample_age > timedelta(minutes=minutes)


def test_a_position_past_the_end_of_the_log_is_no_lag_of_zero(new_worker: NewLedgerWorker) -> None:
    worker = new_worker(positions={0: 50})
    status_of(worker).sample({worker.topic_partition(0): (0, 6)})
    assert [row.lag_records for row in view(worker, lag)] == [None]


def test_a_position_that_has_passed_the_sample_is_a_lag_of_zero(new_worker: NewLedgerWorker) -> None:
    worker = new_worker(positions={0: 5})
    status_of(worker).sample({worker.topic_partition(0): (0, 6)})
    worker.commit({0: 9})
    assert [(row.lag_records, row.lag_seconds) for row in view(worker, lag)] == [(0, 0.0)]


def test_an_old_sample_says_when_it_was_and_how_fast_retention_deleted(new_worker: NewLedgerWorker) -> None:
    """For the exporter, which asks the brokers where the log is now."""
    worker = new_worker(positions={0: 150})
    status = status_of(worker)
    for start, end, later in ((0, 100, "20 minutes"), (40, 140, "30 minutes"), (60, 200, "30 minutes")):
        status.sample({worker.topic_partition(0): (start, end)})
        age(worker, later)
    (row,) = view(worker, lag)
    assert (row.lag_records, row.lag_seconds, row.headroom_seconds) == (None, None, None)
    assert row.sampled_at - row.reached_at == pytest.approx(timedelta(minutes=30), abs=timedelta(seconds=9))
    assert (row.reached_end, row.past_log_start) == (140, 0)
    assert row.next_record_at - row.reached_at == pytest.approx(timedelta(minutes=5), abs=timedelta(seconds=9))
    assert row.sampled_at - row.log_start_since == pytest.approx(timedelta(minutes=50), abs=timedelta(seconds=9))
    age(worker, "2 days")
    (row,) = view(worker, lag)
    assert (row.log_start_since, row.past_log_start) == (row.sampled_at, 60)


def test_lag_in_time_is_interpolated_between_samples(new_worker: NewLedgerWorker) -> None:
    """The log's end was at 100 an hour ago, at 200 half an hour ago: offset 150 came three quarters of an hour ago."""
    worker = new_worker(positions={0: 150})
    status = status_of(worker)
    for end, later in ((100, "30 minutes"), (200, "29 minutes"), (300, "1 minute")):
        status.sample({worker.topic_partition(0): (0, end)})
        age(worker, later)
    status.sample({worker.topic_partition(0): (0, 310)})
    (row,) = view(worker, lag)
    assert row.lag_records == 160
    assert row.lag_seconds == pytest.approx(45 * 60, abs=30)


def test_before_the_first_sample_the_last_record_says_how_late_it_is(new_worker: NewLedgerWorker) -> None:
    worker = new_worker(positions={0: 5})
    execute(worker, "UPDATE {s}.partition_offset SET record_time = clock_timestamp() - interval '7 minutes'")
    status_of(worker).sample({worker.topic_partition(0): (0, 90)})
    (row,) = view(worker, lag)
    assert row.lag_seconds == pytest.approx(7 * 60, abs=10)


def test_a_lag_in_time_that_is_not_known_is_null(new_worker: NewLedgerWorker) -> None:
    """Nothing was applied yet, and the first sample was late: zero would look healthy."""
    worker = new_worker(positions={0: 5})
    execute(worker, "UPDATE {s}.partition_offset SET record_time = NULL")
    status_of(worker).sample({worker.topic_partition(0): (0, 90)})
    assert [(row.lag_records, row.lag_seconds) for row in view(worker, lag)] == [(85, None)]


def test_headroom_in_time_is_extrapolated(new_worker: NewLedgerWorker) -> None:
    """The log's start moves by 100 records an hour, and 300 are left."""
    worker = new_worker(positions={0: 500})
    status = status_of(worker)
    status.sample({worker.topic_partition(0): (100, 600)})
    age(worker, "60 minutes")
    status.sample({worker.topic_partition(0): (200, 600)})
    (row,) = view(worker, lag)
    assert row.headroom_records == 300
    assert row.headroom_seconds == pytest.approx(3 * 3600, rel=0.02)


def test_a_sample_of_an_earlier_life_of_the_topic_is_of_another_log(new_worker: NewLedgerWorker) -> None:
    worker = new_worker(positions={0: 5})
    status_of(worker).sample({worker.topic_partition(0): (0, 90)})
    execute(worker, "UPDATE {s}.partition_offset SET topic_id = gen_random_uuid()")
    assert [(row.lag_records, row.sampled_at) for row in view(worker, lag)] == [(None, None)]


def test_only_the_owner_samples_a_partition(new_worker: NewLedgerWorker) -> None:
    """Two workers that both believe to have it must not write two histories."""
    worker = new_worker(positions={0: 5})
    status_of(new_worker()).sample({worker.topic_partition(0): (0, 90)})
    assert execute(worker, "SELECT FROM {s}.position_sample") == []


def test_samples_are_pruned_to_an_hour_after_a_day_and_go_after_a_month(new_worker: NewLedgerWorker) -> None:
    worker = new_worker(positions={0: 5, 1: 5})
    execute(
        worker,
        "INSERT INTO {s}.position_sample SELECT 'g', 't', p, now() - n * interval '1 minute', gen_random_uuid(), 1, "
        "0, 1 FROM generate_series(1, 32 * 24 * 60) n, generate_series(0, 1) p",
    )
    status_of(worker).prune([worker.topic_partition(0)])
    kept = execute(
        worker,
        "SELECT partition, at > now() - interval '1 day' AS is_new, count(*), "
        "max(at) - min(at) FROM {s}.position_sample GROUP BY 1, 2 ORDER BY 1, 2",
    )
    counts = {(row[0], row[1]): row[2] for row in kept}
    assert counts[0, True] == pytest.approx(24 * 60, abs=1)
    assert counts[0, False] == pytest.approx(29 * 24, abs=2)
    assert counts[1, False] == pytest.approx(31 * 24 * 60, abs=2), "another partition's owner prunes it"
    before = execute(worker, "SELECT count(*) FROM {s}.position_sample")
    status_of(worker).prune([worker.topic_partition(0)])
    assert execute(worker, "SELECT count(*) FROM {s}.position_sample") == before


def test_workers_that_were_not_seen_for_a_day_are_deleted_by_others(new_worker: NewLedgerWorker) -> None:
    worker, other = new_worker(positions={0: 5}), new_worker()
    status_of(worker).seen("running")
    execute(worker, "UPDATE {s}.worker SET seen_at = seen_at - interval '25 hours'")
    status_of(other).seen("running")
    status_of(other).prune([])
    assert execute(worker, "SELECT owner FROM {s}.worker") == [(other.ledger.owner,)]


def test_a_declaration_is_kept_by_topic_at_the_version_of_the_group(new_worker: NewLedgerWorker) -> None:
    worker = new_worker(positions={0: 5})
    status = status_of(worker)
    status.declare({"a": {"on_poison": "stop"}})
    status.declare({"b": {"on_poison": "skip"}})
    both = {"a": {"on_poison": "stop"}, "b": {"on_poison": "skip"}}
    assert execute(worker, "SELECT declared FROM {s}.consumer_group") == [(both,)]
    execute(worker, "UPDATE {s}.consumer_group SET version = 2")
    status.declare({"a": {"on_poison": "dead_letter"}})
    assert execute(worker, "SELECT declared FROM {s}.consumer_group") == [(both,)], "of a version that is refused"


@pytest.mark.parametrize("fewer", [{"sinks": ["orders"]}, {"sinks": []}, {}])
def test_what_is_no_longer_declared_is_no_longer_stored(new_worker: NewLedgerWorker, fewer: dict[str, Any]) -> None:
    """A sink that was removed, or a sentence that does not hold any more."""
    worker = new_worker(positions={0: 5})
    status = status_of(worker)
    status.declare({"a": {"sinks": ["orders", "lines"]}, "b": {}})
    status.declare({"a": fewer})
    assert execute(worker, "SELECT declared FROM {s}.consumer_group") == [({"a": fewer, "b": {}},)]


def test_a_declaration_that_is_stored_already_locks_nothing(new_worker: NewLedgerWorker) -> None:
    worker = new_worker(positions={0: 5})
    status_of(worker).declare({"a": {}})
    with worker.ledger.engine.begin() as tx:
        tx.execute(text(f'SELECT FROM "{worker.ledger.schema}".consumer_group FOR UPDATE'))
        status_of(worker).declare({"a": {}})


@pytest.fixture
def reader(new_worker: NewLedgerWorker, seekpoint_engine: Engine) -> Any:
    """A connection that may read the views, and nothing else."""
    worker = new_worker(positions={0: 5})
    role, schema = f"reader_{worker.ledger.schema}", f'"{worker.ledger.schema}"'
    with seekpoint_engine.begin() as tx:
        tx.execute(text(f'CREATE ROLE "{role}"'))
        tx.execute(text(f'GRANT USAGE ON SCHEMA {schema} TO "{role}"'))
        tx.execute(text(f'GRANT SELECT ON {schema}.lag, {schema}.group_status TO "{role}"'))
    with seekpoint_engine.connect() as tx:
        tx.execute(text(f'SET ROLE "{role}"'))
        yield tx, schema
        tx.rollback()
        tx.execute(text("RESET ROLE"))
    with seekpoint_engine.begin() as tx:
        tx.execute(text(f'DROP OWNED BY "{role}"'))
        tx.execute(text(f'DROP ROLE "{role}"'))


def test_a_reader_needs_no_right_on_a_table(reader: tuple[Connection, str]) -> None:
    tx, schema = reader
    assert len(tx.execute(text(f"SELECT * FROM {schema}.lag")).all()) == 1
    assert len(tx.execute(text(f"SELECT * FROM {schema}.group_status")).all()) == 1
    with pytest.raises(Exception, match="permission denied"):
        tx.execute(text(f"SELECT * FROM {schema}.dead_letter"))


def test_the_views_show_no_texts_of_errors_and_no_records() -> None:
    names = {column.name for view in (lag, group_status) for column in view.columns}
    assert not names & {"key", "value", "stop_message", "stop_choices", "attempt_error", "error"}
