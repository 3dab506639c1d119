"""A record that breaks a foreign key or a second unique index is the dead letter of the run, as of a worker."""

from __future__ import annotations

import re
from typing import Any

import pytest

from seekpoint.errors import ReloadRefused
from seekpoint.jobs.reload.catch_up import CatchUp
from support.before_cutover import applied_by, reloaded, settled, staged, working
from support.reload_orders import Shop, doubled, gone, of

RECORDS = [of(n, n, n) for n in range(1, 31)]
CUSTOMERS = """
CREATE TABLE {schema}.customers (id bigint PRIMARY KEY);
INSERT INTO {schema}.customers SELECT generate_series(0, 200, 2);
"""
# Amounts of version 2 are even; version 1 knows none of these constraints.
REFERS = "ALTER TABLE {schema}.%s ADD CONSTRAINT of_customer FOREIGN KEY (at) REFERENCES {schema}.customers"
UNIQUE = "ALTER TABLE {schema}.%s ADD CONSTRAINT one_each UNIQUE (at)"


def letters(shop: Shop) -> list[tuple[Any, ...]]:
    return shop.execute(
        "SELECT record_offset, state, sqlstate FROM {schema}.dead_letter WHERE state IN ('dead_lettered', 'blocked') "
        "ORDER BY 1"
    )


COUNT = {"upsert": "orders", "append": "entries"}


@pytest.mark.parametrize("strategy", ["merge", "swap"])
@pytest.mark.parametrize("kind", COUNT)
def test_a_row_that_a_second_unique_index_refuses(shop: Shop, kind: str, strategy: str) -> None:
    """The live rows were made before the index was; the fix (version 2) keeps its promise but for two records."""
    records = [*RECORDS, of(100, 7, 5), of(101, 7, 9), of(102, 7, 999)]
    settled(shop, records, kind=kind)
    shop.execute(f"DELETE FROM {{schema}}.{COUNT[kind]} WHERE id IN (100, 101)")
    shop.execute(UNIQUE % COUNT[kind])
    reloaded(shop.reload(pipeline={"kind": kind, "on_poison": "dead_letter"}), strategy=strategy)
    assert shop.rows(COUNT[kind], "id, amount, at") == doubled([*RECORDS, of(102, 7, 999)])
    assert [(row[0], row[2]) for row in letters(shop)] == [(30, "23505"), (31, "23505")]


@pytest.mark.repeats("kind")
@pytest.mark.parametrize("kind", COUNT)
def test_a_row_that_refers_to_none(shop: Shop, kind: str) -> None:
    """When the run is opened, and in a catch-up pass; a verify counts it as a dead letter, too."""
    shop.execute(CUSTOMERS)
    good, bad = [of(n, n, 2 * n) for n in range(1, 21)], [of(50, 1, 301), of(51, 1, 303)]
    settled(shop, [*good, *bad], kind=kind)
    shop.execute(f"DELETE FROM {{schema}}.{COUNT[kind]} WHERE id >= 50")
    shop.execute(REFERS % COUNT[kind])
    report = shop.reload(version=1, pipeline={"kind": kind, "on_poison": "dead_letter"}).verify()
    assert report.is_empty
    assert report.dead_letters == 2
    reload, driver = staged(shop.reload(pipeline={"kind": kind, "on_poison": "dead_letter"}))
    shop.execute(f"ALTER TABLE {{schema}}.{COUNT[kind]} DROP CONSTRAINT of_customer")
    settled(shop, [of(60, 1, 305), of(61, 1, 4)], kind=kind)
    shop.execute(f"DELETE FROM {{schema}}.{COUNT[kind]} WHERE id = 60")
    shop.execute(REFERS % COUNT[kind])
    reload.run(driver)
    assert shop.rows(COUNT[kind], "id, amount, at") == doubled([*good, of(61, 1, 4)])
    assert [(row[0], row[2]) for row in letters(shop)] == [(20, "23503"), (21, "23503"), (22, "23503")]


def test_the_row_before_it_counts_where_the_newest_is_refused(shop: Shop) -> None:
    """As in a worker, whose table keeps the earlier row; a row that a tombstone deleted does not come back."""
    shop.execute(CUSTOMERS)
    records = [of(1, 1, 2), of(1, 2, 3), of(2, 1, 5), gone(2), of(3, 1, 7)]
    settled(shop, records)
    shop.execute("UPDATE {schema}.orders SET at = 2; DELETE FROM {schema}.orders WHERE id = 3")
    shop.execute(REFERS % "orders")
    reloaded(shop.reload(pipeline={"on_poison": "dead_letter"}))
    assert shop.rows() == [(1, 2, 2)]
    assert [row[0] for row in letters(shop)] == [1, 4]


