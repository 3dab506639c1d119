"""The receiver: does the work of each key once, however often it is called.

The inbox is a table whose primary key is the caller's key. Inbox row and effect are one transaction, so neither is
there without the other. A key that comes again gets the first answer. If it comes with another body, it is refused:
two different payouts under one key are a mistake of the caller, not a repetition.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import uuid4

import msgspec
from sqlalchemy import Connection, Engine, text

from .keys import Payout

# A second caller with the same key waits here for the first one's transaction, and then finds its row.
TAKE = text(
    "INSERT INTO inbox VALUES (:key, CAST(:body AS jsonb), :receipt) ON CONFLICT (key) DO NOTHING RETURNING receipt"
)
FIRST = text("SELECT receipt, body = CAST(:body AS jsonb) AS same FROM inbox WHERE key = :key")
PAY = text("INSERT INTO paid VALUES (:receipt, :account, :cents)")

Answer = tuple[int, dict[str, Any]]


def accept(tx: Connection, key: str | None, body: bytes) -> Answer:
    """Status and answer for one call; the effect happens in the transaction that keeps the key."""
    if not key:
        return 400, {"error": "an Idempotency-Key is required"}
    try:
        payout = msgspec.json.decode(body, type=Payout)
    except msgspec.DecodeError as error:
        return 422, {"error": str(error)}
    if "\0" in payout.account or not -(2**63) <= payout.cents < 2**63:  # Postgres cannot store it
        return 422, {"error": "account or cents cannot be stored"}
    call = {"key": key, "body": msgspec.json.encode(payout).decode()}  # only the fields that were decoded
    if receipt := tx.execute(TAKE, {**call, "receipt": uuid4().hex}).scalar_one_or_none():
        tx.execute(PAY, {"receipt": receipt, **msgspec.to_builtins(payout)})
        return 200, {"receipt": receipt}
    first = tx.execute(FIRST, call).one()
    if not first.same:
        return 422, {"error": f"key {key} was used for another payout"}
    return 200, {"receipt": first.receipt}


def serve(engine: Engine, on_done: Callable[[str | None, bytes], None] | None = None) -> ThreadingHTTPServer:
    """A server on a free port of this machine; ``on_done`` is called after COMMIT, before the call is answered."""

    class Payouts(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            key, body = self.headers["Idempotency-Key"], self.rfile.read(int(self.headers["Content-Length"]))
            with engine.begin() as tx:
                status, answer = accept(tx, key, body)
            if on_done is not None:
                on_done(key, body)
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    return ThreadingHTTPServer(("127.0.0.1", 0), Payouts)
