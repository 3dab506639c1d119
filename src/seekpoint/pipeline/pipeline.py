"""The declaration ``Pipeline``: topics, codecs, sinks, handler and policies of a group.

No I/O, no engine, no secrets: worker, command line and tests import it by name. Importing this
module needs neither a database driver nor a Kafka client.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from types import FunctionType
from typing import Any, Generic, Literal, Never, TypedDict, Unpack, overload

from sqlalchemy import Connection
from typing_extensions import TypeVar

from seekpoint.codecs import Bytes, Codec, key_decoder, value_decoder
from seekpoint.errors import ConfigError
from seekpoint.pipeline.policy import DeadLetterLimits, OnPoison, Retry, StartAt
from seekpoint.pipeline.sink import Handler, K, Sink, V
from seekpoint.pipeline.table_path import TableName, table_path
from seekpoint.pipeline.written_tables import Translation, translated, with_schemas

T = TypeVar("T")

# Never passed. mypy checks arguments whose type has a callable after the others: it infers V from ``value=``, and then
# checks each sink, and each lambda in it, against V.
_CheckedLast = Callable[[V], Never]

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")  # what a broker accepts as a topic's name


class _Options(TypedDict, total=False):
    """Parameters of a pipeline that do not depend on the types of keys and values."""

    writes: Sequence[TableName]
    version: int
    start: StartAt
    retry: Retry
    on_poison: OnPoison | Literal["stop", "dead_letter", "skip"]
    dead_letter_limits: DeadLetterLimits
    keep_key_order: bool | None
    delay: timedelta | None
    strict: bool
    synchronous_commit: bool


class Pipeline(Generic[V, K]):
    """Declares what a group of workers does with some topics' records.

    ``Pipeline[V, K]``: values are decoded into V and keys into K; a record without a key has None. Type checkers infer
    both from the codecs, and check handlers, ``row=`` and sinks against them; V is Any where each topic has its codec.

    ``group`` names the offsets in the ledger and the consumer group in Kafka. ``topics`` is a name, several
    names, or ``{name: value codec}`` (then without ``value``). ``value`` and ``key`` are codecs. At least one
    of ``sinks`` and ``handle`` says what is done; sinks write in their order, then ``handle(tx, batch)`` runs
    with the transaction's SQLAlchemy connection: everything in one transaction with the offset (I1).
    ``writes`` names the tables the handler writes, or gives the classes that are mapped to them. ``version`` is the
    handler's version: once a worker of a higher one has claimed, workers of older ones exit as outdated. ``start`` is
    the first position of a topic that the group has not read.

    A record whose handler raises is tried again as ``retry`` says; one that can never be applied is a poison
    record. ``on_poison="stop"``: its partition stops before it, earlier records are committed, other partitions
    continue; with ``strict=True`` a stopped partition ends the worker. ``"dead_letter"``: the transaction that passes
    its offset stores it in the ledger's table ``dead_letter``; ``"skip"``: in the same way, without its value. Past
    ``dead_letter_limits`` the worker stops. ``keep_key_order=True``: later records of a dead letter's key are
    dead-lettered, too, to be replayed in order (always with an ``Upsert`` that cannot decide which row is newer).
    ``delay``: a record is handled no earlier than its timestamp plus this.

    ``synchronous_commit=False`` is safe here: a crash of Postgres loses rows and offset together, and Kafka still has
    the records. It is not where other systems act on rows that they have read before that.

    Raises ConfigError where the declaration contradicts itself.
    """

    @overload
    def __init__(
        self: Pipeline[V, bytes],
        group: str,
        *,
        topics: str | Iterable[str],
        value: Codec[V],
        sinks: Sequence[Sink[V, bytes | None] | _CheckedLast[V]] = (),
        handle: Handler[V, bytes | None] | None = None,
        **options: Unpack[_Options],
    ) -> None: ...
    @overload
    def __init__(
        self,
        group: str,
        *,
        topics: str | Iterable[str],
        value: Codec[V],
        key: Codec[K],
        sinks: Sequence[Sink[V, K | None] | _CheckedLast[V]] = (),
        handle: Handler[V, K | None] | None = None,
        **options: Unpack[_Options],
    ) -> None: ...
    @overload
    def __init__(
        self: Pipeline[Any, bytes],
        group: str,
        *,
        topics: Mapping[str, Codec],
        sinks: Sequence[Sink[Any, bytes | None]] = (),
        handle: Handler[Any, bytes | None] | None = None,
        **options: Unpack[_Options],
    ) -> None: ...
    @overload
    def __init__(
        self: Pipeline[Any, K],
        group: str,
        *,
        topics: Mapping[str, Codec],
        key: Codec[K],
        sinks: Sequence[Sink[Any, K | None] | _CheckedLast[K]] = (),
        handle: Handler[Any, K | None] | None = None,
        **options: Unpack[_Options],
    ) -> None: ...
    def __init__(
        self,
        group: str,
        *,
        topics: str | Iterable[str] | Mapping[str, Codec],
        value: Codec | None = None,
        key: Codec = Bytes(),  # noqa: B008 -- immutable
        sinks: Sequence[Any] = (),
        handle: Handler | None = None,
        writes: Sequence[TableName] = (),
        version: int = 1,
        start: StartAt = StartAt.earliest(),  # noqa: B008 -- immutable
        retry: Retry = Retry(),  # noqa: B008 -- immutable
        on_poison: OnPoison | Literal["stop", "dead_letter", "skip"] = OnPoison.STOP,
        dead_letter_limits: DeadLetterLimits = DeadLetterLimits(),  # noqa: B008 -- immutable
        keep_key_order: bool | None = None,
        delay: timedelta | None = None,
        strict: bool = False,
        synchronous_commit: bool = True,
    ) -> None:
        self.group = _group(group)
        self.codecs = _codecs(topics, value)
        self.key = key
        self.handle: Handler[V, K | None] | None = handle
        self.sinks: tuple[Sink[V, K | None], ...] = _several("sinks", sinks, Sink)
        self.writes = tuple(".".join(table_path("writes=", table)) for table in _several("writes", writes, str))
        self.version, self.start, self.strict = version, start, strict
        self.retry, self.on_poison, self.dead_letter_limits = retry, _on_poison(on_poison), dead_letter_limits
        self.delay, self.synchronous_commit = delay, synchronous_commit
        self.keep_key_order = bool(keep_key_order)
        self._check()
        self._require_key_order(keep_key_order)

    def __repr__(self) -> str:
        return f"Pipeline({self.group!r}, topics={list(self.codecs)})"

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics' names, sorted."""
        return tuple(sorted(self.codecs))

    @property
    def tables(self) -> tuple[str, ...]:
        """Every table that the pipeline declares to write."""
        return tuple(sorted({*self.writes, *(table for sink in self.sinks for table in sink.tables)}))

    def tables_by_topic(self, translate: Translation | None = None) -> dict[str, tuple[str, ...]]:
        """The tables that each topic's records are written to, by sinks that take it and by the handler, as declared.

        ``translate`` is the engine's ``schema_translate_map``, which applies to the handler's statements; sinks write
        the table that they name.
        """
        writes = [translated(name, translate or {}) for name in self.writes]
        return {
            topic: tuple(sorted({*writes, *(name for s in self.sinks if s.takes(topic) for name in s.tables)}))
            for topic in self.topics
        }

    def check_tables(self, tx: Connection) -> tuple[str, ...]:
        """Check that the sinks' tables take their rows; returns all tables that are written, each with its schema.

        Raises ConfigError where a table, column or right is missing. The columns of rows that ``row=`` makes are not
        known before the first record. Of the tables in ``writes`` only the existence is checked: columns and rights
        that the handler needs are not known.
        """
        for sink in self.sinks:
            sink.check(tx, self.codecs_of(sink))
        return tuple(sorted({*self.sinks_tables(tx).values(), *self.handlers_tables(tx).values()}))

    def sinks_tables(self, tx: Connection) -> dict[str, str]:
        """The tables that sinks write on this connection, each with its schema, by the sink's name for it.

        A name that the connection finds no table by stays as it is: sinks of users may name other things.
        """
        names = [name for sink in self.sinks for name in sink.tables]
        return {**dict(zip(names, names, strict=True)), **with_schemas(tx, names)}

    def handlers_tables(self, tx: Connection) -> dict[str, str]:
        """The tables that the handler writes on this connection, each with its schema, by their names in ``writes``.

        Raises ConfigError for one that is missing.
        """
        translation = tx.get_execution_options().get("schema_translate_map") or {}
        names = {name: translated(name, translation) for name in self.writes}
        tables = with_schemas(tx, [*names.values()])
        for name, relation in names.items():
            if relation not in tables:
                raise ConfigError(
                    f"{self!r}: writes={name!r}: relation {relation!r} does not exist; create the table, or correct "
                    "its name (with its schema, where the search_path does not have it)"
                )
        return {name: tables[relation] for name, relation in names.items()}

    def codecs_of(self, sink: Sink) -> list[Codec]:
        """The codecs of this sink's topics."""
        return [codec for topic, codec in self.codecs.items() if sink.takes(topic)]

    def _check(self) -> None:
        if not self.sinks and self.handle is None:
            raise ConfigError(f"{self!r} does nothing: give it sinks=[...] or handle=...")
        for sink in self.sinks:
            if isinstance(sink, type) or not isinstance(sink, Sink):
                meant = "a function goes into handle=" if _is(sink, FunctionType) else "seekpoint.Append is one"
                if _is(sink, type):
                    meant = f'that is the class: write sinks=[{getattr(sink, "__name__", sink)}("table")]'
                raise ConfigError(f"{self!r}: {sink!r} is not a sink; {meant}")
            if not any(map(sink.takes, self.codecs)):
                raise ConfigError(f"{self!r}: {sink!r} takes none of the pipeline's topics; correct its topics=")
        if self.handle is not None:
            _check_handler(repr(self), self.handle)
        elif left := [topic for topic in self.topics if not any(sink.takes(topic) for sink in self.sinks)]:
            raise ConfigError(f"{self!r}: no sink takes {', '.join(left)}: its records would be read and thrown away")
        if not _is(self.version, int) or self.version < 1:
            raise ConfigError(f"{self!r}: version must be a number, 1 or greater, got {self.version!r}")
        if not _is(self.start, StartAt):
            raise ConfigError(f"{self!r}: start must be a StartAt, e.g. StartAt.earliest(), got {self.start!r}")
        self._check_failing()

    def _check_failing(self) -> None:
        """The codecs, the parameters about records that fail, and ``delay``."""
        key_decoder(self.key)  # raises ConfigError for what is no codec
        for codec in self.codecs.values():
            value_decoder(codec)
        for name, kind in (("retry", Retry), ("dead_letter_limits", DeadLetterLimits)):
            if not _is(getattr(self, name), kind):
                raise ConfigError(
                    f"{self!r}: {name} must be a {kind.__name__}, e.g. {kind.__name__}(), got {getattr(self, name)!r}"
                )
        if self.delay is not None and (not _is(self.delay, timedelta) or self.delay <= timedelta(0)):
            raise ConfigError(f"{self!r}: delay must be a timedelta above 0, got {self.delay!r}")
        if self.keep_key_order and self.on_poison is not OnPoison.DEAD_LETTER:
            raise ConfigError(
                f"{self!r}: keep_key_order=True dead-letters later records of a dead letter's key: it needs "
                "on_poison='dead_letter'"
            )

    def _require_key_order(self, declared: bool | None) -> None:
        """Keep the order of keys where a replayed record would overwrite its key's newer row.

        Raises ConfigError for a declaration that it shall not be kept there.
        """
        unguarded = [sink for sink in self.sinks if sink.guarded is False]
        if self.on_poison is not OnPoison.DEAD_LETTER or not unguarded:
            return
        if declared is False:
            raise ConfigError(
                f"{self!r}: keep_key_order=False: a replayed dead letter would overwrite its key's newer row in "
                f"{unguarded[0]!r}: name what orders its rows (order_by= or offset_column=), or leave keep_key_order= "
                "out"
            )
        self.keep_key_order = True


