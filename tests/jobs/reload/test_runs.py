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
from sqlalchemy.exc import IntegrityError, OperationalError

from seekpoint import Batch, Json, Pipeline, Upsert
from seekpoint.admin import Admin
from seekpoint.errors import ConfigError, ReloadOver, ReloadRefused, SchemaMismatch
from seekpoint.jobs.reload import Reload, stage_range
from seekpoint.jobs.reload.catch_up import CatchUp
from seekpoint.jobs.staging.consolidate import coverage
from seekpoint.jobs.tables.dependencies import ties
from seekpoint.jobs.tables.targets import targets
from seekpoint.ledger import GroupLedger
from seekpoint.runs.manage_runs import ending
from support.before_cutover import reloaded, settled, staged, started
from support.ledger_worker import backend, wait_until_blocked
from support.reload_orders import Order, OrdersGroup, doubled, of, pipeline

RECORDS = [of(n % 10, n, n) for n in range(30)]


def test_an_older_pipeline_cannot_reload(orders_group: OrdersGroup) -> None:
    settled(orders_group, RECORDS, version=2)
    with pytest.raises(ReloadRefused, match=r"is at handler version 2, and this pipeline is version 1: reload with"):
        orders_group.reload(version=1).open()


def test_a_table_of_two_groups_is_reloaded_with_both_or_not_at_all(applied_group: OrdersGroup) -> None:
    other = pipeline(f"{applied_group.group}-b", applied_group.topic, applied_group.schema)
    GroupLedger(applied_group.engine, other.group, schema=applied_group.schema, tables=other.tables)
    applied_group.execute(
        "INSERT INTO {schema}.consumer_group (name, tables) VALUES (:name, ARRAY[:table])",
        name=other.group,
        table=f"{applied_group.schema}.orders",
    )
    with pytest.raises(ReloadRefused, match=rf"group '{other.group}' also writes .*orders: name its pipeline"):
        applied_group.reload().open()


def test_one_open_run_per_table(applied_group: OrdersGroup) -> None:
    reload = applied_group.reload()
    first = reload.open(reason="the first")
    with pytest.raises(ReloadRefused, match=rf"reload {first.run.id} is opened, opened by .*: resume or abort it"):
        reload.open()
    reload.runs.abort(first.run.id, "not needed")
    verification = reload._open("verify", "looks")
    with pytest.raises(ReloadRefused, match=rf"verify {verification.run.id} is opened, .*: wait for its end, or abort"):
        reload.open()


def test_a_log_that_lost_its_beginning_is_refused(applied_group: OrdersGroup) -> None:
    admin, end = AdminClient({"bootstrap.servers": applied_group.brokers}), TopicPartition(applied_group.topic, 0, 7)
    admin.delete_records([end])[end].result(20)
    with pytest.raises(
        ReloadRefused, match="began at offset 0, but the log now begins at 7: records that retention has removed"
    ):
        applied_group.reload().open()


def test_a_recreated_topic_is_refused(applied_group: OrdersGroup, topic: Callable[..., str]) -> None:
    applied_group.execute("UPDATE {schema}.partition_offset SET topic_id = :other", other=uuid4())
    with pytest.raises(ReloadRefused, match=r"the offsets belong to topic id .*, the brokers report"):
        applied_group.reload().open()


def test_positions_beyond_what_can_be_read_are_refused(applied_group: OrdersGroup) -> None:
    applied_group.ledger().reset_offset(applied_group.topic, 0, 1000, log=None, reason="a test")
    with pytest.raises(ReloadRefused, match="is at 1000, but the readable log ends at 30"):
        applied_group.reload().open()


def test_a_topic_that_the_pipeline_reads_no_more_is_refused(
    applied_group: OrdersGroup, topic: Callable[..., str]
) -> None:
    other_pipeline = pipeline(applied_group.group, topic(1), applied_group.schema, version=2)
    with pytest.raises(
        ReloadRefused, match=rf"has applied records of {applied_group.topic}, which this pipeline does not read"
    ):
        applied_group.reload([other_pipeline]).open()


