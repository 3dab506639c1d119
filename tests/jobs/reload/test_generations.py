"""Tables with generations: enabled while workers run, published by changing one row, read in any snapshot."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, text

from seekpoint import Append, Limits, Text, Upsert, events
from seekpoint.cli.explain import describe
from seekpoint.errors import ConfigError, ReloadRefused
from seekpoint.jobs.batch import BatchJob
from seekpoint.jobs.reload import Driver, Generation, Generations, Reload
from seekpoint.jobs.run import transaction
from seekpoint.jobs.tables.generations import generation_tables as leaves
from seekpoint.jobs.tables.generations import manage_generations as adopting
from seekpoint.sinks.copy import driver_of
from support.before_cutover import FIRST, applied_by, diffed, reloaded, settled, started
from support.ledger_desk import backend
from support.reload_orders import Shop, doubled, gone, of
from support.reload_process import Reloader
from support.round_trips import trips
from support.waiting import until

MORE = [of(2, 9), of(77, 1), gone(4), *(of(n, 1) for n in range(1000, 1400))]


def generations(shop: Shop) -> Generations:
    return Generations(shop.engine, schema=shop.schema)


def adopt(shop: Shop, table: str = "orders") -> Generation:
    return generations(shop).enable((shop.schema, table))


@pytest.fixture
def enabled(full: Shop) -> Shop:
    """Its table is kept in generations."""
    adopt(full)
    return full


def tables(shop: Shop, like: str = "orders%") -> list[str]:
    """What there is of tables and views with such names, in the shop's schema."""
    found = shop.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace(:of) AND relkind IN ('r', 'p', 'v') "
        "AND relname LIKE :like ORDER BY 1",
        of=shop.schema,
        like=like,
    )
    return [row[0] for row in found]


def sweep(reload: Reload) -> None:
    """Until nothing is left of any run: readers of other tests may look at this database, too."""
    until(lambda: reload.runs.sweep() or all(run.swept for run in reload.runs.list()), "all runs to be swept", 60)


def test_generations_are_enabled_for_a_table_with_rows_and_it_is_reloaded(full: Shop) -> None:
    before = full.rows()
    adopted = adopt(full)
    assert full.rows() == before
    assert (adopted.number, adopted.others, adopted.run) == (1, (), None)
    assert adopted.current == f"{full.schema}.orders_g1"
    assert adopt(full) == adopted
    assert full.execute("SELECT reason FROM {schema}.admin_action WHERE action = 'enable generations'") == [
        (adopted.table,)
    ]
    reload = full.reload()
    outcome = reload.run(reload.open(strategy="generation"))
    assert full.rows() == doubled(FIRST)
    assert (outcome.tries, outcome.keys) == (1, 0)
    sweep(reload)
    (now,) = generations(full).list()
    assert (now.number, now.others) == (2, ())
    (run,) = reload.runs.list()
    assert (now.run, run.state, run.swept) == (run.id, "cut_over", True)
    assert run.tables == (f"{full.schema}.orders",)
    assert tables(full) == sorted(["orders", "orders_generations", now.current.split(".")[1]])
    settled(full, MORE, version=2)
    assert full.rows() == doubled(FIRST + MORE)
    assert not full.schemas()
    reloaded(full.reload(version=3), strategy="generation")
    settled(full, [of(5, 7)], version=3)
    assert full.rows() == doubled([*FIRST, *MORE, of(5, 7)], by=3)


def test_generations_are_enabled_for_an_empty_table(shop: Shop) -> None:
    adopt(shop)
    settled(shop)
    assert shop.rows() == doubled(FIRST, by=1)


