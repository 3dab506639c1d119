"""Spark's JSON of offsets, read and written."""

from __future__ import annotations

import json

import pytest

from seekpoint.admin.spark_offsets import EARLIEST, LATEST, parse_spark_json, spark_json
from seekpoint.errors import ConfigError
from seekpoint.records import Partition
from support.every_row import for_each


def test_what_is_written_is_read_again() -> None:
    offsets = {Partition("orders", 10): 7, Partition("orders", 2): 2**40, Partition("a.b-c", 0): 0}
    text = spark_json(offsets)
    assert text == '{"a.b-c":{"0":0},"orders":{"2":1099511627776,"10":7}}'
    assert parse_spark_json(text, "a file") == offsets
    assert parse_spark_json('{"orders": {"0": -2, "1": -1}}', "a file") == {
        Partition("orders", 0): EARLIEST,
        Partition("orders", 1): LATEST,
    }
    assert parse_spark_json("{}", "a file") == {}


REFUSED = [
    ("{", "it is not JSON"),
    ("[]", "expected offsets by topic"),
    ("7", "expected offsets by topic"),
    ('{"orders": 7}', "expected 'orders': offsets by partition"),
    (f'{{"orders": {{"{"9" * 4301}": 3}}}}', "a partition is a number, and an offset is 0 or greater"),
    ('{"orders": {"0": -3}}', "'orders' has '0': -3: a partition is a number, and an offset is 0 or greater"),
    ('{"orders": {"0": 1.5}}', "'orders' has '0': 1.5"),
    ('{"orders": {"0": true}}', "'orders' has '0': True"),
    ('{"orders": {"x": 1}}', "'orders' has 'x': 1"),
    ('{"orders": {"0": 1, "0": 2}}', "'0' is named twice"),
    ('{"orders": {"0": 1, "00": 2}}', "orders/0 is named twice"),
    ('{"orders": {"0": 1}, "orders": {"1": 2}}', "'orders' is named twice"),
    (json.dumps({"orders": {"0": {"a": 1}}}), "'orders' has '0'"),
]


@for_each(REFUSED, lambda row: row[0])
def test_what_is_no_such_json_is_refused_with_its_place(row: tuple[str, str]) -> None:
    text, reason = row
    with pytest.raises(ConfigError) as refused:
        parse_spark_json(text, "startingOffsets")
    assert str(refused.value).startswith("startingOffsets: ")
    assert reason in str(refused.value)
