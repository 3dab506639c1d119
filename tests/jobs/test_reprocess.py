"""A bounded range through its pipeline again: what is refused and written; a killed run writes each record once."""

from __future__ import annotations

import json
import random
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from sqlalchemy import Connection, create_engine, text

from seekpoint import Append, Batch, Json, Partition, Pipeline
from seekpoint.errors import ConfigError, GroupPaused, HandlerMisuse, ReprocessRefused
from seekpoint.jobs.reprocess import Reprocess
from seekpoint.jobs.reprocess.apply_range import RangeRun
from support.cli_jobs import Terminal
from support.log_changes import trim
from support.postgres_proxy import PostgresProxy
from support.reload_orders import Order, Shop, of
from support.reprocess_process import LIMITS, PLACES, Reprocessor

BAD = ('{"id": 0}', "no order")


@pytest.fixture
def shop(shop: Shop) -> Shop:
    """The shop, whose entries have no key that would refuse a row that comes twice."""
    shop.execute("ALTER TABLE {schema}.entries DROP CONSTRAINT entries_pkey")
    return shop


def reprocess(shop: Shop, made: Pipeline | None = None, **options: Any) -> Reprocess:
    given = {"engine": shop.engine, "limits": LIMITS, **options}
    engine = given.pop("engine")
    return Reprocess(
        made or shop.pipeline(kind="append"), engine, {"bootstrap.servers": shop.brokers}, schema=shop.schema, **given
    )


def offsets(shop: Shop) -> list[int]:
    """The offsets that have a row."""
    return [row[0] for row in shop.execute("SELECT DISTINCT topic_offset FROM {schema}.entries ORDER BY 1")]


def again(shop: Shop) -> list[int]:
    """The offset of each row that is not the first one of its record: the rows of runs."""
    numbered = "SELECT topic_offset, row_number() OVER (PARTITION BY topic_offset) AS n FROM {schema}.entries"
    return [row[0] for row in shop.execute(f"SELECT topic_offset FROM ({numbered}) AS rows WHERE n > 1 ORDER BY 1")]


def live_row(shop: Shop) -> tuple[Any, ...]:
    """What no run may change of the live position."""
    [row] = shop.execute("SELECT next_offset, token, epoch, owner FROM {schema}.partition_offset WHERE partition = 0")
    return row