@pytest.mark.parametrize("kind", ["upsert", "append"])
def test_workers_continue_while_generations_are_enabled_and_disabled(shop: Shop, kind: str) -> None:
    """One transaction is run again, or none; nothing is lost, nothing comes twice."""
    table = "orders" if kind == "upsert" else "entries"
    stop, made = threading.Event(), 0

    def produce() -> None:
        nonlocal made
        while not stop.wait(0.005):
            shop.produce(shop.topic, [of(n, 1) for n in range(made, made + 30)], partition=0)
            made += 30
            if made % 3_000 == 0:  # the worker's lag stays small enough to catch up in the end
                worker.reached(shop.topic, made - 3_000)

    producer = threading.Thread(target=produce)
    worker = shop.worker(kind=kind, limits=Limits(batch_records=50))
    producer.start()
    try:
        worker.seen.wait_for(events.Committed, count=5)
        for step in (lambda: adopt(shop, table), lambda: generations(shop).disable((shop.schema, table))):
            troubles, mark = len(worker.seen.all(events.DatabaseTrouble)), worker.seen.mark()
            step()
            worker.seen.wait_for(events.Committed, since=mark, count=10)
            assert len(worker.seen.all(events.DatabaseTrouble)) - troubles <= 1
    finally:
        stop.set()
        producer.join()
    worker.finish(shop.topic, made)
    assert sorted(row[0] for row in shop.rows(table)) == list(range(made))


def test_a_worker_that_was_idle_learns_of_it_at_its_next_transaction(full: Shop) -> None:
    worker = full.worker()
    applied_by(worker, full, [of(1, 1)])
    adopt(full)
    for records in ([of(1, 2)], [of(1, 3)]):
        applied_by(worker, full, records)
    assert len(worker.seen.all(events.DatabaseTrouble)) <= 1
    worker.stop()
    assert (1, 3, 0) in full.rows()


# -- readers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["SELECT count(*) FROM {schema}.orders", "SELECT count(*) FROM {schema}.entries"])
def test_an_older_snapshot_reads_the_older_generation(enabled: Shop, first: str) -> None:
    """To its end, also where it had not touched the table yet: only then the older one is dropped."""
    reload = enabled.reload()
    before = enabled.rows()
    with enabled.holding(first, isolation="REPEATABLE READ") as reader:
        reload.run(reload.open(strategy="generation"))
        assert enabled.rows() == doubled(FIRST)
        read = f"SELECT id, amount, at FROM {enabled.schema}.orders ORDER BY 1"
        assert [tuple(row) for row in reader.execute(text(read))] == before
        assert reload.runs.sweep() == []
        assert "orders_g1" in tables(enabled)
    sweep(reload)
    assert len(tables(enabled)) == 3


def test_a_snapshot_from_before_generations_were_enabled_reads_the_rows_of_its_time(full: Shop) -> None:
    """The view is there for it, too, and the pointer is not: an empty table would be one that never was."""
    before = full.rows()
    with full.holding("SELECT count(*) FROM {schema}.entries", isolation="REPEATABLE READ") as reader:
        adopt(full)
        read = text(f"SELECT id, amount, at FROM {full.schema}.orders ORDER BY 1")
        assert [tuple(row) for row in reader.execute(read)] == before
        reload = full.reload()
        reload.run(reload.open(strategy="generation"))
        assert full.rows() == doubled(FIRST)
        assert [tuple(row) for row in reader.execute(read)] == before
    sweep(reload)
    assert len(tables(full)) == 3


@pytest.mark.parametrize("how", ["text", "prepared", "function"])
def test_a_transaction_that_reads_by_an_older_plan_finds_rows_or_fails(enabled: Shop, how: str) -> None:
    """In READ COMMITTED, with locks from before ATTACH: Postgres does not tell it of the table. Never nothing."""
    read = f"SELECT count(*), sum(amount) FROM {enabled.schema}.orders"
    if how == "function":
        declared = f"{enabled.schema}.both(OUT a bigint, OUT b numeric) LANGUAGE plpgsql"
        enabled.execute(f"CREATE FUNCTION {declared} AS 'BEGIN {read.replace('FROM', 'INTO a, b FROM')}; END'")
        read = f"SELECT * FROM {enabled.schema}.both()"
    reload, driver = started(enabled.reload(), strategy="generation")
    url = enabled.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with diffed(reload, driver=driver) as (_, _, rounds), psycopg.connect(url) as reader:
        for _ in range(12):  # the plan is kept from the sixth on
            reader.execute(read, prepare=how == "prepared")
        reload.cut_over(driver, rounds)
        after = (39, sum(amount for _, amount, _ in doubled(FIRST)))
        try:
            assert reader.execute(read, prepare=how == "prepared").fetchone() == after
        except psycopg.errors.SerializationFailure:
            reader.rollback()
        assert reader.execute(read, prepare=how == "prepared").fetchone() == after


