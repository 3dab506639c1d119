"""``make demo-reload`` with fewer records: every strategy, the proof, and that the proof can fail.

All of it: ``make demo-reload``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from sqlalchemy import Engine, create_engine, text

from demo.flights import read_flights
from demo.reload.handling import VERSIONS, table
from demo.reload.judge import compare
from demo.reload.reader import POLL, complaint
from demo.reload.show import RELOADS, Stage
from demo.report import Comparison
from demo.servers import SMALLEST
from seekpoint.jobs.reload import cutover
from seekpoint.testing.servers.pair import start_pair
from seekpoint.testing.servers.process import Folder

ENDLESS = 500.0  # seconds: beside ten busy processes, on two cores, it took 163
COMMAND = [sys.executable, "-m", "demo", "demo-reload", "--records", str(SMALLEST), "--json"]

pytestmark = [
    pytest.mark.usefixtures("seekpoint_dsn", "seekpoint_broker"),  # skipped or failed where no server can be started
]


@pytest.mark.long
def test_the_demo(tmp_path: Path) -> None:
    done = subprocess.run(COMMAND, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=ENDLESS)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report == json.loads((tmp_path / "reload-report.json").read_text())
    assert [reload["strategy"] for reload in report["reloads"]] == [strategy for strategy, _ in RELOADS]
    for counts in (report, *report["reloads"]):
        assert (counts["torn_reads"], counts["differences"]) == (0, 0)
        assert counts["rows"] > SMALLEST, "records went on coming in"
        assert counts["polls"] >= 10
        assert min(counts[name] for name in ("lock_seconds", "worker_pause_seconds", "staging_rows_per_second")) > 0
    assert report["kills_in_transaction"] == len(RELOADS)
    assert report["records"] >= max(reload["rows"] for reload in report["reloads"])
    stderr = " ".join(done.stderr.split())
    assert stderr.count(" at Applied: transaction ") == len(RELOADS)
    assert stderr.count(" s under the lock; partitions paused for ") == len(RELOADS)


@contextmanager
def performing() -> Iterator[Stage]:
    """Servers, workers and a reader; nothing has been reloaded."""
    with ExitStack() as stack:
        pair = stack.enter_context(start_pair(own=True))
        folder = stack.enter_context(closing(Folder("demo")))
        engine = create_engine(pair.postgres.url)
        stack.callback(engine.dispose)
        year = list(read_flights(SMALLEST))
        stage = Stage(pair, engine, year, spark=None, folder=folder.path, console=Console(quiet=True))
        with stage.open():
            yield stage


# Changes to the table that the demo does not know of: how each is made and undone, what a reader reports then (None if
# it does not read that column), and what the comparison finds.
TAMPERED = {
    "a row is of another version": (
        "UPDATE flights SET cents = cents + 50000 WHERE id = 77",
        "UPDATE flights SET cents = cents - 50000 WHERE id = 77",
        "1 of 5,000 rows are not of version 1",
        {"lost": 1, "strange": 1},
    ),
    "a row is gone": (
        "CREATE TABLE kept AS SELECT * FROM flights WHERE id = 77; DELETE FROM flights WHERE id = 77",
        "INSERT INTO flights SELECT * FROM kept; DROP TABLE kept",
        "4,999 rows (offsets' sum ",
        {"lost": 1, "rows_out": SMALLEST - 1},
    ),
    "a row is another record's": (
        "UPDATE flights SET topic_offset = topic_offset + 1 WHERE id = 77",
        "UPDATE flights SET topic_offset = topic_offset - 1 WHERE id = 77",
        "5,000 rows (offsets' sum ",
        {"lost": 1, "strange": 1},
    ),
    "a column that the reader does not look at": (
        "UPDATE flights SET tailnum = tailnum || '!' WHERE id = 77",
        "UPDATE flights SET tailnum = rtrim(tailnum, '!') WHERE id = 77",
        None,
        {"lost": 1, "strange": 1},
    ),
}


@pytest.mark.long
def test_whatever_is_torn_or_differs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = Comparison(records_in=SMALLEST, rows_out=SMALLEST)
    with performing() as stage:
        for name, (done, undone, reason, outcome) in TAMPERED.items():
            for statements, wrong, different in ((done, reason, outcome), (undone, None, {})):
                with stage.engine.begin() as tx:
                    for statement in statements.split("; "):
                        tx.execute(text(statement))
                    message = complaint(tx.execute(POLL).one(), 0)
                assert (message or "").startswith(wrong or ""), name
                assert (message is None) == (wrong is None), name
                now = compare(stage.engine, lambda ends: stage.load.log_to(ends, 30), 1)
                expected = {
                    count: getattr(sound, count) for count in ("lost", "twice", "strange", "rows_out")
                } | different
                assert {count: getattr(now, count) for count in expected} == expected, name
        # A cut-over that publishes nothing: the version is raised, and the rows are those of before.
        monkeypatch.setattr(cutover, "merge", lambda *_, **__: 0)
        stage.play([("merge", 2)])
        problems, complaints = stage.report().problems, stage.reader.complaints
    assert any(" reads saw a torn table" in problem for problem in problems), problems
    assert any("merge: verify finds " in problem for problem in problems), problems
    assert any(" rows are not what the records make" in problem for problem in problems), problems
    assert any(" rows are not of version 2" in complaint for complaint in complaints), complaints


def test_the_reader_computes_what_the_code_does(seekpoint_engine: Engine, seekpoint_schema: str) -> None:
    """Both say what a flight costs, each in its own language."""
    flights = list(read_flights(SMALLEST))
    rows = [msgspec.structs.asdict(flight) | {"cents": 0, "topic_offset": flight.id} for flight in flights]
    with seekpoint_engine.connect() as connection:
        connection.execute(text(f"SET search_path TO {seekpoint_schema}"))
        table.create(connection)
        connection.execute(table.insert(), rows)
        for number, version in VERSIONS.items():
            computed = connection.execute(text(f"SELECT id, {version.sql} AS cents FROM flights")).all()
            assert {row.id: row.cents for row in computed} == {
                flight.id: version.cents(flight) for flight in flights
            }, number
