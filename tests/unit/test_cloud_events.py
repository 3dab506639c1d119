"""CloudEvents in both content modes: the attributes, the data by another codec, and what is refused."""

from __future__ import annotations

import json
from base64 import b64encode
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from seekpoint import Bytes, Json, Text
from seekpoint.codecs.cloud_events import CloudEvent, Event
from seekpoint.errors import Poison
from seekpoint.records import RawRecord
from seekpoint.testing import raw
from support.every_row import for_each


class Order(msgspec.Struct):
    id: int
    total: Decimal


REQUIRED = {"specversion": "1.0", "id": "7", "source": "/shop", "type": "order.placed"}
ORDER, PLACED = b'{"id": 1, "total": 20.50}', Order(1, Decimal("20.50"))


def binary(value: bytes | None, content: str | None = "application/json", **attributes: str) -> RawRecord:
    headers = [(f"ce_{name}", text.encode()) for name, text in {**REQUIRED, **attributes}.items()]
    if content is not None:
        headers.append(("content-type", content.encode()))
    return raw(value, headers=headers)


def structured(content: str = "application/cloudevents+json", **members: Any) -> RawRecord:
    return raw(json.dumps({**REQUIRED, **members}).encode(), headers=[("content-type", content.encode())])


def test_a_binary_event() -> None:
    record = binary(ORDER, time="2026-03-29T03:00:00.25+02:00", subject="order/1", dataschema="urn:s", tenant="ä")
    event = CloudEvent(Json(Order)).decode(record)
    assert event == Event(
        id="7",
        source="/shop",
        type="order.placed",
        data=PLACED,
        subject="order/1",
        time=datetime(2026, 3, 29, 1, 0, 0, 250_000, UTC),
        dataschema="urn:s",
        datacontenttype="application/json",
        extensions={"tenant": "ä"},
    )


def test_a_structured_event() -> None:
    record = structured(
        "Application/CloudEvents+JSON; charset=UTF-8",
        data={"id": 1},
        time="2026-03-29T01:00:00Z",
        subject=None,
        count=5,
        sampled=True,
        tenant="x",
    )
    record = msgspec.structs.replace(record, value=(record.value or b"").replace(b'{"id": 1}', ORDER))
    event = CloudEvent(Json(Order)).decode(record)
    assert event.data == PLACED, "the digits are those of the record"
    assert event.time == datetime(2026, 3, 29, 1, tzinfo=timezone(timedelta(0)))
    assert (event.subject, event.datacontenttype) == (None, None)
    assert event.extensions == {"count": "5", "sampled": "true", "tenant": "x"}


DATA: list[tuple[RawRecord, Any, Any]] = [
    (binary(b"\x00\xff", "application/octet-stream"), Bytes(), b"\x00\xff"),
    (binary(b"plain", None), Text(), "plain"),
    (structured(data_base64=b64encode(b"\x00\xff").decode()), Bytes(), b"\x00\xff"),
    (structured(data="plain", datacontenttype="text/plain"), Text(), "plain"),
    (structured(data="plain"), Text(), '"plain"'),
    (structured(data="plain"), Json(), "plain"),
    (structured(data="plain", datacontenttype="application/vnd.shop+json; v=2"), Json(), "plain"),
    (structured(data={"a": 1}, datacontenttype="text/plain"), Json(), {"a": 1}),
    (structured(), Json(Order, tombstones=True), None),
    (structured(data=None), Json(Order, tombstones=True), None),
    (structured(data={"a": 1}, data_base64=None), Json(), {"a": 1}),
    (structured(data=None, data_base64=b64encode(b"\x00\xff").decode()), Bytes(), b"\x00\xff"),
    (structured(data={"a": 1}, datacontenttype=None), Json(), {"a": 1}),
    (binary(None), Json(Order, tombstones=True), None),
]


@for_each(DATA)
def test_the_data_is_what_the_inner_codec_makes_of_it(row: tuple[RawRecord, Any, Any]) -> None:
    record, inner, data = row
    assert CloudEvent(inner).decode(record).data == data


