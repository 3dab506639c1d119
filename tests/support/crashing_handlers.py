"""A handler whose records say whether they are applied, fail, or end the process.

A value is ``ok``, ``fail`` (raises), ``fail 3`` (raises until three attempts were reported), ``fail 3 exit`` (ends the
process then), ``exit``, ``sigkill`` or ``segfault``. Give the worker :meth:`CrashingHandler.watch` as an observer.
"""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Any

from sqlalchemy import Connection

from seekpoint import Batch
from seekpoint.events import Event, RetryScheduled, SingleRecordAttempt, WaitingForRetry
from support.recorded_rows import RecordTable


class CrashingHandler:
    """Writes the table, unless a record fails; ``failed`` counts attempts by (partition, offset)."""

    def __init__(self, record_table: RecordTable) -> None:
        self._record_table = record_table
        self.failed: dict[tuple[int, int], int] = {}

    def watch(self, event: Event) -> None:
        """Note a record's attempts, as reported."""
        if isinstance(event, RetryScheduled | WaitingForRetry):
            self.failed[event.partition.number, event.offset] = event.attempt
        elif isinstance(event, SingleRecordAttempt):  # the earlier ones may have been another process's
            self.failed[event.partition.number, event.offset] = event.attempt - 1

    def __call__(self, tx: Connection, batch: Batch[str, Any]) -> None:
        for record in batch:
            word, *rest = record.value.split()
            match word:
                case "fail":
                    if not rest or self.failed.get((record.partition, record.offset), 0) < int(rest[0]):
                        raise TimeoutError(f"no answer for {record.offset}")
                    if rest[1:] == ["exit"]:
                        os._exit(3)
                case "exit":
                    os._exit(3)
                case "sigkill":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "segfault":
                    ctypes.string_at(0)
        self._record_table.enter(tx, batch)
