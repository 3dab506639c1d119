"""Requests for replays: stored by an operator, carried out by a running worker of the group."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Row

from seekpoint.admin.attribution import Attribution
from seekpoint.admin.groups import known_group
from seekpoint.errors import ConfigError, Fenced
from seekpoint.ledger import GroupLedger
from seekpoint.ledger.admin_actions import record_action
from seekpoint.ledger.dead_letters import DeadLetters
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import GROUPS, REPLAY_REQUEST, RESETS
from seekpoint.records import State
from seekpoint.worker.replay.group_dead_letters import Chosen, chosen_dead_letters
from seekpoint.worker.replay.plan import Planned, planned_replay
from seekpoint.worker.replay.requests import MOST, SECONDS

REQUESTED = "request replay"  # in the history


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRequest:
    """A request's current state: ``state`` is requested, started, done or failed; ``error`` says why it failed.

    ``replayed`` counts applied dead letters, including later ones of the same keys; ``failed`` those that failed again;
    ``refused`` those that were no longer open, or come after another dead letter of their key. ``refusals`` has the
    reasons, at most 100. ``version`` is the handler version that replays the dead letters, ``worker`` the process that
    has started the request.
    """

    id: int
    group: str
    version: int
    dead_letters: tuple[int, ...]
    state: str
    actor: str
    reason: str
    worker: UUID | None
    replayed: int
    failed: int
    refused: int
    refusals: tuple[str, ...]
    error: str | None
    requested_at: datetime
    started_at: datetime | None
    ended_at: datetime | None

    @property
    def has_ended(self) -> bool:
        """Whether the request is done or has failed."""
        return self.ended_at is not None


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """A plan to have a running worker of the group replay these dead letters; ``consequences`` in words.

    ``planned`` has the chosen dead letters, with a ``refusal`` for each that would not be replayed; with key order,
    also the later ones of their keys. ``last_request`` is the id of the group's last request, or 0.
    """

    group: str
    version: int
    planned: tuple[Planned, ...]
    consequences: tuple[str, ...]
    last_request: int

    @property
    def ids(self) -> tuple[int, ...]:
        """The dead letters to request, in order; the worker adds the later ones of their keys."""
        return tuple(
            replay.dead_letter.id for replay in self.planned if replay.refusal is None and replay.after is None
        )

    @property
    def drawn_along(self) -> int:
        """How many dead letters are replayed only because they follow a chosen one of their key."""
        return sum(replay.after is not None for replay in self.planned)

    @property
    def refused(self) -> list[Planned]:
        """The dead letters that would not be replayed."""
        return [replay for replay in self.planned if replay.refusal is not None]

    @property
    def is_done(self) -> bool:
        """Whether there is nothing to do."""
        return not self.ids


def plan_replay(ledger: GroupLedger, chosen: Chosen) -> ReplayPlan:
    """A plan to request a replay. Raises ConfigError for an unknown group, or an id that the group does not have."""
    with ledger.begin() as tx:
        group = known_group(tx)
        last = _last_request(tx)
        workers = tx.execute(REPLAY_REQUEST["count_workers"], version=group.version).scalar_one()
    in_order = {topic for topic, declared in (group.declared or {}).items() if declared.get("keep_key_order")}
    ordered = planned_replay(
        DeadLetters(ledger),
        chosen,
        lambda dead_letter: (
            dead_letter.key is not None and (dead_letter.topic in in_order or dead_letter.state is State.BLOCKED)
        ),
    )
    drawn_along = sum(replay.after is not None for replay in ordered)
    return ReplayPlan(ledger.group, group.version, ordered, tuple(_in_words(group, workers, drawn_along)), last)


def _in_words(group: Row[Any], workers: int, drawn_along: int) -> Iterator[str]:
    if drawn_along:
        yield (
            f"{drawn_along:,} later dead letters of the same keys are replayed, too: the records of a key are applied "
            "in order"
        )
    yield (
        f"a running worker of version {group.version} replays them between its batches, at most {MOST}, or for "
        f"{SECONDS:g} s, at a time"
    )
    if group.paused:
        yield f"the group is paused by {group.paused_by}: no worker takes the request before it is resumed"
    if not workers:
        yield f"no worker of version {group.version} was seen in the last minute: the request waits until one starts"


def _last_request(tx: GroupConnection) -> int:
    return tx.execute(RESETS["last_action"], actions=[REQUESTED]).scalar_one() or 0


def request_replay(
    ledger: GroupLedger, chosen: Chosen, attribution: Attribution, last_request: int | None
) -> ReplayRequest:
    """Store the request and its actor. Raises ConfigError if no dead letter matches, or an id is unknown.

    Raises Fenced if the group's last request is not ``last_request``; None: do not compare.
    """
    dead_letters = DeadLetters(ledger)
    ids = [dead_letter.id for dead_letter in chosen_dead_letters(dead_letters, chosen)]
    if not ids:
        raise ConfigError("no open dead letters meet these conditions: there is nothing to request")
    with ledger.begin() as tx:
        # An advisory lock: a lock on the group's row would wait for claims.
        tx.execute(GROUPS["alone"], name=f"seekpoint {REQUESTED} {ledger.schema} {ledger.group}")
        if last_request not in {None, _last_request(tx)}:
            raise Fenced(
                f"group {ledger.group!r} was acted on since the plan was made: another replay was requested; nothing "
                "was done; make another plan"
            )
        parameters = {"dead_letters": ids, "actor": attribution.actor, "reason": attribution.reason}
        request_id = tx.execute(REPLAY_REQUEST["insert_request"], **parameters).scalar_one()
        reason = f"request {request_id}, {len(ids):,} dead letter{'' if len(ids) == 1 else 's'}: {attribution.reason}"
        record_action(tx, REQUESTED, actor=attribution.actor, reason=reason)
    return read_request(ledger, request_id)


def read_request(ledger: GroupLedger, id: int) -> ReplayRequest:  # noqa: A002 -- the column's name
    """The request's current state. Raises ConfigError if the group has no request with this id."""
    with ledger.begin() as tx:
        row = tx.execute(REPLAY_REQUEST["get_request"], id=id).one_or_none()
    if row is None:
        raise ConfigError(f"group {ledger.group!r} has no replay request {id}")
    values = row._asdict() | {"group": row.consumer_group, "dead_letters": tuple(row.dead_letters)}
    values["refusals"] = tuple(row.refusals or ())
    return ReplayRequest(**{name: values[name] for name in ReplayRequest.__slots__})