def test_an_inner_codec_of_whole_records_sees_the_data_and_the_headers() -> None:
    class Inner:
        def decode(self, record: RawRecord) -> tuple[bytes | None, int]:
            return record.value, len(record.headers)

    assert CloudEvent(Inner()).decode(structured(data={"a": 1})).data == (b'{"a": 1}', 1)


def test_a_tombstone_is_none_where_it_is_declared() -> None:
    assert CloudEvent(Json(), tombstones=True).decode(raw(None)) is None
    with pytest.raises(Poison, match="not a CloudEvent"):
        CloudEvent(Json()).decode(raw(None))


def test_a_time_finer_than_a_microsecond_is_cut_if_that_is_stated() -> None:
    """msgspec would round it: the last moment of a year would be in the next one."""
    last = datetime(2026, 12, 31, 23, 59, 59, 999_999, UTC)
    codec = CloudEvent(Json(Order), round=True)
    assert codec.decode(binary(ORDER, time="2026-12-31T23:59:59.9999999Z")).time == last
    assert CloudEvent(Json(Order)).decode(binary(ORDER, time="2026-12-31T23:59:59.999999000Z")).time == last


TEXTS = ("id", "source", "type", "specversion", "subject", "time", "dataschema")
REFUSED: list[tuple[RawRecord, str]] = [
    (raw(ORDER), "not a CloudEvent: no header ce_id"),
    (raw(ORDER, headers=[("content-type", b"application/json")]), "not a CloudEvent"),
    (binary(ORDER, specversion="0.3"), "specversion is '0.3'"),
    (raw(ORDER, headers=[("ce_id", b"7")]), "specversion is None"),
    (binary(ORDER, id=""), "has no id"),
    (structured(source=None), "has no source"),
    (binary(ORDER, time="yesterday"), "time 'yesterday': .*RFC3339"),
    (raw(ORDER, headers=[("ce_id", b"\xff")]), "header ce_id: 'utf-8' codec can't decode"),
    (raw(ORDER, headers=[("content-type", b"\xff")]), "header content-type: 'utf-8' codec can't decode"),
    (structured(data=1, datacontenttype=5), "datacontenttype: Expected `str`, got `int`"),
    (structured(data_base64=5), "data_base64: Expected `str`, got `int`"),
    (structured(), "the CloudEvent has no data, and its data's codec does not declare tombstones=True"),
    *((structured(data=1, **dict[str, Any]({name: 5})), f"^{name}: Expected `str`, got `int`") for name in TEXTS),
    (structured(data=1, id=True), "^id: Expected `str`, got `bool`"),
    (
        binary(ORDER, time="2026-03-29T03:00:00.1234567Z"),
        r"time '2026-03-29T03:00:00.1234567Z' is finer than a microsecond: give CloudEvent\(round=True\) to cut it",
    ),
    (binary(ORDER, time="2026-03-29T03:00:00"), "no offset from UTC"),
    (binary(None), "does not declare tombstones"),
    (structured(data=1, data_base64="AA=="), "data and data_base64"),
    (structured(data_base64="A"), "data_base64: "),
    (structured("application/cloudevents+avro"), r"structured events must be application/cloudevents\+json"),
    (structured("application/cloudevents-batch+json"), r"structured events must be application/cloudevents\+json"),
    (raw(b"[]", headers=[("content-type", b"application/cloudevents+json")]), "Expected `object`"),
    (raw(None, headers=[("content-type", b"application/cloudevents+json")]), "the value is null, but the content"),
]


@for_each(REFUSED)
def test_what_is_no_cloud_event(row: tuple[RawRecord, str]) -> None:
    record, message = row
    with pytest.raises((Poison, ValueError), match=message):
        CloudEvent(Json(Order), tombstones=True).decode(record)


def test_it_shows_its_inner_codec() -> None:
    assert repr(CloudEvent(Json(Order))) == "CloudEvent(Json(Order))"
