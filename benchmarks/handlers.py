"""What each style of handler costs.

python benchmarks/handlers.py [--quick]

One transaction of ``SIZE`` records at a time, through the worker's unit of work without a broker; all styles alternate
in one process. ``to_append`` is the ratio to the sink's speed.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

from sqlalchemy import Connection, insert, text
from sqlalchemy.orm import DeclarativeBase, Session

from seekpoint import Append, Batch, Json, Pipeline
from setting import cpu
from stage import arguments
from subject import COLUMNS, KIND, fresh_table
from unit import Unit, in_turn, ratio

SIZE = 500  # records of a transaction
INSERT_NAMED = text(f"INSERT INTO {KIND.name} ({', '.join(COLUMNS)}) VALUES (:{', :'.join(COLUMNS)})")
INSERT = f"INSERT INTO {KIND.name} ({', '.join(COLUMNS)}) VALUES ({', '.join(['%s'] * len(COLUMNS))})"


class Base(DeclarativeBase):
    """The ORM's base class."""


class Row(Base):
    """The table; for the ORM its id is the key."""

    __table__ = KIND.table
    __mapper_args__ = {"primary_key": [KIND.table.c[COLUMNS[0]]]}  # noqa: RUF012


def _given(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in COLUMNS}


def text_per_row(tx: Connection, batch: Batch[Any, Any]) -> None:
    """``tx.execute(text(...), row)``"""
    for record in batch:
        tx.execute(INSERT_NAMED, _given(record.value))


def core_per_row(tx: Connection, batch: Batch[Any, Any]) -> None:
    """``tx.execute(table.insert(), row)``"""
    statement = insert(KIND.table)
    for record in batch:
        tx.execute(statement, _given(record.value))


def driver_per_row(tx: Connection, batch: Batch[Any, Any]) -> None:
    """psycopg's ``cursor.execute(...)``"""
    driver: Any = tx.connection.driver_connection
    cursor = driver.cursor()
    for record in batch:
        cursor.execute(INSERT, [getattr(record.value, name) for name in COLUMNS])


def driver_pipeline(tx: Connection, batch: Batch[Any, Any]) -> None:
    """psycopg's ``with connection.pipeline():``, and a statement per record"""
    driver: Any = tx.connection.driver_connection
    with driver.pipeline():
        driver_per_row(tx, batch)


def text_list(tx: Connection, batch: Batch[Any, Any]) -> None:
    """``tx.execute(text(...), rows)``: executemany"""
    tx.execute(INSERT_NAMED, [_given(record.value) for record in batch])


def core_list(tx: Connection, batch: Batch[Any, Any]) -> None:
    """``tx.execute(table.insert(), rows)``"""
    tx.execute(insert(KIND.table), [_given(record.value) for record in batch])


def orm(tx: Connection, batch: Batch[Any, Any]) -> None:
    """``session.add_all(...)``"""
    with Session(tx, join_transaction_mode="create_savepoint") as session:
        session.add_all(Row(**_given(record.value)) for record in batch)
        session.commit()


STYLES = {
    "execute() per row": text_per_row,
    "Core insert() per row": core_per_row,
    "psycopg per row": driver_per_row,
    "psycopg's pipeline()": driver_pipeline,
    "executemany()": text_list,
    "Core insert(list)": core_list,
    "ORM add_all()": orm,
}


def handling(group: str, *, handle: Any) -> Pipeline:
    """A pipeline with this handler."""
    return Pipeline(group, topics=KIND.name, value=Json(KIND.record), handle=handle)


def appending(group: str) -> Pipeline:
    """A pipeline with the sink."""
    return Pipeline(group, topics=KIND.name, value=Json(KIND.record), sinks=[Append(KIND.name)])


def main() -> None:
    """Measure every style."""
    rounds, calls = (2, 2) if arguments(__doc__).parse_args().quick else (7, 3)
    fresh_table()
    subjects: dict[str, Callable[[], Any]] = {"Append": Unit(appending, SIZE)}
    for style, handle in STYLES.items():
        subjects[style] = Unit(partial(handling, handle=handle), SIZE)
    used = cpu()
    seconds = in_turn(subjects, rounds, calls)
    used = cpu() - used
    for mode, times in seconds.items():
        row = {
            "subject": "handlers",
            "mode": mode,
            "records": SIZE * rounds * calls,
            "seconds": round(sum(times) * calls, 3),
            "records_per_second": round(SIZE / statistics.median(times)),
            "cpu_seconds_together": round(used, 2),
            "batch": SIZE,
            "to_append": round(ratio(seconds["Append"], times), 3),
        }
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
