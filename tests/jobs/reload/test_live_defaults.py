"""Nothing of a run depends on live defaults: it draws no live number, and no live table is kept from being dropped."""

from __future__ import annotations

from seekpoint.jobs.staging.consolidate import RANGE, stage_missing
from seekpoint.jobs.staging.stage import begin_staging
from support.before_cutover import reloaded, settled, started
from support.reload_orders import OrdersGroup, doubled, of

RECORDS = [of(n, n, n) for n in range(1, 41)]
NUMBERED = """
CREATE SEQUENCE {schema}.counted;
CREATE FUNCTION {schema}.next_number() RETURNS bigint LANGUAGE sql AS $$SELECT nextval('{schema}.counted')$$;
ALTER TABLE {schema}.orders ADD n smallserial, ADD label text NOT NULL DEFAULT 'n-' || nextval('{schema}.counted'),
    ADD called bigint NOT NULL DEFAULT {schema}.next_number();
"""


def drawn(orders_group: OrdersGroup, *sequences: str) -> list[object]:
    return [orders_group.execute(f"SELECT last_value, is_called FROM {{schema}}.{sequence}") for sequence in sequences]


def test_a_verify_draws_no_number_of_the_live_table(orders_group: OrdersGroup) -> None:
    """A worker would find its sequence used up."""
    orders_group.execute(NUMBERED)
    settled(orders_group, RECORDS)
    orders_group.execute("SELECT setval('{schema}.orders_n_seq', 32767)")
    before = drawn(orders_group, "orders_n_seq", "counted")
    for _ in range(2):
        assert orders_group.reload(version=1).verify().is_empty
    assert drawn(orders_group, "orders_n_seq", "counted") == before


def test_a_merge_draws_the_numbers_of_the_rows_that_it_adds(orders_group: OrdersGroup) -> None:
    orders_group.execute(NUMBERED)
    settled(orders_group, RECORDS)
    orders_group.execute("DELETE FROM {schema}.orders WHERE id <= 3")
    reloaded(orders_group.reload())
    assert orders_group.rows() == doubled(RECORDS)
    assert orders_group.execute("SELECT max(n), count(DISTINCT n), count(DISTINCT label) FROM {schema}.orders") == [
        (43, 40, 40)
    ]


def test_what_a_run_left_keeps_no_live_table(orders_group: OrdersGroup) -> None:
    orders_group.execute(NUMBERED)
    settled(orders_group, RECORDS)
    reload, driver = started(orders_group.reload())
    begin_staging(driver, reload.sources)
    stage_missing(driver, reload._stager, RANGE, lambda *_: None)  # between two steps, as a killed driver leaves it
    with orders_group.holding("DROP TABLE {schema}.orders"):
        pass  # rolled back
    reload.stage(driver)
    orders_group.execute("DROP TABLE {schema}.orders")
    assert orders_group.schemas(), "what was staged is there still"


def test_a_swapped_table_draws_on_from_the_live_sequence(orders_group: OrdersGroup) -> None:
    """Rebuilt rows are numbered after the live ones, by the run; from the swap on, the live sequence continues."""
    orders_group.execute(
        "CREATE SEQUENCE {schema}.counted; "
        "ALTER TABLE {schema}.orders ADD n bigint UNIQUE DEFAULT nextval('{schema}.counted')"
    )
    settled(orders_group, RECORDS)
    reload = orders_group.reload()
    before = drawn(orders_group, "counted")
    driver = reload.open(strategy="swap")
    reload.stage(driver)
    assert drawn(orders_group, "counted") == before
    reload.run(driver)
    orders_group.execute("INSERT INTO {schema}.orders (id, amount, at) VALUES (1000, 1, 1)")
    [(least, most, new)] = orders_group.execute(
        "SELECT min(n), max(n), max(n) FILTER (WHERE id = 1000) FROM {schema}.orders"
    )
    assert least > before[0][0][0]  # type: ignore[index]
    assert most == new, "no number twice: the new row's is the highest"
