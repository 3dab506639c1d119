"""The cut-over: all at once, at the groups' positions of now, and for good."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import Connection, create_engine, text

from seekpoint import Limits, Partition, Text, Upsert
from seekpoint.errors import ConfigError, ReloadOver, ReloadRefused
from seekpoint.jobs.reload import catch_up, cutover
from seekpoint.jobs.reload.catch_up import CatchUp
from seekpoint.jobs.reload.cutover import took_effect
from seekpoint.jobs.staging.stage import leave_out
from seekpoint.postgres.sqlstates import connection_lost
from seekpoint.runs.run import SHORT_LOCK_WAIT
from seekpoint.sinks.upsert.upsert import UpsertWriter
from support.before_cutover import FIRST, applied_by, diffed, reloaded, settled, staged, started
from support.postgres_proxy import PostgresProxy
from support.reload_orders import OrdersGroup, doubled, gone, of, pipeline

APPEND: dict[str, Any] = {"on_poison": "dead_letter", "kind": "append", "key": Text()}


def tokens(orders_group: OrdersGroup) -> dict[Partition, tuple[UUID, int, int]]:
    return {p.partition: (p.token, p.epoch, p.next_offset) for p in orders_group.ledger().read()}


@pytest.mark.parametrize("strategy", ["merge", "swap"])
def test_offsets_stay_and_every_token_is_new(applied_group: OrdersGroup, strategy: str) -> None:
    """I5: to a running worker, a cut-over is a move like any other."""
    before = tokens(applied_group)
    reloaded(applied_group.reload(actor="alice"), strategy=strategy, reason="prices")
    after = tokens(applied_group)
    assert {p: (epoch, offset) for p, (_, epoch, offset) in after.items()} == {
        p: (epoch + 1, offset) for p, (_, epoch, offset) in before.items()
    }
    assert all(after[p][0] != before[p][0] for p in before)
    assert applied_group.execute("SELECT version FROM {schema}.consumer_group") == [(2,)]
    (action,) = applied_group.execute(
        "SELECT action, actor, reason FROM {schema}.admin_action ORDER BY id DESC LIMIT 1"
    )
    assert action[:2] == ("cut-over", "alice")
    assert action[2].endswith(": prices")


@pytest.mark.parametrize("strategy", ["merge", "swap"])
def test_positions_are_locked_before_the_last_pass(
    applied_group: OrdersGroup, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    """I1: what a worker committed after this pass would be missing in the rebuilt tables."""
    are_locked: list[bool] = []
    apply = CatchUp.apply

    def checked(passes: CatchUp, tx: Any, offsets: Any, **options: Any) -> int:
        with applied_group.engine.connect() as other:
            rows = "SELECT FROM {schema}.partition_offset FOR NO KEY UPDATE SKIP LOCKED"
            are_locked.append(not other.execute(text(rows.format(schema=applied_group.schema))).all())
        return apply(passes, tx, offsets, **options)

    with diffed(applied_group.reload(), strategy=strategy) as (reload, driver, rounds):
        monkeypatch.setattr(CatchUp, "apply", checked)
        reload.cut_over(driver, rounds)
    assert are_locked[-1]
    assert not any(are_locked[:-1]), "workers do not wait for earlier passes"


def let_go(holder: Connection, monkeypatch: pytest.MonkeyPatch, *, after: int) -> None:
    """Give the locks back when the cut-over has failed so many times, however long it takes to come to them."""

    def between(attempt: int) -> None:
        if attempt == after:
            holder.rollback()

    monkeypatch.setattr(cutover, "pause", between)
    monkeypatch.setattr(cutover, "longer_pause", between)


def test_a_rolled_back_cut_over_loses_no_delta(applied_group: OrdersGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rebuild reads on from its own stored position, whatever its consumer had read."""
    reload, driver = started(applied_group.reload(limits=Limits(transaction_age=1.0)))
    later = [of(n % 60, n, 1) for n in range(50)]
    with diffed(reload, driver=driver) as (_, _, rounds):
        settled(applied_group, later)
        with applied_group.holding("SELECT FROM {schema}.orders WHERE id = 1 FOR UPDATE") as blocker:
            let_go(blocker, monkeypatch, after=1)
            outcome = reload.cut_over(driver, rounds)
    assert outcome.tries > 1
    assert applied_group.rows() == doubled(FIRST + later)


