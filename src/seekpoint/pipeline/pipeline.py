"""The declaration ``Pipeline``: topics, codecs, sinks, handler and policies of a group.

It does no I/O and holds no engine and no secrets: workers, the command line and tests import it by name. Importing
this module needs neither a database driver nor a Kafka client.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from types import FunctionType
from typing import Any, Generic, Literal, Never, Self, TypedDict, Unpack, get_args, overload

from sqlalchemy import Connection
from typing_extensions import TypeVar

from seekpoint.codecs import Bytes, Codec
from seekpoint.codecs.codec import key_decoder, value_decoder
from seekpoint.errors import ConfigError
from seekpoint.pipeline.handler import check_handler, shown_handler
from seekpoint.pipeline.pattern import Pattern
from seekpoint.pipeline.policy import DeadLetterLimits, OnPoison, Retry, RetryOrder, StartAt
from seekpoint.pipeline.sink import AsyncHandler, Handler, K, Sink, V
from seekpoint.pipeline.table_path import TableName, table_path
from seekpoint.pipeline.written_tables import Translation, translated, with_schemas

T = TypeVar("T")

# No argument has this type. Because of it mypy checks sinks after other arguments, as it does for types with a
# callable: it infers V from ``value=``, and checks each sink, and each lambda in it, against V.
_CheckedLast = Callable[[V], Never]

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")  # topic names that a broker accepts


class _Options(TypedDict, total=False):
    """Parameters of a pipeline that do not depend on the types of keys and values."""

    writes: Sequence[TableName]
    version: int
    start: StartAt
    retry: Retry
    retry_order: RetryOrder
    on_poison: OnPoison | Literal["stop", "dead_letter", "skip"]
    dead_letter_limits: DeadLetterLimits
    keep_key_order: bool | None
    delay: timedelta | None
    resources: Callable[[], AbstractAsyncContextManager[Any]] | None


class Pipeline(Generic[V, K]):
    """Declares what a group of workers does with some topics' records.

    ``Pipeline[V, K]``: values are decoded into V and keys into K; a record without a key has None. Type checkers infer
    both from the codecs, and check handlers, ``row=`` and sinks against them; V is Any if each topic has its own codec.

    ``group`` names the offsets in the ledger and the consumer group in Kafka. ``topics`` is a name, several
    names, ``{name: value codec}`` (then without ``value``), or a :class:`Pattern`, whose topics a worker finds as they
    are created. ``value`` and ``key`` are codecs. At least one of ``sinks`` and ``handle`` (or the decorator
    :meth:`handler`) is required: sinks write in their order, then ``handle(tx, batch)`` runs with the transaction's
    SQLAlchemy connection, all in one transaction with the offset (I1). ``writes`` are the tables that the handler
    writes, by name or mapped class. ``version`` is the handler's version: once a worker of a higher version has
    claimed, workers of lower versions exit as outdated. ``start`` is the first position of a topic that the group has
    not read.

    A record whose handler raises is retried as ``retry`` says; a record that can never be applied is poison.
    ``retry_order`` says which records wait meanwhile: all of its ``"partition"``, those of its ``"key"``, or
    ``"none"``; with the last two the record waits in the ledger, where at most ``Limits.waiting`` records of a
    partition wait. ``on_poison="stop"``: the partition stops before a poison record, earlier records are committed,
    other partitions continue. ``"dead_letter"``: the transaction that passes the record's offset stores the record in
    the ledger's table ``dead_letter``; ``"skip"``: it is stored there without its value. Beyond ``dead_letter_limits``
    the worker stops. ``keep_key_order=True``: later records with a dead letter's key become dead letters, to be
    replayed in order (always on with an ``Upsert`` that cannot decide which row is newer). ``delay``: a record is
    handled no earlier than its timestamp plus ``delay``.

    Raises ConfigError if the declaration contradicts itself.
    """

    @overload
    def __init__(
        self: Pipeline[V, bytes],
        group: str,
        *,
        topics: str | Iterable[str] | Pattern,
        value: Codec[V],
        sinks: Sequence[Sink[V, bytes | None] | _CheckedLast[V]] = (),
        handle: Handler[V, bytes | None] | AsyncHandler[V, bytes | None] | None = None,
        **options: Unpack[_Options],
    ) -> None: ...
    @overload
    def __init__(
        self,
        group: str,
        *,
        topics: str | Iterable[str] | Pattern,
        value: Codec[V],
        key: Codec[K],
        sinks: Sequence[Sink[V, K | None] | _CheckedLast[V]] = (),
        handle: Handler[V, K | None] | AsyncHandler[V, K | None] | None = None,
        **options: Unpack[_Options],
    ) -> None: ...
    @overload
    def __init__(
        self: Pipeline[Any, bytes],
        group: str,
        *,
        topics: Mapping[str, Codec],
        sinks: Sequence[Sink[Any, bytes | None]] = (),
        handle: Handler[Any, bytes | None] | AsyncHandler[Any, bytes | None] | None = None,
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
        handle: Handler[Any, K | None] | AsyncHandler[Any, K | None] | None = None,
        **options: Unpack[_Options],
    ) -> None: ...
    def __init__(
        self,
        group: str,
        *,
        topics: str | Iterable[str] | Pattern | Mapping[str, Codec],
        value: Codec | None = None,
        key: Codec = Bytes(),  # noqa: B008 -- immutable
        sinks: Sequence[Any] = (),
        handle: Handler | AsyncHandler | None = None,
        writes: Sequence[TableName] = (),
        version: int = 1,
        start: StartAt = StartAt.earliest(),  # noqa: B008 -- immutable
        retry: Retry = Retry(),  # noqa: B008 -- immutable
        retry_order: RetryOrder = "partition",
        on_poison: OnPoison | Literal["stop", "dead_letter", "skip"] = OnPoison.STOP,
        dead_letter_limits: DeadLetterLimits = DeadLetterLimits(),  # noqa: B008 -- immutable
        keep_key_order: bool | None = None,
        delay: timedelta | None = None,
        resources: Callable[[], AbstractAsyncContextManager[Any]] | None = None,
    ) -> None:
        self.group = _group(group)
        self.pattern = topics if isinstance(topics, Pattern) else None
        self.codecs = _codecs(topics, value)
        self._value = value
        self.key = key
        self.handle: Handler[V, K | None] | AsyncHandler[V, K | None] | None = handle
        self.resources = resources
        self.sinks: tuple[Sink[V, K | None], ...] = _several("sinks", sinks, Sink)
        self.writes = tuple(".".join(table_path("writes=", table)) for table in _several("writes", writes, str))
        self.version, self.start = version, start
        self.retry, self.on_poison, self.dead_letter_limits = retry, _on_poison(on_poison), dead_letter_limits
        self.retry_order, self.delay = retry_order, delay
        self.keep_key_order = bool(keep_key_order)
        self._is_taken = False
        self._check()
        self._declared = tuple((sink, sink.by_topic(self.pattern)) for sink in self.sinks)
        self._own: dict[str, dict[int, Sink[V, K | None]]] = {}  # indexes of the sinks that take a pattern's topics
        self.without_table: dict[str, str] = {}  # reasons why topics of a pattern have no table
        self._compared: dict[str, str] = {}  # by table in which offsets are compared: the topic that writes it
        for topic in self.topics:
            for sink, other in self._sharing(topic):
                raise ConfigError(_one_table(sink, other, topic))
        self._check_retry_order(keep_key_order)
        self._require_key_order(keep_key_order)

    def __repr__(self) -> str:
        return f"Pipeline({self.group!r}, topics={self.pattern or list(self.codecs)})"

    @overload
    def handler(self, function: AsyncHandler[V, K | None]) -> AsyncHandler[V, K | None]: ...
    @overload
    def handler(self, function: Handler[V, K | None]) -> Handler[V, K | None]: ...
    def handler(self, function: Any) -> Any:
        """Decorate the handler function, instead of ``handle=``. Returns the function unchanged.

        Raises ConfigError if the pipeline has a handler or is in use, or if the function cannot be a handler.
        """
        if self.handle is not None:
            raise ConfigError(
                f"{self!r} already has {shown_handler(self.handle)}, and a pipeline has only one: call the second "
                "function from it"
            )
        if self._is_taken:
            raise ConfigError(
                f"a worker, a job or a command already uses {self!r}: decorate its handler before that, in the module "
                "that declares it"
            )
        check_handler(repr(self), function, self.resources)
        self.handle = function
        return function

    def taken(self) -> Self:
        """Mark the pipeline as in use, so that no handler can be added. Workers, jobs and commands call it first.

        Raises ConfigError if no sink or handler takes the records of a topic.
        """
        if self.handle is None:
            if not self.sinks:
                raise ConfigError(
                    f"{self!r} does nothing: give it sinks=[...] or handle=..., or decorate a function with "
                    "@pipeline.handler"
                )
            if self.resources is not None:
                raise ConfigError(f"{self!r}: resources= are for an async handler, but the pipeline has none")
            if self.retry_order != "partition":
                raise ConfigError(
                    f"{self!r}: retry_order={self.retry_order!r} is for records whose handler raises, but the "
                    "pipeline has no handler: omit retry_order="
                )
            if unhandled := [topic for topic in self.topics if not any(sink.takes(topic) for sink in self.sinks)]:
                raise ConfigError(
                    f"{self!r}: no sink takes records of {', '.join(unhandled)}, which would be read and dropped: add "
                    "a sink, or remove the topic from topics="
                )
        self._is_taken = True
        return self

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics' names, sorted."""
        return tuple(sorted(self.codecs))

    @property
    def tables(self) -> tuple[str, ...]:
        """Every table in the pipeline's declaration."""
        return tuple(sorted({*self.writes, *(table for sink in self.sinks for table in sink.tables)}))

    def tables_by_topic(self, translate: Translation | None = None) -> dict[str, tuple[str, ...]]:
        """The declared tables of sinks and handler, by the topics whose records they take.

        ``translate`` is the engine's ``schema_translate_map``, which applies to the handler's statements; sinks write
        the table that they name.
        """
        return {topic: self.tables_of(topic, translate) for topic in self.topics}

    def tables_of(self, topic: str, translate: Translation | None = None) -> tuple[str, ...]:
        """The tables of one topic, as in :meth:`tables_by_topic`."""
        writes = [translated(name, translate or {}) for name in self.writes]
        return tuple(sorted({*writes, *(name for sink in self.sinks_of(topic) for name in sink.tables)}))

    def sinks_of(self, topic: str) -> list[Sink[V, K | None]]:
        """The sinks that take records of this topic."""
        return [sink for sink in self.sinks if sink.takes(topic)]

    def check_tables(self, tx: Connection) -> tuple[str, ...]:
        """Check that the sinks' tables take their rows; returns all written tables, each with its schema.

        Raises ConfigError if a table, column or privilege is missing. The columns of rows that ``row=`` makes are not
        known before the first record. Tables in ``writes`` must exist, but the columns and privileges that the handler
        needs are not known. :meth:`check_topic` checks the tables of a pattern's topics.
        """
        own = {id(sink) for sinks in self._own.values() for sink in sinks.values()}
        for sink in self.sinks:
            if id(sink) not in own:
                sink.check(tx, self.codecs_of(sink), self.key)
        return tuple(sorted({*self.sinks_tables(tx).values(), *self.handlers_tables(tx).values()}))

    def require_names(self, reader: str) -> Self:
        """Return the pipeline if it names its topics; raises ConfigError for topics by pattern, which workers find."""
        if self.pattern is not None:
            raise ConfigError(
                f"{self!r}: {reader} takes topics by name, and only a worker finds them by pattern: give it "
                "pipeline.with_topics('NAME', ...)"
            )
        return self

    def with_topics(self, *topics: str) -> Self:
        """The pipeline restricted to some of its topics, for jobs, replays and tests; with a pattern, this names
        topics.

        Raises ConfigError for a topic that the pipeline does not read, or for which no table can be named.
        """
        if self.pattern is None:
            if not topics or {*topics} - {*self.codecs}:
                raise ConfigError(f"{self!r}: with_topics() takes some of its topics, got {list(topics)}")
            other = copy.copy(self)
            other.codecs = {topic: self.codecs[topic] for topic in topics}
            other.sinks = tuple(sink for sink in self.sinks if any(map(sink.takes, topics)))
            return other
        if not topics:
            raise ConfigError(f"{self!r}: a pattern does not say which topics there are: name at least one")
        other = self.for_worker()
        for topic in topics:
            if not _is(topic, str) or not self.pattern.matching([topic]):
                raise ConfigError(f"{self!r}: topic {topic!r} does not match the pattern as a whole")
            other.add_topic(topic)
            if topic in other.without_table:
                raise ConfigError(other.without_table[topic])
        other.pattern, other._own = None, {}  # noqa: SLF001 -- of the same class
        return other

    def check_topic(self, tx: Connection, topic: str) -> None:
        """Check the tables that only this topic of the pattern has. Raises ConfigError as :meth:`check_tables` does."""
        if topic in self.without_table:
            raise ConfigError(self.without_table[topic])
        for sink in self._own[topic].values():
            sink.check(tx, [self.codecs[topic]], self.key)

    def for_worker(self) -> Self:
        """The pipeline itself; with a pattern, a copy without topics, to which one worker adds matching ones."""
        if self.pattern is None:
            return self
        other = copy.copy(self)
        other.codecs, other.without_table = {}, {}
        other._own, other._compared = {}, {}  # noqa: SLF001 -- of the same class
        other._expand()  # noqa: SLF001
        return other

    def add_topic(self, topic: str) -> None:
        """Add a topic that the pattern matches, with its sinks. ``without_table`` is the reason if it has no table."""
        assert self._value is not None
        self.codecs[topic] = self._value
        self._own[topic] = {}
        try:
            self._own[topic] = {n: make(topic) for n, (_, make) in enumerate(self._declared) if make is not None}
        except ConfigError as error:
            self.without_table[topic] = error.text
        self._expand()
        self._require_own_tables(topic)
        if self.handle is None and not any(sink.takes(topic) for sink in self.sinks):
            self.without_table.setdefault(topic, f"{self!r}: no sink takes records of {topic}: add one")

    def _require_own_tables(self, topic: str) -> None:
        """Give neither topic a table if this topic's offsets would be compared with another topic's.

        Both stop. Otherwise the order in which topics are found would decide which of them is read.
        """
        for sink, other in self._sharing(topic):
            for name, neighbour in ((topic, other), (other, topic)):
                self.without_table.setdefault(name, _one_table(sink, name, neighbour))

    def _sharing(self, topic: str) -> Iterator[tuple[Sink[V, K | None], str]]:
        """The topic's sinks that compare offsets in the table of an earlier topic, each with that topic."""
        for sink in self.sinks_of(topic):
            for table in sink.tables if sink.compares_offsets else ():
                other = self._compared.setdefault(table, topic)
                if other != topic:
                    yield sink, other

    def _expand(self) -> None:
        """Replace each declared sink with the sinks of its topics."""
        expanded: list[Sink[V, K | None]] = []
        for n, (declared, make) in enumerate(self._declared):
            expanded += [declared] if make is None else [own[n] for own in self._own.values() if n in own]
        self.sinks = tuple(expanded)

    def sinks_tables(self, tx: Connection) -> dict[str, str]:
        """The tables that sinks write on this connection, each with its schema, by the sink's name for the table.

        A name that is not a table on this connection stays unchanged, because users' sinks may name other things.
        """
        names = [name for sink in self.sinks for name in sink.tables]
        return {**dict(zip(names, names, strict=True)), **with_schemas(tx, names)}

    def handlers_tables(self, tx: Connection) -> dict[str, str]:
        """The tables that the handler writes on this connection, each with its schema, by their names in ``writes``.

        Raises ConfigError if a table is missing.
        """
        translation = tx.get_execution_options().get("schema_translate_map") or {}
        names = {name: translated(name, translation) for name in self.writes}
        tables = with_schemas(tx, [*names.values()])
        for name, relation in names.items():
            if relation not in tables:
                raise ConfigError(
                    f"{self!r}: writes={name!r}: relation {relation!r} does not exist; create the table, or correct "
                    "its name (with its schema, if the search_path does not have it)"
                )
        return {name: tables[relation] for name, relation in names.items()}

    def codecs_of(self, sink: Sink) -> list[Codec]:
        """The codecs of this sink's topics."""
        return [codec for topic, codec in self.codecs.items() if sink.takes(topic)]

    def _check(self) -> None:
        for sink in self.sinks:
            if isinstance(sink, type) or not isinstance(sink, Sink):
                meant = "a function goes into handle=" if _is(sink, FunctionType) else "seekpoint.Append is one"
                if _is(sink, type):
                    meant = f'that is the class: write sinks=[{getattr(sink, "__name__", sink)}("table")]'
                raise ConfigError(f"{self!r}: {sink!r} is not a sink; {meant}")
            if self.pattern is None and not any(map(sink.takes, self.codecs)):
                raise ConfigError(f"{self!r}: {sink!r} takes none of the pipeline's topics; correct its topics=")
            if sink.empties:
                self._require_one_writer(sink)
        if self.handle is not None:
            check_handler(repr(self), self.handle, self.resources)
        if not _is(self.version, int) or self.version < 1:
            raise ConfigError(f"{self!r}: version must be a whole number, 1 or greater, got {self.version!r}")
        if not _is(self.start, StartAt):
            raise ConfigError(f"{self!r}: start must be a StartAt, e.g. StartAt.earliest(), got {self.start!r}")
        if self.pattern is not None and self.start.kind not in {"earliest", "time"}:
            raise ConfigError(
                f"{self!r}: StartAt.{self.start.kind} is no first position for topics that are found later: give "
                "StartAt.earliest() or StartAt.time(...)"
            )
        self._check_failing()

    def _require_one_writer(self, sink: Sink) -> None:
        """Raise ConfigError if a truncate of the sink would delete rows of another topic or sink."""
        if self.pattern is not None:
            raise ConfigError(f"{self!r}: {sink!r}: truncate= needs topics by name, as each must have one partition")
        if len(self.codecs_of(sink)) > 1:
            raise ConfigError(
                f"{self!r}: {sink!r} takes several topics, and a truncate in one would delete the rows of all: narrow "
                "it with topics=, or omit truncate="
            )
        if len([other for other in self.sinks if {*other.tables} & {*sink.tables}]) > 1:
            raise ConfigError(
                f"{self!r}: another sink writes the table of {sink!r}, and a truncate would delete its rows: omit "
                "truncate="
            )

    def _check_failing(self) -> None:
        """Check the codecs, the parameters for records that fail, and ``delay``."""
        key_decoder(self.key)  # raises ConfigError for an invalid codec
        for codec in self.codecs.values() if self._value is None else (self._value,):
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

    def _check_retry_order(self, keep_key_order: bool | None) -> None:
        """Check which records continue during a retry's wait; ``"key"`` turns ``keep_key_order`` on."""
        order, choices = self.retry_order, get_args(RetryOrder)
        if order not in choices:
            raise ConfigError(f"{self!r}: retry_order must be one of {', '.join(map(repr, choices))}, got {order!r}")
        if order == "partition":
            return
        me = f"{self!r}: retry_order={order!r}"
        if self.on_poison is not OnPoison.DEAD_LETTER:
            raise ConfigError(
                f"{me}: the position passes a record that waits for its retry, so after its last attempt the record "
                "can only be a dead letter: add on_poison='dead_letter'"
            )
        if self.retry.attempts == 1:
            raise ConfigError(f"{me}: with Retry(attempts=1) no record waits for a retry: omit retry_order=")
        if order == "key" and keep_key_order is False:
            raise ConfigError(
                f"{me} keeps the order of each key, also after a dead letter: omit keep_key_order=False, or give "
                "retry_order='none'"
            )
        if order == "none" and keep_key_order:
            raise ConfigError(
                f"{me}: a record that waits for its retry is overtaken by later ones of its key, which "
                "keep_key_order=True forbids: give retry_order='key'"
            )
        for sink in self.sinks:
            self._require_any_order(me, sink)
        self.keep_key_order = order == "key"

    def _require_any_order(self, me: str, sink: Sink) -> None:
        """Raise ConfigError if the sink's rows depend on the order of a partition's records."""
        if sink.needs_order:
            raise ConfigError(
                f"{me}: {sink!r} applies changes in the order of the log: give retry_order='partition', or omit it"
            )
        if sink.keeps_first:
            raise ConfigError(
                f"{me}: {sink!r} keeps the first row of a key, and a retried record's row would come too late: give "
                "retry_order='partition', or omit it"
            )
        if sink.guarded is False:
            raise ConfigError(
                f"{me}: a retried record would overwrite a newer row in {sink!r}: name the column that orders its "
                "rows (order_by= or offset_column=), or omit retry_order="
            )

    def _require_key_order(self, declared: bool | None) -> None:
        """Turn ``keep_key_order`` on if a replayed record would overwrite its key's newer row.

        Raises ConfigError if the declaration turns it off.
        """
        unguarded = [sink for sink in self.sinks if sink.guarded is False]
        if self.on_poison is not OnPoison.DEAD_LETTER or not unguarded:
            return
        if declared is False and unguarded[0].keeps_first:
            raise ConfigError(
                f"{self!r}: keep_key_order=False: later records of a dead letter's key would give {unguarded[0]!r} its "
                "first row, which the replay could not: leave keep_key_order= out"
            )
        if declared is False:
            raise ConfigError(
                f"{self!r}: keep_key_order=False: a replayed dead letter would overwrite its key's newer row in "
                f"{unguarded[0]!r}: name the column that orders its rows (order_by= or offset_column=), or omit "
                "keep_key_order="
            )
        self.keep_key_order = True


