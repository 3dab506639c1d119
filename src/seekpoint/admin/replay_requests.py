"""Requests for replays: stored by an operator, carried out by a running worker of the group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Row

from seekpoint.admin.by import By
from seekpoint.admin.groups import known_group
from seekpoint.errors import ConfigError, Fenced
from seekpoint.ledger import Ledger
from seekpoint.ledger.admin_actions import record_action
from seekpoint.ledger.dead_letters import DeadLetters, Where
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import GROUPS, REPLAY_REQUEST, RESETS
from seekpoint.records import State
from seekpoint.worker.replay.dead_letter_admin import Chosen, chosen_dead_letters, lean
from seekpoint.worker.replay.plan import Planned, in_key_order
from seekpoint.worker.replay.preconditions import replay_refusal
from seekpoint.worker.replay.requests import MOST, SECONDS

REQUESTED = "request replay"  # in the history


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRequest:
    """A request as it is now: ``state`` is requested, started, done or failed; ``error`` says why it failed.

    ``replayed`` were applied, those that others of their key have drawn along, too; ``failed`` failed again;
    ``refused`` were not open any more or come after another of their key, ``refusals`` has the first sentences of it,
    at most 100. ``version`` is the handler's that replays them, ``worker`` the process that has started it.
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
        """Whether no worker replays any more of it."""
        return self.ended_at is not None


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """To have a running worker of the group replay these dead letters; ``consequences`` in words.

    Each ``refusal`` says why one would not be replayed. Where keys are in order, ``planned`` has those that a chosen
    one draws along, too.
    ``last_request`` is the id of the group's last request in its history, 0 where there is none.
    """

    group: str
    version: int
    planned: tuple[Planned, ...]
    consequences: tuple[str, ...]
    last_request: int

    @property
    def ids(self) -> tuple[int, ...]:
        """The dead letters to request, in order; the worker finds those that they draw along."""
        return tuple(one.dead_letter.id for one in self.planned if one.refusal is None and one.after is None)

    @property
    def drawn_along(self) -> int:
        """How many more are replayed, since they come after a chosen one of their key."""
        return sum(one.after is not None for one in self.planned)

    @property
    def refused(self) -> list[Planned]:
        """Those that would not be replayed."""
        return [one for one in self.planned if one.refusal is not None]

    @property
    def is_done(self) -> bool:
        """Whether there is nothing to do."""
        return not self.ids


def plan_replay(ledger: Ledger, chosen: Chosen) -> ReplayPlan:
    """Raises ConfigError for a group that the ledger does not know, and for an id that it does not have."""
    with ledger.begin() as tx:
        group = known_group(tx)
        last = _last_request(tx)
        workers = tx.execute(REPLAY_REQUEST["count_workers"], version=group.version).scalar_one()
    positions = {at.partition: at for at in ledger.read()}
    planned, dead_letters = [], DeadLetters(ledger)
    for one in map(lean, chosen_dead_letters(dead_letters, chosen)):
        refusal = replay_refusal(one, positions.get(one.at))
        planned.append(Planned(one, None if refusal is None else refusal.reason))
    in_order = {topic for topic, declared in (group.declared or {}).items() if declared.get("keep_key_order")}
    ordered = in_key_order(
        dead_letters, planned, lambda one: one.key is not None and (one.topic in in_order or one.state is State.BLOCKED)
    )
    drawn_along = sum(one.after is not None for one in ordered)
    return ReplayPlan(ledger.group, group.version, ordered, tuple(_in_words(group, workers, drawn_along)), last)


def _in_words(group: Row[Any], workers: int, drawn_along: int) -> Iterator[str]:
    if drawn_along:
        yield (
            f"{drawn_along:,} more are replayed with them, which come after them in their keys: the records of a key "
            "are applied in order"
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


def request_replay(ledger: Ledger, chosen: Chosen, by: By, last_request: int | None) -> ReplayRequest:
    """Store the request, and who made it. Raises ConfigError where no dead letter is meant, or an id is unknown.

    Raises Fenced where the group's last request is another than ``last_request``; None: it is not compared.
    """
    dead_letters = DeadLetters(ledger)
    if isinstance(chosen, Where):
        ids: Sequence[int] = [one.id for one in chosen_dead_letters(dead_letters, chosen)]
    else:
        ids = dead_letters.in_order([chosen] if isinstance(chosen, int) else chosen)
    if not ids:
        raise ConfigError("no open dead letters meet these conditions: there is nothing to request")
    with ledger.begin() as tx:
        # Not the group's row, whose lock would wait for claims.
        tx.execute(GROUPS["alone"], name=f"seekpoint {REQUESTED} {ledger.schema} {ledger.group}")
        if last_request not in {None, _last_request(tx)}:
            raise Fenced(
                f"group {ledger.group!r} was acted on since the plan was made: another replay was requested; nothing "
                "was done; make another plan"
            )
        parameters = {"dead_letters": ids, "actor": by.actor, "reason": by.reason}
        found = tx.execute(REPLAY_REQUEST["insert_request"], **parameters).scalar_one()
        said = f"request {found}, {len(ids):,} dead letter{'' if len(ids) == 1 else 's'}: {by.reason}"
        record_action(tx, REQUESTED, actor=by.actor, reason=said)
    return read_request(ledger, found)


def read_request(ledger: Ledger, id: int) -> ReplayRequest:  # noqa: A002 -- the column's name
    """The request as it is now. Raises ConfigError where the group has none of that id."""
    with ledger.begin() as tx:
        row = tx.execute(REPLAY_REQUEST["get_request"], id=id).one_or_none()
    if row is None:
        raise ConfigError(f"group {ledger.group!r} has no replay request {id}")
    values = row._asdict() | {"group": row.consumer_group, "dead_letters": tuple(row.dead_letters)}
    values["refusals"] = tuple(row.refusals or ())
    return ReplayRequest(**{name: values[name] for name in ReplayRequest.__slots__})
