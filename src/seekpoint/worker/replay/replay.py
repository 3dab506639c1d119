"""Dead letters through their pipeline's own codecs, sinks and handler: each in the transaction that closes it (I1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import Any

from sqlalchemy import URL, Engine

from seekpoint.errors import ConfigError, Fenced
from seekpoint.ledger.dead_letters import DeadLetter, Where, rank
from seekpoint.ledger.sql import GROUPS
from seekpoint.ledger.tables import DEFAULT_SCHEMA
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.pipeline.policy import Limits
from seekpoint.postgres.session import Session
from seekpoint.records import storable
from seekpoint.worker.replay.dead_letter_admin import Chosen, DeadLetterAdmin, chosen_dead_letters, lean, open_at
from seekpoint.worker.replay.plan import Key, Planned, in_key_order, key_of
from seekpoint.worker.replay.preconditions import (
    check_group,
    check_topic,
    keeps_order,
    not_first_of_key,
    replay_refusal,
)
from seekpoint.worker.replay.replay_one import Replayed, Replayer

Progress = Callable[[Replayed, int, int], None]  # the last one; how many are done; how many there are, as known now

REASON = "replay"


@dataclass(frozen=True, slots=True)
class Summary:
    """How a replay of many ended: how many were applied; which failed again; which were refused, and why."""

    replayed: int = 0
    failed: tuple[Replayed, ...] = ()
    refused: tuple[Replayed, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether every one that was meant is applied."""
        return not self.failed and not self.refused


