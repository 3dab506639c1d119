"""What a run stages: every record once, even if tasks are repeated, and none that has no rows in the live table."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest

from seekpoint import Append, Json, Pipeline, Text
from seekpoint.errors import ConfigError, ReloadOver, ReloadRefused
from seekpoint.jobs.reload import Driver, Reload, stage_range
from seekpoint.jobs.staging import stage as staging
from seekpoint.jobs.staging.consolidate import consolidate, index
from seekpoint.jobs.staging.local_stager import LocalStager
from seekpoint.jobs.staging.stage import begin_staging
from seekpoint.jobs.tables.targets import PipelineSource, sources
from seekpoint.kafka.ranges import Range
from seekpoint.pipeline.writers import PipelineWriters
from seekpoint.records import Partition, State
from support.before_cutover import reloaded, resume, settled, started
from support.ledger_worker import backend, wait_until_blocked
from support.reload_orders import Order, OrderKey, OrdersGroup, doubled, gone, of, pipeline, stage, tasks

RECORDS = [of(n % 30, n, n) for n in range(100)] + [gone(4), of(5, 7), gone(6)]


def begun(orders_group: OrdersGroup, records: list[Any] = RECORDS, **options: Any) -> tuple[Reload, Driver]:
    """A run in the state ``staging``, at the end of these records."""
    settled(orders_group, records, **options)
    return opened(orders_group, **options)


def opened(orders_group: OrdersGroup, **options: Any) -> tuple[Reload, Driver]:
    reload, driver = started(orders_group.reload(pipeline=options))
    begin_staging(driver, reload.sources)
    return reload, driver


def staged_rows(orders_group: OrdersGroup, driver: Driver, columns: str = "id, amount, at") -> list[tuple[Any, ...]]:
    return orders_group.execute(f"SELECT {columns} FROM {driver.run.staging_schema}.t0 ORDER BY 1, 2, 3")


def test_ranges_that_were_staged_twice_count_once(orders_group: OrdersGroup) -> None:
    """Retries, speculation and zombies repeat whole ranges: each attempt has tables of its own, and one is chosen."""
    reload, driver = begun(orders_group)
    first, second, third = tasks(driver)
    for task in (third, first, second, first, third):
        stage(reload, driver, task.range)
    assert tasks(driver) == ()
    consolidate(driver, reload.sources)
    assert staged_rows(orders_group, driver) == doubled(RECORDS)
    index(driver, reload.sources, reload.kafka)
    assert driver.run.state == "indexed"


def test_only_what_is_missing_is_staged_again(orders_group: OrdersGroup) -> None:
    reload, driver = begun(orders_group)
    first, second, third = tasks(driver)
    staged = stage(reload, driver, second.range)
    assert (staged.start, staged.end, staged.records, staged.rows, staged.dead_letters) == (40, 80, 40, [40], 0)
    assert tasks(driver) == (first, third)
    assert [(t.range.start, t.range.end) for t in tasks(driver, 1000)] == [(0, 40), (80, 103)]
    with pytest.raises(ReloadRefused, match=r"\[0, 40\) was not staged"):
        consolidate(driver, reload.sources)


@pytest.mark.repeats("late")
@pytest.mark.parametrize("late", [(0, 60), (20, 70), (30, 120), (0, 110)])
def test_a_late_attempt_of_another_width_is_none_that_counts(orders_group: OrdersGroup, late: tuple[int, int]) -> None:
    """The driver before had cut its ranges otherwise, and a task of it commits after all others."""
    records = [of(n, n, n) for n in range(120)]
    settled(orders_group, records)
    done: list[object] = []

    def commit_late(what: str, count: int, total: int) -> None:
        if what == "staging" and count == total and not done:
            kafka, source = {"bootstrap.servers": orders_group.brokers}, reload.sources[0]
            (staged,) = [
                position for position in reload.runs.positions(driver.run.id) if position.partition.number == 0
            ]
            for _ in range(3):  # whatever their names: which comes first is chance
                range_ = Range(Partition(orders_group.topic, 0), staged.topic_id, *late)
                done.append(
                    stage_range(
                        orders_group.engine,
                        orders_group.schema,
                        kafka,
                        driver.run.id,
                        pipeline=source.pipeline,
                        range_=range_,
                    )
                )

    reload, driver = started(orders_group.reload(range_records=40, progress=commit_late))
    reload.run(driver)
    assert len(done) == 3
    assert orders_group.rows() == doubled(records)


def test_the_end_of_a_task_waits_for_the_drivers_step(orders_group: OrdersGroup) -> None:
    """What it has read of the run is still true at its COMMIT: else a range might come after the choice of attempts."""
    reload, driver = begun(orders_group)
    task = tasks(driver, 1000)[0]
    with ThreadPoolExecutor(1) as pool:
        with driver.step("staging") as tx:
            driver.transition(tx, "staged")
            late = pool.submit(stage, reload, driver, task.range)
            wait_until_blocked(orders_group.engine, by=backend(tx.connection))
        with pytest.raises(ReloadOver, match="so they are dropped"):
            late.result(60)


def test_a_task_that_comes_too_late_keeps_nothing(orders_group: OrdersGroup) -> None:
    reload, driver = begun(orders_group)
    late = tasks(driver)[0]
    reload.stage(driver)
    with pytest.raises(ReloadOver, match="is indexed: it accepts no more ranges"):
        stage(reload, driver, late.range)
    count = "SELECT count(*) FROM {schema}.reload_staged"
    before = orders_group.execute(count)
    reload.runs.abort(driver.run.id, "a test")
    with pytest.raises(ReloadOver, match="is aborted: it accepts no more ranges"):
        stage(reload, driver, late.range)
    assert orders_group.execute(count) == before


def test_the_run_is_asked_again_at_the_end_of_a_task(
    orders_group: OrdersGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run whose state changed while a range was read does not get its rows any more."""
    reload, driver = begun(orders_group)
    task = tasks(driver, 1000)[0]
    decode = PipelineWriters.decode

    def slow(writers: Any, raw: Any) -> Any:
        if raw.offset == 102:
            orders_group.execute("UPDATE {schema}.reload_run SET state = 'staged'")
        return decode(writers, raw)

    monkeypatch.setattr(PipelineWriters, "decode", slow)
    with pytest.raises(ReloadOver, match="continued while these rows were staged, so they are dropped"):
        stage(reload, driver, task.range)
    assert orders_group.execute("SELECT count(*) FROM {schema}.reload_staged") == [(0,)]
    named = "SELECT count(*) FROM pg_tables WHERE schemaname = :schema_ AND tablename LIKE 'r%'"
    assert orders_group.execute(named, schema_=driver.run.staging_schema) == [(0,)]


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (
            {"version": 1},
            "with handler version 2, and the code of this process is version 1 of .*: resume it with",
        ),
        (
            {"version": 3},
            "with handler version 2, and the code of this process is version 3 of .*: resume it with",
        ),
        (
            {"version": 2, "kind": "append"},
            r"writes \S+\.orders, and these sinks write \S+\.entries: resume it with its own code",
        ),
    ],
    ids=["an older version", "a newer version", "other tables"],
)
def test_a_task_of_other_code_stages_nothing_and_the_run_continues(
    orders_group: OrdersGroup, other: dict[str, Any], why: str
) -> None:
    """A process that imports what was deployed before: its rows would be the old code's, under the new version."""
    reload, driver = begun(orders_group)
    reload._stager = LocalStager(reload.engine, reload.schema, reload.kafka, sources([orders_group.pipeline(**other)]))
    with pytest.raises(ConfigError, match=why):
        reload.stage(driver)
    assert orders_group.execute("SELECT count(*) FROM {schema}.reload_staged") == [(0,)]
    assert reload.runs.get(driver.run.id).state == "staging"
    resume(orders_group.reload(), driver.run.id)
    assert orders_group.rows() == doubled(RECORDS)


