"""Pipelines with handlers, rebuilt by the driver: every way to write SQL, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, MetaData, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from seekpoint.errors import ConfigError, ReloadRefused, WroteLiveTable
from seekpoint.jobs.reload.cutover import cut_over
from support.before_cutover import diffed, reloaded, started
from support.handler_reload import Books, Handle, booked, by_core, by_hand, tables
from support.reload_orders import of

RECORDS = [of(n % 7, n) for n in range(60)]


def by_orm(schema: str | None, version: int) -> Handle:
    class Base(DeclarativeBase):
        metadata = MetaData(schema=schema)

    class Booking(Base):
        __tablename__ = "bookings"
        number: Mapped[int] = mapped_column(primary_key=True)
        source_offset: Mapped[int]
        account: Mapped[int]
        amount: Mapped[int]

    class Total(Base):
        __tablename__ = "totals"
        account: Mapped[int] = mapped_column(primary_key=True)
        total: Mapped[int]
        records: Mapped[int]

    def handle(tx: Connection, batch: Any) -> None:
        with Session(tx, join_transaction_mode="create_savepoint") as session:
            for record in batch:
                order, amount = record.value, record.value.amount * version
                session.add(Booking(source_offset=record.offset, account=order.id, amount=amount))
                total = session.get(Total, order.id) or Total(account=order.id, total=0, records=0)
                total.total += amount
                total.records += 1
                session.add(total)
                session.flush()
            session.commit()

    return handle


def by_columns(schema: str | None, version: int) -> Handle:
    """Arrow's columns, and COPY of them."""
    from sqlalchemy import bindparam, func, select
    from sqlalchemy.dialects.postgresql import insert

    bookings, totals = tables(schema)

    def handle(tx: Connection, batch: Any) -> None:
        columns = batch.arrow(provenance={"offset": "source_offset"}).to_pydict()
        rows = zip(columns["source_offset"], columns["id"], columns["amount"], strict=True)
        made = [{"source_offset": o, "account": a, "amount": m * version} for o, a, m in rows]
        tx.execute(insert(bookings), made)
        sums = (
            select(bookings.c.account, func.sum(bookings.c.amount), func.count())
            .where(bookings.c.source_offset.between(bindparam("low"), bindparam("high")))
            .group_by(bookings.c.account)
        )
        add = insert(totals).from_select(["account", "total", "records"], sums)
        add = add.on_conflict_do_update(
            index_elements=["account"],
            set_={"total": totals.c.total + add.excluded.total, "records": totals.c.records + add.excluded.records},
        )
        tx.execute(add, {"low": made[0]["source_offset"], "high": made[-1]["source_offset"]})

    return handle


WAYS: dict[str, Callable[[str], Callable[[int], Handle]]] = {
    "core": lambda schema: lambda version: by_core(None, version),
    "core with a schema": lambda schema: lambda version: by_core(schema, version),
    "orm": lambda schema: lambda version: by_orm(None, version),
    "orm with a schema": lambda schema: lambda version: by_orm(schema, version),
    "psycopg": lambda schema: lambda version: by_hand("", version),
    "arrow": lambda schema: lambda version: by_columns(schema, version),
}


@pytest.mark.parametrize("strategy", ["merge", "swap"])
@pytest.mark.parametrize("way", WAYS)
def test_a_handler_rebuilds_its_tables(books: Books, way: str, strategy: str) -> None:
    make = WAYS[way](books.shop.schema)
    books.applied(RECORDS, make)
    assert books.rows() == booked(RECORDS)
    if strategy == "swap":  # an identity column's sequence cannot be swapped
        books.shop.execute("ALTER TABLE {schema}.bookings DROP CONSTRAINT bookings_pkey, DROP COLUMN number")
        if "orm" in way:
            return
    reload = books.reload(make(2))
    reload.run(reload.open(strategy=strategy))
    assert books.rows() == booked(RECORDS, by=2)
    assert books.shop.schemas() == []
    assert reload.runs.list()[0].tables == tuple(f"{books.shop.schema}.{name}" for name in ("bookings", "totals"))


def test_verify_says_where_the_live_tables_differ(books: Books) -> None:
    books.applied(RECORDS, lambda version: by_core(None, version))
    reload = books.reload(by_core(None, 1), version=1)
    assert reload.verify().is_empty
    books.shop.execute("UPDATE {schema}.totals SET total = 0 WHERE account = 3")
    books.shop.execute("DELETE FROM {schema}.bookings WHERE source_offset = 5")
    found = {table.table.split(".")[1]: table for table in reload.verify().tables}
    assert (found["totals"].different, found["bookings"].missing) == (1, 1)
    assert books.shop.schemas() == []
    assert books.rows()[1] != booked(RECORDS)[1]


def test_what_a_handler_only_reads_is_the_live_table(books: Books) -> None:
    books.applied(RECORDS, lambda version: by_core(books.shop.schema, version))
    books.shop.execute("UPDATE {schema}.rates SET factor = 10")
    reloaded(books.reload(by_core(books.shop.schema, 2)))
    assert books.rows() == booked(RECORDS, by=20)


