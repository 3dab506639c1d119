"""A SQLAlchemy table for a sink, whose columns hold every value of the fields exactly. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, get_args, get_type_hints

from msgspec import inspect
from sqlalchemy import (
    ARRAY,
    TIMESTAMP,
    BigInteger,
    Boolean,
    Column,
    Date,
    Double,
    Integer,
    Interval,
    LargeBinary,
    MetaData,
    Numeric,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    Time,
    Uuid,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import TypeEngine

from seekpoint.codecs import Codec
from seekpoint.errors import ConfigError
from seekpoint.sinks.accumulate.accumulate import Accumulate
from seekpoint.sinks.base import TableSink
from seekpoint.sinks.column_type import ColumnType
from seekpoint.sinks.declared_types import admits_none, alternatives, fields_of, is_json, misfit
from seekpoint.sinks.upsert.upsert import Upsert

#: Percent of a page that INSERT fills, in a table whose rows are updated. The rest is for new versions of its rows,
#: which then need no new index entries. Measured at 50 (docs/performance.md, Upserts): the table has twice
#: the pages.
FILLFACTOR = 50

_ORIGINS: Mapping[str, TypeEngine[Any]] = {"topic": Text(), "partition": Integer(), "offset": BigInteger()}
_JSONB = ColumnType("jsonb", 3802, -1, 0, 3802, "U", "b")
_INTEGERS = ((SmallInteger(), 1 << 15), (Integer(), 1 << 31), (BigInteger(), 1 << 63))


def suggested_table(
    sink: TableSink[Any, Any], codecs: Collection[Codec], metadata: MetaData, *, fillfactor: int = FILLFACTOR
) -> Table:
    """The table that the sink needs, added to ``metadata``: for its DDL, or for Alembic's autogenerate.

    Columns are the fields of the values that ``codecs`` decode, or of the annotated result of ``row=`` or ``rows=``,
    and the columns of ``provenance``. A field that may be None makes a column that may be NULL. The table of an
    ``Upsert`` or an ``Accumulate`` has its key as primary key, and ``fillfactor`` percent of each page filled. A sum of
    integers is a bigint, whatever the bounds of its records, and no sum may be NULL.

    Raises ConfigError if the rows' type is not known, no column type holds a field's values exactly, a field of ``add``
    is not a number, or a field of ``least`` or ``most`` has no order.
    """
    fields = _fields(sink, codecs)
    columns = [_column(sink, name, field, codecs) for name, field in fields.items()]
    columns += [Column(name, _ORIGINS[origin], nullable=False) for origin, name in sink.provenance.items()]
    names = {column.name for column in columns}
    if missing := [name for name in sink.key if name not in names]:
        has = ", ".join(sorted(names))
        raise ConfigError(f"{sink!r}: key= names {', '.join(missing)}, which its rows do not have: they have {has}")
    *schema, name = sink.path
    return Table(
        name,
        metadata,
        *columns,
        *([PrimaryKeyConstraint(*sink.key)] if sink.key else []),
        schema=schema[0] if schema else None,
        postgresql_with={"fillfactor": fillfactor} if sink.key else {},
    )


def joined_table(tables: Sequence[Table]) -> Table:
    """One table for the rows of several sinks, joined from the tables that they need.

    A column that not all sinks write may be NULL; of several integer types it has the widest. Raises ConfigError if the
    sinks' keys differ, a sink does not write the key, or a column would need two types.
    """
    first = tables[0]
    keyed = next((table for table in tables if table.primary_key.columns), first)
    key = keyed.primary_key.columns.keys()
    if any(table.primary_key.columns.keys() not in ([], key) for table in tables):
        raise ConfigError(f"{first.fullname}: its sinks have different keys, and a table has one primary key")
    columns = []
    for name in dict.fromkeys(name for table in tables for name in table.columns.keys()):  # noqa: SIM118 -- its columns are no keys
        writing = [table.columns[name] for table in tables if name in table.columns]
        nullable = len(writing) < len(tables) or any(column.nullable for column in writing)
        if nullable and name in key:
            raise ConfigError(f"{first.fullname}: not every sink writes the key's column {name!r}")
        columns.append(Column(name, _widest(first, writing), nullable=nullable, autoincrement=False))
    constraints = [PrimaryKeyConstraint(*key)] if key else []
    options = keyed.dialect_options["postgresql"]["with"]
    return Table(first.name, MetaData(), *columns, *constraints, schema=first.schema, postgresql_with=options)


def _widest(table: Table, columns: Sequence[Column[Any]]) -> TypeEngine[Any]:
    kinds = {repr(column.type): column.type for column in columns}
    if len(kinds) == 1:
        return columns[0].type
    order = [repr(kind) for kind, _ in _INTEGERS] + [repr(Numeric())]
    if kinds.keys() <= set(order):
        return kinds[max(kinds, key=order.index)]
    raise ConfigError(
        f"{table.fullname}: its sinks write column {columns[0].name!r} as {' and as '.join(kinds)}: convert it in one "
        "of them with row="
    )


def _fields(sink: TableSink[Any, Any], codecs: Collection[Codec]) -> Mapping[str, inspect.Type]:
    """The fields of a row that the sink writes, in the order of its columns."""
    if isinstance(sink, Upsert) and sink.changes:
        raise ConfigError(
            f"{sink!r}: Debezium's changes say the types of their columns only when they come: take the statement from "
            "the source (pg_dump --schema-only --table), with the columns of columns=, offset_column= and order_by="
        )
    kind = _row_type(sink, codecs)
    fields = fields_of(kind, sink.columns or ())
    if not fields:
        raise ConfigError(
            f"{sink!r}: the fields of its rows are not known: give the value codec a type (Json(Order)), or annotate "
            "what row= returns: a Struct, a dataclass or a TypedDict"
        )
    if unknown := [name for name in sink.columns or () if name not in fields]:
        options = "key=, add=, least= or most=" if isinstance(sink, Accumulate) else "columns="
        raise ConfigError(f"{sink!r}: {options} names {', '.join(unknown)}, which {kind!r} does not have")
    return fields if sink.columns is None else {name: fields[name] for name in sink.columns}


def _row_type(sink: TableSink[Any, Any], codecs: Collection[Codec]) -> Any:
    """The type of a row; None if it is not declared, or differs between topics."""
    if sink.row_of is None and sink.rows_of is None:
        kinds = [getattr(codec, "type", None) for codec in codecs]
        return kinds[0] if kinds and all(kind is kinds[0] for kind in kinds) else None
    returned = get_type_hints(sink.row_of or sink.rows_of).get("return")
    if sink.rows_of is not None:
        returned = next(iter(get_args(returned)), None)
    kinds = [kind for kind in get_args(returned) or (returned,) if kind is not type(None)]
    return kinds[0] if len(kinds) == 1 else returned


def _column(sink: TableSink[Any, Any], name: str, field: inspect.Type, codecs: Collection[Codec]) -> Column[Any]:
    kinds = _types(field)
    if len(kinds) > 1:
        raise ConfigError(
            f"{sink!r}: field {name!r} has values of several types, and no one column type holds them all exactly: "
            "declare one type, or convert the values to one in row="
        )
    kind = kinds[0]
    if isinstance(kind, JSONB):
        of_json = sink.row_of is None and sink.rows_of is None and any(map(is_json, codecs))
        if (reason := misfit(field, _JSONB, sink.conversions, is_json=of_json)) is not None:
            raise ConfigError(f"{sink!r}: field {name!r}: {reason}")
    nullable = admits_none(field) and name not in sink.key
    if isinstance(sink, Accumulate):
        kind, nullable = _aggregate(sink, name, kind, nullable=nullable)
    return Column(name, kind, nullable=nullable, autoincrement=False)


def _aggregate(sink: Accumulate[Any, Any], name: str, kind: TypeEngine[Any], *, nullable: bool) -> tuple[Any, bool]:
    """The column type for a sum, a lowest or a highest value of this type, and whether it may be NULL."""
    if name in sink.add:
        if not isinstance(kind, Integer | Numeric | Double):
            raise ConfigError(
                f"{sink!r}: add= names {name!r}, whose values are not numbers: declare int, Decimal or float"
            )
        return (BigInteger() if isinstance(kind, Integer) else kind), False  # a key's first row begins at 0
    if name in (*sink.least, *sink.most):
        if isinstance(kind, Boolean | JSONB):
            raise ConfigError(f"{sink!r}: {name!r} is {kind!r}, and Postgres has no min() and max() of this type")
        return kind, nullable or sink.subtract is not None  # a key's first record may subtract
    return kind, nullable


def _types(field: inspect.Type) -> list[TypeEngine[Any]]:
    """The different column types of its values without None; jsonb if there are no others."""
    kinds = [_type(kind) for kind in alternatives(field)] or [JSONB()]
    return list({repr(kind): kind for kind in kinds}.values())


def _type(field: inspect.Type) -> TypeEngine[Any]:
    make = _TYPES.get(type(field))
    return JSONB() if make is None else make(field)


def _integer(field: inspect.IntType) -> TypeEngine[Any]:
    """The smallest type for declared bounds; without bounds bigint, which refuses values beyond 64 bits."""
    lowest = field.ge if field.gt is None else field.gt + 1
    highest = field.le if field.lt is None else field.lt - 1
    if lowest is None or highest is None:
        return BigInteger()
    return next((kind for kind, most in _INTEGERS if -most <= lowest and highest < most), Numeric())


def _of_values(values: Collection[object]) -> TypeEngine[Any]:
    for plain, kind in ((str, Text()), (bool, Boolean()), (int, BigInteger())):
        if all(isinstance(value, plain) for value in values):
            return kind
    return JSONB()


def _array(item: inspect.Type) -> TypeEngine[Any]:
    """An array if all items have one plain type, else jsonb."""
    kinds = _types(item)
    return JSONB() if len(kinds) > 1 or isinstance(kinds[0], ARRAY | JSONB) else ARRAY(kinds[0])


_TYPES: Mapping[type[inspect.Type], Callable[[Any], TypeEngine[Any]]] = {
    inspect.BoolType: lambda _: Boolean(),
    inspect.IntType: _integer,
    inspect.FloatType: lambda _: Double(),
    inspect.DecimalType: lambda _: Numeric(),
    inspect.StrType: lambda _: Text(),
    inspect.BytesType: lambda _: LargeBinary(),
    inspect.ByteArrayType: lambda _: LargeBinary(),
    inspect.MemoryViewType: lambda _: LargeBinary(),
    inspect.DateTimeType: lambda field: TIMESTAMP(timezone=field.tz is not False),
    inspect.DateType: lambda _: Date(),
    inspect.TimeType: lambda field: Time(timezone=field.tz is True),
    inspect.TimeDeltaType: lambda _: Interval(),
    inspect.UUIDType: lambda _: Uuid(),
    inspect.EnumType: lambda field: _of_values([member.value for member in field.cls]),
    inspect.LiteralType: lambda field: _of_values([value for value in field.values if value is not None]),
    inspect.ListType: lambda field: _array(field.item_type),
    inspect.VarTupleType: lambda field: _array(field.item_type),
}
