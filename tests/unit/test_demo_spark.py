"""The demo of DataFrames: its sums by hand, what its report counts, and that it fails where it must."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from demo.cli import app
from demo.flights import Flight, read_flights
from demo.report import Comparison
from demo.spark import show
from demo.spark.handling import NAME, pipeline, sums
from demo.spark.report import Outcome, Report
from demo.spark.show import read_airlines
from demo.spark.sums import expected
from seekpoint.jobs.frames.declarations import load_spark_pipeline
from support.command import seekpoint

FLIGHTS = list(read_flights(3))


def report(*, sums: tuple[int, int] = (7, 0), exit_code: int = 0, **changed: Any) -> Report:
    """A report of a demo that went well, but for what is changed."""
    fields: dict[str, Any] = {
        "drivers": 4,
        "kills": 2,
        "kills_while_staging": 1,
        "kills_in_transaction": 1,
        "task_processes_killed": 5,
        "fenced": 1,
    }
    compared = {name: changed.pop(name) for name in ("lost", "twice", "strange") if name in changed}
    return Report(
        comparison=Comparison(records_in=10, rows_out=10, transactions=4, **compared),
        sums=sums,
        outcome=Outcome(**(fields | changed)),
        seconds=2.0,
        exit_code=exit_code,
        servers={"broker": "K", "postgres": "P", "spark": "S"},
    )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"lost": 1}, "1 records are lost"),
        ({"twice": 2}, "2 rows are there twice"),
        ({"strange": 1}, "1 rows are not what was sent"),
        ({"sums": (7, 1)}, "1 rows of sums are not what the records add up to"),
        ({"sums": (0, 0)}, "there are no sums, which proves nothing"),
        ({"kills_while_staging": 0}, "no driver was killed while tasks staged"),
        ({"kills_in_transaction": 0}, "no driver was killed in an open transaction that had written rows"),
        ({"task_processes_killed": 0}, "no process of a task was killed"),
        ({"fenced": 0}, "two drivers ran at once, and none was fenced"),
        ({"files_left": 1}, "1 folders of killed drivers are left: a driver may have read their files"),
        ({"exit_code": 3}, "the last driver did not end after its micro-batch: exit code 3"),
    ],
)
def test_the_command_fails_where_something_is_wrong(
    changed: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(show, "perform", lambda *_, **__: report(**changed))
    result = seekpoint("demo-spark", command=app, exits=1)
    assert result.stderr == f"error: {message}\n"


def test_the_command_writes_what_it_has_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(show, "perform", lambda *_, **__: report())
    printed = json.loads(seekpoint("demo-spark", "--json", command=app).stdout)
    assert printed == json.loads((tmp_path / "spark-report.json").read_text())
    assert (printed["lost"], printed["twice"], printed["sums"], printed["sums_that_differ"]) == (0, 0, 7, 0)
    output = " ".join(seekpoint("demo-spark", command=app).stdout.split())
    assert "Both tables equal the file, row by row" in output
    assert "checkpoint none: each driver began in an empty folder" in output


def test_sums_are_those_of_a_loop_by_hand() -> None:
    first, second, third = FLIGHTS
    later = msgspec.structs.replace(second, carrier=first.carrier, arr_delay=None)
    early = msgspec.structs.replace(third, carrier=first.carrier, arr_delay=-7, distance=5)
    unknown = msgspec.structs.replace(first, carrier="??")
    sums = expected([first, later, early, unknown], read_airlines())
    assert sums == {
        ("United Air Lines Inc.", 1): (
            3,
            first.distance + later.distance + 5,
            first.arr_delay,  # 11 minutes; who comes too early takes nothing away
            1,
            first.time_hour,
            first.arr_delay,
        )
    }


def test_the_columns_of_the_sums_are_those_of_the_table() -> None:
    (row,) = expected(FLIGHTS[:1], read_airlines()).items()
    assert len(row[0] + row[1]) == len(sums.c)


def test_executors_can_import_the_pipeline() -> None:
    assert load_spark_pipeline(NAME) is pipeline
    assert set(Flight.__struct_fields__) & {"topic", "partition", "offset", "timestamp", "key", "headers"} == set()
