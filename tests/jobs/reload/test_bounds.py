"""What a cut-over does not do unless it is allowed: wait for long, delete many rows, reach other tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, text

from seekpoint.errors import ConfigError, CutOverRefused, ReloadRefused
from seekpoint.jobs.reload import Reload, Report, cutover, wait_at_opening
from seekpoint.jobs.reload import cutover_limits as bounds
from seekpoint.jobs.reload.catch_up import CatchUp
from seekpoint.jobs.reload.merge_preconditions import UNSAMPLED
from support.before_cutover import FIRST, diffed, reloaded, resume, settled, started
from support.reload_orders import OrdersGroup, doubled, of, pipeline
from support.reload_process import Reloader

RECORDS = [of(n, 1) for n in range(40)]
CHILDREN = "CREATE TABLE {schema}.items (id bigint PRIMARY KEY, order_id bigint REFERENCES {schema}.orders %s)"


def with_bounds(orders_group: OrdersGroup, **options: Any) -> Reload:
    """As people have it: with the bounds that are the default."""
    return orders_group.reload(**{"max_wait": 2.0, "max_deletes": 0.1} | options)


def extra(orders_group: OrdersGroup, ids: Sequence[int]) -> None:
    """Rows by another writer: the log does not know them."""
    for id_ in ids:
        orders_group.execute("INSERT INTO {schema}.orders (id, amount, at) VALUES (:id, 1, 0)", id=id_)


def resumed(orders_group: OrdersGroup, driver: Any, **options: Any) -> None:
    reload = with_bounds(orders_group, **options)
    assert reload.runs.get(driver.run.id).state == "compared", "it stays open"
    reload.run(reload.take_over(driver.run.id))


# -- deletes -------------------------------------------------------------------------------------------------------


def test_more_deletes_than_allowed_are_refused_before_the_lock(applied_group: OrdersGroup) -> None:
    """The comparison is reported first; nothing live is touched, and the run continues when it is allowed."""
    extra(applied_group, range(100, 110))
    reports: list[Report] = []
    reload, driver = started(with_bounds(applied_group, compared=reports.append))
    with pytest.raises(
        CutOverRefused, match=r"10 of 50 live rows \(20%\) .* more than 10%.* --max-deletes 0.2"
    ) as caught:
        reload.run(driver)
    assert caught.value.waits == (), "no lock was taken"
    (table,) = reports[0].tables
    assert (table.missing, table.extra, table.different) == (0, 10, 40)
    assert len(applied_group.rows()) == 50
    assert [row for row in applied_group.rows() if row[0] < 100] == doubled(RECORDS, by=1)
    resumed(applied_group, driver, max_deletes=0.2)
    assert applied_group.rows() == doubled(RECORDS)


def test_rows_of_another_writer_since_the_comparison_are_counted_under_the_lock(applied_group: OrdersGroup) -> None:
    reload = with_bounds(applied_group)
    with diffed(reload) as (_, driver, rounds):
        extra(applied_group, range(100, 110))
        with pytest.raises(CutOverRefused, match=r"10 of 40 live rows"):
            reload.cut_over(driver, rounds)
    assert len(applied_group.rows()) == 50
    resumed(applied_group, driver, max_deletes=0.3)
    assert applied_group.rows() == doubled(RECORDS)


def test_few_deletes_are_no_matter(applied_group: OrdersGroup) -> None:
    extra(applied_group, [100, 101])
    reloaded(with_bounds(applied_group))
    assert applied_group.rows() == doubled(RECORDS)


# -- other tables --------------------------------------------------------------------------------------------------


@pytest.mark.repeats("action")
@pytest.mark.parametrize("action", ["CASCADE", "SET NULL"])
def test_a_delete_that_others_refer_to_with_an_action_is_refused(orders_group: OrdersGroup, action: str) -> None:
    orders_group.execute(CHILDREN % f"ON DELETE {action}")
    settled(orders_group, RECORDS)
    extra(orders_group, [100])
    orders_group.execute("INSERT INTO {schema}.items VALUES (1, 100), (2, 7)")
    reload, driver = started(with_bounds(orders_group))
    message = f"{orders_group.schema}.items refers to it by items_order_id_fkey (ON DELETE {action})"
    assert driver.notes == (f"{orders_group.schema}.orders: {message}",)
    with pytest.raises(CutOverRefused) as caught:
        reload.run(driver)
    assert f"1 rows would be deleted, and {message}: allow it with --allow-cascades" in str(caught.value)
    assert orders_group.execute("SELECT id, order_id FROM {schema}.items ORDER BY 1") == [(1, 100), (2, 7)]
    resumed(orders_group, driver, allow_cascades=True)
    left = [(2, 7)] if action == "CASCADE" else [(1, None), (2, 7)]
    assert orders_group.execute("SELECT id, order_id FROM {schema}.items ORDER BY 1") == left
    assert orders_group.rows() == doubled(RECORDS)


PARTITIONED = """
DROP TABLE {schema}.orders;
CREATE TABLE {schema}.orders (id bigint PRIMARY KEY, amount bigint NOT NULL, at bigint NOT NULL, note text)
    PARTITION BY RANGE (id);
