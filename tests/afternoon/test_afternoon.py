"""Tests of the afternoon's records and of their recomputation; ``tests/afternoon/run.py`` runs the afternoon."""

from __future__ import annotations

import json
from collections import Counter
from datetime import date, datetime
from decimal import Decimal

import msgspec
import pytest

pytest.importorskip("pyspark")

from afternoon.declared import Value
from afternoon.expected import Recomputed, differences
from afternoon.facts import COLUMNS, PARTITIONS, TOMBSTONES, Facts, encode

COUNT = 4 * TOMBSTONES


def test_records_are_those_of_the_seed_and_have_each_edge() -> None:
    facts = [*Facts(5, COUNT)]
    assert repr(facts) == repr([*Facts(5, COUNT)]) != repr([*Facts(6, COUNT)])
    assert Counter(fact.values is None for fact in facts)[True] == 4
    for partition in range(PARTITIONS):
        offsets = [fact.offset for fact in facts if fact.partition == partition]
        assert offsets == [*range(len(offsets))], "those of a new topic"
    assert len({fact.name for fact in facts}) < COUNT / 5, "keys come again"
    rows = [dict(zip(COLUMNS, fact.values, strict=True)) for fact in facts if fact.values is not None]
    assert {"", "\\N"} <= {row["words"] for row in rows}
    assert {None, ""} <= {row["note"] for row in rows}
    assert {"nan", "-0.0", "0.0", "5e-324"} <= {repr(row["ratio"]) for row in rows}
    assert {date.min, date(1582, 10, 10), date.max} <= {row["day"] for row in rows}
    assert max(row["at"] for row in rows).replace(tzinfo=None) == datetime.max
    assert max(row["amount"] for row in rows) == Decimal("9" * 20 + "." + "9" * 18)


def test_what_is_produced_is_decoded_to_the_same_values() -> None:
    for fact in Facts(5, 300):
        if (encoded := encode(fact)) is not None:
            value = msgspec.structs.asdict(msgspec.json.decode(encoded, type=Value))
            value |= {"nested": msgspec.to_builtins(value["nested"]), "ratio": float(value["ratio"])}
            assert repr((*value.values(),)) == repr(fact.values), json.loads(encoded)


def test_a_table_is_compared_with_the_records_before_the_positions() -> None:
    facts = [*Facts(5, COUNT)]
    worker = Recomputed({0: 10, 1: 3}, deletes=True)
    rows = [*worker.entries(facts)]
    assert [sum(row[-2] == n for row in rows) for n in range(PARTITIONS)] == [10, 3, 0, 0], "no tombstone among them"
    assert sum(facts for _, facts, *_ in worker.sums.values()) == 13
    other = Recomputed({0: COUNT, 1: COUNT, 2: COUNT, 3: COUNT}, deletes=False)
    assert differences(other.entries(facts), iter([])) == {"lost": COUNT - 4, "extra": 0, "different": 0}
    assert len(other.tombstones) == 4
    assert len(other.newest) == len({fact.name for fact in facts if fact.values is not None})


def test_rows_that_are_lost_twice_or_different_are_counted() -> None:
    rows = [(n, float("nan"), 0.0) for n in range(9)]
    assert differences(rows, iter(rows)) == {"lost": 0, "extra": 0, "different": 0}
    damaged = [*rows[:2], (2, float("nan"), -0.0), *rows[3:6], rows[5], rows[7], rows[8], (9, 0.0, 0.0)]
    assert differences(rows, iter(damaged)) == {"lost": 1, "extra": 2, "different": 1}