def test_a_task_whose_code_has_a_handler_stages_nothing_and_the_run_continues(orders_group: OrdersGroup) -> None:
    """It would run, and its statements would reach the live tables."""
    reload, driver = begun(orders_group)
    other, calls = orders_group.pipeline(version=2), list[object]()
    other.handle = lambda tx, batch: calls.append(batch)
    reload._stager = LocalStager(reload.engine, reload.schema, reload.kafka, [PipelineSource("", other)])
    with pytest.raises(ConfigError, match=f"seekpoint groups replace {orders_group.group} --by GROUP"):
        reload.stage(driver)
    assert orders_group.execute("SELECT count(*) FROM {schema}.reload_staged") == [(0,)]
    assert reload.runs.get(driver.run.id).state == "staging"
    resume(orders_group.reload(), driver.run.id)
    assert (orders_group.rows(), calls) == (doubled(RECORDS), [])


def test_of_two_groups_each_task_writes_its_own_tables(orders_group: OrdersGroup) -> None:
    """A task knows one pipeline: that the other's tables are not among its own is no difference."""
    records = [of(n, n) for n in range(30)]
    orders_group.produce(orders_group.topic, records, partition=0)
    kinds: dict[str, dict[str, Any]] = {
        f"{orders_group.group}-a": {"sink": {"tombstone": None}},
        f"{orders_group.group}-b": {"kind": "append"},
    }

    def both(version: int) -> list[Any]:
        return [
            pipeline(group, orders_group.topic, orders_group.schema, version=version, **kind)
            for group, kind in kinds.items()
        ]

    for live in both(1):
        orders_group.apply(live, 30)
    reloaded(orders_group.reload(both(2)))
    assert orders_group.rows() == doubled(records)
    assert orders_group.rows("entries", "topic_offset, id, amount") == [(n, n, 2 * n) for n in range(30)]