def test_a_run_that_is_killed_at_random_under_a_live_worker_writes_each_record_once(shop: Shop) -> None:
    """I1, of the run: 0 lost, 0 twice, whatever line the process is killed at, and the worker is not disturbed."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    bad = set(chance.sample(range(600), 20))
    shop.put([of(n, n) for n in range(600)])
    worker = shop.worker(kind="append")
    worker.reached(shop.topic, 600)
    refused = f"topic_offset NOT IN ({', '.join(map(str, bad))})"
    shop.execute(f"ALTER TABLE {{schema}}.entries ADD CHECK ({refused}) NOT VALID")
    start, end, written = 37, 563, 600
    kills = [(place, chance.randrange(3)) for place in chance.sample([*PLACES], len(PLACES))]
    for place, nth in kills:
        Reprocessor(shop, at=place, nth=nth, range=[start, end]).kill_where_it_waits()
        written = shop.put([of(written, 1), of(written + 1, 1)])
        worker.reached(shop.topic, written)
    one = reprocess(shop)
    plan = one.plan((shop.topic, 0), start, end)
    assert plan.is_resumed, "one run, which every process continued"
    assert plan.next_offset > start
    done = one.apply(plan, reason="the last process is not killed")
    wanted = [n for n in range(start, end) if n not in bad]
    assert again(shop) == wanted, f"seed {seed}: lost or twice"
    assert (done.records, done.dead_letters) == (len(wanted), end - start - len(wanted))
    assert [one.offset for one in done.failures] == sorted(n for n in bad if start <= n < end)
    assert {one.cause for one in done.failures} == {"database"}
    worker.finish(shop.topic, shop.put([of(written, 1)]))
    assert offsets(shop) == [*range(written + 1)], "the worker's rows"
    assert one.apply(plan, reason="it is done") == done, "and writes nothing more"
    assert again(shop) == wanted
    assert shop.execute("SELECT count(*) FROM {schema}.dead_letter") == [(0,)], "the group has none"
    history = "SELECT action, from_offset, to_offset FROM {schema}.admin_action WHERE action = 'reprocess'"
    assert shop.execute(history) == [("reprocess", start, end)]


@pytest.mark.parametrize("when", ["before_commit", "after_commit"])
def test_a_commit_without_an_answer_is_looked_up_in_the_run(
    shop: Shop, proxy: PostgresProxy, when: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.put([of(n, n) for n in range(100)])
    shop.work(100, kind="append")
    engine = create_engine(proxy.dsn, pool_pre_ping=True)
    advance = RangeRun._advance

    def armed(self: RangeRun, scope: Any, start: int, *given: Any) -> None:
        advance(self, scope, start, *given)
        if start == 40 and not proxy.fired.is_set():
            proxy.arm(when)

    monkeypatch.setattr(RangeRun, "_advance", armed)
    one = reprocess(shop, engine=engine)
    before = live_row(shop)
    done = one.apply(one.plan((shop.topic, 0), 0, 100), reason="a test")
    assert proxy.fired.is_set()
    assert (done.records, again(shop)) == (100, [*range(100)])
    assert live_row(shop) == before
    engine.dispose()


def meanwhile(monkeypatch: pytest.MonkeyPatch, at: int, then: Callable[[], object]) -> None:
    """Do something after the records from ``at`` on were read, before their transaction."""
    apply, due = RangeRun._apply, [at]

    def hooked(self: RangeRun, start: int, *given: Any) -> None:
        if start in due:
            due.clear()
            then()
        apply(self, start, *given)

    monkeypatch.setattr(RangeRun, "_apply", hooked)


def test_a_reset_a_pause_and_another_process_end_a_run_which_is_resumed_later(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The range is checked under the row's lock in each transaction: what was committed stays."""
    shop.put([of(n, n) for n in range(200)])
    shop.work(200, kind="append")
    one, ledger = reprocess(shop), shop.ledger()

    def refused(at: int, then: Callable[[], object], error: type[Exception], says: str) -> None:
        with monkeypatch.context() as patch:
            meanwhile(patch, at, then)
            plan = one.plan((shop.topic, 0), 0, 200)
            with pytest.raises(error, match=says):
                one.apply(plan, reason="a test")

    def back() -> None:
        ledger.reset_offset(shop.topic, 0, 100, log=None, reason="a test")

    refused(40, back, ReprocessRefused, "is at offset 100, before 200")
    assert again(shop) == [*range(40)]
    with pytest.raises(ReprocessRefused, match="before 200"):
        one.plan((shop.topic, 0), 0, 200)
    ledger.reset_offset(shop.topic, 0, 200, log=None, reason="a test")

    def twice() -> None:
        with monkeypatch.context() as patch:
            meanwhile(patch, 120, lambda: 1 / 0)
            other = reprocess(shop)
            with pytest.raises(ZeroDivisionError):
                other.apply(other.plan((shop.topic, 0), 0, 200), reason="a test")

    refused(80, twice, ReprocessRefused, "another process works on it")
    refused(160, lambda: ledger.pause(reason="a test"), GroupPaused, "paused")
    with pytest.raises(GroupPaused):
        one.plan((shop.topic, 0), 0, 200)
    ledger.resume()
    one.apply(one.plan((shop.topic, 0), 0, 200), reason="a test")
    assert again(shop) == [*range(200)]
    assert ledger.read()[0].next_offset == 200


