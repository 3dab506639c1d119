"""Replays dead letters with their pipeline's codecs, sinks and handler, each in the transaction that closes it (I1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any

from sqlalchemy import URL, Engine

from seekpoint.errors import ConfigError, Fenced
from seekpoint.ledger.dead_letters import DeadLetter, Where, rank
from seekpoint.ledger.sql import GROUPS
from seekpoint.ledger.tables import DEFAULT_SCHEMA
from seekpoint.pipeline.frames import require_no_frames
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.pipeline.policy import Limits
from seekpoint.postgres.engine import worker_engine
from seekpoint.postgres.session import Session
from seekpoint.records import storable
from seekpoint.sinks.check_values import check_values
from seekpoint.worker.async_handler import callable_handler
from seekpoint.worker.engine_checks import require_engine
from seekpoint.worker.replay.group_dead_letters import Chosen, GroupDeadLetters, open_at, without_payload
from seekpoint.worker.replay.plan import Key, Planned, key_of, planned_replay
from seekpoint.worker.replay.preconditions import check_group, check_topic, keeps_order, not_first_of_key
from seekpoint.worker.replay.replay_one import Replayed, Replayer

Progress = Callable[[Replayed, int, int], None]  # the latest outcome; how many are done; how many are known so far

REASON = "replay"


@dataclass(frozen=True, slots=True)
class Summary:
    """The outcome of a replay: how many were applied; which failed again; which were refused, and why."""

    replayed: int = 0
    failed: tuple[Replayed, ...] = ()
    refused: tuple[Replayed, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether every dead letter was applied."""
        return not self.failed and not self.refused


