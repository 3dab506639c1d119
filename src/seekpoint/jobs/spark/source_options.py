"""Parses and checks the options of Spark's source ``seekpoint``, without asking a server.

Options that Spark's Kafka source also has keep their names and meanings. Options that this source sets itself, or would
have to ignore, are refused.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from seekpoint.admin.spark_offsets import EARLIEST, LATEST, parse_spark_json, parse_spark_partitions
from seekpoint.errors import ConfigError
from seekpoint.jobs.spark.settings import Env, is_secret, portable, setting_of_option
from seekpoint.kafka.config import OWNED
from seekpoint.ledger.tables import DEFAULT_SCHEMA
from seekpoint.records import Partition

DATABASE = "SEEKPOINT_DATABASE_URL"
DEAD_LETTERS = ("exclude", "include", "mark", "only")
OPTIONS = (
    "assign", "database", "deadLetters", "decode", "endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp",
    "failOnDataLoss", "group", "includeHeaders", "ledgerSchema", "maxOffsetsPerTrigger", "maxRecordsPerPartition",
    "maxTriggerDelay", "minOffsetsPerTrigger", "minPartitions", "startingOffsets", "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy", "startingTimestamp", "subscribe", "table",
)  # fmt: skip
"""Every option except ``kafka.*``."""
OF_STREAMS = ("maxOffsetsPerTrigger", "maxTriggerDelay", "minOffsetsPerTrigger")
"""Options that only ``readStream`` takes."""

_SPELLED = {name.lower(): name for name in OPTIONS}
_KAFKA = "kafka."
_WITHOUT_COUNTERPART = {
    "subscribepattern": "name the topics: subscribe=orders,payments",
    "groupidprefix": "no group is joined",
    "kafkaconsumer.polltimeoutms": "tasks wait as long as brokers answer",
    "fetchoffset.numretries": "requests to the brokers are retried for 10 s",
    "fetchoffset.retryintervalms": "requests to the brokers are retried for 10 s",
    "path": "give topics by subscribe or assign, and load() no path",
}
_JAVA_ONLY = {
    "sasl.jaas.config": "write kafka.sasl.username, and kafka.sasl.password=env:NAME",
    "ssl.truststore.location": "write kafka.ssl.ca.location, a file in PEM",
    "ssl.truststore.password": "write kafka.ssl.ca.location, a file in PEM",
    "ssl.truststore.type": "write kafka.ssl.ca.location, a file in PEM",
    "key.deserializer": "omit it: keys are binary",
    "value.deserializer": "omit it: values are binary, or typed with decode=module:pipeline",
    "interceptor.classes": "omit it",
    "max.poll.records": "omit it: maxRecordsPerPartition bounds a task",
}
_GROUP = "no group is joined and nothing is committed; group= names the ledger's group whose offsets are read"


@dataclass(frozen=True, slots=True)
class Bound:
    """Where a read begins or ends, according to ``option``.

    ``kind`` "applied" is the group's first offset, "ledger" its position at ``moment`` or now; "time" is a timestamp in
    milliseconds for all partitions. ``by_partition`` has the offsets for "offsets", with Spark's -1 and -2, and the
    timestamps for "times".
    """

    option: str
    kind: Literal["applied", "ledger", "earliest", "latest", "offsets", "time", "times"]
    by_partition: Mapping[Partition, int] = field(default_factory=dict)
    moment: datetime | None = None
    time: int = 0


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of a read.

    ``topics`` None: all topics of the group; ``assigned`` None: all of their partitions. ``kafka`` is the result of
    :func:`portable`. ``late_starts_at_end``: a partition without a record at or after its starting time begins at the
    end of its log; otherwise the read is refused.
    """

    kafka: Mapping[str, Any]
    group: str | None
    database: Env
    schema: str
    topics: tuple[str, ...] | None
    assigned: frozenset[Partition] | None
    start: Bound
    end: Bound
    late_starts_at_end: bool
    min_partitions: int | None
    max_records: int | None
    headers: bool
    decode: str | None
    dead_letters: str


class OnlyForStreams(ConfigError):  # noqa: N818
    """A batch does not accept these options, but a stream may."""


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The options of a stream. Only the first micro-batch uses the start in ``source``; the end is never used.

    A micro-batch reads at most ``most`` offsets; if there are fewer than ``least``, it waits up to ``delay`` seconds.
    """

    source: SourceOptions
    most: int | None
    least: int | None
    delay: float


def table_of(options: Mapping[str, str]) -> str | None:
    """The name of the ledger's table to read; None for a read of records."""
    return _checked(options).get("table")


