"""A worker stores what operators look at, and waits for none of it: rights, locks and servers that are missing."""

from __future__ import annotations

import random
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, make_url, text

from seekpoint import Limits, events
from seekpoint.worker import status_writer
from support.counted_pools import CountedPools
from support.fixtures import NewEngine
from support.postgres_proxy import PostgresProxy
from support.worker_group import WorkerGroup

OFTEN = Limits(idle_check=0.1, lag_check=0.1, sample_positions=1)


def rows(worker_group: WorkerGroup, what: str) -> list[Any]:
    return list(worker_group.sql(f"SELECT * FROM {{schema}}.{what}"))


def test_a_worker_is_seen_with_its_lag_and_its_declaration(worker_group: WorkerGroup) -> None:
    name, _ = worker_group.log(10)
    run = worker_group.worker(name, limits=OFTEN, kafka={"client.id": "orders-1"})
    run.reached(name, 10)
    worker_group.wait(lambda: [row.lag_records for row in rows(worker_group, "lag")] == [0])
    (seen,) = rows(worker_group, "worker")
    assert (seen.owner.hex, seen.consumer_group) == (run.seen.all(events.Started)[0].owner, worker_group.group)
    assert (seen.client_id, seen.version, seen.state) == ("orders-1", 1, "running")
    (sampled, *_) = rows(worker_group, "position_sample")
    assert (sampled.topic, sampled.partition, sampled.log_start, sampled.log_end) == (name, 0, 0, 10)
    assert sampled.topic_id == worker_group.topic_id(name)
    (group,) = rows(worker_group, "group_status")
    assert (group.workers, group.owned, group.lag_records) == (1, 1, 0)
    ((declared,),) = worker_group.sql("SELECT declared FROM {schema}.consumer_group")
    assert declared[name]["on_poison"] == "stop"
    assert [sink["kind"] for sink in declared[name]["sinks"]] == ["Append"]
    assert "are written twice" in declared[name]["weakens"][-1]
    run.stop()
    assert [row.state for row in rows(worker_group, "worker")] == ["ended"]
    assert [row.workers for row in rows(worker_group, "group_status")] == [0]