def test_long_readers_are_in_nobodys_way(enabled: Shop) -> None:
    """With locks on the view and on every table that it reads; the cut-over waits for none of them."""
    reload = enabled.reload()
    with enabled.holding("SELECT * FROM {schema}.orders") as reader:
        outcome = reload.run(reload.open(strategy="generation"))
        assert (outcome.tries, outcome.lock_seconds < 30) == (1, True)
        assert enabled.rows() == doubled(FIRST)
        assert "orders_g1" in tables(enabled)
        reader.execute(text(f"SELECT FROM {enabled.schema}.orders"))  # its own next statement reads the new one
        settled(enabled, MORE, version=2)
        assert reload.runs.sweep() == []
    sweep(reload)
    assert len(tables(enabled)) == 3
    assert enabled.rows() == doubled(FIRST + MORE)


def test_a_reader_that_stays_while_tables_are_attached_reads_one(enabled: Shop) -> None:
    """The view has two tables, and one is read; with an index, by the index."""
    reload, driver = started(enabled.reload(), strategy="generation")
    with ExitStack() as stack:
        stack.enter_context(_attached(enabled, reload, driver))
        (now,) = generations(enabled).list()
        assert len(now.others) == 1
        assert enabled.rows() == doubled(FIRST, by=1)
        with enabled.holding("SELECT set_config('enable_seqscan', 'off', true)") as reader:
            explain = f"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) SELECT * FROM {enabled.schema}.orders WHERE id = 5"
            read = [row[0] for row in reader.execute(text(explain)) if "on orders_g" in row[0]]
    assert len(read) == 2
    assert sum("never executed" in line for line in read) == 1
    assert all("Index Scan" in line for line in read)
    reload.runs.abort(driver.run.id, "a test")
    plan = enabled.execute("EXPLAIN (COSTS OFF) SELECT * FROM {schema}.orders")
    assert not any("Append" in row[0] or "Join" in row[0] or "Nested" in row[0] for row in plan)


@contextmanager
def _attached(shop: Shop, reload: Any, driver: Driver) -> Iterator[Any]:
    """A run that fails after ATTACH, in the cut-over itself."""
    with diffed(reload, driver=driver) as (_, _, rounds):
        turn = driver.transition

        def fails(*_: Any) -> None:
            raise RuntimeError("a test")

        driver.transition = fails  # type: ignore[assignment, method-assign]
        with pytest.raises(RuntimeError, match="a test"):
            reload.cut_over(driver, rounds)
        driver.transition = turn  # type: ignore[method-assign]
        yield rounds


def test_snapshots_that_may_not_be_seen_are_waited_for(shop: Shop, roles: tuple[str, str]) -> None:
    """A role without the right to look at others' sessions takes each open transaction for an old reader."""
    adopt(shop)
    (turned,) = shop.execute("SELECT CAST(xmin AS text) FROM {schema}.generation")[0]

    def others() -> list[int]:
        with transaction(shop.engine, shop.schema) as tx:
            tx.connection.execute(text(f"SET LOCAL ROLE {roles[0]}"))
            return leaves.still_reading(tx, turned, 0.2)

    with shop.holding("SELECT 1") as reader:
        assert backend(reader) in others()
    until(lambda: not others(), "the other readers to end", 60)


# -- runs that end otherwise -----------------------------------------------------------------------------------


@pytest.mark.parametrize("attached", [False, True])
def test_an_aborted_run_leaves_none_of_its_tables(enabled: Shop, attached: bool) -> None:
    reload, driver = started(enabled.reload(), strategy="generation")
    with _attached(enabled, reload, driver) if attached else diffed(reload, driver=driver):
        assert len(tables(enabled)) == 4
    reload.runs.abort(driver.run.id, "a test")
    assert tables(enabled) == ["orders", "orders_g1", "orders_generations"]
    assert not enabled.schemas()
    assert enabled.rows() == doubled(FIRST, by=1)
    reload.run(reload.open(strategy="generation"))
    assert enabled.rows() == doubled(FIRST)


def test_a_rolled_back_cut_over_is_tried_again(enabled: Shop) -> None:
    reload, driver = started(enabled.reload(), strategy="generation")
    with _attached(enabled, reload, driver) as rounds:
        settled(enabled, MORE)
        reload.cut_over(driver, rounds)
    assert enabled.rows() == doubled(FIRST + MORE)
    sweep(reload)
    assert len(tables(enabled)) == 3


