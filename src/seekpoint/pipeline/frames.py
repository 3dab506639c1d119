"""The declaration ``SparkPipeline``: functions from the records' DataFrame to one DataFrame for each table.

Like :class:`Pipeline`, it needs no server, and neither pyspark nor pyarrow.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from seekpoint.codecs import Bytes, Codec
from seekpoint.codecs.value_types import type_with_fields
from seekpoint.errors import ConfigError
from seekpoint.pipeline.pattern import Pattern
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.pipeline.policy import DeadLetterLimits, OnPoison, StartAt
from seekpoint.pipeline.table_path import TableName, table_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    FrameFunction = Callable[..., DataFrame]

RECORD = ("topic", "partition", "offset", "timestamp", "key", "headers")  # Kafka's columns, in addition to the value's


@dataclass(frozen=True, slots=True)
class Frame:
    """Declares one table's rows: ``function`` makes them from the records' DataFrame, ``sink`` writes them.

    ``function(records)`` returns a DataFrame; its other parameters are inputs of the pipeline, by name. It runs in the
    driver for each micro-batch, and only builds Spark's plan. **It must merge**: to write its rows for two ranges of
    records separately must have the same result as for both ranges together. So ``Append`` and ``Upsert`` take plans
    that work row by row and keep the columns "partition" and "offset" (with several topics "topic", too): filters,
    expressions, explode, unions, joins with other data. ``Accumulate`` also takes one ``groupBy`` over such a plan,
    with sum, count, min and max. A plan that does not merge is refused before anything is read.

    Kafka's columns identify a row's record, and are not written unless ``columns=`` of the sink names them;
    ``provenance=`` writes them under other names. All other columns are written, or only those in ``columns=``.

    Raises ConfigError for a function with other parameters, or a sink that makes rows from records (``row=``).
    """

    function: FrameFunction
    sink: Any

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ConfigError(f"a frame's function takes the records' DataFrame and returns one, got {self.function!r}")
        if inspect.iscoroutinefunction(self.function) or inspect.isgeneratorfunction(self.function):
            raise ConfigError(
                f"{self.name}: write a plain function that returns a DataFrame, not an async function or generator"
            )
        _ = self.inputs
        if isinstance(self.sink, type) or getattr(self.sink, "keeps_records", None) is None:
            raise ConfigError(f"{self.name}: {self.sink!r} takes no frames; Append, Upsert and Accumulate do")
        _check_sink(self.name, self.sink)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The function's other parameters, which are inputs. Raises ConfigError if one cannot be passed by name."""
        try:
            parameters = [*inspect.signature(self.function).parameters.values()]
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{self.name}: its parameters cannot be read ({error}): wrap it in a function") from None
        if not parameters or parameters[0].kind not in _BY_POSITION:
            raise ConfigError(f"{self.name}: its first parameter takes the records' DataFrame, but it has none")
        if positional := [parameter.name for parameter in parameters[1:] if parameter.kind not in _BY_NAME]:
            raise ConfigError(f"{self.name}: inputs are given by name: write a parameter for each, not {positional[0]}")
        return tuple(parameter.name for parameter in parameters[1:])

    @property
    def name(self) -> str:
        """The function's name in messages."""
        return f"the frame {getattr(self.function, '__qualname__', repr(self.function))}"


_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _check_sink(frame: str, sink: Any) -> None:
    if sink.row_of is not None or sink.rows_of is not None:
        raise ConfigError(f"{frame}: row= and rows= of {sink!r} take records; the frame makes its rows: remove them")
    if not sink.takes_every_topic:
        raise ConfigError(f"{frame}: topics= of {sink!r} takes records; filter the frame by its column topic instead")
    if getattr(sink, "subtract", None) is not None:
        raise ConfigError(f"{frame}: subtract= of {sink!r} takes records: have the frame make negative amounts instead")
    if getattr(sink, "tombstone_key", None) is not None or getattr(sink, "compacted", False):
        raise ConfigError(
            f"{frame}: tombstone_key= and compacted= of {sink!r} are for tombstones, and a frame deletes no rows: "
            "remove them"
        )


