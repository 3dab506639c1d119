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
from support.reload_orders import Shop, doubled, gone, of, shop_on

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

    shared, made = make_url(_address(pytestconfig, "postgres")), f"published_{secrets.token_hex(6)}"
    server = create_engine(shared, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {made}"))
    yield shared.set(database=made).render_as_string(hide_password=False)
    with server.connect() as connection:
        connection.execute(text(f"DROP DATABASE {made} WITH (FORCE)"))
    server.dispose()


@pytest.fixture
def published(shop: Shop) -> Shop:
    shop.execute(PUBLISH)
    return shop


def spoil(shop: Shop) -> None:
    shop.execute("DELETE FROM {schema}.orders WHERE id IN (5, 6)")
    shop.execute("INSERT INTO {schema}.orders (id, amount, at) VALUES (1000, 1, 1)")


@pytest.mark.long
def test_verify_and_merge(published: Shop) -> None:
    """Catch-up passes after the staging, and after the comparison, change and delete rows of the run's own tables."""
    settled(published, RECORDS)
    spoil(published)
    (table,) = published.reload(version=1).verify().tables
    assert (table.missing, table.extra, table.different) == (2, 1, 0)
    reload, driver = staged(published.reload(range_records=20))
    assert published.execute(TAKEN) == [], "nothing of the run is published"
    more = [of(7, 9, 9), gone(8), of(200, 1, 1)]
    settled(published, more)
    reload.run(driver)
    assert published.rows() == doubled([*RECORDS, *more])
    assert published.reload().verify().is_empty


def test_a_table_of_every_record(published: Shop) -> None:
    settled(published, RECORDS[:30], kind="append")
    reloaded(published.reload(pipeline={"kind": "append"}))
    assert published.rows("entries", "id, amount, at") == doubled(RECORDS[:30])


def test_a_batch_and_an_export(published: Shop, tmp_path: Path) -> None:
    published.produce(published.topic, RECORDS, partition=0)
    assert batch(published).run().records == len(RECORDS)
    assert published.rows() == doubled(RECORDS, by=1)
    archive = Archive(tmp_path, published.engine, schema=published.schema)
    kafka = {"bootstrap.servers": published.brokers}
    assert Export(published.engine, kafka, archive, published.group).run().records == len(RECORDS)
    assert published.reload(version=1, archive=archive).verify().is_empty


def test_a_swap_that_subscribers_would_not_see_is_refused_at_the_opening(published: Shop) -> None:
    settled(published, RECORDS)
    with pytest.raises(ReloadRefused, match="cannot be swapped, for it has publication everything: use strategy"):
        published.reload().open(strategy="swap")


def test_rows_without_an_identity_are_found_at_the_opening(published: Shop) -> None:
    published.execute("ALTER TABLE {schema}.orders DROP CONSTRAINT orders_pkey, ADD UNIQUE (id), ALTER id SET NOT NULL")
    published.execute("ALTER TABLE {schema}.orders REPLICA IDENTITY FULL")
    settled(published, RECORDS)
    published.execute("ALTER TABLE {schema}.orders REPLICA IDENTITY DEFAULT")
    assert published.reload(version=1).verify().is_empty
    with pytest.raises(ReloadRefused, match=r"is published .everything. and has no replica identity"):
        published.reload().open()
    published.execute("ALTER TABLE {schema}.orders REPLICA IDENTITY USING INDEX orders_id_key")
    reloaded(published.reload())
    assert published.rows() == doubled(RECORDS)


def test_what_a_swap_publishes_is_logged(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a publication is created between an opening's checks and its row, and dropped afterwards."""
    settled(shop, RECORDS)

    def late(*given: Any) -> list[str]:
        shop.execute(PUBLISH)
        return of_compaction(*given)

    monkeypatch.setattr(opening, "of_compaction", late)
    reload, driver = started(shop.reload(), strategy="swap")
    shop.execute("DROP PUBLICATION everything")
    reload.run(driver)
    logged = "SELECT CAST(relpersistence AS text) FROM pg_class WHERE oid = to_regclass('{schema}.orders')"
    assert shop.execute(logged) == [("p",)]
    assert shop.rows() == doubled(RECORDS)


def test_a_publication_that_is_created_while_a_run_is_open_ends_it(shop: Shop) -> None:
    settled(shop, RECORDS)
    reload, driver = staged(shop.reload())
    shop.execute(PUBLISH)
    with pytest.raises(ReloadRefused, match="publication everything FOR ALL TABLES was created since"):
        reload.run(driver)
    assert reload.runs.get(driver.run.id).state == "failed"
    reloaded(shop.reload())
    assert shop.rows() == doubled(RECORDS)


@pytest.mark.long("some of its cases take seconds")
@pytest.mark.parametrize("stage", [False, True])
def test_a_crash_that_empties_what_was_staged_ends_the_run(
    request: pytest.FixtureRequest, own_postgres: PostgresServer, stage: bool
) -> None:
    """Tables that no publication has are not logged: an empty one must not pass for what the log says."""
    shop = shop_on(request, own_postgres)
    shop.execute(PUBLISH)
    settled(shop, RECORDS)
    before = shop.rows()
    reload, driver = started(shop.reload())
    if stage:
        reload.stage(driver)
    else:
        from seekpoint.jobs.staging.stage import begin_staging

        begin_staging(driver, reload.sources)
    own_postgres.kill()
    own_postgres.start()
    with pytest.raises(ReloadRefused, match="Postgres has crashed since the run was opened"):
        reload.run(driver)
    assert shop.rows() == before
    reloaded(shop.reload())
    assert shop.rows() == doubled(RECORDS)
    shop.engine.dispose()
