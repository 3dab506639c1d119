"""A declaration needs neither the database driver nor the Kafka client: Spark tasks and tests import it alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

import seekpoint

HEAVY = ("psycopg", "confluent_kafka", "alembic", "typer", "pytest", "pyspark", "pyarrow", "pydantic")
WORK = {"Assignment", "Attempt", "Chunk", "Claim", "Claimed", "Expected", "Health", "Ledger", "Move", "Passed"} | {
    "Position", "Running", "Stop", "Worker", "consumer_config"
}  # fmt: skip
DECLARATIONS = sorted(set(seekpoint.__all__) - WORK)


def loaded_by(code: str) -> set[str]:
    """Which of the heavy packages a fresh interpreter has loaded after running this."""
    script = f"{code}\nimport sys\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_the_package_itself_loads_nothing() -> None:
    assert loaded_by("import seekpoint") == set()


def test_a_declarations_names_load_neither_driver_nor_client() -> None:
    assert len(DECLARATIONS) == 23
    assert loaded_by(f"from seekpoint import {', '.join(DECLARATIONS)}") == set()


def test_a_whole_declaration_and_its_transform_load_neither_driver_nor_client() -> None:
    """What a Spark task does: import it by name, decode, and make rows."""
    code = """
import msgspec
from seekpoint import Append, Batch, Bytes, Json, Limits, Pipeline, Poison, Record, StartAt, Text
from seekpoint.pipeline.writers import PipelineWriters
from seekpoint.records import RawRecord

class Order(msgspec.Struct):
    id: int

sink = Append("billing.orders", columns=["id"])
pipeline = Pipeline("billing", topics="orders", value=Json(Order), key=Text(), sinks=[sink], start=StartAt.latest())
record = PipelineWriters(pipeline).decode(RawRecord("orders", 0, 7, None, b"k", b'{"id": 5}'))
assert list(sink.writer().rows(record)) == [(5,)], record
"""
    assert loaded_by(code) == set()


@pytest.mark.long
def test_a_declaration_of_columns_loads_arrow_with_the_first_table() -> None:
    code = """
from seekpoint import Pipeline
from seekpoint.codecs import Arrow
from seekpoint.sinks import AppendArrow, copy_into
sink = AppendArrow("readings", provenance=("t", "p", "o"))
pipeline = Pipeline("readings", topics="readings", value=Arrow(), sinks=[sink])
"""
    transform = """
import pyarrow as pa
from seekpoint import Record
(row,) = sink.writer().rows(Record("readings", 0, 7, None, None, pa.table({"id": [1, 2]})))
assert row[0].column_names == ["id", "t", "p", "o"]
"""
    assert loaded_by(code) == set()
    assert loaded_by(code + transform) == {"pyarrow"}


def test_who_works_loads_what_it_needs() -> None:
    assert loaded_by("from seekpoint import Worker") >= {"psycopg", "confluent_kafka"}
    assert "confluent_kafka" not in loaded_by("from seekpoint import Ledger"), "a ledger talks to the database alone"


@pytest.mark.parametrize("words", ["--help", "--version"])
def test_the_programs_help_imports_no_command(words: str) -> None:
    code = f"""
import sys
from contextlib import suppress
from seekpoint.cli.main import main
sys.argv = ["seekpoint", "{words}"]
sys.stdout = sys.stderr
with suppress(SystemExit):
    main()
sys.stdout = sys.__stdout__
"""
    assert loaded_by(code) == {"typer"}


@pytest.mark.long
def test_a_command_imports_no_other_command() -> None:
    code = """
import sys
from seekpoint.cli.app import app
from typer.testing import CliRunner
assert "Usage" in CliRunner().invoke(app, ["groups", "list", "--help"]).stdout
assert "seekpoint.cli.groups" in sys.modules
assert not {"seekpoint.cli.run", "seekpoint.cli.reload", "seekpoint.cli.dev"} & {*sys.modules}
"""
    assert "confluent_kafka" in loaded_by(code)