def test_a_driver_that_is_killed_after_attach(enabled: Shop) -> None:
    reload = enabled.reload()
    run = reload.open(strategy="generation").run.id
    Reloader(enabled, run, width=500, at="turn cut_over").kill_where_it_waits()
    assert enabled.rows() == doubled(FIRST, by=1)
    reload.run(reload.take_over(run))
    assert enabled.rows() == doubled(FIRST)
    sweep(reload)
    assert len(tables(enabled)) == 3


@pytest.mark.parametrize(
    ("altered", "refused"),
    [
        ("ALTER TABLE {schema}.orders_generations ADD COLUMN told text", True),
        ("CREATE INDEX ON {schema}.orders_g1 (at)", True),
        ("CREATE TABLE {schema}.others (id bigint REFERENCES {schema}.orders_g1)", True),
        ("ALTER TABLE {schema}.orders_g1 SET (fillfactor = 50)", False),
        ("CREATE VIEW {schema}.told AS SELECT id FROM {schema}.orders", False),
    ],
)
def test_what_was_altered_in_mid_run(enabled: Shop, altered: str, refused: bool) -> None:
    with diffed(enabled.reload(), strategy="generation") as (reload, driver, rounds):
        enabled.execute(altered)
        if refused:
            with pytest.raises(ReloadRefused, match=r"was altered since|and a new generation would not"):
                reload.cut_over(driver, rounds)
        else:
            reload.cut_over(driver, rounds)
    assert enabled.rows() == doubled(FIRST, by=1 if refused else 2)
    if refused:
        assert reload.runs.get(driver.run.id).state == "failed"
        sweep(reload)
        assert len(tables(enabled)) == 3
    elif "VIEW" in altered:
        assert enabled.execute("SELECT count(*) FROM {schema}.told") == [(len(doubled(FIRST)),)]


# -- other strategies ------------------------------------------------------------------------------------------


def test_merge_and_verify_know_generations(enabled: Shop) -> None:
    same, mended = enabled.reload(version=1), enabled.reload()
    assert same.verify().is_empty
    report = mended.verify()
    assert report.tables[0].table == f"{enabled.schema}.orders"
    assert report.tables[0].different > 0
    mended.run(mended.open())
    assert enabled.rows() == doubled(FIRST)
    with pytest.raises(ReloadRefused, match="is kept in generations, and cannot be swapped: use strategy 'generation'"):
        mended.open(strategy="swap")
    settled(enabled, MORE, version=2)
    assert enabled.rows() == doubled(FIRST + MORE)


def test_a_table_without_generations_is_refused(full: Shop) -> None:
    with pytest.raises(
        ReloadRefused, match=rf"run `seekpoint reload enable-generations {full.schema}.orders`, or call Generations"
    ):
        full.reload().open(strategy="generation")


# -- what hangs on a table -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "told"),
    [
        ("CREATE VIEW {schema}.v AS SELECT * FROM {schema}.orders", "has view .*v, which would hang on one"),
        ("CREATE TABLE {schema}.lines (id bigint REFERENCES {schema}.orders)", "foreign key lines_id_fkey"),
        (
            "ALTER TABLE {schema}.orders ADD other bigint REFERENCES {schema}.orders",
            "foreign key orders_other_fkey",
        ),
        ("ALTER TABLE {schema}.orders ENABLE ROW LEVEL SECURITY", "row security"),
        ("CREATE RULE r AS ON DELETE TO {schema}.orders DO ALSO NOTHING", "rule r"),
        ("ALTER TABLE {schema}.orders REPLICA IDENTITY FULL", "a replica identity"),
        ("GRANT SELECT (id) ON {schema}.orders TO PUBLIC", "grants of columns"),
        ("CREATE STATISTICS {schema}.s ON id, at FROM {schema}.orders", "statistics s"),
        ("CREATE TABLE {schema}.orders_generations ()", "a table .*orders_generations already"),
        ("ALTER TABLE {schema}.orders ADD seekpoint_generation bigint", "a column seekpoint_generation of its own"),
        ("CREATE TABLE {schema}.more () INHERITS ({schema}.orders)", "has inheritance"),
        ("GRANT INSERT ON {schema}.orders TO PUBLIC", "role PUBLIC may write .*GRANT SELECT ON .*generation"),
    ],
)
def test_tables_that_cannot_have_generations_are_refused(full: Shop, made: str, told: str) -> None:
    for statement in made.split("; "):
        full.execute(statement)
    with pytest.raises(ReloadRefused, match=told):
        adopt(full)
    assert not generations(full).list()
    assert full.execute("SELECT relkind::text FROM pg_class WHERE oid = '{schema}.orders'::regclass") == [("r",)]


