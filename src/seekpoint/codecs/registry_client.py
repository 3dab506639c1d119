"""The client of a schema registry: classifies its errors, and keeps credentials out of messages.

Confluent's deserializers ask for schemas while they decode. The answer that a schema does not exist is an error of the
record. Without an answer they raise CodecUnavailable: the record is not the cause, and the worker repeats the request.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import unquote

from seekpoint.errors import CodecUnavailable, ConfigError, needs_extra

Registry = str | Mapping[str, Any] | Callable[[], Any]

# The client's default is no timeout. Only one retry, because the client waits for it inside the open transaction, a
# worker outside.
DEFAULTS = {"timeout": 10, "max.retries": 1, "retries.wait.ms": 100}
_OF_A_SCHEMA = frozenset({"get_schema", "get_schema_by_guid"})
_CODECS = {"AVRO": "Avro", "JSON": "JsonSchema", "PROTOBUF": "Protobuf"}  # classes, by kind
LARGEST_ID = 2**31 - 1  # ids have 32 bits; for a larger number the registry answers "page not found"
SCHEMES = ("http://", "https://", "mock://")

_SECRET = re.compile(r"password|secret|token|user\.info|credential", re.IGNORECASE)
_USERINFO = re.compile(r"//([^/@]*(?:@[^/@]*)*)@")


def shown(registry: Registry | None) -> str:
    """The registry's address without credentials, for messages."""
    if registry is None:
        return "None"
    if callable(registry):
        return getattr(registry, "__qualname__", type(registry).__name__)
    url = str(registry if isinstance(registry, str) else registry.get("url"))
    begin, separator, rest = url.partition("://")
    if not separator:
        begin, rest = "", url
    return repr(f"{begin}{separator}{rest.rpartition('@')[2].partition('?')[0]}")


def check(registry: Registry) -> None:
    """Raise ConfigError for a value that cannot be a registry; sends no request."""
    setting: object = registry
    if callable(setting):
        return
    if not isinstance(setting, str | Mapping):
        raise ConfigError(
            f"registry= takes a URL, the client's configuration {{'url': ...}}, or a function that returns one of them "
            f"or a client (registry=lambda: client); got {type(setting).__name__}"
        )
    url = setting if isinstance(setting, str) else setting.get("url")
    if not isinstance(url, str) or not all(address.strip().startswith(SCHEMES) for address in url.split(",")):
        raise ConfigError(
            f"registry={shown(registry)}: {'' if url else 'url is missing; '}a registry's url begins with http:// or "
            "https://; several are separated by commas, and a comma in a password is written %2C"
        )


def connect(registry: Registry, *kinds: str, otherwise: str | None = None) -> RegistryClient:
    """Make a client in this process, for schemas of these kinds (AVRO, JSON, PROTOBUF).

    ``otherwise`` is the advice in errors of records of another kind; the default is to use that kind's codec.

    Raises ConfigError if the client cannot be made.
    """
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient  # noqa: PLC0415 -- a declaration needs none
    except ImportError as error:
        raise missing(error) from error
    endpoint = registry() if callable(registry) else registry
    if not isinstance(endpoint, str | Mapping):
        if not hasattr(endpoint, "config"):
            raise ConfigError(
                f"registry={shown(registry)} returned {type(endpoint).__name__}: return a URL, the client's "
                "configuration {'url': ...}, or a client"
            )
        return RegistryClient(endpoint, shown(registry), _secrets(endpoint.config()), kinds, otherwise)
    check(endpoint)
    conf = {**DEFAULTS, **({"url": endpoint} if isinstance(endpoint, str) else endpoint)}
    secrets = _secrets(conf)
    try:
        client = SchemaRegistryClient.new_client(conf)
    except Exception as error:  # noqa: BLE001 -- a ValueError, a TypeError, or an error of certificates
        message = _without(secrets, str(error))
        raise ConfigError(f"registry={shown(endpoint)}: {type(error).__name__}: {message}") from None
    return RegistryClient(client, shown(endpoint), secrets, kinds, otherwise)


def missing(error: ImportError) -> ConfigError:
    """The error for an extra that is not installed."""
    return needs_extra("Avro, JSON Schema and Protobuf need a registry's client", "registry", error)