def _is(argument: object, kind: type) -> bool:
    """Check a value's type at runtime: type checkers are optional."""
    return isinstance(argument, kind)


def _one_table(sink: Sink, topic: str, other: str) -> str:
    return (
        f"{sink!r}: topics {topic!r} and {other!r} have the same table, and offsets of different topics do not say "
        "which row is newer: store both with provenance={'topic': 'COLUMN', 'partition': 'COLUMN'}, so that only "
        "offsets of one partition are compared; or name the column that orders the rows of both, order_by= instead of "
        "offset_column=; or let only one of them write the table"
    )


def _several(name: str, argument: Iterable[T], kind: type) -> tuple[T, ...]:
    if isinstance(argument, type):
        example = argument.__name__ if name == "writes" else f'{argument.__name__}("table")'
        raise ConfigError(f"{name}={argument.__name__}: that is the class; write {name}=[{example}]")
    if _is(argument, kind) or not _is(argument, Iterable):
        raise ConfigError(f"{name}= takes a sequence: write {name}=[{argument!r}]")
    return tuple(argument)


def _group(name: str) -> str:
    if not _is(name, str) or not name.strip() or "\0" in name:
        raise ConfigError(f"a group needs a name that is not blank and has no NUL characters, got {name!r}")
    return name


def _on_poison(choice: str) -> OnPoison:
    try:
        return OnPoison(choice)
    except ValueError:
        choices = ", ".join(repr(policy.value) for policy in OnPoison)
        raise ConfigError(f"on_poison must be one of {choices}, got {choice!r}") from None