CREATE TABLE {schema}.orders_low PARTITION OF {schema}.orders FOR VALUES FROM (MINVALUE) TO (20);
CREATE TABLE {schema}.orders_high PARTITION OF {schema}.orders FOR VALUES FROM (20) TO (MAXVALUE)
    PARTITION BY RANGE (id);
CREATE TABLE {schema}.orders_highest PARTITION OF {schema}.orders_high FOR VALUES FROM (20) TO (MAXVALUE);
"""
INHERITED = "CREATE TABLE {schema}.orders_highest (PRIMARY KEY (id)) INHERITS ({schema}.orders)"


@pytest.mark.parametrize("tables", [PARTITIONED, INHERITED])
def test_a_key_that_refers_to_a_part_of_the_table_is_refused(orders_group: OrdersGroup, tables: str) -> None:
    """A partition, however deep, or a table that inherits."""
    orders_group.execute(tables)
    orders_group.execute((CHILDREN % "ON DELETE CASCADE").replace("orders", "orders_highest"))
    settled(orders_group, RECORDS)
    orders_group.execute("INSERT INTO {schema}.orders_highest (id, amount, at) VALUES (100, 1, 0)")
    orders_group.execute("INSERT INTO {schema}.items VALUES (1, 100)")
    reload, driver = started(with_bounds(orders_group, allow_inheritance=True))
    message = f"{orders_group.schema}.items refers to it by items_order_id_fkey (ON DELETE CASCADE)"
    assert f"{orders_group.schema}.orders: {message}" in driver.notes
    with pytest.raises(CutOverRefused) as caught:
        reload.run(driver)
    assert f"1 rows would be deleted, and {message}: allow it with --allow-cascades" in str(caught.value)
    assert orders_group.execute("SELECT id, order_id FROM {schema}.items") == [(1, 100)]
    resumed(orders_group, driver, allow_inheritance=True, allow_cascades=True)
    assert orders_group.execute("SELECT id, order_id FROM {schema}.items") == []
    assert orders_group.rows() == doubled(RECORDS)


def test_a_delete_since_the_comparison_that_others_refer_to_is_refused(orders_group: OrdersGroup) -> None:
    orders_group.execute(CHILDREN % "ON DELETE CASCADE")
    settled(orders_group, RECORDS)
    reload = with_bounds(orders_group)
    with diffed(reload) as (_, driver, rounds):
        extra(orders_group, [100])
        orders_group.execute("INSERT INTO {schema}.items VALUES (1, 100)")
        with pytest.raises(CutOverRefused, match=r"1 rows would be deleted, and .*ON DELETE CASCADE"):
            reload.cut_over(driver, rounds)
    assert orders_group.execute("SELECT count(*) FROM {schema}.items") == [(1,)]


def test_a_merge_that_deletes_nothing_needs_no_leave(orders_group: OrdersGroup) -> None:
    orders_group.execute(CHILDREN % "ON DELETE CASCADE ON UPDATE CASCADE")
    settled(orders_group, RECORDS)
    orders_group.execute("INSERT INTO {schema}.items VALUES (1, 7)")
    reloaded(with_bounds(orders_group))
    assert orders_group.execute("SELECT id, order_id FROM {schema}.items") == [(1, 7)]


@pytest.mark.repeats("is_late")
@pytest.mark.parametrize("is_late", [False, True])
def test_a_change_that_others_refer_to_with_an_action_is_refused(orders_group: OrdersGroup, is_late: bool) -> None:
    records = [of(n, 2 * n + 1) for n in range(40)]
    orders_group.execute("ALTER TABLE {schema}.orders ADD UNIQUE (amount)")
    orders_group.execute(
        "CREATE TABLE {schema}.prices (amount bigint REFERENCES {schema}.orders (amount) ON UPDATE CASCADE)"
    )
    settled(orders_group, records)
    orders_group.execute("INSERT INTO {schema}.prices VALUES (15)")
    reload = with_bounds(orders_group)
    with diffed(reload) as (_, driver, rounds):
        if is_late:
            records += [of(7, 15)]
            settled(orders_group, records[-1:])
        with pytest.raises(CutOverRefused, match=r"40 rows would get other values, and .*ON UPDATE CASCADE"):
            reload.cut_over(driver, rounds)
    assert orders_group.execute("SELECT amount FROM {schema}.prices") == [(15,)]
    resumed(orders_group, driver, allow_cascades=True)
    assert orders_group.execute("SELECT amount FROM {schema}.prices") == [(30,)]
    assert orders_group.rows() == doubled(records)


def test_a_table_from_which_others_inherit_is_refused(applied_group: OrdersGroup) -> None:
    """At the opening, and again before the lock: a table may be made to inherit meanwhile."""
    child = "CREATE TABLE {schema}.archived () INHERITS ({schema}.orders)"
    reload = with_bounds(applied_group)
    with diffed(reload) as (_, driver, rounds):
        applied_group.execute(child)
        applied_group.execute("INSERT INTO {schema}.archived (id, amount, at) VALUES (1000, 1, 1)")
        with pytest.raises(CutOverRefused, match=r"archived inherit from it, and a merge would also delete their rows"):
            reload.cut_over(driver, rounds)
    reload.runs.abort(driver.run.id, "tested")
    with pytest.raises(ReloadRefused, match=r"archived inherit from it.* --allow-inheritance"):
        reload.open()
    assert applied_group.execute("SELECT count(*) FROM {schema}.archived") == [(1,)]
    reload, driver = started(with_bounds(applied_group, allow_inheritance=True))
    schema = applied_group.schema
    assert driver.notes == (
        f"{schema}.orders: {schema}.archived inherits from it, and a merge also compares and changes its rows",
    )
    reload.run(driver)
    assert applied_group.rows() == doubled(RECORDS)


# -- the wait ------------------------------------------------------------------------------------------------------


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tries follow at once; the list has after which ones there was a pause."""
    numbers: list[int] = []
    monkeypatch.setattr(cutover, "longer_pause", numbers.append)
    return numbers


