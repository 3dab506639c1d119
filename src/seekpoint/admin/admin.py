"""``Admin``: the actions of operators on one ledger."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Any, overload

from sqlalchemy import URL, Engine

from seekpoint.admin.apply_plan import Plan, apply_plan
from seekpoint.admin.apply_resets import apply_resets
from seekpoint.admin.attribution import Attribution
from seekpoint.admin.doctor import diagnose
from seekpoint.admin.explanation import Explanation, explain
from seekpoint.admin.findings import Diagnosis
from seekpoint.admin.forget import ForgetPlan, ForgetResult, ForgottenGroup, forgotten_groups, plan_forget, plan_undo
from seekpoint.admin.groups import Topics, known_group, within
from seekpoint.admin.history import Action, ActionFilter, history, recent_actions
from seekpoint.admin.import_offsets import ImportPlan, Missing, plan_import
from seekpoint.admin.losses import AcceptPlan, LostRange, lost_ranges, plan_lost, plan_topic
from seekpoint.admin.mirror import MirrorPlan, plan_mirror
from seekpoint.admin.pauses import PausePlan, plan_pause
from seekpoint.admin.plan_resets import plan_reset
from seekpoint.admin.purges import APPLIED, PurgePlan, plan_purge
from seekpoint.admin.record_in_log import RecordInFront, record_in_front
from seekpoint.admin.reloads import ReloadStatus, reloads
from seekpoint.admin.replace import Progress, ReplaceResult, replace_group
from seekpoint.admin.replace_plan import ReplacePlan, plan_replace
from seekpoint.admin.replay_requests import ReplayPlan, ReplayRequest, plan_replay, read_request, request_replay
from seekpoint.admin.reset_plan import ResetPlan, ResetResult
from seekpoint.admin.reset_to import ResetTo
from seekpoint.admin.samples import Sample, samples
from seekpoint.admin.status import GroupStatus, ask_brokers, names_of_all, read
from seekpoint.admin.summaries import GroupSummary, ask_for_lag, summaries
from seekpoint.errors import ConfigError
from seekpoint.ledger import GroupLedger
from seekpoint.ledger.claim import refuse_forgotten
from seekpoint.ledger.roles import Role
from seekpoint.ledger.schema_connection import GroupConnection, SchemaConnection
from seekpoint.ledger.sql import STATUS
from seekpoint.ledger.tables import DEFAULT_SCHEMA
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.pipeline.policy import Limits
from seekpoint.postgres.engine import postgres_engine
from seekpoint.records import Partition, State
from seekpoint.runs.manage_runs import Runs
from seekpoint.worker.replay.group_dead_letters import Chosen, GroupDeadLetters, group_of
from seekpoint.worker.replay.replay import ReplayableDeadLetters

KAFKA_TIMEOUT = 10.0  # seconds


class Admin:
    """Shows groups and acts on them while their workers run; every change is made by applying a plan.

    ``engine`` is a SQLAlchemy ``Engine`` or URL on ``postgresql+psycopg``, ``kafka`` librdkafka's configuration;
    without it, lag is read from the workers' samples. Connects when it is first used. Database errors pass through.
    """

    def __init__(
        self,
        engine: Engine | URL | str,
        kafka: Mapping[str, Any] | None = None,
        *,
        schema: str = DEFAULT_SCHEMA,
        limits: Limits | None = None,
    ) -> None:
        self.engine, self.schema, self.limits = postgres_engine(engine), schema, limits or Limits()
        self.kafka = dict(kafka or {})

    def groups(self) -> tuple[list[GroupSummary], list[str]]:
        """A summary of each group, sorted by name; and a warning if no broker answers, so that lag is from samples."""
        with self.engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
            tx = SchemaConnection(connection, self.schema)
            groups = summaries(tx)
            if not self.kafka:
                return groups, []
            rows, ids = tx.execute(STATUS["lag_of_all"]).all(), tx.execute(STATUS["topic_ids"]).all()
        names = {group.name for group in groups}  # omits groups that were forgotten
        rows, ids = ([row for row in of if row.consumer_group in names] for of in (rows, ids))
        return ask_for_lag(groups, rows, ids, self.kafka, KAFKA_TIMEOUT)

    def forgotten(self) -> list[ForgottenGroup]:
        """The forgotten groups, by name, with who forgot each, when and why."""
        with self.engine.connect() as connection:
            return forgotten_groups(SchemaConnection(connection, self.schema))

    def status(self, names: Collection[str] = ()) -> tuple[list[GroupStatus], list[str]]:
        """The status of these groups, or of all; and a warning for each topic or partition whose log is not known.

        Raises ConfigError for an unknown group, GroupForgotten for one that was forgotten.
        """
        with self.engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
            tx = SchemaConnection(connection, self.schema)
            groups, rows = read(tx, names or names_of_all(tx))
            for unknown in sorted({*names} - {group.name for group in groups}):
                known_group(GroupConnection(connection, self.schema, unknown))  # raises
        return ask_brokers(groups, rows, self.kafka, KAFKA_TIMEOUT) if self.kafka else (groups, [])

    def samples(
        self, group: str, partitions: Collection[Partition], since: timedelta
    ) -> dict[Partition, tuple[Sample, ...]]:
        """The samples of these partitions that workers stored in the last ``since``, oldest first."""
        with self._ledger(group).begin() as tx:
            return samples(tx, partitions, since)

    def reloads(self, *, is_open: bool = False, limit: int = 100) -> list[ReloadStatus]:
        """The runs of reloads, verifications and batches, or only open ones; newest first."""
        with self.engine.connect() as connection:
            return reloads(SchemaConnection(connection, self.schema), is_open, limit)

    def explain(self, group: str) -> Explanation:
        """A group's guarantee in sentences, with its exceptions, from the workers' declarations.

        Raises ConfigError for an unknown group, GroupForgotten for one that was forgotten.
        """
        with self.engine.connect() as connection:
            return explain(GroupConnection(connection, self.schema, group))

    def doctor(self, role: Role | None = None) -> Diagnosis:
        """Check the ledger, its servers and this login; each problem comes with remedies. Writes nothing.

        ``role`` is the role that the login should have (None: any); only a reader's session may be read-only. A missing
        or old ledger is also a finding.
        """
        return diagnose(self.engine, self.schema, self.kafka, KAFKA_TIMEOUT, role)

    def plan_pause(self, group: str) -> PausePlan:
        """A plan to pause a group: workers wait before their next commit. Raises ConfigError for an unknown group."""
        return plan_pause(self._ledger(group), True)

    def plan_resume(self, group: str) -> PausePlan:
        """A plan to let a paused group's workers continue. Raises ConfigError for an unknown group."""
        return plan_pause(self._ledger(group), False)

    def plan_forget(self, group: str, *, export_to: Path | None) -> ForgetPlan:
        """A plan to forget a group that has ended: to delete its positions, dead letters, lost ranges, samples and
        workers.

        ``export_to`` is a file to which dead letters and lost ranges are written first, as JSON lines (None: no file).
        Afterwards the ledger refuses the group's workers (GroupForgotten). Raises ConfigError for an unknown group and
        an existing file, Fenced for a group that is not paused or has an open run.
        """
        return plan_forget(self._ledger(group), export_to)

    def plan_undo_forget(self, group: str) -> ForgetPlan:
        """A plan to restore a forgotten group's positions, paused. Raises ConfigError for an unknown group."""
        return plan_undo(self._ledger(group))

    def plan_replace(self, group: str, *, by: str) -> ReplacePlan:
        """A plan to replace ``group`` with the group ``by``: both groups exchange their tables and positions.

        Raises ConfigError for an unknown group, GroupForgotten for a forgotten one, and Fenced with every reason why
        the group cannot be replaced.
        """
        return plan_replace(self._ledger(group), by)

    def replace_group(
        self,
        plan: ReplacePlan,
        *,
        reason: str,
        actor: str | None = None,
        wait: float = 60.0,
        accept_differences: bool = False,
        progress: Progress | None = None,
    ) -> ReplaceResult:
        """Carry out a plan to replace a group; after a crash, call it again to complete the replacement.

        Waits until the new group has passed the old group's positions; raises NotApplied after ``wait`` seconds. Calls
        ``progress`` with the current step, the offsets done and their total. Pauses the old group for the last records,
        and resumes it if it is not replaced. Raises Fenced if the groups have changed since the plan was made
        or stay locked and, without ``accept_differences``, if their open dead letters, stops or retries differ;
        ConfigError if ``reason`` is blank.
        """
        return replace_group(
            self._ledger(plan.group),
            plan,
            Attribution.of(actor, reason),
            wait=wait,
            accept_differences=accept_differences,
            progress=progress,
        )

    def plan_purge(self, group: str, older_than: timedelta, states: Collection[State] = APPLIED) -> PurgePlan:
        """A plan to delete dead letters that were closed longer ago than ``older_than``; by default only replayed ones.

        ``states`` names other closed states. Raises ConfigError for an unknown group, or an open state in ``states``.
        This method and :meth:`apply` raise Fenced while the group has an open run, because the run needs records that
        were replayed since it started.
        """
        return plan_purge(self._ledger(group), older_than, states)

    def plan_reset(self, group: str, target: ResetTo, topics: Topics | None = None) -> ResetPlan:
        """A plan to reset positions to absolute offsets: all, or those of ``topics`` (to partition numbers; None: all).

        Raises ConfigError for unknown names, a partition without a target, and a target past the end of its log;
        GroupForgotten if the group was forgotten; ClusterChanged if the brokers belong to another cluster; Fenced if a
        topic has another id on the brokers, or if the target is commits that a mirror wrote, or commits of another
        group that has members; KafkaUnavailable if a target depends on brokers that do not answer.
        """
        return plan_reset(self._ledger(group), target, topics, kafka=self.kafka, timeout=KAFKA_TIMEOUT)

    def positions(self, group: str, topics: Topics | None = None) -> dict[Partition, int]:
        """The group's positions: all, or those of ``topics`` (partition numbers by topic; None: all of the topic).

        Raises ConfigError for unknown names, GroupForgotten for a group that was forgotten.
        """
        ledger = self._ledger(group)
        with ledger.begin() as tx:
            refuse_forgotten(known_group(tx))
        return {partition: row.next_offset for partition, row in within(group, ledger.read(), topics).items()}

    def record_in_front(self, group: str, partition: Partition) -> RecordInFront:
        """The record that stopped the partition or is being retried, read from the log; changes nothing.

        Raises ConfigError if there is no such record; RangeLost if the log no longer has it; RangeStuck if the brokers
        do not send it; TopicRecreated if the topic was created again; KafkaUnavailable if no broker answers.
        """
        positions = within(group, self._ledger(group).read(), {partition.topic: [partition.number]})
        return record_in_front(self.kafka, positions[partition])

    def history(
        self,
        group: str,
        topics: Collection[str] | None = None,
        *,
        partition: int | None = None,
        limit: int = 100,
        only: ActionFilter = ActionFilter(),  # noqa: B008 -- immutable
    ) -> list[Action]:
        """The actions on a group and its positions, newest first; or only those on one partition number of ``topics``.

        ``only`` filters them; its ``before_id`` is the last id of the previous page. Raises ConfigError for an unknown
        group, and for a topic without a position or an action.
        """
        with self._ledger(group).begin() as tx:
            known_group(tx)
            return history(tx, topics, partition, limit, only)

    def recent_actions(
        self,
        *,
        limit: int = 100,
        only: ActionFilter = ActionFilter(),  # noqa: B008 -- immutable
    ) -> list[tuple[str, Action]]:
        """The actions on all groups, each with the group's name, newest first; ``only`` as for :meth:`history`."""
        with self.engine.connect() as connection:
            return recent_actions(SchemaConnection(connection, self.schema), limit, only)

    def lost(
        self, groups: Collection[str] = (), *, partition: Partition | None = None, limit: int | None = None
    ) -> list[LostRange]:
        """The lost ranges of these groups, or of all; the oldest decision first.

        ``partition`` selects those of one partition, ``limit`` the newest. Raises ConfigError for an unknown group.
        """
        with self.engine.connect() as connection:
            return lost_ranges(SchemaConnection(connection, self.schema), sorted(groups), partition, limit)

    def plan_accept_lost(
        self, group: str, partition: Partition | str | None = None, *, to_offset: int | None = None
    ) -> AcceptPlan:
        """A plan to give up offsets that the log no longer has: of a partition, a topic or the group. Asks the brokers.

        After a truncation the partition continues at ``to_offset`` (None: where the truncated log ended). Raises Fenced
        if no worker has seen that end, or if the named partition is stopped for another cause; ConfigError for unknown
        names, a named topic that was recreated, and a ``to_offset`` without a partition, outside the log, past the
        position, or for records that retention deleted; GroupForgotten if the group was forgotten; ClusterChanged if
        the brokers belong to another cluster; KafkaUnavailable if they do not answer.
        """
        return plan_lost(self._ledger(group), partition, to_offset, self._brokers(), KAFKA_TIMEOUT)

    def plan_accept_topic(self, group: str, topic: str, *, offset: int | None = None) -> AcceptPlan:
        """A plan to read a recreated topic: from its first offsets, or from ``offset``. Asks the brokers.

        Raises ConfigError for unknown names, and for an offset outside a partition's log; GroupForgotten,
        ClusterChanged and KafkaUnavailable as :meth:`plan_accept_lost` does.
        """
        return plan_topic(self._ledger(group), topic, offset, self._brokers(), KAFKA_TIMEOUT)

    def plan_import(
        self,
        group: str,
        from_group: str | None = None,
        topics: Collection[str] | None = None,
        *,
        from_checkpoint: str | None = None,
        missing: Missing | None = None,
    ) -> ImportPlan:
        """A plan to start these topics, by default all with commits, at another consumer's committed offsets.

        The offsets are those of ``from_group`` in Kafka, or of a Spark query: ``from_checkpoint`` is the folder of its
        checkpoint, or a URL that ``pyarrow.fs`` reads. Partitions without a commit start at ``missing``. Raises Fenced
        if ``from_group`` has members, if a partition has no commit or one that a mirror wrote, or if this group has
        stored offsets of the topic; ConfigError for unknown names, and a folder that is not the checkpoint of a query
        on Kafka; GroupForgotten if this group was forgotten; ClusterChanged if its positions are of another cluster;
        KafkaUnavailable if the brokers do not answer.
        """
        return plan_import(
            self._ledger(group),
            from_group,
            topics,
            from_checkpoint=from_checkpoint,
            missing=missing,
            kafka=self._brokers(),
            timeout=KAFKA_TIMEOUT,
        )

    def plan_mirror(self, group: str) -> MirrorPlan:
        """A plan to commit a stopped group's positions to Kafka, so that a plain consumer can continue at them.

        Raises Fenced if the group has members in Kafka, or if the brokers have another topic; ConfigError for an
        unknown group, GroupForgotten for a forgotten one; ClusterChanged if the brokers belong to another cluster;
        KafkaUnavailable if they do not answer.
        """
        return plan_mirror(self._ledger(group), kafka=self._brokers(), timeout=KAFKA_TIMEOUT)

    @overload
    def apply(
        self, plan: PausePlan | AcceptPlan | ImportPlan | MirrorPlan, *, reason: str, actor: str | None = None
    ) -> None: ...
    @overload
    def apply(self, plan: ForgetPlan, *, reason: str, actor: str | None = None) -> ForgetResult: ...
    @overload
    def apply(self, plan: PurgePlan, *, reason: str, actor: str | None = None) -> dict[str, int]: ...
    @overload
    def apply(
        self,
        plan: ResetPlan,
        *,
        reason: str,
        actor: str | None = None,
        wait: float = 60.0,
        each: bool = False,
        accept_loss: bool = False,
    ) -> ResetResult: ...
    def apply(
        self,
        plan: Plan | ResetPlan,
        *,
        reason: str,
        actor: str | None = None,
        wait: float = 60.0,
        each: bool = False,
        accept_loss: bool = False,
    ) -> ForgetResult | dict[str, int] | ResetResult | None:
        """Carry out a plan; ``actor`` defaults to the operating system's user.

        A pause waits for open batches, at most ``Limits.transaction_age`` seconds. A reset is one transaction, or with
        ``each`` one per partition; it takes its locks within a second, or tries again until ``wait`` seconds have
        passed. It needs ``accept_loss`` if retention has deleted a target. A purge returns how many dead letters it has
        deleted, by state; it keeps those that were opened again since the plan was made. If two operators apply the
        same plan, one succeeds: raises Fenced if the group has changed since the plan was made, or stays locked;
        ConfigError if ``reason`` is blank.
        """
        ledger = self._ledger(plan.group)
        attribution = Attribution.of(actor, reason)
        if isinstance(plan, ResetPlan):
            return apply_resets(ledger, plan, attribution, wait=wait, separately=each, accept_loss=accept_loss)
        return apply_plan(ledger, plan, attribution, self._brokers, KAFKA_TIMEOUT)

    def wait_until_applied(self, group: str, result: ResetResult, timeout: float) -> None:
        """Wait until workers have applied the records that a backward reset makes them read again.

        Raises NotApplied after ``timeout`` seconds, for the first partition that has not caught up.
        """
        ledger, deadline = self._ledger(group), monotonic() + timeout
        for reset in result.done:
            if reset.to_offset < reset.from_offset:
                remaining = max(0.0, deadline - monotonic())
                ledger.wait_until_applied(*reset.partition, reset.from_offset - 1, remaining, topic_id=reset.topic_id)

    def _brokers(self) -> Mapping[str, Any]:
        if not self.kafka:
            raise ConfigError("this needs the brokers: name them, with Admin(kafka=...)")
        return self.kafka

    def plan_replay(self, group: str, chosen: Chosen) -> ReplayPlan:
        """A plan to replay these dead letters with :meth:`request_replay`; its ``ids`` are those that can be replayed.

        Raises ConfigError for an unknown group, and for an id that the group does not have.
        """
        return plan_replay(self._ledger(group), chosen)

    def request_replay(
        self, group: str, chosen: Chosen, *, reason: str, actor: str | None = None, last_request: int | None = None
    ) -> ReplayRequest:
        """Have a running worker of the group replay these dead letters: ids, or a condition that is evaluated now.

        A worker of the group's handler version takes the request within ``Limits.lag_check`` seconds, but not while the
        group is paused. Raises ConfigError if ``reason`` is blank, for an unknown id, and if no dead letter matches;
        Fenced if another replay was requested since the plan with this ``last_request`` was made.
        """
        ledger, attribution = self._ledger(group), Attribution.of(actor, reason)
        with ledger.begin() as tx:
            known_group(tx)
        return request_replay(ledger, chosen, attribution, last_request)

    def replay_request(self, group: str, id: int) -> ReplayRequest:  # noqa: A002 -- the column's name
        """The current state of a replay request. Raises ConfigError if the group has no request with this id."""
        return read_request(self._ledger(group), id)

    @property
    def runs(self) -> Runs:
        """The runs of reloads, verifications and batches: abort one, take one over, drop remaining tables."""
        return Runs(self.engine, self.schema, self.limits)

    @overload
    def dead_letters(self, group: str, *, actor: str | None = None) -> GroupDeadLetters: ...
    @overload
    def dead_letters(
        self, group: Pipeline, *, actor: str | None = None, while_paused: bool = False
    ) -> ReplayableDeadLetters: ...
    def dead_letters(
        self, group: str | Pipeline, *, actor: str | None = None, while_paused: bool = False
    ) -> GroupDeadLetters:
        """A group's dead letters, with this object's limits; a replay needs the group's pipeline.

        ``actor`` is who makes changes (by default the operating system's user). ``while_paused`` says that you paused
        the group: dead letters are replayed during the pause. Raises ConfigError for the name of an unknown group.
        """
        if not isinstance(group, str):
            return ReplayableDeadLetters(
                group, self.engine, schema=self.schema, actor=actor, limits=self.limits, while_paused=while_paused
            )
        with self._ledger(group).begin() as tx:
            known_group(tx)
        return GroupDeadLetters(self.engine, group, schema=self.schema, actor=actor, limits=self.limits)

    def group_of_dead_letter(self, id: int) -> str:  # noqa: A002 -- the column's name
        """The group of a dead letter. Raises ConfigError if there is no dead letter with that id."""
        return group_of(self.engine, id, schema=self.schema)

    def _ledger(self, group: str) -> GroupLedger:
        return GroupLedger(self.engine, group, schema=self.schema, limits=self.limits)
