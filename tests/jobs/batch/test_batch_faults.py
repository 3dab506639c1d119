"""Crashes, repeated tasks, late tasks and takeovers: a batch is applied once, or not at all."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import OperationalError
from typer.testing import CliRunner

from seekpoint import Limits, Partition
from seekpoint.cli.app import app
from seekpoint.errors import BatchRefused, ConfigError, ReloadOver
from seekpoint.jobs.batch import batch as job
from seekpoint.jobs.batch.open import open_batch
from seekpoint.jobs.batch.publish import totals
from seekpoint.jobs.reload import Driver, LocalStager, Run, Staged, Task, stage_range
from seekpoint.jobs.run import Tx
from seekpoint.kafka.ranges import Range
from seekpoint.ledger import Ledger
from seekpoint.testing.servers.postgres import PostgresServer
from support.batch_process import Batcher, Pausing, batch, offsets, paused
from support.postgres_proxy import PostgresProxy
from support.reload_orders import Shop, doubled, gone, of, shop_on

FIRST = [of(n % 40, n, n) for n in range(120)] + [gone(3)]
LATER = [of(n % 50, n, n) for n in range(200, 230)]
PLACES = ["opened", "turn staging", "staging", "turn staged", "staged", "turn cut_over"]


@pytest.fixture
def shop(shop: Shop) -> Shop:
    """The shop, with FIRST in its topic."""
    shop.produce(shop.topic, FIRST, partition=0)
    return shop


def kill_at(shop: Shop, at: str) -> UUID:
    """A driver in a process of its own begins a batch, and is killed at step ``at``."""
    Batcher(shop, at=at).kill_where_it_waits()
    return UUID(str(shop.execute("SELECT id FROM {schema}.reload_run WHERE strategy = 'batch'")[0][0]))


@pytest.mark.repeats("at")
@pytest.mark.parametrize("at", PLACES)
def test_the_batch_of_a_killed_driver_is_taken_over_and_finished(shop: Shop, at: str) -> None:
    run = kill_at(shop, at)
    assert shop.rows() == []
    assert offsets(shop) == {f"{shop.topic}/0": 0, f"{shop.topic}/1": 0}
    assert paused(shop) == f"batch {run}"
    shop.produce(shop.topic, LATER, partition=0)
    done = batch(shop).take_over(run)
    assert done.run == run
    assert done.records == len(FIRST), "its ranges are what they were"
    assert shop.rows() == doubled(FIRST, by=1)
    assert shop.schemas() == []
    assert batch(shop).run().records == len(LATER)
    assert shop.rows() == doubled(FIRST + LATER, by=1)
    assert paused(shop) is None


@pytest.mark.repeats("at")
@pytest.mark.parametrize("at", ["opened", "staging", "turn cut_over"])
def test_the_batch_of_a_killed_driver_is_aborted_and_workers_continue(shop: Shop, at: str) -> None:
    run = kill_at(shop, at)
    with pytest.raises(BatchRefused, match=f"--resume {run}.*abort {run}"):
        batch(shop).run()
    assert batch(shop).runs.abort(run, "its driver is dead").swept
    assert paused(shop) is None
    shop.produce(shop.topic, LATER[:10], partition=0)
    assert batch(shop).run().records == len(FIRST) + 10, "its own claims do not pass for a worker"
    worker = shop.worker()
    shop.produce(shop.topic, LATER[10:], partition=0)
    worker.finish(shop.topic, len(FIRST) + len(LATER))
    assert shop.rows() == doubled(FIRST + LATER, by=1)
    with pytest.raises(ReloadOver):
        batch(shop).take_over(run)


def test_a_batch_without_a_driver_is_found_and_swept(shop: Shop) -> None:
    run = kill_at(shop, "staging")
    ((by, reason),) = shop.execute("SELECT paused_by, paused_reason FROM {schema}.consumer_group")
    assert by == f"batch {run}"
    assert f"seekpoint batch MODULE:NAME --resume {run}" in reason
    assert f"seekpoint reload abort {run}" in reason
    where = ["--database-url", shop.engine.url.render_as_string(hide_password=False), "--schema", shop.schema]
    shown = CliRunner().invoke(app, ["status", shop.group, *where], env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert f"{shop.group} is paused by batch {run}: {reason}" in shown.stdout
    told = json.loads(CliRunner().invoke(app, ["status", shop.group, *where, "--json"]).stdout)
    assert told[0]["paused"] == {"by": by, "reason": reason}
    runs = batch(shop).runs
    assert runs.sweep() == [], "it was heard of today"
    assert runs.sweep(timedelta(0)) == [run]
    assert paused(shop) is None
    assert "driver is gone" in (runs.get(run).error or "")
    assert batch(shop).run().records == len(FIRST)


def at_cut_over(monkeypatch: pytest.MonkeyPatch, then: Callable[[UUID, Tx], None]) -> None:
    """Do something in the last transaction of the batches to come, after its last statement."""

    class Hooked(Driver):
        def transition(self, tx: Tx, state: str) -> None:
            super().transition(tx, state)
            if state == "cut_over":
                then(self.run.id, tx)

    monkeypatch.setattr(job, "Driver", Hooked)


def test_a_group_that_was_resumed_and_advanced_keeps_the_batch_out(shop: Shop) -> None:
    """I2: a stale claim writes nothing."""

    def meanwhile(run: Run) -> None:
        shop.ledger().resume(reason="impatience")
        shop.work(len(FIRST))

    one = batch(shop, stager=Pausing(shop, meanwhile))
    with pytest.raises(BatchRefused, match="nothing of it is written"):
        one.run()
    (run,) = one.runs.list()
    assert run.state == "failed"
    assert shop.rows() == doubled(FIRST, by=1)
    assert offsets(shop)[f"{shop.topic}/0"] == len(FIRST)
    assert paused(shop) is None


def test_a_claim_alone_keeps_the_batch_out(shop: Shop) -> None:
    """I2: also where no position has changed."""

    def meanwhile(run: Run) -> None:
        shop.ledger().reset_offset(shop.topic, 0, 0, log=None, reason="a move that moves nothing")

    with pytest.raises(BatchRefused, match="claimed the group's partitions"):
        batch(shop, stager=Pausing(shop, meanwhile)).run()
    assert shop.rows() == []
    assert offsets(shop)[f"{shop.topic}/0"] == 0
    assert batch(shop).run().records == len(FIRST)


def test_a_batch_that_is_taken_over_after_a_worker_advanced_is_ended(shop: Shop) -> None:
    """I3: its ranges no longer begin at the group's positions."""
    run = kill_at(shop, "staging")
    shop.ledger().resume(reason="impatience")
    worker = shop.worker()
    worker.reached(shop.topic, len(FIRST))
    worker.placed(2)
    owners = (
        rf"workers own partitions of group '{shop.group}': \w{{8}} \(since .*\)\. Stop them; or say --pause "
        r"\(pause=True\), and they wait while the batch runs"
    )
    with pytest.raises(BatchRefused, match=owners):
        batch(shop).take_over(run)
    assert batch(shop).runs.get(run).is_open, "nothing was decided"
    worker.stop()
    with pytest.raises(BatchRefused, match=f"is at offset {len(FIRST)} by now"):
        batch(shop).take_over(run)
    assert batch(shop).runs.get(run).state == "failed"
    assert paused(shop) is None
    assert shop.rows() == doubled(FIRST, by=1)


