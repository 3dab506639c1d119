"""Desks: workers without Kafka, over a ledger of the test's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Engine

from seekpoint.ledger import Ledger
from support.ledger_desk import Desk, make_table


@pytest.fixture
def desk(seekpoint_engine: Engine, seekpoint_schema: str) -> Callable[..., Desk]:
    """``desk(**options of Ledger)`` is one more worker of the group ``g``, over the topic ``t`` that all share."""
    make_table(seekpoint_engine, seekpoint_schema)
    topic_id: UUID = uuid4()

    def make(group: str = "g", *, topic_id: UUID = topic_id, **options: Any) -> Desk:
        given = {"engine": seekpoint_engine, "schema": seekpoint_schema, **options}
        return Desk(Ledger(group=group, **given), topic_id=topic_id)

    return make
