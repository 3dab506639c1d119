"""Crashes, repeated tasks, late tasks and takeovers: a batch is applied once, or not at all."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import OperationalError
from typer.testing import CliRunner

from seekpoint import Limits, Partition
from seekpoint.cli.app import app
from seekpoint.errors import BatchRefused, ConfigError, GroupPaused, ReloadOver
from seekpoint.jobs.batch import batch as job
from seekpoint.jobs.batch import steps
from seekpoint.jobs.batch.open import open_batch
from seekpoint.jobs.batch.publish import totals
from seekpoint.jobs.reload import Driver, LocalStager, Run, Staged, Task, stage_range
from seekpoint.kafka.ranges import Range
from seekpoint.ledger import GroupLedger
from seekpoint.metrics import LedgerGauges, Samples, catalogue
from seekpoint.runs.run import Tx
from seekpoint.testing.servers.postgres import PostgresServer
from support.batch_process import Batcher, PausingStager, batch, offsets, paused
from support.postgres_proxy import PostgresProxy
from support.reload_orders import OrdersGroup, doubled, gone, of, orders_group_on

FIRST = [of(n % 40, n, n) for n in range(120)] + [gone(3)]
LATER = [of(n % 50, n, n) for n in range(200, 230)]
PLACES = ["opened", "turn staging", "staging", "turn staged", "staged", "turn cut_over"]


@pytest.fixture
def orders_group(orders_group: OrdersGroup) -> OrdersGroup:
    """The group, with FIRST in its topic."""
    orders_group.produce(orders_group.topic, FIRST, partition=0)
    return orders_group


def kill_at(orders_group: OrdersGroup, step: str) -> UUID:
    """A driver in a process of its own begins a batch, and is killed at step ``step``."""
    Batcher(orders_group, step=step).kill_where_it_waits()
    return UUID(str(orders_group.execute("SELECT id FROM {schema}.reload_run WHERE strategy = 'batch'")[0][0]))


@pytest.mark.repeats("step")
@pytest.mark.parametrize("step", PLACES)
def test_the_batch_of_a_killed_driver_is_taken_over_and_finished(orders_group: OrdersGroup, step: str) -> None:
    run = kill_at(orders_group, step)
    assert orders_group.rows() == []
    assert offsets(orders_group) == {f"{orders_group.topic}/0": 0, f"{orders_group.topic}/1": 0}
    assert paused(orders_group) == f"batch {run}"
    orders_group.produce(orders_group.topic, LATER, partition=0)
    done = batch(orders_group).take_over(run)
    assert done.run == run
    assert done.records == len(FIRST), "its ranges are what they were"
    moved, _ = orders_group.ledger().read()
    assert moved.leader_epoch is not None, "I4: so that a log that is rewritten later is noticed"
    assert orders_group.rows() == doubled(FIRST, by=1)
    assert orders_group.schemas() == []
    assert batch(orders_group).run().records == len(LATER)
    assert orders_group.rows() == doubled(FIRST + LATER, by=1)
    assert paused(orders_group) is None


@pytest.mark.repeats("step")
@pytest.mark.parametrize("step", ["opened", "staging", "turn cut_over"])
def test_the_batch_of_a_killed_driver_is_aborted_and_workers_continue(orders_group: OrdersGroup, step: str) -> None:
    run = kill_at(orders_group, step)
    with pytest.raises(BatchRefused, match=f"--resume {run}.*abort {run}"):
        batch(orders_group).run()
    assert batch(orders_group).runs.abort(run, "its driver is dead").swept
    assert paused(orders_group) is None
    orders_group.produce(orders_group.topic, LATER[:10], partition=0)
    assert batch(orders_group).run().records == len(FIRST) + 10, "its own claims do not pass for a worker"
    worker = orders_group.worker()
    orders_group.produce(orders_group.topic, LATER[10:], partition=0)
    worker.finish(orders_group.topic, len(FIRST) + len(LATER))
    assert orders_group.rows() == doubled(FIRST + LATER, by=1)
    with pytest.raises(ReloadOver):
        batch(orders_group).take_over(run)


def test_a_batch_without_a_driver_is_found_and_swept(orders_group: OrdersGroup) -> None:
    run = kill_at(orders_group, "staging")
    ((by, reason),) = orders_group.execute("SELECT paused_by, paused_reason FROM {schema}.consumer_group")
    assert by == f"batch {run}"
    assert f"seekpoint batch MODULE:NAME --resume {run}" in reason
    assert f"seekpoint reload abort {run}" in reason
    where = orders_group.database_options
    shown = CliRunner().invoke(app, ["status", orders_group.group, *where], env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert f"{orders_group.group} is paused by batch {run}: {reason}" in shown.stdout
    statuses = json.loads(CliRunner().invoke(app, ["status", orders_group.group, *where, "--json"]).stdout)
    assert statuses[0]["paused"] == {"by": by, "reason": reason}
    runs = batch(orders_group).runs
    assert runs.sweep() == [], "it was heard of today"
    assert runs.sweep(timedelta(0)) == [run]
    assert paused(orders_group) is None
    assert "driver is gone" in (runs.get(run).error or "")
    assert batch(orders_group).run().records == len(FIRST)


def at_cut_over(monkeypatch: pytest.MonkeyPatch, then: Callable[[UUID, Tx], None]) -> None:
    """Do something in the last transaction of the batches to come, after its last statement."""

    class HookedDriver(Driver):
        def transition(self, tx: Tx, state: str) -> None:
            super().transition(tx, state)
            if state == "cut_over":
                then(self.run.id, tx)

    monkeypatch.setattr(job, "Driver", HookedDriver)


def test_a_group_that_was_resumed_and_advanced_keeps_the_batch_out(orders_group: OrdersGroup) -> None:
    """I2: a stale claim writes nothing."""

    def meanwhile(run: Run) -> None:
        orders_group.ledger().resume(reason="impatience")
        orders_group.work(len(FIRST))

    first = batch(orders_group, stager=PausingStager(orders_group, meanwhile))
    with pytest.raises(BatchRefused, match="nothing of it is written"):
        first.run()
    (run,) = first.runs.list()
    assert run.state == "failed"
    assert orders_group.rows() == doubled(FIRST, by=1)
    assert offsets(orders_group)[f"{orders_group.topic}/0"] == len(FIRST)
    assert paused(orders_group) is None


def test_a_claim_alone_keeps_the_batch_out(orders_group: OrdersGroup) -> None:
    """I2: also where no position has changed."""

    def meanwhile(run: Run) -> None:
        orders_group.ledger().reset_offset(orders_group.topic, 0, 0, log=None, reason="a move that moves nothing")

    with pytest.raises(BatchRefused, match="claimed the group's partitions"):
        batch(orders_group, stager=PausingStager(orders_group, meanwhile)).run()
    assert orders_group.rows() == []
    assert offsets(orders_group)[f"{orders_group.topic}/0"] == 0
    assert batch(orders_group).run().records == len(FIRST)


def test_a_batch_that_is_taken_over_after_a_worker_advanced_is_ended(orders_group: OrdersGroup) -> None:
    """I3: its ranges no longer begin at the group's positions."""
    run = kill_at(orders_group, "staging")
    orders_group.ledger().resume(reason="impatience")
    worker = orders_group.worker()
    worker.reached(orders_group.topic, len(FIRST))
    worker.placed(2)
    owners = (
        rf"workers own partitions of group '{orders_group.group}': \w{{8}} \(since .*\)\. Stop them; or give --pause "
        r"\(pause=True\), so that they wait while the batch runs"
    )
    with pytest.raises(BatchRefused, match=owners):
        batch(orders_group).take_over(run)
    assert batch(orders_group).runs.get(run).is_open, "nothing was decided"
    worker.stop()
    with pytest.raises(BatchRefused, match=f"is now at offset {len(FIRST)}"):
        batch(orders_group).take_over(run)
    assert batch(orders_group).runs.get(run).state == "failed"
    assert paused(orders_group) is None
    assert orders_group.rows() == doubled(FIRST, by=1)


