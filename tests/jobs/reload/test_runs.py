"""Runs: when one may be opened, who drives it, and how it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from sqlalchemy import Connection, text
from sqlalchemy.exc import OperationalError

from seekpoint import Batch, Json, Ledger, Pipeline, Upsert
from seekpoint.errors import ConfigError, ReloadOver, ReloadRefused, SchemaMismatch
from seekpoint.jobs.reload import Reload, Runs, stage_range
from seekpoint.jobs.reload.catch_up import CatchUp
from seekpoint.jobs.staging.consolidate import coverage
from seekpoint.jobs.tables.dependencies import ties
from seekpoint.jobs.tables.targets import targets
from support.before_cutover import reloaded, settled, staged, started
from support.ledger_desk import backend, wait_until_blocked
from support.reload_orders import Order, Shop, doubled, of, pipeline

RECORDS = [of(n % 10, n, n) for n in range(30)]


def test_an_older_pipeline_cannot_reload(shop: Shop) -> None:
    settled(shop, RECORDS, version=2)
    with pytest.raises(ReloadRefused, match=r"is at handler version 2, and this pipeline is version 1: reload with"):
        shop.reload(version=1).open()


def test_a_table_of_two_groups_is_reloaded_with_both_or_not_at_all(full: Shop) -> None:
    other = pipeline(f"{full.group}-b", full.topic, full.schema)
    Ledger(full.engine, other.group, schema=full.schema, tables=other.tables)
    full.execute(
        "INSERT INTO {schema}.consumer_group (name, tables) VALUES (:name, ARRAY[:table])",
        name=other.group,
        table=f"{full.schema}.orders",
    )
    with pytest.raises(ReloadRefused, match=rf"group '{other.group}' writes .*orders, too: name its pipeline"):
        full.reload().open()


def test_one_open_run_per_table(full: Shop) -> None:
    reload = full.reload()
    first = reload.open(reason="the first")
    with pytest.raises(ReloadRefused, match=rf"reload {first.run.id} is opened, opened by .*: resume or abort it"):
        reload.open()
    reload.runs.abort(first.run.id, "not needed")
    verification = reload._open("verify", "looks")
    with pytest.raises(ReloadRefused, match=rf"verify {verification.run.id} is opened, .*: wait for its end, or abort"):
        reload.open()


def test_a_log_that_lost_its_beginning_is_refused(full: Shop) -> None:
    admin, end = AdminClient({"bootstrap.servers": full.brokers}), TopicPartition(full.topic, 0, 7)
    admin.delete_records([end])[end].result(20)
    with pytest.raises(ReloadRefused, match="began at offset 0, and the log begins at 7 now: what retention took"):
        full.reload().open()


def test_a_recreated_topic_is_refused(full: Shop, topic: Callable[..., str]) -> None:
    full.execute("UPDATE {schema}.partition_offset SET topic_id = :other", other=uuid4())
    with pytest.raises(ReloadRefused, match=r"the offsets belong to topic id .*, the brokers answer"):
        full.reload().open()


def test_positions_beyond_what_can_be_read_are_refused(full: Shop) -> None:
    full.ledger().reset_offset(full.topic, 0, 1000, log=None, reason="a test")
    with pytest.raises(ReloadRefused, match="is at 1000, and what can be read ends at 30"):
        full.reload().open()


def test_a_topic_that_the_pipeline_reads_no_more_is_refused(full: Shop, topic: Callable[..., str]) -> None:
    elsewhere = pipeline(full.group, topic(1), full.schema, version=2)
    with pytest.raises(ReloadRefused, match=rf"has applied records of {full.topic}, which this pipeline does not read"):
        full.reload([elsewhere]).open()


def test_a_table_without_a_key_cannot_be_merged(shop: Shop) -> None:
    shop.execute("ALTER TABLE {schema}.entries DROP CONSTRAINT entries_pkey")
    settled(shop, RECORDS, kind="append")
    with pytest.raises(ReloadRefused, match="has no unique key among the columns that are written"):
        shop.reload(pipeline={"kind": "append"}).open()


@pytest.mark.parametrize(
    ("hangs", "named"),
    [
        ("CREATE MATERIALIZED VIEW {schema}.v AS SELECT * FROM {schema}.orders", "materialized view .*v"),
        ("CREATE VIEW {schema}.v AS SELECT o FROM {schema}.orders o", "view .*v"),
        (
            (
                "CREATE VIEW {schema}.v AS SELECT id, amount FROM {schema}.orders; CREATE RULE r AS ON INSERT TO "
                "{schema}.v DO INSTEAD INSERT INTO {schema}.orders VALUES (NEW.id, NEW.amount, 0)"
            ),
            "rule r of .*v",
        ),
        ("CREATE TABLE {schema}.child (id bigint REFERENCES {schema}.orders)", "foreign key child_id_fkey"),
        (
            (
                "ALTER TABLE {schema}.orders ADD n int GENERATED ALWAYS AS IDENTITY; "
                "CREATE TABLE {schema}.child (n int DEFAULT nextval('{schema}.orders_n_seq'))"
            ),
            "sequence .*orders_n_seq, which has grants or is used by others",
        ),
        (
            "ALTER TABLE {schema}.orders ADD UNIQUE (at, id) DEFERRABLE",
            "constraint orders_at_id_key",
        ),
        (
            (
                "CREATE FUNCTION {schema}.noted() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; "
                "CREATE TRIGGER seen BEFORE UPDATE ON {schema}.orders FOR EACH ROW EXECUTE FUNCTION {schema}.noted()"
            ),
            "trigger seen, which may change rows before they are written",
        ),
        (
            (
                "CREATE INDEX by_sum ON {schema}.orders ((amount + at)); "
                "ALTER INDEX {schema}.by_sum ALTER COLUMN 1 SET STATISTICS 500"
            ),
            "statistics targets of index .*by_sum",
        ),
        (
            (
                "CREATE UNLOGGED TABLE {schema}.x (LIKE {schema}.orders INCLUDING ALL); DROP TABLE {schema}.orders; "
                "ALTER TABLE {schema}.x RENAME TO orders"
            ),
            "a tablespace, a type or an access method, or is unlogged",
        ),
        ("CREATE RULE r AS ON DELETE TO {schema}.orders DO ALSO NOTHING", "rule r"),
        ("CREATE RULE r AS ON DELETE TO {schema}.entries DO ALSO DELETE FROM {schema}.orders", "rule r of .*entries"),
        ("CREATE FUNCTION {schema}.f({schema}.orders) RETURNS integer LANGUAGE sql AS 'SELECT 1'", "function .*f"),
        ("CREATE FUNCTION {schema}.f({schema}.orders[]) RETURNS integer LANGUAGE sql AS 'SELECT 1'", "function .*f"),
        (
            "CREATE FUNCTION {schema}.f() RETURNS SETOF {schema}.orders LANGUAGE sql AS 'TABLE {schema}.orders'",
            "function .*f",
        ),
        (
            "CREATE FUNCTION {schema}.f() RETURNS bigint LANGUAGE sql RETURN (SELECT count(*) FROM {schema}.orders)",
            "function .*f",
        ),
        (
            "CREATE POLICY p ON {schema}.entries USING (EXISTS (SELECT FROM {schema}.orders))",
            "policy p on table .*entries",
        ),
        ("CREATE TABLE {schema}.kept (was {schema}.orders)", "table .*kept"),
        ("CREATE TABLE {schema}.kept (were {schema}.orders[])", "table .*kept"),
    ],
)
def test_what_hangs_on_a_table_forbids_the_swap(full: Shop, hangs: str, named: str) -> None:
    full.execute(hangs)
    with pytest.raises(ReloadRefused, match=rf"cannot be swapped, for it has {named}.*: use strategy 'merge'"):
        full.reload().open(strategy="swap")
    full.reload().open(strategy="merge")


@pytest.mark.parametrize("what", ["TABLE {schema}.orders", "TABLES IN SCHEMA {schema}"])
def test_a_published_table_is_not_swapped(full: Shop, what: str) -> None:
    """By its own name, or as one of its schema: its subscribers would not receive the rebuilt rows."""
    name = f"{full.schema}_news"  # publications are the whole database's
    full.execute(f"CREATE PUBLICATION {name} FOR {what}")
    try:
        with pytest.raises(ReloadRefused, match=f"cannot be swapped, for it has publication {name}: use strategy"):
            full.reload().open(strategy="swap")
    finally:
        full.execute(f"DROP PUBLICATION {name}")
    full.reload().open(strategy="swap")


def test_a_publication_that_is_dropped_meanwhile_is_nobodys_error(full: Shop) -> None:
    """The statement's snapshot has it still, and the catalogs no more."""
    name = f"{full.schema}_gone"
    full.execute(f"CREATE PUBLICATION {name}")
    with full.engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        connection.execute(text("SELECT"))
        full.execute(f"DROP PUBLICATION {name}")
        (target,) = targets(connection, full.reload().sources)
        assert ties(connection, target) == []


