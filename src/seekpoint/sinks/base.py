"""The base class of sinks: a table, and the rows that a record becomes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import tzinfo
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, get_origin

from sqlalchemy import Connection

from seekpoint.codecs import Codec
from seekpoint.codecs.value_types import field_names
from seekpoint.errors import ConfigError
from seekpoint.pipeline.pattern import Pattern
from seekpoint.pipeline.provenance import provenance_columns
from seekpoint.pipeline.sink import K_contra, V_contra
from seekpoint.pipeline.table_path import TableName, TableOfTopic, names_tables, shown_table, table_path
from seekpoint.records import Record
from seekpoint.sinks.conversions import conversions
from seekpoint.sinks.declared_types import check_fields
from seekpoint.sinks.event_values import EventRules
from seekpoint.sinks.names import require_short_names, require_whole_names

if TYPE_CHECKING:
    from seekpoint.sinks.column_type import ColumnTypes

_UNNAMED = (str, bytes, int, float, dict, list, tuple, set, frozenset)  # types whose values do not name their columns
ORIGINS = ("topic", "partition", "offset")  # what ``provenance=`` may name


# Not a subclass of Sink: Upsert[V] and Accumulate[V] also take tombstones, so they are a Sink[V | None], which only
# structural typing can see.
class TableSink(Generic[V_contra, K_contra]):
    """A table that rows are written to; :class:`Append`, :class:`Upsert` and :class:`Accumulate` say how."""

    key: tuple[str, ...] = ()
    #: Which DataFrames of a SparkPipeline the sink takes: those whose rows come from one record each (True), those
    #: whose rows may sum up several (False), or none (None).
    keeps_records: ClassVar[bool | None] = None

    def __init__(
        self,
        table: TableName | TableOfTopic,
        *,
        columns: Sequence[str] | None = None,
        row: Callable[[Record[V_contra, K_contra]], Any] | None = None,
        rows: Callable[[Record[V_contra, K_contra]], Iterable[Any]] | None = None,
        topics: Collection[str] | None = None,
        provenance: Mapping[str, str] | Sequence[str] | None = None,
        round: bool = False,  # noqa: A002
        timezone: str | tzinfo | None = None,
    ) -> None:
        me = f"{type(self).__name__}({shown_table(table)})"
        self._name = me
        self._table_of: TableOfTopic | None = None
        self.path: tuple[str, ...] = ()
        if names_tables(table):
            self._table_of = table
        else:
            self.path = table_path(me, table)
        require_whole_names(me, self.path)
        if row is not None and rows is not None:
            raise ConfigError(f"{me}: give row= or rows=, not both")
        if isinstance(columns, str) or (columns is not None and not columns):
            raise ConfigError(f"{me}: columns must be a sequence of names, got {columns!r}")
        if columns is not None and len({*columns}) < len(columns):
            raise ConfigError(f"{me}: columns= names a column twice: {', '.join(columns)}")
        self.columns = None if columns is None else tuple(columns)
        self.provenance = provenance_columns(f"{me}: ", provenance, ORIGINS)
        self.conversions = conversions(me, round=round, timezone=timezone)
        self.row_of, self.rows_of = row, rows
        if isinstance(topics, Pattern):
            raise ConfigError(f"{me}: topics= names some topics of the pipeline, and {topics!r} is none: leave it out")
        self._topics = None if topics is None else frozenset([topics] if isinstance(topics, str) else topics)
        if self.columns is not None:
            self.require_columns(self.columns)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'.'.join(self.path)!r})" if self.path else self._name

    @property
    def tables(self) -> tuple[str, ...]:
        """The written table, as ``schema.table`` or ``table``; none if a function names each topic's table."""
        return (".".join(self.path),) if self.path else ()

    @property
    def guarded(self) -> bool | None:
        """Whether older records never overwrite the row of a newer one; None if each record adds rows."""
        return None

    keeps_first = False
    empties = False
    needs_order = False
    # Conversions for values of change events, which come before those of all sinks.
    event_rules: EventRules | None = None

    @property
    def aggregates(self) -> bool:
        """Whether each record is added to its key's row, so that applying it again counts it twice."""
        return False

    @property
    def compares_offsets(self) -> bool:
        """Whether a row's offset alone says which row is newer, so that all its records must be of one topic."""
        return False

    @property
    def written(self) -> tuple[str, ...] | None:
        """Every written column, in the order of the rows; None if the first row decides."""
        return None if self.columns is None else (*self.columns, *self.provenance.values())

    def check(self, tx: Connection, codecs: Collection[Codec] = (), key: Codec | None = None) -> str:  # noqa: ARG002
        """The statement that writes its rows: ``"copy"`` or ``"insert"``.

        Raises ConfigError if the table, a column or a privilege is missing, or a column cannot hold a field unchanged.
        """
        from seekpoint.sinks.check import check_append  # noqa: PLC0415 -- a declaration needs no database driver

        columns = self.expected(codecs)
        require_whole_names(repr(self), columns or ())
        how, types = check_append(tx, repr(self), self.path, columns)
        self.check_fields(codecs, types)
        return how

    def check_fields(self, codecs: Collection[Codec], types: ColumnTypes) -> None:
        """Raise ConfigError for a field of the values that the table's column cannot hold unchanged."""
        if self.row_of is None and self.rows_of is None:
            check_fields(repr(self), codecs, self.columns, types, self.conversions)

    def expected(self, codecs: Collection[Codec]) -> tuple[str, ...] | None:
        """The declared columns; without these, the fields of the only type that codecs decode to; None if unknown."""
        kinds = [getattr(codec, "type", None) for codec in codecs]
        kind = next(iter(kinds), None)
        if self.written is not None or self.row_of is not None or self.rows_of is not None:
            return self.written
        origin = get_origin(kind) or kind  # the class of a generic Struct
        if not isinstance(origin, type) or any(other != kind for other in kinds):
            return None
        if issubclass(origin, _UNNAMED):
            raise self.unnamed(origin)
        return None if (fields := field_names(origin)) is None else (*fields, *self.provenance.values())

    def unnamed(self, kind: type) -> ConfigError:
        """The error of a sink without ``columns=`` whose rows are of a type without fields."""
        return ConfigError(
            f"{self!r}: rows of type {kind.__name__} do not name their columns; give columns=[...], or decode into a "
            "Struct, dataclass, attrs class or Pydantic model, e.g. value=Json(Order)"
        )

    def without_tombstones(self) -> Self:
        """A copy that deletes no rows, and needs no DELETE privilege."""
        return copy.copy(self)

    @property
    def takes_every_topic(self) -> bool:
        """Whether ``topics=`` was left out."""
        return self._topics is None

    def takes(self, topic: str) -> bool:
        """Whether records of this topic go to the table."""
        return self._topics is None or topic in self._topics

    def by_topic(self, pattern: Pattern | None) -> Callable[[str], Any] | None:
        """The function that makes each topic's sink, if a match or a function names the table; otherwise None.

        Raises ConfigError if the sink cannot have a table for each topic; the function, for a topic without a table.
        """
        named = self._topics or frozenset()
        if pattern is not None and (others := sorted(named.difference(pattern.matching(named)))):
            raise ConfigError(
                f"{self!r}: topics= names {', '.join(others)}, which {pattern!r} does not match: correct one of them"
            )
        table_of: TableOfTopic | None = self._table_of
        if table_of is None and pattern is not None:
            table_of = pattern.table_of(repr(self), self.path)
        if table_of is None:
            return None
        if pattern is None:
            raise ConfigError(
                f"{self!r}: a function names the table of each topic that a pattern matches: give topics=Pattern(...), "
                "or name the table"
            )
        if self._topics is not None:
            raise ConfigError(f"{self!r} has a table for each topic that the pattern matches: leave out its topics=")
        return partial(self._of_topic, table_of)

    def _of_topic(self, table_of: TableOfTopic, topic: str) -> Self:
        try:
            table = table_of(topic)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(f"{self!r} raised {type(error).__name__} for topic {topic!r}: {error}") from error
        sink = copy.copy(self)
        sink.path = table_path(f"{self!r}, topic {topic!r}", table)
        require_short_names(repr(self), topic, sink.path)
        sink._table_of, sink._topics = None, frozenset({topic})  # noqa: SLF001 -- of the same class
        return sink

    def require_columns(self, columns: tuple[str, ...]) -> None:
        """Raise ConfigError if these columns of the rows contradict the rest of the declaration."""
        if twice := sorted({*columns} & {*self.provenance.values()}):
            raise ConfigError(
                f"{self!r}: {', '.join(twice)} would be written twice, from the row and as provenance: omit it from "
                "the row with columns=[...], or give the provenance another name"
            )
        require_whole_names(repr(self), (*columns, *self.provenance.values()))
