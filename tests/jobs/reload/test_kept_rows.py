"""Triggers, rules and row security that keep the old row: a merge that had no effect on some changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from seekpoint.errors import BatchRefused, ReloadRefused
from seekpoint.jobs.reload import Reload
from support.batch_process import batch, paused
from support.before_cutover import reloaded, started
from support.ledger_roles import ALONE_IN_TRANSACTION
from support.reload_orders import OrdersGroup, doubled, of

RECORDS = [of(n, n, n) for n in range(1, 31)]


def trigger(event: str, body: str) -> str:
    return (
        f"CREATE FUNCTION {{schema}}.keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN {body}; END'; "
        f"CREATE TRIGGER keep BEFORE {event} ON {{schema}}.orders FOR EACH ROW EXECUTE FUNCTION {{schema}}.keep()"
    )


@pytest.mark.parametrize(
    ("hook", "before", "counts"),
    [
        (trigger("UPDATE", "RETURN OLD"), "SELECT 1", "0 rows were not added, 30 not changed and 0 not deleted"),
        (trigger("UPDATE", "RETURN NULL"), "SELECT 1", "0 rows were not added, 30 not changed and 0 not deleted"),
        (
            "CREATE RULE keep AS ON UPDATE TO {schema}.orders DO INSTEAD NOTHING",
            "SELECT 1",
            "0 rows were not added, 30 not changed and 0 not deleted",
        ),
        (
            trigger("DELETE", "RETURN NULL"),
            "INSERT INTO {schema}.orders VALUES (1000, 1, 1)",
            "0 rows were not added, 0 not changed and 1 not deleted",
        ),
        (
            trigger("INSERT", "RETURN NULL"),
            "DELETE FROM {schema}.orders WHERE id = 1",
            "1 rows were not added, 0 not changed and 0 not deleted",
        ),
    ],
)
def test_a_trigger_that_keeps_the_old_row_is_seen(
    applied_group: OrdersGroup, hook: str, before: str, counts: str
) -> None:
    applied_group.execute(before)
    applied_group.execute(hook)
    live = applied_group.rows()
    reload, driver = started(applied_group.reload())
    with pytest.raises(ReloadRefused, match=rf"{counts}, because (trigger|rule) keep"):
        reload.run(driver)
    assert applied_group.rows() == live, "nothing was changed"
    assert reload.runs.get(driver.run.id).state == "failed"


def test_a_trigger_that_changes_what_is_written_is_none_of_these(applied_group: OrdersGroup) -> None:
    applied_group.execute(trigger("INSERT OR UPDATE", "NEW.note = upper(NEW.note); NEW.at = NEW.at + 1; RETURN NEW"))
    reloaded(applied_group.reload())
    assert applied_group.rows() == [(id_, amount, offset + 1) for id_, amount, offset in doubled(RECORDS)]


@pytest.fixture
def as_role(orders_group: OrdersGroup) -> Iterator[Callable[..., Reload]]:
    """A reload as a role that is subject to row security."""
    role = f"{orders_group.schema}_limited"
    orders_group.execute(f"CREATE ROLE {role}")
    orders_group.execute(f"GRANT ALL ON SCHEMA {{schema}} TO {role}")
    orders_group.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA {{schema}} TO {role}")
    orders_group.execute(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA {{schema}} TO {role}")
    _on_database(orders_group, f"GRANT CREATE ON DATABASE {{database}} TO {role}")
    engine = create_engine(orders_group.engine.url, connect_args={"options": f"-crole={role}"})

    def reload_to(version: int) -> Reload:
        brokers = {"bootstrap.servers": orders_group.brokers}
        return Reload([orders_group.pipeline(version=version)], engine, brokers, schema=orders_group.schema)

    yield reload_to
    engine.dispose()
    _on_database(orders_group, f"DROP OWNED BY {role}")
    orders_group.execute(f"DROP ROLE {role}")


def _on_database(orders_group: OrdersGroup, statement: str) -> str:
    """Change a right on the database, while no other test does; returns the database's name."""
    with orders_group.engine.begin() as tx:
        tx.execute(text(ALONE_IN_TRANSACTION))
        database: str = tx.execute(text("SELECT quote_ident(current_database())")).scalar_one()
        tx.execute(text(statement.format(database=database)))
    return database


def test_a_role_that_cannot_create_a_schema_is_refused_at_the_opening(
    applied_group: OrdersGroup, as_role: Callable[..., Any]
) -> None:
    """By a reload, a verify and a batch: with what to grant, and before a run is on record or a group paused."""
    role = f"{applied_group.schema}_limited"
    database = _on_database(applied_group, f"REVOKE CREATE ON DATABASE {{database}} FROM {role}")
    message = rf"role {role} may not create the schema .*: GRANT CREATE ON DATABASE {database} TO {role} "
    for begin in (as_role(2).open, as_role(1).verify):
        with pytest.raises(ReloadRefused, match=message):
            begin()
    applied_group.produce(applied_group.topic, [of(1, 1)], partition=0)
    with pytest.raises(BatchRefused, match=message):
        batch(applied_group, engine=as_role(1).engine).run()
    assert applied_group.reload().runs.list() == []
    assert paused(applied_group) is None


def test_row_security_that_hides_rows_is_refused_at_the_opening(
    applied_group: OrdersGroup, as_role: Callable[..., Any]
) -> None:
    applied_group.execute(
        "ALTER TABLE {schema}.orders ENABLE ROW LEVEL SECURITY; "
        "CREATE POLICY part ON {schema}.orders USING (id < 10) WITH CHECK (true)"
    )
    for begin in (as_role(2).open, as_role(1).verify):
        with pytest.raises(ReloadRefused, match="row security may hide rows from this role"):
            begin()
    assert applied_group.reload(version=1).verify().is_empty, "its owner sees all rows"


@pytest.mark.long
def test_row_security_that_keeps_the_old_row_is_seen(applied_group: OrdersGroup, as_role: Callable[..., Any]) -> None:
    applied_group.execute(
        "ALTER TABLE {schema}.orders ENABLE ROW LEVEL SECURITY; "
        "CREATE POLICY sees ON {schema}.orders FOR SELECT USING (true); "
        "CREATE POLICY may ON {schema}.orders FOR UPDATE USING (id < 10)"
    )
    reload = as_role(2)
    live = applied_group.rows()
    with pytest.raises(ReloadRefused, match=r"21 not changed and 0 not deleted, because row security prevented it"):
        reload.run(reload.open())
    assert applied_group.rows() == live
    applied_group.execute("ALTER POLICY may ON {schema}.orders USING (true)")
    assert as_role(1).verify().is_empty
    reload.run(reload.open())
    assert applied_group.rows() == doubled(RECORDS)
