"""The codec JsonSchema: JSON in the wire format of a schema registry. Needs the extra: ``registry``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, TypeVar, Unpack, overload

from seekpoint.codecs.json import Json
from seekpoint.codecs.registry_client import Registry, check, connect
from seekpoint.codecs.registry_codec import NOTHING, Decode, RegistryCodec, SchemaOptions, with_context
from seekpoint.codecs.wire_format import INDIFFERENT, Frames, Short, avro_frame, is_plain, schema_id
from seekpoint.errors import ConfigError
from seekpoint.records import RawRecord

T = TypeVar("T")
V_co = TypeVar("V_co", covariant=True)

_CHECKING = INDIFFERENT | {"validate"}  # options that do not change the record's JSON


class JsonSchema(RegistryCodec[V_co]):
    """Decode JSON in a schema registry's wire format into ``type``, or into dicts, after a check against its schema.

    ``registry``, ``options`` (for ``JSONDeserializer``), ``tombstones`` and errors are as in
    :class:`seekpoint.codecs.Avro`. A record is checked against ``schema``, by default the writer's schema. A record
    that does not fit is poison, and the error names the field. ``options={"validate": False}`` disables the check.
    Numbers keep their digits, as in :class:`seekpoint.Json`.

    Schemas with rules, and options that migrate, always give dicts; with ``type`` they raise ConfigError.
    """

    is_json = True  # the same as in Json

    @overload
    def __init__(
        self: JsonSchema[T], type: type[T], *, tombstones: Literal[False] = False, **more: Unpack[SchemaOptions]
    ) -> None: ...
    @overload
    def __init__(
        self: JsonSchema[T | None], type: type[T], *, tombstones: bool, **more: Unpack[SchemaOptions]
    ) -> None: ...
    @overload
    def __init__(
        self: JsonSchema[Any], type: None = None, *, tombstones: bool = False, **more: Unpack[SchemaOptions]
    ) -> None: ...
    def __init__(
        self,
        type: Any = None,  # noqa: A002
        *,
        registry: Registry,
        schema: str | None = None,
        tombstones: bool = False,
        options: Mapping[str, Any] = NOTHING,
    ) -> None:
        check(registry)
        super().__init__(registry, type, tombstones, options)
        self.schema = schema
        if type is not None and (unusable := sorted(set(options) - _CHECKING)):
            raise ConfigError(
                f"{self!r}: with the option {unusable[0]!r} values are dicts: leave the type out, or remove the option"
            )

    def _open(self) -> Decode:
        from confluent_kafka.schema_registry.json_schema import JSONDeserializer  # noqa: PLC0415 -- see the module

        assert self.registry is not None
        self._check_schema()
        client: Any = connect(self.registry, "JSON")
        checks = JSONDeserializer(self.schema, None, client, self._settings(), json_decode=Json().plain)
        checked, decode = with_context(checks), Json(Any if self.type is None else self.type).plain

        def read(data: bytes, record: RawRecord, field: str) -> Any:
            value = checked(data, record, field)
            if self.type is None:
                return value
            begin = avro_frame(data)
            schema = client.written_with(number := schema_id(data[:begin]))
            if schema is None or schema.rule_set is not None:
                raise ConfigError(
                    f"{self!r}: schema {number} has rules, or differs between subjects, so its values are dicts: leave "
                    "the type out"
                )
            return decode(data[begin:])

        def shorten(frame: bytes, _data: bytes, _value: Any) -> Short | None:
            is_checked, only_reads = self.options.get("validate", True), _CHECKING.issuperset(self.options)
            if is_checked or not only_reads or not is_plain(client.written_with(schema_id(frame))):
                return None
            return lambda data, begin: decode(data[begin:])

        return Frames(partial(_say_where, read), avro_frame, shorten)

    def _check_schema(self) -> None:
        """Raise ConfigError for an invalid ``schema``, which would make each record a poison record."""
        from jsonschema import SchemaError  # noqa: PLC0415 -- it needs the extra
        from jsonschema.validators import validator_for  # noqa: PLC0415 -- it needs the extra

        if self.schema is not None:
            schema = json.loads(self.schema)
            try:
                validator_for(schema).check_schema(schema)
            except SchemaError as error:
                raise ConfigError(f"{self!r}: schema= is not a JSON Schema: {error.message}") from error

    def _typed(self, value: Any) -> V_co:
        return value  # type: ignore[no-any-return]


def _say_where(read: Decode, data: bytes, record: RawRecord, field: str) -> Any:
    """Call ``read``; its error for a value that does not fit the schema also names the field."""
    try:
        return read(data, record, field)
    except Exception as error:
        from jsonschema import ValidationError  # noqa: PLC0415 -- it needs the extra

        if isinstance(wrong := error.__context__, ValidationError):
            raise ValueError(f"{wrong.message} - at `{wrong.json_path}`") from wrong
        raise
