"""Opens a run: stores the groups' snapshot offsets, or lists every reason why it cannot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Connection, Row, text

from seekpoint.errors import ConfigError, ReloadRefused
from seekpoint.jobs.export import Archive
from seekpoint.jobs.reload.cutover_limits import Bounds
from seekpoint.jobs.reload.merge_check import hides_rows
from seekpoint.jobs.reload.other_topics import of_other_topics, of_sources, other_topics
from seekpoint.jobs.reload.rewind import ending_at
from seekpoint.jobs.reload.wait_at_opening import of_wait
from seekpoint.jobs.staging.compaction import of_compaction
from seekpoint.jobs.staging.direct import ways
from seekpoint.jobs.staging.distance import Key, beyond
from seekpoint.jobs.tables.dependencies import notes, of_inheritance, prefix_of, ties, unidentified
from seekpoint.jobs.tables.targets import COMPARED, PipelineSource, Target, resolve, targets
from seekpoint.kafka.range_checks import require_known
from seekpoint.kafka.ranges import Range, log_starts, stable_ends, topic_ids
from seekpoint.ledger.schema_revision import check
from seekpoint.ledger.sql import DEAD_LETTERS, GROUPS, RELOAD_RUN, STATUS
from seekpoint.ledger.tables import BATCHES, FRAMES_MARK, PUBLISHING, is_of_frames
from seekpoint.records import Partition, storable
from seekpoint.runs.manage_runs import Runs
from seekpoint.runs.run import REPEATABLE_READ, Driver, Tx, position_of, run_of, this_driver, transaction
from seekpoint.sinks.check_values import check_values


def require_strategy(strategy: str) -> None:
    """Raise ConfigError unless the strategy publishes the rebuilt rows."""
    if strategy not in PUBLISHING:
        raise ConfigError(f"strategy must be one of {', '.join(map(repr, PUBLISHING))}, got {strategy!r}")


def open_run(
    runs: Runs,
    kafka: Mapping[str, Any],
    sources: Sequence[PipelineSource],
    *,
    strategy: str,
    actor: str,
    reason: str,
    archive: Archive | None = None,
    bounds: Bounds,
    ends: Mapping[Key, int] | None = None,
    of_frames: bool = False,
) -> Driver:
    """Record a new run at the groups' current positions, or at these ``ends``; changes nothing else.

    ``of_frames``: Spark rebuilds the tables. Raises ReloadRefused with every reason why the tables cannot be reloaded;
    SchemaMismatch for a ledger of another revision; KafkaUnavailable if the brokers do not answer; ConfigError for
    settings that no consumer accepts or an empty archive.
    """
    tables, offsets, _ = checked(
        runs, kafka, sources, strategy=strategy, archive=archive, bounds=bounds, of_frames=of_frames
    )
    groups = [source.group for source in sources]
    run = uuid4()
    with transaction(runs.engine, runs.schema) as tx:
        # Only one run is opened at a time, so that a second one for the same table finds the first.
        tx.execute(GROUPS["alone"], name=f"seekpoint reload {runs.schema}")
        # A worker that raises a version looks for open runs under its group's lock: it has committed before, or sees
        # this run.
        groups_by_name = {row.name: row for row in tx.execute(RELOAD_RUN["share_groups"], groups=groups)}
        reasons = [reason for source in sources for reason in _of_version(source, groups_by_name.get(source.group))]
        if reasons := reasons + of_runs(tx, [target.name for target in tables]):
            raise ReloadRefused(reasons)
        prefix = "seekpoint_reload_"
        if strategy in COMPARED:  # a swap publishes the rebuilt tables themselves, so they must be logged
            prefix = prefix_of(tx.connection, prefix)
        prefix += FRAMES_MARK if of_frames else ""
        versions = [groups_by_name[source.group].version for source in sources]
        why: dict[str, Any] = {"actor": actor, "reason": reason, "archive": archive}
        insert_run(tx, run, sources, tables, versions, strategy=strategy, prefix=prefix, **why)
        tx.add_positions(run, [position_of(row, end=row.next_offset) for row in ending_at(offsets, ends or {})])
        driver = Driver(runs.engine, runs.schema, run_of(tx.execute(RELOAD_RUN["get_run"], run=run).one()), runs.limits)
        driver.notes = tuple(notes(tx.connection, tables)) if strategy == "merge" else ()
        driver.plan = () if of_frames else tuple(ways(tx.connection, tables, sources))
        return driver


def checked(
    runs: Runs,
    kafka: Mapping[str, Any],
    sources: Sequence[PipelineSource],
    *,
    strategy: str,
    archive: Archive | None = None,
    bounds: Bounds,
    of_frames: bool = False,
) -> tuple[Sequence[Target], Sequence[Row[Any]], int]:
    """The tables, the groups' positions and the number of open dead letters, after a check that a reload is possible.

    Changes nothing. Raises the errors of :func:`open_run`, which checks versions again, and also open runs.
    """
    require_known(kafka)
    groups = [source.group for source in sources]
    with transaction(runs.engine, runs.schema, isolation=REPEATABLE_READ) as tx:
        check(tx.connection, runs.schema)
        tables = targets(tx.connection, sources)
        for source in sources:
            check_values(tx.connection, source.pipeline)
        groups_by_name = {row.name: row for row in tx.execute(STATUS["groups"])}
        offsets = tx.execute(RELOAD_RUN["offsets"], groups=groups).all()
        reasons = of_rights(tx.connection) + _of_groups(
            tx, sources, groups_by_name, offsets, tables, strategy=strategy, of_frames=of_frames
        )
        reasons += _of_tables(tx, tables, groups, groups_by_name, strategy)
        if strategy == "merge":
            inherited = [] if bounds.allow_inheritance else tables
            reasons += [reason for target in inherited for reason in of_inheritance(tx.connection, target)]
            reasons += of_wait(tx.connection, tables, bounds.max_wait)
        offsets = of_sources(offsets, sources)
        dead_letters = _open_dead_letters(tx, groups)
    if archive is not None:
        archive.require_known()
    # Read the logs after the positions: end offsets grow, and must not be older than the positions.
    reasons += _of_logs(kafka, offsets, archive, of_frames=of_frames)
    reasons += of_compaction(kafka, sources, offsets, dead_letters, strategy)
    if reasons:
        raise ReloadRefused(reasons)
    return tables, offsets, sum(dead_letters.values())


_CREATE = text(
    "SELECT quote_ident(current_user) AS role, quote_ident(current_database()) AS database "
    "WHERE NOT has_database_privilege(current_database(), 'CREATE')"
)


def of_rights(connection: Connection) -> list[str]:
    """Return why this role cannot create a run's staging schema; empty if it can."""
    return [
        f"role {row.role} may not create the schema that each run has for its tables: GRANT CREATE ON DATABASE "
        f"{row.database} TO {row.role} (`seekpoint db roles --stager {row.role}` prints all that it needs)"
        for row in connection.execute(_CREATE)
    ]


