"""Opens a run: stores the groups' snapshot offsets, or lists every reason why it cannot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Connection, Row, text

from seekpoint.errors import ReloadRefused
from seekpoint.jobs.export import Archive
from seekpoint.jobs.manage_runs import Runs
from seekpoint.jobs.reload.cutover_limits import Bounds
from seekpoint.jobs.reload.merge_check import hides_rows
from seekpoint.jobs.reload.wait_at_opening import of_wait
from seekpoint.jobs.run import Driver, Tx, position_of, run_of, this_driver, transaction
from seekpoint.jobs.staging.compaction import of_compaction
from seekpoint.jobs.staging.distance import beyond
from seekpoint.jobs.tables.dependencies import notes, of_inheritance, prefix_of, ties, unidentified
from seekpoint.jobs.tables.targets import COMPARED, PipelineSource, Target, resolve, targets
from seekpoint.kafka.range_checks import require_known
from seekpoint.kafka.ranges import Range, log_starts, stable_ends, topic_ids
from seekpoint.ledger.schema_revision import check
from seekpoint.ledger.sql import DEAD_LETTERS, GROUPS, RELOAD_RUN, STATUS
from seekpoint.ledger.tables import BATCHES
from seekpoint.records import Partition, storable


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
) -> Driver:
    """Record a new run at the groups' current positions; nothing else is changed.

    Raises ReloadRefused with every reason why these tables cannot be reloaded now, SchemaMismatch,
    KafkaUnavailable, and ConfigError for brokers' settings that no consumer takes and an archive that has nothing.
    """
    require_known(kafka)
    groups = [source.group for source in sources]
    with transaction(runs.engine, runs.schema, isolation="REPEATABLE READ") as tx:
        check(tx.connection, runs.schema)
        found = targets(tx.connection, sources)
        known = {row.name: row for row in tx.execute(STATUS["groups"])}
        offsets = tx.execute(RELOAD_RUN["offsets"], groups=groups).all()
        reasons = of_rights(tx.connection) + _of_groups(sources, known, offsets)
        reasons += _of_tables(tx, found, groups, known, strategy)
        if strategy == "merge":
            inherited = [] if bounds.allow_inheritance else found
            reasons += [reason for target in inherited for reason in of_inheritance(tx.connection, target)]
            reasons += of_wait(tx.connection, found, bounds.max_wait)
        letters = _open_letters(tx, groups)
    if archive is not None:
        archive.require_known()
    # After the positions were read: the end offset only grows, and must not be older than the positions it bounds.
    reasons += _of_logs(kafka, offsets, archive)
    reasons += of_compaction(kafka, sources, offsets, letters, strategy)
    if reasons:
        raise ReloadRefused(reasons)
    run = uuid4()
    with transaction(runs.engine, runs.schema) as tx:
        # One opening at a time: two runs of one table must see each other.
        tx.execute(GROUPS["alone"], name=f"seekpoint reload {runs.schema}")
        # A worker that would raise a version looks for this run under its group's lock: it finds it, or was before us.
        known = {row.name: row for row in tx.execute(RELOAD_RUN["share_groups"], groups=groups)}
        reasons = [reason for source in sources for reason in _of_version(source, known.get(source.group))]
        if reasons := reasons + _of_runs(tx, [target.name for target in found]):
            raise ReloadRefused(reasons)
        prefix = "seekpoint_reload_"
        if strategy in COMPARED:  # the other strategies publish their tables: those are logged
            prefix = prefix_of(tx.connection, prefix)
        versions = [known[source.group].version for source in sources]
        why: dict[str, Any] = {"actor": actor, "reason": reason, "archive": archive}
        insert_run(tx, run, sources, found, versions, strategy=strategy, prefix=prefix, **why)
        tx.add_positions(run, [position_of(row, end=row.next_offset) for row in offsets])
        driver = Driver(runs.engine, runs.schema, run_of(tx.execute(RELOAD_RUN["get_run"], run=run).one()), runs.limits)
        driver.notes = tuple(notes(tx.connection, found)) if strategy == "merge" else ()
        return driver


_CREATE = text(
    "SELECT quote_ident(current_user) AS role, quote_ident(current_database()) AS database "
    "WHERE NOT has_database_privilege(current_database(), 'CREATE')"
)


def of_rights(connection: Connection) -> list[str]:
    """Why this role cannot make the schema in which a run stages its rows; empty where it can."""
    return [
        f"role {row.role} may not create the schema that each run has for its tables: GRANT CREATE ON DATABASE "
        f"{row.database} TO {row.role} (`seekpoint db roles --stager {row.role}` prints all that it needs)"
        for row in connection.execute(_CREATE)
    ]


def insert_run(
    tx: Tx,
    run: UUID,
    sources: Sequence[PipelineSource],
    found: Sequence[Target],
    versions: Sequence[int],
    *,
    strategy: str,
    prefix: str,
    actor: str,
    reason: str,
    archive: Archive | None = None,
) -> None:
    """Insert the row of a run that is opened now: ``versions`` are the groups', ``prefix`` begins its schema's name."""
    row = {
        "id": run,
        "groups": [source.group for source in sources],
        "tables": [target.name for target in found],
        "strategy": strategy,
        "pipelines": [source.name for source in sources],
        "version_from": list(versions),
        "version_to": [source.pipeline.version for source in sources],
        "state": "opened",
        "driver_epoch": 1,
        "driver": storable(this_driver()),
        "staging_schema": prefix + run.hex[:12],
        "actor": storable(actor),
        "reason": storable(reason),
        "archive": archive and archive.spec(),
    }
    tx.execute(RELOAD_RUN["insert_run"], [row])


def _of_groups(
    given: Sequence[PipelineSource], known: Mapping[str, Row[Any]], offsets: Sequence[Row[Any]]
) -> list[str]:
    reasons = []
    for source in given:
        mine = {row.topic for row in offsets if row.consumer_group == source.group}
        reasons += _of_version(source, known.get(source.group) if mine else None)
        if strange := sorted(mine - set(source.pipeline.topics)):
            reasons.append(
                f"group {source.group!r} has applied records of {', '.join(strange)}, which this pipeline does not "
                "read: name them in topics= again, or their rows would be lost"
            )
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
    tx: Tx, found: Sequence[Target], groups: Sequence[str], known: Mapping[str, Row[Any]], strategy: str
) -> list[str]:
    reasons = []
    ours = {target.path for target in found}
    for name, group in known.items():
        if name in groups:
            continue
        shared = sorted({".".join(p) for p in (resolve(tx.connection, t) for t in group.tables) if p in ours})
        if shared:
            reasons.append(
                f"group {name!r} writes {', '.join(shared)}, too: name its pipeline in the same reload; or, if it "
                "ended for good and none of its rows are there, set its `tables` in consumer_group to '{}'"
            )
    obstacles = {"swap": ties, "merge": unidentified}
    if strategy in obstacles:
        reasons += [reason for target in found for reason in obstacles[strategy](tx.connection, target)]
    reasons += [
        f"{target.name}: row security may hide rows from this role, which would not be compared: run it as a role that "
        "sees all of them (the table's owner, BYPASSRLS, or a policy FOR SELECT USING (true))"
        for target in found
        if strategy in COMPARED and hides_rows(tx.connection, target.path)
    ]
    return reasons + [
        f"{target.name} has no unique key among the columns that are written, by which rows could be compared: give it "
        "one (an Append: a unique index on its provenance= columns)"
        + ("" if strategy == "verify" else "; or --strategy swap (open(strategy='swap')), which compares nothing")
        for target in found
        if strategy in COMPARED and not target.key
    ]


def _open_letters(tx: Tx, groups: Sequence[str]) -> dict[tuple[str, str], int]:
    """How many dead letters of each group and topic are open."""
    found: dict[tuple[str, str], int] = {}
    for group in groups:
        for row in tx.execute(DEAD_LETTERS["count_open"], group=group):
            found[group, row.topic] = found.get((group, row.topic), 0) + row.n
    return found


def _of_logs(kafka: Mapping[str, Any], offsets: Sequence[Row[Any]], archive: Archive | None) -> list[str]:
    ids = topic_ids(kafka, sorted({row.topic for row in offsets}))
    reasons = [
        f"{Partition(row.topic, row.partition)}: the offsets belong to topic id {row.topic_id}, the brokers answer "
        f"{ids[row.topic]}: decide for the recreated topic first (`seekpoint status` names the choices)"
        for row in offsets
        if ids[row.topic] != row.topic_id
    ]
    there = [row for row in offsets if ids[row.topic] == row.topic_id]
    partitions = sorted({Partition(row.topic, row.partition) for row in there})
    starts, ends = log_starts(kafka, partitions), stable_ends(kafka, partitions)
    for row in there:
        start = starts[Partition(row.topic, row.partition)]
        if start > row.first_offset and row.next_offset > row.first_offset:
            reasons += _of_retention(row, start, archive)
    return reasons + beyond(there, ends)


def _of_retention(row: Row[Any], log_start: int, archive: Archive | None) -> list[str]:
    """Why a log that begins after the group's first offset cannot be reloaded, unless an archive has the rest."""
    at = Partition(row.topic, row.partition)
    lost = Range(at, row.topic_id, row.first_offset, min(log_start, row.next_offset))
    gaps = [(lost.start, lost.end)] if archive is None else archive.gaps(lost)
    if not gaps:
        return []
    said = (
        f"{at}: group {row.consumer_group!r} began at offset {row.first_offset}, and the log begins at {log_start} "
        "now: what retention took cannot be applied again"
    )
    if archive is None:
        return [f"{said}, unless an export has it: name that, --archive or Reload(…, archive=Archive(root, engine))"]
    missing = ", ".join(f"[{start}, {end})" for start, end in gaps)
    return [f"{said}, and the archive {archive.root} does not have {missing} of topic id {row.topic_id}"]


def _of_runs(tx: Tx, tables: Sequence[str]) -> list[str]:
    return [
        f"{', '.join(sorted(shared))}: {'verify' if row.strategy == 'verify' else 'reload'} {row.id} is {row.state}, "
        f"opened by {row.actor} at {row.opened_at:%F %T}: {_ways_out(row)}"
        for row in tx.execute(RELOAD_RUN["open_runs"])
        if row.strategy not in BATCHES  # they write as a worker does
        and (shared := set(row.tables) & set(tables))
    ]


def _ways_out(run: Row[Any]) -> str:
    abort = f"(`seekpoint reload abort {run.id} --reason …`, `runs.abort(id, reason)`)"
    if run.strategy == "verify":
        return f"wait for its end, or abort it {abort}"
    return f"resume or abort it (`seekpoint reload run … --resume {run.id}`, `take_over(id)`) {abort}"
