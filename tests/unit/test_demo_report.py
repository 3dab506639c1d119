"""The demo's result: what it counts, and that it fails where it must."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from demo import show
from demo.cli import app
from demo.faults import KILLS, ZOMBIES, Outcome
from demo.flights import RECORDS, Flight, read_flights, table
from demo.report import Comparison, Report, count_differences
from support.command import seekpoint

KEYS = [
    *("records_in", "rows_out", "lost", "twice", "transactions", "kills", "kills_in_transaction", "fenced"),
    *("seconds", "records_per_second", "broker", "postgres"),
]

FLIGHTS = list(read_flights(5))
ROWS = [msgspec.structs.astuple(flight) for flight in FLIGHTS]
OTHER = (ROWS[2][0], *ROWS[3][1:])
STRANGER = (99, *ROWS[0][1:])


@pytest.mark.parametrize(
    ("rows", "out", "lost", "twice", "strange"),
    [
        (ROWS, 5, 0, 0, 0),
        (ROWS[1:], 4, 1, 0, 0),
        (ROWS[:2] + ROWS[3:], 4, 1, 0, 0),
        (ROWS[:4], 4, 1, 0, 0),
        ([], 0, 5, 0, 0),
        ([ROWS[0], *ROWS, ROWS[4], ROWS[4]], 8, 0, 3, 0),
        ([*ROWS[:2], OTHER, *ROWS[3:]], 5, 1, 0, 1),
        ([*ROWS[:2], ROWS[2], OTHER, *ROWS[3:]], 6, 0, 0, 1),
        ([*ROWS, STRANGER], 6, 0, 0, 1),
        ([(0, *ROWS[0][1:]), *ROWS], 6, 0, 0, 1),
    ],
    ids=["equal", "first", "middle", "last", "empty", "twice", "other", "twice, one other", "behind", "before"],
)
def test_differences_are_counted(rows: list[tuple[Any, ...]], out: int, lost: int, twice: int, strange: int) -> None:
    comparison = Comparison()
    count_differences(iter(rows), FLIGHTS, comparison)
    assert comparison == Comparison(records_in=5, rows_out=out, lost=lost, twice=twice, strange=strange)


def report(**changed: Any) -> Report:
    """A report of a demo that went well, but for what is changed."""
    comparison = Comparison(records_in=10, rows_out=10, transactions=4)
    outcome = Outcome(kills=len(KILLS), kills_in_transaction=len(KILLS), fenced=ZOMBIES)
    fields = {"seconds": 2.0, "broker": "K", "postgres": "P", "exit_codes": (0, 0)}
    for name, value in changed.items():
        if name in fields:
            fields[name] = value
        else:
            setattr(comparison if hasattr(comparison, name) else outcome, name, value)
    return Report(comparison, outcome, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"lost": 1}, "1 records are lost"),
        ({"twice": 2}, "2 rows are there twice"),
        ({"strange": 1}, "1 rows are not what was sent"),
        ({"kills": 3, "kills_in_transaction": 3}, "3 of 4 kills happened"),
        ({"kills_in_transaction": 3}, "a worker was killed outside a transaction"),
        ({"fenced": 0}, "0 of 2 zombies were fenced"),
        ({"fenced": 1}, "1 of 2 zombies were fenced"),
        ({"exit_codes": (0, 1)}, "the workers did not drain: exit codes (0, 1)"),
    ],
)
def test_the_command_fails_where_a_row_differs_or_a_fault_did_not_happen(
    changed: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(show, "perform", lambda *_, **__: report(**changed))
    result = seekpoint("demo", command=app, exits=1)
    assert result.stderr == f"error: {message}\n"
    assert list(json.loads((tmp_path / "demo-report.json").read_text())) == KEYS


def test_a_good_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(show, "perform", lambda *_, **__: report())
    output = json.loads(seekpoint("demo", "--json", command=app).stdout)
    assert output == json.loads((tmp_path / "demo-report.json").read_text())
    assert list(output) == KEYS
    assert (output["records_in"], output["records_per_second"], output["fenced"]) == (10, 5, 2)
    assert "4 with SIGKILL, 4 of them inside an open transaction" in seekpoint("demo", command=app).stdout


@pytest.mark.parametrize("command", ["demo", "demo-reload"])
@pytest.mark.parametrize("records", ["0", "10", str(RECORDS + 1)])
def test_too_few_or_many_records(command: str, records: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = seekpoint(command, "--records", records, command=app, exits=2)
    assert "error: the demo takes 5,000 to 336,776 records, not " in result.stderr


def test_the_table_has_the_flights_columns() -> None:
    assert tuple(table.c.keys()) == Flight.__struct_fields__


@pytest.mark.long
def test_the_data_set_is_read_as_a_file() -> None:
    first = FLIGHTS[0]
    assert (first.id, first.carrier, first.flight, first.tailnum, first.dep_delay) == (1, "UA", 1545, "N14228", 2)
    code = (
        "import sys\n"
        "from demo.flights import read_flights\n"
        "flights = list(read_flights())\n"
        "print(len(flights), flights[-1].id, flights[-1].dep_time, 'pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["336776", "336776", "None", "False"]