def ledger_options(options: Mapping[str, str]) -> tuple[Env, str]:
    """The database variable and the schema of a ledger's table. Raises ConfigError for other options."""
    options = _checked(options)
    if others := sorted(options.keys() - {"table", "database", "ledgerSchema"}):
        raise ConfigError(f"table={options['table']} takes only database and ledgerSchema: leave {others[0]} out")
    return database_option(options), options.get("ledgerSchema", DEFAULT_SCHEMA)


def source_options(options: Mapping[str, str]) -> SourceOptions:
    """Parse the options of a read. Raises ConfigError, which names the option and what to write instead."""
    options = _checked(options)
    if of_streams := [name for name in OF_STREAMS if name in options]:
        raise OnlyForStreams(f"{of_streams[0]} bounds the micro-batches of a stream: omit it, or use readStream")
    source = _source_options(options, Bound("startingOffsets", "applied" if options.get("group") else "earliest"))
    _require_start_of_batch(source.start)
    return source


def stream_options(options: Mapping[str, str]) -> StreamOptions:
    """Parse the options of a stream. By default it begins at the group's position; without a group, at the log's end.

    Raises ConfigError, which names the option and what to write instead.
    """
    options = _checked(options)
    if options.get("deadLetters", "include").lower() != "include":
        raise ConfigError("deadLetters selects records that a group has applied, and a stream reads new ones: omit it")
    if ending := sorted(name for name in options if name.startswith("ending")):
        raise ConfigError(f"{ending[0]}: a stream has no end; omit it, or use read, or Trigger.AvailableNow")
    if "table" in options:
        raise ConfigError(f"table={options['table']} cannot be read as a stream: use read")
    least, delay = _number(options, "minOffsetsPerTrigger"), options.get("maxTriggerDelay")
    if delay is not None and least is None:
        raise ConfigError("maxTriggerDelay limits how long minOffsetsPerTrigger waits: give minOffsetsPerTrigger, too")
    start = Bound("startingOffsets", "ledger" if options.get("group") else "latest")
    source = _source_options({"deadLetters": "include", **options}, start, is_stream=True)
    if source.start.moment is not None:
        raise ConfigError(
            "startingOffsets=ledger@... is for batches: write startingOffsets=ledger, the group's present position"
        )
    return StreamOptions(source, _number(options, "maxOffsetsPerTrigger"), least, _seconds("maxTriggerDelay", delay))


def _source_options(options: Mapping[str, str], start: Bound, *, is_stream: bool = False) -> SourceOptions:
    group = options.get("group")
    for name in ("database", "ledgerSchema", *(() if is_stream else ("deadLetters",))):
        if name in options and group is None:
            raise ConfigError(f"{name} needs a group of the ledger: give group, too, or omit {name}")
    if options.get("failOnDataLoss", "true").lower() != "true":
        raise ConfigError(
            "failOnDataLoss=false would silently skip records that retention has removed: omit it, and begin "
            "after the loss (startingOffsets=earliest, or the offsets that the error names)"
        )
    topics, assigned = _topics(options, group)
    start = _bound(options, "starting", group, start)
    if "startingOffsetsByTimestampStrategy" in options and start.kind not in {"time", "times"}:
        raise ConfigError(
            "startingOffsetsByTimestampStrategy needs a time to begin at: give startingTimestamp or "
            "startingOffsetsByTimestamp, too, or omit it"
        )
    return SourceOptions(
        kafka=_kafka_settings(options),
        group=group,
        database=database_option(options),
        schema=options.get("ledgerSchema", DEFAULT_SCHEMA),
        topics=topics,
        assigned=assigned,
        start=start,
        end=_bound(options, "ending", group, Bound("endingOffsets", "ledger" if group else "latest")),
        late_starts_at_end=_one_of(options, "startingOffsetsByTimestampStrategy", ("error", "latest")) == "latest",
        min_partitions=_number(options, "minPartitions"),
        max_records=_number(options, "maxRecordsPerPartition"),
        headers=_one_of(options, "includeHeaders", ("false", "true")) == "true",
        decode=options.get("decode"),
        dead_letters=_one_of(options, "deadLetters", DEAD_LETTERS if group else ("include",)),
    )


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def _seconds(option: str, text: str | None) -> float:
    """Parse a duration such as 15m into seconds; by default 15 minutes, as in Spark."""
    match = re.fullmatch(r"(\d{1,9})(ms|s|m|min|h|d)", "15m" if text is None else text)
    if match is None:
        raise ConfigError(f"{option} must be a time such as 30s, 15m or 1h, got {text!r}")
    return int(match[1]) * _UNITS[match[2]]


