"""Resets rows and positions to the targets of a reset plan, in one transaction, by rebuilding the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from sqlalchemy import Row

from seekpoint.admin import ResetDone, ResetPlan
from seekpoint.admin.apply_resets import reset_rebuilt
from seekpoint.admin.attribution import Attribution
from seekpoint.errors import ConfigError
from seekpoint.jobs.staging.distance import Key, key_of
from seekpoint.jobs.tables.targets import PipelineSource, Target, resolve
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import GROUPS
from seekpoint.records import Partition
from seekpoint.runs.run import Step, Tx


@dataclass(slots=True)
class Rewind:
    """A reset plan that a run carries out: tables are rebuilt up to its targets, and the cut-over resets positions.

    ``done`` has the resets after the cut-over. The plan is not stored, so a run that another driver takes over becomes
    an ordinary reload up to the groups' positions.
    """

    plan: ResetPlan
    attribution: Attribution
    done: list[ResetDone] = field(default_factory=list)

    def require(self, sources: Sequence[PipelineSource], *, accept_loss: bool) -> None:
        """Raise ConfigError if the plan is for other pipelines, or retention has removed some of its offsets."""
        groups = [source.group for source in sources]
        if groups != [self.plan.group]:
            raise ConfigError(
                f"the plan is of group {self.plan.group!r}, and the pipelines are of {', '.join(groups)}: give only "
                "the pipeline of that group"
            )
        if self.plan.needs_accept_loss and not accept_loss:
            gone = ", ".join(str(move.topic_partition) for move in self.plan.moves if move.gone)
            raise ConfigError(f"retention has removed offsets of {gone}: --accept-loss (accept_loss=True) is needed")

    @property
    def ends(self) -> Mapping[Key, int]:
        """The targets of partitions with a backward reset: the tables are rebuilt up to these offsets."""
        backward = (move for move in self.plan.moves if move.direction == "backward")
        return {(self.plan.group, move.topic_partition): move.target for move in backward}

    def require_tables(self, tx: Tx, rebuilt: Sequence[Target]) -> None:
        """Raise ConfigError for a table that the group writes but the pipeline does not: its rows would remain (I1)."""
        topics = sorted({partition.topic for _, partition in self.ends})
        stored = GroupConnection(tx.connection, tx.schema, self.plan.group).execute(
            GROUPS["tables_of_topics"], topics=topics
        )
        written = {*self.plan.counts_twice, *(name for row in stored for name in row.tables)}
        paths = {target.path for target in rebuilt}
        if missing := sorted(name for name in written if resolve(tx.connection, name) not in paths):
            raise ConfigError(
                f"group {self.plan.group!r} writes {', '.join(missing)}, and the pipeline given to rebuild does not: "
                "records read again would be written there a second time. Give the pipeline with all of the group's "
                "sinks; if you have removed a sink, first run a worker of the new pipeline once"
            )

    def reset(self, tx: Step, rebuilt: Sequence[Target]) -> None:
        """Reset the positions, in the transaction of the rebuilt rows (I1).

        Raises Fenced as :meth:`Admin.apply` does, and ConfigError as :meth:`require_tables` does.
        """
        self.require_tables(tx, rebuilt)
        scope = GroupConnection(tx.connection, tx.schema, self.plan.group)
        self.done = reset_rebuilt(scope, self.plan, self.attribution)

    def is_before_end(self, group: str, partition: Partition, offset: int) -> bool:
        """Whether the rebuilt tables include this record."""
        end = self.ends.get((group, partition))
        return end is None or offset < end


def ending_at(rows: Sequence[Row[Any]], ends: Mapping[Key, int]) -> Sequence[Any]:
    """The positions' rows, with ``next_offset`` limited by ``ends``."""
    return [
        SimpleNamespace(
            **{
                **row._mapping,  # noqa: SLF001 -- SQLAlchemy's own
                "next_offset": max(row.first_offset, min(row.next_offset, end)),
            }
        )
        if (end := ends.get(key_of(row))) is not None
        else row
        for row in rows
    ]
