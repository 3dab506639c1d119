"""The plan of a reload of a SparkPipeline's tables: the tables, the number of records, and the joined inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import text

from seekpoint.errors import ReloadRefused
from seekpoint.jobs.reload.cutover_limits import Bounds
from seekpoint.jobs.reload.open import checked, of_runs, require_strategy
from seekpoint.jobs.tables.dependencies import notes
from seekpoint.ledger.sql import GROUPS
from seekpoint.records import Partition
from seekpoint.runs.manage_runs import Runs
from seekpoint.runs.run import transaction
from seekpoint.sinks.catalog import quoted

if TYPE_CHECKING:
    from seekpoint.jobs.frames.bound_pipeline import BoundPipeline

_ROWS = text("SELECT CAST(nullif(reltuples, -1) AS bigint) FROM pg_class WHERE oid = to_regclass(:name)")


@dataclass(frozen=True, slots=True)
class PlannedTable:
    """A table to rebuild: its sink, approximate number of rows (None if it was never analyzed), and inputs.

    ``inputs`` are the tables that its frames join: rebuilt rows have those tables' values at the time of the reload,
    live rows those at the time of each micro-batch.
    """

    table: str
    sink: str
    rows: int | None
    inputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReloadPlan:
    """The plan of a reload. ``offsets`` maps ``topic/partition`` to the first offset and the end offset.

    ``records`` is the number of these offsets; ``dead_letters`` of them have no rows. ``notes`` describe changes that a
    merge may cause in other tables.
    """

    group: str
    strategy: str
    tables: tuple[PlannedTable, ...]
    offsets: Mapping[str, tuple[int, int]]
    records: int
    dead_letters: int
    version_from: int
    version_to: int
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """The fields as a dictionary for JSON."""
        return asdict(self)

    def sentences(self) -> list[str]:
        """The plan line by line."""
        effect = {
            "merge": "rows that differ are changed in the live tables",
            "swap": "the rebuilt tables replace the live ones",
        }[self.strategy]
        lines = [f"{self.group}: {self.records:,} records are read again; {self.strategy}: {effect}"]
        lines += [
            f"{name} is read from offset {first:,} to {end:,}, and on to the group's position at the cut-over"
            for name, (first, end) in self.offsets.items()
        ]
        for planned_table in self.tables:
            table, count = planned_table.table, planned_table.rows
            rows = "of an unknown number of rows" if count is None else f"of about {count:,} rows"
            lines.append(f"{table}, {rows}, is rebuilt by {planned_table.sink}")
            if planned_table.inputs:
                joined = ", ".join(planned_table.inputs)
                when = "as it is now, not as it was when the live rows were written"
                lines.append(f"{table}: the rebuilt rows are joined with {joined} {when}")
        if self.dead_letters:
            lines.append(f"{self.dead_letters:,} open dead letters will have no rows in the rebuilt tables")
        if self.version_from != self.version_to:
            lines.append(f"the group goes from version {self.version_from} to {self.version_to} at the cut-over")
        return [*lines, *self.notes]


def planned(bound: BoundPipeline, runs: Runs, strategy: str, bounds: Bounds) -> ReloadPlan:
    """Plan a reload of a bound pipeline.

    Raises ReloadRefused with every reason against it, and ConfigError for an unknown strategy or settings that no
    consumer accepts.
    """
    require_strategy(strategy)
    source = bound.source
    targets, offsets, dead_letters = checked(
        runs, bound.kafka, [source], strategy=strategy, bounds=bounds, of_frames=True
    )
    with transaction(runs.engine, runs.schema) as tx:
        if reasons := of_runs(tx, [target.name for target in targets]):
            raise ReloadRefused(reasons)
        rows = {
            target.name: tx.connection.execute(_ROWS, {"name": quoted(*target.path)}).scalar_one() for target in targets
        }
        merge_notes = tuple(notes(tx.connection, targets)) if strategy == "merge" else ()
        version = tx.execute(GROUPS["read"], group=source.group).one().version
    tables = tuple(
        PlannedTable(
            target.name,
            type(target.feeds[0].sink).__name__,
            rows[target.name],
            tuple(sorted({name for feed in target.feeds for name in bound.frames[feed.number].frame.inputs})),
        )
        for target in targets
    )
    ranges = {str(Partition(row.topic, row.partition)): (row.first_offset, row.next_offset) for row in offsets}
    return ReloadPlan(
        group=source.group,
        strategy=strategy,
        tables=tables,
        offsets=ranges,
        records=sum(end - first for first, end in ranges.values()),
        dead_letters=dead_letters,
        version_from=version,
        version_to=source.pipeline.version,
        notes=merge_notes,
    )