def test_ranges_that_are_no_part_of_log_and_position_are_refused(shop: Shop) -> None:
    shop.put([of(n, n) for n in range(30)])
    shop.work(20, kind="append")
    position = shop.ledger().read()[0].next_offset
    trim(AdminClient({"bootstrap.servers": shop.brokers}), shop.topic, 5)
    one = reprocess(shop)
    for start, end, says in [
        (7, 7, "must be before"),
        (9, 7, "must be before"),
        (4, 7, "begins at 5, after 4"),
        (5, position + 1, f"is at offset {position}, before {position + 1}"),
    ]:
        with pytest.raises(ReprocessRefused, match=says):
            one.plan((shop.topic, 0), start, end)
    with pytest.raises(ConfigError, match="no stored offset for"):
        one.plan((shop.topic, 7), 5, 7)
    with pytest.raises(ConfigError, match="does not read"):
        one.plan(("others", 0), 5, 7)
    first, second = (one.plan((shop.topic, 0), 5, 7) for _ in range(2))
    with pytest.raises(ConfigError, match="reason"):
        one.apply(first, reason=" ")
    assert one.apply(first, reason="two operators").records == 2
    with pytest.raises(ReprocessRefused, match="begun since the plan was made"):
        one.apply(second, reason="two operators")
    assert again(shop) == [5, 6]


def test_live_tables_get_no_older_values_unless_that_is_accepted(shop: Shop) -> None:
    """An Upsert without a guard and a handler are refused; an Append says how many rows come twice."""
    shop.put([of(7, n, n) for n in range(10)])
    plain, guarded = shop.pipeline(), shop.pipeline(sink={"order_by": "at"})
    shop.apply(plain, 10)
    at = (shop.topic, 0)
    with pytest.raises(ReprocessRefused, match=r"orders \(Upsert\) does not know which row is newer.*--accept-old-val"):
        reprocess(shop, plain).plan(at, 2, 5)

    def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
        tx.execute(text(f"UPDATE {shop.schema}.orders SET note = 'handled'"))

    handled = Pipeline(shop.group, topics=shop.topic, value=Json(Order, tombstones=True), handle=handle)
    with pytest.raises(ReprocessRefused, match=r"handle runs again for records.*--accept-old-values"):
        reprocess(shop, handled).plan(at, 2, 5)
    one = reprocess(shop, guarded)
    with pytest.raises(
        ReprocessRefused, match=r"\(Upsert\) deletes rows: one that was deleted since.*--accept-old-val"
    ):
        one.plan(at, 2, 5)
    plan = one.plan(at, 2, 5, accept_old_values=True)
    assert any("newest row of each key; a row that was deleted since is made" in said for said in plan.consequences)
    one.apply(plan, reason="a test")
    assert shop.rows() == [(7, 9, 9)]
    one = reprocess(shop, plain)
    one.apply(one.plan(at, 2, 5, accept_old_values=True, restart=True), reason="a test")
    assert shop.rows() == [(7, 4, 4)]
    one = reprocess(shop, handled)
    one.apply(one.plan(at, 2, 5, accept_old_values=True, restart=True), reason="a test")
    assert shop.rows(columns="note, 1, 2") == [("handled", 1, 2)]
    shop.execute("CREATE TABLE {schema}.log (id bigint, amount bigint, at bigint, t text, p int, o bigint)")
    origin = {"topic": "t", "partition": "p", "offset": "o"}
    sink = Append((shop.schema, "log"), columns=["id", "amount", "at"], provenance=origin)
    appended = Pipeline(shop.group, topics=shop.topic, value=Json(Order), sinks=[sink])
    one = reprocess(shop, appended)
    for there in (0, 3, 6):
        plan = one.plan(at, 2, 5, restart=True)
        assert f"{shop.schema}.log (Append): {there} rows come twice" in plan.consequences
        one.apply(plan, reason="a test")


def test_failures_at_commit_and_open_dead_letters(shop: Shop) -> None:
    """A deferred constraint's records are found and dead-lettered; a record of an open dead letter is a replay's."""
    shop.put([BAD if n == 3 else of(n, n) for n in range(60)])
    shop.work(60, kind="append", on_poison="dead_letter")
    before = "SELECT id, state, replays FROM {schema}.dead_letter"
    dead = shop.execute(before)
    shop.execute("CREATE TABLE {schema}.allowed (topic_offset bigint PRIMARY KEY)")
    shop.execute("INSERT INTO {schema}.allowed SELECT n FROM generate_series(0, 59) AS n WHERE n NOT IN (17, 19)")
    shop.execute(
        "ALTER TABLE {schema}.entries ADD FOREIGN KEY (topic_offset) REFERENCES {schema}.allowed "
        "DEFERRABLE INITIALLY DEFERRED NOT VALID"
    )
    one = reprocess(shop)
    plan = one.plan((shop.topic, 0), 0, 60)
    assert any(said.startswith("open dead letters in the range: 1;") for said in plan.consequences)
    done = one.apply(plan, reason="a test")
    assert [(each.offset, each.cause) for each in done.failures] == [(17, "database"), (19, "database")]
    assert (done.records, again(shop)) == (57, [n for n in range(60) if n not in {3, 17, 19}])
    assert shop.execute(before) == dead


