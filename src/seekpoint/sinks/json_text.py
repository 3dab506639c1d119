"""Values as JSON text: what msgspec writes, with every digit of a number, and refusals where it would write null."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

import msgspec

from seekpoint.codecs.json import JsonFloat

_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


def json_text(value: Any, encoding: str = "utf-8") -> str:
    """JSON of any value that msgspec encodes, Structs and dataclasses among them. Raises ValueError, TypeError.

    ``encoding`` is the connection's: what it may not have is written as an escape.
    """
    made = _ENCODER.encode(value)
    if b"null" in made:
        _require_numbers(value)
    text = made.decode()
    return text if encoding == "utf-8" else _NOT_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], text)


def _own(value: Any) -> Any:
    if isinstance(value, JsonFloat):
        return msgspec.Raw(value.text.encode())
    raise TypeError(f"{type(value).__name__} has no JSON")


_ENCODER = msgspec.json.Encoder(decimal_format="number", enc_hook=_own)


def _require_numbers(value: Any) -> None:
    """Raises ValueError for NaN and infinite floats, of which msgspec makes null."""
    built = msgspec.to_builtins(value, enc_hook=_built)
    try:
        json.dumps(built, allow_nan=False)
    except ValueError as error:
        raise ValueError("NaN and infinity are no JSON") from error


def _built(value: Any) -> Any:
    if isinstance(value, JsonFloat | Decimal | msgspec.Raw):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON")
