"""A schema with the ledger in it and a test's own tables beside it, and pipelines that are run over them.

Give it to a test with a fixture of its own::

    @pytest.fixture
    def ground(seekpoint_engine: Engine, seekpoint_schema: str) -> Ground:
        return Ground(seekpoint_engine, seekpoint_schema)
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Engine, column, select, table, text

from seekpoint import Append, Ledger, Pipeline
from seekpoint.errors import PartitionStopped
from seekpoint.events import Observer
from seekpoint.records import Partition, RawRecord
from seekpoint.testing import Processed, process, raw

TOPIC = "orders"


class Ground:
    """Tables, what they hold, and where the ledger stands."""

    def __init__(self, engine: Engine, schema: str) -> None:
        self.engine, self.schema = engine, schema

    def sql(self, statement: str) -> None:
        """Run statements in this schema."""
        with self.engine.begin() as tx:
            tx.exec_driver_sql(f'SET LOCAL search_path = "{self.schema}"')
            tx.exec_driver_sql(statement.replace("%", "%%"))

    def create(self, body: str, name: str = "t") -> tuple[str, str]:
        """Make a table; returns its path, as ``Append`` takes it."""
        quoted = name.replace('"', '""')
        self.sql(f'CREATE TABLE "{quoted}" ({body})')
        return self.schema, name

    def append(self, body: str, /, *, name: str = "t", **options: Any) -> Append:
        """Make a table and a sink that writes it."""
        return Append(self.create(body, name), **options)

    def rows(self, *columns: str, name: str = "t") -> list[tuple[Any, ...]]:
        """What the table holds, in the order of these columns."""
        with self.engine.connect() as tx:
            chosen: list[ColumnElement[Any]] = [column(c) for c in columns]
            found = tx.execute(select(*chosen).select_from(table(name, schema=self.schema)).order_by(*chosen))
            return [tuple(row) for row in found]

    def value(self, expression: str, name: str = "t") -> Any:
        """One expression over the table's only row."""
        with self.engine.connect() as tx:
            quoted = tx.dialect.identifier_preparer
            return tx.execute(
                text(f"SELECT {expression} FROM {quoted.quote(self.schema)}.{quoted.quote(name)}")
            ).scalar_one()

    def process(self, pipeline: Pipeline, *records: RawRecord, observe: tuple[Observer, ...] = ()) -> Processed:
        """Apply the records through the real unit of work."""
        return process(pipeline, self.engine, records, schema=self.schema, observe=observe)

    def positions(self, pipeline: Pipeline) -> dict[Partition, int]:
        """Where the group stands."""
        positions = Ledger(self.engine, pipeline.group, schema=self.schema).read()
        return {position.partition: position.next_offset for position in positions}


def orders(*values: bytes | None, partition: int = 0, start: int = 0) -> list[RawRecord]:
    """Records with these values, one after the other."""
    return [raw(v, topic=TOPIC, partition=partition, offset=n) for n, v in enumerate(values, start)]


def stopped_at(done: Processed, partition: int, offset: int) -> PartitionStopped:
    """The stop of this partition; fails unless it stands at this offset and says so, with something to choose."""
    stop = done.stopped[Partition(TOPIC, partition)]
    assert stop.offset == offset
    assert str(stop).startswith(f"{TOPIC}/{partition} stopped at offset {offset}: ")
    assert len(stop.choices) == 3
    assert f"Ledger.reset_offset('{TOPIC}', {partition}, to={offset + 1}, log=None, lost='poison'" in str(stop)
    return stop
