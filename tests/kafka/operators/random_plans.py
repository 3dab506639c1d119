"""Random plans of resets on a running group, with what may happen to them: each is applied once, or not at all."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from time import monotonic

import psycopg
from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from seekpoint.admin import Admin, ResetPlan, ResetTo
from seekpoint.errors import ConfigError, Fenced
from seekpoint.events import Revoked
from seekpoint.records import Partition
from support.events import Run
from support.operators_account import OperatorsAccount
from support.postgres_proxy import PostgresProxy, When
from support.waiting import until
from support.worker_group import WorkerGroup

BREAKS: list[When] = ["before_commit", "after_commit", "after_commit_delayed", "at_statement"]


@dataclass
class RandomPlans:
    """Draws plans for the group of ``worker_group`` and applies them, one after another.

    ``start`` starts a worker; ``workers`` are those that run. ``committed`` is a group with commits in Kafka.
    """

    worker_group: WorkerGroup
    topic: str
    proxy: PostgresProxy
    account: OperatorsAccount
    chance: random.Random
    committed: str
    start: Callable[[], Run]
    workers: list[Run]
    began: datetime = field(default_factory=lambda: datetime.now(UTC))

    def __post_init__(self) -> None:
        self._kafka = {"bootstrap.servers": self.worker_group.broker}
        self.admin = Admin(self.worker_group.engine, self._kafka, schema=self.worker_group.schema)

    def run(self, count: int) -> None:
        """Make so many plans and apply them."""
        through = create_engine(self.proxy.dsn, poolclass=NullPool)
        breaking = Admin(through, self._kafka, schema=self.worker_group.schema)
        try:
            for number in range(count):
                self._one(f"plan {number}", breaking)
        finally:
            through.dispose()

    def _one(self, reason: str, breaking: Admin) -> None:
        self.account.plans += 1
        try:
            topics = self.chance.choice([None, {self.topic: [0, 2]}, {self.topic: [1]}])
            plan = self.admin.plan_reset(self.worker_group.group, self._target(), topics)
        except ConfigError:  # a shift past the end of a log
            self.account.refused += 1
            return
        if plan.is_done:
            self.account.unchanged += 1
            return
        epochs, settled = self._epochs(), self._settled()
        happens = self.chance.choices(
            [self._apply, self._apply_by_two, self._apply_broken, self._apply_while_rebalanced, self._apply_paused],
            weights=[12, 2, 3, 1, 1],
        )[0]
        happens(plan, reason, breaking)
        if not (moved := self._moved(reason)):
            self.account.refused += 1
            return
        assert moved <= {reset.topic_partition for reset in plan.moves}
        self.account.applied += 1
        if settled is not None and happens in {self._apply, self._apply_by_two}:
            self._measure({partition: epochs[partition] + 2 for partition in moved}, settled)

    def _target(self) -> ResetTo:
        """Mostly near the position; now and then all is read again."""
        chance = self.chance
        if chance.random() < 0.85:
            return chance.choice([
                ResetTo.shift(chance.randrange(-80, 80)),
                ResetTo.shift(chance.randrange(-80, 0)),
                ResetTo.latest(),
                ResetTo.current(),
                ResetTo.duration(timedelta(seconds=chance.randrange(3))),
            ])  # fmt: skip
        return chance.choice([
            ResetTo.offset(chance.randrange(50)),
            ResetTo.earliest(),
            ResetTo.time(self.began),
            ResetTo.processed(datetime.now(UTC)),
            ResetTo.kafka(self.committed),
            ResetTo.offsets({Partition(self.topic, n): chance.randrange(50) for n in range(3)}),
        ])  # fmt: skip

    # -- what happens to a plan -----------------------------------------------------------------------------------

    def _apply(self, plan: ResetPlan, reason: str, _: Admin) -> None:
        with suppress(Fenced):  # a worker has passed the target
            self.admin.apply(plan, reason=reason, actor="ada", each=self.chance.random() < 0.3)

    def _apply_by_two(self, plan: ResetPlan, reason: str, _: Admin) -> None:
        """Two operators at once: one wins at the most."""
        with ThreadPoolExecutor(2) as pool:
            both = [pool.submit(self.admin.apply, plan, reason=reason, actor=actor) for actor in ("ada", "bob")]
        errors = [future.exception() for future in both]
        assert all(error is None or isinstance(error, Fenced) for error in errors), errors
        assert errors.count(None) <= 1
        assert len(self._actions(reason)) == len(self._moved(reason)), "each partition once"

    def _apply_broken(self, plan: ResetPlan, reason: str, breaking: Admin) -> None:
        """The connection breaks; the operator applies the plan again."""
        when = self.chance.choice(BREAKS)
        self.proxy.arm(when, skip=self.chance.randrange(20) if when == "at_statement" else 0)
        try:
            breaking.apply(plan, reason=reason, actor="ada")
        except Fenced:
            pass
        except (OperationalError, psycopg.OperationalError):
            self.account.broken += 1
            self.proxy.wait_until_fired()
            if when == "after_commit_delayed":
                self.proxy.deliver()
        with suppress(Fenced):
            self.admin.apply(plan, reason=reason, actor="ada")
        assert len(self._actions(reason)) == len(self._moved(reason)), "each partition once"

    def _apply_while_rebalanced(self, plan: ResetPlan, reason: str, _: Admin) -> None:
        """A worker leaves and another joins while the plan is applied."""
        self.account.rebalanced += 1
        leaving = self.workers.pop(self.chance.randrange(len(self.workers)))
        with ThreadPoolExecutor(1) as pool:
            left = pool.submit(leaving.stop)
            self._apply(plan, reason, self.admin)
            left.result(60)
        self.workers.append(self.start())

    def _apply_paused(self, plan: ResetPlan, reason: str, _: Admin) -> None:
        """The group is paused meanwhile."""
        self.admin.apply(self.admin.plan_pause(self.worker_group.group), reason=reason, actor="ada")
        self._apply(plan, reason, self.admin)
        self.admin.apply(self.admin.plan_resume(self.worker_group.group), reason=reason, actor="ada")

    # -- what became of it ----------------------------------------------------------------------------------------

    def _actions(self, reason: str) -> list[Partition]:
        rows = self.worker_group.sql(
            f"SELECT topic, partition FROM {{schema}}.admin_action WHERE action = 'reset' AND reason = '{reason}'"
        )
        return [Partition(row.topic, row.partition) for row in rows]

    def _moved(self, reason: str) -> set[Partition]:
        return set(self._actions(reason))

    def _epochs(self) -> dict[Partition, int]:
        of_group = f"WHERE consumer_group = '{self.worker_group.group}'"
        rows = self.worker_group.sql(f"SELECT topic, partition, epoch FROM {{schema}}.partition_offset {of_group}")
        return {Partition(row.topic, row.partition): row.epoch for row in rows}

    def _settled(self) -> list[int] | None:
        """A mark in each worker's events, if each partition has one worker that reads it."""
        read = sorted(position.number for worker in self.workers for position in worker.health().positions)
        return [worker.seen.mark() for worker in self.workers] if read == [0, 1, 2] else None

    def _measure(self, claimed: dict[Partition, int], settled: list[int]) -> None:
        """Until the workers have claimed again what was reset: the reset raised the epoch, and so do their claims."""
        began = monotonic()
        until(
            lambda: all(epoch >= claimed.get(partition, epoch) for partition, epoch in self._epochs().items()),
            "a worker that claims what was reset",
        )
        seconds = monotonic() - began
        if not any(worker.seen.all(Revoked, mark) for worker, mark in zip(self.workers, settled, strict=True)):
            self.account.obeyed.append(seconds)
