"""The statements on ``generation``, as constants; each has a snapshot under ``tests/sql``."""

from __future__ import annotations

from sqlalchemy import BigInteger, Text, Uuid, and_, bindparam, delete, func, insert, literal_column, select, update

from seekpoint.ledger.tables import generation

_gen = generation.c
_of_view = and_(
    _gen.table_schema == bindparam("of_schema", type_=Text), _gen.table_name == bindparam("of_table", type_=Text)
)
# ``turned``: the transaction that made it current. An older snapshot reads the previous generation.
_generations = select(generation, literal_column("generation.xmin::text", Text).label("turned"))
GENERATIONS = _generations.order_by(_gen.table_schema, _gen.table_name)
GENERATION = _generations.where(_of_view)
GENERATIONS_OF_RUN = GENERATIONS.where(_gen.run == bindparam("by_run", type_=Uuid))
# The cut-over of a generation: no lock that a reader could be in front of.
POINT = (
    update(generation)
    .where(_of_view)
    .values(
        number=bindparam("to_number", type_=BigInteger),
        current=bindparam("to_current", type_=Text),
        run=bindparam("by_run", type_=Uuid),
        changed_at=func.clock_timestamp(),
    )
)
INSERT_GENERATION = insert(generation)
DELETE_GENERATION = delete(generation).where(_of_view)
