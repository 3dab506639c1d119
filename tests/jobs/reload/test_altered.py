"""Tables that another session alters during a run: a swap would undo the change, or lose it with the old table."""

from __future__ import annotations

import pytest

from seekpoint.errors import ReloadRefused
from support.before_cutover import FIRST, diffed
from support.reload_orders import Shop, doubled

ALTERED = [
    "ALTER TABLE {schema}.orders ADD COLUMN told text",
    "ALTER TABLE {schema}.orders DROP COLUMN note",
    "ALTER TABLE {schema}.orders ALTER COLUMN note SET DEFAULT 'some'",
    "ALTER TABLE {schema}.orders ALTER COLUMN note DROP DEFAULT",
    "ALTER TABLE {schema}.orders ALTER COLUMN note TYPE varchar(50)",
    'ALTER TABLE {schema}.orders ALTER COLUMN note TYPE text COLLATE "C"',
    "ALTER TABLE {schema}.orders ALTER COLUMN note SET STORAGE EXTERNAL",
    "ALTER TABLE {schema}.orders ALTER COLUMN note SET STATISTICS 500",
    "ALTER TABLE {schema}.orders SET (fillfactor = 70)",
    "ALTER TABLE {schema}.orders ALTER COLUMN at DROP NOT NULL",
    "ALTER TABLE {schema}.orders RENAME COLUMN note TO told",
    "ALTER TABLE {schema}.orders ADD CHECK (at >= 0) NOT VALID",
    "ALTER TABLE {schema}.orders DROP CONSTRAINT orders_amount_check",
    "ALTER TABLE {schema}.orders ADD UNIQUE (id, at)",
    "CREATE INDEX ON {schema}.orders (at)",
    "CREATE INDEX ON {schema}.orders (amount) WHERE at > 0",
    "DROP INDEX {schema}.orders_amount_idx",
    "DROP INDEX {schema}.orders_amount_idx; CREATE UNIQUE INDEX orders_amount_idx ON {schema}.orders (amount, id)",
]


@pytest.mark.repeats("altered")
@pytest.mark.parametrize("altered", ALTERED)
def test_a_swap_does_not_undo_what_was_altered_in_mid_run(full: Shop, altered: str) -> None:
    """A migration that went in since the rebuilt table was made like the live one would be lost with it."""
    with diffed(full.reload(), strategy="swap") as (reload, driver, rounds):
        for statement in altered.split("; "):
            full.execute(statement)
        with pytest.raises(ReloadRefused, match=rf"{full.schema}\.orders was altered since it was rebuilt: abort"):
            reload.cut_over(driver, rounds)
    assert reload.runs.get(driver.run.id).state == "failed"
    assert full.rows() == doubled(FIRST, by=1)
    assert full.execute("SELECT version FROM {schema}.consumer_group") == [(1,)]
    reload.run(reload.open(strategy="swap"))
    assert full.rows() == doubled(FIRST)


@pytest.mark.parametrize(
    "altered",
    [
        "ALTER TABLE {schema}.orders ADD COLUMN told text DEFAULT 'x'",
        "ALTER TABLE {schema}.orders DROP COLUMN note",
        "CREATE INDEX ON {schema}.orders (at)",
        "DROP INDEX {schema}.orders_amount_idx",
    ],
)
def test_a_merge_continues_when_only_other_columns_or_indexes_were_altered(full: Shop, altered: str) -> None:
    with diffed(full.reload()) as (reload, driver, rounds):
        full.execute(altered)
        reload.cut_over(driver, rounds)
    assert full.rows() == doubled(FIRST)


def test_an_index_that_was_renamed_in_mid_run_keeps_its_new_name(full: Shop) -> None:
    full.execute("CREATE INDEX orders_b ON {schema}.orders (at)")
    with diffed(full.reload(), strategy="swap") as (reload, driver, rounds):
        full.execute("ALTER INDEX {schema}.orders_amount_idx RENAME TO orders_a")
        reload.cut_over(driver, rounds)
    described = "SELECT indexname, substring(indexdef FROM '[(].*') FROM pg_indexes WHERE schemaname = :schema_ "
    assert full.execute(described + "AND tablename = 'orders' ORDER BY 1", schema_=full.schema) == [
        ("orders_a", "(amount)"),
        ("orders_b", "(at)"),
        ("orders_pkey", "(id)"),
    ]


@pytest.mark.parametrize(
    ("hangs", "named"),
    [
        ("CREATE FUNCTION {schema}.f({schema}.orders) RETURNS integer LANGUAGE sql AS 'SELECT 1'", "function .*f"),
        ("CREATE MATERIALIZED VIEW {schema}.v AS SELECT * FROM {schema}.orders", "materialized view .*v"),
        ("CREATE TABLE {schema}.kept (was {schema}.orders)", "table .*kept"),
    ],
)
def test_what_came_to_hang_on_the_table_in_mid_run_forbids_the_swap(full: Shop, hangs: str, named: str) -> None:
    """Dependencies are checked again under the table's lock: after a swap, they would belong to the old table."""
    with diffed(full.reload(), strategy="swap") as (reload, driver, rounds):
        full.execute(hangs)
        with pytest.raises(ReloadRefused, match=rf"cannot be swapped, for it has {named}.*: use strategy 'merge'"):
            reload.cut_over(driver, rounds)
    assert reload.runs.get(driver.run.id).state == "failed"
    reload.run(reload.open())
    assert full.rows() == doubled(FIRST)
