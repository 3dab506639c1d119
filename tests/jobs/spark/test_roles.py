"""A group whose services have no rights but those of ``seekpoint db roles``: its worker, its reload, its exporter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import Engine

from jobs.spark.orders import expected
from seekpoint.admin import Admin
from seekpoint.errors import ReloadRefused
from seekpoint.jobs.reload import Reload
from seekpoint.ledger.roles import Role
from seekpoint.metrics import LedgerGauges, Samples, catalogue
from seekpoint.postgres.engine import postgres_engine
from seekpoint.spark import SparkStager
from support.ledger_roles import LedgerRoles
from support.reload_orders import PLAIN, Shop, of


@pytest.fixture
def roles(shop: Shop) -> Iterator[LedgerRoles]:
    """The roles of the shop's ledger; the shop's tables are their targets."""
    made = LedgerRoles(shop.engine.url, shop.schema, owner=shop.engine.url.username)
    made.script(f"{shop.schema}.orders")
    yield made
    made.drop()


@pytest.fixture
def engine_of(roles: LedgerRoles) -> Iterator[Callable[[Role], Engine]]:
    """``engine_of(role)``: an engine of a login that has the role."""
    engines: list[Engine] = []

    def make(role: Role) -> Engine:
        engines.append(postgres_engine(roles.login(role)))
        return engines[-1]

    yield make
    for engine in engines:
        engine.dispose()


@pytest.mark.long
def test_each_service_runs_with_the_rights_of_its_role(  # noqa: PLR0917 -- fixtures
    shop: Shop,
    spark: SparkSession,
    unread: Callable[[str], str],
    roles: LedgerRoles,
    engine_of: Callable[[Role], Engine],
    tmp_path: Path,
) -> None:
    """The reload's driver and Spark's tasks have one login: what a run stages belongs to it."""
    pipeline, writer, kafka = unread(PLAIN), engine_of(Role.WRITER), {"bootstrap.servers": shop.brokers}
    worker = shop.run_worker(shop.pipeline(), engine=writer)
    for partition in (0, 1):
        worker.reached(shop.topic, 100, partition)
    worker.stop()
    states = "SELECT state FROM {schema}.worker"
    assert shop.execute(states) == [("ended",)], "a worker writes what is for display, too"

    login = roles.login(Role.STAGER)
    secret = tmp_path / "pgpass"
    secret.write_text(f"*:*:*:{login.username}:{login.password}\n")
    secret.chmod(0o600)
    tasks = login._replace(password=None).update_query_dict({"passfile": str(secret)}).render_as_string()
    stager = SparkStager(spark, kafka, database=tasks, schema=shop.schema, range_records=1)
    reload = Reload([pipeline], login, kafka, schema=shop.schema, stager=stager, range_records=40)
    with pytest.raises(ReloadRefused, match="of whom this role is no member: use strategy 'merge'"):
        reload.open(strategy="swap")
    reload.run(reload.open())
    assert shop.rows() == expected()
    assert shop.schemas() == []

    shop.put([of(5000, 7, 1)])
    newer = shop.run_worker(shop.pipeline(version=2), engine=writer)
    newer.finish(shop.topic, 101)
    assert (5000, 14, 1) in shop.rows()
    samples = Samples()
    LedgerGauges(engine_of(Role.READER), schema=shop.schema, kafka=kafka).add_to(samples)
    assert samples.of(catalogue.LEDGER_UP) == samples.of(catalogue.KAFKA_UP) == {(): 1}
    assert samples.of(catalogue.LAG) == {(shop.group, shop.topic, str(n)): 0 for n in (0, 1)}
    assert Admin(engine_of(Role.OPERATOR), kafka, schema=shop.schema).doctor(Role.OPERATOR).is_well
    reload.engine.dispose()