def test_what_was_given_up_is_not_put_back(shop: Shop) -> None:
    """As by a reload: a record that was discarded or skipped has no row, and gets none."""
    shop.put([BAD if n in {3, 4, 5} else of(n, n) for n in range(10)])
    shop.work(10, kind="append", on_poison="dead_letter")
    for offset, state in ((3, "discarded"), (4, "skipped")):
        shop.execute(f"UPDATE {{schema}}.dead_letter SET state = '{state}' WHERE record_offset = {offset}")
    one = reprocess(shop)
    plan = one.plan((shop.topic, 0), 0, 10)
    assert "open dead letters in the range: 1; their records are left out, a replay applies them" in plan.consequences
    assert any("discarded or skipped: 2; they are left out" in said for said in plan.consequences)
    live = one.apply(plan, reason="a test")
    assert (live.records, live.dead_letters) == (7, 0)


@pytest.mark.parametrize("statements", [["COMMIT"], ["COMMIT", "BEGIN", "SAVEPOINT sa_savepoint_1"]])
def test_a_handler_that_commits_ends_the_run_before_it_moves(shop: Shop, statements: list[str]) -> None:
    """I1: rows that were committed without the run's position would be written again."""
    shop.put([of(n, n) for n in range(10)])
    shop.work(10)

    def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
        for statement in statements:
            tx.exec_driver_sql(statement)

    made = Pipeline(shop.group, topics=shop.topic, value=Json(Order), handle=handle)
    one = reprocess(shop, made)
    plan = one.plan((shop.topic, 0), 2, 5, accept_old_values=True)
    with pytest.raises(HandlerMisuse):
        one.apply(plan, reason="a test")
    assert shop.execute("SELECT state, next_offset, records FROM {schema}.reprocess_run") == [("open", 2, 0)]


def test_the_command_plans_applies_and_refuses(shop: Shop, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    terminal = Terminal.of(shop, tmp_path)
    shop.put([of(n, n) for n in range(20)])
    shop.work(20, kind="append")
    servers = ["--database-url", terminal.url, "--schema", shop.schema]
    servers += ["--kafka", f"bootstrap.servers={shop.brokers}"]
    words = ["reprocess", f"{terminal.module}:entries", f"{shop.topic}:0", "5..15", *servers]
    shown = terminal.run(*words).stdout
    assert f"would reprocess {shop.topic}/0 [5, 15) of {shop.group}" in shown
    assert "dry run; --apply does it" in shown
    assert again(shop) == []
    assert "--apply needs --reason" in terminal.run(*words, "--apply", exits=2).stderr
    assert "FROM..TO" in terminal.run(*words[:3], "5-15", *servers, exits=2).stderr
    assert "is at offset 20" in terminal.run(*words[:3], "5..21", *servers, exits=1).stderr
    done = terminal.run(*words, "--execute", "--reason", "a test", "--json")
    said = json.loads(done.stdout)
    assert (said["applied"], said["result"]["records"], said["result"]["dead_letters"]) == (True, 10, 0)
    assert again(shop) == [*range(5, 15)]
    twice = terminal.run(*words, "--apply", "--reason", "a test", exits=1)
    assert f"run {said['result']['run']} has applied this range already" in twice.stderr
    restarted = terminal.run(*words, "--restart", "--apply", "--reason", "a test")
    assert "10 records applied" in restarted.stdout
    assert "reprocessing: 10 records" in restarted.stderr
    assert Partition(shop.topic, 0) in {at.partition for at in shop.ledger().read()}