def test_two_drivers_of_one_batch(shop: Shop) -> None:
    """The one that takes it has it; the other fails at its next step, with nothing written."""
    done: list[Any] = []

    def take(run: Run) -> None:
        done.append(batch(shop).take_over(run.id))

    with pytest.raises(ReloadOver, match=r"cut over|taken over"):
        batch(shop, stager=Pausing(shop, take)).run()
    assert done[0].records == len(FIRST)
    assert shop.rows() == doubled(FIRST, by=1)
    assert paused(shop) is None


def test_two_batches_at_once(shop: Shop) -> None:
    refused: list[BatchRefused] = []

    def another(run: Run) -> None:
        with pytest.raises(
            BatchRefused, match=rf"batch {run.id} is at work on group .*: wait for its end; where"
        ) as caught:
            batch(shop).run(pause=True)
        refused.append(caught.value)

    batch(shop, stager=Pausing(shop, another)).run()
    assert refused
    assert shop.rows() == doubled(FIRST, by=1)


def test_a_table_with_other_rows_than_its_task_said_is_refused(shop: Shop) -> None:

    def lose(run: Run) -> None:
        ((attempt,),) = shop.execute("SELECT table_name FROM {schema}.reload_staged")
        shop.execute(f"TRUNCATE {run.staging_schema}.{attempt}_0")

    with pytest.raises(BatchRefused, match=f"has 1 rows, and its task reported {len(FIRST)}"):
        batch(shop, stager=Pausing(shop, lose)).run()
    assert shop.rows() == []
    assert paused(shop) is None


