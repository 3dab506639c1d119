"""A batch over a stated range: what is refused and written; a killed run writes each record once, no position moves."""

from __future__ import annotations

import json
import random
import secrets
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka.admin import AdminClient
from sqlalchemy import Connection, create_engine

from seekpoint import Batch, Json, Pipeline, Upsert
from seekpoint.errors import BatchRefused, ConfigError, GroupPaused, ReloadOver
from seekpoint.jobs.batch import BatchDone, BatchJob
from seekpoint.jobs.batch import batch as job
from seekpoint.jobs.reload import Driver
from seekpoint.runs.run import Tx
from support.batch_process import Batcher, PausingStager, batch
from support.cli_jobs import Terminal
from support.log_changes import trim
from support.postgres_proxy import PostgresProxy
from support.reload_orders import Order, OrdersGroup, of

BAD = ('{"id": 0}', "no order")
PLACES = ["opened", "turn staging", "staging", "turn staged", "staged", "turn cut_over"]


@pytest.fixture
def orders_group(orders_group: OrdersGroup) -> OrdersGroup:
    """The group, whose entries have no key that would refuse a row that comes twice."""
    orders_group.execute("ALTER TABLE {schema}.entries DROP CONSTRAINT entries_pkey")
    return orders_group


def entries(orders_group: OrdersGroup, **options: Any) -> BatchJob:
    return batch(orders_group, pipeline={"kind": "append"}, **options)


def again(job: BatchJob, orders_group: OrdersGroup, start: int, end: int, **options: Any) -> BatchDone:
    """Apply this range of partition 0 again."""
    arguments: dict[str, Any] = {"reason": "a test", "accept_repeats": True, **options}
    return job.reprocess((orders_group.topic, 0), start, end, **arguments)


def offsets(orders_group: OrdersGroup) -> list[int]:
    """The offsets that have a row."""
    return [row[0] for row in orders_group.execute("SELECT DISTINCT topic_offset FROM {schema}.entries ORDER BY 1")]


def repeated(orders_group: OrdersGroup) -> list[int]:
    """The offset of each row that is not the first one of its record: the rows of runs."""
    numbered = "SELECT topic_offset, row_number() OVER (PARTITION BY topic_offset) AS n FROM {schema}.entries"
    return [
        row[0] for row in orders_group.execute(f"SELECT topic_offset FROM ({numbered}) AS rows WHERE n > 1 ORDER BY 1")
    ]


def live_row(orders_group: OrdersGroup) -> tuple[Any, ...]:
    """What no run may change of the live position."""
    [row] = orders_group.execute(
        "SELECT next_offset, token, epoch, owner FROM {schema}.partition_offset WHERE partition = 0"
    )
    return row


