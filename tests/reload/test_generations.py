"""Tables that are kept in generations: adopted while workers run, reloaded by one row, read in any snapshot."""

from __future__ import annotations

from cutting import FIRST, settled, work_up_to
from seekpoint.reload.generations import Generation, Generations
from shop import Shop, doubled, gone, of


def generations(shop: Shop) -> Generations:
    return Generations(shop.engine, schema=shop.schema)


def adopt(shop: Shop, table: str = "orders") -> Generation:
    return generations(shop).adopt((shop.schema, table))


def tables(shop: Shop) -> list[str]:
    """What there is beside the ledger's own and the shop's other table, whose name begins like the view's."""
    found = shop.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace(:of) AND relkind IN ('r', 'p', 'v') "
        "AND relname LIKE 'orders%' ORDER BY 1",
        of=shop.schema,
    )
    return [row[0] for row in found]


def test_a_table_with_rows_is_adopted_and_reloaded(shop: Shop) -> None:
    settled(shop)
    before = shop.rows()
    adopted = adopt(shop)
    assert shop.rows() == before
    assert (adopted.number, adopted.others, adopted.run) == (1, (), None)
    assert adopted.current == f"{shop.schema}.orders_g1"
    reload = shop.reload()
    outcome = reload.run(reload.open(strategy="generation"))
    assert shop.rows() == doubled(FIRST)
    assert outcome.tries == 1
    (now,) = generations(shop).list()
    assert (now.number, now.others) == (2, ())
    (run,) = reload.runs.list()
    assert (now.run, run.state, run.swept) == (run.id, "cut_over", True)
    assert tables(shop) == sorted(["orders", "orders_generations", now.current.split(".")[1]])
    more = [of(2, 9), of(77, 1), gone(4), *(of(n, 1) for n in range(1000, 1400))]
    shop.produce(shop.topic, more, partition=0)
    work_up_to(shop, len(FIRST) + len(more), version=2)
    assert shop.rows() == doubled(FIRST + more)
    assert not shop.schemas()