@pytest.mark.long
def test_old_samples_are_pruned_by_the_owner_of_the_partition(
    worker_group: WorkerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each partition with some sample: which one first is left to chance, as workers may live for minutes."""
    monkeypatch.setattr(status_writer, "PRUNE", 2)
    name, _ = worker_group.log(10)
    worker_group.worker(name, limits=OFTEN).reached(name, 10)
    worker_group.wait(lambda: bool(rows(worker_group, "position_sample")))
    worker_group.sql("UPDATE {schema}.position_sample SET at = at - interval '31 days'")
    worker_group.wait(
        lambda: not worker_group.sql("SELECT FROM {schema}.position_sample WHERE at < now() - interval '1 day'")
    )


def test_samples_can_be_turned_off(worker_group: WorkerGroup) -> None:
    name, _ = worker_group.log(10)
    run = worker_group.worker(name, limits=Limits(idle_check=0.1, lag_check=0.05, sample_positions=0))
    run.reached(name, 10)
    run.seen.wait_for(events.LagSampled, count=5)
    run.stop()
    assert rows(worker_group, "position_sample") == []
    assert len(rows(worker_group, "worker")) == 1
    worker_group.sql("UPDATE {schema}.worker SET seen_at = seen_at - interval '2 days'")
    again = worker_group.worker(name, limits=Limits(idle_check=0.1, lag_check=0.05, sample_positions=0))
    worker_group.wait(
        lambda: len(rows(worker_group, "worker")) == 1 and rows(worker_group, "worker")[0].state != "ended"
    )
    again.stop()


@pytest.fixture
def limited_engine(worker_group: WorkerGroup, seekpoint_engine: Engine) -> Any:
    """An engine of a role that may do all but write what is for display."""
    role, schema = f"limited_{worker_group.schema}", f'"{worker_group.schema}"'
    worker_group.sql(
        f"CREATE ROLE \"{role}\" LOGIN PASSWORD 'a test alone'",
        f'GRANT USAGE ON SCHEMA {schema} TO "{role}"',
        f'GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO "{role}"',
        f'REVOKE ALL ON {schema}.worker, {schema}.position_sample FROM "{role}"',
    )
    engine = create_engine(make_url(worker_group.dsn).set(username=role, password="a test alone"))
    yield engine
    engine.dispose()
    worker_group.sql(f'DROP OWNED BY "{role}"', f'DROP ROLE "{role}"')


@pytest.mark.long
def test_missing_rights_are_one_warning(worker_group: WorkerGroup, limited_engine: Engine) -> None:
    name, _ = worker_group.log(10)
    run = worker_group.worker(name, limits=OFTEN, engine=limited_engine)
    run.reached(name, 10)
    event = run.seen.wait_for(events.StatusNotStored)
    assert "permission denied for table worker" in str(event)
    run.seen.wait_for(events.LagSampled, count=10, since=run.seen.mark())
    run.stop()
    assert len(run.seen.all(events.StatusNotStored)) == 1
    assert rows(worker_group, "worker") == []


@pytest.mark.long
def test_a_locked_table_delays_no_batch_and_no_end(worker_group: WorkerGroup) -> None:
    """Each statement ends after a second; the worker does not wait for it."""
    name = worker_group.topic()
    with worker_group.engine.connect() as other:
        other.execute(text(f'LOCK TABLE "{worker_group.schema}".worker IN ACCESS EXCLUSIVE MODE'))
        run = worker_group.worker(name, limits=OFTEN)
        run.seen.wait_for(events.StatusNotStored, lambda e: "timeout" in str(e))
        for n in range(20):
            worker_group.produce(name, [str(n)])
            run.reached(name, n + 1)
        committed = run.seen.all(events.Committed)
        run.stop()
    assert len(committed) == 20
    assert max(b.at - a.at for a, b in pairwise(committed)) < 1.0, "no batch has waited for it"


def test_a_worker_takes_two_connections_of_its_pool_and_one_for_display(
    worker_group: WorkerGroup, new_engine: NewEngine
) -> None:
    """Also while what is for display hangs; claims and releases take place meanwhile. None is the application's."""
    engine = new_engine(worker_group.dsn, pool_size=1, max_overflow=0, pool_timeout=20)
    pools, name = CountedPools(engine), worker_group.topic()
    with worker_group.engine.connect() as other, engine.connect():
        run = worker_group.worker(name, limits=OFTEN, engine=engine)
        run.ready()
        worker_group.wait(lambda: bool(rows(worker_group, "position_sample")))
        other.execute(text(f'LOCK TABLE "{worker_group.schema}".worker IN ACCESS EXCLUSIVE MODE'))
        run.seen.wait_for(events.StatusNotStored, lambda e: "timeout" in str(e))
        worker_group.produce(name, ["a"])
        run.reached(name, 1)
        run.stop()
    assert pools.most.pop("seekpoint-status") == 1
    assert max(pools.most.values()) <= 2


def test_the_warning_comes_again_after_a_success(worker_group: WorkerGroup) -> None:
    name, _ = worker_group.log(3)
    worker_group.sql("ALTER TABLE {schema}.worker RENAME TO elsewhere")
    run = worker_group.worker(name, limits=OFTEN)
    run.seen.wait_for(events.StatusNotStored)
    worker_group.sql("ALTER TABLE {schema}.elsewhere RENAME TO worker")
    # Seen twice: all that is written after the row, the first time, is written too.
    worker_group.wait(
        lambda: any(row.seen_at - row.started_at > timedelta(milliseconds=50) for row in rows(worker_group, "worker"))
    )
    worker_group.sql("ALTER TABLE {schema}.worker RENAME TO elsewhere")
    run.seen.wait_for(events.StatusNotStored, count=2)
    worker_group.sql("ALTER TABLE {schema}.elsewhere RENAME TO worker")
    run.stop()
    assert [row.state for row in rows(worker_group, "worker")] == ["ended"]


@pytest.mark.repeats("seed")
@pytest.mark.parametrize("seed", range(3))
def test_a_database_that_goes_away_in_between_is_no_error_of_the_worker(
    worker_group: WorkerGroup, proxy: PostgresProxy, new_engine: NewEngine, seed: int
) -> None:
    """Connections are cut at statements for display and around COMMIT; each record is applied once."""
    chance = random.Random(seed)
    name = worker_group.topic()
    run = worker_group.worker(name, limits=OFTEN, engine=new_engine(proxy.dsn, pool_pre_ping=True))
    for n in range(6):
        if chance.random() < 0.5:
            proxy.arm("at_statement", chance.choice(["position_sample", ".worker", "declared"]))
        else:
            proxy.arm(chance.choice(["before_commit", "after_commit"]), skip=chance.randrange(3))
        worker_group.produce(name, [str(n)])
        worker_group.wait_for_position(name, n + 1)
    proxy.arm("at_statement", "nothing any more")
    worker_group.wait(lambda: bool(rows(worker_group, "position_sample")))
    run.ready()
    run.stop()
    assert sorted(offset for _, offset in worker_group.record_table.written(name)) == list(range(6)), f"seed {seed}"


@pytest.mark.long
def test_a_killed_worker_is_not_counted_for_long(worker_group: WorkerGroup) -> None:
    """Its row stays, as it was seen last; the next worker writes its own."""
    name, _ = worker_group.log(10)
    process = worker_group.worker_process(name)
    worker_group.wait_for_position(name, 10)
    worker_group.wait(lambda: len(rows(worker_group, "worker")) == 1)
    process.kill()
    (killed,) = rows(worker_group, "worker")
    assert (killed.state, killed.pid) == ("running", process.pid)
    worker_group.sql("UPDATE {schema}.worker SET seen_at = seen_at - interval '1 minute'")
    assert [row.workers for row in rows(worker_group, "group_status")] == [0]
    run = worker_group.worker(name, limits=OFTEN)
    worker_group.wait(lambda: [row.workers for row in rows(worker_group, "group_status")] == [1])
    run.stop()
    assert sorted(row.state for row in rows(worker_group, "worker")) == ["ended", "running"]
