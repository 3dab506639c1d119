"""``seekpoint spark``: a stream until SIGTERM, what is there now, and what is refused before Java starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from jobs.spark import test_frames_reload
from jobs.spark.frames import entries, produced
from jobs.spark.test_frames_reload import ALL, Log, expected, tables
from seekpoint.cli.app import app
from support.batch_process import offsets
from support.cli_jobs import COMMAND
from support.reload_orders import OrdersGroup
from support.waiting import until

pytestmark = pytest.mark.usefixtures("frames_group")
log = test_frames_reload.log


def command(orders_group: OrdersGroup, name: str, *options: str, word: str = "run") -> list[str]:
    return ["spark", word, name, "--master", "local[2,4]", *orders_group.server_options, *options]


def started(modules: Path, words: list[str], log: Path) -> subprocess.Popen[str]:
    """The command in a process of its own, its stderr in a file."""
    with log.open("w") as stderr:
        return subprocess.Popen(
            [*COMMAND, *words],
            cwd=modules,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(modules), *sys.path])},
        )


@pytest.mark.long
def test_a_stream_ends_after_the_micro_batch_in_hand(
    orders_group: OrdersGroup, frames_pipeline: Callable[..., str], modules: Path, tmp_path: Path
) -> None:
    name, log = frames_pipeline(), tmp_path / "log"
    produced(orders_group, 10)
    process = started(modules, command(orders_group, name, "--trigger", "1s", "--json"), log)
    try:
        until(
            lambda: offsets(orders_group) == {f"{orders_group.topic}/{number}": 10 for number in (0, 1)},
            "the first orders",
            240,
        )
        produced(orders_group, 10, first=10)
        until(
            lambda: offsets(orders_group) == {f"{orders_group.topic}/{number}": 20 for number in (0, 1)},
            "the others",
            120,
        )
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=120)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, log.read_text()
    assert "stopping after the open micro-batch; Ctrl-C again aborts" in log.read_text()
    done = json.loads(output)
    assert (done["group"], done["records"], done["offsets"]) == (orders_group.group, 40, offsets(orders_group))
    assert orders_group.rows("entries") == entries(20)
    states = orders_group.execute("SELECT state FROM {schema}.worker WHERE consumer_group = :g", g=orders_group.group)
    assert states == [("ended",)]


def test_what_is_there_now_is_applied_and_the_command_ends(
    orders_group: OrdersGroup, frames_pipeline: Callable[..., str], modules: Path, tmp_path: Path
) -> None:
    name = frames_pipeline()
    produced(orders_group, 10)
    log = tmp_path / "log"
    process = started(modules, command(orders_group, name, "--available-now", "--max-records", "12"), log)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, log.read_text()
    first, *others = output.splitlines()
    assert first.startswith(
        f"{orders_group.group}: 20 records applied in 2 micro-batches, 20 rows for {orders_group.schema}."
    )
    assert others == [f"{orders_group.topic}/0 is at offset 10", f"{orders_group.topic}/1 is at offset 10"]
    assert orders_group.rows("entries") == entries(10)
    orders_group.execute("CREATE UNIQUE INDEX ON {schema}.entries (id)")
    orders_group.execute("UPDATE {schema}.entries SET amount = 0 WHERE id = 3")
    root = tmp_path / "differences"
    words = command(orders_group, name, "--json", "--differences", str(root), "--range-records", "5", word="verify")
    process = started(modules, words, log)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 1, log.read_text()
    report = json.loads(output)
    [table] = [table for table in report["tables"] if table["table"].endswith(".entries")]
    assert [table[what] for what in ("equal", "missing", "extra", "different")] == [19, 0, 0, 1]
    [path] = report["differences"].values()
    assert Path(path).parent.parent == root
    [row] = pyarrow.parquet.read_table(path).to_pylist()
    assert (row["kind"], dict(row["live"])["amount"], dict(row["key"])) == ("different", "0", {"id": "3"})


def test_what_cannot_be_run_is_refused_before_java_starts(
    orders_group: OrdersGroup, frames_pipeline: Callable[..., str]
) -> None:
    name = frames_pipeline()
    module = name.split(":", maxsplit=1)[0]
    for options, message in (
        ([name, "--trigger", "soon"], "--trigger takes a length of time"),
        ([name, "--trigger", "1s", "--available-now"], "omit one of them"),
        ([name, "--master", "nowhere"], "'nowhere' is not a Spark master"),
        ([f"{module}:Order"], "is of type StructMeta; expected a SparkPipeline"),
        ([name], "no database is named"),
    ):
        for word in ["run"] if "--trigger" in options else ["run", "verify", "reload"]:
            result = CliRunner().invoke(app, ["spark", word, *options], env={"SEEKPOINT_DATABASE_URL": ""})
            assert (result.exit_code, message in result.stderr) == (2, True), (word, options, result.stderr)


def test_tables_are_rebuilt_once_it_was_shown_what_would_be_done(
    orders_group: OrdersGroup, log: Log, frames_pipeline: Callable[..., str], modules: Path, tmp_path: Path
) -> None:
    name, stderr = frames_pipeline(ALL, version=2, times=2), tmp_path / "log"
    process = started(modules, command(orders_group, name, "--dry-run", word="reload"), stderr)
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 0, stderr.read_text()
    assert output.startswith(f"{orders_group.group}: 161 records are read again; merge: rows that differ are changed")
    assert tables(orders_group) == expected(log, times=1)
    process = started(modules, command(orders_group, name, "--json", "--reason", "a slip", word="reload"), stderr)
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 0, stderr.read_text()
    done = json.loads(output)
    assert (done["state"], done["strategy"], done["reason"]) == ("cut_over", "merge", "a slip")
    differ = {table["table"].split(".")[1]: table["different"] for table in done["compared"]}
    assert differ == {"entries": 158, "orders": 0, "sales": 0}
    assert tables(orders_group) == expected(log)


@pytest.mark.long
def test_a_database_that_is_away_ends_the_command_with_3(
    orders_group: OrdersGroup, frames_pipeline: Callable[..., str], modules: Path, tmp_path: Path
) -> None:
    words = command(
        orders_group, frames_pipeline(), "--available-now", "--database-url", "postgresql://ada:secret@127.0.0.1:1/shop"
    )
    process = started(modules, words, tmp_path / "log")
    output, _ = process.communicate(timeout=240)
    log = (tmp_path / "log").read_text()
    assert process.returncode == 3, log
    assert "error: " in log
    assert "secret" not in output + log
