"""Computes the table again in plain Python, from the records before the ledger's offsets, and compares."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import msgspec
from sqlalchemy import Engine, select, text

from demo.reload.handling import GROUP, VERSIONS, Priced, table
from demo.reload.load import Log
from demo.report import Comparison, count_differences

_OFFSETS = text(f"SELECT partition, next_offset FROM seekpoint.partition_offset WHERE consumer_group = '{GROUP}'")


def expected(log: Log, offsets: Mapping[int, int], version: int) -> Iterator[Priced]:
    """The rows of the records before these offsets, in the order of their ids."""
    cents = VERSIONS[version].cents
    rows = [(log[partition][offset], offset) for partition, end in offsets.items() for offset in range(end)]
    rows.sort(key=lambda row: row[0].id)
    for flight, offset in rows:
        yield Priced(**msgspec.structs.asdict(flight), cents=cents(flight), topic_offset=offset)


def compare(engine: Engine, log_to: Callable[[Mapping[int, int]], Log], version: int) -> Comparison:
    """Compare the table, row by row and column by column, with the computed rows, as of one moment.

    ``log_to`` returns the records before the offsets of that moment, by partition.
    """
    comparison = Comparison()
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        offsets = {row.partition: row.next_offset for row in connection.execute(_OFFSETS)}
        result = connection.execution_options(yield_per=5_000).execute(select(table).order_by(table.c.id))
        count_differences(map(tuple, result), expected(log_to(offsets), offsets, version), comparison)
    return comparison
