"""``seekpoint reload``: what it prints, what is left after it, and how a run is resumed."""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from seekpoint.cli import spark_session
from seekpoint.testing.servers.process import ServerFailed
from support.before_cutover import settled
from support.cli_jobs import FIRST, Terminal, wait_for_lock
from support.reload_orders import OrdersGroup, doubled, of
from support.reload_process import Reloader

# -- run ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["merge", "swap"])
def test_a_run_cuts_over_and_says_so(terminal: Terminal, orders_group: OrdersGroup, strategy: str) -> None:
    result = terminal.job("reload", "run", "--strategy", strategy, "--reason", "amounts were in cents")
    assert orders_group.rows() == doubled(FIRST)
    assert f"{orders_group.schema}.orders: cut over; {orders_group.group} at version 2" in result.stdout
    assert re.search(r"workers waited \d+\.\d{3} s \(0 records", result.stdout)
    assert "staging: 121 records" in result.stderr
    assert "its rows are staged, and then copied, because an Upsert keeps one row of each key" in result.stderr
    (run,) = terminal.look("reload", "status")
    assert (run["state"], run["swept"], run["strategy"]) == ("cut_over", True, strategy)
    assert run["reason"] == "amounts were in cents"


def test_a_run_for_programs(terminal: Terminal, orders_group: OrdersGroup) -> None:
    """Only JSON is printed: stderr is no terminal, so no progress is shown."""
    result = terminal.job("reload", "run", "--json", "--actor", "night shift")
    summary = json.loads(result.stdout)
    assert (summary["state"], summary["version_from"], summary["version_to"], summary["tries"]) == (
        "cut_over",
        [1],
        [2],
        1,
    )
    assert (summary["actor"], summary["tables"], summary["records"]) == (
        "night shift",
        [f"{orders_group.schema}.orders"],
        0,
    )
    assert result.stderr == ""
    assert orders_group.rows() == doubled(FIRST)


def test_a_version_that_was_not_raised_gives_a_warning(terminal: Terminal, orders_group: OrdersGroup) -> None:
    """It may have been forgotten: workers would continue to write rows with the code that the reload replaces."""
    message = (
        f"group {orders_group.group!r} stays at version 1: its workers continue with the code they have; raise version="
    )
    assert message in terminal.job("reload", "run", name="old").stderr
    (warning,) = json.loads(terminal.job("reload", "run", "--json", name="old").stdout)["warnings"]
    assert warning.startswith(message)
    raised = terminal.job("reload", "run", "--json")
    assert json.loads(raised.stdout)["warnings"] == []


def test_a_key_of_the_brokers_that_is_mistyped_opens_nothing(terminal: Terminal, orders_group: OrdersGroup) -> None:
    for command in (["reload", "run"], ["verify"], ["batch"]):
        wrong = terminal.job(*command, "--kafka", "bootstrap.server=x", name="old", exits=2)
        assert 'No such configuration property: "bootstrap.server"' in wrong.stderr
    assert terminal.look("reload", "status") == []
    run = str(left_at(orders_group, "compared"))
    before = terminal.look("reload", "status", run)["driver_epoch"]
    terminal.job("reload", "run", "--resume", run, "--kafka", "bootstrap.server=x", exits=2)
    assert terminal.look("reload", "status", run)["driver_epoch"] == before, "it has not changed hands"


def test_an_archive_that_is_mistyped_opens_nothing(
    terminal: Terminal, orders_group: OrdersGroup, tmp_path: Path
) -> None:
    nothing = terminal.job("reload", "run", "--archive", str(tmp_path / "a"), exits=2)
    assert f"knows no archive {tmp_path / 'a'}: nothing was exported yet" in nothing.stderr
    terminal.job("export", "--to", str(tmp_path / "a"))
    for command in (["reload", "run"], ["verify"]):
        wrong = terminal.job(*command, "--archive", str(tmp_path / "b"), exits=2)
        assert f"knows no archive {tmp_path / 'b'}: it knows {tmp_path / 'a'}; name it as" in wrong.stderr
    assert terminal.look("reload", "status") == []
    terminal.job("reload", "run", "--archive", str(tmp_path / "a"))
    assert orders_group.rows() == doubled(FIRST)


