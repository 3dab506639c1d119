"""The reload demo's result: what it counts, and that it fails where it must."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from demo.cli import app
from demo.flights import read_flights
from demo.reload import show
from demo.reload.handling import VERSIONS, Priced, make_pipeline, name_of, table
from demo.reload.judge import expected
from demo.reload.load import Load, later
from demo.reload.reader import complaint
from demo.reload.report import Reloaded, Report
from demo.worker_pool import DemoFailed
from seekpoint.errors import ConfigError
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.worker.import_by_name import load
from support.command import seekpoint

FLIGHTS = list(read_flights(5))
#: What a reader of the report looks for, in each reload and in the whole.
NAMED = [
    *("strategy", "rows", "torn_reads", "polls", "differences", "lock_seconds", "worker_pause_seconds"),
    "staging_rows_per_second",
]


def reloaded(**changed: Any) -> Reloaded:
    """A reload that went well, but for what is changed."""
    fields: dict[str, Any] = {
        "strategy": "merge",
        "staged_by": "this process",
        "rows": 10,
        "torn_reads": 0,
        "polls": 100,
        "differences_by_verify": 0,
        "differences_by_python": 0,
        "lock_seconds": 0.0123456,
        "tries": 1,
        "records_under_lock": 3,
        "keys_under_lock": 4,
        "worker_pause_seconds": 0.5,
        "kill_pause_seconds": 2.0,
        "kills_in_transaction": 1,
        "staging_rows_per_second": 1_000.0,
        "applied": 7,
        "seconds": 9.0,
    }
    return Reloaded(**(fields | changed))


def report(reloads: Sequence[Reloaded], exit_codes: Sequence[int] = (0, 0), complaints: Sequence[str] = ()) -> Report:
    return Report(
        reloads=reloads,
        records=20,
        rate=5,
        seconds=3.0,
        exit_codes=exit_codes,
        complaints=complaints,
        servers={"broker": "K", "postgres": "P"},
    )


def run_demo(report: Report, folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str, exits: int = 0) -> Any:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(show, "perform", lambda *_, **__: report)
    return seekpoint("demo-reload", *options, command=app, exits=exits)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"torn_reads": 2}, "merge: 2 of 100 reads saw a torn table"),
        ({"polls": 9}, "merge: the table was read only 9 times, which proves nothing"),
        ({"differences_by_verify": 1}, "merge: verify finds 1 rows that differ"),
        ({"differences_by_python": 1}, "merge: 1 rows are not what the records make"),
        ({"kills_in_transaction": 0}, "merge: no worker was killed inside a transaction"),
        ({"applied": 0}, "merge: the workers applied nothing meanwhile"),
    ],
)
def test_the_command_fails_where_a_reload_is_wrong(
    changed: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run_demo(report([reloaded(), reloaded(**changed)]), tmp_path, monkeypatch, exits=1)
    assert result.stderr == f"error: {message}\n"
    assert list(json.loads((tmp_path / "reload-report.json").read_text())["reloads"][1])[:5] == NAMED[:5]


def test_the_command_fails_after_a_torn_read_or_a_bad_exit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run_demo(report([reloaded()], (0, 3), ["two versions"]), tmp_path, monkeypatch, exits=1)
    assert result.stderr == "error: read: two versions\nerror: the workers did not drain: exit codes (0, 3)\n"


def test_the_whole_has_the_names_of_each_reload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worse = reloaded(strategy="swap", rows=12, polls=50, lock_seconds=0.2, staging_rows_per_second=900.0)
    whole = json.loads(run_demo(report([reloaded(), worse]), tmp_path, monkeypatch, "--json").stdout)
    assert whole == json.loads((tmp_path / "reload-report.json").read_text())
    assert {name: whole[name] for name in NAMED} == {
        "strategy": "merge, swap",
        "rows": 12,
        "torn_reads": 0,
        "polls": 150,
        "differences": 0,
        "lock_seconds": 0.2,
        "worker_pause_seconds": 0.5,
        "staging_rows_per_second": 900.0,
    }
    assert all(set(NAMED) < set(reload) for reload in whole["reloads"])
    assert whole["reloads"][0]["lock_seconds"] == 0.0123
    assert "No reader saw two versions" in run_demo(report([reloaded()]), tmp_path, monkeypatch).stdout


def test_spark_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="make demo-reload"), show._spark("local[2]", "url"):
        pass


GOOD = {"rows": 10, "sum": 45, "of_version": 10, "version": 2, "due": 10, "sum_due": 45}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({}, None),
        ({"of_version": 9}, "1 of 10 rows are not of version 2"),
        ({"due": 11, "sum_due": 55}, "10 rows (offsets' sum 45) where the ledger has 11 (55)"),
        ({"sum": 44}, "10 rows (offsets' sum 44) where the ledger has 10 (45)"),
        ({"rows": 8, "sum": 28, "of_version": 8, "due": 8, "sum_due": 28}, "8 rows, fewer than the 9 before"),
    ],
)
def test_a_torn_read_is_reported(changed: dict[str, int], message: str | None) -> None:
    reading: Any = SimpleNamespace(**(GOOD | changed))
    assert complaint(reading, 9) == message


def test_each_version_is_a_pipeline_that_tasks_can_import() -> None:
    for version in VERSIONS:
        pipeline = load(name_of(version))
        assert isinstance(pipeline, Pipeline)
        assert pipeline.version == version
        assert make_pipeline(version).sinks[0].tables == ("flights",)
    assert tuple(table.c.keys()) == Priced.__struct_fields__


def test_the_table_is_computed_from_what_was_sent_before_the_offsets() -> None:
    log = {0: {0: FLIGHTS[3], 1: FLIGHTS[0]}, 1: {0: FLIGHTS[1], 1: FLIGHTS[2]}}
    rows = list(expected(log, {0: 2, 1: 1}, 1))
    assert [(row.id, row.topic_offset) for row in rows] == [(1, 1), (2, 0), (4, 0)]
    assert rows[0].cents == 11 * FLIGHTS[0].distance + 100 * 11  # 11 minutes late
    kilometers = FLIGHTS[0].distance * 1609 // 1000
    assert next(expected(log, {0: 2}, 3)).cents == 11 * kilometers + 1100


def test_a_small_table_gets_fewer_records_a_second() -> None:
    assert [show.rate_of(records) for records in (5_000, 20_000, 336_776)] == [100, 400, 1_000]


def test_the_years_continue() -> None:
    flights = list(islice(later(FLIGHTS), 12))
    assert [flight.id for flight in flights] == list(range(1, 13))
    assert [flight.year for flight in flights] == [2013] * 5 + [2014] * 5 + [2015] * 2
    assert msgspec.structs.replace(flights[6], id=2, year=2013) == FLIGHTS[1]


def test_the_log_waits_for_what_workers_already_have() -> None:
    """A worker may commit a record before its producer has the report: it must not be looked up too soon."""
    load = Load("127.0.0.1:1", FLIGHTS)
    with ThreadPoolExecutor(1) as asked:
        for offset, flight in enumerate(FLIGHTS[:2]):
            load._keep(flight, 3, offset)
        future = asked.submit(load.log_to, {3: 3}, 30)
        load._keep(FLIGHTS[2], 3, 2)
        assert future.result() == {3: dict(enumerate(FLIGHTS[:3]))}
        assert load.log_to({3: 2}, 0)[3][2] == FLIGHTS[2]
        with pytest.raises(DemoFailed, match="waited 0 s for the delivery reports of flights-3, in vain"):
            load.log_to({3: 4}, 0)