def test_two_drivers_of_one_batch(orders_group: OrdersGroup) -> None:
    """The one that takes it has it; the other fails at its next step, with nothing written."""
    done: list[Any] = []

    def take(run: Run) -> None:
        done.append(batch(orders_group).take_over(run.id))

    with pytest.raises(ReloadOver, match=r"cut over|taken over"):
        batch(orders_group, stager=PausingStager(orders_group, take)).run()
    assert done[0].records == len(FIRST)
    assert orders_group.rows() == doubled(FIRST, by=1)
    assert paused(orders_group) is None


def test_two_batches_at_once(orders_group: OrdersGroup) -> None:
    refused: list[BatchRefused] = []

    def another(run: Run) -> None:
        with pytest.raises(
            BatchRefused, match=rf"batch {run.id} has paused group .*: wait until it ends. If its driver"
        ) as caught:
            batch(orders_group).run(pause=True)
        refused.append(caught.value)

    batch(orders_group, stager=PausingStager(orders_group, another)).run()
    assert refused
    assert orders_group.rows() == doubled(FIRST, by=1)


def test_a_table_with_other_rows_than_its_task_said_is_refused(orders_group: OrdersGroup) -> None:

    def lose(run: Run) -> None:
        ((attempt,),) = orders_group.execute("SELECT table_name FROM {schema}.reload_staged")
        orders_group.execute(f"TRUNCATE {run.staging_schema}.{attempt}_0")

    with pytest.raises(BatchRefused, match=f"has 1 rows, and its task reported {len(FIRST)}"):
        batch(orders_group, stager=PausingStager(orders_group, lose)).run()
    assert orders_group.rows() == []
    assert paused(orders_group) is None


