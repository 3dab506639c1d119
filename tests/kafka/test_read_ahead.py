"""Chunks that are read while a transaction waits for the server: applied in order, kept by failures, dropped by resets.

Batches have fifty records and chunks ten: when a batch's records are written, chunks of the next one were read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from sqlalchemy import Engine

from seekpoint import Append, Json, Limits, Partition, Pipeline, Retry, events
from seekpoint.kafka.client import Client
from seekpoint.worker import reader
from seekpoint.worker.assignment import Chunk
from seekpoint.worker.assignment.partitions import AssignedPartitions
from seekpoint.worker.reader import Reader
from support.events import Gate, Run
from support.manual_worker import rival, seize
from support.postgres_proxy import MOVES, PostgresProxy
from support.waiting import SECONDS
from support.worker_group import WorkerGroup

pytestmark = [
    pytest.mark.usefixtures("short_backoff"),
    pytest.mark.pins("batch", "small_batch", "read_ahead"),
]

ALL, BATCH, CHUNK = 200, 50, 10
LIMITS = Limits(batch_records=BATCH)


@pytest.fixture
def full_chunks() -> list[int]:
    """So many records are read in full chunks, however late they come: those of two batches."""
    return [2 * BATCH]


SLOW = "CREATE TRIGGER slow AFTER INSERT ON {schema}.%s FOR EACH STATEMENT EXECUTE FUNCTION {schema}.slow()"


@pytest.fixture(autouse=True)
def slow_server(worker_group: WorkerGroup) -> None:
    """The server takes a moment for each batch: a worker that has its answer at once reads nothing ahead."""
    worker_group.sql(
        "CREATE FUNCTION {schema}.slow() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_sleep(0.05); RETURN NULL; END $$",
        SLOW % "book",
    )


@pytest.fixture(autouse=True)
def kept_counts(monkeypatch: pytest.MonkeyPatch, full_chunks: list[int]) -> list[int]:
    """How many records were kept, after each chunk that was read ahead."""
    monkeypatch.setattr(reader, "CHUNK", CHUNK)
    kept: list[int] = []
    left, read, keep = full_chunks, Client.read, AssignedPartitions.keep

    def waits(self: Client, most: int, wait: float) -> list[Any]:
        messages: list[Any] = [] if wait == 0 else read(self, most, wait)
        while wait == 0 and left[0] > 0 and len(messages) < min(most, left[0]):
            if not (more := read(self, min(most, left[0]) - len(messages), SECONDS)):
                return messages
            messages += more
        left[0] -= len(messages)
        return messages or (read(self, most, 0) if wait == 0 else [])

    def noted(self: AssignedPartitions, chunk: Chunk[Any]) -> None:
        keep(self, chunk)
        kept.append(self.queue.records)

    monkeypatch.setattr(Client, "read", waits)
    monkeypatch.setattr(AssignedPartitions, "keep", noted)
    return kept


def start(
    worker_group: WorkerGroup, event: type[events.Event], **options: Any
) -> tuple[Run, Gate, str, list[tuple[int, int]]]:
    """A worker that waits at an event of its first batch."""
    name, stored = worker_group.log(ALL)
    gate = Gate(event)
    run = worker_group.worker(name, observe=[gate], limits=LIMITS, **options)
    gate.wait()
    return run, gate, name, stored


def finish(worker_group: WorkerGroup, run: Run, name: str, stored: list[tuple[int, int]]) -> None:
    worker_group.finish(run, name, stored)
    worker_group.record_table.assert_holds(name, stored)


def test_chunks_of_the_next_batch_are_read_while_one_waits_and_are_bounded_as_a_batch_is(
    worker_group: WorkerGroup, kept_counts: list[int], full_chunks: list[int]
) -> None:
    full_chunks[0] = ALL
    name, stored = worker_group.log(ALL)
    run = worker_group.worker(name, limits=LIMITS)
    finish(worker_group, run, name, stored)
    assert BATCH - CHUNK <= max(kept_counts) <= BATCH
    assert {e.records > BATCH - CHUNK for e in run.seen.all(events.Committed)[:-1]} == {True}
    assert max(e.records for e in run.seen.all(events.Committed)) <= BATCH
    assert sum(e.records for e in run.seen.all(events.ChunkRead)) == ALL, "nothing is read twice"


def test_nothing_is_read_ahead_while_a_handler_runs(worker_group: WorkerGroup, kept_counts: list[int]) -> None:
    """A codec's code must not run inside of a handler's statement."""
    name, stored = worker_group.log(ALL)
    run = worker_group.worker(worker_group.pipeline(name, handle=worker_group.record_table.enter), limits=LIMITS)
    finish(worker_group, run, name, stored)
    assert not kept_counts


def test_chunks_survive_an_unknown_commit(
    worker_group: WorkerGroup, proxy: PostgresProxy, new_engine: Callable[..., Engine], kept_counts: list[int]
) -> None:
    run, gate, name, stored = start(worker_group, events.Advanced, engine=new_engine(proxy.dsn, pool_pre_ping=True))
    assert kept_counts
    proxy.arm("before_commit", MOVES)
    gate.open()
    finish(worker_group, run, name, stored)
    assert run.seen.all(events.CommitUnknown)
    assert len(run.seen.all(events.Activated)) == 1, "nothing is read again"


def test_a_reset_drops_them(worker_group: WorkerGroup, kept_counts: list[int]) -> None:
    """I5: the records that were read ahead are before the operator's offset, and are not applied."""
    run, gate, name, stored = start(worker_group, events.Committed)
    assert kept_counts
    worker_group.ledger.reset_offset(name, 0, 150, log=None, reason="a test", lost="operator")
    gate.open()
    worker_group.finish(run, name, stored)
    worker_group.record_table.assert_holds(name, [place for place in stored if place[1] < BATCH or place[1] >= 150])


