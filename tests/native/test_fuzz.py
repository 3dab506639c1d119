"""What the compiled part writes is what msgspec and psycopg make of the value, byte by byte.

``make fuzz-native`` runs a million cases; ``CASES`` and ``SEED`` say how many and which.
"""

from __future__ import annotations

import os
import secrets
from operator import attrgetter
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg.adapt import Transformer
from sqlalchemy import Engine

from native.odd_json import Odd
from seekpoint.sinks import copy as ours
from seekpoint.sinks.json_values import JsonValues
from seekpoint.sinks.native.encoder import Encoder

CASES = int(os.environ.get("SEEKPOINT_FUZZ_CASES", "20000"))
OF_ONE_TYPE = 100


class InPython:
    """What msgspec and psycopg make of a value; None where they raise."""

    def __init__(
        self, cursor: psycopg.Cursor[Any], struct: Any, columns: tuple[str, ...], json: frozenset[str]
    ) -> None:
        self._decode, self._json = (
            msgspec.json.Decoder(struct).decode,
            JsonValues(cursor, columns, dict.fromkeys(json, 0)),
        )
        self._transformer, self._columns = Transformer.from_context(cursor), columns

    def text(self, value: bytes) -> bytes | None:
        assert ours._format is not None
        text = bytearray()
        try:
            decoded = self._decode(value)
            row = self._json.row(tuple(attrgetter(name)(decoded) for name in self._columns))
            ours._format(row, self._transformer, text)
        except Exception:  # noqa: BLE001 -- dumpers raise what they like
            return None
        return bytes(text)


@pytest.mark.timeout(0)
def test_the_compiled_text_is_the_text_of_msgspec_and_psycopg(seekpoint_engine: Engine) -> None:
    seed = int(os.environ.get("SEED") or secrets.randbits(32))
    print(f"SEED={seed} SEEKPOINT_FUZZ_CASES={CASES}")
    odd, same, left, different = Odd(seed), 0, 0, list[object]()
    with seekpoint_engine.connect() as connection, ours.writing_cursor(ours.driver_of(connection)) as cursor:
        for _ in range(CASES // OF_ONE_TYPE):
            struct, fields, columns = odd.struct()
            json = frozenset(field.name for field in fields if field.kind in {"any", "object", "array"})
            encoder = Encoder(struct, columns, (), {})
            encoder.table_has(json)
            assert encoder._made is not None, fields
            plan, python = encoder._made[0], InPython(cursor, struct, columns, json & {*columns})
            for value in (odd.value(struct, fields) for _ in range(OF_ONE_TYPE)):
                text, count = plan.encode([value], 0)
                expected = python.text(value)
                if count:
                    same += text == expected
                    if text != expected:
                        different.append((fields, columns, value, text, expected))
                else:
                    assert text == b""
                    left += expected is not None
    print(f"{CASES} cases: {same} with the same bytes, {left} valid and left to Python, {len(different)} different")
    assert not different, different[:3]
    assert same > CASES / 10
    assert left > 0