def range_now(orders_group: OrdersGroup, run: UUID) -> Range:
    asked = "SELECT topic_id, first_offset, end_offset FROM {schema}.reload_position WHERE run = :run AND partition = 0"
    return Range(Partition(orders_group.topic, 0), *orders_group.execute(asked, run=run)[0])


def test_a_task_that_outlives_its_batch_leaves_nothing(orders_group: OrdersGroup, threads: ThreadPoolExecutor) -> None:
    """A zombie task that begins after the batch's end, and one whose transaction was open while the batch continued."""
    held, go_on = threading.Event(), threading.Event()
    ranges: list[Range] = []
    zombies: list[Future[Any]] = []
    kafka = {"bootstrap.servers": orders_group.brokers}

    def slow(record: Any) -> dict[str, Any]:
        held.set()
        assert go_on.wait(60)
        return {"id": record.value.id, "amount": 666, "at": 0}

    zombie = orders_group.pipeline()
    zombie.sinks[0].row_of = slow  # type: ignore[attr-defined]

    def late(run: UUID) -> None:
        stage_range(orders_group.engine, orders_group.schema, kafka, run, pipeline=zombie, range_=ranges[0])

    def begin(run: Run) -> None:
        ranges.append(range_now(orders_group, run.id))
        zombies.append(threads.submit(late, run.id))
        assert held.wait(30)

    done = batch(orders_group, stager=PausingStager(orders_group, begin)).run()
    go_on.set()
    assert done.run is not None
    for attempt in (*zombies, threads.submit(late, done.run)):
        failed = attempt.exception(60)
        assert isinstance(failed, ReloadOver) or "does not exist" in str(failed), failed
    assert orders_group.rows() == doubled(FIRST, by=1)
    batch(orders_group).runs.drop(done.run)
    assert orders_group.schemas() == []


@pytest.fixture
def proxied_engine(proxy: PostgresProxy) -> Iterator[Engine]:
    """Through the proxy."""
    engine = create_engine(proxy.dsn, pool_pre_ping=True)
    yield engine
    engine.dispose()