def test_a_swap_waits_for_long_readers_in_short_steps(
    applied_group: OrdersGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        diffed(applied_group.reload(), strategy="swap") as (reload, driver, rounds),
        applied_group.holding("SELECT FROM {schema}.orders LIMIT 1") as reader,
    ):
        let_go(reader, monkeypatch, after=2)
        began = monotonic()
        outcome = reload.cut_over(driver, rounds)
        assert 2 * SHORT_LOCK_WAIT <= monotonic() - began < Limits().transaction_age, "less than one wait of a merge"
    assert outcome.tries > 2
    assert applied_group.rows() == doubled(FIRST)


@pytest.mark.parametrize("strategy", ["merge", "swap"])
def test_a_swapped_table_is_the_table(applied_group: OrdersGroup, strategy: str) -> None:
    """Keys, indexes, defaults and checks are there, and a worker upserts into it."""
    described = (
        "SELECT indexname, replace(indexdef, :schema_, '') FROM pg_indexes "
        "WHERE schemaname = :schema_ AND tablename = 'orders' "
        "UNION ALL SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint "
        "WHERE conrelid = to_regclass(:schema_ || '.orders') "
        "UNION ALL SELECT 'told', obj_description(to_regclass(:schema_ || '.orders'), 'pg_class') "
        "UNION ALL SELECT 'column', col_description(to_regclass(:schema_ || '.orders'), 2) ORDER BY 1, 2"
    )
    applied_group.execute("COMMENT ON TABLE {schema}.orders IS 'of the shop'")
    applied_group.execute("COMMENT ON COLUMN {schema}.orders.amount IS 'in cents'")
    before = applied_group.execute(described, schema_=applied_group.schema)
    reloaded(applied_group.reload(), strategy=strategy)
    assert applied_group.execute(described, schema_=applied_group.schema) == before
    more = [of(2, 9), of(77, 1), gone(4)]
    settled(applied_group, more, version=2)
    assert applied_group.rows() == doubled(FIRST + more)
    assert applied_group.execute("SELECT DISTINCT note FROM {schema}.orders") == [("none",)]


def test_columns_that_are_not_ours_stay(applied_group: OrdersGroup) -> None:
    applied_group.execute("UPDATE {schema}.orders SET note = 'kept' WHERE id < 10")
    reloaded(applied_group.reload())
    assert applied_group.rows() == doubled(FIRST)
    assert applied_group.execute("SELECT count(*) FROM {schema}.orders WHERE note = 'kept'") == [(9,)]


def test_a_pause_and_a_claim_are_no_moves(applied_group: OrdersGroup) -> None:
    with diffed(applied_group.reload()) as (reload, driver, rounds):
        applied_group.ledger().pause(reason="a test")
        applied_group.ledger().resume()
        more = [of(1, 1)]
        settled(applied_group, more)
        reload.cut_over(driver, rounds)
    assert applied_group.rows() == doubled(FIRST + more)


def test_a_handler_that_was_deployed_before_the_run_is_caught_up_with(applied_group: OrdersGroup) -> None:
    """Version 2 has taken over without a reload: some rows are of it, the others are not."""
    early, late = [of(n, n) for n in range(30, 60)], [of(n, n) for n in range(50, 80)]
    settled(applied_group, early, version=2)
    with diffed(applied_group.reload()) as (reload, driver, rounds):
        settled(applied_group, late, version=2)
        reload.cut_over(driver, rounds)
    assert applied_group.rows() == doubled(FIRST + early + late)


def test_a_driver_with_other_code_takes_no_step(applied_group: OrdersGroup) -> None:
    """Also after it took over the run: rows of version 3 are not published as those of version 2."""
    reload, driver = staged(applied_group.reload())
    other = applied_group.reload(version=3)
    with pytest.raises(ConfigError, match="was opened with the handler versions"):
        other.run(other.runs.take_over(driver.run.id))
    assert applied_group.rows() == doubled(FIRST, by=1)
    reload.run(reload.take_over(driver.run.id))
    assert applied_group.rows() == doubled(FIRST)