def test_a_table_without_a_key_cannot_be_merged(orders_group: OrdersGroup) -> None:
    orders_group.execute("ALTER TABLE {schema}.entries DROP CONSTRAINT entries_pkey")
    settled(orders_group, RECORDS, kind="append")
    with pytest.raises(ReloadRefused, match="has no unique key among the columns that are written"):
        orders_group.reload(pipeline={"kind": "append"}).open()


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
def test_what_hangs_on_a_table_forbids_the_swap(applied_group: OrdersGroup, hangs: str, named: str) -> None:
    applied_group.execute(hangs)
    with pytest.raises(ReloadRefused, match=rf"cannot be swapped, because it has {named}.*: use strategy 'merge'"):
        applied_group.reload().open(strategy="swap")
    applied_group.reload().open(strategy="merge")


@pytest.mark.repeats("is_late")
@pytest.mark.parametrize("is_late", [False, True])
def test_an_invalid_unique_index_forbids_the_swap(applied_group: OrdersGroup, is_late: bool) -> None:
    """CREATE INDEX CONCURRENTLY leaves it, invalid, if rows are equal in it: the rebuilt table cannot have it."""
    reload = applied_group.reload()
    driver = reload.open(strategy="swap") if is_late else None
    with (
        applied_group.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        pytest.raises(IntegrityError),
    ):
        connection.execute(text(f"CREATE UNIQUE INDEX CONCURRENTLY one_note ON {applied_group.schema}.orders (note)"))
    refused = r"cannot be swapped, because it has unique index .*one_note, which is invalid: use strategy 'merge'"
    with pytest.raises(ReloadRefused, match=refused):
        reload.run(driver or reload.open(strategy="swap"))
    reloaded(applied_group.reload())
    assert applied_group.rows() == doubled(RECORDS)


@pytest.mark.parametrize("what", ["TABLE {schema}.orders", "TABLES IN SCHEMA {schema}"])
def test_a_published_table_is_not_swapped(applied_group: OrdersGroup, what: str) -> None:
    """By its own name, or as one of its schema: its subscribers would not receive the rebuilt rows."""
    name = f"{applied_group.schema}_news"  # publications are the whole database's
    applied_group.execute(f"CREATE PUBLICATION {name} FOR {what}")
    try:
        with pytest.raises(ReloadRefused, match=f"cannot be swapped, because it has publication {name}: use strategy"):
            applied_group.reload().open(strategy="swap")
    finally:
        applied_group.execute(f"DROP PUBLICATION {name}")
    applied_group.reload().open(strategy="swap")


def test_a_publication_that_is_dropped_meanwhile_is_no_error(applied_group: OrdersGroup) -> None:
    """The statement's snapshot has it still, and the catalogs no more."""
    name = f"{applied_group.schema}_gone"
    applied_group.execute(f"CREATE PUBLICATION {name}")
    with applied_group.engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        connection.execute(text("SELECT"))
        applied_group.execute(f"DROP PUBLICATION {name}")
        (target,) = targets(connection, applied_group.reload().sources)
        assert ties(connection, target) == []


def test_what_others_hang_on_other_tables_does_not_forbid_a_swap(orders_group: OrdersGroup) -> None:
    orders_group.execute("CREATE FUNCTION {schema}.f({schema}.entries) RETURNS integer LANGUAGE sql AS 'SELECT 1'")
    orders_group.execute("GRANT SELECT (amount) ON {schema}.entries TO PUBLIC")
    orders_group.execute("CREATE TABLE {schema}.kept (was {schema}.entries)")
    settled(orders_group, RECORDS)
    reloaded(orders_group.reload(), strategy="swap")
    assert orders_group.rows() == doubled(RECORDS)


def test_pipelines_that_cannot_be_reloaded(orders_group: OrdersGroup) -> None:
    with pytest.raises(ConfigError, match="two of the pipelines have the same group"):
        orders_group.reload([orders_group.pipeline(), orders_group.pipeline()])
    sink = Upsert((orders_group.schema, "nowhere"), key=["id"])
    astray = orders_group.reload(
        [Pipeline(orders_group.group, topics=orders_group.topic, value=Json(Order), sinks=[sink])]
    )
    with pytest.raises(ConfigError, match="the table does not exist: create the table"):
        astray.open()


