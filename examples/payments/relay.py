"""The relay: sends each row of the outbox at least once, always with the same key, and marks it as sent.

Start as many relays as you like: each takes a row that no other has locked. A row that cannot be sent now is tried
again after 1, 2, 4 … seconds, 5 minutes at most; other rows are sent meanwhile, so the order is not guaranteed. A row
that the provider refuses for good is kept with its error, and not tried again.
"""

from __future__ import annotations

import os
import signal
import threading

import httpx
from sqlalchemy import Engine, create_engine, text

from .call import PASSING

# Locked until its mark is committed: other relays skip it, and a crash unlocks it.
NEXT = text("SELECT key, body FROM outbox WHERE due_at <= now() ORDER BY due_at LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED")
SENT = text(
    "UPDATE outbox SET sent_at = clock_timestamp(), due_at = NULL, receipt = :receipt, error = NULL,"
    " attempts = attempts + 1 WHERE key = :key"
)
LATER = text(
    "UPDATE outbox SET attempts = attempts + 1, error = :error,"
    " due_at = clock_timestamp() + least(power(2, least(attempts, 30)), 300) * interval '1 second' WHERE key = :key"
)
NEVER = text("UPDATE outbox SET attempts = attempts + 1, error = :error, due_at = NULL WHERE key = :key")


def send_next(engine: Engine, http: httpx.Client) -> bool:
    """Send one row; returns whether there was one. A crash before COMMIT sends it again, with its key."""
    with engine.begin() as tx:
        row = tx.execute(NEXT).one_or_none()
        if row is None:
            return False
        try:
            answer = http.post("/payouts", json=row.body, headers={"Idempotency-Key": row.key})
            receipt = str(answer.json()["receipt"]) if answer.is_success else None
        except Exception as error:  # noqa: BLE001 -- it may have arrived: the key makes that harmless
            tx.execute(LATER, {"key": row.key, "error": f"{type(error).__name__}: {error}".replace("\0", "\\0")})
            return True
        problem = f"{answer.status_code} {answer.text}".replace("\0", "\\0")
        if receipt is not None:
            tx.execute(SENT, {"key": row.key, "receipt": receipt})
        elif answer.is_client_error and answer.status_code not in PASSING:
            tx.execute(NEVER, {"key": row.key, "error": problem})
        else:
            tx.execute(LATER, {"key": row.key, "error": problem})
        return True


def run(engine: Engine, provider: str, stopping: threading.Event, pause: float = 1.0) -> None:
    """Send rows that are due, check again every ``pause`` seconds, until ``stopping`` is set."""
    with httpx.Client(base_url=provider, timeout=10) as http:
        while not stopping.is_set():
            if not send_next(engine, http):
                stopping.wait(pause)


def main() -> None:
    """Run until SIGTERM or Ctrl-C."""
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    run(create_engine(os.environ["DATABASE_URL"], pool_pre_ping=True), os.environ["PROVIDER"], stopping)


if __name__ == "__main__":
    main()
