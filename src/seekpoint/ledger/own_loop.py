"""``Ledger``: the public methods, for users' own loops and for readers of positions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from sqlalchemy import URL, Connection, Engine

from seekpoint.errors import StandbyRequired
from seekpoint.ledger.advance import Expected, Move
from seekpoint.ledger.claim import Claim, Claimed, StartOffsets
from seekpoint.ledger.ledger import GroupLedger
from seekpoint.ledger.positions import Position
from seekpoint.ledger.tables import DEFAULT_SCHEMA
from seekpoint.ledger.wait import Passed
from seekpoint.pipeline.policy import Limits
from seekpoint.records import Partition


class Ledger:
    """A group's positions and claims, stored in the database that holds its results.

    ``engine`` is a SQLAlchemy ``Engine`` or URL on ``postgresql+psycopg``; ``version`` the handler's version: a claim
    by an older one is refused. ``tables`` are the tables to which records are written, of all topics or as ``{topic:
    tables}``. If the group writes a topic's records to other tables, a claim is refused (DeclarationDiffers), unless
    its version is higher or ``accept_declaration`` is True. If an operator has forgotten the group, a claim is refused
    (GroupForgotten), unless ``accept_forgotten`` is the time in that error: then the group starts again as a new one.
    Creating it does no I/O. Safe to share between threads. Methods with a ``tx`` run in the caller's transaction, the
    others open one. :class:`seekpoint.admin.Admin` pauses groups and resets positions.
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
        self._ledger = GroupLedger(
            engine,
            group,
            schema=schema,
            version=version,
            tables=tables,
            accept_declaration=accept_declaration,
            accept_forgotten=accept_forgotten,
            limits=limits,
            synchronous_commit=synchronous_commit,
        )

    def claim(
        self,
        partitions: Iterable[Partition],
        topic_ids: Mapping[str, UUID],
        *,
        cluster_id: str,
        start: StartOffsets,
        patient: bool = True,
    ) -> Claimed:
        """Claim partitions: draw new tokens, and return the committed position of each.

        ``topic_ids`` are the brokers' current ids; ``start`` returns the first positions of a topic without rows, and
        is called once, under the lock of the group's row. Waits for transactions in flight, at most
        ``Limits.claim_wait`` seconds; then claims one by one, so that a stalled holder costs one partition, and ends
        transactions older than ``Limits.transaction_age``. ``patient=False``, for partitions that were stalled a moment
        ago: claims one by one from the start, and waits at most 50 ms for each.

        Raises GroupForgotten, ClusterChanged, HandlerOutdated, GroupPaused, StandbyRequired, DeclarationDiffers for the
        whole claim; a partition of a recreated topic is in ``refused``.
        """
        return self._ledger.claim(partitions, topic_ids, cluster_id=cluster_id, start=start, patient=patient)

    def hold(self, tx: Connection, expected: Sequence[Expected]) -> str:
        """Lock the rows if claim and position are as expected, or raise Fenced; a transaction's first statement.

        Returns the transaction's id, for :meth:`advance`.
        """
        return self._ledger.hold(tx, expected)

    def advance(self, tx: Connection, moves: Iterable[Move], transaction: str | None = None) -> list[Claim]:
        """Compare again and move the positions, or raise Fenced; write your rows before, and only COMMIT after it.

        Returns the claims as they are after COMMIT; use them only then.
        """
        return self._ledger.advance(tx, moves, transaction)

    def release(self, claims: Iterable[Claim]) -> None:
        """Release claims, so that the next owner's claim counts no crash.

        Partitions that another process has claimed since are not changed.
        """
        self._ledger.release(claims)

    def draw_owner(self) -> None:
        """Draw a new owner id, as after a fork: claims and releases recognize this process's claims by it."""
        self._ledger.draw_owner()

    def standby(self) -> StandbyRequired | None:
        """The open reload for which this version has to wait, as the error that :meth:`claim` would raise; or None.

        For use before joining Kafka's group. Raises GroupForgotten as a claim would.
        """
        return self._ledger.standby()

    def check_version(self) -> None:
        """Raise HandlerOutdated or GroupForgotten as a claim would; for a loop without partitions."""
        self._ledger.check_version()

    def read(self) -> list[Position]:
        """All positions of the group, as committed now."""
        return self._ledger.read()

    def positions_of(self, partitions: Iterable[Partition], *, locked: bool = True) -> dict[Partition, Position]:
        """The rows of these partitions. ``locked`` waits for transactions in flight first; use it for decisions."""
        return self._ledger.positions_of(partitions, locked=locked)

    def wait_until_applied(
        self, topic: str, partition: int, offset: int, timeout: float = 10.0, *, topic_id: UUID | None = None
    ) -> Passed:
        """Wait until the stored position is past ``offset``, to read the record's rows; at most ``timeout`` seconds.

        The result's ``applied`` says whether the record was applied, ``state`` and ``unread`` why not. After a rewind
        it waits again. ``topic_id``, the brokers' id of the topic, distinguishes a recreated topic; the default is the
        stored id. Polls with short single statements, and holds no transaction or connection in between. Raises
        NotApplied (a TimeoutError) after ``timeout`` or if the topic was recreated, or for a group or a partition that
        no worker has claimed so far. Raises ConfigError for an invalid partition or offset.
        """
        return self._ledger.wait_until_applied(topic, partition, offset, timeout, topic_id=topic_id)


def group_ledger(ledger: Ledger) -> GroupLedger:
    """A public ledger's full API, for Seekpoint's own loops and jobs."""
    return ledger._ledger  # noqa: SLF001 -- of this module
