"""Records that end the process: dead-lettered after so many crashes; the records beside them are applied once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import pytest
from psycopg import OperationalError
from sqlalchemy import Connection

from seekpoint import Batch, Limits, Partition, Retry, events
from seekpoint.errors import Fenced
from seekpoint.ledger import GroupLedger
from support.crashing_handlers import CrashingHandler
from support.events import Gate
from support.worker_group import PROTOCOLS, WorkerGroup
from support.worker_process import WorkerProcess

pytestmark = pytest.mark.pins("batch")  # A suspect range is as long as the batch that a crash ended.

Protocol = Mapping[str, Any]
COOPERATIVE = PROTOCOLS["cooperative"]


class RestartedWorker:
    """A worker of a fixed list, started again whenever its process has ended; ``processes`` are all that there were."""

    def __init__(self, worker_group: WorkerGroup, name: str, partitions: int = 1, **what: Any) -> None:
        options = {"handle": "crashing", "on_poison": "dead_letter", "retry": {"crashes": 2}, **what}
        self._worker_group, self._name = worker_group, name
        self._given = {**options, "partitions": [(name, n) for n in range(partitions)]}
        self.processes: list[WorkerProcess] = []

    def until(self, there: Callable[[], bool], most: int) -> list[int]:
        """The exit codes of those that ended before this was so; at most so many may."""
        codes: list[int] = []
        while True:
            self.processes.append(process := self._worker_group.worker_process(self._name, **self._given))
            self._worker_group.wait(lambda process=process: there() or not process.is_alive, 60)  # type: ignore[misc]
            if process.is_alive:
                process.close()
                return codes
            codes.append(process.ended())
            assert len(codes) <= most, (
                f"ended too often: {codes}, {dead(self._worker_group)}, {self._worker_group.ledger.read()}"
            )

    def all(self, event: str) -> list[Mapping[str, Any]]:
        """The events of this kind, of all processes."""
        return [seen for process in self.processes for seen in process.all(event)]


def dead(worker_group: WorkerGroup) -> list[tuple[Any, ...]]:
    """Partition, offset, state and cause of each dead letter."""
    return worker_group.dead_letters("state", "cause")


def at_end(worker_group: WorkerGroup, stored: list[tuple[int, int]], name: str) -> Callable[[], bool]:
    wanted = {Partition(name, p): max(o for q, o in stored if q == p) + 1 for p, _ in stored}
    return lambda: wanted.items() <= worker_group.positions().items()


def kill_twice(worker_group: WorkerGroup, name: str, number: int = 0) -> None:
    """Two owners of the partition are killed in the middle of their first batch, for no fault of a record."""
    for _ in range(2):
        worker_group.killed_process(name, partitions=[(name, number)], stop_at=("Applied", 1))


@pytest.mark.repeats("how", "code")
@pytest.mark.parametrize(("how", "code"), [("exit", 3), ("sigkill", -9), ("segfault", -11)])
def test_a_crashing_record_is_dead_lettered_and_the_others_are_applied_once(
    worker_group: WorkerGroup, how: str, code: int
) -> None:
    name, stored = worker_group.log(["ok"] * 30 + [how] + ["ok"] * 30)
    deaths = RestartedWorker(worker_group, name).until(at_end(worker_group, stored, name), 4)
    assert deaths == [code] * 4, "two until it was suspected, and two alone"
    assert dead(worker_group) == [(0, 30, "dead_lettered", "crashed")]
    worker_group.record_table.assert_holds(name, stored[:30] + stored[31:])


@pytest.mark.long
def test_a_crashing_record_at_the_head_and_one_next_to_it(worker_group: WorkerGroup) -> None:
    name, stored = worker_group.log(["exit", "exit", "ok", "ok", "exit", "ok"])
    deaths = RestartedWorker(worker_group, name).until(at_end(worker_group, stored, name), 12)
    assert dead(worker_group) == [(0, offset, "dead_lettered", "crashed") for offset in (0, 1, 4)]
    assert len(deaths) == 3 * (2 + 2), "each time two until the partition is suspected: one that is found ends that"
    worker_group.record_table.assert_holds(name, [stored[2], stored[3], stored[5]])


@pytest.mark.long
def test_an_idle_partition_and_a_busy_one_beside_a_crashing_record_lose_nothing(worker_group: WorkerGroup) -> None:
    name = worker_group.topic(3)
    stored = worker_group.produce(name, ["ok"] * 5 + ["exit"] + ["ok"] * 5, partition=0)
    stored += worker_group.produce(name, ["ok"] * 40, partition=1)
    restarted_worker = RestartedWorker(worker_group, name, 3, limits={"lag_check": 0.2})
    restarted_worker.until(at_end(worker_group, stored, name), 4)
    assert dead(worker_group) == [(0, 5, "dead_lettered", "crashed")]
    worker_group.record_table.assert_holds(name, [place for place in stored if place != (0, 5)])
    assert 2 not in {event["partition"] for event in restarted_worker.all("CrashSuspected")}, (
        "nothing was there to kill anybody"
    )


@pytest.mark.long
def test_a_crashing_record_in_a_group_of_two(worker_group: WorkerGroup) -> None:
    worker_group.expire_sessions_after()
    name = worker_group.topic(4)
    stored = [place for n in range(4) for place in worker_group.produce(name, ["ok"] * 20, partition=n)]
    crashing = worker_group.produce(name, ["exit"], partition=2)
    stored += worker_group.produce(name, ["ok"] * 20, partition=2)

    def start() -> WorkerProcess:
        return worker_group.worker_process(
            name, handle="crashing", on_poison="dead_letter", retry={"crashes": 2}, kafka=COOPERATIVE
        )

    processes = [start(), start()]
    there, died = at_end(worker_group, stored, name), 0
    while not there():
        worker_group.wait(lambda: there() or not all(m.is_alive for m in processes), 60)
        for number, process in enumerate(processes):
            if not process.is_alive:
                died += 1
                assert died <= 8, f"{worker_group.dead_letters('state', 'cause')}, {worker_group.ledger.read()}"
                process.ended()
                processes[number] = start()
    assert dead(worker_group) == [(2, crashing[0][1], "dead_lettered", "crashed")]
    worker_group.record_table.assert_holds(name, stored)


def test_under_stop_the_partition_stops_before_the_crashing_record_and_the_worker_lives(
    worker_group: WorkerGroup,
) -> None:
    name = worker_group.topic(2)
    stored = worker_group.produce(name, ["ok", "exit", "ok"], partition=0)
    other = worker_group.produce(name, ["ok"] * 5, partition=1)
    restarted_worker, beside = (
        RestartedWorker(worker_group, name, 2, on_poison="stop"),
        at_end(worker_group, other, name),
    )
    deaths = restarted_worker.until(lambda: bool(restarted_worker.all("PartitionStopped")) and beside(), 4)
    assert len(deaths) == 4
    assert worker_group.positions()[Partition(name, 0)] == 1
    worker_group.record_table.assert_holds(name, [stored[0], *other])
    # The handler is corrected, and the worker started again: the record is tried once more.
    run = worker_group.worker(worker_group.pipeline(name, on_poison="stop"), partitions=[(name, 0), (name, 1)])
    run.finish(name, 3)
    worker_group.record_table.assert_holds(name, [*stored, *other])


def test_suspected_records_that_are_innocent_are_applied_once_and_suspicion_ends(worker_group: WorkerGroup) -> None:
    name, stored = worker_group.log(20)
    kill_twice(worker_group, name)
    run = worker_group.worker(name, partitions=[(name, 0)], limits=Limits(batch_records=10))
    suspicious = run.seen.wait_for(events.CrashSuspected)
    assert (suspicious.partition, suspicious.crashes, suspicious.until) == (Partition(name, 0), 2, 10)
    run.reached(name, 20)
    stored += worker_group.produce(name, 5)
    run.finish(name, 25)
    assert [e.offset for e in run.seen.all(events.SingleRecordAttempt)] == list(range(10))
    worker_group.record_table.assert_holds(name, stored)
    assert not dead(worker_group)


# -- what is no crash ---------------------------------------------------------------------------------------


def wait_for_a_try(worker_group: WorkerGroup, name: str, gate: Gate) -> Any:
    """A worker in the second attempt at the record at offset 1, held by the gate."""
    crashing_handler = CrashingHandler(worker_group.record_table)
    pipeline = worker_group.pipeline(
        name, handle=crashing_handler, retry=Retry(attempts=3, wait_initial=0.1, crashes=1), on_poison="dead_letter"
    )
    run = worker_group.worker(pipeline, observe=[crashing_handler.watch, gate], limits=Limits(idle_check=0.3))
    gate.wait()
    return run


def test_a_stop_in_the_middle_of_an_attempt_is_no_crash(worker_group: WorkerGroup) -> None:
    name, stored = worker_group.log(["ok", "fail 1", "ok"])
    gate = Gate(events.SingleRecordAttempt)
    run = wait_for_a_try(worker_group, name, gate)
    run.worker.stop()
    gate.open()
    run.stop()
    row = worker_group.ledger.read()[0]
    assert (row.attempt_crashes, row.unreleased_claims) == (0, 0)
    again = worker_group.worker(worker_group.pipeline(name, retry=Retry(crashes=1)))
    worker_group.finish(again, name, stored)
    worker_group.record_table.assert_holds(name, stored)
    assert not dead(worker_group)


def test_an_error_of_the_database_in_the_middle_of_an_attempt_is_no_crash(worker_group: WorkerGroup) -> None:
    name, stored = worker_group.log(["ok", "fail 1", "ok"])
    tried = Gate(events.SingleRecordAttempt)
    run = wait_for_a_try(worker_group, name, tried)
    ours = f"strpos(application_name, '{worker_group.group[:40]}') > 0 AND pid <> pg_backend_pid()"
    worker_group.sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {ours}")
    tried.open()
    run.finish(name, 3)
    worker_group.record_table.assert_holds(name, stored)
    assert not dead(worker_group)


@pytest.mark.long
def test_a_worker_that_backs_off_was_not_killed_though_another_takes_over_meanwhile(worker_group: WorkerGroup) -> None:
    name, stored = worker_group.log(3)
    tries: list[list[int]] = []

    def handle(tx: Connection, batch: Batch[str, Any]) -> None:
        tries.append([r.offset for r in batch])
        if 1 in tries[-1]:
            raise OSError("away") if tries.count([1]) <= 1 else OperationalError("server closed the connection")
        worker_group.record_table.enter(tx, batch)

    pipeline = worker_group.pipeline(
        name, handle=handle, on_poison="dead_letter", retry=Retry(attempts=99, wait_initial=0.1)
    )
    for _ in range(4):
        run = worker_group.worker(pipeline, partitions=[(name, 0)])
        run.seen.wait_for(events.DatabaseTrouble, lambda e: e.wait)  # alive, and its attempt has ended
        successor = worker_group.worker(pipeline, partitions=[(name, 0)])
        successor.seen.wait_for(events.Activated)
        for worker in (run, successor):
            with suppress(Fenced):  # the newest claim wins, and each claims again after its trouble
                worker.stop()
    assert not dead(worker_group), f"tried {len(tries)} times of 99 and convicted"
    assert worker_group.positions() == {Partition(name, 0): stored[1][1]}


def test_a_move_in_the_middle_of_a_try_is_obeyed(worker_group: WorkerGroup) -> None:
    name, stored = worker_group.log(["ok", "fail 1", "ok"])
    gate = Gate(events.RetryScheduled)
    run = wait_for_a_try(worker_group, name, gate)
    worker_group.ledger.reset_offset(name, 0, 2, log=None, reason="not this one", lost="poison")
    gate.open()
    run.finish(name, 3)
    worker_group.record_table.assert_holds(name, [stored[0], stored[2]])
    assert not dead(worker_group)


@pytest.mark.long("another course of the search")
def test_neither_a_suspected_partition_nor_a_busy_one_starves_the_other(worker_group: WorkerGroup) -> None:
    name = worker_group.topic(2)
    stored = worker_group.produce(name, 400, partition=0)
    kill_twice(worker_group, name)
    busy = worker_group.produce(name, 30_000, partition=1)
    run = worker_group.worker(name, partitions=[(name, 0), (name, 1)], limits=Limits(batch_records=1000))
    worker_group.finish(run, name, [*stored, *busy], 60)
    batches = [e for e in run.seen.all(events.Committed) if any(s.partition.number == 1 for s in e.spans)]
    tries = run.seen.all(events.SuspectPartAttempt)
    assert 100 <= len(tries) <= 110
    during = [e for e in tries if batches[0].at < e.at < batches[-1].at]
    assert len(during) >= len(batches) - 1, "one at least between two batches"
    spent = sum(b.seconds for b in batches)
    assert batches[-1].at - batches[0].at < 4 * spent + 2, "and not for much longer than a batch takes"
    worker_group.record_table.assert_holds(name, [*stored, *busy])


# -- how much is tried carefully, and for how long ----------------------------------------------------------


@pytest.mark.long
def test_two_kills_at_the_start_cost_a_hundred_transactions(worker_group: WorkerGroup) -> None:
    """Counted, not timed: a range of 1,000 is tried in parts of 10, and what comes after it in whole batches."""
    name, stored = worker_group.log(6000)
    kill_twice(worker_group, name)
    run = worker_group.worker(name, partitions=[(name, 0)], limits=Limits(batch_records=1000))
    worker_group.finish(run, name, stored)
    suspicious = run.seen.wait_for(events.CrashSuspected)
    assert (suspicious.crashes, suspicious.until) == (2, 1000)
    parts = run.seen.all(events.SuspectPartAttempt)
    assert 100 <= len(parts) <= 105, "one may be cut short where the client has not read on yet"
    assert not run.seen.all(events.SingleRecordAttempt)
    left = [e.left for e in run.seen.all(events.SuspectsLeft)]
    assert (left[0], left[-1]) == (1000, 0)
    assert left == sorted(left, reverse=True)
    assert len(run.seen.all(events.Committed)) <= len(parts) + 20
    worker_group.record_table.assert_holds(name, stored)
    assert not dead(worker_group)


@pytest.mark.long
def test_one_crashing_record_costs_five_crashes_without_progress_and_at_most_two_hundred_transactions(
    worker_group: WorkerGroup,
) -> None:
    """Two until it is suspected, one in its part, two alone; what comes after it goes in whole batches again.

    Before them up to three workers crash that commit what is before it: their batches begin with 500 records.
    """
    name, stored = worker_group.log(["ok"] * 2555 + ["exit"] + ["ok"] * 2444)
    restarted_worker = RestartedWorker(worker_group, name, limits={"batch_records": 2000})
    codes = restarted_worker.until(at_end(worker_group, stored, name), 8)
    assert len(codes) >= 5
    assert set(codes) == {3}
    assert dead(worker_group) == [(0, 2555, "dead_lettered", "crashed")]
    parts, alone = len(restarted_worker.all("SuspectPartAttempt")), len(restarted_worker.all("SingleRecordAttempt"))
    assert parts + alone <= 200, (parts, alone)
    (until,) = {e["until"] for e in restarted_worker.all("CrashSuspected")}  # drawn once
    assert 2555 < until <= 4555
    assert restarted_worker.all("SuspectsLeft")[-1]["left"] == 0
    assert worker_group.ledger.read()[0].suspect_end is None
    worker_group.record_table.assert_holds(name, [place for place in stored if place != (0, 2555)])


@pytest.mark.long("another course of the search")
def test_kills_within_a_suspect_range_neither_redraw_nor_extend_it(worker_group: WorkerGroup) -> None:
    """Killed in a part, before one, between two, at a record alone: each continues where the one before it was."""
    name, stored = worker_group.log(3000)
    kill_twice(worker_group, name)
    processes = []
    for stop_at in [
        ("CrashSuspected", 1), ("SuspectPartAttempt", 1), ("SingleRecordAttempt", 4), ("Committed", 9),
        ("SuspectsLeft", 12), ("Applied", 3),
    ]:  # fmt: skip
        process = worker_group.killed_process(
            name, partitions=[(name, 0)], stop_at=stop_at, limits={"batch_records": 2000}
        )
        processes.append(process)
    run = worker_group.worker(name, partitions=[(name, 0)], limits=Limits(batch_records=2000))
    worker_group.finish(run, name, stored)
    assert {e["until"] for process in processes for e in process.all("CrashSuspected")} == {2000}
    assert run.seen.wait_for(events.CrashSuspected).until == 2000
    assert processes[2].all("SingleRecordAttempt"), "a part that has seen a crash goes record by record"

    def attempts(kind: type[events.Event]) -> int:
        return sum(len(process.all(kind.__name__)) for process in processes) + len(run.seen.all(kind))

    assert attempts(events.SuspectPartAttempt) <= 115
    assert attempts(events.SingleRecordAttempt) <= 5 * 21
    worker_group.record_table.assert_holds(name, stored)
    assert not dead(worker_group)


@pytest.mark.long("another course of the search")
def test_a_refused_claim_leaves_other_suspect_ranges_alone(
    worker_group: WorkerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two suspected partitions; one is moved right after the claim, before the suspect ranges are on record."""
    name, claim, claims = worker_group.topic(2), GroupLedger.claim, list[Any]()
    stored = worker_group.produce(name, 400) + worker_group.produce(name, 400, partition=1)
    for number in range(2):
        kill_twice(worker_group, name, number)

    def claim_and_move(self: GroupLedger, *args: Any, **options: Any) -> Any:
        claims.append(claimed := claim(self, *args, **options))
        if len(claims) == 1:
            worker_group.ledger.reset_offset(name, 0, 0, log=None, reason="a move right after the claim")
        return claimed

    monkeypatch.setattr(GroupLedger, "claim", claim_and_move)
    gate = Gate(events.SuspectsLeft)
    run = worker_group.worker(name, partitions=[(name, 0), (name, 1)], observe=[gate])
    gate.wait()
    assert {row.partition.number: row.suspect_end for row in worker_group.ledger.read()} == {0: None, 1: 400}
    gate.open()
    worker_group.finish(run, name, stored)
    assert {e.partition.number for e in run.seen.all(events.CrashSuspected)} == {1}
    worker_group.record_table.assert_holds(name, stored)