def insert_run(
    tx: Tx,
    run: UUID,
    sources: Sequence[PipelineSource],
    tables: Sequence[Target],
    versions: Sequence[int],
    *,
    strategy: str,
    prefix: str,
    actor: str,
    reason: str,
    archive: Archive | None = None,
) -> None:
    """Insert a new run's row: ``versions`` are the groups' present ones, ``prefix`` begins its schema's name."""
    row = {
        "id": run,
        "groups": [source.group for source in sources],
        "tables": [target.name for target in tables],
        "strategy": strategy,
        "pipelines": [source.name for source in sources],
        "version_from": list(versions),
        "version_to": [source.pipeline.version for source in sources],
        "state": "opened",
        "driver_epoch": 1,
        "driver": this_driver(),
        "staging_schema": prefix + run.hex[:12],
        "actor": storable(actor),
        "reason": storable(reason),
        "archive": archive and archive.spec(),
    }
    tx.execute(RELOAD_RUN["insert_run"], [row])


def _of_groups(
    tx: Tx,
    sources: Sequence[PipelineSource],
    groups_by_name: Mapping[str, Row[Any]],
    offsets: Sequence[Row[Any]],
    tables: Sequence[Target],
    *,
    strategy: str,
    of_frames: bool,
) -> list[str]:
    reasons = []
    for source in sources:
        group = groups_by_name.get(source.group) if any(row.consumer_group == source.group for row in offsets) else None
        reasons += _of_version(source, group)
        if group is not None:
            version = source.pipeline.version if strategy == "verify" else group.version  # a verify raises no version
            others = other_topics(source, offsets)
            reasons += of_other_topics(tx, source, others, tables, version, may_be_apart=not of_frames)
    return reasons


def _of_version(source: PipelineSource, group: Row[Any] | None) -> list[str]:
    if group is None:
        return [f"group {source.group!r} has no offsets in the ledger: start a worker once, then reload"]
    if group.forgotten is not None:
        return [f"group {group.name!r} was forgotten: seekpoint groups forget {group.name} --undo, then reload"]
    if group.version > source.pipeline.version:
        reason = (
            f"group {source.group!r} is at handler version {group.version}, and this pipeline is version "
            f"{source.pipeline.version}: reload with version {group.version} or newer"
        )
        return [reason]
    return []