def _codecs(topics: str | Iterable[str] | Pattern | Mapping[str, Codec], value: Codec | None) -> dict[str, Codec]:
    if _is(topics, re.Pattern):
        raise ConfigError(f"topics=re.compile(...): give topics=Pattern({topics.pattern!r})")  # type: ignore[union-attr]
    if isinstance(topics, Mapping):
        if value is not None:
            raise ConfigError("give the value codecs either in topics={name: codec} or as value=, not both")
        codecs = dict(topics)
    else:
        if not isinstance(topics, str | Iterable | Pattern):
            raise ConfigError(f"topics= takes a name, a list of names, {{name: codec}} or a Pattern, got {topics!r}")
        names: Collection[str] = (
            [topics] if isinstance(topics, str) else () if isinstance(topics, Pattern) else list(topics)
        )
        if value is None:
            raise ConfigError("value= is missing: e.g. value=Json(Order), or value=Bytes() to keep the bytes")
        codecs = dict.fromkeys(names, value)
    if not codecs and not isinstance(topics, Pattern):
        raise ConfigError("a pipeline needs at least one topic")
    for topic in codecs:
        if isinstance(topic, Pattern):
            raise ConfigError(f"{topic!r} is not one of several topics: give topics={topic!r}, and its codec as value=")
        if not _is(topic, str) or not _TOPIC.fullmatch(topic) or topic in {".", ".."}:
            raise ConfigError(
                f"{topic!r} cannot be a topic: a name has 1 to 249 characters of a-z, A-Z, 0-9, '.', '_' and '-'; to "
                "give a regular expression, write topics=Pattern(...)"
            )
    return codecs