# -- names ------------------------------------------------------------------------------------------------------------


def _checked(options: Mapping[str, str]) -> dict[str, str]:
    """The options under their documented names. Raises ConfigError for unknown options and options of CREATE TABLE."""
    if any(key.lower().startswith("option.") for key in options):
        raise ConfigError(
            "Spark does not pass the options of CREATE TABLE to a Python source when the table is read: write "
            "CREATE TEMPORARY VIEW ... USING seekpoint OPTIONS (...)"
        )
    checked: dict[str, str] = {}
    for key, value in options.items():
        name = key.lower()
        if not name.startswith(_KAFKA) and name not in _SPELLED:
            raise ConfigError(_unknown(key))
        checked[_SPELLED.get(name, name)] = value.strip()
    return checked


def _unknown(key: str) -> str:
    if (reason := _WITHOUT_COUNTERPART.get(key.lower())) is not None:
        return f"{key} has no counterpart here: omit it ({reason})"
    return f"there is no option {key}: {advice_for(key, _SPELLED)}"


def advice_for(unknown: str, spelled: Mapping[str, str]) -> str:
    """The remedy for an unknown option; ``spelled`` maps the options in lower case to their spelling."""
    similar = difflib.get_close_matches(unknown.lower(), spelled, 1)
    option_names = ", ".join(spelled.values())
    return f"did you mean {spelled[similar[0]]}?" if similar else f"omit it; the options are {option_names}"


def database_option(options: Mapping[str, str]) -> Env:
    """The name of the environment variable with the database's URL. Raises ConfigError for an invalid name."""
    name = options.get("database", DATABASE)
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise ConfigError(
            "database must be the name of an environment variable that has the URL (database=SEEKPOINT_DATABASE_URL), "
            "because Spark would show a URL and its password in the plan, the UI and the event log"
        )
    return Env(name)