def test_a_newer_handler_than_the_runs_ends_it(applied_group: OrdersGroup) -> None:
    with diffed(applied_group.reload()) as (reload, driver, rounds):
        settled(applied_group, [of(1, 1)], version=3)
        with pytest.raises(ReloadRefused, match="was raised to handler version 3 meanwhile, and this run is for 2"):
            reload.cut_over(driver, rounds)


def test_keys_that_only_the_old_code_touched_are_found(orders_group: OrdersGroup) -> None:
    """After the comparison, the old handler writes under a key that the new one never makes."""

    def shifted(version: int) -> Any:
        sink = Upsert(
            (orders_group.schema, "orders"),
            key=["id"],
            columns=["id", "amount", "at"],
            row=lambda r: {"id": r.value.id + 1000 * (version - 1), "amount": r.value.amount, "at": r.value.at},
            tombstone=None,
        )
        pipeline = orders_group.pipeline(version=version)
        pipeline.sinks = (sink,)
        return pipeline

    records = [of(n, n) for n in range(20)]
    orders_group.produce(orders_group.topic, records, partition=0)
    old = orders_group.run_worker(shifted(1))
    old.reached(orders_group.topic, 20)
    with diffed(orders_group.reload([shifted(2)])) as (reload, driver, rounds):
        applied_by(old, orders_group, [of(500, 1), of(3, 8)])
        old.stop()
        reload.cut_over(driver, rounds)
    assert orders_group.rows() == sorted([(n + 1000, 8 if n == 3 else n, 0) for n in range(20)] + [(1500, 1, 0)])


def test_keys_are_converted_as_the_sink_says(orders_group: OrdersGroup) -> None:
    """Those of staged tombstones, and those that are touched after the comparison."""
    orders_group.execute("CREATE TABLE {schema}.hours (at timestamp PRIMARY KEY, amount int)")
    day = datetime(2026, 1, 1, tzinfo=UTC)

    def hourly(version: int) -> Any:
        sink = Upsert(
            (orders_group.schema, "hours"),
            key=["at"],
            columns=["at", "amount"],
            row=lambda r: (day + timedelta(hours=r.value.id), r.value.amount * version),
            tombstone_key=lambda r: day + timedelta(hours=r.key.id),
            timezone="UTC",
        )
        pipeline = orders_group.pipeline(version=version)
        pipeline.sinks = (sink,)
        return pipeline

    orders_group.apply(hourly(1), orders_group.put([*(of(n, n) for n in range(5)), gone(3)]))
    with diffed(orders_group.reload([hourly(2)])) as (reload, driver, passes):
        orders_group.apply(hourly(1), orders_group.put([of(4, 9), gone(1)]))
        reload.cut_over(driver, passes)
    local = day.replace(tzinfo=None)
    assert orders_group.rows("hours", "at, amount, 0") == [
        (local + timedelta(hours=n), amount, 0) for n, amount in ((0, 0), (2, 4), (4, 18))
    ]


@pytest.mark.repeats("by")
@pytest.mark.parametrize("by", [1, 2])
def test_rows_that_only_the_old_code_deleted_are_back(orders_group: OrdersGroup, by: int) -> None:
    """The tombstones come after the difference, which has these rows (``by`` 2) or not. The new code ignores them."""

    class KeepingSink(Upsert):
        def writer(self) -> Any:
            return KeepingWriter(self)

    class KeepingWriter(UpsertWriter):
        def rows(self, record: Any) -> Any:
            return () if record.value is None else super().rows(record)

    settled(orders_group, [of(n, n) for n in range(20)])
    fixed = orders_group.pipeline(version=2)
    values: dict[str, Any] = {"key": ["id"], "columns": ["id", "amount", "at"]}
    table = (orders_group.schema, "orders")
    fixed.sinks = (
        KeepingSink(table, row=lambda r: {"id": r.value.id, "amount": by * r.value.amount, "at": 0}, **values),
    )
    with diffed(orders_group.reload([fixed])) as (reload, driver, rounds):
        settled(orders_group, [gone(3), gone(4), of(4, 6), gone(5), of(7, 8)])
        reload.cut_over(driver, rounds)
    assert orders_group.rows() == [(n, by * {4: 6, 7: 8}.get(n, n), 0) for n in range(20)]


