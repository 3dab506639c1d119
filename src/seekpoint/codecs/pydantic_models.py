"""Decodes JSON and validates it with Pydantic, but keeps digits of numbers that Pydantic would drop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from seekpoint.errors import ConfigError

#: The most errors of a value that a message names.
_NAMED = 5
# Types in Pydantic's schemas that could keep all digits of a number, if Pydantic did not first make a float of it.
_OF_DIGITS = frozenset({"decimal", "any", "json"})
# Types for which strict=True accepts the same values from JSON and from Python.
_STRICT_ALIKE = frozenset({"int", "str", "float", "bool"})
# Types that are text in JSON. In a union with one of them, Pydantic treats a Python str differently from text in JSON.
_OF_TEXT = frozenset({
    "bytes", "date", "datetime", "time", "timedelta", "uuid", "decimal", "enum", "url",
    "multi-host-url", "complex", "json-or-python", "lax-or-strict",
})  # fmt: skip
# Parts of Pydantic's schemas that do not affect validation.
_ASIDE = frozenset({"metadata", "serialization", "computed_fields", "default", "function", "expected"})


def model_decoder(kind: Any, parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """A function from JSON's bytes to a value of the type; its errors are ``msgspec.ValidationError``.

    Pydantic reads a JSON number into a Decimal, or into Any, through a float: 20.50 becomes 20.5. If the type has such
    fields, ``parse`` decodes the JSON and keeps the digits, and Pydantic validates the Python values. Raises
    ConfigError if Pydantic has no validator for the type, or validates its JSON and its Python values differently.
    """
    adapter = _adapter(kind)
    parts = [*_parts(adapter.core_schema)]
    if not any(part.get("type") in _OF_DIGITS or "allow" in _extra(part) for part in parts):
        return _explained(adapter.validate_json)
    if (reason := next(filter(None, map(_of_json_alone, parts)), None)) is not None:
        raise ConfigError(
            f"Json({_name(kind)}): it has a Decimal, Any or extra fields, whose digits Pydantic keeps only in Python "
            f"values, and {reason}, which it validates differently in Python values and in JSON. Remove one of the "
            "two; or give value= your own function from bytes to the model, which decides which digits to keep"
        )
    of_python = adapter.validate_python
    return _explained(lambda data: of_python(parse(data)))


def model_converter(kind: Any) -> Callable[[Any], Any]:
    """A function from dicts, lists and plain values to a value of the type.

    Raises the errors of :func:`model_decoder`.
    """
    return _explained(_adapter(kind).validate_python)


def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter  # noqa: PLC0415 -- an extra, loaded if a model is given
    from pydantic.errors import PydanticUserError  # noqa: PLC0415

    try:
        return TypeAdapter(kind)
    except PydanticUserError as error:
        raise ConfigError(f"{_name(kind)}: Pydantic has no validator for it: {error}") from error


def _explained(validate: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap ``validate`` so that its error is one line of messages with fields' paths, without the record's values."""
    from pydantic import ValidationError  # noqa: PLC0415

    def validated(data: Any) -> Any:
        try:
            return validate(data)
        except ValidationError as error:
            # A chained exception would show the record's values.
            raise msgspec.ValidationError(_message(error)) from None

    return validated


def _message(error: Any) -> str:
    causes = error.errors(include_url=False, include_context=False, include_input=False)
    named = [
        f"{cause['msg']} - at `{_path(cause['loc'])}`" if cause["loc"] else cause["msg"] for cause in causes[:_NAMED]
    ]
    suffix = f"; and {len(causes) - _NAMED} more" if len(causes) > _NAMED else ""
    return "; ".join(named) + suffix


def _path(places: tuple[int | str, ...]) -> str:
    return "$" + "".join(f"[{place}]" if isinstance(place, int) else f".{place}" for place in places)


def _parts(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Pydantic's schema of a type, and each schema inside it."""
    if isinstance(schema, Mapping):
        yield schema
        for name, part in schema.items():
            if name not in _ASIDE:
                yield from _parts(part)
    elif isinstance(schema, list | tuple):
        for part in schema:
            yield from _parts(part)


def _extra(part: Mapping[str, Any]) -> tuple[Any, ...]:
    return part.get("extra_behavior"), part.get("extra_fields_behavior")


def _of_json_alone(part: Mapping[str, Any]) -> str | None:
    """Name a part that Pydantic validates differently in JSON and in Python values; None if there is none."""
    if part.get("strict") is True and part.get("type") not in _STRICT_ALIKE:
        return "strict=True"
    if part.get("val_json_bytes") not in (None, "utf8"):
        return f"val_json_bytes={part['val_json_bytes']!r}"
    if part.get("type") == "union" and (of_text := next(filter(None, map(_of_text, part["choices"])), None)):
        return f"a union with {of_text}"
    return "a field of the type Json" if part.get("type") == "json" else None


def _of_text(choice: Any) -> str | None:
    """The type of a union's choice if it is text in JSON, otherwise None. A choice may be a tuple with a label."""
    schema = choice[0] if isinstance(choice, tuple) else choice
    while "function" in schema and "schema" in schema:
        schema = schema["schema"]
    return schema["type"] if schema["type"] in _OF_TEXT else None


def _name(kind: Any) -> str:
    return str(getattr(kind, "__name__", kind))