def test_a_pipeline_with_a_handler_is_replaced_and_not_reloaded(applied_group: OrdersGroup) -> None:
    """Alone, beside sinks of its own, and beside a pipeline that can be reloaded: no run is opened."""

    def fix(tx: Connection, batch: Batch[Any, Any]) -> None:
        raise AssertionError("nothing runs it")

    options: dict[str, Any] = {"topics": applied_group.topic, "value": Json(Order), "handle": fix, "version": 2}
    alone = Pipeline(applied_group.group, **options, writes=[f"{applied_group.schema}.orders"])
    beside = Pipeline(applied_group.group, **options, sinks=applied_group.pipeline().sinks)
    other = Pipeline(f"{applied_group.group}-2", **options)
    for pipelines, group in (
        ([alone], applied_group.group),
        ([beside], applied_group.group),
        ([applied_group.pipeline(), other], other.group),
    ):
        says = rf"has the handler \S+fix, whose .* `seekpoint groups replace {group} --by GROUP` .*replace-a-handler"
        with pytest.raises(ConfigError, match=says):
            applied_group.reload(pipelines)
    assert applied_group.execute("SELECT count(*) FROM {schema}.reload_run") == [(0,)]


def test_a_newer_driver_ends_the_older_one(applied_group: OrdersGroup) -> None:
    reload = applied_group.reload()
    older = reload.open()
    newer = applied_group.reload().take_over(older.run.id)
    assert (older.epoch, newer.epoch) == (1, 2)
    with pytest.raises(ReloadOver, match=rf"{older.run.id} was taken over by .* \(driver epoch 2, this one has 1\)"):
        reload.stage(older)
    assert reload.runs.get(older.run.id).state == "opened", "a driver that is none any more fails nothing"
    reload.run(newer)
    assert applied_group.rows() == doubled(RECORDS)
    with pytest.raises(ReloadOver, match="is cut over: open another one"):
        reload.take_over(older.run.id)


def test_a_run_that_another_driver_continues_is_not_aborted_by_the_first(applied_group: OrdersGroup) -> None:
    """A verification or a reset that rebuilds aborts its run when it is broken off."""
    reload = applied_group.reload()
    older = reload.open()
    newer = applied_group.reload().take_over(older.run.id)
    with pytest.raises(ReloadOver, match="was taken over"), ending(reload.runs, older, "broken off"):
        older.heartbeat()
    with pytest.raises(KeyboardInterrupt), ending(reload.runs, older, "broken off"):
        raise KeyboardInterrupt
    newer.heartbeat()
    with pytest.raises(RuntimeError), ending(reload.runs, newer, "broken off"):
        raise RuntimeError("mine")
    assert reload.runs.get(older.run.id).state == "aborted"


def test_an_older_driver_does_not_fail_the_newer_ones_run(applied_group: OrdersGroup) -> None:
    """Its error may come late, from a step that another one has taken over."""
    reload = applied_group.reload()
    older = reload.open()
    newer = applied_group.reload().take_over(older.run.id)
    older.fail(RuntimeError("late"))
    run = reload.runs.get(older.run.id)
    assert (run.state, run.error, run.driver_epoch) == ("opened", None, 2)
    newer.fail(RuntimeError("its own"))
    run = reload.runs.get(older.run.id)
    assert (run.state, run.error) == ("failed", "RuntimeError: its own")


def test_an_aborted_run_leaves_nothing_and_changes_nothing(applied_group: OrdersGroup) -> None:
    before, positions = applied_group.rows(), [p.next_offset for p in applied_group.ledger().read()]
    reload, driver = staged(applied_group.reload())
    assert applied_group.schemas() == [driver.run.staging_schema]
    aborted = reload.runs.abort(driver.run.id, "changed our mind")
    assert (aborted.state, aborted.error, aborted.swept) == ("aborted", "changed our mind", True)
    assert applied_group.schemas() == []
    assert (applied_group.rows(), [p.next_offset for p in applied_group.ledger().read()]) == (before, positions)
    with pytest.raises(ReloadOver, match="aborted: changed our mind"):
        driver.heartbeat()
    with pytest.raises(ReloadOver, match="aborted: changed our mind"):
        reload.runs.abort(driver.run.id, "again")
    with pytest.raises(ConfigError, match="there is no run"):
        reload.runs.abort(uuid4(), "never was")


