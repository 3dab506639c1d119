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
from seekpoint.ledger import Ledger
from seekpoint.ledger.roles import Role
from seekpoint.metrics import LedgerGauges, Samples, catalogue
from seekpoint.postgres.engine import postgres_engine
from seekpoint.spark import SparkStager, read
from support.ledger_roles import LedgerRoles
from support.reload_orders import PLAIN, OrdersGroup, of


@pytest.fixture
def roles(orders_group: OrdersGroup) -> Iterator[LedgerRoles]:
    """The roles of the group's ledger; the group's tables are their targets."""
    roles = LedgerRoles(orders_group.engine.url, orders_group.schema, owner=orders_group.engine.url.username)
    roles.script(f"{orders_group.schema}.orders")
    yield roles
    roles.drop()


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
    orders_group: OrdersGroup,
    spark: SparkSession,
    unread_pipeline: Callable[[str], str],
    roles: LedgerRoles,
    engine_of: Callable[[Role], Engine],
    tmp_path: Path,
) -> None:
    """The reload's driver and Spark's tasks have one login: what a run stages belongs to it."""
    pipeline, writer, kafka = (
        unread_pipeline(PLAIN),
        engine_of(Role.WRITER),
        {"bootstrap.servers": orders_group.brokers},
    )
    worker = orders_group.run_worker(orders_group.pipeline(), engine=writer)
    for partition in (0, 1):
        worker.reached(orders_group.topic, 100, partition)
    worker.stop()
    states = "SELECT state FROM {schema}.worker WHERE consumer_group = :g"
    assert orders_group.execute(states, g=orders_group.group) == [("ended",)], (
        "a worker writes what is for display, too"
    )

    operator = engine_of(Role.OPERATOR)
    applied = read(
        spark, Ledger(operator, orders_group.group, schema=orders_group.schema), orders_group.group, kafka=kafka
    )
    assert applied.count() == 200, "an operator reads what was applied"

    login = roles.login(Role.STAGER)
    secret = tmp_path / "pgpass"
    secret.write_text(f"*:*:*:{login.username}:{login.password}\n")
    secret.chmod(0o600)
    tasks = login._replace(password=None).update_query_dict({"passfile": str(secret)}).render_as_string()
    stager = SparkStager(spark, kafka, database=tasks, schema=orders_group.schema, range_records=1)
    reload = Reload([pipeline], login, kafka, schema=orders_group.schema, stager=stager, range_records=40)
    with pytest.raises(ReloadRefused, match="of whom this role is no member: use strategy 'merge'"):
        reload.open(strategy="swap")
    reload.run(reload.open())
    assert orders_group.rows() == expected()
    assert orders_group.schemas() == []

    orders_group.put([of(5000, 7, 1)])
    newer = orders_group.run_worker(orders_group.pipeline(version=2), engine=writer)
    newer.finish(orders_group.topic, 101)
    assert (5000, 14, 1) in orders_group.rows()
    samples = Samples()
    LedgerGauges(engine_of(Role.READER), schema=orders_group.schema, kafka=kafka).add_to(samples)
    assert samples.of(catalogue.LEDGER_UP) == samples.of(catalogue.KAFKA_UP) == {(): 1}
    assert samples.of(catalogue.LAG) == {(orders_group.group, orders_group.topic, str(n)): 0 for n in (0, 1)}
    assert Admin(operator, kafka, schema=orders_group.schema).doctor(Role.OPERATOR).is_well
    reload.engine.dispose()
