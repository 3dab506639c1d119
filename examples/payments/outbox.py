"""The outbox: the handler stores what is to be sent, in the transaction that advances the offset.

Rows that are rolled back are never sent; the relay sends committed rows at least once.

::

    seekpoint run examples.payments.outbox:payouts &
    DATABASE_URL=postgresql+psycopg://… PROVIDER=http://localhost:8080 python -m examples.payments.relay
"""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import Connection, text

from seekpoint import Batch, Json, Pipeline

from .keys import Payout, keys

# A record that is read again after a rewind finds its key, and is not sent again.
WRITE = text("INSERT INTO outbox (key, body) VALUES (:key, CAST(:body AS jsonb)) ON CONFLICT (key) DO NOTHING")


def make(group: str = "payouts-by-outbox", *, topic: str = "payouts", schema: str = "seekpoint") -> Pipeline:
    """The pipeline: it calls no provider, so its batches may be large."""

    def handle(tx: Connection, batch: Batch[Payout, Any]) -> None:
        key = keys(tx, batch, group=group, schema=schema)
        tx.execute(WRITE, [{"key": key(r), "body": msgspec.json.encode(r.value).decode()} for r in batch])

    return Pipeline(group, topics=topic, value=Json(Payout), handle=handle, writes=["outbox"])


payouts = make()