@pytest.mark.long
def test_a_part_that_has_seen_a_crash_goes_record_by_record_also_after_a_refusal_in_its_middle(
    worker_group: WorkerGroup,
) -> None:
    """The database is set back by a failover while a record is tried: the rest is not tried in large parts."""
    name, stored = worker_group.log(3000)
    kill_twice(worker_group, name)
    limits = {"batch_records": 2000}
    worker_group.killed_process(name, partitions=[(name, 0)], stop_at=("SuspectPartAttempt", 1), limits=limits)
    gate = Gate(events.SingleRecordAttempt, lambda e: e.offset == 10)
    run = worker_group.worker(name, partitions=[(name, 0)], limits=Limits(**limits), observe=[gate])
    gate.wait()
    worker_group.sql(
        'DELETE FROM {schema}.book WHERE "offset" >= 5',
        "UPDATE {schema}.partition_offset SET next_offset = 5",
        "UPDATE {schema}.partition_trouble SET attempt_offset = NULL, attempts = 0, attempt_running = false, "
        "attempt_error = NULL",
    )
    gate.open()
    worker_group.finish(run, name, stored)
    assert [e.offset for e in run.seen.all(events.SingleRecordAttempt)] == [*range(11), *range(5, 20)]
    assert run.seen.all(events.SuspectPartAttempt)[0].start == 20
    worker_group.record_table.assert_holds(name, stored)


