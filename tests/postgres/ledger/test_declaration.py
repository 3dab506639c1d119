"""Which tables a topic's records are written to: one set per group and topic, compared by every claim."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Engine, text

from seekpoint.errors import DeclarationDiffers, Fenced, HandlerOutdated
from seekpoint.ledger.claim import Claimant
from seekpoint.ledger.declaration import Declaration
from seekpoint.ledger.tables import group_topic, in_schema
from support.ledger_desk import CLUSTER, Desk, backend, wait_until_blocked

Desks = Callable[..., Desk]


def stored(desk: Desk) -> dict[str, tuple[int, list[str] | None, int]]:
    with desk.ledger.engine.connect() as tx:
        rows = tx.execute(group_topic.select(), execution_options=in_schema(desk.ledger.schema))
        return {row.topic: (row.version, row.tables, row.replaced) for row in rows}


@pytest.fixture
def tables(seekpoint_engine: Engine, seekpoint_schema: str) -> tuple[str, str]:
    """Two tables in the test's schema, by their qualified names."""
    names = (f"{seekpoint_schema}.one", f"{seekpoint_schema}.two")
    with seekpoint_engine.begin() as tx:
        for name in names:
            tx.execute(text(f"CREATE TABLE {name} ()"))
    return names


def test_the_first_claim_stores_the_tables_and_another_set_is_refused(desk: Desks, tables: tuple[str, str]) -> None:
    """I2: two pipelines under one group name must not divide a topic: the refusal names both sets and the choices."""
    one, two = tables
    here, other = desk(tables=[one], at={0: 0}), desk(tables=[two])
    assert stored(here) == {"t": (1, [one], 0)}
    before = here.row(0)
    with pytest.raises(DeclarationDiffers, match=f"of topic 't' to {one}, this pipeline writes them to {two}") as met:
        other.claim(1)
    assert (met.value.stored, met.value.declared) == ((one,), (two,))
    assert "raise its version=" in str(met.value)
    assert here.row(0) == before
    here.commit({0: 1})
    desk(tables={"t": [one]}).claim(1)
    assert other.ledger.differs(["t"]) is not None
    assert here.ledger.differs(["t"]) is None


def test_what_is_stored_between_the_two_steps_of_a_claim_is_compared_too(desk: Desks, tables: tuple[str, str]) -> None:
    """I2: the comparison is part of the claim's own transaction."""
    one, two = tables
    here = desk(tables=[one], at={0: 0})
    claimant = Claimant("g", uuid4(), 1, CLUSTER, {"t": here.topic_id}, Declaration.of([two]))
    with pytest.raises(DeclarationDiffers):
        here.ledger._claim_together(claimant, [here.at(1)], None)


def test_two_first_claims_store_one_set(desk: Desks, tables: tuple[str, str], elsewhere: ThreadPoolExecutor) -> None:
    """I2: the group row's lock decides which comes first; the other is refused."""
    one, two = tables
    desk().claim(0)
    desks = [desk(tables=[one]), desk(tables=[two])]
    start = threading.Barrier(2)

    def first(at: Desk) -> bool:
        start.wait()
        try:
            at.claim(0)
        except DeclarationDiffers:
            return False
        return True

    assert sorted(elsewhere.map(first, desks)) == [False, True]


def test_any_set_matches_where_none_is_known(desk: Desks, tables: tuple[str, str], seekpoint_engine: Engine) -> None:
    """A ledger from before has none, and a Ledger without tables declares none; the first that does stores its own."""
    one, two = tables
    silent = desk(at={0: 0})
    assert stored(silent) == {}
    desk(tables=[one]).claim(0)
    silent.claim(0)
    assert stored(silent) == {"t": (1, [one], 0)}
    with seekpoint_engine.begin() as tx:
        tx.execute(group_topic.update().values(tables=None), execution_options=in_schema(silent.ledger.schema))
    desk(tables=[two]).claim(0)
    assert stored(silent) == {"t": (1, [two], 0)}


def test_a_topic_of_another_pipeline_is_not_compared(desk: Desks, tables: tuple[str, str]) -> None:
    """One group over several pipelines with different topics stays legal."""
    one, two = tables
    here, beside = desk(tables={"t": [one]}), desk(tables={"u": [two]})
    beside.topic = "u"
    here.claim(0)
    beside.claim(0)
    assert stored(here) == {"t": (1, [one], 0), "u": (1, [two], 0)}


