"""Shared by the questions about reloads: a group that has applied the whole topic, without a worker.

The live table is written by SQL, and the ledger's positions are set to the topic's ends: for a reload it is as if
workers had applied the records, and two million rows take seconds.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine, create_engine, text

from peers import kinds
from peers.kinds import Kind
from seekpoint import Append, Json, Pipeline, schema
from seekpoint.kafka.ranges import topic_ids
from seekpoint.ledger import GroupLedger
from seekpoint.records import Partition
from setting import BROKERS, TABLE, URL

GROUP = "BENCH_GROUP"  # the variable that names the pipeline's group to tasks
KAFKA = {"bootstrap.servers": BROKERS}


def pipeline() -> Pipeline:
    """Topic to table; tasks import it by name."""
    kind = kinds.KINDS[TABLE]
    return Pipeline(os.environ[GROUP], topics=kind.name, value=Json(kind.record), sinks=[Append(kind.name)], version=2)


@contextmanager
def ledger() -> Iterator[Engine]:
    """Create the ledger's tables; put a new group's name into the environment."""
    os.environ[GROUP] = f"bench-{secrets.token_hex(4)}"
    engine = create_engine(URL)
    try:
        schema.upgrade(engine)
        yield engine
    finally:
        engine.dispose()


def apply_all(engine: Engine, kind: Kind) -> None:
    """Set the group's positions to the topic's ends, and let earlier groups write no tables."""
    with engine.begin() as tx:
        tx.execute(text("UPDATE seekpoint.consumer_group SET tables = '{}'"))
    ends = {Partition(kind.name, number): end for number, end in kinds.ends(kind, BROKERS).items()}
    own = GroupLedger(engine, os.environ[GROUP], version=2)
    ids = {topic: topic_id for topic, topic_id in topic_ids(KAFKA, [kind.name]).items() if topic_id is not None}
    claimed = own.claim(list(ends), ids, cluster_id="benchmark", start=lambda _: dict.fromkeys(ends, 0))
    assert len(claimed.granted) == len(ends)
    with engine.begin() as tx:
        tx.execute(
            text(
                "UPDATE seekpoint.partition_offset SET next_offset = :end"
                " WHERE consumer_group = :group AND partition = :partition"
            ),
            [{"group": own.group, "partition": partition.number, "end": end} for partition, end in ends.items()],
        )
