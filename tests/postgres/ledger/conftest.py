"""Workers without Kafka, over a ledger of the test's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Engine

from seekpoint.ledger import GroupLedger
from support.ledger_worker import LedgerWorker, make_table


@pytest.fixture
def new_worker(seekpoint_engine: Engine, seekpoint_schema: str) -> Callable[..., LedgerWorker]:
    """``new_worker(**options of GroupLedger)`` is one more worker of group ``g``, over the topic ``t`` that all share.

    With ``positions={partition: offset}`` it has claimed these partitions and applied the records before the offsets.
    """
    make_table(seekpoint_engine, seekpoint_schema)
    topic_id: UUID = uuid4()

    def make(
        group: str = "g", *, topic_id: UUID = topic_id, positions: Mapping[int, int] | None = None, **options: Any
    ) -> LedgerWorker:
        arguments = {"engine": seekpoint_engine, "schema": seekpoint_schema, **options}
        worker = LedgerWorker(GroupLedger(group=group, **arguments), topic_id=topic_id)
        if positions:
            worker.claim(*positions)
        if ends := {number: end for number, end in (positions or {}).items() if end}:
            worker.commit(ends)
        return worker

    return make
