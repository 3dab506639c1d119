"""The idempotency key of a record: its topic's id, its partition, its offset.

``record.id`` has the topic's *name*. If a topic is deleted and created again, new records have old names and offsets,
and a receiver that knows these keys would never pay them. So the key has the topic's id, which is another one then. The
id is in the ledger's row, which this transaction has locked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Connection, column, select, table

from seekpoint import Batch, Record


class Payout(msgspec.Struct):
    """A record's value."""

    account: str
    cents: int


Key = Callable[[Record[Any, Any]], str]


def keys(tx: Connection, batch: Batch[Any, Any], *, group: str, schema: str = "seekpoint") -> Key:
    """A function from a record of this batch to its key: ``<topic id>/<partition>/<offset>``."""
    offsets = table(
        "partition_offset", *map(column, ("consumer_group", "topic", "partition", "topic_id")), schema=schema
    )
    rows = tx.execute(
        select(offsets.c.topic, offsets.c.partition, offsets.c.topic_id).where(
            offsets.c.consumer_group == group, offsets.c.topic.in_(sorted({record.topic for record in batch}))
        )
    )
    ids: dict[tuple[str, int], UUID] = {(row.topic, row.partition): row.topic_id for row in rows}
    return lambda record: f"{ids[record.topic, record.partition]}/{record.partition}/{record.offset}"
