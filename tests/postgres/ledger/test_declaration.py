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
from support.ledger_worker import CLUSTER, LedgerWorker, backend, wait_until_blocked

NewLedgerWorker = Callable[..., LedgerWorker]


def stored(worker: LedgerWorker) -> dict[str, tuple[int, list[str] | None, int]]:
    with worker.ledger.engine.connect() as tx:
        rows = tx.execute(group_topic.select(), execution_options=in_schema(worker.ledger.schema))
        return {row.topic: (row.version, row.tables, row.replaced) for row in rows}


@pytest.fixture
def tables(seekpoint_engine: Engine, seekpoint_schema: str) -> tuple[str, str]:
    """Two tables in the test's schema, by their qualified names."""
    names = (f"{seekpoint_schema}.one", f"{seekpoint_schema}.two")
    with seekpoint_engine.begin() as tx:
        for name in names:
            tx.execute(text(f"CREATE TABLE {name} ()"))
    return names


def test_the_first_claim_stores_the_tables_and_another_set_is_refused(
    new_worker: NewLedgerWorker, tables: tuple[str, str]
) -> None:
    """I2: two pipelines under one group name must not divide a topic: the refusal names both sets and the choices."""
    first, two = tables
    here, other = new_worker(tables=[first], positions={0: 0}), new_worker(tables=[two])
    assert stored(here) == {"t": (1, [first], 0)}
    before = here.row(0)
    with pytest.raises(
        DeclarationDiffers, match=f"of topic 't' to {first}, but this pipeline writes them to {two}"
    ) as met:
        other.claim(1)
    assert (met.value.stored, met.value.declared) == ((first,), (two,))
    assert "raise its version=" in str(met.value)
    assert here.row(0) == before
    here.commit({0: 1})
    new_worker(tables={"t": [first]}).claim(1)
    assert other.ledger.differs(["t"]) is not None
    assert here.ledger.differs(["t"]) is None


def test_what_is_stored_between_the_two_steps_of_a_claim_is_compared_too(
    new_worker: NewLedgerWorker, tables: tuple[str, str]
) -> None:
    """I2: the comparison is part of the claim's own transaction."""
    first, two = tables
    here = new_worker(tables=[first], positions={0: 0})
    claimant = Claimant("g", uuid4(), 1, CLUSTER, {"t": here.topic_id}, Declaration.of([two]))
    with pytest.raises(DeclarationDiffers):
        here.ledger._claim_together(claimant, [here.topic_partition(1)], None)


def test_two_first_claims_store_one_set(
    new_worker: NewLedgerWorker, tables: tuple[str, str], threads: ThreadPoolExecutor
) -> None:
    """I2: the group row's lock decides which comes first; the other is refused."""
    first_table, two = tables
    new_worker().claim(0)
    workers = [new_worker(tables=[first_table]), new_worker(tables=[two])]
    start = threading.Barrier(2)

    def first(ledger_worker: LedgerWorker) -> bool:
        start.wait()
        try:
            ledger_worker.claim(0)
        except DeclarationDiffers:
            return False
        return True

    assert sorted(threads.map(first, workers)) == [False, True]


def test_any_set_matches_where_none_is_known(
    new_worker: NewLedgerWorker, tables: tuple[str, str], seekpoint_engine: Engine
) -> None:
    """A ledger from before has none, and a ledger without tables declares none; the first that does stores its own."""
    first, two = tables
    silent = new_worker(positions={0: 0})
    assert stored(silent) == {}
    new_worker(tables=[first]).claim(0)
    silent.claim(0)
    assert stored(silent) == {"t": (1, [first], 0)}
    with seekpoint_engine.begin() as tx:
        tx.execute(group_topic.update().values(tables=None), execution_options=in_schema(silent.ledger.schema))
    new_worker(tables=[two]).claim(0)
    assert stored(silent) == {"t": (1, [two], 0)}


def test_a_topic_of_another_pipeline_is_not_compared(new_worker: NewLedgerWorker, tables: tuple[str, str]) -> None:
    """One group over several pipelines with different topics stays legal."""
    first, two = tables
    here, beside = new_worker(tables={"t": [first]}), new_worker(tables={"u": [two]})
    beside.topic = "u"
    here.claim(0)
    beside.claim(0)
    assert stored(here) == {"t": (1, [first], 0), "u": (1, [two], 0)}