def test_names_of_no_table_are_refused(shop: Shop) -> None:
    with pytest.raises(ConfigError, match="there is no table nothing: check its name"):
        generations(shop).enable("nothing")
    with pytest.raises(ConfigError, match="is not kept in generations: enable them first"):
        generations(shop).disable((shop.schema, "orders"))
    shop.execute("CREATE VIEW {schema}.v AS SELECT 1 AS id")
    with pytest.raises(ReloadRefused, match="is no plain table"):
        adopt(shop, "v")


def test_generations_are_not_enabled_while_a_reload_is_open(full: Shop) -> None:
    reload = full.reload()
    run = reload.open().run
    with pytest.raises(ReloadRefused, match=f"reload {run.id} is opened: bring it to its end"):
        adopt(full)
    reload.runs.abort(run.id, "a test")
    adopt(full)
    run = reload.open(strategy="generation").run
    with pytest.raises(ReloadRefused, match=f"reload {run.id} is opened: bring it to its end"):
        generations(full).disable((full.schema, "orders"))


def test_a_lock_that_cannot_be_had_leaves_the_table_as_it_was(full: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seekpoint.jobs.tables.generations.manage_generations.TRIES", 2)
    with (
        full.holding("SELECT * FROM {schema}.orders"),
        pytest.raises(psycopg.errors.LockNotAvailable),
    ):
        adopt(full)
    assert full.rows() == doubled(FIRST, by=1)
    assert tables(full) == ["orders"]
    adopt(full)


def test_enabling_that_was_interrupted_is_completed(full: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process died after the first step: the column is there."""
    with monkeypatch.context() as patch:
        patch.setattr("seekpoint.jobs.tables.generations.manage_generations._enable", lambda *_: 1 / 0)
        patch.setattr("seekpoint.jobs.tables.generations.manage_generations._unmark", lambda *_: None)
        with pytest.raises(ZeroDivisionError):
            adopt(full)
    adopt(full)
    assert full.rows() == doubled(FIRST, by=1)


def test_rows_are_not_written_into_the_view(shop: Shop) -> None:
    """The message says so, and no record is blamed."""
    adopt(shop)
    with pytest.raises(Exception, match="cannot insert into view") as refused:
        shop.execute("INSERT INTO {schema}.orders VALUES (1, 1, 1)")
    assert getattr(refused.value, "orig").sqlstate == "55000"  # noqa: B009


# -- columns, rights and names ---------------------------------------------------------------------------------


def test_identity_values_continue_from_one_generation_to_the_next(shop: Shop) -> None:
    """An identity column draws from one sequence in all generations, and after they are disabled."""
    records = [of(n, n) for n in range(1, 40)]
    settled(shop, records, kind="append")
    adopt(shop, "entries")
    reloaded(shop.reload(pipeline={"kind": "append"}), strategy="generation")
    settled(shop, [of(100, 1)], version=2, kind="append")
    numbers = [row[0] for row in shop.execute("SELECT number FROM {schema}.entries ORDER BY 1")]
    assert len(set(numbers)) == len(records) + 1
    assert min(numbers) > len(records)
    generations(shop).disable((shop.schema, "entries"))
    identity = "SELECT attidentity::text FROM pg_attribute WHERE attrelid = '{schema}.entries'::regclass AND attnum > 0"
    assert shop.execute(identity + " AND attname = 'number'") == [("a",)]
    shop.execute("INSERT INTO {schema}.entries (id, amount, at, topic_offset) VALUES (1, 1, 1, 1000)")
    assert shop.execute("SELECT max(number) FROM {schema}.entries") == [(max(numbers) + 1,)]


def test_columns_that_the_database_fills(shop: Shop) -> None:
    shop.execute(
        "ALTER TABLE {schema}.orders ADD twice bigint GENERATED ALWAYS AS (amount * 2) STORED, ADD count serial, "
        "ALTER note SET NOT NULL"
    )
    shop.execute("COMMENT ON TABLE {schema}.orders IS 'of the shop'")
    shop.execute("COMMENT ON COLUMN {schema}.orders.amount IS 'in cents'")
    settled(shop)
    adopt(shop)
    reloaded(shop.reload(), strategy="generation")
    assert shop.rows() == doubled(FIRST)
    query = "SELECT count(*), count(DISTINCT count), bool_and(twice = 2 * amount), min(note) FROM {schema}.orders"
    expected = len(doubled(FIRST))
    assert shop.execute(query) == [(expected, expected, True, "none")]
    said = (
        "SELECT obj_description('{schema}.orders'::regclass, 'pg_class'), "
        "col_description('{schema}.orders'::regclass, 2)"
    )
    assert shop.execute(said) == [("of the shop", "in cents")]
    generations(shop).disable((shop.schema, "orders"))
    assert shop.execute(said) == [("of the shop", "in cents")]
    assert shop.execute(query) == [(expected, expected, True, "none")]


@pytest.fixture
def roles(shop: Shop) -> Iterator[tuple[str, str]]:
    """Who reads, and who writes."""
    made = (f"{shop.schema}_reader", f"{shop.schema}_writer")
    for role in made:
        shop.execute(f"CREATE ROLE {role}")
        shop.execute(f"GRANT USAGE ON SCHEMA {{schema}} TO {role}")
    yield made
    for role in made:
        shop.execute(f"DROP OWNED BY {role}")
        shop.execute(f"DROP ROLE {role}")


def test_rights_go_from_one_generation_to_the_next(shop: Shop, roles: tuple[str, str]) -> None:
    """Who may read the table may read the view, and nothing else; who may write it writes the current generation."""
    reader, writer = roles
    settled(shop, FIRST[:40], kind="append")
    shop.execute(f"GRANT SELECT ON {{schema}}.entries TO {reader} WITH GRANT OPTION")
    shop.execute(f"GRANT SELECT, INSERT ON {{schema}}.entries TO {writer}")
    with pytest.raises(ReloadRefused, match=f"role {writer} may write .*, and must know where: GRANT SELECT ON .* TO"):
        adopt(shop, "entries")
    shop.execute(f"GRANT SELECT ON {{schema}}.generation TO {writer}")
    adopt(shop, "entries")
    reloaded(shop.reload(pipeline={"kind": "append"}), strategy="generation")
    shop.engine.dispose()  # a session that looked at the table before would have to run its transaction again
    with shop.engine.connect() as connection:
        connection.execute(text(f"SET ROLE {reader}"))
        assert connection.execute(text(f"SELECT count(*) FROM {shop.schema}.entries")).scalar() == 40
    with shop.engine.connect() as connection:
        connection.execute(text(f"SET ROLE {writer}"))
        sink = Append((shop.schema, "entries"), columns=["id", "amount", "at", "topic_offset"])
        with sink.open(connection) as rows:
            rows.write([(1, 1, 1, 5000)])
        assert connection.execute(text(f"SELECT count(*) FROM {shop.schema}.entries")).scalar() == 41


@pytest.mark.parametrize("table", ['Odd "na%me"; --', "x" * 63, "ä" * 31, "with.dot", "{curly}"])
def test_odd_names(shop: Shop, table: str) -> None:
    """As the table's, the key's and a column's."""
    column = 'se"lect %s'
    with shop.engine.begin() as tx:
        driver = driver_of(tx)
        named = psycopg.sql.SQL("CREATE TABLE {} (id bigint, {} bigint NOT NULL, PRIMARY KEY (id))")
        driver.execute(named.format(psycopg.sql.Identifier(shop.schema, table), psycopg.sql.Identifier(column)))

    def pipeline(version: int) -> Any:
        made = shop.pipeline(version=version)
        made.sinks = (
            Upsert(
                (shop.schema, table),
                key=["id"],
                columns=["id", column],
                row=lambda r: (r.value.id, r.value.amount * version),
            ),
        )
        return made

    def read() -> list[tuple[int, int]]:
        with shop.engine.connect() as connection:
            where = psycopg.sql.SQL("SELECT * FROM {} ORDER BY 1").format(psycopg.sql.Identifier(shop.schema, table))
            return list(driver_of(connection).execute(where).fetchall())

    shop.produce(shop.topic, [of(n, n) for n in range(150)], partition=0)
    shop.apply(pipeline(1), 150)
    adopted = adopt(shop, table)
    assert adopted.table == f"{shop.schema}.{table}"
    reloaded(shop.reload([pipeline(2)]), strategy="generation")
    assert read() == [(n, 2 * n) for n in range(150)]
    worker = shop.run_worker(pipeline(2))
    applied_by(worker, shop, [of(3, 100)])
    worker.stop()
    assert read()[3] == (3, 200)
    generations(shop).disable((shop.schema, table))
    assert read()[3] == (3, 200)


def test_long_names_that_begin_alike_do_not_meet(shop: Shop) -> None:
    names = ["y" * 62 + end for end in "ab"]
    for one in names:
        shop.execute(f"CREATE TABLE {{schema}}.{one} (id bigint PRIMARY KEY)")
        adopt(shop, one)
    assert len({one.current for one in generations(shop).list()}) == 2


# -- and back --------------------------------------------------------------------------------------------------


def test_a_table_that_was_given_up_is_a_plain_one(shop: Shop) -> None:
    shop.execute("ALTER TABLE {schema}.orders SET (fillfactor = 80)")
    settled(shop)
    adopt(shop)
    reload = shop.reload()
    reload.run(reload.open(strategy="generation"))
    options = "SELECT reloptions[1], relkind::text FROM pg_class WHERE oid = '{schema}.orders'::regclass"
    generations(shop).disable((shop.schema, "orders"))
    assert shop.execute(options) == [("fillfactor=80", "r")]
    assert tables(shop) == ["orders"]
    assert not generations(shop).list()
    assert shop.rows() == doubled(FIRST)
    settled(shop, MORE, version=2)
    assert shop.rows() == doubled(FIRST + MORE)
    reloaded(shop.reload(version=3))
    assert shop.rows() == doubled(FIRST + MORE, by=3)
    adopt(shop)


def test_readers_of_an_earlier_generation_are_waited_for_and_reported(
    enabled: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    reload = enabled.reload()
    total = text(f"SELECT sum(amount) FROM {enabled.schema}.orders")
    with enabled.holding("SELECT FROM {schema}.orders", isolation="REPEATABLE READ") as reader:
        reload.run(reload.open(strategy="generation"))
        said = rf"after 0.2 s: wait for the sessions of pid .*\b{backend(reader)}\b"
        with monkeypatch.context() as hurried:
            hurried.setattr(adopting, "READERS_WAIT", 0.2)
            with pytest.raises(ReloadRefused, match=said):
                generations(enabled).disable((enabled.schema, "orders"))
        assert reader.execute(total).scalar() == sum(amount for _, amount, _ in doubled(FIRST, by=1))
    generations(enabled).disable((enabled.schema, "orders"))
    assert enabled.rows() == doubled(FIRST)


def test_a_reader_with_a_newer_snapshot_is_no_longer_waited_for(enabled: Shop) -> None:
    """Its transaction stays open; only the cursor held the older snapshot."""
    reload = enabled.reload()
    with enabled.holding("DECLARE older CURSOR FOR SELECT * FROM {schema}.orders") as reader:
        reload.run(reload.open(strategy="generation"))
        (turned,) = enabled.execute("SELECT CAST(xmin AS text) FROM {schema}.generation")[0]
        pid = backend(reader)
        with transaction(enabled.engine, enabled.schema) as tx:
            assert pid in leaves.still_reading(tx, turned, 0)
            reader.execute(text("CLOSE older"))
            assert pid not in leaves.still_reading(tx, turned, 5)


def test_a_view_on_top_is_in_the_way_of_giving_up(shop: Shop) -> None:
    adopt(shop)
    shop.execute("CREATE VIEW {schema}.told AS SELECT id FROM {schema}.orders")
    with pytest.raises(ReloadRefused, match=r"view .*told depends on view .*orders: drop that first"):
        generations(shop).disable((shop.schema, "orders"))
    assert len(generations(shop).list()) == 1


# -- what it costs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("many", [1, 500])
def test_only_such_tables_cost_a_round_trip(shop: Shop, many: int) -> None:
    """One more for each transaction; of others, none but the first look of each session."""
    columns = ["id", "amount", "at", "topic_offset"]
    sinks: dict[str, Callable[[], Any]] = {
        "entries": lambda: Append((shop.schema, "entries"), columns=columns),
        "orders": lambda: Upsert((shop.schema, "orders"), key=["id"], columns=columns[:3]),
    }
    counts: dict[str, list[int]] = {"entries": [], "orders": []}
    for adopted in (False, True):
        engine = create_engine(shop.engine.url)
        for table, sink in sinks.items():
            if adopted:
                adopt(shop, table)
            one, width = sink(), 4 if table == "entries" else 3
            for at in range(10_000 * adopted, 10_000 * adopted + 3000, 1000):
                with engine.begin() as tx, trips(driver_of(tx)) as counted, one.open(tx) as rows:
                    rows.write([(at + i, 1, 1, at + i)[:width] for i in range(many)])
                counts[table].append(counted.count)
        engine.dispose()
    for found in counts.values():
        assert found[1] == found[2]
        assert found[4] == found[2] + 1, counts


def test_explain_shows_the_write_strategies_of_a_view(shop: Shop) -> None:
    adopt(shop)
    adopt(shop, "entries")
    for kind, road in (
        ("upsert", "COPY into the table, after a savepoint"),
        ("append", "COPY into the table; INSERT where there are few rows"),
    ):
        (sink,) = describe(shop.pipeline(kind=kind), shop.engine)["sinks"]
        assert any(road in said for said in sink["strategies"].values())


# -- writes by other sessions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["upsert", "append"])
def test_a_batch_writes_the_generation_that_counts(shop: Shop, kind: str) -> None:
    table, records = ("orders" if kind == "upsert" else "entries"), [of(n, n) for n in range(60)]
    settled(shop, records[:30], kind=kind)
    adopt(shop, table)
    kafka = {"bootstrap.servers": shop.brokers}
    for version, at in ((1, 30), (2, 45)):
        if version > 1:
            reloaded(shop.reload(pipeline={"kind": kind}), strategy="generation")
        shop.produce(shop.topic, records[at : at + 15], partition=0)
        done = BatchJob(shop.pipeline(kind=kind, version=version), shop.engine, kafka, schema=shop.schema).run()
        assert done.records == 15
    assert [row[0] for row in shop.rows(table, "id, amount, at")] == list(range(60))
    assert {row[1] for row in shop.rows(table, "id, amount, at") if row[0] < 45} == {2 * n for n in range(45)}


def test_a_dead_letter_is_replayed_into_the_current_generation(shop: Shop) -> None:
    options: dict[str, Any] = {"on_poison": "dead_letter", "kind": "append", "key": Text()}
    shop.execute("ALTER TABLE {schema}.entries ADD CONSTRAINT few CHECK (amount NOT IN (8, 16))")
    settled(shop, [of(1, 1), of(2, 8)], **options)
    adopt(shop, "entries")
    reloaded(shop.reload(pipeline=options), strategy="generation")
    current = generations(shop).list()[0].current
    shop.execute(f"ALTER TABLE {current} DROP CONSTRAINT few")
    redrive = shop.redrive(version=2, **options)
    (letter,) = redrive.list()
    assert redrive.replay(letter.id).is_applied
    assert shop.rows("entries", "id, amount, topic_offset") == [(1, 2, 0), (2, 16, 1)]


def test_a_column_that_is_added_between_two_reloads(enabled: Shop) -> None:
    """To the partitioned table, and then to the view."""
    enabled.execute("ALTER TABLE {schema}.orders_generations ADD told text DEFAULT 'new'")
    (found,) = enabled.execute("SELECT pg_get_viewdef('{schema}.orders'::regclass)")[0]
    with enabled.engine.begin() as tx:
        changed = found.replace("generations.note\n", "generations.note,\n    generations.told\n")
        assert changed != found
        driver_of(tx).execute(f"CREATE OR REPLACE VIEW {enabled.schema}.orders AS {changed}")
    reloaded(enabled.reload(), strategy="generation")
    assert enabled.rows() == doubled(FIRST)
    assert enabled.execute("SELECT DISTINCT told FROM {schema}.orders") == [("new",)]