def test_what_others_hang_on_other_tables_does_not_forbid_a_swap(shop: Shop) -> None:
    shop.execute("CREATE FUNCTION {schema}.f({schema}.entries) RETURNS integer LANGUAGE sql AS 'SELECT 1'")
    shop.execute("GRANT SELECT (amount) ON {schema}.entries TO PUBLIC")
    shop.execute("CREATE TABLE {schema}.kept (was {schema}.entries)")
    settled(shop, RECORDS)
    reloaded(shop.reload(), strategy="swap")
    assert shop.rows() == doubled(RECORDS)


def test_pipelines_that_cannot_be_reloaded(shop: Shop) -> None:
    with pytest.raises(ConfigError, match="two of the pipelines have the same group"):
        shop.reload([shop.pipeline(), shop.pipeline()])
    sink = Upsert((shop.schema, "nowhere"), key=["id"])
    astray = shop.reload([Pipeline(shop.group, topics=shop.topic, value=Json(Order), sinks=[sink])])
    with pytest.raises(ConfigError, match="is not there: only tables"):
        astray.open()


def test_a_pipeline_with_a_handler_is_replaced_and_not_reloaded(full: Shop) -> None:
    """Alone, beside sinks of its own, and beside a pipeline that can be reloaded: no run is opened."""

    def fix(tx: Connection, batch: Batch[Any, Any]) -> None:
        raise AssertionError("nothing runs it")

    options: dict[str, Any] = {"topics": full.topic, "value": Json(Order), "handle": fix, "version": 2}
    alone = Pipeline(full.group, **options, writes=[f"{full.schema}.orders"])
    beside = Pipeline(full.group, **options, sinks=full.pipeline().sinks)
    other = Pipeline(f"{full.group}-2", **options)
    for pipelines, group in (([alone], full.group), ([beside], full.group), ([full.pipeline(), other], other.group)):
        says = rf"has the handler \S+fix, whose .* `seekpoint groups replace {group} --by GROUP` .*replace-a-handler"
        with pytest.raises(ConfigError, match=says):
            full.reload(pipelines)
    assert full.execute("SELECT count(*) FROM {schema}.reload_run") == [(0,)]