@pytest.mark.pins("batch")
def test_a_wait_that_is_predicted_to_be_too_long_is_refused_before_the_lock(orders_group: OrdersGroup) -> None:
    records = [of(n, 1) for n in range(3_000)]
    settled(orders_group, records)
    reload, driver = started(with_bounds(orders_group, max_wait=0.001))
    with pytest.raises(CutOverRefused, match=r"workers would wait about .* for 3000 changed rows") as caught:
        reload.run(driver)
    assert caught.value.predicted is not None
    assert caught.value.predicted > 0.001
    assert caught.value.waits == ()
    assert f"`seekpoint reload resume {driver.run.id} --max-wait " in str(caught.value)
    assert "or open another run with strategy 'swap', whose wait does not grow with the rows" in str(caught.value)
    assert orders_group.rows() == doubled(records, by=1)
    resumed(orders_group, driver, max_wait=60.0)
    assert orders_group.rows() == doubled(records)


def test_a_wait_that_the_table_alone_takes_is_refused_at_the_opening(
    applied_group: OrdersGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not after all the staging, which takes hours for such a table."""
    monkeypatch.setattr(wait_at_opening, "MANY", 10)
    applied_group.execute("ANALYZE {schema}.orders")
    reload = with_bounds(applied_group, max_wait=1e-9)
    with pytest.raises(ReloadRefused, match=r"orders: workers would wait about .* strategy 'swap'"):
        reload.open()
    assert reload.runs.list() == []
    assert with_bounds(applied_group, max_wait=60.0).open().run.state == "opened"


def test_a_merge_that_changes_nothing_takes_no_lock(applied_group: OrdersGroup) -> None:
    """Its version is that of the group: workers do not wait, and what the lock would take is not predicted."""
    reports: list[Report] = []
    reload = with_bounds(applied_group, max_wait=1e-9, compared=reports.append, version=1)
    with applied_group.holding("SELECT FROM {schema}.partition_offset FOR UPDATE"):
        driver = reload.open(reason="is it right?")
        done = reload.run(driver)
    assert (done.lock_seconds, done.keys, reports[0].is_empty) == (0.0, 0, True)
    assert (reload.runs.get(driver.run.id).state, applied_group.rows()) == ("cut_over", doubled(RECORDS, by=1))
    (row,) = applied_group.execute("SELECT reason FROM {schema}.admin_action WHERE action = 'cut-over'")
    assert row[0] == f"reload {driver.run.id}, no row differed: is it right?"
    of_dead_letters = replace(reports[0], dead_letters=1)
    assert not cutover.changes_nothing(driver.run, of_dead_letters), "they become the group's"


@pytest.mark.parametrize("change", ["extra row", "version"])
def test_a_merge_that_changes_anything_takes_its_lock(applied_group: OrdersGroup, change: str) -> None:
    """I5: a raised version fences workers, also where no row differs."""
    if change == "version":
        applied_group.execute("UPDATE {schema}.orders SET amount = 2 * amount")
    else:
        extra(applied_group, [1000])
    reports: list[Report] = []
    version = 2 if change == "version" else 1
    reload = with_bounds(applied_group, version=version, max_deletes=1.0, compared=reports.append)
    done = reload.run(reload.open())
    assert (reports[0].is_empty, done.lock_seconds > 0) == (change == "version", True)
    assert applied_group.rows() == doubled(RECORDS, by=version)


def test_a_wait_is_predicted_for_rows_that_need_the_live_tables_defaults(orders_group: OrdersGroup) -> None:
    """The table of the sample has none: they may call anything."""
    records = [of(n, 1) for n in range(150)]
    orders_group.execute("CREATE FUNCTION {schema}.code() RETURNS text LANGUAGE sql AS $$ SELECT 'x' $$")
    orders_group.execute("ALTER TABLE {schema}.orders ADD code text NOT NULL DEFAULT {schema}.code()")
    settled(orders_group, records)
    reload, driver = started(with_bounds(orders_group, max_wait=0.001))
    with pytest.raises(CutOverRefused, match=r"workers would wait about .* for 150 changed rows") as caught:
        reload.run(driver)
    assert caught.value.predicted is not None
    assert caught.value.predicted >= 150 * UNSAMPLED
    resumed(orders_group, driver, max_wait=60.0)
    assert orders_group.rows() == doubled(records)


@pytest.mark.parametrize("strategy", ["merge", "swap"])
def test_the_wait_for_the_workers_counts(applied_group: OrdersGroup, pauses: list[int], strategy: str) -> None:
    """A worker has an open batch: each try is rolled back at the bound, and the run stays open after five."""
    reload = with_bounds(applied_group, max_wait=0.4)
    with (
        diffed(reload, strategy=strategy) as (_, driver, rounds),
        applied_group.holding("SELECT FROM {schema}.partition_offset FOR UPDATE"),
    ):
        with pytest.raises(CutOverRefused, match=r"5 attempts were rolled back after 0\.\d s") as caught:
            reload.cut_over(driver, rounds)
        assert pauses == [1, 2, 3, 4]
    assert all(0.3 < wait < 2 for wait in caught.value.waits), caught.value.waits
    assert applied_group.rows() == doubled(RECORDS, by=1)
    resume(with_bounds(applied_group, max_wait=60.0), driver.run.id)
    assert applied_group.rows() == doubled(RECORDS)


@pytest.mark.long
@pytest.mark.repeats("deferred")
@pytest.mark.parametrize("deferred", [False, True])
def test_a_statement_takes_no_longer_than_what_is_left(
    applied_group: OrdersGroup, monkeypatch: pytest.MonkeyPatch, deferred: bool
) -> None:
    """Also where COMMIT runs it. What comes meanwhile is caught up with between the tries."""
    applied_group.execute(
        "CREATE FUNCTION {schema}.slow() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_sleep(30); RETURN NULL; END $$"
    )
    kind = "CONSTRAINT TRIGGER slow AFTER UPDATE ON {schema}.orders DEFERRABLE INITIALLY DEFERRED" if deferred else (
        "TRIGGER slow AFTER UPDATE ON {schema}.orders"
    )  # fmt: skip
    applied_group.execute(f"CREATE {kind} FOR EACH ROW EXECUTE FUNCTION {{schema}}.slow()")
    reload, driver = started(with_bounds(applied_group, max_wait=0.5))

    def let_go(attempt: int) -> None:
        if attempt == 2:
            applied_group.execute("DROP TRIGGER slow ON {schema}.orders")
            settled(applied_group, [of(50, 5)])
            monkeypatch.setattr(cutover, "Budget", lambda _: budget(60.0))

    budget = bounds.Budget
    monkeypatch.setattr(cutover, "longer_pause", let_go)
    with diffed(reload, driver=driver) as (_, _, rounds):
        outcome = reload.cut_over(driver, rounds)
    assert outcome.tries == 3
    assert applied_group.rows() == doubled([*RECORDS, of(50, 5)])


def test_brokers_may_say_nothing_for_no_longer_than_workers_may_wait(
    applied_group: OrdersGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    reload, driver = started(with_bounds(applied_group, max_wait=2.0))
    idles: list[float] = []
    apply = CatchUp.apply

    def asked(self: CatchUp, tx: Any, offsets: Any, **options: Any) -> int:
        idles.append(options["idle"])
        return apply(self, tx, offsets, **options)

    with diffed(reload, driver=driver) as (_, _, rounds):
        monkeypatch.setattr(CatchUp, "apply", asked)
        monkeypatch.setattr(reload, "catch_up", lambda *_: 0)
        reload.cut_over(driver, rounds)
    assert idles
    assert max(idles) < 2.0
    assert applied_group.rows() == doubled(RECORDS)


@pytest.mark.long
@pytest.mark.usefixtures("pauses")
def test_a_row_that_another_session_has_locked_is_waited_for_shortly(applied_group: OrdersGroup) -> None:
    """However long workers may wait: they do not wait for others."""
    reload = with_bounds(applied_group, max_wait=60.0)
    with (
        diffed(reload) as (_, driver, rounds),
        applied_group.holding("UPDATE {schema}.orders SET note = 'mine' WHERE id = 7"),
        pytest.raises(CutOverRefused, match=r"another session has locked a row") as caught,
    ):
        reload.cut_over(driver, rounds)
    assert len(caught.value.waits) == 5
    assert max(caught.value.waits) < 10
    resumed(applied_group, driver, max_wait=60.0)
    assert applied_group.rows() == doubled(RECORDS)


def test_no_bound_is_refused_at_once(orders_group: OrdersGroup) -> None:
    for wrong in ({"max_wait": 0}, {"max_deletes": 1.5}):
        with pytest.raises(ConfigError):
            with_bounds(orders_group, **wrong)


# -- who was seen --------------------------------------------------------------------------------------------------


@contextmanager
def another_database(orders_group: OrdersGroup) -> Iterator[Connection]:
    """A transaction that has written, in another database of the server."""
    called = f"other_{orders_group.schema}"
    with orders_group.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as here:
        here.execute(text(f"CREATE DATABASE {called}"))
        other = create_engine(orders_group.engine.url.set(database=called))
        try:
            with other.connect() as connection:
                connection.execute(text("SELECT pg_current_xact_id()"))
                yield connection
        finally:
            other.dispose()
            here.execute(text(f"DROP DATABASE {called} WITH (FORCE)"))


def test_an_old_transaction_in_another_database_holds_nothing_up(orders_group: OrdersGroup) -> None:
    """Checks only rows written since the comparison, not all since that transaction began."""
    records = [of(n, 1 if n < 30 else 0) for n in range(1_000)]  # twice nothing is the same
    with another_database(orders_group):
        settled(orders_group, records)
        with diffed(orders_group.reload()) as (reload, driver, rounds):
            outcome = reload.cut_over(driver, rounds)
    assert outcome.keys == 30
    assert orders_group.rows() == doubled(records)


def test_a_row_of_a_subtransaction_that_was_open_is_found(applied_group: OrdersGroup) -> None:
    """It is in no snapshot's list, and younger transactions have ended by then: its row was not there, and is later."""
    reload, driver = started(applied_group.reload())
    with applied_group.holding("SELECT pg_current_xact_id()") as other:
        with other.begin_nested():
            other.execute(text(f"INSERT INTO {applied_group.schema}.orders (id, amount, at) VALUES (5000, 1, 1)"))
        applied_group.execute("UPDATE {schema}.orders SET note = 'younger' WHERE id = 3")
        with diffed(reload, driver=driver) as (_, _, rounds):
            other.commit()
            reload.cut_over(driver, rounds)
    assert applied_group.rows() == doubled(RECORDS)


# -- rows that exchange a unique value -----------------------------------------------------------------------------


def exchanging(orders_group: OrdersGroup, version: int) -> Any:
    """Version 2 reverses the unique column ``at``."""

    def row(record: Any) -> dict[str, Any]:
        order = record.value
        return {"id": order.id, "amount": order.amount, "at": order.id if version == 1 else 39 - order.id}

    rebuilt = pipeline(orders_group.group, orders_group.topic, orders_group.schema, version=version)
    rebuilt.sinks[0].row_of = row  # type: ignore[attr-defined]
    return rebuilt


@pytest.mark.repeats("deferrable")
@pytest.mark.parametrize("deferrable", [False, True])
def test_rows_that_exchange_a_unique_value(orders_group: OrdersGroup, deferrable: bool) -> None:
    """Also one that was written since the comparison; columns of others and rows that refer to these stay."""
    how = " DEFERRABLE" if deferrable else ""
    orders_group.execute(f"ALTER TABLE {{schema}}.orders ADD CONSTRAINT one_at UNIQUE (at){how}")
    orders_group.produce(orders_group.topic, RECORDS, partition=0)
    orders_group.apply(exchanging(orders_group, 1), len(RECORDS))
    orders_group.execute(
        "UPDATE {schema}.orders SET note = 'note of ' || id; "
        "CREATE TABLE {schema}.parcels (of_order bigint REFERENCES {schema}.orders); "
        "INSERT INTO {schema}.parcels SELECT id FROM {schema}.orders"
    )
    reload, driver = started(orders_group.reload([exchanging(orders_group, 2)]))
    with diffed(reload, driver=driver) as (_, _, passes):
        orders_group.execute("UPDATE {schema}.orders SET amount = 7 WHERE id IN (3, 5)")
        reload.cut_over(driver, passes)
    assert orders_group.rows() == [(n, 1, 39 - n) for n in range(40)]
    assert orders_group.execute("SELECT count(*) FROM {schema}.orders WHERE note <> 'note of ' || id") == [(0,)]
    assert orders_group.execute("SELECT count(*) FROM {schema}.parcels") == [(40,)]


DELETED = "CREATE TRIGGER seen AFTER DELETE ON {schema}.orders FOR EACH ROW EXECUTE FUNCTION {schema}.seen()"
FOLLOWED = "CREATE TABLE {schema}.parcels (of_order bigint REFERENCES {schema}.orders ON DELETE %s)"


@pytest.mark.repeats("ddl")
@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        (DELETED, "the table has trigger seen"),
        (FOLLOWED % "CASCADE", r"refers to it by parcels_of_order_fkey \(ON DELETE CASCADE\)"),
        (FOLLOWED % "RESTRICT", "Postgres refuses that: .*parcels"),
    ],
    ids=["trigger", "cascade", "restrict"],
)
def test_rows_that_exchange_a_unique_value_are_not_deleted_for_others(
    orders_group: OrdersGroup, ddl: str, message: str
) -> None:
    """The run stays open, and names what can publish it."""
    orders_group.execute(
        "ALTER TABLE {schema}.orders ADD CONSTRAINT one_at UNIQUE (at); "
        "CREATE FUNCTION {schema}.seen() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; " + ddl
    )
    orders_group.produce(orders_group.topic, RECORDS, partition=0)
    orders_group.apply(exchanging(orders_group, 1), len(RECORDS))
    if ddl != DELETED:
        orders_group.execute("INSERT INTO {schema}.parcels SELECT id FROM {schema}.orders")
    reload, driver = started(orders_group.reload([exchanging(orders_group, 2)]))
    with pytest.raises(
        CutOverRefused, match=rf"values in unique index one_at \(.*{message}.* 'swap', which .*DEFERRABLE"
    ):
        reload.run(driver)
    assert reload.runs.get(driver.run.id).is_open
    assert orders_group.rows() == [(n, 1, n) for n in range(40)]


# -- killed --------------------------------------------------------------------------------------------------------


@pytest.mark.repeats("step")
@pytest.mark.parametrize("step", ["compared", "turn cut_over", "after a long try"])
def test_a_driver_that_is_killed_leaves_nothing_torn(orders_group: OrdersGroup, step: str) -> None:
    """Before the refusals, in a try with everything written, between two tries: another one continues."""
    settled(orders_group, FIRST)
    driver = with_bounds(orders_group, max_deletes=1.0).open()
    with orders_group.engine.connect() as worker:
        if step == "after a long try":
            worker.execute(text(f"SELECT FROM {orders_group.schema}.partition_offset FOR SHARE"))
        max_wait = 60.0 if "turn" in step else 0.3
        Reloader(orders_group, driver.run.id, step=step, width=50, max_wait=max_wait).kill_where_it_waits()
    assert orders_group.rows() == doubled(FIRST, by=1), "nothing was published"
    later = [of(n % 50, n, n) for n in range(200, 230)]
    settled(orders_group, later)
    resumed(orders_group, driver, max_deletes=1.0, max_wait=60.0)
    assert orders_group.rows() == doubled(FIRST + later)
    assert orders_group.schemas() == []