class RegistryClient:
    """Wraps a deserializer's client, with its methods: classifies errors as caused by record or registry."""

    def __init__(
        self, client: Any, where: str, secrets: tuple[str, ...], kinds: tuple[str, ...], otherwise: str | None
    ) -> None:
        self._client, self._where, self._secrets, self._kinds = client, where, secrets, kinds
        self._otherwise = otherwise
        self._schemas: dict[int | str, Any] = {}  # schemas by id and by GUID; None: it differs between subjects
        self.latest: list[Any] = []  # latest schemas by subject, each requested once

    def written_with(self, schema_id: int | str) -> Any:
        """The schema with this id or GUID; None if it was not fetched, or differs between subjects."""
        return self._schemas.get(schema_id)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._client, name)
        if name.startswith("_") or not callable(attribute):
            return attribute
        return partial(self._schema if name in _OF_A_SCHEMA else self._ask, name, attribute)

    def _schema(self, name: str, call: Callable[..., Any], number: int | str, *args: Any, **options: Any) -> Any:
        """The writer's schema of a record.

        Raises LookupError if it is not a schema of the codec's format: the bytes might be decoded to a wrong value.
        """
        if isinstance(number, int) and number > LARGEST_ID:
            raise LookupError(f"{number} is not a schema id: the record was not written by a registry's serializer")
        schema = self._ask(name, call, number, *args, **options)
        if schema.schema_type not in self._kinds:
            otherwise = self._otherwise or f"decode its topic with {_CODECS.get(schema.schema_type, 'another codec')}"
            kinds = " and ".join(self._kinds)
            raise LookupError(f"schema {number} is {schema.schema_type}, but this codec reads {kinds}: {otherwise}")
        if self._schemas.setdefault(number, schema) != schema:
            self._schemas[number] = None
        return schema

    def _ask(self, name: str, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        from confluent_kafka.schema_registry import SchemaRegistryError  # noqa: PLC0415 -- as above

        try:
            answer = call(*args, **options)
            if name.startswith("get_latest") and answer.schema not in self.latest:
                self.latest.append(answer.schema)
            return answer
        except SchemaRegistryError as error:
            classified = self._classified(name, args, error)
            if classified is error:
                raise
            if classified is not None:
                raise classified from None
            message = str(error)
        except Exception as error:  # noqa: BLE001 -- refused, timed out, no such host, TLS, a page that is not JSON
            message = f"{type(error).__name__}: {error}"
        raise CodecUnavailable(
            f"no answer from the schema registry at {self._where}: {_without(self._secrets, message)}",
            lambda: self._again(name, call, *args, **options),
        ) from None  # the cause's text may hold a secret

    def _again(self, *question: Any, **options: Any) -> None:
        """Repeat a request; any answer will do. Raises CodecUnavailable, ConfigError."""
        try:
            self._ask(*question, **options)
        except (CodecUnavailable, ConfigError):
            raise
        except Exception:  # noqa: BLE001 -- the record's error, which is raised again when the record is decoded
            return

    def _classified(self, name: str, args: tuple[Any, ...], error: Any) -> Exception | None:
        """Classify an error answer: an error of the record, of the configuration, or (None) of the service.

        A status without one of the registry's codes, such as 40403, is from a gateway, and does not concern a schema.
        """
        status, code = error.http_status_code, error.error_code
        message = _without(self._secrets, str(error))
        if status in {401, 403}:
            return ConfigError(f"the schema registry at {self._where} refuses the credentials: {message}")
        if name.startswith("get_associations"):
            return error if status == 404 else None  # the client's strategy handles a 404
        if status >= 500 or status in {408, 429} or not isinstance(code, int) or code < 40000:
            return None
        if status == 404 and name.startswith("get_schema"):
            return LookupError(f"schema {args[0]} is not in the registry at {self._where}: {message}")
        if status == 404 and name.startswith("get_latest"):
            return ConfigError(f"the registry at {self._where} has no schema of the subject {args[0]!r}: {message}")
        return LookupError(f"the schema registry at {self._where} answers: {message}")


def _secrets(conf: Mapping[str, Any]) -> tuple[str, ...]:
    """The texts of a configuration that must not be shown, the longest first."""
    secrets: set[str] = set()
    for name, value in conf.items():
        if not isinstance(value, str):
            continue
        credentials = [value] if _SECRET.search(name) else _USERINFO.findall(value)
        for credential in credentials:
            password = credential.partition(":")[2]
            secrets |= {credential, unquote(credential), password, unquote(password)}
            secrets.add(b64encode(unquote(credential).encode()).decode())  # as in the Authorization header
    return tuple(sorted(secrets - {""}, key=len, reverse=True))


def _without(secrets: tuple[str, ...], message: str) -> str:
    for secret in secrets:
        message = message.replace(secret, "***")
    return message