def test_a_newer_driver_ends_the_older_one(full: Shop) -> None:
    reload = full.reload()
    older = reload.open()
    newer = full.reload().take_over(older.run.id)
    assert (older.epoch, newer.epoch) == (1, 2)
    with pytest.raises(ReloadOver, match=rf"{older.run.id} was taken over by .* \(driver epoch 2, this one has 1\)"):
        reload.stage(older)
    assert reload.runs.get(older.run.id).state == "opened", "a driver that is none any more fails nothing"
    reload.run(newer)
    assert full.rows() == doubled(RECORDS)
    with pytest.raises(ReloadOver, match="is cut over: open another one"):
        reload.take_over(older.run.id)


def test_an_older_driver_does_not_fail_the_newer_ones_run(full: Shop) -> None:
    """Its error may come late, from a step that another one has taken over."""
    reload = full.reload()
    older = reload.open()
    newer = full.reload().take_over(older.run.id)
    older.fail(RuntimeError("late"))
    run = reload.runs.get(older.run.id)
    assert (run.state, run.error, run.driver_epoch) == ("opened", None, 2)
    newer.fail(RuntimeError("its own"))
    run = reload.runs.get(older.run.id)
    assert (run.state, run.error) == ("failed", "RuntimeError: its own")


def test_an_aborted_run_leaves_nothing_and_changes_nothing(full: Shop) -> None:
    before, positions = full.rows(), [p.next_offset for p in full.ledger().read()]
    reload, driver = staged(full.reload())
    assert full.schemas() == [driver.run.staging_schema]
    aborted = reload.runs.abort(driver.run.id, "changed our mind")
    assert (aborted.state, aborted.error, aborted.swept) == ("aborted", "changed our mind", True)
    assert full.schemas() == []
    assert (full.rows(), [p.next_offset for p in full.ledger().read()]) == (before, positions)
    with pytest.raises(ReloadOver, match="aborted: changed our mind"):
        driver.heartbeat()
    with pytest.raises(ReloadOver, match="aborted: changed our mind"):
        reload.runs.abort(driver.run.id, "again")
    with pytest.raises(ConfigError, match="there is no run"):
        reload.runs.abort(uuid4(), "never was")


