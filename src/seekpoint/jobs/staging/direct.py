"""Decides which rebuilt tables tasks write directly, and which get copies of attempts' rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlalchemy import Connection, text

from seekpoint.jobs.tables.constraints import expected_columns, may_be_refused
from seekpoint.jobs.tables.create_like import drawn_columns
from seekpoint.jobs.tables.targets import Path, PipelineSource, Target
from seekpoint.sinks.catalog import quoted

_END_WRITERS = text(
    """
    SELECT pg_terminate_backend(pid) FROM pg_locks
    WHERE locktype = 'relation' AND relation = to_regclass(:name) AND mode = 'RowExclusiveLock' AND granted
          AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND pid <> pg_backend_pid()
    """
)


def why_copied(
    connection: Connection, target: Target, targets: Sequence[Target], sources: Sequence[PipelineSource]
) -> str | None:
    """Return why tasks cannot write the target's rebuilt table; None if they can.

    They can if no row is ever removed again, and no value depends on the order in which tasks write.
    """
    return next(_reasons(connection, target, targets, sources), None)


def _reasons(
    connection: Connection, target: Target, targets: Sequence[Target], sources: Sequence[PipelineSource]
) -> Iterator[str]:
    if target.dedupes:
        yield "an Upsert keeps one row of each key"
    if target.sums is not None:
        yield "an Accumulate adds up the rows of each key"
    for number in {feed.source for feed in target.feeds}:
        pipeline = sources[number].pipeline
        if pipeline.keep_key_order:
            yield "with keep_key_order a record can be blocked after its row was written"
        written = [other for other in targets if any(feed.source == number for feed in other.feeds)]
        if may_be_refused(connection, pipeline, written):
            yield f"a unique index or foreign key may refuse rows of group {pipeline.group!r} because of other rows"
    columns = {expected_columns(feed.sink, sources[feed.source].pipeline) for feed in target.feeds}
    if None in columns or len(set(map(frozenset, filter(None, columns)))) > 1:
        yield "only their first row says which columns its sinks write (name them with columns=[...])"
    written_columns = {column for names in columns for column in names or ()}
    if drawn := [column for column in drawn_columns(connection, target.path) if column not in written_columns]:
        yield f"the default of {', '.join(drawn)} numbers rows in the order of the log, or calls a function"


def ways(connection: Connection, targets: Sequence[Target], sources: Sequence[PipelineSource]) -> Iterator[str]:
    """Describe how each table is rebuilt."""
    for target in targets:
        why = why_copied(connection, target, targets, sources)
        how = "tasks write its rebuilt table directly"
        yield f"{target.name}: {how if why is None else f'its rows are staged, and then copied, because {why}'}"


def end_writers(connection: Connection, tables: Sequence[Path]) -> None:
    """End the sessions that write these tables: late tasks, for whose locks the indexes would wait."""
    for table in tables:
        connection.execute(_END_WRITERS, {"name": quoted(*table)})
