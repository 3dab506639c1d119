"""``GroupLedger``: every statement on one group's positions and claims, for workers, jobs and operators' actions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import cast
from uuid import UUID, uuid4

from sqlalchemy import URL, Connection, Engine

from seekpoint.errors import ConfigError, DeclarationDiffers, PartitionStopped, StandbyRequired
from seekpoint.ledger import admin_actions
from seekpoint.ledger import claim as _claim
from seekpoint.ledger import wait as _wait
from seekpoint.ledger.admin_actions import LastReset
from seekpoint.ledger.advance import Expected, Move, Settings, advance, hold, hold_and_advance
from seekpoint.ledger.attempts import SuspectNote, record_attempts, record_suspects
from seekpoint.ledger.claim import Attempt, Claim, Claimant, Claimed, StartOffsets
from seekpoint.ledger.declaration import Declaration, compare, require
from seekpoint.ledger.positions import Position, position, positions_of
from seekpoint.ledger.schema_connection import APPLICATION
from seekpoint.ledger.sql import GROUPS, WORKER, arrays
from seekpoint.ledger.tables import DEFAULT_SCHEMA
from seekpoint.ledger.transactions import GroupTransactions, unless_locked
from seekpoint.ledger.wait import AwaitedRecord, Passed
from seekpoint.pipeline.policy import Limits
from seekpoint.postgres.engine import postgres_engine
from seekpoint.postgres.round_trip import Statement
from seekpoint.records import Partition

_RELEASED = ("released_topic", "released_partition", "released_token")


class GroupLedger(GroupTransactions):
    """A group's positions and claims; :class:`seekpoint.Ledger` describes the parameters.

    Methods with a ``tx`` run in the caller's transaction, the others open one.
    """

    def __init__(
        self,
        engine: Engine | URL | str,
        group: str,
        *,
        schema: str = DEFAULT_SCHEMA,
        version: int = 1,
        tables: Sequence[str] | Mapping[str, Sequence[str]] = (),
        accept_declaration: bool = False,
        accept_forgotten: str | None = None,
        limits: Limits | None = None,
        synchronous_commit: bool = True,
    ) -> None:
        if not group.strip():
            raise ConfigError(f"a group needs a name that is not blank, got {group!r}")
        self.engine = postgres_engine(engine)
        self.group, self.schema, self.version = group, schema, version
        self._declaration = Declaration.of(tables, accepts=accept_declaration)
        self._accept_forgotten = accept_forgotten
        if limits is not None and not isinstance(cast("object", limits), Limits):
            raise ConfigError(f"limits= must be a Limits, e.g. Limits(batch_records=500), got {limits!r}")
        self.limits = limits or Limits()
        self.synchronous_commit = synchronous_commit
        self.draw_owner()

    def draw_owner(self) -> None:
        """Draw a new owner id, as after a fork: claims and releases recognize this process's claims by it."""
        self.owner = uuid4()
        self._declaration = replace(self._declaration, seen={})
        self.application_name = f"{APPLICATION}{self.owner.hex[:8]} {self.group}"[:63]
        self._settings = Settings(
            application_name=self.application_name,
            synchronous_commit=self.synchronous_commit,
            transaction_age=self.limits.transaction_age,
        )

    def declare(self, tables: Mapping[str, Sequence[str]]) -> None:
        """Declare the tables of further topics, as ``tables`` of the constructor does."""
        by_topic = {**self._declaration.by_topic, **{topic: tuple(names) for topic, names in tables.items()}}
        self._declaration = replace(self._declaration, by_topic=by_topic)

    # -- one worker's transaction ---------------------------------------------------------------------

    def hold(self, tx: Connection, expected: Sequence[Expected]) -> str:
        """Lock the rows if claim and position are as expected, or raise Fenced; a transaction's first statement.

        Returns the transaction's id, for :meth:`advance`.
        """
        return hold(self.group_connection(tx), expected, self._settings)

    def advance(
        self,
        tx: Connection,
        moves: Iterable[Move],
        transaction: str | None = None,
        rows: Sequence[Statement] = (),
    ) -> list[Claim]:
        """Compare again and move the positions, or raise Fenced; until COMMIT a worker may then only record attempts.

        The statements of ``rows`` are sent with it. Returns the claims as they will be after COMMIT; use them only
        then.
        """
        return advance(self.group_connection(tx), moves, transaction, rows)

    def hold_and_advance(self, tx: Connection, moves: Iterable[Move], rows: Sequence[Statement]) -> list[Claim]:
        """Hold and advance in one round trip, which begins the transaction; the statements of ``rows`` go with it.

        Returns the claims as they are after COMMIT. Raises Fenced before any statement of ``rows`` has run.
        """
        return hold_and_advance(self.group_connection(tx), moves, self._settings, rows)

    def advance_alone(self, moves: Sequence[Move]) -> list[Claim]:
        """Hold and advance in a separate transaction, for moves that apply no record (I1)."""
        with self.begin() as tx:
            return hold_and_advance(tx, moves, self._settings)

    def record_attempts(self, tx: Connection, noted: Iterable[tuple[Claim, Attempt]]) -> list[Claim]:
        """Store how often records were tried, and what happens next; may follow :meth:`advance` in its transaction.

        An attempt without an error is about to begin: if another process claims the partition before a release, this
        process counts as crashed in the attempt. An advance or a reset deletes the attempt; a release keeps it. Returns
        the claims as they are after COMMIT. Raises Fenced unless all claims are current.
        """
        return record_attempts(self.group_connection(tx), noted)

    def record_attempts_alone(self, noted: Iterable[tuple[Claim, Attempt]]) -> list[Claim]:
        """Record attempts in a separate, durable transaction, before trying a record that may crash the process."""
        with self.begin() as tx:
            return self.record_attempts(tx.connection, noted)

    def record_suspects(self, tx: Connection, noted: Iterable[SuspectNote]) -> None:
        """Store the partitions' suspect ranges, and which part of each is applied next.

        The end of a range is stored once, and a later call does not change it. If another process claims the partition
        before a release, this process counts as crashed in the part. An advance beyond the range, or a reset, deletes
        the range. Raises Fenced unless all claims are current.
        """
        record_suspects(self.group_connection(tx), noted)

    def record_suspects_alone(self, noted: Iterable[SuspectNote]) -> None:
        """Record suspects in a separate, durable transaction, before the part is applied."""
        with self.begin() as tx:
            self.record_suspects(tx.connection, noted)

    # -- ownership ------------------------------------------------------------------------------------

    def claim(
        self,
        partitions: Iterable[Partition],
        topic_ids: Mapping[str, UUID],
        *,
        cluster_id: str,
        start: StartOffsets,
        patient: bool = True,
    ) -> Claimed:
        """Claim partitions; see :meth:`seekpoint.Ledger.claim`."""
        partitions = sorted(partitions)
        ids = {partition.topic: topic_ids[partition.topic] for partition in partitions}
        claimant = Claimant(
            self.group, self.owner, self.version, cluster_id, ids, self._declaration, self._accept_forgotten
        )
        self._prepare(claimant, start)
        granted, stalled = self._claim(claimant, partitions, patient)
        ungranted = [partition for partition in partitions if partition not in granted and partition not in stalled]
        if not ungranted and not stalled:
            return Claimed(granted, {})
        with self.begin() as tx:
            refused = _claim.recreated_topics(tx, claimant, ungranted) if ungranted else {}
            ended = _claim.end_abandoned(tx, stalled, self.limits.transaction_age) if stalled else ()
        return Claimed(granted, refused, tuple(stalled), ended)

    def standby(self) -> StandbyRequired | None:
        """The open reload for which this version has to wait, as the error that :meth:`claim` would raise; or None.

        For use before joining Kafka's group. One round trip, unless this version is newer than that of the group.
        Raises GroupForgotten as a claim would.
        """
        with self._plain_read() as tx:
            group = tx.execute(GROUPS["read"]).one_or_none()
            if group is not None:
                self._refuse_forgotten(group)
            if group is None or group.version >= self.version:
                return None
            return next((run for run in _claim.open_reloads(tx) if run.version == self.version), None)

    def differs(self, topics: Collection[str]) -> DeclarationDiffers | None:
        """The DeclarationDiffers that :meth:`claim` would raise for these topics, or None.

        For use before joining Kafka's group. Raises HandlerOutdated if a worker with ``accept_declaration``
        has replaced this one's tables.
        """
        if not any(map(self._declaration.of_topic, topics)):
            return None
        with self._plain_read() as tx:
            group = tx.execute(GROUPS["read"]).one_or_none()
            compared = compare(tx, self._declaration, self.version, topics)
            if group is None or group.version != self.version:
                return None
        try:
            require(self.group, self._declaration, self.version, compared)
        except DeclarationDiffers as error:
            return None if self._declaration.accepts else error
        return None

    def check_version(self) -> None:
        """Raise HandlerOutdated or GroupForgotten as a claim would; for a worker without partitions."""
        with self._plain_read() as tx:
            if (group := tx.execute(GROUPS["read"]).one_or_none()) is not None:
                self._refuse_forgotten(group)
                _claim.admit_version(group, self.version)

    def _refuse_forgotten(self, group: _claim.GroupRow) -> None:
        if not _claim.accepts_forgotten(group, self._accept_forgotten):
            _claim.refuse_forgotten(group)

    def open_reloads(self) -> list[StandbyRequired]:
        """The open reloads for which workers of newer versions wait as standbys."""
        with self._plain_read() as tx:
            return _claim.open_reloads(tx)

    def outcome_of(self, run: UUID) -> tuple[str, str | None] | None:
        """A reload's state and error; None if the ledger does not have the run (any more)."""
        with self._plain_read() as tx:
            row = tx.execute(GROUPS["outcome_of_run"], run=run).one_or_none()
            return None if row is None else (row.state, row.error)

    def release(self, claims: Iterable[Claim]) -> None:
        """Release claims, so that the next owner's claim counts no crash.

        Also works after a reset, a pause or a newer version has drawn another token, because these keep the owner.
        Partitions that another process has claimed since are not changed.
        """
        ordered = sorted(claims, key=lambda claim: claim.partition)
        with self.begin() as tx:
            released = arrays([(*claim.partition, claim.token) for claim in ordered], *_RELEASED)
            tx.execute(WORKER["release"], owner=self.owner, **released)
            tx.execute(WORKER["cancel_attempts"], **released)

    def record_stops(self, stops: Iterable[PartitionStopped]) -> set[Partition]:
        """Store why partitions are stopped, with the choices; the next claim, reset or commit clears it.

        Does not store a stop if the claim under which the partition stopped (``token``) is no longer current (I2).
        Waits at most 50 ms for a row. Returns the partitions whose stop was not stored because the row stayed locked.
        """
        locked: set[Partition] = set()
        for stop in sorted((stop for stop in stops if stop.token is not None), key=lambda stop: stop.partition):
            transaction = self.begin(0.0 if locked else self._short_wait)
            if unless_locked(transaction, partial(_claim.record_stop, stop=stop)) is None:
                locked.add(stop.partition)
        return locked

    def positions_of(self, partitions: Iterable[Partition], *, locked: bool = True) -> dict[Partition, Position]:
        """The rows of these partitions. ``locked`` waits for transactions in flight first; use it for decisions."""
        with self.begin() as tx:
            return positions_of(tx, partitions, locked=locked)

    # -- operators and readers -------------------------------------------------------------------------------

    def read(self) -> list[Position]:
        """All positions of the group, as committed now."""
        with self.begin() as tx:
            return [position(row) for row in tx.execute(GROUPS["positions"])]

    def wait_until_applied(
        self, topic: str, partition: int, offset: int, timeout: float = 10.0, *, topic_id: UUID | None = None
    ) -> Passed:
        """Wait until the position has passed ``offset``; see :meth:`seekpoint.Ledger.wait_until_applied`."""
        return _wait.wait(self._plain_read, AwaitedRecord(Partition(topic, partition), offset, timeout, topic_id))

    def reset_offset(
        self,
        topic: str,
        partition: int,
        to: int,
        *,
        reason: str,
        log: tuple[int, int] | None,
        actor: str | None = None,
        expected: int | None = None,
        topic_id: UUID | None = None,
        lost: str | None = None,
    ) -> Position:
        """Reset a partition's position to ``to``; a running worker is fenced and resumes there.

        Records the actor, both positions and the reason, which may not be empty. ``log`` is the log's start and end
        offset as the brokers report them now, ``(start, end)``, and ``to`` must be in it; ``log=None`` skips that
        check. ``expected`` makes it a compare-and-set: Fenced if the partition is at another offset. ``topic_id`` is
        the new id of a recreated topic. ``lost`` is the reason for skipping the records in between.

        Records that no worker will apply become rows of ``lost_range``:

        - with ``lost``, the skipped records;
        - of a recreated topic, the old topic's records from the stored position on, to an unknown end;
        - if the log ends before the position (by ``log``, or when a worker stopped there), the records in between;
        - if the log begins after the position (by ``log``), the records before its start.

        Written rows are not changed: records that are read again are applied again. If a pipeline adds them to sums,
        such a reset is refused (ConfigError), except after a truncation. To show one by a ``log`` that ends before the
        position, also pass ``expected``: otherwise ``log`` may be older than the position. Waits for the open batch, at
        most ``Limits.transaction_age`` seconds. Raises ConfigError for an offset outside ``log``. Raises Fenced for an
        offset at or past the position if the log was truncated and written again, and no worker has seen where it
        ended.
        """
        actor = admin_actions.operator(actor)
        with self.begin(lock_wait=self.limits.transaction_age) as tx:
            return admin_actions.reset_offset(
                tx,
                Partition(topic, partition),
                to,
                actor=actor,
                reason=reason,
                log=log,
                expected=expected,
                topic_id=topic_id,
                lost=lost,
            )

    def last_reset(self, partition: Partition | tuple[str, int]) -> LastReset | None:
        """An operator's last reset of a partition: target, actor, reason and time; None if there is none."""
        with self.begin() as tx:
            return admin_actions.last_reset(tx, Partition(*partition))

    def pause(self, *, reason: str, actor: str | None = None) -> None:
        """Pause all workers of the group before their next commit; they wait, and keep their partitions.

        Waits for open batches, at most ``Limits.transaction_age`` seconds; claims of the group wait meanwhile.
        """
        with self.begin(lock_wait=self.limits.transaction_age) as tx:
            admin_actions.set_paused(tx, True, actor=admin_actions.operator(actor), reason=reason)

    def resume(self, *, reason: str = "resumed", actor: str | None = None) -> None:
        """Resume the group's workers."""
        with self.begin(lock_wait=self.limits.transaction_age) as tx:
            admin_actions.set_paused(tx, False, actor=admin_actions.operator(actor), reason=reason)

    def record_action(
        self, action: str, partition: Partition, from_offset: int, to_offset: int, *, reason: str
    ) -> None:
        """Record in ``admin_action`` a change that this process has detected, such as a failover that lost commits."""
        with self.begin() as tx:
            admin_actions.record_action(
                tx,
                action,
                actor=f"worker {self.owner}",
                reason=reason,
                partition=partition,
                from_offset=from_offset,
                to_offset=to_offset,
            )

    # -- inside ---------------------------------------------------------------------------------------

    def _prepare(self, claimant: Claimant, start: StartOffsets) -> None:
        with self._plain_read() as tx:
            if not _claim.needs_preparing(tx, claimant):
                return
        with self.begin(lock_wait=max(self.limits.claim_wait, self.limits.kafka_timeout)) as tx:
            _claim.prepare(tx, claimant, start)

    def _claim(
        self, claimant: Claimant, partitions: Sequence[Partition], patient: bool
    ) -> tuple[dict[Partition, Claim], list[Partition]]:
        """Claim all partitions in one transaction; if another one blocks that for too long, claim one by one."""
        if patient and (claims := self._claim_together(claimant, partitions, None)) is not None:
            return claims, []
        granted: dict[Partition, Claim] = {}
        stalled: list[Partition] = []
        for partition in partitions:
            if (claims := self._claim_together(claimant, [partition], self._short_wait)) is None:
                stalled.append(partition)
            else:
                granted |= claims
        return granted, stalled

    def _claim_together(
        self, claimant: Claimant, partitions: Sequence[Partition], wait: float | None
    ) -> dict[Partition, Claim] | None:
        """Claim in one transaction; None if a lock was not granted within ``wait`` seconds."""
        configuration = self._configuration(wait)
        return unless_locked(self._transaction(), lambda tx: _claim.claim(tx, claimant, partitions, configuration))