@pytest.mark.long
def test_a_run_that_is_killed_at_random_under_a_live_worker_writes_each_record_once(orders_group: OrdersGroup) -> None:
    """I1, of the run: 0 lost, 0 twice, whatever step the process is killed in, and the worker is not disturbed."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    bad = set(chance.sample(range(600), 20))
    orders_group.put([of(n, n) for n in range(600)])
    worker = orders_group.worker(kind="append")
    worker.reached(orders_group.topic, 600)
    refused = f"topic_offset NOT IN ({', '.join(map(str, bad))})"
    orders_group.execute(f"ALTER TABLE {{schema}}.entries ADD CHECK ({refused}) NOT VALID")
    start, end, written = 37, 563, 600
    before = live_row(orders_group)
    for place in sorted(chance.sample(PLACES, 4), key=PLACES.index):
        Batcher(orders_group, kind="append", step=place, range=[start, end]).kill_where_it_waits()
        assert repeated(orders_group) == []
        written = orders_group.put([of(written, 1), of(written + 1, 1)])
        worker.reached(orders_group.topic, written)
    done = again(entries(orders_group), orders_group, start, end)
    assert len(entries(orders_group).runs.list()) == 1, "one run, which every process continued"
    wanted = [n for n in range(start, end) if n not in bad]
    assert repeated(orders_group) == wanted, f"seed {seed}: lost or twice"
    assert (done.records, done.dead_letters) == (end - start, end - start - len(wanted))
    assert [failure.offset for failure in done.failures] == sorted(n for n in bad if start <= n < end)
    assert {failure.cause for failure in done.failures} == {"database"}
    assert live_row(orders_group)[1:] == before[1:], "neither fenced nor claimed"
    worker.finish(orders_group.topic, orders_group.put([of(written, 1)]))
    assert offsets(orders_group) == [*range(written + 1)], "the worker's rows"
    with pytest.raises(BatchRefused, match=f"run {done.run} has applied this range already.*--restart"):
        again(entries(orders_group), orders_group, start, end)
    assert repeated(orders_group) == wanted
    assert orders_group.execute("SELECT count(*) FROM {schema}.dead_letter") == [(0,)], "the group has none"
    history = "SELECT action, from_offset, to_offset FROM {schema}.admin_action WHERE action = 'reprocess'"
    assert orders_group.execute(history) == [("reprocess", start, end)]


@pytest.mark.parametrize("when", ["before_commit", "after_commit"])
def test_a_commit_without_an_answer_is_looked_up_in_the_run(
    orders_group: OrdersGroup, proxy: PostgresProxy, when: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders_group.put([of(n, n) for n in range(100)])
    orders_group.work(100, kind="append")
    engine = create_engine(proxy.dsn, pool_pre_ping=True)

    class HookedDriver(Driver):
        def transition(self, tx: Tx, state: str) -> None:
            super().transition(tx, state)
            if state == "cut_over" and not proxy.fired.is_set():
                proxy.arm(when)

    monkeypatch.setattr(job, "Driver", HookedDriver)
    before = live_row(orders_group)
    done = again(entries(orders_group, engine=engine), orders_group, 0, 100)
    assert proxy.fired.is_set()
    assert (done.records, repeated(orders_group)) == (100, [*range(100)])
    assert live_row(orders_group) == before
    engine.dispose()


def test_a_reset_a_pause_and_another_process_keep_a_run_from_writing(orders_group: OrdersGroup) -> None:
    """What the opening relied on is checked again under the row's lock, in the transaction that writes."""
    orders_group.put([of(n, n) for n in range(200)])
    orders_group.work(200, kind="append")
    ledger = orders_group.ledger()

    def reset(_: object) -> None:
        for offset in (100, 200):
            ledger.reset_offset(orders_group.topic, 0, offset, log=None, reason="a test")

    with pytest.raises(BatchRefused, match="was reset"):
        again(entries(orders_group, stager=PausingStager(orders_group, reset, kind="append")), orders_group, 0, 200)
    ended = entries(orders_group).runs.list()[0]
    assert (ended.state, repeated(orders_group)) == ("failed", [])

    def pause(_: object) -> None:
        ledger.pause(reason="a test")

    with pytest.raises(GroupPaused):
        again(entries(orders_group, stager=PausingStager(orders_group, pause, kind="append")), orders_group, 0, 200)
    with pytest.raises(GroupPaused):
        again(entries(orders_group), orders_group, 0, 199)
    ledger.resume()

    def twice(_: object) -> None:
        assert again(entries(orders_group), orders_group, 0, 200).records == 200

    with pytest.raises(ReloadOver):
        again(
            entries(orders_group, stager=PausingStager(orders_group, twice, kind="append")),
            orders_group,
            0,
            200,
            restart=True,
        )
    assert repeated(orders_group) == [*range(200)]
    assert ledger.read()[0].next_offset == 200


def test_ranges_that_are_no_part_of_log_and_position_are_refused(orders_group: OrdersGroup) -> None:
    orders_group.put([of(n, n) for n in range(30)])
    orders_group.work(20, kind="append")
    position = orders_group.ledger().read()[0].next_offset
    trim(AdminClient({"bootstrap.servers": orders_group.brokers}), orders_group.topic, 5)
    job = entries(orders_group)
    for start, end, says in [
        (7, 7, "must be before"),
        (9, 7, "must be before"),
        (4, 7, "begins at 5, after 4"),
        (5, position + 1, f"is at offset {position}, before {position + 1}"),
    ]:
        with pytest.raises(BatchRefused, match=says):
            again(job, orders_group, start, end)
    with pytest.raises(ConfigError, match="no stored offset for"):
        job.reprocess((orders_group.topic, 7), 5, 7, reason="a test", accept_repeats=True)
    with pytest.raises(ConfigError, match="does not read"):
        job.reprocess(("others", 0), 5, 7, reason="a test")
    with pytest.raises(ConfigError, match="reason"):
        again(job, orders_group, 5, 7, reason=" ")
    assert (job.runs.list(), repeated(orders_group)) == ([], [])
    assert again(job, orders_group, 5, 7).records == 2
    assert repeated(orders_group) == [5, 6]


