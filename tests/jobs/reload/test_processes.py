"""Staging by processes of this machine: the same rows if a process is killed, and errors that name their cause."""

from __future__ import annotations

import importlib
import os
import secrets
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from seekpoint.errors import ConfigError, RangeLost, ReloadRefused
from seekpoint.jobs.reload import Reload
from seekpoint.jobs.staging import local_stager
from seekpoint.jobs.staging.task_errors import error_as_text, error_of
from seekpoint.records import Partition
from support.before_cutover import reloaded, settled, started
from support.reload_orders import PLAIN, OrdersGroup, doubled, of
from support.waiting import until

FIRST = [of(n % 40, n, n) for n in range(200)]

# Says which process it is, then waits until the test kills it; only the first one at that record.
HALTING = (
    PLAIN
    + """
import os, pathlib, threading

def first(record):
    if record.offset == 70:
        try:
            os.close(os.open({marker!r} + ".once", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        pathlib.Path({marker!r}).write_text(str(os.getpid()) + " ")
        threading.Event().wait()
"""
)

DEADLY = (
    PLAIN
    + """
import os, signal

def first(record):
    if record.offset == 70:
        os.kill(os.getpid(), signal.SIGKILL)
"""
)

ENDING = PLAIN + "\nimport multiprocessing, os\nif multiprocessing.parent_process(): os._exit(3)\n"


@pytest.fixture
def applied_pipeline(
    orders_group: OrdersGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], str]:
    """``applied_pipeline(source)`` has records applied, and returns the name of version 2's pipeline."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(source: str) -> str:
        settled(orders_group, FIRST)
        module, marker = f"made_{secrets.token_hex(6)}", str(tmp_path / "marker")
        (tmp_path / f"{module}.py").write_text(
            source.format(group=orders_group.group, topic=orders_group.topic, schema=orders_group.schema, marker=marker)
        )
        importlib.invalidate_caches()
        return f"{module}:orders"

    return make


def reload_of(orders_group: OrdersGroup, name: Any, **options: Any) -> Reload:
    return orders_group.reload([name], **{"range_records": 50, "processes": 2, **options})


def test_processes_stage_what_one_would(orders_group: OrdersGroup, applied_pipeline: Callable[[str], str]) -> None:
    told_: list[tuple[str, int, int]] = []
    reloaded(reload_of(orders_group, applied_pipeline(PLAIN), progress=lambda *step: told_.append(step)))
    assert orders_group.rows() == doubled(FIRST)
    assert [done for what, done, _ in told_ if what == "staging"] == [0, 50, 100, 150, 200]


@pytest.mark.long
def test_a_process_that_is_killed_is_replaced(
    orders_group: OrdersGroup, applied_pipeline: Callable[[str], str], tmp_path: Path
) -> None:
    """SIGKILL in mid-transaction: nothing of its attempt is there, and the range is staged again."""
    command: list[bytes] = []

    def kill(*step: Any) -> None:
        """Called when the other process has staged something; the one that waits is killed, once."""
        marker = tmp_path / "marker"
        if step[1] == 150 and not command:  # three of four ranges: the fourth one's process waits
            pid = halted_process(marker)
            own = set(os.environb.items())  # what it inherits is not the pool's doing: a test of Spark's may be there
            variables = dict(
                line.split(b"=", 1) for line in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if line
            )
            added = [b"%b=%b" % item for item in variables.items() if item not in own]
            command.append(b"\0".join([Path(f"/proc/{pid}/cmdline").read_bytes(), *added]))
            os.kill(pid, signal.SIGKILL)

    reload = reload_of(orders_group, applied_pipeline(HALTING), progress=kill)
    driver = reload.open()
    reload.stage(driver)
    assert command, "no process was killed"
    password = orders_group.engine.url.password
    for secret in (str(orders_group.engine.url.database) + "?", f":{password}@" if password else "postgresql+psycopg"):
        assert secret.encode() not in command[0]
    staged = orders_group.execute("SELECT from_offset, to_offset FROM {schema}.reload_staged ORDER BY 1")
    assert staged == [(0, 50), (50, 100), (100, 150), (150, 200)]
    reload.run(driver)
    assert orders_group.rows() == doubled(FIRST)


@pytest.mark.long
def test_processes_that_crash_repeatedly_are_reported_and_the_run_stays_open(
    orders_group: OrdersGroup, applied_pipeline: Callable[[str], str]
) -> None:
    reload = reload_of(orders_group, applied_pipeline(DEADLY))
    driver = reload.open()
    with pytest.raises(ChildProcessError, match=r"processes ended .* by SIGKILL \(exit code -9\) at .* \[50, 100\)"):
        reload.stage(driver)
    assert reload.runs.get(driver.run.id).state == "staging"
    assert not children()


@pytest.mark.long
def test_processes_that_cannot_begin_are_reported(
    orders_group: OrdersGroup, applied_pipeline: Callable[[str], str]
) -> None:
    reload = reload_of(orders_group, applied_pipeline(ENDING))
    with pytest.raises(ChildProcessError, match=r"6 processes ended .* exited \(exit code 3\) at"):
        reload.stage(reload.open())


def test_a_process_that_has_not_exited_is_reported_without_an_exit_code() -> None:
    member: Any = SimpleNamespace(process=SimpleNamespace(exitcode=None))
    message = local_stager._why(member, None, 6)
    assert "the last one stopped answering, and has not exited, at no range" in message
    assert "None" not in message


@pytest.mark.long("other ends of the processes")
def test_processes_that_were_started_are_ended_if_another_cannot_be(
    orders_group: OrdersGroup, applied_pipeline: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at a limit of processes or memory; the run stays open."""
    start, processes = local_stager._SPAWN.Process.start, list[Any]()

    def limited(process: Any) -> None:
        if processes:
            raise BlockingIOError("Resource temporarily unavailable")
        start(process)
        processes.append(process)

    reload = reload_of(orders_group, applied_pipeline(PLAIN))
    driver = reload.open()
    with monkeypatch.context() as patch:
        patch.setattr(local_stager._SPAWN.Process, "start", limited)
        with pytest.raises(BlockingIOError, match="temporarily unavailable"):
            reload.stage(driver)
    assert [process.is_alive() for process in processes] == [False]
    reload.run(reload.take_over(driver.run.id))
    assert orders_group.rows() == doubled(FIRST)