@pytest.mark.parametrize("fewer", ["orders", "entries"])
def test_of_two_groups_a_task_that_writes_fewer_tables_than_its_own_stages_nothing(
    orders_group: OrdersGroup, fewer: str
) -> None:
    """Each of the two writes some of the run's tables; which ones is known of each, by tasks and by drivers."""
    orders_group.produce(orders_group.topic, [of(n, n) for n in range(30)], partition=0)
    only = pipeline(
        f"{orders_group.group}-a", orders_group.topic, orders_group.schema, version=2, sink={"tombstone": None}
    )

    def both(version: int) -> Pipeline:
        sinks = [
            pipeline("any", orders_group.topic, orders_group.schema, version=version, kind=kind).sinks[0]
            for kind in ("upsert", "append")
        ]
        return Pipeline(
            f"{orders_group.group}-b",
            topics=orders_group.topic,
            value=Json(Order),
            key=Json(OrderKey),
            sinks=sinks,
            version=version,
        )

    for live in (
        pipeline(f"{orders_group.group}-a", orders_group.topic, orders_group.schema, sink={"tombstone": None}),
        both(1),
    ):
        orders_group.apply(live, 30)
    reload, driver = started(orders_group.reload([only, both(2)]))
    begin_staging(driver, reload.sources)
    less = both(2)
    less.sinks = tuple(sink for sink in less.sinks if fewer in repr(sink))
    assert len(less.sinks) == 1
    reload._stager = LocalStager(reload.engine, reload.schema, reload.kafka, sources([only, less]))
    with pytest.raises(ConfigError, match=rf"writes \S+\.entries, \S+\.orders, and these sinks write \S+\.{fewer}: "):
        reload.stage(driver)
    assert reload.runs.get(driver.run.id).state == "staging"
    if fewer == "entries":  # with the other group, all of the run's tables are written
        with pytest.raises(ConfigError, match=r"writes \S+\.entries, \S+\.orders, and these sinks write \S+es: "):
            orders_group.reload([only, less]).take_over(driver.run.id)
    resume(orders_group.reload([only, both(2)]), driver.run.id)
    assert orders_group.rows() == [(n, 2 * n, 0) for n in range(30)]


def test_a_table_with_other_rows_than_its_task_said_is_refused(orders_group: OrdersGroup) -> None:
    reload, driver = begun(orders_group)
    staged = [stage(reload, driver, task.range) for task in tasks(driver)]
    orders_group.execute(f"DELETE FROM {driver.run.staging_schema}.{staged[1].attempt}_0 WHERE id = 11")
    with pytest.raises(ReloadRefused, match="rows, and its task reported 40"):
        consolidate(driver, reload.sources)