def test_runs_whose_driver_is_gone_are_swept(applied_group: OrdersGroup) -> None:
    reload, driver = staged(applied_group.reload())
    assert reload.runs.sweep() == [], "its driver was heard of a moment ago"
    applied_group.execute("UPDATE {schema}.reload_run SET changed_at = changed_at - interval '2 days'")
    assert reload.runs.sweep(timedelta(days=1)) == [driver.run.id]
    gone = reload.runs.get(driver.run.id)
    assert gone.state == "failed"
    assert "its driver is gone: no heartbeat since" in (gone.error or "")
    assert applied_group.schemas() == []
    with pytest.raises(ReloadOver, match="failed: its driver is gone"):
        driver.heartbeat()


def test_a_run_that_is_in_a_step_is_not_waited_for_by_a_sweep(applied_group: OrdersGroup) -> None:
    """It is not gone, however long ago it said so last; and the others are not to wait for it."""
    reload, driver = staged(applied_group.reload())
    applied_group.execute("UPDATE {schema}.reload_run SET changed_at = changed_at - interval '2 days'")
    with applied_group.engine.begin() as step:
        step.exec_driver_sql(f"SELECT * FROM {applied_group.schema}.reload_run FOR UPDATE")
        assert reload.runs.sweep(timedelta(days=1)) == []
    assert reload.runs.get(driver.run.id).is_open
    assert reload.runs.sweep(timedelta(days=1)) == [driver.run.id]


def test_what_is_in_use_is_swept_later(applied_group: OrdersGroup) -> None:
    reload, driver = staged(applied_group.reload())
    with applied_group.engine.begin() as reader:
        reader.exec_driver_sql(f"LOCK TABLE {driver.run.staging_schema}.t0 IN ACCESS SHARE MODE")
        assert not reload.runs.abort(driver.run.id, "a test").swept
    assert reload.runs.sweep() == [driver.run.id]
    assert applied_group.schemas() == []


@pytest.mark.parametrize(
    ("hangs", "gone"),
    [
        ("FUNCTION {schema}.f({old}) RETURNS integer LANGUAGE sql AS 'SELECT 1'", "FUNCTION {schema}.f"),
        ("VIEW {schema}.f AS SELECT * FROM {old}", "VIEW {schema}.f"),
    ],
)
def test_what_others_made_of_a_swapped_table_is_not_swept_with_it(
    applied_group: OrdersGroup, hangs: str, gone: str
) -> None:
    """A statement that found the table before the swap may add a dependency after it: the sweep must not drop that."""
    reload, driver = staged(applied_group.reload(), strategy="swap")
    with CatchUp(driver, reload.sources, reload.kafka) as rounds:
        reload.catch_up(driver, rounds)
        reload.cut_over(driver, rounds)
    there = driver.run.staging_schema
    applied_group.execute("CREATE " + hangs.replace("{old}", f"{there}.old_t0"))
    assert not reload.runs.drop(driver.run.id)
    assert reload.runs.sweep() == []
    assert applied_group.execute(f"SELECT tablename FROM pg_tables WHERE schemaname = '{there}'") == [("old_t0",)]
    applied_group.execute(f"DROP {gone}")  # which is there still
    assert reload.runs.sweep() == [driver.run.id]
    assert applied_group.schemas() == []
    assert applied_group.rows() == doubled(RECORDS)


def test_a_step_out_of_turn_is_refused(applied_group: OrdersGroup) -> None:
    reload, driver = started(applied_group.reload())
    with pytest.raises(ReloadOver, match="is opened, and this step needs it to be indexed or catching_up or compared"):
        CatchUp(driver, reload.sources, reload.kafka)
    with pytest.raises(ReloadOver, match="is opened: it accepts no more ranges"), driver.step("opened") as tx:
        stage_range(
            applied_group.engine,
            applied_group.schema,
            reload.kafka,
            driver.run.id,
            pipeline=reload.sources[0].pipeline,
            range_=coverage(tx).missing[0].range,
        )