def _kafka_settings(options: Mapping[str, str]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for option, value in options.items():
        if not option.startswith(_KAFKA):
            continue
        key, setting = option.removeprefix(_KAFKA), setting_of_option(value)
        if key in OWNED or key.startswith("group."):
            reason = OWNED[key][1] if key in OWNED else _GROUP
            raise ConfigError(f"{option} cannot be set here: omit it ({reason})")
        if key in _JAVA_ONLY:
            raise ConfigError(f"{option} is for the Java client, but librdkafka reads the records: {_JAVA_ONLY[key]}")
        is_login = "://" in value and "@" in value  # the user name may be a token
        if not isinstance(setting, Env) and (is_login or is_secret(key, value)):
            raise ConfigError(
                f"{option} would be in the plan, in Spark's UI and in its event log: write env:NAME, the name of an "
                "environment variable that the driver and the executors have"
            )
        settings[key] = setting
    if not settings.keys() & {"bootstrap.servers", "metadata.broker.list"}:
        raise ConfigError("kafka.bootstrap.servers is missing: give host:port of one or more brokers, or env:NAME")
    return portable(settings)


# -- values -----------------------------------------------------------------------------------------------------------


def _topics(
    options: Mapping[str, str], group: str | None
) -> tuple[tuple[str, ...] | None, frozenset[Partition] | None]:
    """Parse the topics, and the partitions of ``assign``."""
    if "subscribe" in options and "assign" in options:
        raise ConfigError("give subscribe or assign, not both")
    if "assign" in options:
        assigned = _assigned(options["assign"])
        return tuple(sorted({partition.topic for partition in assigned})), assigned
    if "subscribe" in options:
        topics = tuple(sorted({topic.strip() for topic in options["subscribe"].split(",")}))
        if "" in topics:
            raise ConfigError(f"subscribe={options['subscribe']!r} has an empty name: write it as orders,payments")
        return topics, None
    if group is None:
        raise ConfigError(
            'no topics are given: give subscribe=orders, assign={"orders":[0,1]}, or group for all topics of a group'
        )
    return None, None


def _assigned(text: str) -> frozenset[Partition]:
    partitions = parse_spark_partitions(text, "assign")
    if not partitions:
        raise ConfigError('assign names no partition: write {"orders":[0,1]}')
    return frozenset(partitions)


def _bound(options: Mapping[str, str], side: str, group: str | None, default: Bound) -> Bound:
    """The bound of this side (``starting`` or ``ending``) from its option, or the default."""
    parsers: dict[str, Callable[[str, str, str | None], Bound]] = {
        f"{side}Timestamp": _time,
        f"{side}OffsetsByTimestamp": _times,
        f"{side}Offsets": _offsets,
    }
    present = [name for name in parsers if name in options]
    if len(present) > 1:
        raise ConfigError(
            f"{' and '.join(present)} both say where to {'begin' if side == 'starting' else 'end'}: leave one out "
            f"(Spark's Kafka source takes {present[0]})"
        )
    return next((parsers[name](name, options[name], group) for name in present), default)


def _time(option: str, text: str, _: str | None) -> Bound:
    return Bound(option, "time", time=_milliseconds(option, text))


_DIGITS = 18  # any number with so few digits fits into 64 bits


def _milliseconds(option: str, text: str) -> int:
    if not text.isdecimal() or len(text) > _DIGITS:
        raise ConfigError(f"{option} must be milliseconds since 1970 in UTC, such as 1785542400000, got {text!r}")
    return int(text)


def _times(option: str, text: str, _: str | None) -> Bound:
    times = parse_spark_json(text, option)
    if negative := sorted(partition for partition, time in times.items() if time < 0):
        raise ConfigError(f"{option} has {times[negative[0]]} for {negative[0]}: write milliseconds since 1970 in UTC")
    for time in times.values():
        _milliseconds(option, str(time))
    return Bound(option, "times", by_partition=times)


def _offsets(option: str, text: str, group: str | None) -> Bound:
    is_start = option.startswith("starting")
    if text.startswith("{"):
        offsets = parse_spark_json(text, option)
        if not is_start and (wrong := sorted(partition for partition, offset in offsets.items() if offset == EARLIEST)):
            raise ConfigError(f"{option} has {EARLIEST} for {wrong[0]}: a batch does not end at the start of a log")
        return Bound(option, "offsets", by_partition=offsets)
    word, mark, moment = text.partition("@")
    if word.lower() == "ledger" and (mark == "") == (moment == ""):
        if group is None:
            raise ConfigError(f"{option}={text} needs a group of the ledger: give group, too")
        return Bound(option, "ledger", moment=_moment(option, moment) if mark else None)
    if text.lower() == "earliest" and not is_start:
        raise ConfigError(f"{option}={text}: a batch does not end at the start of a log")
    if text.lower() in {"earliest", "latest"}:
        return Bound(option, "earliest" if text.lower() == "earliest" else "latest")
    raise ConfigError(
        f"{option} takes {'earliest' if is_start else 'latest'}, ledger, ledger@2026-11-01T00:00Z, or offsets as JSON, "
        f'{{"orders":{{"0":23}}}}; not {text!r}'
    )


def _require_start_of_batch(start: Bound) -> None:
    """Raise OnlyForStreams for a batch that would begin at the end of a log."""
    at_end = sorted(partition for partition, offset in start.by_partition.items() if offset == LATEST)
    if start.kind == "latest" or (start.kind == "offsets" and at_end):
        what = "=latest" if start.kind == "latest" else f" has {LATEST} for {at_end[0]}"
        raise OnlyForStreams(f"{start.option}{what}: a batch does not begin at the end of a log")


def _moment(option: str, text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{option}=ledger@{text}: write a time with its zone, ledger@2026-11-01T00:00Z") from None
    if moment.tzinfo is None:
        in_utc = f"{moment.isoformat(timespec='minutes' if moment.second == 0 else 'seconds')}Z"
        raise ConfigError(f"{option}=ledger@{text}: say in which zone, e.g. ledger@{in_utc}")
    if moment > datetime.now(UTC):
        raise ConfigError(f"{option}=ledger@{text} is in the future: write ledger for the present position")
    return moment


def _number(options: Mapping[str, str], option: str) -> int | None:
    if option not in options:
        return None
    if not options[option].isdecimal() or len(options[option]) > _DIGITS or int(options[option]) < 1:
        raise ConfigError(f"{option} must be a number of at least 1, got {options[option]!r}")
    return int(options[option])


def _one_of(options: Mapping[str, str], option: str, words: Collection[str]) -> str:
    """The option's value, by default the first of these words."""
    word = options.get(option, next(iter(words))).lower()
    if word not in words:
        raise ConfigError(f"{option} must be one of {', '.join(words)}, got {options[option]!r}")
    return word
