"""The steps of one micro-batch under a driver's claims: claim, open its run, publish it, or end it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from uuid import uuid4

import psycopg
from psycopg.types.json import Jsonb
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from seekpoint.errors import (
    BatchRefused,
    ConfigError,
    Fenced,
    FrameFailed,
    KafkaUnavailable,
    PartitionStopped,
    RangeLost,
    ReloadOver,
    TooManyDeadLetters,
    TopicRecreated,
)
from seekpoint.jobs.batch.open import Brokers, Claims, insert_batch
from seekpoint.jobs.batch.steps import ENDS_RUN, BatchSteps, refusal
from seekpoint.jobs.tables.targets import PipelineSource
from seekpoint.kafka.ranges import Range
from seekpoint.ledger import Claim, GroupLedger, StartOffsets
from seekpoint.ledger.admin_actions import operator
from seekpoint.ledger.advance import Expected, Settings, hold
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import BATCH, RELOAD_RUN, STATUS
from seekpoint.pipeline.declared import declared_sums
from seekpoint.pipeline.policy import Limits
from seekpoint.postgres.sqlstates import is_data_error
from seekpoint.records import Partition, notes, one_line
from seekpoint.runs.manage_runs import Runs
from seekpoint.runs.run import Driver, StagedPosition, how_it_ended, run_of, transaction

logger = logging.getLogger(__name__)

STOPS = (BatchRefused, ConfigError, FrameFailed, TooManyDeadLetters)  # errors that would recur in the next micro-batch
_REASON = "a micro-batch of DataFrames"


def claimed(
    ledger: GroupLedger,
    brokers: Brokers,
    partitions: Iterable[Partition],
    keep: Callable[[Claims], None],
    wait: Callable[[float], bool],
    *,
    start: StartOffsets | None = None,
) -> None:
    """Claim these partitions. ``keep`` is called with the granted claims, even if others are refused.

    ``start`` returns the first positions in a topic that is new to the group, by default the pipeline's StartAt.

    Raises Fenced if ``wait`` returns true while a partition is locked, PartitionStopped for a refused partition, and
    the errors of a claim.
    """
    unclaimed, is_announced = list(partitions), False
    while unclaimed:
        answer = ledger.claim(unclaimed, brokers.ids, cluster_id=brokers.cluster_id, start=start or brokers.start)
        keep(answer.granted)
        for stop in answer.refused.values():
            raise stop
        unclaimed = list(answer.stalled)
        if unclaimed and not is_announced:
            is_announced = True
            logger.info(
                "group %s: another owner's transaction has locked %s; the claim waits for its end",
                ledger.group,
                ", ".join(map(str, unclaimed)),
            )
        if unclaimed and wait(1.0):
            raise Fenced(f"{unclaimed[0]} is locked by another owner's transaction")


def end_abandoned(engine: Engine, schema: str, group: str, limits: Limits) -> None:
    """End the runs of previous drivers, which are fenced now, and drop their staged tables."""
    runs = Runs(engine, schema, limits)
    with transaction(engine, schema) as tx:
        unswept = [run_of(row) for row in tx.execute(BATCH["unswept"], group=group)]
    for run in unswept:
        if run.is_open:
            with suppress(ReloadOver):  # the run has ended meanwhile
                runs.abort(run.id, "another driver has claimed its group")
        else:
            runs.drop(run.id)


def require_reached(group: str, claims: Claims, planned: Iterable[Range]) -> None:
    """Raise RangeLost if a planned range begins after the ledger's position, TopicRecreated for another topic id."""
    for range_ in planned:
        claim = claims.get(range_.partition)
        if claim is None:
            continue
        if claim.topic_id != range_.topic_id:
            raise TopicRecreated(
                range_.partition,
                range_.start,
                f"topic {range_.partition.topic!r} was deleted and created again since the query planned its "
                f"micro-batch, which is of topic id {range_.topic_id}; the brokers report {claim.topic_id}",
                choices=("start the query with a new checkpointLocation, which reads the new topic",),
            )
        if range_.start > claim.next_offset:
            raise RangeLost(
                range_.partition,
                claim.next_offset,
                f"the query's micro-batch begins at offset {range_.start}, and group {group!r} is at "
                f"{claim.next_offset}: the {range_.start - claim.next_offset} offsets between would be lost. Start the "
                f"query with a new checkpointLocation and the stream's option group={group}, so that it begins at "
                "the ledger's position; or reset the group, which skips these offsets on record",
            )