def range_now(shop: Shop, run: UUID) -> Range:
    asked = "SELECT topic_id, first_offset, end_offset FROM {schema}.reload_position WHERE run = :run AND partition = 0"
    return Range(Partition(shop.topic, 0), *shop.execute(asked, run=run)[0])


def test_a_task_that_outlives_its_batch_leaves_nothing(shop: Shop, elsewhere: ThreadPoolExecutor) -> None:
    """A zombie task that begins after the batch's end, and one whose transaction was open while the batch continued."""
    held, go_on = threading.Event(), threading.Event()
    ranges: list[Range] = []
    zombies: list[Future[Any]] = []
    kafka = {"bootstrap.servers": shop.brokers}

    def slow(record: Any) -> dict[str, Any]:
        held.set()
        assert go_on.wait(60)
        return {"id": record.value.id, "amount": 666, "at": 0}

    zombie = shop.pipeline()
    zombie.sinks[0].row_of = slow  # type: ignore[attr-defined]

    def late(run: UUID) -> None:
        stage_range(shop.engine, shop.schema, kafka, run, pipeline=zombie, range_=ranges[0])

    def begin(run: Run) -> None:
        ranges.append(range_now(shop, run.id))
        zombies.append(elsewhere.submit(late, run.id))
        assert held.wait(30)

    done = batch(shop, stager=Pausing(shop, begin)).run()
    go_on.set()
    assert done.run is not None
    for attempt in (*zombies, elsewhere.submit(late, done.run)):
        failed = attempt.exception(60)
        assert isinstance(failed, ReloadOver) or "does not exist" in str(failed), failed
    assert shop.rows() == doubled(FIRST, by=1)
    batch(shop).runs.drop(done.run)
    assert shop.schemas() == []


@pytest.fixture
def proxied(proxy: PostgresProxy) -> Iterator[Engine]:
    """Through the proxy."""
    engine = create_engine(proxy.dsn, pool_pre_ping=True)
    yield engine
    engine.dispose()