class ReplayableDeadLetters(GroupDeadLetters):
    """Replays a group's dead letters with its pipeline; made by :meth:`seekpoint.admin.Admin.dead_letters`.

    A dead letter is applied as a worker applies a batch of one record, in one durable transaction that also closes
    it, with actor and reason. Its partition's row is locked first, so that no worker's batch, rewind or other change
    runs at the same time, and the record is applied once. If it fails again, the transaction is rolled back, and the
    dead letter stays open with both errors.

    With key order, a replay of a key's first dead letter continues with the key's other dead letters in offset order,
    one transaction each, until none is open or one fails. If a running worker blocks records of the key faster than
    they are replayed, the replay does not end: pause the group meanwhile.

    A paused group is refused (GroupPaused) unless ``while_paused`` says that you paused it; dead letters of a topic
    that was recreated since are always refused (Fenced). The pipeline must be of the group's version: HandlerOutdated
    if it is older, ConfigError if it is newer.
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
        require_no_frames(pipeline)
        if not isinstance(pipeline, Pipeline):
            raise ConfigError(f"dead_letters() takes a group's name or its Pipeline, got a {type(pipeline).__name__}")
        require_engine(pipeline, engine)
        super().__init__(engine, pipeline.group, schema=schema, actor=actor, limits=limits)
        self.pipeline, self.while_paused = pipeline.taken().require_names("a replay"), while_paused

    def plan(self, chosen: Chosen = Where()) -> tuple[Planned, ...]:  # noqa: B008 -- immutable
        """The plan of a replay of these dead letters, in replay order; changes nothing.

        Includes dead letters that follow the first of their key. Raises errors that would end the whole replay.
        """
        with self.ledger.begin() as tx:
            group = tx.execute(GROUPS["read"]).one_or_none()
        if group is None:
            raise ConfigError(f"there is no group {self.pipeline.group!r} in the ledger: check name and schema")
        check_group(group, self.pipeline, while_paused=self.while_paused)
        planned = planned_replay(self._dead_letters, chosen, partial(keeps_order, self.pipeline))
        for entry in planned:
            check_topic(entry.dead_letter, self.pipeline)
        return planned

    def replay(self, id: int, *, reason: str = REASON, progress: Progress | None = None) -> Replayed:  # noqa: A002
        """Replay one dead letter, and those blocked after it (``followers``); ``failure`` says if it failed again.

        Raises Fenced if the dead letter is no longer open (with who closed it, when and why), or another one of its key
        comes first (with its id); ConfigError if the group has no dead letter with that id; and errors of pipeline,
        group or database.
        """
        with self._replayer() as replayer:
            first, following = replayer.replay(id, storable(reason))
            if progress is not None:
                progress(first, 1, 1)
            follower = None if following is None else open_at(self._dead_letters, first.dead_letter, following)
            followers = [] if follower is None else [follower]
            outcomes = self._replay_each(replayer, followers, storable(reason), progress, done=1)
            return replace(first, followers=tuple(outcomes))

    def replay_all(
        self,
        chosen: Chosen = Where(),  # noqa: B008 -- immutable
        *,
        reason: str = REASON,
        progress: Progress | None = None,
    ) -> Summary:
        """Replay these dead letters in the order of topic, partition and offset, one transaction each.

        With key order, a dead letter that fails again or is refused blocks only the later ones of its key. Dead letters
        that are added meanwhile are not replayed, except those of a blocked key. ``progress`` is called after each with
        its outcome, the number done, and the number known so far.

        Raises errors that end the whole replay (see :class:`ReplayableDeadLetters`). Dead letters applied before stay
        applied; a note on the error counts them.
        """
        planned = self.plan(chosen)
        refusals = [
            Replayed(entry.dead_letter, refusal=entry.refusal) for entry in planned if entry.refusal is not None
        ]
        dead_letters = [entry.dead_letter for entry in planned if entry.refusal is None]
        done: list[Replayed] = []
        try:
            with self._replayer(dead_letters) as replayer:
                for outcome in self._replay_each(replayer, dead_letters, storable(reason), progress):
                    done.append(outcome)  # noqa: PERF402 -- one that is done counts, even if the next one raises
        except BaseException as error:
            applied = sum(outcome.is_applied for outcome in done)
            error.add_note(f"{applied} of {len(dead_letters)} dead letters were replayed before that")
            raise
        return Summary(
            replayed=sum(outcome.is_applied for outcome in done),
            failed=tuple(outcome for outcome in done if outcome.failure is not None),
            refused=tuple(refusals + [outcome for outcome in done if outcome.refusal is not None]),
        )

    def _replay_each(
        self,
        replayer: Replayer,
        dead_letters: Iterable[DeadLetter],
        reason: str,
        progress: Progress | None,
        done: int = 0,
    ) -> Iterator[Replayed]:
        """Replay these dead letters, the lowest offsets first, and those that follow them in their keys."""
        work = [(*rank(dead_letter), dead_letter) for dead_letter in dead_letters]
        heapify(work)
        queued = {(dead_letter.topic_partition, dead_letter.topic_id, dead_letter.offset) for *_, dead_letter in work}
        failed_by_key: dict[Key, DeadLetter] = {}
        while work:
            dead_letter = heappop(work)[-1]
            outcome, following = self._replay_one(replayer, dead_letter, reason, failed_by_key)
            if (
                following is not None
                and (record := (dead_letter.topic_partition, dead_letter.topic_id, following)) not in queued
            ):
                queued.add(record)
                if (follower := open_at(self._dead_letters, dead_letter, following)) is not None:
                    heappush(work, (*rank(follower), without_payload(follower)))
            done += 1
            if progress is not None:
                progress(outcome, done, done + len(work))
            yield outcome

    def _replay_one(
        self, replayer: Replayer, dead_letter: DeadLetter, reason: str, failed_by_key: dict[Key, DeadLetter]
    ) -> tuple[Replayed, int | None]:
        key = key_of(dead_letter) if keeps_order(self.pipeline, dead_letter) else None
        if key is not None and key in failed_by_key:
            return Replayed(dead_letter, refusal=not_first_of_key(dead_letter, failed_by_key[key]).reason), None
        try:
            outcome, following = replayer.replay(dead_letter.id, reason)
        except Fenced as refusal:
            return Replayed(dead_letter, refusal=refusal.reason), None
        if key is not None and outcome.failure is not None:
            failed_by_key[key] = dead_letter
        return outcome, following

    @contextmanager
    def _replayer(self, among: Sequence[DeadLetter] = ()) -> Iterator[Replayer]:
        engine = worker_engine(self.ledger.engine)  # a handler's connection gets closed: not one of the application's
        session = Session(engine, lends=self.pipeline.handle is not None)
        try:
            with engine.connect() as connection:
                check_values(connection, self.pipeline)
            with callable_handler(self.pipeline) as handler:
                options: dict[str, Any] = {"while_paused": self.while_paused, "among": among, "handler": handler}
                yield Replayer(self.pipeline, self._dead_letters, session, self.actor, **options)
        finally:
            session.close()
            engine.dispose()