def test_runs_whose_driver_is_gone_are_swept(full: Shop) -> None:
    reload, driver = staged(full.reload())
    assert reload.runs.sweep() == [], "its driver was heard of a moment ago"
    full.execute("UPDATE {schema}.reload_run SET changed_at = changed_at - interval '2 days'")
    assert reload.runs.sweep(timedelta(days=1)) == [driver.run.id]
    gone = reload.runs.get(driver.run.id)
    assert gone.state == "failed"
    assert "its driver is gone: nothing was heard of it since" in (gone.error or "")
    assert full.schemas() == []
    with pytest.raises(ReloadOver, match="failed: its driver is gone"):
        driver.heartbeat()


def test_a_run_that_is_in_a_step_is_not_waited_for_by_a_sweep(full: Shop) -> None:
    """It is not gone, however long ago it said so last; and the others are not to wait for it."""
    reload, driver = staged(full.reload())
    full.execute("UPDATE {schema}.reload_run SET changed_at = changed_at - interval '2 days'")
    with full.engine.begin() as step:
        step.exec_driver_sql(f"SELECT * FROM {full.schema}.reload_run FOR UPDATE")
        assert reload.runs.sweep(timedelta(days=1)) == []
    assert reload.runs.get(driver.run.id).is_open
    assert reload.runs.sweep(timedelta(days=1)) == [driver.run.id]


def test_what_is_in_use_is_swept_later(full: Shop) -> None:
    reload, driver = staged(full.reload())
    with full.engine.begin() as reader:
        reader.exec_driver_sql(f"LOCK TABLE {driver.run.staging_schema}.t0 IN ACCESS SHARE MODE")
        assert not reload.runs.abort(driver.run.id, "a test").swept
    assert reload.runs.sweep() == [driver.run.id]
    assert full.schemas() == []


@pytest.mark.parametrize(
    ("hangs", "gone"),
    [
        ("FUNCTION {schema}.f({old}) RETURNS integer LANGUAGE sql AS 'SELECT 1'", "FUNCTION {schema}.f"),
        ("VIEW {schema}.f AS SELECT * FROM {old}", "VIEW {schema}.f"),
    ],
)
def test_what_others_made_of_a_swapped_table_is_not_swept_with_it(full: Shop, hangs: str, gone: str) -> None:
    """A statement that found the table before the swap may add a dependency after it: the sweep must not drop that."""
    reload, driver = staged(full.reload(), strategy="swap")
    with CatchUp(driver, reload.sources, reload.kafka) as rounds:
        reload.catch_up(driver, rounds)
        reload.cut_over(driver, rounds)
    there = driver.run.staging_schema
    full.execute("CREATE " + hangs.replace("{old}", f"{there}.old_t0"))
    assert not reload.runs.drop(driver.run.id)
    assert reload.runs.sweep() == []
    assert full.execute(f"SELECT tablename FROM pg_tables WHERE schemaname = '{there}'") == [("old_t0",)]
    full.execute(f"DROP {gone}")  # which is there still
    assert reload.runs.sweep() == [driver.run.id]
    assert full.schemas() == []
    assert full.rows() == doubled(RECORDS)


