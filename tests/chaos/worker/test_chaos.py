"""A short chaos run in the suite: one fault of each family, and a test of the checks themselves."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
import pytest

from chaos.worker import freezes
from chaos.worker.checks import CHANGED, account, wrong_changes, wrong_sums
from chaos.worker.event_log import EventLog, WorkerEvent
from chaos.worker.report import TRAITS, Report
from chaos.worker.run import INJECT, run
from chaos.worker.schedule import KINDS, deal

SEED = 20240719
SAMPLE = (
    "kill_at_applied",
    "kill_at_random",
    "zombie_before_writing",
    "zombie_in_transaction",
    "commit_cut_before",
    "commit_cut_after",
    "postgres_killed",
    "metadata_emptied",
    "rewind",
    "poison",
    "crashing_record",
)


def test_every_kind_has_its_fault() -> None:
    assert set(INJECT) == set(KINDS)


@pytest.mark.parametrize("rounds", [1, 3, 20, 27, 60])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_schedule_holds_every_kind_and_is_the_same_for_the_same_seed(rounds: int, seed: int) -> None:
    dealt = deal(seed, rounds)
    assert dealt == deal(seed, rounds)
    assert dealt != deal(seed + 1, rounds)
    assert [round_.number for round_ in dealt] == list(range(1, rounds + 1))
    assert {fault.kind for round_ in dealt for fault in round_.faults} == set(KINDS)
    for round_ in dealt:
        needs_async = any(fault.kind.endswith("_async") or fault.step == "Copying" for fault in round_.faults)
        assert not (needs_async and round_.pool.durable)
    for trait in ("sums", "awaits", "changes", "waits", "found", "cloud_events", "firsts", "edits"):
        assert any(getattr(round_.pool, trait) for round_ in dealt) == (rounds > 4)


def test_the_checks_find_lost_repeated_unexpected_and_unordered_rows(seekpoint_dsn: str) -> None:
    dsn = seekpoint_dsn.replace("postgresql+psycopg://", "postgresql://")
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "CREATE TEMP TABLE chaos_results (seq bigserial, topic text, partition int, "
            '"offset" bigint, worker text, key text);'
            "CREATE TEMP VIEW chaos_accounted AS TABLE chaos_results"
        )
        rows = [(0, 5), (0, 6), (0, 8), (0, 6), (1, 0), (1, 2), (1, 1), (1, 9), (2, 0)]
        for partition, offset in rows:
            connection.execute(
                'INSERT INTO chaos_results (topic, partition, "offset", worker) VALUES (%s, %s, %s, %s)',
                ["t", partition, offset, "w"],
            )
        connection.execute(
            "CREATE TEMP TABLE chaos_sums (topic text, name text, records bigint, offsets numeric, lowest bigint, "
            "highest bigint); INSERT INTO chaos_sums VALUES ('t', 'all', 9, 37, 0, 9), ('t', 'p0', 4, 26, 5, 8), "
            "('t', 'p1', 4, 12, 0, 9), ('t', 'p3', 1, 1, 1, 1)"
        )
        result = account(connection, "t", {0: 5, 1: 0}, {0: 9, 1: 3}, [wrong_sums])
        connection.execute("UPDATE chaos_results SET key = partition WHERE partition = 1 OR seq = 4")
        of_keys = account(connection, "t", {0: 5, 1: 0}, {0: 9, 1: 3}, order="key")
        assert account(connection, "t", {0: 5, 1: 0}, {0: 9, 1: 3}, order="none").disorder == []
    assert result.records == 7
    assert result.lost == ["lost: t/0 offset 7"]
    assert result.other == [
        "sums of t p0: 4 records, offsets 26; its rows are 4 with 25",
        "sums of t p2: None records, offsets None; its rows are 1 with 0",
        "sums of t p3: 1 records, offsets 1; its rows are None with None",
    ]
    assert [line.split(": ")[0] for line in result.twice[:1]] == ["2 times"]
    assert [line.split(" by ")[0] for line in result.twice[1:]] == [
        "applied again or never produced: partition 1 offset 9",
        "applied again or never produced: partition 2 offset 0",
    ]
    assert [line.split(" was ")[0] for line in result.disorder] == [
        "out of order: t/0 offset 6",
        "out of order: t/1 offset 1",
    ]
    assert [line.split(" was ")[0] for line in of_keys.disorder] == ["out of order: t/1 offset 1"]


@pytest.mark.parametrize(
    ("high", "rows"),
    [
        (8, {n: n for n in range(8)}),
        (17, {8: 16, **{n: 8 + n for n in range(1, 8)}}),
        (30, {14: 22, 15: 23}),
        (45, {n: (32 if n > 4 else 40) + n for n in range(8)}),
    ],
)
def test_the_checks_find_rows_that_changes_have_not_made(seekpoint_dsn: str, high: int, rows: dict[int, int]) -> None:
    dsn = seekpoint_dsn.replace("postgresql+psycopg://", "postgresql://")
    with psycopg.connect(dsn) as connection:
        connection.execute(
            f"CREATE TEMP TABLE {CHANGED} (p int, id int, v bigint, o bigint);"
            'CREATE TEMP TABLE chaos_accounted (topic text, partition int, "offset" bigint, worker text)'
        )
        for id_, v in rows.items():
            connection.execute(f"INSERT INTO {CHANGED} VALUES (0, %s, %s, %s)", [id_, v, v])
        assert wrong_changes(connection, "t", {0: 0}, {0: high}) == []
        last = high - 1
        connection.execute("INSERT INTO chaos_accounted VALUES ('t', 0, %s, 'dead letter')", [last])
        assert wrong_changes(connection, "t", {0: 0}, {0: high}), "its change should not have been applied"
        connection.execute(f"DELETE FROM chaos_accounted; UPDATE {CHANGED} SET o = -1 WHERE id = {max(rows)}")
        assert len(wrong_changes(connection, "t", {0: 0}, {0: high})) == 1


def test_the_time_in_small_parts_is_from_the_first_owner_to_the_end_of_the_range() -> None:
    log = EventLog()
    with log.changed:
        log.add(WorkerEvent("a", "CrashSuspected", 10.0, {"partition": 1, "crashes": 2, "until": 50}))
        log.add(WorkerEvent("b", "CrashSuspected", 12.0, {"partition": 1, "crashes": 3, "until": 50}))
        log.add(WorkerEvent("b", "CrashSuspected", 12.0, {"partition": 2, "crashes": 2, "until": 9}))
        log.add(WorkerEvent("b", "Committed", 13.0, {"records": 9, "spans": [[1, 0, 40], [2, 0, 9]]}))
        log.add(WorkerEvent("b", "SuspectsLeft", 15.0, {"partition": 1, "left": 0}))
        log.add(WorkerEvent("b", "SuspectsLeft", 16.0, {"partition": 2, "left": 0}))
    assert log.careful_seconds == 5.0 + 1.0


def test_a_run_in_which_a_fault_never_happened_fails(tmp_path: Path) -> None:
    report = Report(SEED, ("kill_at_held", "rewind"), small_transactions=1)
    report.happened("rewind", 0.5)
    assert report.vacuous == ["kill_at_held"]
    passed = [report.passed]
    report.happened("kill_at_held", 1.5)
    passed.append(report.passed)
    report.twice = 1
    passed.append(report.passed)
    assert passed == [False, True, False]
    report.write(tmp_path / "report.json", EventLog())
    written = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert written["faults"] == {"kill_at_held": 1, "rewind": 1}
    assert written["worst_recovery_seconds"] == 1.5
    assert not written["passed"]


def test_a_run_without_a_transaction_of_two_round_trips_fails() -> None:
    report = Report(SEED, ())
    assert report.vacuous == ["a transaction of two round trips"]
    report.small_transactions = 1
    assert report.passed


@pytest.mark.long
def test_a_few_rounds_lose_nothing_and_apply_nothing_twice(tmp_path: Path) -> None:
    print(f"seed {SEED}")
    path = tmp_path / "chaos-report.json"
    report = run(len(SAMPLE), SEED, kinds=SAMPLE, report_path=path)
    assert report.passed, "\n".join(report.failure or report.vacuous)
    written = json.loads(path.read_text(encoding="utf-8"))
    assert (written["lost"], written["twice"]) == (0, 0)
    assert set(written["faults"]) == set(SAMPLE)
    assert all(written["faults"].values())
    assert written["fences"] > 0
    assert written["unknown_commits"] > 0
    assert written["rebalances"] > 0
    assert written["records"] > 0
    assert written["transactions"] > written["small_transactions"] > 0
    assert written["dead_lettered"] > 0
    assert all(written[trait] > 0 for trait in TRAITS)
    assert written["topics_found"] > 0
    assert written["topics_stopped"] > 0
    assert written["edited"] > 0
    assert written["waited"] >= written["retried"] > 0


def test_only_a_classic_group_that_replaced_a_consumer_may_wait_for_the_end_of_a_session() -> None:
    assert freezes.may_wait(["eager 0"], {"eager 1"})
    assert freezes.may_wait(["eager 0", "cooperative 1"], {"eager 0", "cooperative 0"})
    assert not freezes.may_wait(["consumer 0"], {"consumer 1"})
    assert not freezes.may_wait(["eager 0", "consumer 0"], {"eager 0", "consumer 0"})
    assert not freezes.may_wait(["eager 0"], {"cooperative 0"})


@pytest.mark.long
def test_after_a_thaw_of_the_broker_every_worker_commits_again() -> None:
    """`python tests/chaos/worker/freezes.py` freezes thirty times. At most each of six consumers is replaced."""
    assert freezes.run(1, SEED) <= 6