def test_a_worker_brings_its_servers(terminal: Terminal, orders_group: OrdersGroup) -> None:
    worker = f"{terminal.module}:worker"
    terminal.run("reload", "run", worker)
    assert orders_group.rows() == doubled(FIRST)
    refused = terminal.run("reload", "run", worker, "--database-url", orders_group.url, exits=2)
    assert "is a Worker and brings its own database and brokers: remove --database-url" in refused.stderr
    two = terminal.run("reload", "run", worker, f"{terminal.module}:elsewhere", exits=2)
    assert "are Workers with different databases, schemas or brokers" in two.stderr


def test_a_run_of_a_worker_is_resumed_by_the_database_that_holds_it(
    terminal: Terminal, orders_group: OrdersGroup
) -> None:
    """The option that finds the run is required, so a Worker does not refuse it."""
    for id_ in range(100, 110):
        orders_group.execute("INSERT INTO {schema}.orders (id, amount, at) VALUES (:id, 1, 0)", id=id_)
    worker = f"{terminal.module}:worker"
    terminal.run("reload", "run", worker, exits=1)
    terminal.run("reload", "resume", *orders_group.database_options, "--max-deletes", "0.5")
    assert orders_group.rows() == doubled(FIRST)


def test_a_run_that_is_refused_names_every_reason(terminal: Terminal) -> None:
    result = terminal.job("reload", "run", exits=1)
    assert "error: refused:" in result.stderr
    as_json = terminal.job("reload", "run", "--json", exits=1)
    assert (as_json.stdout, "error: refused:" in as_json.stderr) == ("", True)
    assert "has no offsets in the ledger: start a worker once, then reload" in result.stderr
    assert terminal.look("reload", "status") == []
    assert terminal.run("reload", "status", *terminal.orders_group.database_options).stdout == "no runs are on record\n"


def test_a_run_that_fails_says_why_and_is_on_record(terminal: Terminal, orders_group: OrdersGroup) -> None:
    settled(orders_group, [of(1, 2_000)])
    result = terminal.job("reload", "run", exits=1)
    assert "ValueError: too much" in result.stderr
    assert "to resume" not in result.stderr, "it has ended"
    (run,) = terminal.look("reload", "status")
    assert run["state"] == "failed"
    assert "too much" in run["error"]
    listed = terminal.run("reload", "status", *orders_group.database_options).stdout
    assert f"\n{run['id']}: {run['error'].splitlines()[0]}" in listed
    assert max(map(len, listed.splitlines())) <= 100


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--spark-conf", "a=b"], "--spark-conf is for a Spark session: give --spark, too"),
        (["--resume", str(uuid4())], "there is no run "),
        (["--strategy", "truncate"], "Invalid value for '--strategy'"),
    ],
)
def test_a_command_that_is_wrong(terminal: Terminal, options: list[str], message: str) -> None:
    assert message in terminal.job("reload", "run", *options, exits=2).stderr


