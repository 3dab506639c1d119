"""Debezium's events of other sources than Postgres, as its documentation shows them, on a real Postgres."""

from __future__ import annotations

import json
from typing import Any

import pytest

from seekpoint import Pipeline, Upsert
from seekpoint.codecs import Debezium
from seekpoint.codecs.source_position import source_position
from seekpoint.records import RawRecord
from seekpoint.testing import raw
from support.debezium import GOLDEN
from support.sink_tables import TOPIC, SinkTables

EVENTS = [json.loads(line) for line in GOLDEN.joinpath("documented.jsonl").read_text(encoding="utf-8").splitlines()]


def documented(connector: str) -> list[dict[str, Any]]:
    """The events of a connector's page, in its order: create, update, delete, truncate."""
    events = [line["value"] for line in EVENTS if line["connector"] == connector]
    for event in events:
        event["payload"]["source"].setdefault("connector", connector)
    return events


def records(events: list[dict[str, Any]]) -> list[RawRecord]:
    """The events as records of one partition, without keys: ``before`` has the row of a delete."""
    return [raw(json.dumps(event).encode(), topic=TOPIC, offset=offset) for offset, event in enumerate(events)]


@pytest.mark.parametrize(
    ("connector", "key", "changed"),
    [
        ("mysql", "id", ("first_name", "Anne Marie")),
        ("sqlserver", "id", ("email", "noreply@example.org")),
        ("oracle", "ID", ("EMAIL", "anne@example.com")),
    ],
)
def test_a_row_follows_its_changes(
    sink_tables: SinkTables, group: str, connector: str, key: str, changed: tuple[str, str]
) -> None:
    column, value = changed
    path = sink_tables.create(f'"{key}" int PRIMARY KEY, "{column}" text, o bigint, position numeric')
    sink = Upsert(
        path, key=[key], columns=[key, column], changes=True, truncate="delete", offset_column="o", order_by="position"
    )
    pipeline = Pipeline(group, topics=TOPIC, value=Debezium(), key=Debezium(), sinks=[sink])
    events = documented(connector)
    if connector == "oracle":  # the page's delete has a lower SCN than its update
        events[2]["payload"]["source"]["scn"] = "2130000"
    create, update, delete, *truncates = records(events)
    assert sink_tables.process(pipeline, create, update).stopped == {}
    position = source_position(documented(connector)[1]["payload"]["source"])
    assert sink_tables.rows(column, "o", "position") == [(value, 1, position)]
    assert sink_tables.process(pipeline, delete).stopped == {}
    assert sink_tables.rows("o") == []
    assert sink_tables.process(pipeline, *truncates).stopped == {}


def test_changes_of_mongodb_are_named(sink_tables: SinkTables, group: str) -> None:
    sink = Upsert(sink_tables.create("id int PRIMARY KEY"), key=["id"], columns=["id"], changes=True)
    pipeline = Pipeline(
        group, topics=TOPIC, value=Debezium(), key=Debezium(), sinks=[sink], on_poison="dead_letter"
    )  # fmt: skip
    done = sink_tables.process(pipeline, *records(documented("mongodb")))
    assert len(done.dead_letters) == 3
    for dead_letter in done.dead_letters:
        assert "set ExtractNewDocumentState in the connector" in dead_letter.failure.summary