def test_another_claim_drops_them(worker_group: WorkerGroup, kept_counts: list[int]) -> None:
    """I2: they were read under a claim that is lost; they are read again under the next one."""
    run, gate, name, stored = start(worker_group, events.Committed)
    assert kept_counts
    seize(worker_group, rival(worker_group), name, 0)
    gate.open()
    finish(worker_group, run, name, stored)
    assert run.seen.all(events.ClaimLost)


def test_an_error_of_the_client_is_met_by_the_next_read(
    worker_group: WorkerGroup, monkeypatch: pytest.MonkeyPatch, kept_counts: list[int]
) -> None:
    """The transaction that waits is committed; what was read ahead is read again."""
    read, read_ahead, state = Client.read, Reader.read_ahead, {"ahead": False, "raised": 0}

    def marked(self: Reader) -> bool:
        state["ahead"] = True
        try:
            return read_ahead(self)
        finally:
            state["ahead"] = False

    def failing(self: Client, most: int, wait: float) -> list[Any]:
        if state["ahead"] and kept_counts and not state["raised"]:
            state["raised"] = 1
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return read(self, most, wait)

    monkeypatch.setattr(Reader, "read_ahead", marked)
    monkeypatch.setattr(Client, "read", failing)
    name, stored = worker_group.log(ALL)
    run = worker_group.worker(name, limits=LIMITS)
    finish(worker_group, run, name, stored)
    assert state["raised"]
    assert run.seen.all(events.KafkaTrouble)


def test_a_record_that_cannot_be_decoded_is_the_dead_letter_of_its_own_batch(
    worker_group: WorkerGroup, kept_counts: list[int]
) -> None:
    name = worker_group.topic()
    worker_group.sql("CREATE TABLE {schema}.plain (v int)")
    values = [b"7"] * ALL
    values[73] = b"{"
    worker_group.produce(name, values)
    pipeline = Pipeline(
        worker_group.group,
        topics=name,
        value=Json(int),
        sinks=[Append((worker_group.schema, "plain"), columns=["v"], row=lambda r: (r.value,))],
        on_poison="dead_letter",
    )
    run = worker_group.worker(pipeline, limits=LIMITS)
    run.reached(name, ALL)
    assert kept_counts
    assert [(number, offset) for number, offset, *_ in worker_group.dead_letters()] == [(0, 73)]
    assert worker_group.sql("SELECT count(*) FROM {schema}.plain")[0][0] == ALL - 1
    assert worker_group.positions() == {Partition(name, 0): ALL}


REFUSES = """CREATE FUNCTION {schema}.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF NEW.v = 23 THEN RAISE SQLSTATE '55P03'; END IF; RETURN NEW; END $$"""


def test_they_wait_after_a_record_that_is_tried_again(worker_group: WorkerGroup, kept_counts: list[int]) -> None:
    """They are of its partition: the order is kept, and no transaction is refused for a gap."""
    name = worker_group.topic()
    worker_group.sql(
        "CREATE TABLE {schema}.plain (n serial, v int)",
        REFUSES,
        "CREATE TRIGGER refuse BEFORE INSERT ON {schema}.plain FOR EACH ROW EXECUTE FUNCTION {schema}.refuse()",
        SLOW % "plain",
    )
    worker_group.produce(name, [b"%d" % n for n in range(ALL)])
    sink: Append[int, Any] = Append((worker_group.schema, "plain"), columns=["v"], row=lambda r: (r.value,))
    retry = Retry(attempts=100, wait_initial=0.1, multiplier=1)
    run = worker_group.worker(
        Pipeline(worker_group.group, topics=name, value=Json(int), sinks=[sink], retry=retry), limits=LIMITS
    )
    run.seen.wait_for(events.RetryScheduled)
    assert kept_counts
    worker_group.sql("DROP TRIGGER refuse ON {schema}.plain")
    run.reached(name, ALL)
    assert not run.seen.all(events.Refused)
    assert [v for (v,) in worker_group.sql("SELECT v FROM {schema}.plain ORDER BY n")] == list(range(ALL))


def test_a_revocation_drops_them(
    worker_group: WorkerGroup, monkeypatch: pytest.MonkeyPatch, kept_counts: list[int]
) -> None:
    """I2: the partition is taken while they are kept, and given again; they are read again under the next claim."""
    keep, revoked = AssignedPartitions.keep, [False]

    def revoking(self: AssignedPartitions, chunk: Chunk[Any]) -> None:
        keep(self, chunk)
        if len(self.queue) > 1 and not revoked[0]:
            revoked[0] = True
            partitions = list(self.active)
            self.on_revoked(partitions, False)
            self.on_assigned(partitions)

    monkeypatch.setattr(AssignedPartitions, "keep", revoking)
    name, stored = worker_group.log(ALL)
    run = worker_group.worker(name, limits=LIMITS)
    finish(worker_group, run, name, stored)
    assert revoked[0]
    assert len(run.seen.all(events.Activated)) == 2
    assert not run.seen.all(events.Refused)
