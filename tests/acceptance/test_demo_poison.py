"""``make demo-poison`` with fewer records: every kind of damage, the proof, and that the proof can fail.

All of it: ``make demo-poison``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from contextlib import closing
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console
from sqlalchemy import Engine, create_engine, text
from typer.testing import CliRunner, Result

from demo.cli import app
from demo.flights import Flight, read_flights
from demo.poison import show
from demo.poison.handling import Notice, corrected
from demo.poison.kinds import CRASHING, ID, KINDS, break_some, choose, tail
from demo.poison.report import Report
from demo.poison.show import Stage
from demo.servers import SMALLEST
from seekpoint.codecs import Json
from seekpoint.errors import ConfigError
from seekpoint.records import Record
from seekpoint.testing.servers.pair import start_pair
from seekpoint.testing.servers.process import Folder

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "demo", "demo-poison", "--records", str(SMALLEST)]
KEYS = [
    *("records", "applied", "open_dead_letters", "skipped", "lost", "twice", "crashing_dead_lettered", "replayed"),
    *("seconds", "rate_clean", "rate_poisoned"),
]
BROKEN = sum(kind.number or 1 for kind in KINDS)  # of so few records
UNDECODABLE = sum(kind.is_undecodable for kind in KINDS)
IN_THE_END = sum(kind.number or 1 for kind in KINDS if kind.cause is None)  # applied without any help
FLIGHTS = list(read_flights(SMALLEST))


# -- what is broken ---------------------------------------------------------------------------------------


def test_what_is_broken_depends_on_the_seed_alone() -> None:
    assert choose(FLIGHTS, 7) == choose(FLIGHTS, 7) != choose(FLIGHTS, 8)


@pytest.mark.parametrize("seed", range(20))
def test_every_kind_is_there_and_the_crashing_records_are_at_the_end(seed: int) -> None:
    chosen = choose(FLIGHTS, seed)
    assert Counter(kind.name for kind in chosen.values()) == {kind.name: kind.number or 1 for kind in KINDS}
    crashing = [id_ for id_, kind in chosen.items() if kind.crashes]
    assert len(crashing) == CRASHING == 2
    assert min(crashing) > SMALLEST - tail(SMALLEST)


def test_about_one_in_a_thousand_is_broken() -> None:
    flights = list(read_flights(100_000))
    assert len(choose(flights, 1)) == 100


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.name))
def test_the_fixed_handler_restores_the_flight(kind: Any) -> None:
    broken = [(f, sent) for f, _, sent in break_some(FLIGHTS, dict.fromkeys(range(600, SMALLEST, 7), kind)) if sent]
    decode = Json(Notice)
    assert len(broken) > 600
    for flight, sent in broken:
        assert sent.value != msgspec.json.encode(flight)
        if kind.is_undecodable:
            with pytest.raises((msgspec.DecodeError, msgspec.ValidationError)):
                decode(sent.value)
            continue
        key: bytes | None = sent.key
        record = Record("t", 0, 0, None, key, decode(sent.value), ((ID, str(flight.id).encode()),))
        assert corrected(record) == flight
        assert type(corrected(record)) is Flight


def test_too_few_or_many_records() -> None:
    with pytest.raises(ConfigError, match="the demo takes 5,000 to 336,776 records, not 10"):
        show.perform(10, console=Console(quiet=True))


# -- the whole, and that the proof can fail ------------------------------------------------------------------

A_DEAD_LETTER = "UPDATE seekpoint.dead_letter SET"
# Changes to the database that the demo does not know of: how each is made and undone, and what must be reported then.
TAMPERED = {
    "a row is gone": (
        "CREATE TABLE kept AS SELECT * FROM flights WHERE id = 77; DELETE FROM flights WHERE id = 77",
        "INSERT INTO flights SELECT * FROM kept; DROP TABLE kept",
        "error: 1 records are lost",
    ),
    "a row is another": (
        "UPDATE flights SET distance = distance + 1 WHERE id = 77",
        "UPDATE flights SET distance = distance - 1 WHERE id = 77",
        "error: 1 records are lost\nerror: 1 rows are not what was sent",
    ),
    "a row is there twice": (
        "ALTER TABLE flights DROP CONSTRAINT flights_pkey; INSERT INTO flights SELECT * FROM flights WHERE id = 77",
        "DELETE FROM flights a USING flights b WHERE a.id = b.id AND a.ctid > b.ctid",  # the key is not created again
        "error: 1 records are there twice",
    ),
    "a row is no flight's": (
        "CREATE TABLE kept AS SELECT * FROM flights LIMIT 1; UPDATE kept SET id = 0; INSERT INTO flights TABLE kept",
        "DELETE FROM flights WHERE id = 0; DROP TABLE kept",
        "error: 1 rows are not what was sent",
    ),
    "an applied record's dead letter is open": (
        f"{A_DEAD_LETTER} state = 'dead_lettered' WHERE sqlstate = '23514'",
        f"{A_DEAD_LETTER} state = 'replayed' WHERE sqlstate = '23514'",
        "error: 1 records are there twice",
    ),
    "an undecodable record's dead letter is closed": (
        f"{A_DEAD_LETTER} state = 'discarded' WHERE error LIKE 'DecodeError%'",
        f"{A_DEAD_LETTER} state = 'dead_lettered' WHERE state = 'discarded'",
        "error: 1 records are lost",
    ),
    "the value of a dead letter is another": (
        f"{A_DEAD_LETTER} value = value || '!'::bytea WHERE error LIKE 'DecodeError%'",
        f"{A_DEAD_LETTER} value = substr(value, 1, length(value) - 1) WHERE error LIKE 'DecodeError%'",
        "error: 1 records are lost",
    ),
    "the record of a dead letter is at another offset": (
        f"{A_DEAD_LETTER} record_offset = record_offset + 1000000 WHERE error LIKE 'DecodeError%'",
        f"{A_DEAD_LETTER} record_offset = record_offset - 1000000 WHERE error LIKE 'DecodeError%'",
        "error: 1 records are lost",
    ),
    "a crashing record has another cause": (
        f"{A_DEAD_LETTER} cause = 'handler' WHERE cause = 'crashed'",
        f"{A_DEAD_LETTER} cause = 'crashed' WHERE error LIKE 'CrashingRecord%'",
        "error: 0 of 2 crashing records were dead-lettered",
    ),
    "a dead letter has another error": (
        f"{A_DEAD_LETTER} sqlstate = '23000' WHERE sqlstate = '23514'",
        f"{A_DEAD_LETTER} sqlstate = '23514' WHERE sqlstate = '23000'",
        "(CHECK): it has another error: database, 23000",
    ),
    "the clean run lacks a row": (
        "CREATE TABLE kept AS SELECT * FROM flights_clean WHERE id = 77; DELETE FROM flights_clean WHERE id = 77",
        "INSERT INTO flights_clean SELECT * FROM kept; DROP TABLE kept",
        f"error: {SMALLEST - tail(SMALLEST) - 1:,} of {SMALLEST - tail(SMALLEST):,} clean rows",
    ),
    "a sound record has a dead letter": (
        f"{A_DEAD_LETTER} header_values[1] = '77'::bytea WHERE sqlstate = '23514'",
        "",  # the last one
        "has a record that was not broken",
    ),
}


def command(report: Report, *options: str) -> Result:
    """The command's end, where the demo has found this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(show, "perform", lambda *_, **__: report)
        result = CliRunner().invoke(app, ["demo-poison", *options])
    assert result.exit_code == (1 if report.problems else 0)
    return result


