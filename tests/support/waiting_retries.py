"""Retries of waiting records under a claim, without Kafka; ``main`` runs them in a process that kills itself."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Collection, Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from sqlalchemy import Connection, create_engine, text
from sqlalchemy.ext.asyncio import AsyncConnection

from seekpoint import Batch, Pipeline, Retry
from seekpoint.events import Event
from seekpoint.ledger import GroupLedger
from seekpoint.records import Partition
from seekpoint.testing import raw
from seekpoint.testing.kit import CLUSTER, topic_id
from seekpoint.worker.async_handler import callable_handler
from seekpoint.worker.dead_letter_limits import DeadLetterLimitCheck
from seekpoint.worker.replay.retries import WaitingRetries
from seekpoint.worker.waiting import Stopwatch
from support.dead_letter_group import DeadLetterGroup

RETRY = Retry(attempts=5, wait_initial=0.001, wait_max=0.001, jitter=0, crashes=100)
#: Files whose lines are steps of a retry.
STEPS = ("worker/replay/retries.py", "worker/replay/replay_one.py", "ledger/dead_letters.py", "postgres/session.py")


class OwnerOfRecords:
    """The owner of partition 0 of a group with waiting records; ``seen`` are the events of its retries."""

    def __init__(self, group: DeadLetterGroup, pipeline: Pipeline) -> None:
        self.group, self.pipeline, self.seen = group, pipeline, list[Event]()
        partition, ids = Partition(group.topic, 0), {group.topic: topic_id(group.topic)}
        self.ledger = GroupLedger(group.engine, group.group, schema=group.schema)
        claimed = self.ledger.claim([partition], ids, cluster_id=CLUSTER, start=lambda _: {})
        self.active = {partition: SimpleNamespace(claim=claim) for partition, claim in claimed.granted.items()}

    def reconcile(self, _starts: object) -> None:
        """Give up what another process has claimed."""
        self.active.clear()

    def work(self, times: int = 1, *, lost: tuple[type[Exception], ...] = ()) -> None:
        """Retry what is due, so often; after these errors it continues, as a worker does when its database is back."""
        limits, stopwatch, assignment = DeadLetterLimitCheck(self.pipeline.dead_letter_limits), Stopwatch(), self
        with callable_handler(self.pipeline, stopwatch) as handler:
            retries = WaitingRetries(
                self.pipeline,
                self.ledger,
                assignment,  # type: ignore[arg-type]  # what retries use of one
                limits,
                self.seen.append,  # type: ignore[arg-type]
                stopwatch=stopwatch,
                stopping=threading.Event(),
                handler=handler,
            )
            for _ in range(times):
                with suppress(*lost):
                    retries.work()

    def of(self, kind: type[Event]) -> list[Any]:
        """The events of this kind."""
        return [event for event in self.seen if isinstance(event, kind)]


def let_wait(group: DeadLetterGroup, keys: Collection[bytes | None], **columns: str) -> None:
    """Store records with these keys as waiting, due, each after one attempt, as a worker does."""
    group.bad = {b"bad"}
    group.process([raw(b"bad", topic=group.topic, offset=n, key=key) for n, key in enumerate(keys)])
    group.bad.clear()
    values = {"state": "'waiting'", "retry_at": "clock_timestamp()", "attempts": "1", **columns}
    change(group, ", ".join(f"{name} = {value}" for name, value in values.items()))


def change(group: DeadLetterGroup, values: str, where: str = "true") -> None:
    """Change columns of the dead letters."""
    with group.engine.begin() as tx:
        tx.execute(text(f'UPDATE "{group.schema}".dead_letter SET {values} WHERE {where}'))


def rows_of(group: DeadLetterGroup, *columns: str) -> list[tuple[Any, ...]]:
    """The dead letters' offsets and these columns."""
    with group.engine.connect() as tx:
        query = f'SELECT record_offset, {", ".join(columns)} FROM "{group.schema}".dead_letter ORDER BY 1'
        return [tuple(row) for row in tx.execute(text(query))]


def failing_once(group: DeadLetterGroup, order: str, *, is_async: bool = False) -> Pipeline:
    """A pipeline whose handler fails on offset 0 until two of its attempts are stored as failed."""

    def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
        group.handle(tx, batch)
        if any(record.offset == 0 for record in batch):
            query = f'SELECT attempts FROM "{group.schema}".dead_letter WHERE record_offset = 0'
            if tx.execute(text(query)).scalar_one() < 2:
                raise TimeoutError("no answer")

    async def handle_async(tx: AsyncConnection, batch: Batch[Any, Any]) -> None:
        await tx.run_sync(handle, batch)

    return group.pipeline(handle=handle_async if is_async else handle, retry=RETRY, retry_order=order)


def main(what: Mapping[str, Any]) -> None:
    """Retry until the ``kill_at``-th line of a step, and end there by SIGKILL; report the number of lines otherwise."""
    engine = create_engine(what["dsn"])
    group = DeadLetterGroup(engine, what["schema"])
    owner = OwnerOfRecords(group, failing_once(group, what["order"], is_async=what["is_async"]))
    lines = 0

    def trace(frame: Any, event: str, _argument: object) -> Any:
        nonlocal lines
        if not frame.f_code.co_filename.endswith(STEPS):
            return None
        if event == "line":
            if lines == what["kill_at"]:
                os.kill(os.getpid(), signal.SIGKILL)
            lines += 1
        return trace

    sys.settrace(trace)
    owner.work(3)
    sys.settrace(None)
    print(lines, flush=True)
    engine.dispose()