def test_a_key_that_was_written_before_the_difference_and_committed_after_it_is_found(
    applied_group: OrdersGroup,
) -> None:
    """By a transaction that was under way while tables were compared, and is older than others that had ended."""
    reload, driver = staged(applied_group.reload())
    with CatchUp(driver, reload.sources, reload.kafka) as rounds, applied_group.engine.connect() as under_way:
        reload.catch_up(driver, rounds)
        under_way.execute(text(f"INSERT INTO {applied_group.schema}.orders (id, amount, at) VALUES (4000, 1, 1)"))
        applied_group.execute("UPDATE {schema}.orders SET note = 'younger' WHERE id = 1")
        assert reload.compare(driver, rounds).tables[0].extra == 0
        under_way.commit()
        reload.cut_over(driver, rounds)
    assert applied_group.rows() == doubled(FIRST)


class HalfSink(Upsert):
    """Writes the records of one partition."""

    number: int

    def writer(self) -> Any:
        return HalfWriter(self)


class HalfWriter(UpsertWriter):
    def rows(self, record: Any) -> Any:
        return super().rows(record) if record.partition == vars(self._sink)["number"] else ()


def test_two_groups_that_write_one_table_are_reloaded_together(orders_group: OrdersGroup) -> None:
    """Each at its own position, in one cut-over."""
    orders_group.produce(orders_group.topic, [of(n, n) for n in range(30)], partition=0)
    orders_group.produce(orders_group.topic, [of(n, n) for n in range(100, 130)], partition=1)
    names = [f"{orders_group.group}-a", f"{orders_group.group}-b"]

    def half(group: str, version: int) -> Any:
        number = names.index(group)
        declared = pipeline(group, orders_group.topic, orders_group.schema, version=version, sink={"tombstone": None})
        sink: Any = declared.sinks[0]
        sink.__class__, sink.number = HalfSink, number
        return declared

    for group in names:
        worker = orders_group.run_worker(half(group, 1))
        worker.reached(orders_group.topic, 30, partition=0)
        worker.finish(orders_group.topic, 30, partition=1)
    assert len(orders_group.rows()) == 60
    with pytest.raises(ReloadRefused, match=": name its pipeline in the same reload"):
        orders_group.reload([half(names[0], 2)]).open()
    reloaded(orders_group.reload([half(group, 2) for group in names]))
    assert orders_group.rows() == [(n, 2 * n, 0) for n in [*range(30), *range(100, 130)]]
    assert orders_group.execute("SELECT version FROM {schema}.consumer_group") == [(2,), (2,)]


def test_a_dead_letter_that_is_replayed_in_mid_run_is_in(orders_group: OrdersGroup) -> None:
    """Dead-lettered at the snapshot offset, replayed after the difference: both tables have its rows."""
    orders_group.execute("ALTER TABLE {schema}.entries ADD CHECK (amount NOT IN (8, 9))")
    settled(orders_group, [of(1, 1), of(2, 8), of(3, 9)], **APPEND)
    with diffed(orders_group.reload(pipeline=APPEND)) as (reload, driver, rounds):
        orders_group.execute("ALTER TABLE {schema}.entries DROP CONSTRAINT entries_amount_check")
        replay = orders_group.new_replay(**APPEND)
        parked = {dead_letter.offset: dead_letter.id for dead_letter in replay.list()}
        assert replay.replay(parked[1]).is_applied
        replay.discard(parked[2], reason="a test")
        reload.cut_over(driver, rounds)
    assert orders_group.rows("entries", "id, amount, topic_offset") == [(1, 2, 0), (2, 16, 1)]
    live = orders_group.execute("SELECT record_offset, state FROM {schema}.dead_letter ORDER BY 1")
    assert live == [(1, "replayed"), (2, "discarded")]


