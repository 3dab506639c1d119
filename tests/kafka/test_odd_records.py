"""Records that hardly any client writes, and that every reader meets one day."""

from __future__ import annotations

import socket
import struct
from datetime import UTC, datetime, timedelta

import pytest

from seekpoint import Partition, events
from seekpoint.ledger import GroupLedger
from seekpoint.pipeline.policy import Limits
from seekpoint.records import EPOCH
from support.fixtures import NewEngine
from support.worker_group import WorkerGroup

_POLYNOMIAL = 0x82F63B78  # CRC-32C, reflected: what Kafka's record batches are checked with


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ _POLYNOMIAL if crc & 1 else crc >> 1
    return crc ^ 0xFFFFFFFF


def varint(number: int) -> bytes:
    zigzag, out = (number << 1) ^ (number >> 63), b""
    while zigzag > 0x7F:
        out, zigzag = out + bytes([zigzag & 0x7F | 0x80]), zigzag >> 7
    return out + bytes([zigzag])


def produce_by_hand(broker: str, topic: str, value: bytes, header: bytes, timestamp: int) -> None:
    """One record to partition 0, by a Produce request of our own: clients refuse what other languages' clients send."""
    body = b"\0" + varint(0) + varint(0) + varint(-1) + varint(len(value)) + value
    body += varint(1) + varint(len(header)) + header + varint(1) + b"1"
    records = struct.pack(">i", 1) + varint(len(body)) + body
    checked = struct.pack(">hiqqqhi", 0, 0, timestamp, timestamp, -1, -1, -1) + records
    batch = struct.pack(">iBI", 0, 2, crc32c(checked)) + checked
    batch = struct.pack(">qi", 0, len(batch)) + batch
    name = topic.encode()
    request = struct.pack(">hhih", 0, 3, 7, 4) + b"test" + struct.pack(">hhii", -1, -1, 10_000, 1)
    request += struct.pack(">h", len(name)) + name + struct.pack(">iii", 1, 0, len(batch)) + batch
    host, port = broker.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=10) as wire:
        wire.sendall(struct.pack(">i", len(request)) + request)
        answer = wire.recv(4096)
    (code,) = struct.unpack_from(">h", answer, 4 + 4 + 4 + 2 + len(name) + 4 + 4)
    assert code == 0, f"the broker answered error {code}"


@pytest.mark.pins("batch")
def test_a_header_name_that_is_not_text_stops_its_partition_alone(worker_group: WorkerGroup) -> None:
    """I4: the client cannot give such headers: the record is a poison record, and no end of the worker."""
    name = worker_group.topic(2)
    now = round(datetime.now(UTC).timestamp() * 1000)
    first = worker_group.produce(
        name, 2_000, partition=0
    )  # enough for Python to take its specialized paths, which check less
    produce_by_hand(worker_group.broker, name, b"bad", b"\xff\xfe", now)
    other = worker_group.produce(name, 3, partition=1)
    run = worker_group.worker(name)
    parked = run.seen.wait_for(events.PartitionStopped)
    assert (parked.partition, parked.error.offset) == (Partition(name, 0), 2_000)
    assert "headers" in str(parked.error)
    worker_group.finish(run, name, first + other)
    worker_group.record_table.assert_holds(name, first + other)


def test_a_time_at_the_end_of_the_calendar_is_read_in_any_zone(
    worker_group: WorkerGroup, new_engine: NewEngine
) -> None:
    """I4: the ledger keeps the record's time; a database whose zone lies east of UTC must not end the worker by it."""
    name = worker_group.topic(config={"message.timestamp.after.max.ms": str(2**63 - 1)})  # brokers refuse it by default
    late = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    produce_by_hand(worker_group.broker, name, b"late", b"h", round((late - EPOCH) / timedelta(milliseconds=1)))
    east = new_engine(worker_group.dsn, connect_args={"options": "-c TimeZone=Europe/Berlin"})
    run = worker_group.worker(name, engine=east, limits=Limits(idle_check=0.1, lag_check=0.5))
    run.seen.wait_for(events.Committed)
    run.seen.wait_for(events.LagSampled, count=2)  # a look at the quiet partition has come in between
    run.stop()
    ledger = GroupLedger(east, worker_group.group, schema=worker_group.schema)
    assert [p.record_time for p in ledger.read()] == [late]
