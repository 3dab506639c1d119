"""``make demo-cdc`` with fewer statements: each fault, the comparison, and that the comparison can fail.

All of it: ``make demo-cdc``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from demo.cdc.connect import JARS
from demo.cdc.report import compare
from demo.cdc.show import prepare_tables
from demo.cdc.tables import TOPIC, pipeline
from seekpoint.records import RawRecord
from seekpoint.testing import process, raw
from seekpoint.testing.servers.jars import locked_jars
from seekpoint.testing.servers.process import ServerFailed
from support.debezium import event, field, key_of

ENDLESS = 500.0  # seconds: it starts Kafka Connect three times, and took 96 on two busy cores
AT = "2026-11-01T10:00:00Z"
COMMAND = [sys.executable, "-m", "demo", "demo-cdc", "--statements", "500", "--json"]


@pytest.fixture
def _jars() -> None:
    """The jars of Connect and Debezium. Without a network the test is skipped, but fails where servers are required."""
    try:
        locked_jars(JARS)
    except ServerFailed as error:
        if {os.environ.get("CI", "").lower(), os.environ.get("SEEKPOINT_REQUIRE_SERVERS")} & {"1", "true"}:
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))


@pytest.mark.long
@pytest.mark.timeout(ENDLESS + 60)  # it fails by the process's end, which shows what it printed
@pytest.mark.usefixtures("_jars", "seekpoint_dsn", "seekpoint_broker")  # skipped or failed without servers
def test_the_demo(tmp_path: Path) -> None:
    done = subprocess.run(COMMAND, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=ENDLESS)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report == json.loads((tmp_path / "cdc-report.json").read_text())
    assert (report["missing"], report["strange"], report["odd"]) == (0, 0, 0)
    assert (report["kills"], report["connect_kills"]) == (4, 2)
    assert report["statements"] >= 500
    assert report["events"] > report["rows"] > 0
    assert " ".join(done.stderr.split()).count("killed Kafka Connect, and started it again") == 2


def change(offset: int, op: str, id: int, body: str) -> RawRecord:  # noqa: A002
    row = {"id": id, "name": "a", "balance": None, "seen": None, "changed": AT, "tags": None, "body": body}
    fields = [field(name, "int64" if name == "id" else "string") for name in row]
    return raw(event(fields, op, None, row), topic=TOPIC, offset=offset, key=key_of(id=id))


def test_rows_that_differ_and_other_dead_letters_are_found(
    idle_databases: Callable[[], AbstractContextManager[str]],
) -> None:
    with idle_databases() as url:
        engine = create_engine(url)
        prepare_tables(engine)
        in_part = change(0, "u", 9, "__debezium_unavailable_value")
        done = process(pipeline, engine, [in_part, change(1, "c", 1, "b")])
        assert [dead_letter.offset for dead_letter in done.dead_letters] == [0]
        statements = {
            f"INSERT INTO shop.customers (id, name, changed, body) VALUES (1, 'a', '{AT}', 'b')": (0, 0, 0),
            "UPDATE copied.customers SET body = 'c'": (1, 1, 0),
            "UPDATE seekpoint.dead_letter SET error = 'another'": (1, 1, 1),
            "DELETE FROM copied.customers": (1, 0, 1),
        }
        for statement, counts in statements.items():
            with engine.begin() as tx:
                tx.execute(text(statement))
            report = compare(engine, statements=1, events=2, kills=4, connect_kills=2, seconds=1, servers="")
            assert (report.missing, report.strange, report.odd) == counts, statement
            assert report.dead_letters == 1
        engine.dispose()
