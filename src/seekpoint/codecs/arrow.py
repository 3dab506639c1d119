"""Apache Arrow's IPC formats: a record's value is a table of any number of rows.

Needs the extra ``arrow``. pyarrow is imported at the first record.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from seekpoint.errors import ConfigError, needs_extra

__all__ = ["Arrow"]

FILE = b"ARROW1"  # the first bytes of Arrow's file format


class Arrow:
    """Decode Arrow's stream format, or its file format, into a ``pyarrow.Table``.

    With ``schema`` the table gets the schema's columns, order and types: it has no other columns, and values are cast
    if none is changed by that. Without it, the table is as written. With ``tombstones=True`` a null value decodes to
    None.

    A record is poison if it is in neither format, is malformed (offsets, UTF-8 and dictionaries are validated), lacks a
    column or cannot be cast.
    """

    def __init__(self, schema: Any = None, *, tombstones: bool = False) -> None:
        if schema is not None and not hasattr(schema, "names"):
            raise ConfigError(f"Arrow(schema=...) takes a pyarrow.Schema, got {schema!r}")
        self.schema, self.tombstones = schema, tombstones

    def __call__(self, data: bytes) -> Any:
        """Decode bytes to a table. Raises pyarrow's errors, or ValueError for a missing column."""
        ipc = required().ipc
        table = (ipc.open_file(data) if data.startswith(FILE) else ipc.open_stream(data)).read_all()
        table.validate(full=True)  # offsets in the data are not trusted
        if self.schema is None or table.schema == self.schema:
            return table
        if missing := [name for name in self.schema.names if name not in table.column_names]:
            raise ValueError(f"the table has no column {', '.join(map(repr, missing))}; it has {table.column_names}")
        return table.select(self.schema.names).cast(self.schema)

    def __repr__(self) -> str:
        return "Arrow()" if self.schema is None else f"Arrow({', '.join(self.schema.names)})"


PROTOCOLS = ("__arrow_c_stream__", "__arrow_c_array__")  # of the Arrow PyCapsule interface


def is_table(kind: type) -> bool:
    """Whether values of this type are Arrow tables."""
    return any(hasattr(kind, name) for name in PROTOCOLS)


def as_table(columns: Any) -> Any:
    """The value as a ``pyarrow.Table``; raises pyarrow's error for an array that is not a table."""
    pa = required()
    return columns if isinstance(columns, pa.Table) else pa.table(columns)


def required() -> Any:
    """The module pyarrow. Raises ConfigError if it is not installed."""
    try:
        import pyarrow as pa  # noqa: PLC0415 -- declaring a codec does not need it
    except ImportError as error:
        raise needs_extra("columns need pyarrow", "arrow", error) from error
    return pa


class Whole(NamedTuple):
    """A row that consists of a record's whole Arrow table."""

    table: Any