def test_a_graceful_stop_in_a_suspect_range_is_no_crash_in_its_part(worker_group: WorkerGroup) -> None:
    name, gate = worker_group.topic(), Gate(events.SuspectsLeft, lambda e: e.left == 900)
    stored = worker_group.produce(name, 2000)
    kill_twice(worker_group, name)
    limits = Limits(batch_records=1000)
    run = worker_group.worker(name, partitions=[(name, 0)], limits=limits, observe=[gate])
    gate.wait()
    assert worker_group.ledger.read()[0].suspect_end == 1000
    run.worker.stop()
    gate.open()
    run.stop()
    again = worker_group.worker(name, partitions=[(name, 0)], limits=limits)
    first = again.seen.wait_for(events.CrashSuspected)
    assert first.until == 1000
    worker_group.finish(again, name, stored)
    assert not again.seen.all(events.SingleRecordAttempt)
    worker_group.record_table.assert_holds(name, stored)


def test_health_says_how_many_suspects_are_left(worker_group: WorkerGroup) -> None:
    name, gate = worker_group.topic(), Gate(events.SuspectPartAttempt, lambda e: e.start >= 500)
    stored = worker_group.produce(name, 2000)
    kill_twice(worker_group, name)
    run = worker_group.worker(name, partitions=[(name, 0)], limits=Limits(batch_records=1000), observe=[gate])
    gate.wait()
    left = 1000 - worker_group.positions()[Partition(name, 0)]
    assert run.health().suspects == {Partition(name, 0): left}
    gate.open()
    worker_group.finish(run, name, stored)
    assert run.health().suspects == {}