def shown_handler(handle: Handler) -> str:
    """The handler's name in messages: ``the handler module.name``."""
    return (
        f"the handler {getattr(handle, '__module__', '?')}.{getattr(handle, '__qualname__', type(handle).__qualname__)}"
    )


def _check_handler(pipeline: str, handle: object) -> None:
    if not callable(handle):
        raise ConfigError(f"{pipeline}: the handler must be a function handle(tx, batch), got {handle!r}")
    for function in (handle, getattr(handle, "__call__", None)):  # noqa: B004
        never = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
        if any(kind(function) for kind in never):
            raise ConfigError(
                f"{pipeline}: the handler is an async function or a generator, and would never run; write a plain "
                "function handle(tx, batch): the worker has a thread of its own"
            )
    try:
        signature = inspect.signature(handle)
        signature.bind(None, None)
    except TypeError as error:
        raise ConfigError(f"{pipeline}: the handler is called as handle(tx, batch): {error}") from None
    except ValueError:
        return  # a builtin whose signature is not known
    first = next(iter(signature.parameters.values()))
    if first.name == "batch" or _names_a_batch(first.annotation):
        raise ConfigError(
            f"{pipeline}: the handler is called as handle(tx, batch), and its first parameter {first.name!r} is a "
            "batch: put the transaction's connection first"
        )