def test_other_code_does_not_take_a_run_and_leaves_its_driver_alone(applied_group: OrdersGroup) -> None:
    """Sinks that write other tables would publish nothing into the run's tables."""
    reload, driver = started(applied_group.reload())
    for other in (
        applied_group.reload(version=1),
        applied_group.reload(version=3),
        applied_group.reload(pipeline={"kind": "append"}),
    ):
        with pytest.raises(ConfigError, match=f"reload {driver.run.id} (writes|was opened with)") as refused:
            other.take_over(driver.run.id)
    schema = applied_group.schema
    assert str(refused.value).startswith(
        f"reload {driver.run.id} writes {schema}.orders, and these sinks write {schema}.entries: resume it with"
    )
    assert reload.runs.get(driver.run.id).driver_epoch == 1
    reload.run(driver)
    assert applied_group.rows() == doubled(RECORDS)


def test_how_far_a_run_is_can_be_read(applied_group: OrdersGroup) -> None:
    reload, driver = started(applied_group.reload(), reason="prices were wrong")
    (zero, first) = reload.runs.positions(driver.run.id)
    assert (zero.first_offset, zero.end_offset, zero.next_offset) == (0, 30, 0)
    assert (first.end_offset, first.next_offset) == (0, 0)
    reload.stage(driver)
    assert [p.next_offset for p in reload.runs.positions(driver.run.id)] == [30, 0]
    (run,) = reload.runs.list()
    assert (run.state, run.reason, run.version_from, run.version_to) == ("indexed", "prices were wrong", (1,), (2,))


def test_runs_are_found_by_a_url_and_a_wrong_one_is_reported(applied_group: OrdersGroup) -> None:
    driver = applied_group.reload().open()
    url = applied_group.engine.url.render_as_string(hide_password=False)
    assert [run.id for run in Admin(url, schema=applied_group.schema).runs.list()] == [driver.run.id]
    assert Admin(applied_group.engine.url, schema=applied_group.schema).runs.take_over(driver.run.id).epoch == 2
    for wrong in ("localhost:5432", "postgresql://me:p@ss@host/x", "mysql://localhost/x"):
        with pytest.raises(ConfigError, match="postgresql"):
            Admin(wrong)
        with pytest.raises(ConfigError, match="postgresql"):
            Reload([applied_group.pipeline()], wrong, {"bootstrap.servers": applied_group.brokers})
    nowhere = "postgresql://me@127.0.0.1:1/shop"
    reload = Reload([applied_group.pipeline(version=2)], nowhere, {"bootstrap.servers": applied_group.brokers})
    for call in (reload.open, reload.runs.list):
        with pytest.raises(OperationalError, match=r"127\.0\.0\.1.*port 1.*refused"):
            call()
    missing_runs = Admin(url, schema="not_there").runs
    for look in (missing_runs.list, missing_runs.sweep, lambda: missing_runs.take_over(uuid4())):
        with pytest.raises(SchemaMismatch, match="seekpoint db upgrade"):
            look()


def test_a_catch_up_pass_that_waited_for_an_abort_says_so(applied_group: OrdersGroup) -> None:
    """Its snapshot is from before the abort: the answer is the run's, not a serialization failure."""
    reload, driver = staged(applied_group.reload())
    with (
        CatchUp(driver, reload.sources, reload.kafka) as rounds,
        applied_group.holding("UPDATE {schema}.reload_run SET state = 'aborted', error = 'a test'") as aborting,
    ):
        waiting = threading.Thread(target=release_when_blocked, args=(applied_group, aborting))
        waiting.start()
        with pytest.raises(ReloadOver, match="aborted: a test"):
            reload.catch_up(driver, rounds)
        waiting.join()


def release_when_blocked(orders_group: OrdersGroup, connection: Connection) -> None:
    """Commit as soon as a session waits for the connection's locks."""
    wait_until_blocked(orders_group.engine, by=backend(connection))
    connection.commit()
