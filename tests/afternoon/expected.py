"""What the tables must have, computed in plain Python from the produced records, and how the tables differ from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sqlalchemy import Connection, Engine, text

from afternoon.declared import GROUPS
from afternoon.facts import COLUMNS, Fact

Row = tuple[Any, ...]

_POSITIONS = text("SELECT partition, next_offset FROM seekpoint.partition_offset WHERE consumer_group = :group")
_DEAD = text("SELECT partition, record_offset FROM seekpoint.dead_letter WHERE consumer_group = :group")


class Recomputed:
    """The tables that a group makes of the records that pass through :meth:`entries`."""

    def __init__(self, positions: Mapping[int, int], *, deletes: bool) -> None:
        self._positions, self._deletes = positions, deletes
        self.newest: dict[str, Row] = {}
        self.sums: dict[str, Row] = {}
        self.tombstones: set[Row] = set()

    def entries(self, facts: Iterable[Fact]) -> Iterator[Row]:
        """The rows of the records before the positions; the other tables are complete at the end."""
        for fact in facts:
            if fact.offset >= self._positions.get(fact.partition, 0):
                continue
            if fact.values is None:
                self.tombstones.add((fact.partition, fact.offset))
                if self._deletes:
                    self.newest.pop(fact.name, None)
                continue
            self._add(dict(zip(COLUMNS, fact.values, strict=True)))
            yield (*fact.values, fact.partition, fact.offset)

    def _add(self, values: Mapping[str, Any]) -> None:
        self.newest[values["name"]] = (values["n"], values["words"], values["amount"])
        n, day, time = values["n"], values["day"], values["at"]
        cents, facts, first_day, last_at, _ = self.sums.get(f"b{n % 7}", (0, 0, day, time, n))
        self.sums[f"b{n % 7}"] = (cents + values["cents"], facts + 1, min(first_day, day), max(last_at, time), n)


def differences(expected: Iterable[Row], rows: Iterator[Row]) -> dict[str, int]:
    """How many rows are lost, extra (or twice) and different; both are in the order of their first column."""
    counts = {"lost": 0, "extra": 0, "different": 0}
    row = next(rows, None)
    for expected_row in expected:
        while row is not None and row[0] < expected_row[0]:
            counts["extra"] += 1
            row = next(rows, None)
        if row is None or row[0] > expected_row[0]:
            counts["lost"] += 1
            continue
        counts["different"] += _exact(row) != _exact(expected_row)
        row = next(rows, None)
    counts["extra"] += sum(1 for _ in rows) + (row is not None)
    return counts


def _exact(row: Row) -> Row:
    """The row with floats as texts: NaN is equal to itself, and 0.0 is not -0.0."""
    return tuple(repr(value) if isinstance(value, float) else value for value in row)


def compare(engine: Engine, group: str, facts: Iterable[Fact]) -> list[str]:
    """What is wrong in the group's tables, in one snapshot, at the positions of that snapshot."""
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        connection.execute(text("SET TimeZone = 'UTC'"))
        positions = {row.partition: row.next_offset for row in connection.execute(_POSITIONS, {"group": group})}
        recomputed = Recomputed(positions, deletes=group == "worker")
        streamed = connection.execution_options(stream_results=True, yield_per=2_000)
        select = f"SELECT {', '.join(COLUMNS)}, part, pos FROM {group}_entries ORDER BY n, pos"
        counts = differences(recomputed.entries(facts), map(tuple, streamed.execute(text(select))))
        problems = [f"{group}_entries: {count} rows {kind}" for kind, count in counts.items() if count]
        if not positions:
            problems.append(f"{group} has no position: this proves nothing")
        keyed = {"sums": (recomputed.sums, "bucket, cents, facts, first_day, last_at, last_n")}
        if GROUPS[group]:
            keyed["newest"] = (recomputed.newest, "name, n, words, amount")
        for table, (wanted, columns) in keyed.items():
            problems += _keyed(connection, f"{group}_{table}", columns, wanted)
        wanted_dead = set() if group == "worker" else recomputed.tombstones
        if {tuple(row) for row in connection.execute(_DEAD, {"group": group})} != wanted_dead:
            problems.append(f"{group}: its dead letters are not the records without a value")
    return problems


def _keyed(connection: Connection, table: str, columns: str, wanted: Mapping[str, Row]) -> list[str]:
    rows = {row[0]: tuple(row[1:]) for row in connection.execute(text(f"SELECT {columns} FROM {table}"))}
    wrong = sum(rows.get(key) != wanted.get(key) for key in rows.keys() | wanted.keys())
    return [f"{table}: {wrong} of {len(wanted)} rows differ"] if wrong else []
