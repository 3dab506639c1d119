"""The reference of options on Spark has what the code has: names, defaults, and which options a stream takes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

from seekpoint import Accumulate
from seekpoint.errors import ConfigError
from seekpoint.jobs.spark.sink_options import OPTIONS as OF_SINK
from seekpoint.jobs.spark.source_options import DEAD_LETTERS, OPTIONS, source_options, stream_options, table_of
from seekpoint.spark import Frame, SparkPipeline, foreach_batch, run
from support.docs_pages import named, section
from support.every_row import for_each

PAGE = named("docs/spark/options.md")
KAFKA = {"kafka.bootstrap.servers": "localhost:9092"}
OF_GROUP = {**KAFKA, "group": "g"}

#: A value of each option, with the others that it needs.
GIVEN = {
    "assign": {**KAFKA, "assign": '{"orders":[0]}'},
    "database": {**OF_GROUP, "database": "URL"},
    "deadLetters": {**OF_GROUP, "deadLetters": "exclude"},
    "decode": {**OF_GROUP, "decode": "shop:orders"},
    "endingOffsets": {**OF_GROUP, "endingOffsets": "latest"},
    "endingOffsetsByTimestamp": {**OF_GROUP, "endingOffsetsByTimestamp": '{"orders":{"0":1}}'},
    "endingTimestamp": {**OF_GROUP, "endingTimestamp": "1"},
    "failOnDataLoss": {**OF_GROUP, "failOnDataLoss": "true"},
    "group": OF_GROUP,
    "includeHeaders": {**OF_GROUP, "includeHeaders": "true"},
    "kafka.*": OF_GROUP,
    "ledgerSchema": {**OF_GROUP, "ledgerSchema": "seekpoint"},
    "maxOffsetsPerTrigger": {**OF_GROUP, "maxOffsetsPerTrigger": "1"},
    "maxRecordsPerPartition": {**OF_GROUP, "maxRecordsPerPartition": "1"},
    "maxTriggerDelay": {**OF_GROUP, "minOffsetsPerTrigger": "1", "maxTriggerDelay": "1s"},
    "minOffsetsPerTrigger": {**OF_GROUP, "minOffsetsPerTrigger": "1"},
    "minPartitions": {**OF_GROUP, "minPartitions": "1"},
    "startingOffsets": {**OF_GROUP, "startingOffsets": "earliest"},
    "startingOffsetsByTimestamp": {**OF_GROUP, "startingOffsetsByTimestamp": '{"orders":{"0":1}}'},
    "startingOffsetsByTimestampStrategy": {
        **OF_GROUP,
        "startingTimestamp": "1",
        "startingOffsetsByTimestampStrategy": "latest",
    },
    "startingTimestamp": {**OF_GROUP, "startingTimestamp": "1"},
    "subscribe": {**KAFKA, "subscribe": "orders"},
    "table": {"table": "ledger"},
}


def rows(heading: str) -> dict[str, list[str]]:
    """The first table below this heading: its first cell, without backticks, to the others."""
    lines = re.findall(r"^\| `([^`]+)` \| (.*) \|$", section(PAGE, heading), re.MULTILINE)
    return {name: [cell.strip() for cell in re.split(r"(?<!\\)\|", rest)] for name, rest in lines}


def takes(check: Callable[[dict[str, str]], object], options: dict[str, str]) -> bool:
    try:
        check(options)
    except ConfigError:
        return False
    return True


def test_every_option_of_the_source_is_there() -> None:
    assert set(rows("The source `seekpoint`")) == {*OPTIONS, "kafka.*"} == set(GIVEN)
    assert all(f"`{word}`" in rows("The source `seekpoint`")["deadLetters"][1] for word in DEAD_LETTERS)


def test_every_option_of_the_sink_is_there() -> None:
    assert tuple(sorted(rows("The sink `seekpoint`"))) == OF_SINK


@for_each(GIVEN)
def test_batches_and_streams_take_the_options_that_the_page_says(name: str) -> None:
    is_read = takes(source_options, GIVEN[name]) or table_of(GIVEN[name]) is not None
    is_stream = takes(stream_options, GIVEN[name])
    support = {(True, True): "both", (True, False): "`read`", (False, True): "`readStream`"}[is_read, is_stream]
    assert rows("The source `seekpoint`")[name][0] == support


def default_of(parameter: inspect.Parameter) -> str:
    """As the page shows it: enums by their values, a mapping as a dict."""
    default: Any = parameter.default
    if default is inspect.Parameter.empty:
        return ""
    if type(default).__name__ == "mappingproxy":
        default = dict(default)
    shown = {"StartAt": "StartAt.earliest()", "DeadLetterLimits": "DeadLetterLimits()", "Env": f'Env("{default}")'}
    if (kind := type(default).__name__) in shown:
        assert kind != "Env" or default.name == "SEEKPOINT_DATABASE_URL"
        return f"`{shown[kind].replace(str(default), 'SEEKPOINT_DATABASE_URL')}`"
    text = repr(getattr(default, "value", default))
    return f"`{text.replace(chr(39), chr(34))}`"


MADE: list[Any] = [SparkPipeline, Frame, Accumulate, run, foreach_batch]


@for_each(MADE, lambda documented: documented.__name__)
def test_every_parameter_is_there_with_its_default(documented: Any) -> None:
    parameters = inspect.signature(documented).parameters
    rows_by_name = {name: cells[0] for name, cells in rows(documented.__name__).items()}
    assert rows_by_name == {name: default_of(parameter) for name, parameter in parameters.items()}


def test_an_option_that_is_of_batches_alone_would_be_found() -> None:
    with pytest.raises(ConfigError, match="a stream has no end"):
        stream_options(GIVEN["endingOffsets"])
