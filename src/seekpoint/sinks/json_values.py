"""Values for columns of JSON: dumped as JSON whatever their type in Python, by every write strategy."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import psycopg
from psycopg.adapt import PyFormat
from psycopg.types.json import Json

from seekpoint.pipeline.sink import Row
from seekpoint.sinks.column_types import Depths

_OIDS = frozenset({114, 3802})
_AS_THEY_ARE = frozenset({type(None), Decimal})  # NULL; and a number with all its digits, which JSON takes as it is


class JsonValues:
    """Wraps what the driver would dump as something else: a str is a JSON string, a list a JSON array.

    What it dumps as JSON anyway stays: dicts, ``Json`` and ``Jsonb``, types with a dumper of the host's own.
    """

    def __init__(self, cursor: psycopg.Cursor[Any], columns: Sequence[str], depths: Depths) -> None:
        self._adapters = cursor.adapters
        self._places = [(at, depths[name]) for at, name in enumerate(columns) if name in depths]
        self._is_json: dict[type, bool] = {}

    def rows(self, rows: Sequence[Row]) -> Sequence[Row]:
        """The rows as they are to be dumped."""
        return [self.row(row) for row in rows] if self._places else rows

    def row(self, row: Row) -> Row:
        """One row."""
        if not self._places:
            return row
        made = list(row)
        for at, depth in self._places:
            made[at] = self.value(made[at], depth)
        return tuple(made)

    def value(self, value: Any, depth: int = 0) -> Any:
        """One value; of an array ``depth`` is the dimensions, and the text of one is left as it is."""
        if depth:
            return [self._element(one, depth - 1) for one in value] if isinstance(value, list) else value
        kind = type(value)
        if kind in _AS_THEY_ARE:
            return value
        if kind not in self._is_json:
            self._is_json[kind] = self._dumps_json(kind)
        return value if self._is_json[kind] else Json(value)

    def _element(self, value: Any, depth: int) -> Any:
        """Of an array: the driver dumps all alike."""
        if depth or value is None:
            return self.value(value, depth)
        made = self.value(value)
        return Json(value) if isinstance(value, dict) else made

    def _dumps_json(self, kind: type) -> bool:
        try:
            return self._adapters.get_dumper(kind, PyFormat.TEXT).oid in _OIDS
        except psycopg.ProgrammingError:  # no dumper
            return False