def test_a_dead_letter_of_a_deleted_topic_is_not_taken_for_one_of_the_current_topic(orders_group: OrdersGroup) -> None:
    """Its offset and topic name are the same, and it was replayed; but its record is not in this log."""
    orders_group.execute("ALTER TABLE {schema}.entries ADD CHECK (amount <> 8)")
    settled(orders_group, [of(1, 1), of(2, 8)], **APPEND)
    columns = "consumer_group, topic, partition, record_offset, key, header_names, header_values, cause, error"
    orders_group.execute(
        f"INSERT INTO {{schema}}.dead_letter ({columns}, attempts, version, topic_id, state, value) "
        f"SELECT {columns}, 1, 1, gen_random_uuid(), 'replayed', "
        f"convert_to('{{{{\"id\": 5, \"amount\": 5}}}}', 'UTF8') "
        "FROM {schema}.dead_letter"
    )
    with diffed(orders_group.reload(pipeline=APPEND)) as (reload, driver, rounds):
        orders_group.execute("ALTER TABLE {schema}.entries DROP CONSTRAINT entries_amount_check")
        (parked,) = (dead_letter.id for dead_letter in orders_group.new_replay(**APPEND).list() if dead_letter.is_open)
        assert orders_group.new_replay(**APPEND).replay(parked).is_applied
        reload.cut_over(driver, rounds)
    assert orders_group.rows("entries", "id, amount, topic_offset") == [(1, 2, 0), (2, 16, 1)]


def test_records_dead_lettered_in_mid_run_stay_out(orders_group: OrdersGroup) -> None:
    settled(orders_group, [of(1, 1)], **APPEND)
    orders_group.execute("ALTER TABLE {schema}.entries ADD CHECK (amount <> 8)")
    with diffed(orders_group.reload(pipeline=APPEND)) as (reload, driver, rounds):
        settled(orders_group, [of(2, 8), of(3, 3)], **APPEND)
        reload.cut_over(driver, rounds)
    assert orders_group.rows("entries", "id, amount, topic_offset") == [(1, 2, 0), (3, 6, 2)]
    assert orders_group.execute("SELECT record_offset, state FROM {schema}.dead_letter") == [(1, "dead_lettered")]


def test_what_the_new_code_cannot_apply_is_dead_lettered_by_the_cut_over(orders_group: OrdersGroup) -> None:
    """I4: its row is deleted and its dead letter inserted in one transaction."""
    settled(orders_group, [of(1, 1), of(2, 1500), of(3, 3)], **APPEND)
    with diffed(orders_group.reload(pipeline=APPEND)) as (reload, driver, rounds):
        settled(orders_group, [of(4, 1600), of(5, 5)], **APPEND)
        assert orders_group.execute("SELECT count(*) FROM {schema}.dead_letter") == [(0,)]
        reload.cut_over(driver, rounds)
    assert orders_group.rows("entries", "id, amount, topic_offset") == [(1, 2, 0), (3, 6, 2), (5, 10, 4)]
    dead_letters = list(orders_group.new_replay(version=2, **APPEND).list())
    assert [(dead_letter.offset, dead_letter.version, dead_letter.state.value) for dead_letter in dead_letters] == [
        (1, 2, "dead_lettered"),
        (3, 2, "dead_lettered"),
    ]


def test_a_replayed_record_that_the_new_code_refuses_is_an_open_dead_letter_again(orders_group: OrdersGroup) -> None:
    """As if it were dead-lettered for the first time: nothing of how it was closed is left."""
    orders_group.execute("ALTER TABLE {schema}.entries ADD CHECK (amount <> 1500)")
    settled(orders_group, [of(1, 1), of(2, 1500)], **APPEND)
    orders_group.execute("ALTER TABLE {schema}.entries DROP CONSTRAINT entries_amount_check")
    assert orders_group.new_replay(**APPEND).replay_all().replayed == 1
    reloaded(orders_group.reload(pipeline=APPEND))
    assert orders_group.rows("entries", "id, amount, topic_offset") == [(1, 2, 0)]
    columns = "state, version, replays, replayed_at, closed_at, closed_by, closed_reason"
    assert orders_group.execute(f"SELECT {columns} FROM {{schema}}.dead_letter") == [
        ("dead_lettered", 2, 0, None, None, None, None)
    ]


def test_held_keys_are_replayed_in_order(orders_group: OrdersGroup) -> None:
    """With keep_key_order, a record that is replayed in mid-run comes before later records of its key."""
    options: dict[str, Any] = {"on_poison": "dead_letter"}
    orders_group.execute("ALTER TABLE {schema}.orders ADD CHECK (amount <> 77)")
    settled(orders_group, [of(1, 1), of(2, 77)], **options)
    settled(orders_group, [of(2, 5)], **options)
    with diffed(orders_group.reload(pipeline=options)) as (reload, driver, rounds):
        orders_group.execute("ALTER TABLE {schema}.orders DROP CONSTRAINT orders_amount_check1")
        replay = orders_group.new_replay(**options)
        assert replay.replay_all().replayed == 2
        settled(orders_group, [of(2, 9), of(1, 4)], **options)
        reload.cut_over(driver, rounds)
    assert orders_group.rows() == [(1, 8, 0), (2, 18, 0)]
    assert orders_group.execute("SELECT DISTINCT state FROM {schema}.dead_letter") == [("replayed",)]