class SparkPipeline:
    """Declares what Spark does with some topics' records: DataFrames between topics and tables, exactly once.

    ``group`` names the offsets in the ledger. ``topics`` is a name, or several. ``frames`` maps names, which messages
    use, to a :class:`Frame` for each table. ``value`` is a codec of a Struct, dataclass or TypedDict: the records'
    DataFrame has the fields as columns, and Kafka's topic, partition, offset, timestamp, key and headers; a record that
    the codec cannot decode is poison (``on_poison``). Without ``value`` the DataFrame has Kafka's own columns, the
    value as bytes, and one row for each record. ``version``, ``start``, ``on_poison`` and ``dead_letter_limits`` are
    as for :class:`~seekpoint.Pipeline`. ``inputs`` maps parameters of the functions to
    tables or views of the ledger's database, to be joined: all tasks of a micro-batch read them in one snapshot, taken
    at its beginning.

    All frames' rows, dead letters and offsets of a micro-batch are committed in one transaction. If there is a codec,
    executors import the pipeline by its name (``module:name``). Raises ConfigError if the declaration contradicts
    itself.
    """

    def __init__(
        self,
        group: str,
        *,
        topics: str | Iterable[str],
        frames: Mapping[str, Frame],
        value: Codec | None = None,
        inputs: Mapping[str, TableName] = MappingProxyType({}),
        version: int = 1,
        start: StartAt = StartAt.earliest(),  # noqa: B008 -- immutable
        on_poison: OnPoison | Literal["stop", "dead_letter", "skip"] = OnPoison.STOP,
        dead_letter_limits: DeadLetterLimits = DeadLetterLimits(),  # noqa: B008 -- immutable
    ) -> None:
        me = f"SparkPipeline({group!r})"
        self.frames = _frames(me, frames)
        self.inputs = _inputs(me, inputs, self.frames)
        if isinstance(topics, Mapping):
            raise ConfigError(
                f"{me}: topics= takes names, because all topics have one codec, value=. To read records of several "
                "kinds, leave value= out and decode them in the frames"
            )
        if isinstance(topics, Pattern):
            raise ConfigError(f"{me}: Spark's jobs take topics by name, and only a worker finds them by pattern")
        self.value = value
        if value is not None:
            _check_codec(me, value)
        self.pipeline: Pipeline[Any, Any] = Pipeline(
            group,
            topics=topics,
            value=Bytes() if value is None else value,
            sinks=[frame.sink for frame in self.frames.values()],
            version=version,
            start=start,
            on_poison=on_poison,
            dead_letter_limits=dead_letter_limits,
        )

    @property
    def group(self) -> str:
        """The group of the stored offsets."""
        return self.pipeline.group

    @property
    def is_raw(self) -> bool:
        """Whether the records' DataFrame has only Kafka's columns, undecoded."""
        return self.value is None

    def __repr__(self) -> str:
        return f"SparkPipeline({self.group!r})"


def require_no_frames(pipeline: object, target: str = "") -> None:
    """Raise ConfigError for a SparkPipeline, which only Spark can run; ``target`` is its name."""
    if not isinstance(pipeline, SparkPipeline):
        return
    name = target or "MODULE:NAME"
    raise ConfigError(
        f"{target or repr(pipeline)} is a SparkPipeline, which only `seekpoint spark run {name}` "
        "applies: workers, batches, reloads, verify and replays take a Pipeline. If a command takes a group, name it: "
        f"{pipeline.group!r}. To compare its tables with the log: `seekpoint spark verify {name}`. To rebuild them: "
        f"`seekpoint spark reload {name}` (docs/guides/dataframes.md)"
    )


def _frames(me: str, frames: Mapping[str, Frame]) -> dict[str, Frame]:
    untyped: Any = frames
    if not isinstance(untyped, Mapping) or not untyped:
        raise ConfigError(f'{me}: frames= maps names to frames: frames={{"orders": Frame(function, Append("orders"))}}')
    for name, frame in frames.items():
        if not isinstance(frame, Frame):
            raise ConfigError(f"{me}: frames[{name!r}] is not a Frame: write Frame(function, sink), got {frame!r}")
    return dict(frames)


def _inputs(me: str, inputs: Mapping[str, TableName], frames: Mapping[str, Frame]) -> dict[str, tuple[str, ...]]:
    """The path of each input's table. Raises ConfigError for a missing or unused input."""
    used = {name for frame in frames.values() for name in frame.inputs}
    for frame in frames.values():
        if missing := [name for name in frame.inputs if name not in inputs]:
            raise ConfigError(
                f"{me}: {frame.name} takes {missing[0]!r}, which is not an input: add "
                f'inputs={{"{missing[0]}": "schema.table"}}'
            )
    if unused := [name for name in inputs if name not in used]:
        raise ConfigError(f"{me}: no frame takes the input {unused[0]!r}: add a parameter of that name, or remove it")
    return {name: table_path(f"{me}: inputs[{name!r}]", table) for name, table in inputs.items()}


def _check_codec(me: str, codec: Codec) -> None:
    """Raise ConfigError for a codec whose values have no known columns, or the name of a metadata column."""
    kind = getattr(codec, "type", None)
    info = type_with_fields(kind)
    if info is None:
        raise ConfigError(
            f"{me}: {codec!r} decodes into values whose columns are not known: use a codec of a Struct, dataclass or "
            "TypedDict, e.g. Json(Order); or omit value=, and decode the values in the frames' functions, "
            "e.g. with from_json"
        )
    if twice := [field.name for field in info.fields if field.name in RECORD]:
        raise ConfigError(
            f"{me}: {getattr(kind, '__name__', kind)} has a field {twice[0]!r}, which is also a column of Kafka's "
            f"({', '.join(RECORD)}): rename the attribute (msgspec: field(name={twice[0]!r}) keeps the encoded name), "
            "or omit value=, and decode the values in the frames' functions"
        )
    if getattr(codec, "tombstones", False):
        raise ConfigError(
            f"{me}: {codec!r} has tombstones, and a frame deletes no rows: leave tombstones=True out (null values are "
            "then poison records), or leave value= out, and filter the null values in the frames"
        )