@pytest.mark.repeats("when")
@pytest.mark.parametrize("when", ["before_commit", "after_commit", "after_commit_delayed"])
def test_a_commit_without_an_answer(
    orders_group: OrdersGroup, proxy: PostgresProxy, proxied_engine: Engine, when: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1: looked up in the run's own row; what was rolled back is tried again."""

    def deliver() -> None:
        proxy.wait_until_fired(60)  # there is nothing to deliver before
        proxy.deliver(60)

    def arm(*_: object) -> None:
        if not proxy.fired.is_set():
            proxy.arm(when)
            if when == "after_commit_delayed":
                threading.Timer(1.0, deliver).start()

    at_cut_over(monkeypatch, arm)
    done = batch(orders_group, engine=proxied_engine).run()
    assert proxy.fired.is_set()
    assert done.records == len(FIRST)
    assert orders_group.rows() == doubled(FIRST, by=1)
    assert offsets(orders_group)[f"{orders_group.topic}/0"] == len(FIRST)
    assert paused(orders_group) is None
    assert orders_group.execute("SELECT count(*) FROM {schema}.admin_action WHERE action = 'batch'") == [(1,)]


@pytest.mark.repeats("when")
@pytest.mark.parametrize("when", ["before_commit", "after_commit"])
def test_an_opening_without_an_answer_names_its_run(
    orders_group: OrdersGroup, proxy: PostgresProxy, proxied_engine: Engine, when: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group may be paused for a run without a driver: the error names the run."""
    asked: list[UUID] = []

    def armed(tx: Tx, source: Any, brokers: Any, run: UUID, **options: Any) -> Any:
        claims = open_batch(tx, source, brokers, run, **options)
        asked.append(run)
        proxy.arm(when)
        return claims

    monkeypatch.setattr(job, "open_batch", armed)
    with pytest.raises(OperationalError) as caught:
        batch(orders_group, engine=proxied_engine).run()
    proxy.wait_until_fired(60)
    (run,) = asked
    (note,) = caught.value.__notes__
    assert f"it is unknown whether batch {run} was opened" in note
    assert f"--resume {run}" in note
    assert f"seekpoint reload abort {run}" in note
    monkeypatch.undo()
    was_opened = when == "after_commit"
    assert [run.id for run in batch(orders_group).runs.list()] == [run] * was_opened
    assert paused(orders_group) == (f"batch {run}" if was_opened else None)
    done = batch(orders_group).take_over(run) if was_opened else batch(orders_group).run()
    assert done.records == len(FIRST)
    assert orders_group.rows() == doubled(FIRST, by=1)


def test_a_batch_that_is_applied_says_so_though_the_database_is_gone_then(
    orders_group: OrdersGroup, proxy: PostgresProxy, proxied_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:

    def armed(*args: Any) -> Any:
        proxy.arm("before_commit")
        return totals(*args)

    monkeypatch.setattr(steps, "totals", armed)
    with pytest.raises(OperationalError) as caught:
        batch(orders_group, engine=proxied_engine).run()
    (run,) = batch(orders_group).runs.list()
    assert run.state == "cut_over"
    (note,) = caught.value.__notes__
    assert f"batch {run.id} is applied completely" in note
    assert orders_group.rows() == doubled(FIRST, by=1)
    assert batch(orders_group).runs.sweep() == [run.id]
    assert orders_group.schemas() == []


def test_a_database_that_crashes_at_the_commit(
    request: pytest.FixtureRequest, own_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders_group = orders_group_on(request, own_postgres)
    orders_group.produce(orders_group.topic, FIRST, partition=0)
    crashed: list[bool] = []

    def crash(*_: object) -> None:
        if not crashed:
            crashed.append(True)
            own_postgres.kill()
            own_postgres.start()

    at_cut_over(monkeypatch, crash)
    assert batch(orders_group).run().records == len(FIRST)
    assert crashed
    assert orders_group.rows() == doubled(FIRST, by=1)
    assert paused(orders_group) is None
    orders_group.engine.dispose()


def test_a_database_that_is_away_leaves_the_batch_open_and_says_how_to_resume_it(
    request: pytest.FixtureRequest, own_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders_group = orders_group_on(request, own_postgres)
    orders_group.produce(orders_group.topic, FIRST, partition=0)
    monkeypatch.setattr("seekpoint.backoff.sleep", lambda seconds: None)

    with monkeypatch.context() as patched:
        at_cut_over(patched, lambda *_: own_postgres.kill())
        with pytest.raises(OperationalError) as caught:
            batch(orders_group).run()
    own_postgres.start()
    (run,) = batch(orders_group).runs.list()
    assert any(f"batch {run.id} is still open" in note and "--resume" in note for note in caught.value.__notes__)
    assert run.state == "staged"
    assert orders_group.rows() == []
    assert batch(orders_group).take_over(run.id).records == len(FIRST)
    assert orders_group.rows() == doubled(FIRST, by=1)
    orders_group.engine.dispose()


class FailingStager:
    """A stager that stages so many of the ranges, and then fails as an executor does that lacks a module."""

    def __init__(self, orders_group: OrdersGroup, count: int) -> None:
        self._stager = LocalStager(
            orders_group.engine,
            orders_group.schema,
            {"bootstrap.servers": orders_group.brokers},
            [batch(orders_group).source],
        )
        self._count = count

    def stage(self, run: Run, tasks: Sequence[Task]) -> Iterator[Staged]:
        yield from self._stager.stage(run, tasks[: self._count])
        raise ConfigError("the executor has no module shop")


def test_an_error_before_anything_was_staged_ends_the_batch_and_its_pause(orders_group: OrdersGroup) -> None:
    with pytest.raises(ConfigError, match="no module shop") as caught:
        batch(orders_group, stager=FailingStager(orders_group, 0)).run(pause=True)
    (run,) = batch(orders_group).runs.list()
    ended = f"batch {run.id} has ended: nothing was staged or written, and "
    assert caught.value.__notes__ == [f"{ended}group {orders_group.group!r} is not paused for it"]
    assert (run.state, run.swept, paused(orders_group), orders_group.schemas()) == ("failed", True, None, [])
    assert run.error == "ConfigError: the executor has no module shop [SP1001]"
    assert batch(orders_group).run().records == len(FIRST)


def test_an_error_after_a_range_was_staged_leaves_the_batch_open_and_names_it(orders_group: OrdersGroup) -> None:
    with pytest.raises(ConfigError, match="no module shop") as caught:
        batch(orders_group, stager=FailingStager(orders_group, 1), range_records=30).run()
    (run,) = batch(orders_group).runs.list()
    (note,) = caught.value.__notes__
    assert note.startswith(f"batch {run.id} is still open, and group {orders_group.group!r} paused for it: resume it")
    assert paused(orders_group) == f"batch {run.id}"
    assert batch(orders_group).take_over(run.id).records == len(FIRST)
    assert paused(orders_group) is None


def test_a_batch_is_taken_over_on_a_host_whose_name_is_not_utf_8(
    orders_group: OrdersGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python reads such bytes as lone surrogates, which Postgres cannot store."""
    with pytest.raises(ConfigError, match="no module shop"):
        batch(orders_group, stager=FailingStager(orders_group, 1), range_records=30).run()
    (run,) = batch(orders_group).runs.list()
    monkeypatch.setattr("seekpoint.runs.run.socket", SimpleNamespace(gethostname=lambda: "caf\udce9"))
    assert batch(orders_group).take_over(run.id).records == len(FIRST)
    assert r"@caf\udce9:" in batch(orders_group).runs.get(run.id).driver


def test_a_pause_of_a_batch_whose_driver_is_gone_fails_a_check(orders_group: OrdersGroup) -> None:
    run = kill_at(orders_group, "staging")
    check = ["status", orders_group.group, "--check", *orders_group.database_options]
    silence = f"{orders_group.group}: batch {run} has paused the group, and its driver "
    assert silence not in CliRunner().invoke(app, check).stdout
    orders_group.execute("UPDATE {schema}.reload_run SET changed_at = now() - interval '11 minutes'")
    result = CliRunner().invoke(app, check)
    (line,) = [line for line in result.stdout.splitlines() if line.startswith(silence)]
    assert result.exit_code == 1
    assert f"--resume {run}`), or end it (`seekpoint reload abort {run} --reason WHY`)" in line
    samples = Samples()
    LedgerGauges(orders_group.engine, schema=orders_group.schema).add_to(samples)
    (silent,) = samples.of(catalogue.RELOAD_SILENT).values()
    assert silent > 600, "the alert SeekpointReloadDriverSilent fires on it"
    shown = CliRunner().invoke(app, [word for word in check if word != "--check"], env={"COLUMNS": "200"}).stdout
    assert f"`seekpoint reload abort {run} --reason WHY`" in shown
    batch(orders_group).runs.abort(run, "a test")
    assert silence not in CliRunner().invoke(app, check).stdout


def test_nothing_live_is_locked_while_ranges_are_staged(orders_group: OrdersGroup) -> None:
    looks: list[int] = []

    def look(*_: object) -> None:
        with orders_group.holding(
            "SET LOCAL lock_timeout = '1ms'",
            "LOCK TABLE {schema}.orders IN ACCESS EXCLUSIVE MODE",
            "SELECT * FROM {schema}.partition_offset FOR UPDATE NOWAIT",
            "SELECT * FROM {schema}.consumer_group FOR UPDATE NOWAIT",
        ):
            looks.append(1)

    batch(orders_group, progress=look, range_records=30).run()
    assert len(looks) == 6
    assert orders_group.rows() == doubled(FIRST, by=1)


@pytest.mark.long
def test_a_claim_during_the_last_transaction_is_refused_by_the_pause(
    orders_group: OrdersGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it takes: a claim that waited for its rows would end its session as an abandoned worker's."""
    limits = Limits(transaction_age=1.0, claim_wait=0.2)
    refusals: list[str] = []

    def slowly(run: UUID, tx: Tx) -> None:
        tx.connection.execute(text("SELECT pg_sleep(2.5)"))
        positions = tx.positions_of(run)
        rival = GroupLedger(orders_group.engine, orders_group.group, schema=orders_group.schema, limits=limits)
        ids = {orders_group.topic: positions[0].topic_id}
        cluster_id = tx.connection.execute(
            text(f"SELECT cluster_id FROM {orders_group.schema}.consumer_group")
        ).scalar_one()
        partitions = [position.partition for position in positions]
        with pytest.raises(GroupPaused) as refused:
            rival.claim(partitions, ids, cluster_id=cluster_id, start=lambda _: {})
        refusals.append(str(refused.value))

    at_cut_over(monkeypatch, slowly)
    assert batch(orders_group, limits=limits).run().records == len(FIRST)
    assert len(refusals) == 1
    assert orders_group.rows() == doubled(FIRST, by=1)


def test_a_reload_and_a_batch_do_not_take_each_others_runs(orders_group: OrdersGroup) -> None:
    orders_group.work(len(FIRST))
    orders_group.produce(orders_group.topic, LATER, partition=0)
    reload = orders_group.reload()
    opened: list[Driver] = []

    def meanwhile(run: Run) -> None:
        opened.append(reload.open())
        with pytest.raises(ConfigError, match="is a batch"):
            reload.take_over(run.id)

    batch(orders_group, stager=PausingStager(orders_group, meanwhile)).run()
    with pytest.raises(ConfigError, match="is a reload"):
        batch(orders_group).take_over(opened[0].run.id)
    assert orders_group.rows() == doubled(FIRST + LATER, by=1)
    reload.run(opened[0])
    assert orders_group.rows() == doubled(FIRST + LATER)
