"""The test kit's faults: pipelines that write exactly once pass, and those that do not are found."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, text

from seekpoint import Append, Batch, Bytes, Pipeline, Poison
from seekpoint import schema as ledger_schema
from seekpoint.errors import ConfigError
from seekpoint.records import RawRecord, Record
from seekpoint.testing import check_exactly_once, raw
from seekpoint.testing.chaos import FAULTS

TOPIC = "orders"
Handler = Callable[[Connection, Batch[Any, Any]], Any]


@pytest.fixture
def table(seekpoint_engine: Engine, seekpoint_schema: str) -> str:
    """A table without rows, with partition, offset and a serial number."""
    with seekpoint_engine.begin() as tx:
        tx.execute(text(f'CREATE TABLE "{seekpoint_schema}".applied (p int, o bigint, id bigserial)'))
    return f"{seekpoint_schema}.applied"


def records(count: int = 30) -> list[RawRecord]:
    """Records of three partitions."""
    return [raw(str(n).encode(), topic=TOPIC, partition=n % 3, offset=n // 3) for n in range(count)]


def insert(tx: Connection, table: str, batch: Batch[Any, Any]) -> None:
    """Write a row for each record."""
    rows = [{"p": record.partition, "o": record.offset} for record in batch]
    tx.execute(text(f"INSERT INTO {table} (p, o) VALUES (:p, :o)"), rows)


def handled(group: str, table: str, handle: Handler) -> Pipeline:
    """A pipeline with this handler, which writes the table."""
    return Pipeline(group, topics=TOPIC, value=Bytes(), handle=handle, writes=[table])


def rows_of(engine: Engine, query: str) -> list[Any]:
    """The rows of a query."""
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text(query))]


# -- pipelines that write exactly once ----------------------------------------------------------------------


def appending(group: str, table: str) -> Pipeline:
    """A pipeline with a sink."""
    sink = Append(table, columns=["p", "o"], row=lambda record: (record.partition, record.offset))
    return Pipeline(group, topics=TOPIC, value=Bytes(), sinks=[sink])


def with_handler(group: str, table: str) -> Pipeline:
    """A pipeline with a handler."""
    return handled(group, table, lambda tx, batch: insert(tx, table, batch))


def with_async_handler(group: str, table: str) -> Pipeline:
    """A pipeline with an async handler."""

    async def handle(tx: Any, batch: Batch[Any, Any]) -> None:
        rows = [{"p": record.partition, "o": record.offset} for record in batch]
        await tx.execute(text(f"INSERT INTO {table} (p, o) VALUES (:p, :o)"), rows)

    return handled(group, table, handle)


@pytest.mark.parametrize("declare", [appending, with_handler, with_async_handler])
def test_a_pipeline_that_writes_by_its_transaction_survives_each_fault(
    declare: Callable[[str, str], Pipeline], group: str, table: str, seekpoint_engine: Engine
) -> None:
    survived = check_exactly_once(declare(group, table), seekpoint_engine, records(), ignore=["id"], runs=3)
    print(survived)
    assert [fault for fault in FAULTS if not survived.faults[fault]] == []
    assert survived.transactions > sum(survived.faults.values()) > 10
    assert rows_of(seekpoint_engine, f"SELECT * FROM {table}") == [], "emptied at the end"


def test_dead_letters_are_those_of_a_run_without_faults(group: str, table: str, seekpoint_engine: Engine) -> None:
    def row(record: Record[bytes, Any]) -> tuple[int, int]:
        if record.offset == 4:
            raise Poison("no order")
        return record.partition, record.offset

    sink = Append(table, columns=["p", "o"], row=row)
    pipeline = Pipeline(group, topics=TOPIC, value=Bytes(), sinks=[sink], on_poison="dead_letter")
    survived = check_exactly_once(pipeline, seekpoint_engine, records(), ignore=["id"], runs=2)
    assert sum(survived.faults.values()) > 0, survived


def test_a_function_makes_the_pipeline_again_after_each_crash(group: str, table: str, seekpoint_engine: Engine) -> None:
    counted = count()

    def make() -> Pipeline:
        """A handler that counts in memory what it has written, as its process must not."""
        next(counted)
        written: set[tuple[int, int]] = set()

        def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
            assert written.isdisjoint((record.partition, record.offset) for record in batch)
            insert(tx, table, batch)

        return handled(group, table, handle)

    survived = check_exactly_once(make, seekpoint_engine, records(), ignore=["id"], runs=2)
    crashes = sum(number for fault, number in survived.faults.items() if fault.startswith("crash"))
    assert next(counted) > crashes > 0, survived


# -- pipelines that do not ----------------------------------------------------------------------------------


def test_rows_of_another_connection_are_found(group: str, table: str, seekpoint_engine: Engine) -> None:
    def handle(_: Connection, batch: Batch[Any, Any]) -> None:
        with seekpoint_engine.begin() as other:
            insert(other, table, batch)

    with pytest.raises(AssertionError, match=r"not expected: \(\d, \d+\).*; after .*crash .*; seed=7, run 0"):
        check_exactly_once(handled(group, table, handle), seekpoint_engine, records(90), ignore=["id"], seed=7)


def remembering(group: str, table: str) -> Pipeline:
    """A pipeline whose handler leaves out records that it has seen, which it keeps in memory."""
    seen: set[tuple[int, int]] = set()

    def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
        new = [record for record in batch if (record.partition, record.offset) not in seen]
        seen.update((record.partition, record.offset) for record in new)
        if new:
            insert(tx, table, Batch(new))

    return handled(group, table, handle)


def test_state_that_survives_a_rollback_is_found(group: str, table: str, seekpoint_engine: Engine) -> None:
    with pytest.raises(AssertionError, match=r"missing: \(\d, \d+\)"):
        check_exactly_once(remembering(group, table), seekpoint_engine, records(), ignore=["id"])


def test_state_that_survives_a_lost_commit_in_one_process_is_found(
    group: str, table: str, seekpoint_engine: Engine
) -> None:
    """COMMIT is not sent, and the same process applies the records again; after a crash another one does."""

    def make() -> Pipeline:
        return remembering(group, table)

    with pytest.raises(AssertionError, match=r"missing: \(\d, \d+\).*; after .*COMMIT lost"):
        check_exactly_once(make, seekpoint_engine, records(), ignore=["id"])


def test_rows_that_depend_on_the_batch_are_found(group: str, table: str, seekpoint_engine: Engine) -> None:
    def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
        tx.execute(text(f"INSERT INTO {table} (p, o) VALUES (-1, :n)"), {"n": len(batch)})

    with pytest.raises(AssertionError, match=r"missing: \(-1, 30\); not expected: \(-1, \d+\)"):
        check_exactly_once(handled(group, table, handle), seekpoint_engine, records(), ignore=["id"], runs=1)
    assert rows_of(seekpoint_engine, f"SELECT * FROM {table}") == [], "emptied at the end, also after an error"


def test_rows_that_the_handler_needs_are_there_in_each_run(group: str, table: str, seekpoint_engine: Engine) -> None:
    def prepare(tx: Connection) -> None:
        tx.execute(text(f"INSERT INTO {table} (p, o) VALUES (0, 0), (1, 0), (2, 0)"))

    def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
        for record in batch:
            tx.execute(text(f"UPDATE {table} SET o = o + 1 WHERE p = :p"), {"p": record.partition})

    pipeline = handled(group, table, handle)
    check_exactly_once(pipeline, seekpoint_engine, records(), ignore=["id"], prepare=prepare, runs=2)
    assert rows_of(seekpoint_engine, f"SELECT * FROM {table}") == []


# -- what is refused ----------------------------------------------------------------------------------------


def test_a_table_with_rows_is_refused_and_not_emptied(group: str, table: str, seekpoint_engine: Engine) -> None:
    with seekpoint_engine.begin() as tx:
        tx.execute(text(f"INSERT INTO {table} VALUES (1, 1)"))
    with pytest.raises(
        ConfigError, match=r"applied has rows, and would be emptied: use a table that only this test uses"
    ):
        check_exactly_once(appending(group, table), seekpoint_engine, records())
    assert rows_of(seekpoint_engine, f"SELECT p FROM {table}") == [(1,)]


def test_a_handlers_tables_must_be_known(group: str, table: str, seekpoint_engine: Engine) -> None:
    pipeline = Pipeline(group, topics=TOPIC, value=Bytes(), handle=lambda tx, batch: insert(tx, table, batch))
    with pytest.raises(ConfigError, match=r"its tables are not known; declare writes=\[\.\.\.\], or name tables="):
        check_exactly_once(pipeline, seekpoint_engine, records())
    survived = check_exactly_once(pipeline, seekpoint_engine, records(), tables=[table], ignore=["id"], runs=1)
    assert survived.transactions > 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"tables": "applied"},
            r"tables= and ignore= must be lists of names, such as \['name'\], got 'applied' and \(\)",
        ),
        ({"ignore": "id"}, r"tables= and ignore= must be lists of names, such as \['name'\], got \(\) and 'id'"),
        ({"tables": ["nowhere"]}, "the table 'nowhere' does not exist"),
        ({"runs": 0}, "runs must be at least 1, got 0"),
    ],
)
def test_options_that_would_check_something_else_are_refused(
    group: str, table: str, seekpoint_engine: Engine, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_exactly_once(appending(group, table), seekpoint_engine, records(), **options)


def test_a_handlers_tables_must_be_known_also_with_a_sink(group: str, table: str, seekpoint_engine: Engine) -> None:
    sink = Append(table, columns=["p", "o"], row=lambda record: (record.partition, record.offset))
    pipeline = Pipeline(group, topics=TOPIC, value=Bytes(), sinks=[sink], handle=lambda _tx, _batch: None)
    with pytest.raises(ConfigError, match="its tables are not known"):
        check_exactly_once(pipeline, seekpoint_engine, records())


def test_a_table_that_another_session_has_locked_is_named(
    group: str, table: str, seekpoint_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seekpoint.testing.chaos._LOCK_WAIT", 1)
    with seekpoint_engine.begin() as other:
        other.execute(text(f"SELECT FROM {table}"))
        with pytest.raises(AssertionError, match="applied: another session has used a table for 1 s in an open trans"):
            check_exactly_once(appending(group, table), seekpoint_engine, records())


def test_a_check_of_a_table_that_gets_no_row_is_refused(group: str, table: str, seekpoint_engine: Engine) -> None:
    pipeline = handled(group, table, lambda _tx, _batch: None)
    with pytest.raises(ConfigError, match=r"30 records have changed no row of \S+applied: name the right tables="):
        check_exactly_once(pipeline, seekpoint_engine, records())


def test_what_the_handler_raises_is_raised(group: str, table: str, seekpoint_engine: Engine) -> None:
    def handle(_tx: Connection, _batch: Batch[Any, Any]) -> None:
        raise ZeroDivisionError("a mistake")

    with pytest.raises(Exception, match="a mistake"):
        check_exactly_once(handled(group, table, handle), seekpoint_engine, records())


def test_the_ledgers_schema_is_dropped_also_after_an_error(
    group: str, table: str, seekpoint_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []

    def upgrade(engine: Engine, schema: str) -> None:
        names.append(schema)
        ledger_schema.upgrade(engine, schema=schema)

    monkeypatch.setattr("seekpoint.testing.chaos.upgrade", upgrade)
    with pytest.raises(ConfigError, match="have changed no row"):
        check_exactly_once(handled(group, table, lambda _tx, _batch: None), seekpoint_engine, records(3))
    (name,) = names
    assert rows_of(seekpoint_engine, f"SELECT to_regnamespace('{name}')") == [(None,)]


def test_a_column_to_ignore_must_exist(group: str, table: str, seekpoint_engine: Engine) -> None:
    with pytest.raises(ConfigError, match=r"ignore=\['no'\]: \S+applied has no such column: correct the name"):
        check_exactly_once(appending(group, table), seekpoint_engine, records(), ignore=["id", "no"])