def test_a_record_that_fails_in_one_attempt_alone_is_no_row_and_dead_letter_at_once(
    orders_group: OrdersGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two attempts commit: the one that is used has no dead letter, but the other one has. The run is refused."""
    fails = [False]

    def row(record: Any) -> dict[str, Any]:
        if fails[0] and record.value.id == 7:
            raise ValueError("not today")
        order = record.value
        return {"id": order.id, "amount": order.amount, "at": order.at, "topic_offset": record.offset}

    sink = Append((orders_group.schema, "entries"), columns=["id", "amount", "at", "topic_offset"], row=row)

    def pipeline_of(version: int) -> Pipeline:
        return Pipeline(
            orders_group.group,
            topics=orders_group.topic,
            value=Json(Order),
            sinks=[sink],
            on_poison="dead_letter",
            version=version,
        )

    orders_group.produce(orders_group.topic, [of(n, n) for n in range(20)], partition=0)
    orders_group.apply(pipeline_of(1), 20)
    reload, driver = started(orders_group.reload([pipeline_of(2)]))
    begin_staging(driver, reload.sources)
    (task,) = tasks(driver)
    for number, fails[0] in (("f", True), ("0", False)):
        monkeypatch.setattr(staging, "uuid4", lambda number=number: UUID(number * 32))
        assert stage(reload, driver, task.range).dead_letters == fails[0]
    with pytest.raises(ReloadRefused, match="1 records failed in any attempt at their range, and 0 in the chosen"):
        consolidate(driver, reload.sources)


def test_the_newest_row_of_a_key_is_found_by_the_sinks_own_column(orders_group: OrdersGroup) -> None:
    records = [of(1, 5, 50), of(1, 6, 20), of(2, 7, 10), of(2, 8, 10)]
    reload, driver = begun(orders_group, records, sink={"order_by": "at", "tombstone": None})
    assert orders_group.rows() == [(1, 5, 50), (2, 8, 10)]
    for task in tasks(driver, 1):
        stage(reload, driver, task.range)
    consolidate(driver, reload.sources)
    assert staged_rows(orders_group, driver) == [(1, 10, 50), (2, 16, 10)]


BROKEN = [of(1, 1), ('{"id": 2}', '{"id": 2'), of(3, 3), of(4, 9000), of(5, 5)]


def test_dead_letters_stay_out_until_they_are_replayed(orders_group: OrdersGroup) -> None:
    """Records that are dead-lettered, skipped or discarded have no rows in the live and the rebuilt table."""
    options: dict[str, Any] = {"on_poison": "dead_letter", "kind": "append", "key": Text()}
    orders_group.execute("ALTER TABLE {schema}.entries ADD CHECK (amount < 4000)")
    records = [*BROKEN, of(6, 7000), of(7, 7)]
    settled(orders_group, records, **options)
    replay = orders_group.new_replay(**options)
    parked = {dead_letter.offset: dead_letter.id for dead_letter in replay.list()}
    assert sorted(parked) == [1, 3, 5]
    orders_group.execute("ALTER TABLE {schema}.entries DROP CONSTRAINT entries_amount_check")
    assert replay.replay(parked[3]).is_applied
    replay.discard(parked[5], reason="a test")

    reload, driver = opened(orders_group, **options)
    for task in tasks(driver):
        stage(reload, driver, task.range)
    consolidate(driver, reload.sources)
    assert staged_rows(orders_group, driver, "topic_offset, id, amount") == [
        (0, 1, 2),
        (2, 3, 6),
        (4, 5, 10),
        (6, 7, 14),
    ]
    kept = f"SELECT record_offset, cause, state FROM {driver.run.staging_schema}.dead_letter"
    assert orders_group.execute(kept) == [(3, "row", "dead_lettered")], (
        "the replayed one is tried, and fails by the new row="
    )
    live = dict(orders_group.execute("SELECT record_offset, state FROM {schema}.dead_letter"))
    assert live == {1: State.DEAD_LETTERED, 3: State.REPLAYED, 5: State.DISCARDED}, "the live ones are as they were"


def test_what_was_given_up_stays_out(orders_group: OrdersGroup) -> None:
    settled(orders_group, [of(n, n) for n in range(5)])
    orders_group.ledger().reset_offset(orders_group.topic, 0, 8, log=None, reason="a test", lost="a test gave them up")
    settled(orders_group, [of(n, n) for n in range(5, 12)])
    reload, driver = opened(orders_group)
    reload.stage(driver)
    assert [row[0] for row in staged_rows(orders_group, driver)] == [0, 1, 2, 3, 4, 8, 9, 10, 11]


def test_what_was_given_up_and_read_after_all_is_in(orders_group: OrdersGroup) -> None:
    settled(orders_group, [of(n, n) for n in range(4)])
    orders_group.put([of(n, n) for n in range(4, 10)])
    ledger = orders_group.ledger()
    ledger.reset_offset(orders_group.topic, 0, 2, log=None, reason="back")
    ledger.reset_offset(orders_group.topic, 0, 8, log=None, reason="a test", lost="a test gave them up")
    ledger.reset_offset(orders_group.topic, 0, 6, log=None, reason="back again")
    orders_group.work(10)
    reload, driver = opened(orders_group)
    reload.stage(driver)
    assert [row[0] for row in staged_rows(orders_group, driver)] == [0, 1, 2, 3, 6, 7, 8, 9], (
        "2 and 3 were applied before"
    )


@pytest.mark.parametrize("on_poison", ["dead_letter", "skip"])
def test_what_the_new_code_cannot_apply_goes_to_the_run(orders_group: OrdersGroup, on_poison: str) -> None:
    records = [of(n, n) for n in range(20)] + [of(20, 1500), of(21, 2600), of(22, 900)]
    options = {"on_poison": on_poison, "kind": "append"}
    orders_group.execute("ALTER TABLE {schema}.entries ADD CHECK (amount NOT IN (38, 1800))")
    reload, driver = begun(orders_group, records, **options)
    done = [stage(reload, driver, task.range) for task in tasks(driver)]
    assert [(s.records, s.dead_letters) for s in done] == [(19, 4)]
    kept = f"SELECT record_offset, cause, state, value IS NULL FROM {driver.run.staging_schema}.dead_letter ORDER BY 1"
    state, is_bare = ("dead_lettered", False) if on_poison == "dead_letter" else ("skipped", True)
    assert orders_group.execute(kept) == [
        (19, "database", state, is_bare),
        (20, "row", state, is_bare),
        (21, "row", state, is_bare),
        (22, "database", state, is_bare),
    ]
    assert orders_group.execute("SELECT count(*) FROM {schema}.dead_letter") == [(0,)], (
        "nothing is parked before the cut-over"
    )


def test_a_record_that_would_stop_a_worker_ends_the_run(orders_group: OrdersGroup) -> None:
    reload, driver = begun(orders_group, [of(1, 1), of(2, 1001), of(3, 3)])
    with pytest.raises(ReloadRefused, match=r"offset 1: row: ValueError: too much .*and on_poison is 'stop'. Fix the"):
        reload.stage(driver)
    failed = reload.runs.get(driver.run.id)
    assert failed.state == "failed"
    assert "too much" in (failed.error or "")


def test_rebuilt_rows_that_the_table_would_not_take_end_the_run(orders_group: OrdersGroup) -> None:
    """The live table's other unique keys hold for the rebuilt one that takes its place."""
    orders_group.execute("CREATE UNIQUE INDEX ON {schema}.orders (least(amount, 10))")
    settled(orders_group, [of(1, 6), of(2, 9)])
    reload, driver = started(orders_group.reload(), strategy="swap")
    with pytest.raises(
        ReloadRefused, match=r"offset 1: database: UniqueViolation: duplicate key value violates a unique index"
    ):
        reload.stage(driver)
    assert reload.runs.get(driver.run.id).state == "failed"