def test_spark_without_java_says_so(terminal: Terminal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def none(folder: Path) -> Path:
        raise ServerFailed(f"nothing for {folder}")

    monkeypatch.setattr(spark_session, "java_home", none)
    assert "Spark needs Java 17 or newer" in terminal.job("reload", "run", "--spark", "local[1]", exits=2).stderr


def test_spark_that_is_not_installed_says_so(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    stderr = terminal.job("reload", "run", "--spark", "local[1]", exits=2).stderr
    assert "pip install '/path/to/seekpoint[spark]'" in stderr


# -- a run that was left -----------------------------------------------------------------------------------


def left_at(orders_group: OrdersGroup, step: str) -> UUID:
    """A run whose driver was killed there."""
    run = orders_group.reload().open().run.id
    Reloader(orders_group, run, step=step, width=50).kill_where_it_waits()
    return run


@pytest.mark.parametrize(
    ("step", "left", "staged"), [("turn staging", 121, 0), ("turn staged", 0, 121), ("catching_up", 0, 0)]
)
def test_status_says_what_is_left(
    terminal: Terminal, orders_group: OrdersGroup, step: str, left: int, staged: int
) -> None:
    run = left_at(orders_group, step)
    status = terminal.look("reload", "status", str(run))
    assert (status["left"], status["is_open"]) == (left, True)
    first = status["partitions"][0]
    assert (first["topic"], first["partition"], first["first"], first["end"], first["live"]) == (
        orders_group.topic,
        0,
        0,
        121,
        121,
    )
    assert (first["left"], first["staged"]) == (left, staged)
    assert first["next"] == (121 if step == "catching_up" else 0)
    orders_group.execute("UPDATE {schema}.partition_offset SET next_offset = 130 WHERE partition = 0")
    assert terminal.look("reload", "status", str(run))["left"] == left + 9, "workers went on"


def test_status_is_for_people_and_says_what_to_do(terminal: Terminal, orders_group: OrdersGroup) -> None:
    run = left_at(orders_group, "compared")
    output = terminal.run("reload", "status", str(run), *orders_group.database_options).stdout
    assert output.startswith(f"reload {run}: compared\n")
    assert f"{orders_group.group}, version 1 → 2" in output
    assert "left      0 offsets in 2 partitions" in output
    assert f"resume, if its driver has ended: seekpoint reload run MODULE:NAME --resume {run}" in output
    assert f"abort: seekpoint reload abort {run} --reason '…'" in output
    orders_group.execute("UPDATE {schema}.reload_run SET changed_at = now() - interval '3 hours'")
    old = terminal.run("reload", "status", str(run), *orders_group.database_options).stdout
    assert "last heartbeat 3 h ago: the driver may have ended" in old
    assert f"resume: seekpoint reload run MODULE:NAME --resume {run}" in old
    listed = terminal.run("reload", "status", *orders_group.database_options).stdout
    assert str(run) in listed
    assert f"{orders_group.schema}.orders" in listed
    orders_group.execute(
        "UPDATE {schema}.reload_run SET tables = array_fill(tables[1], ARRAY[9]), error = repeat('e', 262)"
    )
    wide = terminal.run("reload", "status", *orders_group.database_options).stdout.splitlines()
    assert max(len(line.rstrip()) for line in wide) <= 100, wide


def test_status_sees_a_step_that_is_under_way(terminal: Terminal, orders_group: OrdersGroup) -> None:
    run = orders_group.reload().open().run.id
    reloader = Reloader(orders_group, run, step="turn staged", width=50)
    try:
        assert reloader.wait_for("halted")
        status = terminal.look("reload", "status", str(run))
        assert (status["in_step"], status["state"]) == (True, "staging")
        assert (
            "in a step right now" in terminal.run("reload", "status", str(run), *orders_group.database_options).stdout
        )
    finally:
        reloader.kill()


@pytest.mark.long
def test_a_run_is_resumed(terminal: Terminal, orders_group: OrdersGroup) -> None:
    run = left_at(orders_group, "turn staged")
    later = [of(n % 50, n, n) for n in range(200, 230)]
    settled(orders_group, later)
    terminal.job("reload", "run", "--resume", str(run))
    assert orders_group.rows() == doubled(FIRST + later)
    over = terminal.job("reload", "run", "--resume", str(run), exits=1)
    assert f"run {run} is cut over: open another one" in over.stderr


@pytest.mark.long("some of its cases take seconds")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_driver_that_is_stopped_leaves_its_run_open_and_says_how_to_resume_it(
    terminal: Terminal, orders_group: OrdersGroup, number: signal.Signals
) -> None:
    """Another session locks the positions: the driver gets the signal while its cut-over waits for them."""
    with orders_group.holding("SELECT 1 FROM {schema}.partition_offset FOR UPDATE"):
        process = terminal.process("reload", "run")
        wait_for_lock(orders_group, "application_name", f"%job {process.pid}")
        process.send_signal(number)
        out, stderr = process.communicate(timeout=60)
    (run,) = terminal.look("reload", "status")
    assert (process.returncode, out) == (130, "")
    assert f"aborted: {run['id']} is left open (compared), workers continue" in stderr
    assert f"seekpoint reload run {terminal.module}:fixed --resume {run['id']}" in stderr
    assert orders_group.rows() == doubled(FIRST, by=1)
    terminal.job("reload", "run", "--resume", run["id"])
    assert orders_group.rows() == doubled(FIRST)


# -- a cut-over that is refused ----------------------------------------------------------------------------


def test_a_cut_over_that_is_refused_is_resumed_with_other_bounds(terminal: Terminal, orders_group: OrdersGroup) -> None:
    """What is to change, and what it reaches, is reported before; exit 1 leaves the run open."""
    orders_group.execute("CREATE TABLE {schema}.items (order_id bigint REFERENCES {schema}.orders ON DELETE CASCADE)")
    for id_ in range(100, 110):
        orders_group.execute("INSERT INTO {schema}.orders (id, amount, at) VALUES (:id, 1, 0)", id=id_)
    orders_group.execute("INSERT INTO {schema}.items VALUES (100)")
    refused = terminal.job("reload", "run", exits=1)
    (run,) = terminal.look("reload", "status")
    table = f"{orders_group.schema}.orders"
    child = f"{table}: {orders_group.schema}.items refers to it by items_order_id_fkey (ON DELETE CASCADE)"
    assert child in refused.stderr
    changes = f"{table}: 0 rows are equal; 0 are missing and will be added, 10 are extra and will be deleted"
    assert changes in refused.stderr
    assert refused.stderr.index(changes) < refused.stderr.index("error: the cut-over is refused; the run stays open:")
    assert "10 of 49 live rows (20%)" in refused.stderr
    assert f"{run['id']} is left open (compared), workers continue" in refused.stderr
    servers = orders_group.server_options
    again = terminal.run("reload", "resume", *servers, "--max-deletes", "0.5", exits=1)
    assert "10 rows would be deleted, and" in again.stderr
    assert len(orders_group.rows()) == 49
    bounds = ["--max-deletes", "0.5", "--allow-cascades", "--max-wait", "60s"]
    done = json.loads(terminal.run("reload", "resume", run["id"], *servers, *bounds, "--json").stdout)
    assert done["state"] == "cut_over"
    assert done["compared"] == [
        {"table": f"{orders_group.schema}.orders", "equal": 0, "missing": 0, "extra": 10, "different": 39}
    ]
    assert done["warnings"] == [child]
    assert orders_group.rows() == doubled(FIRST)
    assert orders_group.execute("SELECT count(*) FROM {schema}.items") == [(0,)]


def test_what_is_to_be_resumed_must_be_known(terminal: Terminal, orders_group: OrdersGroup) -> None:
    servers = orders_group.server_options
    assert "open runs: none" in terminal.run("reload", "resume", *servers, exits=2).stderr
    run = left_at(orders_group, "compared")
    unnamed = terminal.run("reload", "resume", *servers, exits=2)
    assert f"seekpoint reload run MODULE:NAME --resume {run}" in unnamed.stderr
    assert "--max-wait takes a length of time" in terminal.job("reload", "run", "--max-wait", "soon", exits=2).stderr


# -- abort and sweep ---------------------------------------------------------------------------------------


def test_abort_ends_a_run_once(terminal: Terminal, orders_group: OrdersGroup) -> None:
    run = str(left_at(orders_group, "compared"))
    assert (
        "--reason is empty: say why the run is aborted"
        in terminal.run("reload", "abort", run, "--reason", " ", *orders_group.database_options, exits=2).stderr
    )
    assert terminal.look("reload", "abort", run, "--reason", "wrong code")["state"] == "aborted"
    assert orders_group.schemas() == []
    again = terminal.run("reload", "abort", run, "--reason", "again", *orders_group.database_options, exits=1)
    assert f"run {run} is aborted: wrong code" in again.stderr
    output = terminal.run("reload", "status", run, *orders_group.database_options).stdout
    assert "begin again: seekpoint reload run MODULE:NAME" in output
    assert "error     wrong code" in output


def test_sweep_ends_the_runs_of_drivers_that_are_gone(terminal: Terminal, orders_group: OrdersGroup) -> None:
    run = left_at(orders_group, "compared")
    nothing = terminal.run("reload", "sweep", *orders_group.database_options)
    assert nothing.stdout == "there is nothing to sweep\n"
    orders_group.execute("UPDATE {schema}.reload_run SET changed_at = now() - interval '3 hours'")
    assert terminal.look("reload", "sweep", "--gone-after", "2h") == {"swept": [str(run)], "left": []}
    assert orders_group.schemas() == []
    wrong = terminal.run("reload", "sweep", "--gone-after", "soon", *orders_group.database_options, exits=2)
    assert "--gone-after takes a length of time such as 90s, 30m, 12h, 7d; not 'soon'" in wrong.stderr


@pytest.mark.long
def test_sweep_leaves_what_is_in_use(terminal: Terminal, orders_group: OrdersGroup) -> None:
    run = left_at(orders_group, "compared")
    (schema,) = orders_group.schemas()
    with orders_group.holding(f"SELECT count(*) FROM {schema}.t0"):
        result = terminal.run("reload", "abort", str(run), "--reason", "no", *orders_group.database_options)
        assert "aborted, not swept" in result.stdout
        assert "drop it later with `seekpoint reload sweep`" in result.stderr
        kept = terminal.run("reload", "sweep", *orders_group.database_options, exits=1)
        assert f"{run}: schema {schema} is still in use" in kept.stderr
    assert terminal.run("reload", "sweep", *orders_group.database_options).stdout == f"{run}: its schema is dropped\n"


def test_no_password_comes_out(terminal: Terminal) -> None:
    for words in (["status"], ["sweep"], ["abort", str(uuid4()), "--reason", "r"]):
        url = "postgresql://u:hunter2@127.0.0.1:1/d"
        assert "hunter2" not in terminal.run("reload", *words, "--database-url", url, exits=3).output


def test_a_task_has_the_records_that_are_asked_for(terminal: Terminal, orders_group: OrdersGroup) -> None:
    terminal.job("reload", "run", "--range-records", "20")
    records = [row[0] for row in orders_group.execute("SELECT records FROM {schema}.reload_staged")]
    assert (sum(records), max(records)) == (len(FIRST), 20)
    assert orders_group.rows() == doubled(FIRST)


# -- Spark -------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_spark_reads_the_log_and_no_password_comes_out(terminal: Terminal, orders_group: OrdersGroup) -> None:
    """Tasks get the name of a variable instead of any password. The session ends with its process."""
    process = terminal.process("reload", "run", "--spark", "local[2]", "--kafka", "sasl.password=hunter2")
    out, stderr = process.communicate(timeout=240)
    assert process.returncode == 0, stderr
    assert "starting Spark on local[2]" in stderr
    assert "hunter2" not in out + stderr
    assert "cut over" in out
    assert orders_group.rows() == doubled(FIRST)
    assert sum(row[0] for row in orders_group.execute("SELECT records FROM {schema}.reload_staged")) == len(FIRST)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--spark", "local[1]", "--spark-conf", "a"], "--spark-conf takes key=value"),
        (["--spark", "lokal[2]"], "'lokal[2]' is not a Spark master: use local, local[4], local[*]"),
    ],
)
def test_options_of_spark_that_are_wrong(terminal: Terminal, options: list[str], message: str) -> None:
    assert message in terminal.job("reload", "run", *options, exits=2).stderr