class DeadLetterReplay(DeadLetterAdmin):
    """The dead letters of a pipeline's group, and the pipeline to apply them with.

    A dead letter is applied as a worker applies a batch of one record, in one durable transaction that also closes
    it, with actor and reason. Its partition's row is locked first: a worker's batch there, a rewind and another
    operator come before it or after it, and it is applied once. Where it fails again the transaction is rolled back,
    and the dead letter stays open with the new error beside the old one.

    Where keys are held, dead letters of one key are replayed in the order of their offsets, and the first one draws the
    others along, one transaction each, until none is open or one fails. Where a running worker holds records of that
    key faster than they are replayed, that is never: pause the group meanwhile.

    A paused group is left alone (GroupPaused) unless ``while_paused`` says that the pause is yours; those of a topic
    that was created again since are always (Fenced).
    The pipeline must be of the group's version: HandlerOutdated if it is older, ConfigError if it is newer.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        engine: Engine | URL | str,
        *,
        schema: str = DEFAULT_SCHEMA,
        actor: str | None = None,
        limits: Limits | None = None,
        while_paused: bool = False,
    ) -> None:
        if not isinstance(pipeline, Pipeline):
            raise ConfigError(f"DeadLetterReplay needs a Pipeline, got {type(pipeline).__name__}")
        super().__init__(engine, pipeline.group, schema=schema, actor=actor, limits=limits)
        self.pipeline, self.while_paused = pipeline, while_paused

    def plan(self, chosen: Chosen = Where()) -> tuple[Planned, ...]:  # noqa: B008 -- immutable
        """What a replay of these would do, without doing it, in the order in which it would be done.

        Dead letters that the first of their key draws along are in it, too. Raises what the replay would raise for all.
        """
        with self.ledger.begin() as tx:
            group = tx.execute(GROUPS["read"]).one_or_none()
        if group is None:
            raise ConfigError(f"there is no group {self.pipeline.group!r} in the ledger: check name and schema")
        check_group(group, self.pipeline, while_paused=self.while_paused)
        positions = {at.partition: at for at in self.ledger.read()}
        planned = []
        for dead_letter in map(lean, chosen_dead_letters(self._dead_letters, chosen)):
            check_topic(dead_letter, self.pipeline)
            refusal = replay_refusal(dead_letter, positions.get(dead_letter.at))
            planned.append(Planned(dead_letter, None if refusal is None else refusal.reason))
        return in_key_order(self._dead_letters, planned, self._keeps_order)

    def replay(self, id: int, *, reason: str = REASON, progress: Progress | None = None) -> Replayed:  # noqa: A002
        """Replay one dead letter, and those blocked after it (``followers``); ``failure`` says if it failed again.

        Raises Fenced where it is not open any more (with who closed it, when and why), or where another one of its key
        comes first (with that one's id); ConfigError where the group has none of that id; and what is wrong with
        pipeline, group or database.
        """
        with self._replayer() as replayer:
            first, following = replayer.replay(id, storable(reason))
            if progress is not None:
                progress(first, 1, 1)
            follower = None if following is None else open_at(self._dead_letters, first.dead_letter, following)
            followers = [] if follower is None else [follower]
            rest = self._each(replayer, followers, storable(reason), progress, done=1)
            return replace(first, followers=tuple(rest))

    def replay_all(
        self,
        chosen: Chosen = Where(),  # noqa: B008 -- immutable
        *,
        reason: str = REASON,
        progress: Progress | None = None,
    ) -> Summary:
        """Replay these in the order of topic, partition and offset, one transaction each.

        One that fails again, or is refused, does not keep the others back, but for those of its key where keys are
        held. Dead letters that come meanwhile are not replayed, but for those of a blocked key. ``progress`` is
        called after each with what became of it, how many are done, and how many there are.

        What ends the whole replay (see :class:`DeadLetterReplay`) is raised; what was applied before stays applied, and
        is counted in a note of the error.
        """
        planned = self.plan(chosen)
        refusals = [Replayed(one.dead_letter, refusal=one.refusal) for one in planned if one.refusal is not None]
        dead_letters = [one.dead_letter for one in planned if one.refusal is None]
        done: list[Replayed] = []
        try:
            with self._replayer(dead_letters) as replayer:
                for one in self._each(replayer, dead_letters, storable(reason), progress):
                    done.append(one)  # noqa: PERF402 -- what is done counts, also where the next one raises
        except BaseException as error:
            applied = sum(one.is_applied for one in done)
            error.add_note(f"{applied} of {len(dead_letters)} dead letters were replayed before that")
            raise
        return Summary(
            replayed=sum(one.is_applied for one in done),
            failed=tuple(one for one in done if one.failure is not None),
            refused=tuple(refusals + [one for one in done if one.refusal is not None]),
        )

    def _each(
        self,
        replayer: Replayer,
        dead_letters: Iterable[DeadLetter],
        reason: str,
        progress: Progress | None,
        done: int = 0,
    ) -> Iterator[Replayed]:
        """Replay these, the lowest offsets first, and what follows them in keys that are blocked."""
        work = [(*rank(dead_letter), dead_letter) for dead_letter in dead_letters]
        heapify(work)
        known = {(dead_letter.at, dead_letter.topic_id, dead_letter.offset) for *_, dead_letter in work}
        stuck: dict[Key, DeadLetter] = {}
        while work:
            dead_letter = heappop(work)[-1]
            outcome, following = self._one(replayer, dead_letter, reason, stuck)
            if following is not None and (at := (dead_letter.at, dead_letter.topic_id, following)) not in known:
                known.add(at)
                if (follower := open_at(self._dead_letters, dead_letter, following)) is not None:
                    heappush(work, (*rank(follower), lean(follower)))
            done += 1
            if progress is not None:
                progress(outcome, done, done + len(work))
            yield outcome

    def _one(
        self, replayer: Replayer, dead_letter: DeadLetter, reason: str, stuck: dict[Key, DeadLetter]
    ) -> tuple[Replayed, int | None]:
        key = key_of(dead_letter) if self._keeps_order(dead_letter) else None
        if key is not None and key in stuck:
            return Replayed(dead_letter, refusal=not_first_of_key(dead_letter, stuck[key]).reason), None
        try:
            outcome, following = replayer.replay(dead_letter.id, reason)
        except Fenced as refusal:
            return Replayed(dead_letter, refusal=refusal.reason), None
        if key is not None and outcome.failure is not None:
            stuck[key] = dead_letter
        return outcome, following

    def _keeps_order(self, dead_letter: DeadLetter) -> bool:
        return keeps_order(self.pipeline, dead_letter)

    @contextmanager
    def _replayer(self, among: Sequence[DeadLetter] = ()) -> Iterator[Replayer]:
        session = Session(self.ledger.engine, lends=self.pipeline.handle is not None)
        try:
            options: dict[str, Any] = {"while_paused": self.while_paused, "among": among}
            yield Replayer(self.pipeline, self._dead_letters, session, self.actor, **options)
        finally:
            session.close()
