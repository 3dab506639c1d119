"""The parts of a column's type that decide how values are written. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

BOOL, BYTEA, NUMERIC, JSON = 16, 17, 1700, frozenset({114, 3802})
DATE, TIME, TIMETZ, TIMESTAMP, TIMESTAMPTZ = 1082, 1083, 1266, 1114, 1184
MONEY, POINT = 790, 600


class ColumnType(NamedTuple):
    """A column's type: ``named`` as SQL writes it; ``base`` is the base type, if it is a domain.

    ``dimensions`` is 0 unless the column is an array. ``typmod``, ``item`` (an oid), ``category`` and ``kind`` (of
    pg_type) and ``labels`` (of an enum) describe the type itself, the items of an array, or the base type of a domain.
    """

    named: str
    base: int
    typmod: int
    dimensions: int
    item: int
    category: str
    kind: str
    labels: Sequence[str] | None = None

    @property
    def scale(self) -> int | None:
        """The fraction digits that a numeric is declared with; None for any other type."""
        if self.item != NUMERIC or self.typmod < 0:
            return None
        return declared_scale(self.typmod)

    @property
    def takes_tuples(self) -> bool:
        """Whether the server reads the text of a tuple, ``(1,2)``, as its values: composite types, and points."""
        return self.kind == "c" or self.item == POINT


def declared_scale(typmod: int) -> int:
    """The fraction digits in a numeric's type modifier."""
    return ((typmod - 4 & 0x7FF) ^ 0x400) - 0x400  # eleven bits; may be negative from Postgres 15 on


ColumnTypes = Mapping[str, ColumnType]
