"""The worker's loop: maintains the assignment, reads, commits, and backs off after errors."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any

from seekpoint import events
from seekpoint.backoff import Backoff
from seekpoint.errors import (
    CodecUnavailable,
    DeclarationDiffers,
    KafkaUnavailable,
    StandbyRequired,
    StopTimeout,
)
from seekpoint.events import Announcer
from seekpoint.kafka.client import HeartbeatRefused, InstanceInUse, KafkaException, raise_if_fatal
from seekpoint.kafka.config import consumer_config, make_consumer
from seekpoint.ledger import GroupLedger
from seekpoint.pipeline.declared import declared
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.pipeline.writers import PipelineWriters
from seekpoint.postgres.sqlstates import is_transient
from seekpoint.records import Partition
from seekpoint.worker.abort import Abort
from seekpoint.worker.assignment import Resources, WorkerAssignment
from seekpoint.worker.async_handler import Call, callable_handler
from seekpoint.worker.batch_size import BatchSize
from seekpoint.worker.broker_answers import BrokersBack, ConsumerCheck, ConsumerUnanswered, answer_timeout
from seekpoint.worker.heartbeat import Heartbeat
from seekpoint.worker.lag_sampler import LagSampler
from seekpoint.worker.mirror import Mirror
from seekpoint.worker.open_batch import CHUNK, Buffer, OpenBatch
from seekpoint.worker.reader import Reader
from seekpoint.worker.replay.requests import RequestedReplays
from seekpoint.worker.replay.retries import WaitingRetries
from seekpoint.worker.single_attempts import SingleAttempts
from seekpoint.worker.standby import Standby
from seekpoint.worker.start import StartChecks
from seekpoint.worker.status_writer import END, StatusWriter
from seekpoint.worker.topic_finder import TopicFinder
from seekpoint.worker.tracer import Tracer
from seekpoint.worker.unended import shown_user_code, unended
from seekpoint.worker.unit_of_work import Committer
from seekpoint.worker.waiting import Stopwatch, Work

POLL = 0.2  # seconds: how long a quiet loop waits for a record before it makes its other checks
CLOSE = 10.0  # seconds for the client to leave the group
AWAY = 1.0  # the same, if Kafka has not answered the last commit, for which the client would wait
REJOIN = 5.0  # seconds before joining the group again with a group.instance.id that another member has
SETTLED = 1.0  # seconds after joining until the id counts as free: a refusal arrives within a round trip
LEAVE = 3.0  # seconds for the client to leave the group, after the worker was given up
_TROUBLES = (events.KafkaTrouble, events.DatabaseTrouble, events.CodecTrouble, events.Paused)
REPEAT = 10.0  # seconds before the same error of the client is announced again


class Loop:
    """Runs one worker, once, on one thread."""

    def __init__(
        self,
        pipeline: Pipeline,
        ledger: GroupLedger,
        *,
        kafka: Mapping[str, Any],
        partitions: Collection[tuple[str, int]] | None,
        announce: Announcer,
        stopping: threading.Event,
        stopwatch: Stopwatch | None = None,
        abort: Abort,
        tracer: Tracer | None = None,
        mirror: bool = False,
        strict: bool = False,
        batch_ended: Callable[[], None],
    ) -> None:
        self._batch_ended = batch_ended
        self._is_mirrored, self._is_strict = mirror, strict
        self._pipeline, self._ledger, self._limits = pipeline.for_worker(), ledger, ledger.limits
        self._tracer = tracer
        self._announce, self._stopping = announce, stopping
        self._config = consumer_config(kafka, group=pipeline.group)
        self._partitions = partitions
        self._stopwatch, self._abort = stopwatch or Stopwatch(), abort
        self._tables: tuple[str, ...] = ()  # the written tables, each with its schema
        self._trouble: events.Event | None = None
        self._rejoins_at = 0.0  # when to join the group again with an id that another member had
        self._announced_at: dict[int, float] = {}  # the client's errors in this trouble, by code
        self._in_hand: dict[Partition, int] = {}  # the first offsets of the last batch, until it is committed
        self._took = 0.0  # seconds of the last batch: single-record attempts may take as long
        self._waits = Backoff().waits()
        self._ask_codec: Callable[[], object] | None = None  # repeats a codec's unanswered request
        announce.add(self._watch)
        self._handler: Call | None = None
        self._assignment: WorkerAssignment
        self._finder: TopicFinder
        self._writers: PipelineWriters
        self._committer: Committer
        self._size: BatchSize
        self._heartbeat: Heartbeat
        self._reader: Reader
        self._singles: SingleAttempts
        self._status: StatusWriter
        self._requests: RequestedReplays
        self._retries: WaitingRetries
        self._mirror: Mirror
        self._lag: LagSampler
        self._consumer_check: ConsumerCheck
        self._joined_at = self._max_poll = 0.0  # when it joined; max.poll.interval.ms in seconds
        self._is_open = False  # the objects above are in use
        self._opened = object()  # identifies the consumer of these objects
        self._ending = threading.Lock()  # the thread that gets it announces the worker's end
        self._given_up: StopTimeout | None = None
        self._thread = 0

    # -- start and end --------------------------------------------------------------------------------

    def run(self) -> None:
        """Work until ``stopping`` is set, finishing the open batch. Raises errors that a retry would not fix."""
        error: BaseException | None = None
        self._thread = threading.get_ident()
        self._ledger.draw_owner()  # not in the constructor: the process may fork between both
        try:
            if self._start():
                with callable_handler(self._pipeline, self._stopwatch, self._abort) as self._handler:
                    self._live()
        except BaseException as raised:
            error = raised
            raise
        finally:
            if self._ending.acquire(blocking=False):
                self._announce(events.WorkerStopped(error=error))
            elif self._given_up is not None:
                raise self._given_up from error

    def give_up(self, grace: float) -> None:
        """End the worker from another thread, because its own has not ended within ``grace`` seconds.

        The connection is closed on both sides, so nothing of the open batch is committed, and the client leaves the
        group. The claims are not released: their next owner counts a crash. Does nothing if the worker has ended.
        """
        if not self._ending.acquire(blocking=False):
            return
        is_open = self._is_open
        user_code = shown_user_code(self._pipeline) if self._stopwatch.seconds() > 0 else None
        message = unended(self._pipeline.group, user_code, self._thread, grace, is_open=is_open)
        self._given_up = StopTimeout(message, grace)
        if is_open:
            self._committer.cut()
            self._requests.cut()
            self._retries.cut()
            self._heartbeat.stop()
            self._status.end(0.0, self._given_up)  # otherwise its row shows a running worker until the handler returns
        self._announce.end(events.WorkerStopped(error=self._given_up))
        if is_open:
            self._assignment.client.close(LEAVE)

    def _live(self) -> None:
        """Work in the group; wait outside while a reload to this version is open, or declared tables differ."""
        standby = Standby(self._ledger, self._pipeline, self._announce, self._stopping)
        met: StandbyRequired | DeclarationDiffers | None = None  # a claim was refused although the check had passed
        while standby.until_free(met):
            self._open()
            has_failed, leave_within = True, CLOSE
            try:
                self._assignment.join()
                self._announce(
                    events.Started(group=self._pipeline.group, owner=self._ledger.owner.hex, tables=self._tables)
                )
                self._work()
                self._announce(events.Draining())
                has_failed = False
                return
            except (StandbyRequired, DeclarationDiffers) as error:
                met, has_failed = error, False
            except ConsumerUnanswered as error:
                has_failed, leave_within = False, AWAY
                self._announce(events.KafkaTrouble(error=str(error)))
            except HeartbeatRefused as error:
                if monotonic() - self._joined_at < self._max_poll:  # the configuration is at fault, not a rejoin
                    raise
                has_failed, leave_within = False, AWAY
                self._announce(events.KafkaTrouble(error=error.args[0].str()))
            except InstanceInUse as error:
                has_failed, leave_within = False, AWAY
                self._rejoins_at = monotonic() + REJOIN
                self._announce(events.KafkaTrouble(error=str(error), wait=REJOIN))
            finally:
                self._close(leave_within, has_failed=has_failed)
            self._stopping.wait(max(0.0, self._rejoins_at - monotonic()))
        self._announce(events.Draining())

    def _start(self) -> bool:
        """Run the start checks; False if the worker was stopped meanwhile."""
        checks = StartChecks(
            self._pipeline,
            self._ledger,
            self._config,
            self._partitions,
            announce=self._announce,
            stopping=self._stopping,
        )
        if not checks.run():
            return False
        self._tables = checks.tables
        if self._trouble is not None:
            self._announce(events.Recovered())
        return True

    def _open(self) -> None:
        opened = self._opened = object()
        consumer = make_consumer(
            self._config,
            error_cb=partial(self._on_client_error, opened),
            on_commit=partial(self._on_commit, opened),
        )
        pipeline = self._pipeline
        resources = Resources.of(consumer, self._config, self._ledger, self._announce)
        self._assignment = WorkerAssignment(resources, pipeline.topics, pipeline.start, self._partitions, pipeline)
        self._finder = TopicFinder(resources.identity, pipeline, self._config)
        self._lag = LagSampler(self._assignment, self._limits.lag_check, self._announce)
        self._mirror = Mirror(resources, self._assignment, is_on=self._is_mirrored)
        self._consumer_check = ConsumerCheck(
            resources.client,
            resources.identity,
            pipeline.topics,
            min(self._limits.kafka_timeout, answer_timeout(self._config)),
        )
        self._max_poll = int(self._config.get("max.poll.interval.ms", 300_000)) / 1000
        age = self._limits.transaction_age
        self._heartbeat = Heartbeat(self._assignment.client, self._max_poll, age, self._announce)
        writers = self._writers = PipelineWriters(pipeline, self._handler)
        self._reader = Reader(
            writers, self._limits, self._assignment, self._announce, self._stopwatch, is_ending=self._stopping.is_set
        )
        self._size = BatchSize(self._limits, adapts=pipeline.handle is not None)
        self._committer = Committer(
            self._ledger,
            writers,
            self._assignment,
            self._announce,
            stopwatch=self._stopwatch,
            tracer=self._tracer,
            meanwhile=Work(self._reader.has_more, self._reader.read_ahead) if pipeline.handle is None else None,
            size=self._size,
        )
        self._singles = SingleAttempts(
            pipeline,
            self._ledger,
            self._assignment,
            self._committer,
            heartbeat=self._heartbeat,
            announce=self._announce,
            keeps_claims=lambda: self._given_up is not None,
        )
        self._open_between_batches(resources)
        self._is_open, self._joined_at = True, monotonic()

    def _open_between_batches(self, resources: Resources) -> None:
        """Open the objects that run between two batches, or during them."""
        self._requests = RequestedReplays(
            self._pipeline, self._ledger, stopwatch=self._stopwatch, stopping=self._stopping, handler=self._handler
        )
        self._retries = WaitingRetries(
            self._pipeline,
            self._ledger,
            self._assignment,
            self._committer.limits,
            self._announce,
            stopwatch=self._stopwatch,
            stopping=self._stopping,
            handler=self._handler,
        )
        self._status = StatusWriter(
            self._ledger,
            resources.watermarks,
            self._declared(),
            self._announce,
            client_id=self._config.get("client.id"),
            poll_replay_requests=self._requests.check,
            describe_work=lambda: (
                self._committer.describe_open_batch()
                or self._requests.describe_open_replay()
                or self._retries.describe_open_retry()
            ),
        )

    def _declared(self) -> dict[str, dict[str, Any]]:
        return declared(
            self._pipeline,
            read_uncommitted=self._config.get("isolation.level") == "read_uncommitted",
            synchronous_commit=self._ledger.synchronous_commit,
            most_waiting=self._ledger.limits.waiting,
        )

    def _close(self, leave_within: float, *, has_failed: bool) -> None:
        """Release the claims and leave the group. An error here does not replace the one that ended the worker."""
        try:
            with ExitStack() as closing:  # each is called even if an earlier one raises
                error = self._given_up or (sys.exception() if has_failed else None)
                closing.callback(self._status.end, END if self._given_up is None else 0.0, error)
                closing.callback(self._leave, leave_within, has_failed=has_failed)
                closing.callback(self._committer.close)
                closing.callback(self._heartbeat.stop)
        except Exception as error:
            if not has_failed and not is_transient(error):
                raise
            # Claims that were not released stay until another worker claims the partitions, which counts a crash
            # although there was no crash.
            self._announce(events.DatabaseTrouble(error=error))

    def _leave(self, within: float, *, has_failed: bool) -> None:
        if self._given_up is not None:  # keep the claims; close a client that was made since then
            self._assignment.client.close(LEAVE)
            return
        with suppress(Exception):  # another worker will find the request abandoned
            self._requests.close(hand_back=not has_failed)
        has_answered = self._mirror.finish()
        self._assignment.leave(within if has_answered else AWAY)

    def _on_commit(self, opened: object, error: Any, offsets: list[Any]) -> None:
        if opened is self._opened:  # otherwise the caller is an earlier consumer, which is still closing
            self._mirror.answered(error, offsets)

    def _on_client_error(self, opened: object, error: Any) -> None:
        """Announce each error code once in ``REPEAT`` seconds: unreachable brokers cause dozens of errors a second."""
        if opened is not self._opened:
            return
        if self._is_open:
            self._consumer_check.doubt()
        now = monotonic()
        if now - self._announced_at.get(error.code(), -REPEAT) >= REPEAT:
            self._announced_at[error.code()] = now
            self._announce(events.KafkaTrouble(error=error.str()))

    # -- the loop -------------------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._stopping.is_set():
            self._show_status()
            self._mirror.maintain(monotonic())
            try:
                self._step()
            except KafkaException as error:
                raise_if_fatal(error.args[0])
                self._back_off(events.KafkaTrouble(error=error.args[0].str()))
            except KafkaUnavailable as error:
                self._back_off(events.KafkaTrouble(error=str(error)))
            except CodecUnavailable as error:
                self._ask_codec = error.ask
                self._back_off(events.CodecTrouble(error=str(error)))
            except Exception as error:
                if not is_transient(error):
                    raise
                self._back_off(events.DatabaseTrouble(error=error))
            finally:  # a batch that is dropped, or for which Kafka does not answer, ends without an event
                self._batch_ended()

    def _step(self) -> None:
        self._add_topics()
        self._assignment.maintain()
        self._consumer_check.maintain()
        self._recovered()
        self._raise_if_strict()
        self._lag.maintain(monotonic())
        has_tried = self._replay_some() | self._attempt_singles() | self._retry_waiting()
        if (chunk := self._reader.read(self._size.records, 0 if has_tried else POLL)) is None:
            self._took = 0.0
            return
        reader, limits = self._reader, self._size.limits
        buffer = Buffer(chunk, lambda: reader.draw(buffer.room, buffer.held), self._assignment.topic_ids, limits)
        began = monotonic()
        self._in_hand = {partition: read.start for partition, read in chunk.reads.items()}
        with self._heartbeat:
            self._committer.commit(OpenBatch(buffer))
        self._in_hand.clear()
        self._took = monotonic() - began
        self._recovered()

    def _add_topics(self) -> None:
        """Subscribe to topics that were created since and match the pipeline's pattern."""
        if not (topics := self._finder.new_topics(monotonic())):
            return
        self._assignment.add_topics(topics)  # first, so that topics which the client refuses count as new the next time
        for topic in topics:
            self._pipeline.add_topic(topic)
        self._writers.refresh()
        self._status.declared = self._declared()
        self._announce(events.TopicsFound(topics=tuple(topics)))

    def _raise_if_strict(self) -> None:
        if self._is_strict and (stopped := self._assignment.stopped):
            raise next(iter(stopped.values()))

    def _show_status(self) -> None:
        if self._status.is_due(now := monotonic()):
            state, reason = "running", None
            if self._trouble is not None:
                state = "paused" if isinstance(self._trouble, events.Paused) else "trouble"
                fields = self._trouble.as_fields()
                reason = fields.get("reason") or fields["error"]
            self._status.show(state, self._assignment.with_known_log, now, reason)

    def _replay_some(self) -> bool:
        """Replay requested dead letters for a while; returns whether more are due."""
        if not self._requests.is_due(is_claiming=self._assignment.is_claiming):
            return False
        with self._heartbeat:
            self._requests.work()
        return self._requests.is_due(is_claiming=False)

    def _retry_waiting(self) -> bool:
        """Retry due waiting records for a while; returns whether there was one."""
        if not self._retries.is_due:
            return False
        with self._heartbeat:
            return self._retries.work()

    def _attempt_singles(self) -> bool:
        """Make due single-record attempts, for about as long as the last batch took; returns whether any was due."""
        until, has_tried = monotonic() + self._took, False
        while not self._stopping.is_set() and self._singles.attempt_next():
            has_tried = True
            if monotonic() >= until:
                break
        return has_tried

    # -- trouble --------------------------------------------------------------------------------------

    def _back_off(self, trouble: events.KafkaTrouble | events.DatabaseTrouble | events.CodecTrouble) -> None:
        """Apply nothing for a while, but let rebalances run; everything is claimed again later."""
        wait = next(self._waits)
        self._announce(replace(trouble, wait=wait))
        self._assignment.suspend()
        brokers = None
        if isinstance(trouble, events.KafkaTrouble):
            brokers = BrokersBack(self._assignment.identity, self._pipeline.topics)
        until = monotonic() + wait
        while not self._stopping.is_set() and (remaining := until - monotonic()) > 0:
            self._assignment.accept_messages(self._assignment.client.read(CHUNK, min(remaining, POLL)))
            if brokers is not None and brokers.is_answered:  # as short a wait as after a first trouble
                brokers, self._waits = None, Backoff().waits()
                until = min(until, monotonic() + next(self._waits))

    def _watch(self, event: events.Event) -> None:
        """Note from events a trouble, to announce its end, and records that wait for their retries."""
        if self._is_open:
            self._retries.note(event)
        if isinstance(event, (*_TROUBLES, events.Recovered)):
            self._trouble = None if isinstance(event, events.Recovered) else event

    def _is_refused(self) -> bool:
        """Whether the database refused a batch whose records are read again: only a COMMIT then ends the trouble."""
        active = self._assignment.active
        return isinstance(self._trouble, events.DatabaseTrouble) and any(
            partition in active and active[partition].claim.next_offset == start
            for partition, start in self._in_hand.items()
        )

    def _recovered(self) -> None:
        """Announce the end of a trouble, once everything is claimed and the brokers answer, even if topics are idle."""
        if monotonic() < self._rejoins_at + SETTLED or self._is_refused():
            return
        if self._trouble is not None and not self._assignment.is_claiming:
            self._assignment.identity.cluster_id()  # raises KafkaUnavailable if brokers still do not answer
            if self._ask_codec is not None:
                self._ask_codec()  # raises CodecUnavailable if there is still no answer; needs no transaction
                self._ask_codec = None
            self._trouble = None
            self._announced_at.clear()
            self._waits = Backoff().waits()
            self._announce(events.Recovered())