@pytest.mark.repeats("when")
@pytest.mark.parametrize("when", ["before_commit", "after_commit", "after_commit_delayed"])
def test_a_commit_without_an_answer(
    shop: Shop, proxy: PostgresProxy, proxied: Engine, when: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1: looked up in the run's own row; what was rolled back is tried again."""

    def deliver() -> None:
        assert proxy.fired.wait(60)  # there is nothing to deliver before
        proxy.deliver(60)

    def arm(*_: object) -> None:
        if not proxy.fired.is_set():
            proxy.arm(when)
            if when == "after_commit_delayed":
                threading.Timer(1.0, deliver).start()

    at_cut_over(monkeypatch, arm)
    done = batch(shop, engine=proxied).run()
    assert proxy.fired.is_set()
    assert done.records == len(FIRST)
    assert shop.rows() == doubled(FIRST, by=1)
    assert offsets(shop)[f"{shop.topic}/0"] == len(FIRST)
    assert paused(shop) is None
    assert shop.execute("SELECT count(*) FROM {schema}.admin_action WHERE action = 'batch'") == [(1,)]


@pytest.mark.repeats("when")
@pytest.mark.parametrize("when", ["before_commit", "after_commit"])
def test_an_opening_without_an_answer_names_its_run(
    shop: Shop, proxy: PostgresProxy, proxied: Engine, when: Any, monkeypatch: pytest.MonkeyPatch
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
        batch(shop, engine=proxied).run()
    assert proxy.fired.wait(60)
    (run,) = asked
    (note,) = caught.value.__notes__
    assert f"it is unknown whether batch {run} was opened" in note
    assert f"--resume {run}" in note
    assert f"seekpoint reload abort {run}" in note
    monkeypatch.undo()
    was_opened = when == "after_commit"
    assert [one.id for one in batch(shop).runs.list()] == [run] * was_opened
    assert paused(shop) == (f"batch {run}" if was_opened else None)
    done = batch(shop).take_over(run) if was_opened else batch(shop).run()
    assert done.records == len(FIRST)
    assert shop.rows() == doubled(FIRST, by=1)


def test_a_batch_that_is_applied_says_so_though_the_database_is_gone_then(
    shop: Shop, proxy: PostgresProxy, proxied: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:

    def armed(*given: Any) -> Any:
        proxy.arm("before_commit")
        return totals(*given)

    monkeypatch.setattr(job, "totals", armed)
    with pytest.raises(OperationalError) as caught:
        batch(shop, engine=proxied).run()
    (run,) = batch(shop).runs.list()
    assert run.state == "cut_over"
    (note,) = caught.value.__notes__
    assert f"batch {run.id} is applied, whole" in note
    assert shop.rows() == doubled(FIRST, by=1)
    assert batch(shop).runs.sweep() == [run.id]
    assert shop.schemas() == []


def test_a_database_that_crashes_at_the_commit(
    request: pytest.FixtureRequest, own_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = shop_on(request, own_postgres)
    shop.produce(shop.topic, FIRST, partition=0)
    crashed: list[bool] = []

    def crash(*_: object) -> None:
        if not crashed:
            crashed.append(True)
            own_postgres.kill()
            own_postgres.start()

    at_cut_over(monkeypatch, crash)
    assert batch(shop).run().records == len(FIRST)
    assert crashed
    assert shop.rows() == doubled(FIRST, by=1)
    assert paused(shop) is None
    shop.engine.dispose()


def test_a_database_that_is_away_leaves_the_batch_open_and_says_how_to_resume_it(
    request: pytest.FixtureRequest, own_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = shop_on(request, own_postgres)
    shop.produce(shop.topic, FIRST, partition=0)
    monkeypatch.setattr("seekpoint.backoff.sleep", lambda seconds: None)

    with monkeypatch.context() as patched:
        at_cut_over(patched, lambda *_: own_postgres.kill())
        with pytest.raises(OperationalError) as caught:
            batch(shop).run()
    own_postgres.start()
    (run,) = batch(shop).runs.list()
    assert any(f"batch {run.id} is open still" in note and "--resume" in note for note in caught.value.__notes__)
    assert run.state == "staged"
    assert shop.rows() == []
    assert batch(shop).take_over(run.id).records == len(FIRST)
    assert shop.rows() == doubled(FIRST, by=1)
    shop.engine.dispose()


class Failing:
    """A stager that stages so many of the ranges, and then fails as an executor does that lacks a module."""

    def __init__(self, shop: Shop, count: int) -> None:
        self._stager = LocalStager(shop.engine, shop.schema, {"bootstrap.servers": shop.brokers}, [batch(shop).source])
        self._count = count

    def stage(self, run: Run, tasks: Sequence[Task]) -> Iterator[Staged]:
        yield from self._stager.stage(run, tasks[: self._count])
        raise ConfigError("the executor has no module shop")


def test_an_error_before_anything_was_staged_ends_the_batch_and_its_pause(shop: Shop) -> None:
    with pytest.raises(ConfigError, match="no module shop") as caught:
        batch(shop, stager=Failing(shop, 0)).run(pause=True)
    (run,) = batch(shop).runs.list()
    assert caught.value.__notes__ == [
        f"batch {run.id} has ended: nothing was staged, nothing is written; group {shop.group!r} is not paused for it"
    ]
    assert (run.state, run.swept, paused(shop), shop.schemas()) == ("failed", True, None, [])
    assert run.error == "ConfigError: the executor has no module shop"
    assert batch(shop).run().records == len(FIRST)


def test_an_error_after_a_range_was_staged_leaves_the_batch_open_and_names_it(shop: Shop) -> None:
    with pytest.raises(ConfigError, match="no module shop") as caught:
        batch(shop, stager=Failing(shop, 1), range_records=30).run()
    (run,) = batch(shop).runs.list()
    (note,) = caught.value.__notes__
    assert note.startswith(f"batch {run.id} is open still, and group {shop.group!r} paused for it: resume it")
    assert paused(shop) == f"batch {run.id}"
    assert batch(shop).take_over(run.id).records == len(FIRST)
    assert paused(shop) is None


def test_a_pause_of_a_batch_whose_driver_is_gone_fails_a_check(shop: Shop) -> None:
    run = kill_at(shop, "staging")
    check = [
        "status",
        shop.group,
        "--check",
        "--database-url",
        shop.engine.url.render_as_string(hide_password=False),
        "--schema",
        shop.schema,
    ]
    silence = f"{shop.group}: batch {run} has paused the group, and its driver "
    assert silence not in CliRunner().invoke(app, check).stdout
    shop.execute("UPDATE {schema}.reload_run SET changed_at = now() - interval '11 minutes'")
    result = CliRunner().invoke(app, check)
    (line,) = [line for line in result.stdout.splitlines() if line.startswith(silence)]
    assert result.exit_code == 1
    assert f"--resume {run}`), or end it (`seekpoint reload abort {run} --reason WHY`)" in line
    shown = CliRunner().invoke(app, [word for word in check if word != "--check"], env={"COLUMNS": "200"}).stdout
    assert f"`seekpoint reload abort {run} --reason WHY`" in shown
    batch(shop).runs.abort(run, "a test")
    assert silence not in CliRunner().invoke(app, check).stdout


def test_nothing_live_is_locked_while_ranges_are_staged(shop: Shop) -> None:
    looks: list[int] = []

    def look(*_: object) -> None:
        with shop.holding(
            "SET LOCAL lock_timeout = '1ms'",
            "LOCK TABLE {schema}.orders IN ACCESS EXCLUSIVE MODE",
            "SELECT * FROM {schema}.partition_offset FOR UPDATE NOWAIT",
            "SELECT * FROM {schema}.consumer_group FOR UPDATE NOWAIT",
        ):
            looks.append(1)

    batch(shop, progress=look, range_records=30).run()
    assert len(looks) == 6
    assert shop.rows() == doubled(FIRST, by=1)


@pytest.mark.long
def test_the_last_transaction_is_not_ended_as_abandoned(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes: claims that wait for its rows end only what calls itself a worker."""
    limits = Limits(transaction_age=1.0, claim_wait=0.2)
    told: list[Any] = []

    def slowly(run: UUID, tx: Tx) -> None:
        tx.connection.execute(text("SELECT pg_sleep(2.5)"))
        positions = tx.positions_of(run)
        rival = Ledger(shop.engine, shop.group, schema=shop.schema, limits=limits)
        ids = {shop.topic: positions[0].topic_id}
        try:
            told.append(rival.claim([at.partition for at in positions], ids, cluster_id="whose", start=lambda _: {}))
        except Exception as error:  # noqa: BLE001 -- looked at below
            told.append(error)

    at_cut_over(monkeypatch, slowly)
    assert batch(shop, limits=limits).run().records == len(FIRST)
    assert told
    assert getattr(told[0], "ended", ()) == ()
    assert shop.rows() == doubled(FIRST, by=1)


def test_a_reload_and_a_batch_do_not_take_each_others_runs(shop: Shop) -> None:
    shop.work(len(FIRST))
    shop.produce(shop.topic, LATER, partition=0)
    reload = shop.reload()
    opened: list[Driver] = []

    def meanwhile(run: Run) -> None:
        opened.append(reload.open())
        with pytest.raises(ConfigError, match="is a batch"):
            reload.take_over(run.id)

    batch(shop, stager=Pausing(shop, meanwhile)).run()
    with pytest.raises(ConfigError, match="is a reload"):
        batch(shop).take_over(opened[0].run.id)
    assert shop.rows() == doubled(FIRST + LATER, by=1)
    reload.run(opened[0])
    assert shop.rows() == doubled(FIRST + LATER)
