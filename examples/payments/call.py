"""The direct way: the handler calls the provider, and stores its receipt with the offset.

The call is made before COMMIT, so a crash in between repeats it, with the same key. Use it if the answer is needed in
the same transaction, and with small batches: the transaction is open while the provider answers.

::

    PROVIDER=http://localhost:8080 seekpoint run examples.payments.call:payouts
"""

from __future__ import annotations

import os
from typing import Any

import httpx
import msgspec
from sqlalchemy import Connection, text

from seekpoint import Batch, Json, Pipeline, Poison, Record

from .keys import Payout, keys

RECEIPT = text("INSERT INTO receipts VALUES (:key, :account, :cents, :receipt) ON CONFLICT (key) DO NOTHING")
PASSING = {408, 409, 425, 429}  # HTTP's temporary client errors: the same call may succeed later


def pay(http: httpx.Client, key: str, record: Record[Payout, Any]) -> str:
    """Call once, and return the receipt. Raises Poison for an answer that will not change; other errors are retried."""
    answer = http.post("/payouts", json=msgspec.to_builtins(record.value), headers={"Idempotency-Key": key})
    if answer.is_client_error and answer.status_code not in PASSING:
        raise Poison(f"the provider refuses it: {answer.status_code} {answer.text}", record)
    answer.raise_for_status()
    return str(answer.json()["receipt"])


def make(
    group: str = "payouts-by-call",
    *,
    topic: str = "payouts",
    provider: str = os.environ.get("PROVIDER", "http://localhost:8080"),
    schema: str = "seekpoint",
) -> Pipeline:
    """The pipeline; nothing is opened before the first batch."""

    def handle(tx: Connection, batch: Batch[Payout, Any]) -> None:
        key = keys(tx, batch, group=group, schema=schema)
        with httpx.Client(base_url=provider, timeout=10) as http:  # bounded: the transaction waits for it
            receipts = [
                {"key": key(record), **msgspec.to_builtins(record.value), "receipt": pay(http, key(record), record)}
                for record in batch
            ]
        tx.execute(RECEIPT, receipts)

    return Pipeline(group, topics=topic, value=Json(Payout), handle=handle, writes=["receipts"])


payouts = make()
