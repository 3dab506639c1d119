"""A handler's COPY of an Arrow table into a table of the database."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Connection

from seekpoint.codecs.arrow import as_table
from seekpoint.errors import ConfigError, Poison
from seekpoint.pipeline.sink import RowRefused


def copy_into(
    tx: Connection,
    table: str | tuple[str, ...],
    rows: Any,
    *,
    columns: Sequence[str] | None = None,
    json: Collection[str] = (),
) -> int:
    """Append the rows of an Arrow table to a table of the database, by one COPY; returns how many.

    ``rows`` is pyarrow's ``Table`` or ``RecordBatch``, or any library's that speaks Arrow's protocol; ``columns`` are
    those that are written, all by default. ``table`` and ``json``, and what becomes of lists and structs, are as for
    :class:`AppendArrow`. For use in a handler, with its ``tx``.

    Raises Poison for a value that cannot be written, ConfigError for a column that is not there, and the database's own
    errors.
    """
    given = as_table(rows)
    from seekpoint.sinks.arrow.copy import open_copies  # noqa: PLC0415 -- it needs the database driver
    from seekpoint.sinks.copy import Unwritable  # noqa: PLC0415 -- as above

    if columns is not None:
        if missing := [name for name in columns if name not in given.column_names]:
            raise ConfigError(f"the Arrow table has no column {', '.join(map(repr, missing))}: {given.column_names}")
        given = given.select(list(columns))
    if not given.column_names:
        raise ConfigError("the Arrow table has no columns")
    path = tuple(table.split(".")) if isinstance(table, str) else tuple(table)
    try:
        with open_copies(tx, path, lambda: None, json) as copies:
            copies.send(given)
    except RowRefused as refused:
        if isinstance(refused.cause, Unwritable):
            raise Poison(str(refused.cause)) from refused.cause
        raise refused.cause from refused.cause.__cause__
    return int(given.num_rows)