def open_run(
    engine: Engine,
    schema: str,
    source: PipelineSource,
    *,
    claims: Claims,
    ends: Mapping[Partition, int],
    limits: Limits,
) -> Driver:
    """Insert the run of a micro-batch, with its ranges. Raises Fenced if the claims are not current (I2)."""
    run, settings = uuid4(), Settings(f"seekpoint-batch {source.group}"[:63], True, None)
    ordered = sorted(claims.items())
    with transaction(engine, schema, lock_wait=limits.transaction_age) as tx:
        scope = GroupConnection(tx.connection, schema, source.group)
        hold(scope, [Expected(claim, claim.next_offset) for _, claim in ordered], settings)
        tx.execute(BATCH["delete_published"], group=source.group, reason=_REASON)
        version = source.pipeline.version
        if sums := declared_sums(source.pipeline):  # stored before the first record, because a reset must know of sums
            scope.execute(STATUS["store_declared"], version=version, declared=Jsonb(sums))
        insert_batch(tx, run, source, [version], "batch", actor=operator(), reason=_REASON)
        tx.add_positions(
            run,
            [
                StagedPosition(
                    source.group, partition, claim.topic_id, claim.next_offset,
                    max(ends[partition], claim.next_offset), claim.next_offset, claim.epoch, resets=0,
                )
                for partition, claim in ordered
            ],
        )  # fmt: skip
        row = tx.execute(RELOAD_RUN["get_run"], run=run).one()
    return Driver(engine, schema, run_of(row), limits)


def publish_run(driver: Driver, steps: BatchSteps, claims: Claims, within: str, frames: Sequence[str]) -> None:
    """Stage and publish the opened run; after an error, end it and drop its staged tables.

    ``within`` names the ranges and ``frames`` the frames, in messages. Raises the errors of the steps, Fenced, and
    FrameFailed if the database refuses rows.
    """
    try:
        with driver.ending((*ENDS_RUN, FrameFailed), partial(_refused, within, frames)):
            steps.publish(driver, claims)
    except ReloadOver as error:
        raise Fenced(error.text) from error
    except BaseException as error:
        abandon(driver, error)
        raise


def abandon(driver: Driver, error: BaseException) -> None:
    """End the run; if the database does not answer, the group's next claim ends it.

    Raises Fenced if another driver has ended the run: ``error`` was then caused by dropped tables.
    """
    with suppress(DBAPIError, psycopg.Error, KafkaUnavailable):
        if driver.run.is_open:
            driver.fail(error)
        Runs(driver.engine, driver.schema, driver.limits).drop(driver.run.id)
    if driver.run.state == "aborted":
        raise Fenced(f"micro-batch {driver.run.id} is {how_it_ended(driver.run)}") from error


def release(ledger: GroupLedger, claims: Iterable[Claim]) -> None:
    """Release the partitions, so that the next claim counts no crash; only logs a warning if that fails."""
    try:
        ledger.release(claims)
    except (DBAPIError, psycopg.Error) as error:
        logger.warning("group %s: its partitions could not be released: %s", ledger.group, one_line(error))


def record_stops(ledger: GroupLedger, claims: Claims, error: Exception) -> None:
    """Store why the partitions are stopped; the next claim, reset or micro-batch clears it."""
    choices = ("correct the frame or its data, and run the pipeline again", "reset the offset to skip records")
    stops = [PartitionStopped(partition, claim.next_offset, str(error), choices) for partition, claim in claims.items()]
    for stop in stops:
        stop.token = claims[stop.partition].token
    with suppress(DBAPIError, psycopg.Error):  # the error itself is raised
        ledger.record_stops(stops)


def shown_ranges(claims: Claims, ends: Mapping[Partition, int]) -> str:
    """The ranges to apply, in messages."""
    ranges = [(partition, claim.next_offset, ends[partition]) for partition, claim in sorted(claims.items())]
    return ", ".join(f"{partition} [{start}, {end})" for partition, start, end in ranges if start < end)


def _refused(within: str, frames: Sequence[str], error: Exception) -> Exception | None:
    """The error that ends the run instead of ``error``; None if the next micro-batch might not get ``error``."""
    if isinstance(error, Fenced):
        return None
    if is_data_error(error):
        problem = one_line(error)
        if not notes(error):  # a deferred constraint
            problem += f"; at the COMMIT of {', '.join(frames)}"
        return FrameFailed(
            f"the database refuses rows that tasks could stage ({problem}): make rows "
            f"that the table accepts. Nothing of {within} is written, and the positions have not moved"
        )
    return refusal(error)