def test_live_tables_do_not_change_by_repeats_unless_that_is_accepted(orders_group: OrdersGroup) -> None:
    """Refused: an Append, an Upsert without a guard, one that deletes, and a handler; a guarded Upsert is not."""
    orders_group.put([of(7, n, n) for n in range(10)])
    plain, guarded = orders_group.pipeline(), orders_group.pipeline(sink={"order_by": "at"})
    orders_group.apply(plain, 10)
    refused = {"accept_repeats": False}
    with pytest.raises(BatchRefused, match=r"orders \(Upsert\) cannot tell which row is newer.*--accept-repeats"):
        again(batch(orders_group, plain), orders_group, 2, 5, **refused)
    with pytest.raises(BatchRefused, match=r"\(Upsert\) deletes rows: one that was deleted since.*--accept-repeats"):
        again(batch(orders_group, guarded), orders_group, 2, 5, **refused)
    with pytest.raises(
        BatchRefused, match=r"entries \(Append\) would get the rows of these records twice.*--accept-rep"
    ):
        again(entries(orders_group), orders_group, 2, 5, **refused)
    again(batch(orders_group, guarded), orders_group, 2, 5)
    assert orders_group.rows() == [(7, 9, 9)]
    again(batch(orders_group, plain), orders_group, 2, 5, restart=True)
    assert orders_group.rows() == [(7, 4, 4)]
    keeping = Upsert((orders_group.schema, "orders"), key=["id"], order_by="at", tombstone=None)
    kept = Pipeline(orders_group.group, topics=orders_group.topic, value=Json(Order), sinks=[keeping])
    assert again(batch(orders_group, kept), orders_group, 0, 10, **refused).records == 10
    assert orders_group.rows() == [(7, 9, 9)]

    def handle(tx: Connection, records: Batch[Any, Any]) -> None:
        raise AssertionError

    with pytest.raises(ConfigError, match="has a handler"):
        batch(orders_group, Pipeline(orders_group.group, topics=orders_group.topic, value=Json(Order), handle=handle))


def test_what_fails_is_the_runs_and_what_a_constraint_refuses_ends_it(orders_group: OrdersGroup) -> None:
    """A record that fails is kept with the run, also where a worker would stop; open dead letters are a replay's."""
    orders_group.put([BAD if n in {3, 8} else of(n, n) for n in range(60)])
    orders_group.work(60, kind="append", on_poison="dead_letter")
    orders_group.execute("DELETE FROM {schema}.dead_letter WHERE record_offset = 8")
    before = "SELECT id, state, replays FROM {schema}.dead_letter"
    dead = orders_group.execute(before)
    orders_group.execute("CREATE TABLE {schema}.allowed (topic_offset bigint PRIMARY KEY)")
    orders_group.execute(
        "INSERT INTO {schema}.allowed SELECT n FROM generate_series(0, 59) AS n WHERE n NOT IN (17, 19)"
    )
    orders_group.execute(
        "ALTER TABLE {schema}.entries ADD FOREIGN KEY (topic_offset) REFERENCES {schema}.allowed "
        "DEFERRABLE INITIALLY DEFERRED NOT VALID"
    )
    with pytest.raises(BatchRefused, match="to apply a range again, leave that record out"):
        again(entries(orders_group), orders_group, 0, 60)
    assert repeated(orders_group) == []
    done = again(entries(orders_group), orders_group, 0, 17)
    assert (done.records, done.dead_letters, [failure.offset for failure in done.failures]) == (16, 1, [8])
    assert repeated(orders_group) == [n for n in range(17) if n not in {3, 8}]
    assert orders_group.execute(
        "SELECT run, record_offset, value, state, cause FROM {schema}.reprocess_dead_letter"
    ) == [(done.run, 8, BAD[1].encode(), "dead_lettered", "decode")]
    assert orders_group.execute(before) == dead