@pytest.mark.long("other ends of the processes")
def test_the_error_of_a_record_that_ends_the_run_is_raised_unchanged(
    orders_group: OrdersGroup, applied_pipeline: Callable[[str], str]
) -> None:
    name = applied_pipeline(PLAIN)
    orders_group.produce(orders_group.topic, [of(7, 2_000)], partition=0)  # version 2 refuses it
    orders_group.work(len(FIRST) + 1)
    reload = reload_of(orders_group, name)
    driver = reload.open()
    with pytest.raises(ReloadRefused, match="offset 200: row: ValueError: too much") as refused:
        reload.stage(driver)
    assert "Fix the pipeline" in refused.value.reasons[0]
    assert reload.runs.get(driver.run.id).state == "failed"
    assert not children()


def test_an_error_that_is_not_ours_travels_too(
    orders_group: OrdersGroup, applied_pipeline: Callable[[str], str]
) -> None:
    """A module that cannot be imported there: with its own error."""
    source = PLAIN + "\nimport multiprocessing\nassert not multiprocessing.parent_process(), 'only here'\n"
    reload = reload_of(orders_group, applied_pipeline(source))
    with pytest.raises(AssertionError, match="only here"):
        reload.stage(reload.open())


@pytest.mark.long("other ends of the processes")
def test_a_caller_that_stops_iterating_ends_the_processes(
    orders_group: OrdersGroup, applied_pipeline: Callable[[str], str], tmp_path: Path
) -> None:
    class Stop(BaseException):
        pass

    def stop(*step: Any) -> None:
        if step[1] == 150:
            halted_process(tmp_path / "marker")
            raise Stop

    reload = reload_of(orders_group, applied_pipeline(HALTING), progress=stop)
    with pytest.raises(Stop):
        reload.stage(reload.open())
    assert not children()


@pytest.mark.long("other ends of the processes")
def test_what_cannot_be_sent_is_refused(orders_group: OrdersGroup, applied_pipeline: Callable[[str], str]) -> None:
    with pytest.raises(ConfigError, match=r"processes must be 0 \(stage in this process\) or more, got -1"):
        orders_group.reload(processes=-1)
    name = applied_pipeline(PLAIN)
    with pytest.raises(ConfigError, match="give stager= or processes=, not both"):
        orders_group.reload(processes=2, stager=orders_group.reload()._stager)
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        orders_group.reload(range_records=0)
    nameless, driver = started(orders_group.reload(processes=2))
    with pytest.raises(
        ConfigError, match=f"cannot import the pipeline of group '{orders_group.group}'.* as 'module:name'"
    ):
        nameless.stage(driver)
    calling = reload_of(orders_group, name)
    calling._stager._kafka = {**calling.kafka, "oauth_cb": lambda _: None}  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="callbacks must be functions of a module"):
        calling.stage(calling.take_over(driver.run.id))
    other = reload_of(orders_group, name)
    other.run(other.take_over(driver.run.id))
    assert orders_group.rows() == doubled(FIRST)


def test_errors_travel_as_text() -> None:
    lost = error_of(error_as_text(RangeLost(Partition("orders", 3), 7, "retention\x00")))
    assert isinstance(lost, RangeLost)
    assert (lost.partition, lost.offset) == (Partition("orders", 3), 7)
    assert str(lost) == "orders/3 cannot be read at offset 7: retention\x00 [SP1406]"


def halted_process(marker: Path) -> int:
    """The process that stands still, as soon as it does: it may still be importing when the others are done."""
    until(lambda: marker.exists() and marker.read_text().endswith(" "), "a process to stand still")
    return int(marker.read_text())


def children() -> list[str]:
    """Processes of ours that stage, as the system knows them."""
    done = subprocess.run(
        ["ps", "--ppid", str(os.getpid()), "-o", "args="], capture_output=True, text=True, check=False
    )
    return [line for line in done.stdout.splitlines() if "multiprocessing.spawn" in line]
