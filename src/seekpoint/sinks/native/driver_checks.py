"""Whether this connection would write values as psycopg does by itself: programs may register dumpers."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import psycopg
from psycopg.adapt import AdaptersMap, PyFormat
from psycopg.postgres import register_default_adapters, register_default_types
from psycopg.pq import Escaping
from psycopg.types.json import Json

from seekpoint.sinks.column_types import Depths
from seekpoint.sinks.native.encoder import EncodedRows


def is_exact(rows: EncodedRows, cursor: psycopg.Cursor[Any], columns: tuple[str, ...], depths: Depths) -> bool:
    """Whether the rows' text is what psycopg would send through this cursor; corrects the encoder where it is not."""
    layout = rows.layout
    if layout.columns != columns:
        return False
    json_columns = frozenset(columns) & depths.keys()
    if any(depths[name] for name in json_columns) or not _is_default(cursor, layout.types, has_json=bool(json_columns)):
        rows.encoder.turn_off()
        return False
    if json_columns != layout.json:
        rows.encoder.table_has(json_columns)
        return False
    return True


def _is_default(cursor: psycopg.Cursor[Any], types: frozenset[type], *, has_json: bool) -> bool:
    connection, adapters = cursor.connection, cursor.adapters
    if connection.info.encoding != "utf-8":
        return False
    if bytes in types and Escaping(connection.pgconn).escape_bytea(b"\0") != b"\\x00":
        return False  # standard_conforming_strings is off
    if has_json:
        types |= {Json}
        if any(getattr(_dumper(adapters, one), "_dumps", None) is not json.dumps for one in (dict, Json)):
            return False  # set_json_dumps() changes psycopg's own dumpers
    return all(_dumper(adapters, one) is _dumper(_unchanged(), one) for one in types - {dict})


def _dumper(adapters: AdaptersMap, type_: type) -> object:
    return adapters.get_dumper(type_, PyFormat.TEXT)


@cache
def _unchanged() -> AdaptersMap:
    """The dumpers that psycopg brings."""
    adapters = AdaptersMap()
    register_default_types(adapters.types)
    register_default_adapters(adapters)
    return adapters
