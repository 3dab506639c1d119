"""Values as JSON text, as msgspec writes it, but with every digit of a number, and an error for NaN instead of null."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

import msgspec

from seekpoint.codecs.json import JsonFloat

_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


def json_text(value: Any, encoding: str = "utf-8") -> str:
    """The value as JSON text. Raises ValueError for NaN and infinity, TypeError for a type that has no JSON.

    ``encoding`` is that of the connection; unless it is UTF-8, characters outside ASCII are escaped.
    """
    encoded = _ENCODER.encode(value)
    if b"null" in encoded:
        _require_numbers(value)
    text = encoded.decode()
    return text if encoding == "utf-8" else _NOT_ASCII.sub(lambda character: json.dumps(character[0])[1:-1], text)


def _own(value: Any) -> Any:
    if isinstance(value, JsonFloat):
        return msgspec.Raw(value.text.encode())
    if hasattr(value, "model_dump"):  # a Pydantic model
        return value.model_dump()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


_ENCODER = msgspec.json.Encoder(decimal_format="number", enc_hook=_own)


def _require_numbers(value: Any) -> None:
    """Raise ValueError for NaN and infinite floats, which msgspec writes as null."""
    built = msgspec.to_builtins(value, enc_hook=_built)
    try:
        json.dumps(built, allow_nan=False)
    except ValueError as error:
        raise ValueError("JSON has no NaN and no infinity") from error


def _built(value: Any) -> Any:
    return str(value) if isinstance(value, JsonFloat | Decimal | msgspec.Raw) else _own(value)
