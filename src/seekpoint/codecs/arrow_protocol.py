"""Which values are tables of Arrow's, by the protocol that its libraries share. Loads pyarrow only when it is used."""

from __future__ import annotations

from typing import Any, NamedTuple

from seekpoint.errors import needs_extra

PROTOCOLS = ("__arrow_c_stream__", "__arrow_c_array__")  # what every library that has Arrow's tables gives them by


def is_table(kind: type) -> bool:
    """Whether values of this type are whole tables."""
    return any(hasattr(kind, name) for name in PROTOCOLS)


def as_table(given: Any) -> Any:
    """The value as pyarrow's table; raises what pyarrow raises for an array that is no table."""
    pa = required()
    return given if isinstance(given, pa.Table) else pa.table(given)


def required() -> Any:
    """The module pyarrow. Raises ConfigError where it is not installed."""
    try:
        import pyarrow as pa  # noqa: PLC0415 -- a declaration does without
    except ImportError as error:
        raise needs_extra("columns need pyarrow", "arrow", error) from error
    return pa


class Whole(NamedTuple):
    """What stands for a row where a record is a whole table of Arrow's."""

    table: Any
