"""A handler that was given records and wrote no row is reported, and nothing else is done about it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.orm import Session

from seekpoint import Batch, Partition, Poison, Span, events
from support.service import Row, Service, driver
from support.sink_tables import TOPIC, Ground

Does = Callable[[Service, Connection], object]


@pytest.fixture
def service(seekpoint_engine: Engine, seekpoint_schema: str, group: str) -> Service:
    return Service(Ground(seekpoint_engine, seekpoint_schema), seekpoint_engine, group)


def reported(service: Service) -> list[tuple[tuple[Span, ...], int]]:
    return [(one.spans, one.records) for one in service.seen if isinstance(one, events.HandlerWroteNothing)]


def insert(service: Service, tx: Connection, how: str = "") -> Any:
    return tx.execute(text(f"INSERT INTO {service.t} SELECT 1, 'x' {how}"))


def rolled_back(service: Service, tx: Connection) -> object:
    with tx.begin_nested() as savepoint:
        insert(service, tx)
        savepoint.rollback()
    return None


def rolled_back_within(service: Service, tx: Connection) -> None:
    with tx.begin_nested() as outer:
        with tx.begin_nested():
            insert(service, tx)
        outer.rollback()


def rolled_back_by_driver(service: Service, tx: Connection) -> None:
    with driver(tx).transaction() as savepoint:
        insert(service, tx)
        raise psycopg.Rollback(savepoint)


def orm(service: Service, tx: Connection, then: Callable[[Session], object] = lambda session: None) -> None:
    tx.execution_options(schema_translate_map={"here": service.ground.schema})
    with Session(tx, join_transaction_mode="create_savepoint") as session:
        session.add(Row(id=1, v="x"))
        then(session)


def by_one_cursor(service: Service, tx: Connection, *, last: bool) -> None:
    with driver(tx).cursor() as cursor:
        cursor.execute(f"INSERT INTO {service.t} SELECT 1, 'x' WHERE %s", (not last,))
        cursor.execute(f"INSERT INTO {service.t} SELECT 1, 'x' WHERE %s", (last,))


def by_copy(service: Service, tx: Connection) -> None:
    with driver(tx).cursor().copy(f"COPY {service.t} FROM STDIN") as copy:
        copy.write_row((1, "x"))


def by_function(service: Service, tx: Connection) -> None:
    service.ground.sql("CREATE FUNCTION put() RETURNS void LANGUAGE sql BEGIN ATOMIC INSERT INTO t VALUES (1); END")
    tx.execute(text(f'SELECT "{service.ground.schema}".put()'))


NOTHING: dict[str, Does] = {
    "nothing was sent": lambda s, tx: None,
    "a question": lambda s, tx: tx.execute(text(f"SELECT count(*), max(id) FROM {s.t} WHERE id IN (1, 2)")).all(),
    "rows locked": lambda s, tx: tx.execute(text(f"SELECT id FROM {s.t} FOR NO KEY UPDATE")),
    "an insert of none": lambda s, tx: insert(s, tx, "WHERE false"),
    "an update of none": lambda s, tx: tx.execute(text(f"UPDATE {s.t} SET v = 'y'")),
    "many of none": lambda s, tx: tx.execute(
        text(f"INSERT INTO {s.t} SELECT :n, 'x' WHERE false"), [{"n": n} for n in range(3)]
    ),
    "returning none": lambda s, tx: tx.execute(text(f"DELETE FROM {s.t} RETURNING id")).all(),
    "a setting": lambda s, tx: tx.exec_driver_sql("SET LOCAL work_mem = '7MB'"),
    "rolled back": rolled_back,
    "rolled back within": rolled_back_within,
    "rolled back by the driver": rolled_back_by_driver,
    "the ORM without commit": lambda s, tx: orm(s, tx, Session.flush),
    "the ORM without flush": orm,
}
SOMETHING: dict[str, Does] = {
    "an insert": insert,
    "an insert among others": lambda s, tx: (insert(s, tx, "WHERE false"), insert(s, tx), insert(s, tx, "WHERE false")),
    "many": lambda s, tx: tx.execute(text(f"INSERT INTO {s.t} VALUES (:n, 'x')"), [{"n": n} for n in range(3)]),
    "returning": lambda s, tx: tx.execute(text(f"INSERT INTO {s.t} VALUES (1, 'x') RETURNING id")).all(),
    "before a savepoint": lambda s, tx: insert(s, tx) and rolled_back(s, tx),
    "after a savepoint": lambda s, tx: rolled_back(s, tx) or insert(s, tx),
    "in a savepoint": lambda s, tx: orm(s, tx, Session.commit),
    "one cursor, first": lambda s, tx: by_one_cursor(s, tx, last=False),
    "one cursor, last": lambda s, tx: by_one_cursor(s, tx, last=True),
    "copy": by_copy,
    "several commands": lambda s, tx: tx.exec_driver_sql(f"SELECT 1; INSERT INTO {s.t} VALUES (1, 'x')"),
    "a WITH": lambda s, tx: tx.execute(text(f"WITH w AS (INSERT INTO {s.t} VALUES (1, 'x') RETURNING id) TABLE w")),
    "a function, which nobody knows": by_function,
    "a DO block, which nobody knows": lambda s, tx: tx.exec_driver_sql("DO $$ BEGIN END $$"),
}


@pytest.mark.parametrize("pipeline_mode", [True, False])
@pytest.mark.parametrize("does", NOTHING)
def test_a_handler_that_wrote_no_row_is_reported(service: Service, does: str, pipeline_mode: bool) -> None:
    """I4: the offset has passed the records, and there is no row."""
    service.run(lambda tx, batch: NOTHING[does](service, tx) and None, ["a", "b"], ["c"], pipeline_mode=pipeline_mode)
    at = Partition(TOPIC, 0)
    assert reported(service) == [((Span(at, 0, 2),), 2), ((Span(at, 2, 3),), 1)], "once a batch"
    assert not any(isinstance(one, events.Bisecting) for one in service.seen)


@pytest.mark.parametrize("pipeline_mode", [True, False])
@pytest.mark.parametrize("does", SOMETHING)
def test_a_handler_that_wrote_or_may_have_written_is_not(service: Service, does: str, pipeline_mode: bool) -> None:
    service.run(lambda tx, batch: SOMETHING[does](service, tx) and None, ["a", "b"], pipeline_mode=pipeline_mode)
    assert reported(service) == []


def test_nothing_is_reported_while_bisecting(service: Service) -> None:
    def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
        if any(r.value == "bad" for r in batch):
            raise Poison("one of them")

    service.run(handle, ["a", "bad", "c"], ["d"], on_poison="dead_letter")
    assert [records for _, records in reported(service)] == [1]


def test_sinks_alone_are_no_handler(service: Service) -> None:
    sink = service.ground.append("v text", name="sunk", columns=["v"], row=lambda r: None)
    service.run(None, ["a", "b"], sinks=[sink])
    assert reported(service) == []


def test_it_is_logged_once_a_minute(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="seekpoint.events"):
        service.run(lambda tx, batch: None, *[[str(n)] for n in range(5)])
    assert len(reported(service)) == 5
    (line,) = [one for one in caplog.records if "HandlerWroteNothing" in one.getMessage()]
    assert line.levelno == logging.WARNING
    assert service.group in line.getMessage()