def test_a_step_out_of_turn_is_refused(full: Shop) -> None:
    reload, driver = started(full.reload())
    with pytest.raises(ReloadOver, match="is opened, and this step follows indexed or catching_up or compared"):
        CatchUp(driver, reload.sources, reload.kafka)
    with pytest.raises(ReloadOver, match="is opened: it takes no more ranges"), driver.step("opened") as tx:
        stage_range(
            full.engine,
            full.schema,
            reload.kafka,
            driver.run.id,
            pipeline=reload.sources[0].pipeline,
            range_=coverage(tx).missing[0].range,
        )


def test_other_code_does_not_take_a_run_and_leaves_its_driver_alone(full: Shop) -> None:
    """Sinks that write other tables would publish nothing where the run's tables are to be published."""
    reload, driver = started(full.reload())
    for other in (full.reload(version=1), full.reload(version=3), full.reload(pipeline={"kind": "append"})):
        with pytest.raises(ConfigError, match=f"reload {driver.run.id} (writes|was opened with)") as refused:
            other.take_over(driver.run.id)
    assert str(refused.value).startswith(
        f"reload {driver.run.id} writes {full.schema}.orders, and these sinks write {full.schema}.entries: take it with"
    )
    assert reload.runs.get(driver.run.id).driver_epoch == 1
    reload.run(driver)
    assert full.rows() == doubled(RECORDS)


def test_how_far_a_run_is_can_be_read(full: Shop) -> None:
    reload, driver = started(full.reload(), reason="prices were wrong")
    (zero, one) = reload.runs.positions(driver.run.id)
    assert (zero.first_offset, zero.end_offset, zero.next_offset) == (0, 30, 0)
    assert (one.end_offset, one.next_offset) == (0, 0)
    reload.stage(driver)
    assert [p.next_offset for p in reload.runs.positions(driver.run.id)] == [30, 0]
    (run,) = reload.runs.list()
    assert (run.state, run.reason, run.version_from, run.version_to) == ("indexed", "prices were wrong", (1,), (2,))


def test_runs_are_found_by_a_url_and_a_wrong_one_is_reported(full: Shop) -> None:
    driver = full.reload().open()
    url = full.engine.url.render_as_string(hide_password=False)
    assert [run.id for run in Runs(url, full.schema).list()] == [driver.run.id]
    assert Runs(full.engine.url, full.schema).take_over(driver.run.id).epoch == 2
    for wrong in ("localhost:5432", "postgresql://me:p@ss@host/x", "mysql://localhost/x"):
        with pytest.raises(ConfigError, match="postgresql"):
            Runs(wrong)
        with pytest.raises(ConfigError, match="postgresql"):
            Reload([full.pipeline()], wrong, {"bootstrap.servers": full.brokers})
    nowhere = "postgresql://me@127.0.0.1:1/shop"
    reload = Reload([full.pipeline(version=2)], nowhere, {"bootstrap.servers": full.brokers})
    for call in (reload.open, reload.runs.list):
        with pytest.raises(OperationalError, match=r"127\.0\.0\.1.*port 1.*refused"):
            call()
    elsewhere = Runs(url, "not_there")
    for look in (elsewhere.list, elsewhere.sweep, lambda: elsewhere.take_over(uuid4())):
        with pytest.raises(SchemaMismatch, match="seekpoint db upgrade"):
            look()


def test_a_catch_up_pass_that_waited_for_an_abort_says_so(full: Shop) -> None:
    """Its snapshot is from before the abort: the answer is the run's, not a serialization failure."""
    reload, driver = staged(full.reload())
    with (
        CatchUp(driver, reload.sources, reload.kafka) as rounds,
        full.holding("UPDATE {schema}.reload_run SET state = 'aborted', error = 'a test'") as aborting,
    ):
        waiting = threading.Thread(target=release_when_blocked, args=(full, aborting))
        waiting.start()
        with pytest.raises(ReloadOver, match="aborted: a test"):
            reload.catch_up(driver, rounds)
        waiting.join()


def release_when_blocked(shop: Shop, connection: Connection) -> None:
    """Commit as soon as a session waits for the connection's locks."""
    wait_until_blocked(shop.engine, by=backend(connection))
    connection.commit()