@pytest.mark.long
@pytest.mark.parametrize("is_before", [True, False])
def test_two_records_of_a_key_that_are_replayed_during_a_pass_keep_their_order(
    orders_group: OrdersGroup, *, is_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass reads one moment: the first record is of an earlier pass, the second of this one."""
    options: dict[str, Any] = {"on_poison": "dead_letter"}
    orders_group.execute("ALTER TABLE {schema}.orders ADD CHECK (amount <> 77)")
    settled(orders_group, [of(1, 1), of(2, 77)], **options)
    replays = list[int]()

    def replayed() -> None:
        if not replays:
            orders_group.execute("ALTER TABLE {schema}.orders DROP CONSTRAINT orders_amount_check1")
            replays.append(orders_group.new_replay(**options).replay_all().replayed)

    def left_out(*args: Any) -> None:
        if is_before:
            replayed()
        leave_out(*args)
        if not is_before:
            replayed()

    with diffed(orders_group.reload(pipeline=options)) as (reload, driver, rounds):
        settled(orders_group, [of(2, 5)], **options)
        monkeypatch.setattr(catch_up, "leave_out", left_out)
        reload.cut_over(driver, rounds)
    assert replays == [2]
    assert orders_group.rows() == [(1, 2, 0), (2, 10, 0)]


def deliver(proxy: PostgresProxy) -> None:
    """What was held back, once there is something."""
    proxy.wait_until_fired(60)
    proxy.deliver(60)


@pytest.mark.parametrize(
    ("when", "away", "strategy"),
    [
        ("before_commit", False, "merge"),
        ("after_commit", False, "merge"),
        ("after_commit_delayed", False, "merge"),
        ("before_commit", True, "merge"),
        ("after_commit", True, "merge"),
        ("before_commit", False, "swap"),
        ("after_commit", False, "swap"),
    ],
)
def test_a_commit_without_an_answer_is_looked_up(
    applied_group: OrdersGroup,
    proxy: PostgresProxy,
    when: Any,
    *,
    away: bool,
    strategy: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The run's row shows whether it committed: published once, even if the reply is lost or Postgres is away."""
    engine = create_engine(proxy.dsn, pool_pre_ping=True)
    reload = replace(applied_group, engine=engine).reload()
    with diffed(reload, strategy=strategy) as (_, driver, rounds):
        turn = driver.transition

        def turned(tx: Any, state: str) -> None:
            turn(tx, state)
            if state == "cut_over" and not proxy.fired.is_set():
                proxy.arm(when)
                if when == "after_commit_delayed":
                    threading.Timer(1.0, deliver, [proxy]).start()

        def lost(error: BaseException) -> bool:
            if away and not accepted:
                accepted.append(threading.Timer(1.0, proxy.accept))
                proxy.refuse()
                proxy.cut()
                accepted[0].start()
            return connection_lost(error)

        accepted: list[threading.Timer] = []
        monkeypatch.setattr(driver, "transition", turned)
        monkeypatch.setattr("seekpoint.jobs.reload.cutover.connection_lost", lost)
        outcome = reload.cut_over(driver, rounds)
    assert proxy.fired.is_set()
    assert outcome.tries == (2 if when == "before_commit" else 1)
    engine.dispose()
    assert applied_group.rows() == doubled(FIRST)
    assert applied_group.execute("SELECT count(*) FROM {schema}.admin_action WHERE action = 'cut-over'") == [(1,)]


def test_only_the_newest_driver_learns_the_outcome_of_a_commit(applied_group: OrdersGroup) -> None:
    reload, driver = started(applied_group.reload())
    other, lost = reload.take_over(driver.run.id), psycopg.OperationalError("the connection is lost")
    with pytest.raises(ReloadOver, match="was taken over by"):
        took_effect(driver, lost)
    reload.run(other)
    with pytest.raises(ReloadOver, match="was taken over by"):
        took_effect(driver, lost)
    assert took_effect(other, lost)