def test_a_higher_version_replaces_the_tables(desk: Desks, tables: tuple[str, str]) -> None:
    one, two = tables
    older, newer = desk(tables=[one], at={0: 0}), desk(tables=[two], version=2)
    assert newer.ledger.differs(["t"]) is None
    newer.claim(0)
    assert stored(newer) == {"t": (2, [two], 0)}
    with pytest.raises(HandlerOutdated):
        older.claim(0)


def test_an_accepted_declaration_fences_others(desk: Desks, tables: tuple[str, str], seekpoint_engine: Engine) -> None:
    """I5: tokens are drawn again; processes from before are outdated, later ones wait."""
    one, two = tables
    running, waiting = desk(tables=[one], at={0: 0, 1: 0}), desk(tables=[one, two])
    assert waiting.ledger.differs(["t"]) is not None
    accepting = desk(tables=[two], accept_declaration=True)
    assert accepting.ledger.differs(["t"]) is None
    accepting.claim(0)
    assert stored(accepting) == {"t": (1, [two], 1)}
    [action] = accepting.actions()
    assert (action.action, action.reason) == ("declaration", f"records of topic 't': {one} -> {two}")
    del running.claims[0]
    with pytest.raises(Fenced), seekpoint_engine.begin() as tx:
        running.hold(tx)
    with pytest.raises(HandlerOutdated, match=f"to {two} since a worker that accepts its declaration"):
        running.claim(1)
    with pytest.raises(HandlerOutdated):
        waiting.ledger.differs(["t"])
    with pytest.raises(DeclarationDiffers):
        desk(tables=[one]).claim(1)
    desk(tables=[one], accept_declaration=True, at={0: 0})
    with pytest.raises(HandlerOutdated):  # it accepts its own declaration at its start, and not again
        accepting.claim(0)


def test_names_are_compared_by_the_catalog(
    desk: Desks, tables: tuple[str, str], seekpoint_engine: Engine, seekpoint_schema: str
) -> None:
    """`orders` and `public.orders` are one table, under whichever search_path; a view keeps the name of its table."""
    one, _ = tables

    def under(path: str) -> Any:
        url = seekpoint_engine.url.update_query_dict({"options": f"-c search_path={path}"})
        return desk(tables=["one"], engine=url)

    desk(tables=[one]).claim(0)
    near = under(f"pg_temp,{seekpoint_schema},public")
    near.claim(0)
    near.ledger.engine.dispose()
    far = under("public")
    with pytest.raises(DeclarationDiffers, match=r"this pipeline writes them to public\.one"):  # which is not there
        far.claim(0)
    far.ledger.engine.dispose()
    with seekpoint_engine.begin() as tx:
        tx.execute(text(f"ALTER TABLE {one} RENAME TO one_g1"))
        tx.execute(text(f"CREATE VIEW {one} AS SELECT * FROM {one}_g1"))
    desk(tables=[one]).claim(0)


def test_a_pause_is_met_before_the_tables_are_compared(desk: Desks, tables: tuple[str, str]) -> None:
    one, two = tables
    here = desk(tables=[one], at={0: 0})
    here.ledger.pause(reason="a test")
    here.ledger.resume()
    with pytest.raises(DeclarationDiffers):
        desk(tables=[two]).claim(0)


def test_the_tables_are_stored_under_the_group_rows_lock(
    desk: Desks, tables: tuple[str, str], seekpoint_engine: Engine, elsewhere: ThreadPoolExecutor
) -> None:
    one, _ = tables
    here = desk(at={0: 0})
    declaring = desk(tables=[one])
    with seekpoint_engine.begin() as tx:
        tx.execute(text(f'SELECT FROM "{here.ledger.schema}".consumer_group FOR SHARE'))
        claiming = elsewhere.submit(declaring.claim, 0)
        wait_until_blocked(seekpoint_engine, backend(tx))
        assert stored(here) == {}
    claiming.result(30)
    assert stored(here) == {"t": (1, [one], 0)}