def test_a_higher_version_replaces_the_tables(new_worker: NewLedgerWorker, tables: tuple[str, str]) -> None:
    first, two = tables
    older, newer = new_worker(tables=[first], positions={0: 0}), new_worker(tables=[two], version=2)
    assert newer.ledger.differs(["t"]) is None
    newer.claim(0)
    assert stored(newer) == {"t": (2, [two], 0)}
    with pytest.raises(HandlerOutdated):
        older.claim(0)


def test_an_accepted_declaration_fences_others(
    new_worker: NewLedgerWorker, tables: tuple[str, str], seekpoint_engine: Engine
) -> None:
    """I5: tokens are drawn again; processes from before are outdated, later ones wait."""
    first, two = tables
    running, waiting = new_worker(tables=[first], positions={0: 0, 1: 0}), new_worker(tables=[first, two])
    assert waiting.ledger.differs(["t"]) is not None
    accepting = new_worker(tables=[two], accept_declaration=True)
    assert accepting.ledger.differs(["t"]) is None
    accepting.claim(0)
    assert stored(accepting) == {"t": (1, [two], 1)}
    [action] = accepting.actions()
    assert (action.action, action.reason) == ("declaration", f"records of topic 't': {first} -> {two}")
    del running.claims[0]
    with pytest.raises(Fenced), seekpoint_engine.begin() as tx:
        running.hold(tx)
    with pytest.raises(HandlerOutdated, match=f"to {two}, because a worker with accept_declaration"):
        running.claim(1)
    with pytest.raises(HandlerOutdated):
        waiting.ledger.differs(["t"])
    with pytest.raises(DeclarationDiffers):
        new_worker(tables=[first]).claim(1)
    new_worker(tables=[first], accept_declaration=True, positions={0: 0})
    with pytest.raises(HandlerOutdated):  # it accepts its own declaration at its start, and not again
        accepting.claim(0)


def test_names_are_compared_by_the_catalog(
    new_worker: NewLedgerWorker, tables: tuple[str, str], seekpoint_engine: Engine, seekpoint_schema: str
) -> None:
    """`orders` and `public.orders` are one table, under whichever search_path; a view keeps the name of its table."""
    first, _ = tables

    def under(path: str) -> Any:
        url = seekpoint_engine.url.update_query_dict({"options": f"-c search_path={path}"})
        return new_worker(tables=["one"], engine=url)

    new_worker(tables=[first]).claim(0)
    near = under(f"pg_temp,{seekpoint_schema},public")
    near.claim(0)
    near.ledger.engine.dispose()
    far = under("public")
    with pytest.raises(DeclarationDiffers, match=r"this pipeline writes them to public\.one"):  # which is not there
        far.claim(0)
    far.ledger.engine.dispose()
    with seekpoint_engine.begin() as tx:
        tx.execute(text(f"ALTER TABLE {first} RENAME TO one_g1"))
        tx.execute(text(f"CREATE VIEW {first} AS SELECT * FROM {first}_g1"))
    new_worker(tables=[first]).claim(0)


def test_a_pause_is_met_before_the_tables_are_compared(new_worker: NewLedgerWorker, tables: tuple[str, str]) -> None:
    first, two = tables
    here = new_worker(tables=[first], positions={0: 0})
    here.ledger.pause(reason="a test")
    here.ledger.resume()
    with pytest.raises(DeclarationDiffers):
        new_worker(tables=[two]).claim(0)


def test_the_tables_are_stored_under_the_group_rows_lock(
    new_worker: NewLedgerWorker, tables: tuple[str, str], seekpoint_engine: Engine, threads: ThreadPoolExecutor
) -> None:
    first, _ = tables
    here = new_worker(positions={0: 0})
    declaring = new_worker(tables=[first])
    with seekpoint_engine.begin() as tx:
        tx.execute(text(f'SELECT FROM "{here.ledger.schema}".consumer_group FOR SHARE'))
        claiming = threads.submit(declaring.claim, 0)
        wait_until_blocked(seekpoint_engine, backend(tx))
        assert stored(here) == {}
    claiming.result(30)
    assert stored(here) == {"t": (1, [first], 0)}