def test_what_was_given_up_is_not_put_back(orders_group: OrdersGroup) -> None:
    """As by a reload: a record that was discarded or skipped has no row, and gets none."""
    orders_group.put([BAD if n in {3, 4, 5} else of(n, n) for n in range(10)])
    orders_group.work(10, kind="append", on_poison="dead_letter")
    for offset, state in ((3, "discarded"), (4, "skipped")):
        orders_group.execute(f"UPDATE {{schema}}.dead_letter SET state = '{state}' WHERE record_offset = {offset}")
    done = again(entries(orders_group), orders_group, 0, 10)
    assert (done.records, done.dead_letters, repeated(orders_group)) == (7, 0, [0, 1, 2, 6, 7, 8, 9])


def test_an_open_run_is_resumed_by_its_id_or_aborted(orders_group: OrdersGroup) -> None:
    """A driver that is gone leaves no pause: workers continue meanwhile."""
    orders_group.put([of(n, n) for n in range(20)])
    orders_group.work(20, kind="append")
    Batcher(orders_group, kind="append", step="staged", range=[2, 5]).kill_where_it_waits()
    orders_group.work(orders_group.put([of(20, 1)]), kind="append")
    job = entries(orders_group)
    [run] = job.runs.list()
    assert (run.strategy, run.state) == ("reprocess", "staged")
    with pytest.raises(ConfigError, match="is of group"):
        batch(orders_group, pipeline={"kind": "append", "version": 2}).take_over(run.id)
    assert job.take_over(run.id).records == 3
    assert repeated(orders_group) == [2, 3, 4]
    Batcher(orders_group, kind="append", step="staged", range=[7, 9]).kill_where_it_waits()
    job.runs.abort(job.runs.list()[0].id, "a test")
    assert (repeated(orders_group), orders_group.schemas()) == ([2, 3, 4], [])


def test_the_command_applies_resumes_and_refuses(orders_group: OrdersGroup, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    terminal = Terminal.of(orders_group, tmp_path)
    orders_group.put([BAD if n == 7 else of(n, n) for n in range(20)])
    orders_group.work(20, kind="append", on_poison="skip")
    orders_group.execute("DELETE FROM {schema}.dead_letter")

    def command(offsets: str, *options: str, exits: int = 0, why: bool = True) -> Any:
        reason = ["--reason", "a test"] if why else []
        words = ["batch", "--range", f"{orders_group.topic}:0:{offsets}", *reason, *options]
        return terminal.job(*words, name="entries", exits=exits)

    assert "entries (Append) would get the rows of these records twice" in command("5..15", exits=1).stderr
    assert "--range needs --reason" in command("5..15", why=False, exits=2).stderr
    assert "TOPIC:PARTITION:FROM..TO" in command("5-15", exits=2).stderr
    assert "--pause cannot be combined with --range" in command("5..15", "--pause", exits=2).stderr
    assert "--restart works only with --range" in terminal.job("batch", "--restart", exits=2).stderr
    assert "is at offset 20" in command("5..21", "--accept-repeats", exits=1).stderr
    assert repeated(orders_group) == []
    Batcher(orders_group, kind="append", step="staged", range=[5, 15]).kill_where_it_waits()
    [run] = terminal.look("reload", "status")
    shown = terminal.run("reload", "status", run["id"], *orders_group.database_options).stdout
    assert f"reprocess {run['id']}: staged" in shown
    assert f":entries --resume {run['id']}" in shown or "MODULE:NAME --resume" in shown
    report = json.loads(command("5..15", "--accept-repeats", "--json").stdout)
    assert (report["run"], report["records"], report["dead_letters"]) == (run["id"], 10, 1)
    assert [(failure["offset"], failure["cause"]) for failure in report["failures"]] == [(7, "decode")]
    assert repeated(orders_group) == [n for n in range(5, 15) if n != 7]
    twice = command("5..15", "--accept-repeats", exits=1)
    assert f"run {report['run']} has applied this range already" in twice.stderr
    restarted = command("5..15", "--accept-repeats", "--restart")
    assert "10 records applied" in restarted.stdout
    assert "offset 7: decode: " in restarted.stdout
    assert "staging: 10 records" in restarted.stderr
    assert UUID(report["run"]) in {run.id for run in entries(orders_group).runs.list()}
