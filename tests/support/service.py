"""One worker's transactions, one batch after another, on the engine of a service."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
from sqlalchemy import BigInteger, Connection, Engine, Text, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from seekpoint import Batch, Pipeline, events
from seekpoint import Text as Utf8
from support.batch_committer import BatchCommitter
from support.sink_tables import TOPIC, SinkTables

Handle = Callable[[Connection, Batch[Any, Any]], Any]


class Service:
    """A service's engine of one connection, and functions that apply batches on it."""

    def __init__(self, sink_tables: SinkTables, engine: Engine, group: str) -> None:
        self.sink_tables, self.engine, self.group = sink_tables, engine, group
        sink_tables.create("id bigint, v text")
        self.t = f'"{sink_tables.schema}".t'
        self.seen: list[events.Event] = []
        self.backends: list[int] = []
        self.clear = ""

    def run(self, handle: Handle | None, *batches: list[str], **options: Any) -> None:
        """Apply each batch in a separate transaction, on the worker's connection."""

        def counted(tx: Connection, batch: Batch[Any, Any]) -> None:
            self.backends.append(driver(tx).info.backend_pid)
            assert handle is not None
            handle(tx, batch)

        handler = None if handle is None else counted
        pipeline = Pipeline(self.group, topics=TOPIC, value=Utf8(), handle=handler, **options)
        committer = BatchCommitter(self.engine, self.sink_tables.schema, pipeline)
        committer.seen = self.seen
        try:
            for values in batches:
                committer.apply(*map(str.encode, values))
        finally:
            committer.committer.close()

    def insert(self, tx: Connection, batch: Batch[Any, Any]) -> None:
        """Insert a row per record."""
        tx.execute(text(f"INSERT INTO {self.t} VALUES (:id, :v)"), [{"id": r.offset, "v": r.value} for r in batch])

    def changed(self) -> list[tuple[str, ...]]:
        """The changes for which connections were replaced."""
        return [event.changed for event in self.seen if isinstance(event, events.SessionReplaced)]


class _Base(DeclarativeBase):
    pass


class Row(_Base):
    """A row of ``t``, in the schema to which ``schema_translate_map`` maps ``here``."""

    __tablename__ = "t"
    __table_args__ = ({"schema": "here"},)
    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    v: Mapped[str | None] = mapped_column(Text)


def driver(tx: Connection) -> psycopg.Connection[Any]:
    connection = tx.connection.driver_connection
    assert isinstance(connection, psycopg.Connection)
    return connection
