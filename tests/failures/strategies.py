"""The write strategies of a pipeline, over one table: every kind of failure meets each of them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, Connection, column, insert, table, text
from sqlalchemy.orm import DeclarativeBase, Session
from sqlalchemy.types import NullType

from failures.kinds import COLUMNS, HANDLERS, KINDS, Item, Kind
from seekpoint import Append, Batch, Json, Pipeline, Text
from seekpoint.records import AnyRecord
from support.sink_tables import SinkTables

BY_NAME = {kind.name: kind for kind in KINDS}


def pipeline_on(strategy: str, sink_tables: SinkTables, name: str, **options: Any) -> Pipeline:
    """A pipeline that writes the table ``name`` (and, on two sinks, the ids into ``name_too``), named like it."""
    arguments: dict[str, Any] = {"value": Json(Item), **options}
    group = name
    path = (sink_tables.schema, name)
    match strategy:
        case "values alone":
            return Pipeline(group, sinks=[Append(path, columns=COLUMNS)], **arguments)
        case "streamed Append":
            return Pipeline(group, sinks=[Append(path, columns=COLUMNS, row=_row)], **arguments)
        case "two sinks":
            too = Append((sink_tables.schema, f"{name}_too"), columns=["id"], row=lambda r: (r.value.id,))
            return Pipeline(group, sinks=[Append(path, columns=COLUMNS, row=_row), too], **arguments)
        case _:
            return Pipeline(group, handle=_Handler(strategy, sink_tables.schema, name), **arguments)


def key_of(kind: Kind) -> dict[str, Any]:
    """A key's codec where the kind is about keys."""
    return {"key": Text()} if "key" in kind.name else {}


def _spoiled(record: AnyRecord) -> dict[str, Any]:
    fields = {name: getattr(record.value, name) for name in COLUMNS}
    kind = BY_NAME.get(record.value.act or "")
    return fields if kind is None or kind.spoil is None else kind.spoil(fields)


def _row(record: AnyRecord) -> tuple[Any, ...]:
    return tuple(_spoiled(record).values())


class _Handler:
    def __init__(self, strategy: str, schema: str, name: str) -> None:
        self._strategy, self._path = strategy, f'"{schema}"."{name}"'
        self._insert = text(f"INSERT INTO {self._path} ({', '.join(COLUMNS)}) VALUES (:{', :'.join(COLUMNS)})")
        self._core = insert(table(name, *map(column, COLUMNS), schema=schema))
        self._mapped = _mapped(schema, name) if strategy == "ORM" else None

    def __call__(self, tx: Connection, batch: Batch[Item, Any]) -> Any:
        kinds = [BY_NAME[act] for act in dict.fromkeys(r.value.act for r in batch) if act is not None]
        for kind in kinds:
            if not kind.after:
                self._act(kind, tx, batch)
        self._write(tx, batch)
        returned = [self._act(kind, tx, batch) for kind in kinds if kind.after]
        return next(iter(returned), None)

    def _act(self, kind: Kind, tx: Connection, batch: Batch[Item, Any]) -> Any:
        return kind.act(tx, batch, [r for r in batch if r.value.act == kind.name]) if kind.act is not None else None

    def _write(self, tx: Connection, batch: Batch[Item, Any]) -> None:
        match self._strategy:
            case "execute":
                for record in batch:
                    tx.execute(self._insert, _spoiled(record))
            case "executemany":
                tx.execute(self._core, [_spoiled(record) for record in batch])
            case _:
                assert self._mapped is not None
                with Session(tx, join_transaction_mode="create_savepoint") as session:
                    session.add_all(self._mapped(**_spoiled(record)) for record in batch)
                    session.commit()


def _mapped(schema: str, name: str) -> Any:
    class Base(DeclarativeBase):
        pass

    columns: dict[str, Any] = {c: Column(c, NullType()) for c in COLUMNS}  # no type: the values go as they are
    columns["id"] = Column("id", BigInteger, primary_key=True)
    return type(name, (Base,), {"__tablename__": name, "__table_args__": {"schema": schema}, **columns})


__all__ = ["BY_NAME", "HANDLERS", "key_of", "pipeline_on"]
