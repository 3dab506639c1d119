"""Which of a run's tables each group writes, stored in the run's schema: a task knows only its own pipeline."""

from __future__ import annotations

from collections.abc import Sequence

from seekpoint.jobs.run import Tx
from seekpoint.jobs.tables.sql_templates import rows, run
from seekpoint.jobs.tables.staging_schema import is_there, unlogged
from seekpoint.jobs.tables.targets import PipelineSource, targets

_TABLE = "writes"


def remember_writes(tx: Tx, staging_schema: str, sources: Sequence[PipelineSource]) -> None:
    """Keep what the driver's code writes, group by group."""
    table = (staging_schema, _TABLE)
    run(
        tx.connection,
        "CREATE {unlogged} TABLE {table} (consumer_group text, table_name text, "
        "PRIMARY KEY (consumer_group, table_name))",
        unlogged=unlogged(staging_schema),
        table=table,
    )
    for source in sources:
        written = sorted(target.name for target in targets(tx.connection, [source]))
        statement = "INSERT INTO {table} SELECT {group}, unnest({written}::text[])"
        run(tx.connection, statement, table=table, group=source.group, written=written)


def writes_of(tx: Tx, staging_schema: str, group: str) -> set[str] | None:
    """What this group writes in the run; None where that is not kept: the run has not begun."""
    table = (staging_schema, _TABLE)
    if not is_there(tx.connection, table):
        return None
    statement = "SELECT table_name FROM {table} WHERE consumer_group = {group}"
    return {row[0] for row in rows(tx.connection, statement, table=table, group=group)}


def writes_other_tables(tx: Tx, staging_schema: str, source: PipelineSource) -> bool:
    """Whether this code of a group writes others of the run's tables than the code that the run began with."""
    theirs = writes_of(tx, staging_schema, source.group)
    return theirs is not None and theirs != {target.name for target in targets(tx.connection, [source])}
