"""A worker's committer without a worker: the test makes the batches."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from sqlalchemy import Engine

from seekpoint import Partition, Pipeline, events
from seekpoint.events import Announcer
from seekpoint.ledger import GroupLedger
from seekpoint.pipeline.policy import Limits
from seekpoint.pipeline.writers import PipelineWriters
from seekpoint.records import RawRecord
from seekpoint.testing import kit, raw
from seekpoint.worker.assignment.chunk import Chunk, Read
from seekpoint.worker.open_batch import Buffer, OpenBatch
from seekpoint.worker.unit_of_work import Committer
from support.sink_tables import TOPIC


class BatchCommitter:
    """One worker's committer, for any number of batches; after ``first`` batches it knows the table."""

    def __init__(self, engine: Engine, schema: str, pipeline: Pipeline, partitions: int = 1, **settings: Any) -> None:
        self.ledger = GroupLedger(engine, pipeline.group, schema=schema, **settings)
        self.seen: list[events.Event] = []
        self.before_commit: Callable[[], object] = lambda: None
        places = [Partition(TOPIC, n) for n in range(partitions)]
        start = dict.fromkeys(places, 0)
        ids = {TOPIC: kit.topic_id(TOPIC)}
        claimed = self.ledger.claim(places, ids, cluster_id=kit.CLUSTER, start=lambda _: start)
        self.held = kit.FixedClaims(self.ledger, claimed.granted)
        self.committer = Committer(self.ledger, PipelineWriters(pipeline), self.held, Announcer([self._observe]))

    def _observe(self, event: events.Event) -> None:
        self.seen.append(event)
        if isinstance(event, events.Advanced):
            self.before_commit()

    @property
    def driver(self) -> psycopg.Connection[Any]:
        """The committer's psycopg connection."""
        connection = self.committer._session._connection
        assert connection is not None
        return connection.driver

    def batch(self, *values: Any, partition: int = 0) -> list[RawRecord]:
        """A partition's next records, with these values."""
        offset = self.held.claims[Partition(TOPIC, partition)].next_offset
        encoded = [v if isinstance(v, bytes) else json.dumps(v).encode() for v in values]
        return [
            raw(v, topic=TOPIC, partition=partition, offset=offset + n, leader_epoch=3) for n, v in enumerate(encoded)
        ]

    def commit(self, records: Sequence[RawRecord]) -> list[type[events.Event]]:
        """Apply the records as one batch; returns the types of its events."""
        reads: dict[Partition, Read] = {}
        for record in records:
            claim = self.held.claims[Partition(record.topic, record.partition)]
            reads[claim.partition] = Read(claim, claim.next_offset, record.offset + 1, 3, None)
        mark = len(self.seen)
        self.committer.commit(OpenBatch(Buffer(Chunk(records, reads), lambda: None, kit.same_topics, Limits())))
        return [type(event) for event in self.seen[mark:]]

    def apply(self, *values: Any) -> list[type[events.Event]]:
        """Apply the next records of partition 0 as one batch."""
        return self.commit(self.batch(*values))
