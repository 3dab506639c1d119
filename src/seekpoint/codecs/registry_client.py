"""The client of a schema registry: classifies its errors, and keeps credentials out of messages.

Confluent's deserializers ask for schemas while they decode. "There is no such schema" is an error of the record. No
answer is no error of a record: it is CodecUnavailable, and the same request is sent again.
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

# The client would wait for ever. Few retries: it sleeps between them in an open transaction, where a worker does not.
DEFAULTS = {"timeout": 10, "max.retries": 1, "retries.wait.ms": 100}
LARGEST_ID = 2**31 - 1  # ids are an int in the registry: for a larger one it answers "page not found"
SCHEMES = ("http://", "https://", "mock://")

_SECRET = re.compile(r"password|secret|token|user\.info|credential", re.IGNORECASE)
_USERINFO = re.compile(r"//([^/@]*(?:@[^/@]*)*)@")


def shown(registry: Registry | None) -> str:
    """A registry's address as it may be shown: without credentials."""
    if registry is None:
        return "None"
    if callable(registry):
        return getattr(registry, "__qualname__", type(registry).__name__)
    url = str(registry if isinstance(registry, str) else registry.get("url"))
    begin, found, rest = url.partition("://")
    if not found:
        begin, rest = "", url
    return repr(f"{begin}{found}{rest.rpartition('@')[2].partition('?')[0]}")


def check(registry: Registry) -> None:
    """Raise ConfigError for what can be no registry; sends no request."""
    given: object = registry
    if callable(given):
        return
    if not isinstance(given, str | Mapping):
        raise ConfigError(
            f"registry= is a URL, the client's configuration {{'url': ...}}, or a function that returns one of them or "
            f"a client (registry=lambda: client), and no {type(given).__name__}"
        )
    url = given if isinstance(given, str) else given.get("url")
    if not isinstance(url, str) or not all(one.strip().startswith(SCHEMES) for one in url.split(",")):
        raise ConfigError(
            f"registry={shown(registry)}: a registry's url begins with http:// or https://; several are separated by "
            "commas, and a comma in a password is written %2C"
        )


def connect(registry: Registry) -> Asked:
    """A client for this process. Raises ConfigError where it cannot be made."""
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient  # noqa: PLC0415 -- a declaration needs none
    except ImportError as error:
        raise missing(error) from error
    made = registry() if callable(registry) else registry
    if not isinstance(made, str | Mapping):
        return Asked(made, shown(registry), _secrets(made.config()))
    check(made)
    conf = {**DEFAULTS, **({"url": made} if isinstance(made, str) else made)}
    secrets = _secrets(conf)
    try:
        client = SchemaRegistryClient.new_client(conf)
    except Exception as error:  # noqa: BLE001 -- a ValueError, a TypeError, or whatever certificates raise
        said = _without(secrets, str(error))
        raise ConfigError(f"registry={shown(made)}: {type(error).__name__}: {said}") from None
    return Asked(client, shown(made), secrets)


def missing(error: ImportError) -> ConfigError:
    """The error for an extra that is not installed."""
    return needs_extra("Avro and Protobuf need a registry's client", "registry", error)


class Asked:
    """Wraps the client for a deserializer: the same calls, with errors classified as a record's or the registry's."""

    def __init__(self, client: Any, where: str, secrets: tuple[str, ...]) -> None:
        self._client, self._where, self._secrets = client, where, secrets
        self._schemas: dict[int | str, Any] = {}  # by id and by GUID; None: it differs between subjects
        self.latest: list[Any] = []  # subjects' latest schemas that were asked for, each once

    def written_with(self, known: int | str) -> Any:
        """The schema of this id or GUID; None where it is not known, or differs between subjects."""
        return self._schemas.get(known)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if name.startswith("_") or not callable(found):
            return found
        return partial(self._ask, name, found)

    def _ask(self, name: str, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        from confluent_kafka.schema_registry import SchemaRegistryError  # noqa: PLC0415 -- as above

        if name == "get_schema" and args[0] > LARGEST_ID:
            raise LookupError(f"{args[0]} is no schema id: not from a schema registry's serializer")
        try:
            found = call(*args, **options)
            if name in {"get_schema", "get_schema_by_guid"} and self._schemas.setdefault(args[0], found) != found:
                self._schemas[args[0]] = None
            if name.startswith("get_latest") and found.schema not in self.latest:
                self.latest.append(found.schema)
            return found
        except SchemaRegistryError as error:
            classified = self._classified(name, args, error)
            if classified is error:
                raise
            if classified is not None:
                raise classified from None
            said = str(error)
        except Exception as error:  # noqa: BLE001 -- refused, timed out, no such host, TLS, a page that is no JSON
            said = f"{type(error).__name__}: {error}"
        raise CodecUnavailable(
            f"no answer from the schema registry at {self._where}: {_without(self._secrets, said)}",
            lambda: self._again(name, call, *args, **options),
        ) from None  # its text may hold a secret

    def _again(self, *question: Any, **options: Any) -> None:
        """Send the same request again; any answer will do. Raises CodecUnavailable, ConfigError."""
        try:
            self._ask(*question, **options)
        except (CodecUnavailable, ConfigError):
            raise
        except Exception:  # noqa: BLE001 -- about the record: it is raised again when that is decoded
            return

    def _classified(self, name: str, args: tuple[Any, ...], error: Any) -> Exception | None:
        """Classify an error answer: an error of the record, of the configuration, or (None) of the service.

        A status without the registry's own code (40403 and the like) is a gateway's, and not about a schema.
        """
        status, code = error.http_status_code, error.error_code
        said = _without(self._secrets, str(error))
        if status in {401, 403}:
            return ConfigError(f"the schema registry at {self._where} refuses our credentials: {said}")
        if name.startswith("get_associations"):
            return error if status == 404 else None  # the client's own strategy knows what that means
        if status >= 500 or status in {408, 429} or not isinstance(code, int) or code < 40000:
            return None
        if status == 404 and name.startswith("get_schema"):
            return LookupError(f"schema {args[0]} is not in the registry at {self._where}: {said}")
        if status == 404 and name.startswith("get_latest"):
            return ConfigError(f"the registry at {self._where} has no schema of the subject {args[0]!r}: {said}")
        return LookupError(f"the schema registry at {self._where} answers: {said}")


def _secrets(conf: Mapping[str, Any]) -> tuple[str, ...]:
    """The texts of a configuration that must not be shown, the longest first."""
    found: set[str] = set()
    for name, value in conf.items():
        if not isinstance(value, str):
            continue
        secret = [value] if _SECRET.search(name) else _USERINFO.findall(value)
        for one in secret:
            password = one.partition(":")[2]
            found |= {one, unquote(one), password, unquote(password)}
            found.add(b64encode(unquote(one).encode()).decode())  # as it goes into the header
    return tuple(sorted(found - {""}, key=len, reverse=True))


def _without(secrets: tuple[str, ...], said: str) -> str:
    for secret in secrets:
        said = said.replace(secret, "***")
    return said