def live(books: Books, version: int = 2) -> Handle:
    return by_hand(f"{books.shop.schema}.", version)


def test_a_schema_in_the_statement_reaches_the_live_table_and_is_refused(books: Books) -> None:
    books.applied(RECORDS, lambda version: live(books, version))
    reload, driver = started(books.reload(live(books)))
    with pytest.raises(WroteLiveTable, match="leave the schema out of the statement") as refused:
        reload.run(driver)
    assert (refused.value.group, refused.value.table) == (books.shop.group, f"{books.shop.schema}.bookings")
    assert reload.runs.get(driver.run.id).state == "failed"
    assert books.rows() == booked(RECORDS)


def only_totals(statement: str) -> Handle:
    def handle(tx: Connection, batch: Any) -> None:
        for record in batch:
            tx.execute(text(statement), {"account": record.value.id})

    return handle


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("UPDATE {schema}.totals SET total = 0 WHERE account = :account", "wrote the live table .*totals, and has a"),
        ("UPDATE {schema}.totals SET total = 0 WHERE account = -:account - 1", "wrote the live table .*totals"),
        ("UPDATE rates SET factor = :account", "wrote the live table .*rates, which it does not declare: name it in"),
        ("SELECT total FROM {schema}.totals WHERE account = :account", "read the live table .*totals, and has a copy"),
        ("SELECT total FROM seen WHERE account = :account", "read the live table .*totals"),
        ("CREATE TABLE IF NOT EXISTS {schema}.more (n int); SELECT 1", "wrote the live table .*more"),
    ],
)
def test_live_tables_are_kept_from_a_handler(books: Books, statement: str, told: str) -> None:
    books.shop.execute("CREATE VIEW {schema}.seen AS SELECT * FROM {schema}.totals")
    books.applied(RECORDS, lambda version: by_core(None, version))
    before = books.rows()
    handle = only_totals(statement.format(schema=books.shop.schema).replace("; SELECT 1", ""))
    with pytest.raises(WroteLiveTable, match=told):
        reloaded(books.reload(handle))
    assert books.rows() == before
    assert books.shop.execute("SELECT factor FROM {schema}.rates") == [(1,)]


@pytest.mark.parametrize("when", ["in a round", "under the lock"])
def test_a_handler_cannot_write_live_tables_after_the_snapshot_offset(books: Books, when: str) -> None:
    """Everything before was in order: the new code writes astray only at records that came since."""

    def handle(tx: Connection, batch: Any) -> None:
        by_core(None, 2)(tx, batch)
        if batch[-1].offset >= len(RECORDS):
            tx.execute(text("UPDATE rates SET factor = 10"))

    books.applied(RECORDS, lambda version: by_core(None, version))
    with diffed(books.reload(handle)) as (reload, driver, rounds):
        books.applied([of(1, 1)], lambda version: by_core(None, version))
        steps: dict[str, Callable[[], Any]] = {
            "in a round": lambda: reload.catch_up(driver, rounds),
            "under the lock": lambda: cut_over(driver, rounds, lambda: None),  # no round before it
        }
        with pytest.raises(WroteLiveTable, match=r"wrote the live table .*rates, which it does not declare"):
            steps[when]()
    assert books.rows() == booked([*RECORDS, of(1, 1)])
    assert books.shop.execute("SELECT factor FROM {schema}.rates") == [(1,)]
    if when == "under the lock":  # the caller of reload.cut_over marks it failed, as after a catch-up pass
        reload.runs.abort(driver.run.id, "enough")
    assert reload.runs.get(driver.run.id).error


def test_temporary_tables_are_the_handlers_own(books: Books) -> None:
    def make(version: int) -> Handle:
        inner = by_core(None, version)

        def handle(tx: Connection, batch: Any) -> None:
            tx.execute(text("CREATE TEMP TABLE IF NOT EXISTS scratch (n int) ON COMMIT DELETE ROWS"))
            tx.execute(text("INSERT INTO scratch VALUES (1)"))
            inner(tx, batch)

        return handle

    books.applied(RECORDS, make)
    reloaded(books.reload(make(2)))
    assert books.rows() == booked(RECORDS, by=2)


def test_records_that_the_new_handler_refuses_become_dead_letters(books: Books) -> None:
    records = [*RECORDS, of(3, 2_000), of(4, 3_000), of(5, 1)]
    books.applied(records, lambda version: by_core(None, version), on_poison="dead_letter")
    reloaded(books.reload(by_core(None, 2), pipeline={"on_poison": "dead_letter"}))
    rows, _ = books.rows()
    assert [row[0] for row in rows] == [n for n in range(63) if n not in {60, 61}]
    assert books.shop.execute("SELECT record_offset, cause FROM {schema}.dead_letter ORDER BY 1") == [
        (60, "poison"),
        (61, "poison"),
    ]


