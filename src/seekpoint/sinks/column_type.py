"""A column's type, as far as it decides how values are written. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

BOOL, BYTEA, DATE, TIME, TIMESTAMP, NUMERIC, JSON = 16, 17, 1082, 1083, 1114, 1700, frozenset({114, 3802})


class ColumnType(NamedTuple):
    """A column's type, of a domain its base type. ``named`` is as SQL writes it.

    Of an array with so many ``dimensions`` (else 0), the rest is about its items: ``item`` is the type's oid,
    ``category`` and ``kind`` are pg_type's, ``labels`` those of an enum.
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
        return ((self.typmod - 4 & 0x7FF) ^ 0x400) - 0x400  # eleven bits, negative from Postgres 15 on


ColumnTypes = Mapping[str, ColumnType]