def assert_told(report: dict[str, Any], progress: str) -> None:
    """The report of a run that went well has what became of every record, and its progress each crash."""
    assert list(report)[: len(KEYS)] == KEYS
    assert report["applied"] + report["open_dead_letters"] + report["skipped"] == report["records"] == SMALLEST
    assert (report["open_dead_letters"], report["skipped"], report["lost"], report["twice"]) == (UNDECODABLE, 0, 0, 0)
    assert (report["crashing_dead_lettered"], report["replayed"]) == (CRASHING, BROKEN - UNDECODABLE - IN_THE_END)
    assert min(report[name] for name in ("seconds", "rate_clean", "rate_poisoned")) > 0
    for kind in KINDS:
        fate = report["kinds"][kind.name]
        assert fate["sent"] == (kind.number or 1)
        assert fate["applied"] + fate["dead_lettered"] == fate["sent"]
        assert fate["retried"] >= kind.outages * fate["sent"]
        assert kind.error in fate["error"]
    assert "(exit code -11, segfault); started again" in progress
    assert "(exit code 66, os._exit); started again" in progress
    assert progress.count("dead-lettered by ") == CRASHING


def alter(engine: Engine, statements: str) -> None:
    with engine.begin() as connection:
        for statement in filter(None, statements.split("; ")):
            connection.execute(text(statement))


@pytest.mark.long
@pytest.mark.usefixtures("seekpoint_dsn", "seekpoint_broker")  # skipped or failed where no server can be started
@pytest.mark.timeout(280)
def test_the_demo_and_whatever_is_not_as_it_was_sent_fails_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    progress = StringIO()
    with start_pair(own=True) as pair, closing(Folder("demo")) as folder:
        engine = create_engine(pair.postgres.url)
        try:
            console = Console(file=progress, width=200)
            stage = Stage(pair, engine, FLIGHTS, seed=5, folder=folder.path, console=console)
            stage.play()
            sound = command(stage.report(), "--json")
            assert sound.stderr == ""
            assert json.loads(sound.stdout) == json.loads((tmp_path / "poison-report.json").read_text())
            assert_told(json.loads(sound.stdout), progress.getvalue())
            for name, (done, undone, message) in TAMPERED.items():
                alter(engine, done)
                assert message in command(stage.report()).stderr, name
                if undone:
                    alter(engine, undone)
                    assert stage.report().problems == [], name
        finally:
            engine.dispose()


def copy_without(line: str, home: Path) -> None:
    """A copy of the package in which a line of the unit of work is missing."""
    for part in ("src", "migrations"):
        shutil.copytree(ROOT / part, home / part, ignore=shutil.ignore_patterns("__pycache__"))
    file = home / "src" / "seekpoint" / "worker" / "unit_of_work.py"
    source = file.read_text(encoding="utf-8")
    assert source.count(line) == 1, "the line that is to be broken has changed: name the new one"
    file.write_text(source.replace(line, "pass"), encoding="utf-8")


@pytest.mark.long
@pytest.mark.usefixtures("seekpoint_dsn", "seekpoint_broker")
@pytest.mark.timeout(280)
def test_a_worker_that_stores_no_dead_letters_fails_the_demo(tmp_path: Path) -> None:
    copy_without("self._dead_letters.insert(tx, dead_letters, topic_ids, self._pipeline.version)", tmp_path)
    done = subprocess.run(
        COMMAND,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "src")},
        capture_output=True,
        text=True,
        check=False,
        timeout=270,
    )
    assert done.returncode == 1, done.stderr
    assert f"error: {BROKEN - IN_THE_END} records are lost\n" in done.stderr
    assert "error: 0 of 2 crashing records were dead-lettered\n" in done.stderr
    report = json.loads((tmp_path / "poison-report.json").read_text())
    assert (report["lost"], report["open_dead_letters"], report["applied"]) == (
        BROKEN - IN_THE_END,
        0,
        SMALLEST - BROKEN + IN_THE_END,
    )