def test_later_records_of_its_key_are_blocked(shop: Shop) -> None:
    """What comes before the cut-over, too: a replay would overwrite what was applied after it."""
    shop.execute(CUSTOMERS)
    settled(shop, [of(1, 1, 2), of(1, 2, 3), of(2, 1, 4)])
    shop.execute("UPDATE {schema}.orders SET at = 2 WHERE id = 1")
    shop.execute(REFERS % "orders")
    reload, driver = staged(shop.reload(pipeline={"on_poison": "dead_letter"}))
    shop.execute("ALTER TABLE {schema}.orders DROP CONSTRAINT of_customer")
    worker = working(shop, [of(1, 3, 6), of(3, 1, 8), of(2, 1, 3), of(4, 1, 8)])
    with CatchUp(driver, reload.sources, reload.kafka) as rounds:
        reload.catch_up(driver, rounds)
    applied_by(worker, shop, [of(2, 1, 8)])
    worker.stop()
    reload.run(driver)
    assert shop.rows() == [(1, 2, 2), (2, 2, 4), (3, 2, 8), (4, 2, 8)]
    assert [row[:2] for row in letters(shop)] == [
        (1, "dead_lettered"),
        (3, "blocked"),
        (5, "dead_lettered"),
        (7, "blocked"),
    ]


@pytest.mark.repeats("kind")
@pytest.mark.parametrize("kind", COUNT)
def test_a_staged_record_after_a_refused_one_of_its_key(shop: Shop, kind: str) -> None:
    """A worker that keeps the order of keys, as for an upsert, would block it, though it is of another row."""
    shop.execute(CUSTOMERS)
    settled(shop, [(of(9)[0], of(n, n, n + 1)[1]) for n in (1, 2, 3)], kind=kind)
    shop.execute(f"DELETE FROM {{schema}}.{COUNT[kind]} WHERE id > 1")
    shop.execute(REFERS % COUNT[kind])
    reloaded(shop.reload(pipeline={"kind": kind, "on_poison": "dead_letter"}))
    if kind == "append":
        assert shop.rows("entries", "id, amount, at") == [(1, 2, 2), (3, 6, 4)]
        assert [row[:2] for row in letters(shop)] == [(1, "dead_lettered")]
    else:
        assert shop.rows() == [(1, 2, 2)]
        assert [row[:2] for row in letters(shop)] == [(1, "dead_lettered"), (2, "blocked")]


@pytest.mark.repeats("kind")
@pytest.mark.parametrize("kind", COUNT)
def test_records_after_one_that_the_new_code_refuses_are_blocked_as_by_a_worker(shop: Shop, kind: str) -> None:
    """In other ranges, and after the snapshot; of an upsert's key, the row before the refused record is the newest."""
    options: dict[str, Any] = {"kind": kind, "on_poison": "dead_letter"}
    options |= {"keep_key_order": True} if kind == "append" else {}
    later = gone(1) if kind == "upsert" else of(1, 9, 9)
    refused = [of(1, 1, 1), of(2, 1, 1), of(1, 1500, 2), of(1, 2, 3), of(2, 2, 2), later, of(3, 1500, 1), of(1, 3, 4)]
    settled(shop, refused, kind=kind)
    assert shop.reload(range_records=2, pipeline=options).verify().dead_letters == 5
    reload, driver = staged(shop.reload(range_records=2, pipeline=options))
    settled(shop, [of(3, 5, 5), of(4, 1, 0)], kind=kind)
    reload.run(driver)
    rows = [(1, 2, 1), (2, 4, 2), (4, 2, 0)]
    assert shop.rows(COUNT[kind], "id, amount, at") == (rows if kind == "upsert" else sorted([*rows, (2, 2, 1)]))
    dead = {2: "dead_lettered", 6: "dead_lettered"}
    assert [row[:2] for row in letters(shop)] == [(n, dead.get(n, "blocked")) for n in (2, 3, 5, 6, 7, 8)]


def test_the_policy_says_what_becomes_of_it(shop: Shop) -> None:
    records = [*RECORDS, of(100, 7, 5)]
    settled(shop, records)
    shop.execute("DELETE FROM {schema}.orders WHERE id = 100")
    shop.execute(UNIQUE % "orders")
    reload = shop.reload()
    place = re.escape(f"{shop.topic}/0 offset 30: database: UniqueViolation")
    with pytest.raises(ReloadRefused, match=f"{place}.*and on_poison is 'stop'"):
        reload.run(reload.open())
    reloaded(shop.reload(pipeline={"on_poison": "skip"}))
    assert shop.rows() == doubled(RECORDS)
    assert letters(shop) == []


def test_many_of_them_are_a_mistake(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seekpoint.jobs.staging.constraint_rejects.MOST", 10)
    shop.execute(CUSTOMERS + "TRUNCATE {schema}.customers CASCADE")
    settled(shop, RECORDS)
    shop.execute((REFERS % "orders") + " NOT VALID")
    with pytest.raises(ReloadRefused, match="more than 10 records make rows that a constraint of the live table"):
        reloaded(shop.reload(pipeline={"on_poison": "dead_letter"}))
