"""Under a publication FOR ALL TABLES every command works, or says at its opening why not; no subscriber sees a run."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, make_url, text

from seekpoint.errors import ReloadRefused
from seekpoint.jobs.export import Archive, Export
from seekpoint.jobs.reload import open as opening
from seekpoint.jobs.staging.compaction import of_compaction
from seekpoint.testing.servers.postgres import PostgresServer
from support.batch_process import batch
from support.before_cutover import reloaded, settled, staged, started
from support.reload_orders import OrdersGroup, doubled, gone, of, orders_group_on

RECORDS = [of(n % 40, n, n) for n in range(120)] + [gone(3)]
PUBLISH = "CREATE PUBLICATION everything FOR ALL TABLES"
TAKEN = """
SELECT tablename FROM pg_publication_tables
WHERE pubname = 'everything' AND schemaname ~ '^seekpoint_(reload|unlogged|batch)'
"""


@pytest.fixture
def seekpoint_dsn(pytestconfig: pytest.Config, request: pytest.FixtureRequest) -> Iterator[str]:
    """A database of the test's own: the publication has every table of it."""
    from seekpoint.testing.pytest_plugin import _address

    shared, database = make_url(_address(pytestconfig, "postgres")), f"published_{secrets.token_hex(6)}"
    server = create_engine(shared, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {database}"))
    yield shared.set(database=database).render_as_string(hide_password=False)
    with server.connect() as connection:
        connection.execute(text(f"DROP DATABASE {database} WITH (FORCE)"))
    server.dispose()


@pytest.fixture
def published_group(orders_group: OrdersGroup) -> OrdersGroup:
    orders_group.execute(PUBLISH)
    return orders_group


def spoil(orders_group: OrdersGroup) -> None:
    orders_group.execute("DELETE FROM {schema}.orders WHERE id IN (5, 6)")
    orders_group.execute("INSERT INTO {schema}.orders (id, amount, at) VALUES (1000, 1, 1)")


@pytest.mark.long
def test_verify_and_merge(published_group: OrdersGroup) -> None:
    """Catch-up passes after the staging, and after the comparison, change and delete rows of the run's own tables."""
    settled(published_group, RECORDS)
    spoil(published_group)
    (table,) = published_group.reload(version=1).verify().tables
    assert (table.missing, table.extra, table.different) == (2, 1, 0)
    reload, driver = staged(published_group.reload(range_records=20))
    assert published_group.execute(TAKEN) == [], "nothing of the run is published"
    more = [of(7, 9, 9), gone(8), of(200, 1, 1)]
    settled(published_group, more)
    reload.run(driver)
    assert published_group.rows() == doubled([*RECORDS, *more])
    assert published_group.reload().verify().is_empty


def test_a_table_of_every_record(published_group: OrdersGroup) -> None:
    settled(published_group, RECORDS[:30], kind="append")
    reloaded(published_group.reload(pipeline={"kind": "append"}))
    assert published_group.rows("entries", "id, amount, at") == doubled(RECORDS[:30])


def test_a_batch_and_an_export(published_group: OrdersGroup, tmp_path: Path) -> None:
    published_group.produce(published_group.topic, RECORDS, partition=0)
    assert batch(published_group).run().records == len(RECORDS)
    assert published_group.rows() == doubled(RECORDS, by=1)
    archive = Archive(tmp_path, published_group.engine, schema=published_group.schema)
    kafka = {"bootstrap.servers": published_group.brokers}
    assert Export(published_group.engine, kafka, archive, published_group.group).run().records == len(RECORDS)
    assert published_group.reload(version=1, archive=archive).verify().is_empty


def test_a_swap_that_subscribers_would_not_see_is_refused_at_the_opening(published_group: OrdersGroup) -> None:
    settled(published_group, RECORDS)
    with pytest.raises(ReloadRefused, match="cannot be swapped, because it has publication everything: use strategy"):
        published_group.reload().open(strategy="swap")


def test_rows_without_an_identity_are_found_at_the_opening(published_group: OrdersGroup) -> None:
    published_group.execute(
        "ALTER TABLE {schema}.orders DROP CONSTRAINT orders_pkey, ADD UNIQUE (id), ALTER id SET NOT NULL"
    )
    published_group.execute("ALTER TABLE {schema}.orders REPLICA IDENTITY FULL")
    settled(published_group, RECORDS)
    published_group.execute("ALTER TABLE {schema}.orders REPLICA IDENTITY DEFAULT")
    assert published_group.reload(version=1).verify().is_empty
    with pytest.raises(ReloadRefused, match=r"is published .everything. and has no replica identity"):
        published_group.reload().open()
    published_group.execute("ALTER TABLE {schema}.orders REPLICA IDENTITY USING INDEX orders_id_key")
    reloaded(published_group.reload())
    assert published_group.rows() == doubled(RECORDS)


def test_what_a_swap_publishes_is_logged(orders_group: OrdersGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a publication is created between an opening's checks and its row, and dropped afterwards."""
    settled(orders_group, RECORDS)

    def late(*args: Any) -> list[str]:
        orders_group.execute(PUBLISH)
        return of_compaction(*args)

    monkeypatch.setattr(opening, "of_compaction", late)
    reload, driver = started(orders_group.reload(), strategy="swap")
    orders_group.execute("DROP PUBLICATION everything")
    reload.run(driver)
    logged = "SELECT CAST(relpersistence AS text) FROM pg_class WHERE oid = to_regclass('{schema}.orders')"
    assert orders_group.execute(logged) == [("p",)]
    assert orders_group.rows() == doubled(RECORDS)


def test_a_publication_that_is_created_while_a_run_is_open_ends_it(orders_group: OrdersGroup) -> None:
    settled(orders_group, RECORDS)
    reload, driver = staged(orders_group.reload())
    orders_group.execute(PUBLISH)
    with pytest.raises(ReloadRefused, match="publication everything FOR ALL TABLES was created since"):
        reload.run(driver)
    assert reload.runs.get(driver.run.id).state == "failed"
    reloaded(orders_group.reload())
    assert orders_group.rows() == doubled(RECORDS)


@pytest.mark.long("some of its cases take seconds")
@pytest.mark.parametrize("stage", [False, True])
def test_a_crash_that_empties_what_was_staged_ends_the_run(
    request: pytest.FixtureRequest, own_postgres: PostgresServer, stage: bool
) -> None:
    """Tables that no publication has are not logged: an empty one must not pass for what the log says."""
    orders_group = orders_group_on(request, own_postgres)
    orders_group.execute(PUBLISH)
    settled(orders_group, RECORDS)
    before = orders_group.rows()
    reload, driver = started(orders_group.reload())
    if stage:
        reload.stage(driver)
    else:
        from seekpoint.jobs.staging.stage import begin_staging

        begin_staging(driver, reload.sources)
    own_postgres.kill()
    own_postgres.start()
    with pytest.raises(ReloadRefused, match="Postgres has crashed since the run was opened"):
        reload.run(driver)
    assert orders_group.rows() == before
    reloaded(orders_group.reload())
    assert orders_group.rows() == doubled(RECORDS)
    orders_group.engine.dispose()