def _of_tables(
    tx: Tx, tables: Sequence[Target], groups: Sequence[str], groups_by_name: Mapping[str, Row[Any]], strategy: str
) -> list[str]:
    reasons = []
    ours = {target.path for target in tables}
    for name, group in groups_by_name.items():
        if name in groups:
            continue
        shared = sorted(
            {".".join(path) for path in (resolve(tx.connection, table) for table in group.tables) if path in ours}
        )
        if shared:
            reasons.append(
                f"group {name!r} also writes {', '.join(shared)}: name its pipeline in the same reload; or, if the "
                "group has ended for good and left no rows there, set its `tables` in consumer_group to '{}'"
            )
    obstacles = {"swap": ties, "merge": unidentified}
    if strategy in obstacles:
        reasons += [reason for target in tables for reason in obstacles[strategy](tx.connection, target)]
    reasons += [
        f"{target.name}: row security may hide rows from this role, which would not be compared: run it as a role that "
        "sees all of them (the table's owner, BYPASSRLS, or a policy FOR SELECT USING (true))"
        for target in tables
        if strategy in COMPARED and hides_rows(tx.connection, target.path)
    ]
    return reasons + [
        f"{target.name} has no unique key among the columns that are written, so rows cannot be compared: give it one "
        "(an Append: a unique index on its provenance= columns)"
        + ("" if strategy == "verify" else "; or --strategy swap (open(strategy='swap')), which compares nothing")
        for target in tables
        if strategy in COMPARED and not target.key
    ]


def _open_dead_letters(tx: Tx, groups: Sequence[str]) -> dict[tuple[str, str], int]:
    """The number of open dead letters by group and topic."""
    counts: dict[tuple[str, str], int] = {}
    for group in groups:
        for row in tx.execute(DEAD_LETTERS["count_open"], group=group):
            counts[group, row.topic] = counts.get((group, row.topic), 0) + row.n
    return counts


def _of_logs(
    kafka: Mapping[str, Any], offsets: Sequence[Row[Any]], archive: Archive | None, *, of_frames: bool
) -> list[str]:
    ids = topic_ids(kafka, sorted({row.topic for row in offsets}))
    reasons = [
        f"{Partition(row.topic, row.partition)}: the offsets belong to topic id {row.topic_id}, the brokers report "
        f"{ids[row.topic]}: decide first where to continue in the recreated topic (`seekpoint status` lists the "
        "choices)"
        for row in offsets
        if ids[row.topic] != row.topic_id
    ]
    there = [row for row in offsets if ids[row.topic] == row.topic_id]
    partitions = sorted({Partition(row.topic, row.partition) for row in there})
    starts, ends = log_starts(kafka, partitions), stable_ends(kafka, partitions)
    for row in there:
        start = starts[Partition(row.topic, row.partition)]
        if start > row.first_offset and row.next_offset > row.first_offset:
            reasons += _of_retention(row, start, archive, of_frames=of_frames)
    return reasons + beyond(there, ends)


def _of_retention(row: Row[Any], log_start: int, archive: Archive | None, *, of_frames: bool) -> list[str]:
    """Return why a log that begins after the group's first offset cannot be reloaded; empty if an archive helps."""
    partition = Partition(row.topic, row.partition)
    lost = Range(partition, row.topic_id, row.first_offset, min(log_start, row.next_offset))
    gaps = [(lost.start, lost.end)] if archive is None else archive.gaps(lost)
    if not gaps:
        return []
    loss = (
        f"{partition}: group {row.consumer_group!r} began at offset {row.first_offset}, but the log now begins at "
        f"{log_start}: records that retention has removed cannot be applied again"
    )
    if of_frames:
        return [f"{loss}, and frames cannot read archives: these tables cannot be rebuilt"]
    if archive is None:
        return [f"{loss}, unless an export has them: give --archive, or Reload(…, archive=Archive(root, engine))"]
    missing = ", ".join(f"[{start}, {end})" for start, end in gaps)
    return [f"{loss}, and the archive {archive.root} does not have {missing} of topic id {row.topic_id}"]


def of_runs(tx: Tx, tables: Sequence[str]) -> list[str]:
    """Describe the open runs that rebuild one of these tables, with the commands that resume or end them."""
    return [
        f"{', '.join(sorted(shared))}: {'verify' if row.strategy == 'verify' else 'reload'} {row.id} is {row.state}, "
        f"opened by {row.actor} at {row.opened_at:%F %T}: {_ways_out(row)}"
        for row in tx.execute(RELOAD_RUN["open_runs"])
        if row.strategy not in BATCHES  # a batch writes like a worker, so a reload can run at the same time
        and (shared := set(row.tables) & set(tables))
    ]


def _ways_out(run: Row[Any]) -> str:
    abort = f"(`seekpoint reload abort {run.id} --reason …`, `runs.abort(id, reason)`)"
    if run.strategy == "verify":
        return f"wait for its end, or abort it {abort}"
    if is_of_frames(run.staging_schema):
        return f"resume or abort it (`seekpoint spark reload … --resume {run.id}`, `reload(…, resume=id)`) {abort}"
    return f"resume or abort it (`seekpoint reload run … --resume {run.id}`, `take_over(id)`) {abort}"