def _names_a_batch(annotation: Any) -> bool:
    """Whether it is Batch, with or without its parameters, or the text of that."""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return text.split("[", 1)[0].rsplit(".", 1)[-1] == "Batch"


def _is(given: object, kind: type) -> bool:
    """Check a value's type at runtime: type checkers are optional."""
    return isinstance(given, kind)


def _several(name: str, given: Iterable[T], kind: type) -> tuple[T, ...]:
    if isinstance(given, type):
        raise ConfigError(f'{name}={given.__name__}: that is the class; write {name}=[{given.__name__}("table")]')
    if _is(given, kind):
        raise ConfigError(f"{name}= takes several: write {name}=[{given!r}]")
    return tuple(given)


def _group(name: str) -> str:
    if not _is(name, str) or not name.strip() or "\0" in name:
        raise ConfigError(f"a group needs a name that is not blank and has no NUL characters, got {name!r}")
    return name


def _on_poison(given: str) -> OnPoison:
    try:
        return OnPoison(given)
    except ValueError:
        known = ", ".join(repr(one.value) for one in OnPoison)
        raise ConfigError(f"on_poison must be one of {known}, got {given!r}") from None


def _codecs(topics: str | Iterable[str] | Mapping[str, Codec], value: Codec | None) -> dict[str, Codec]:
    if isinstance(topics, Mapping):
        if value is not None:
            raise ConfigError("give the value codecs either in topics={name: codec} or as value=, not both")
        codecs = dict(topics)
    else:
        names: Collection[str] = [topics] if isinstance(topics, str) else list(topics)
        if value is None:
            raise ConfigError("value= is missing: e.g. value=Json(Order), or value=Bytes() to keep the bytes")
        codecs = dict.fromkeys(names, value)
    if not codecs:
        raise ConfigError("a pipeline needs at least one topic")
    for topic in codecs:
        if not _is(topic, str) or not _TOPIC.fullmatch(topic) or topic in {".", ".."}:
            raise ConfigError(
                f"{topic!r} cannot be a topic: names have 1 to 249 characters of a-z, A-Z, 0-9, '.', '_' and '-'"
            )
    return codecs