def test_what_the_database_refuses_is_found_among_many(books: Books) -> None:
    """The error does not name the record: bisecting finds it."""
    records = [*RECORDS[:30], of(3, 2_600), *RECORDS[30:]]
    books.applied(records, lambda version: by_hand("", version), on_poison="dead_letter")
    reloaded(books.reload(by_hand("", 2), pipeline={"on_poison": "dead_letter"}))
    assert [row[0] for row in books.rows()[0]] == [n for n in range(61) if n != 30]
    assert books.shop.execute("SELECT record_offset, cause FROM {schema}.dead_letter") == [(30, "database")]


def test_under_stop_the_first_one_ends_the_run(books: Books) -> None:
    books.applied([*RECORDS, of(3, 2_000)], lambda version: by_core(None, version))
    with pytest.raises(ReloadRefused, match=r"offset 60: poison: Poison: too much.*on_poison is 'stop'"):
        reloaded(books.reload(by_core(None, 2)))
    assert books.shop.execute("SELECT count(*) FROM {schema}.bookings") == [(61,)]


def test_a_key_of_drawn_numbers_is_refused(books: Books) -> None:
    books.shop.execute("ALTER TABLE {schema}.bookings DROP CONSTRAINT once_each")
    books.applied(RECORDS, lambda version: by_core(None, version))
    with pytest.raises(ReloadRefused, match=r"its key number has numbers that the database draws \(number\)"):
        reloaded(books.reload(by_core(None, 2)))


def test_a_handler_says_what_it_writes(books: Books) -> None:
    with pytest.raises(ConfigError, match="does not say what it writes: name every table"):
        books.reload(by_core(None, 2), pipeline={"writes": []})
    with pytest.raises(ConfigError, match=r"writes='nowhere.at_all': the table is not there"):
        books.reload(by_core(None, 2), pipeline={"writes": ["nowhere.at_all"]}).open()
    books.shop.execute("CREATE TABLE {schema}.lost (n int)")
    with pytest.raises(ConfigError, match="would find a run's own table of that name"):
        books.reload(by_core(None, 2)).open()
    books.shop.execute("DROP TABLE {schema}.lost")
    with pytest.raises(ConfigError, match="a run keeps a table of its own under that name"):
        books.reload(by_core(None, 2), pipeline={"writes": [f"{books.shop.schema}.dead_letter"]}).open()


def test_rows_that_refer_to_one_another_are_merged_in_their_order(books: Books) -> None:
    """The new version has other accounts: old ones are deleted after their bookings, new ones added before theirs."""
    books.shop.execute("ALTER TABLE {schema}.bookings ADD FOREIGN KEY (account) REFERENCES {schema}.totals")

    def make(version: int) -> Handle:
        def handle(tx: Connection, batch: Any) -> None:
            for record in batch:
                values = {"at": record.offset, "account": record.value.id + version * 100, "amount": 1}
                tx.execute(text("INSERT INTO totals VALUES (:account, 0, 0) ON CONFLICT DO NOTHING"), values)
                tx.execute(
                    text("INSERT INTO bookings (source_offset, account, amount) VALUES (:at, :account, :amount)"),
                    values,
                )

        return handle

    books.applied(RECORDS, make)
    reloaded(books.reload(make(2)))
    rows, sums = books.rows()
    assert {row[1] for row in rows} == {account for account, _, _ in sums} == {200 + n for n in range(7)}


def test_a_constraint_of_a_live_table_that_is_broken_is_no_records_fault(books: Books) -> None:
    """The statement fails before anybody could look at its locks: the same rows are there already."""
    records = RECORDS[:5]
    books.applied(records, lambda version: live(books, version), on_poison="dead_letter")
    reload = books.reload(live(books, 1), version=1, pipeline={"on_poison": "dead_letter"})
    with pytest.raises(WroteLiveTable, match=r"wrote the live table .*bookings") as refused:
        reload.verify()
    assert refused.value.group == books.shop.group
    assert books.rows() == booked(records)


def test_an_error_of_one_statement_of_many_is_found_at_its_own_record(books: Books) -> None:

    def make(version: int) -> Handle:
        def handle(tx: Connection, batch: Any) -> None:
            for record in batch:
                values = {"at": record.offset, "id": record.value.id, "amount": record.value.amount * version}
                tx.execute(
                    text("INSERT INTO bookings (source_offset, account, amount) VALUES (:at, :id, :amount)"), values
                )

        return handle

    records = [*RECORDS[:20], of(1, 2_600), *RECORDS[20:40], of(2, 2_700), *RECORDS[40:]]
    options = {"on_poison": "dead_letter"}
    books.applied(records, make, **options)
    reloaded(books.reload(make(2), pipeline=options))
    assert books.rows()[0] == [row for row in booked(records, by=2)[0] if row[2] < 5_000]
    assert books.shop.execute("SELECT record_offset FROM {schema}.dead_letter ORDER BY 1") == [(20,), (41,)]
