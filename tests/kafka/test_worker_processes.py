"""``seekpoint run --workers N``: children that are killed, drained, listen on ports, and end with their parent."""

from __future__ import annotations

import os
import random
import secrets
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.cli_project import HANGING, TO_TABLE, Process, Project
from support.operators_account import OperatorsAccount
from support.probe import ask, free_ports
from support.waiting import until

KILLS = int(os.environ.get("SEEKPOINT_KILLS", "6"))
# Seconds: a process imports everything, and so do the others that start with it; on busy cores each takes a minute.
STARTED = 300.0


def children(process: Process) -> set[int]:
    return {child.pid for child in psutil.Process(process.pid).children()}


def are_ready(ports: Sequence[int]) -> bool:
    return all(ask(port, "/ready")[0] == 200 for port in ports)


def have_replaced(process: Process, ports: Sequence[int], killed: set[int]) -> bool:
    return not killed & children(process) and are_ready(ports)


def start(project: Project, ports: Sequence[int]) -> Process:
    more = ["--workers", str(len(ports)), "--listen", f"127.0.0.1:{ports[0]}"]
    fast = ["--kafka", "session.timeout.ms=6000", "--kafka", "heartbeat.interval.ms=500"]
    process = project.start("run", f"{project.module(TO_TABLE)}:pipe", *project.options(), *fast, *more)
    until(lambda: are_ready(ports), f"{len(ports)} workers that are ready", STARTED)
    return process


def records(port: int) -> float:
    """How many records the worker on this port has applied."""
    families = text_string_to_metric_families(ask(port, "/metrics")[1].decode())
    return sum(sample.value for family in families for sample in family.samples if sample.name == RECORDS)


RECORDS = "seekpoint_records_total"


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.long
def test_children_that_are_killed_under_load_lose_and_repeat_nothing(
    project: Project, lines: None, topic: Callable[..., str], operators_account: OperatorsAccount
) -> None:
    """`make operators KILLS=20` kills 20."""
    seed = int(os.environ.get("SEED", secrets.randbelow(10**9)))
    print(f"SEED={seed}")
    chance, ports = random.Random(seed), free_ports(4)
    project.topic = topic(4)
    process = start(project, ports)
    expected: list[str] = []
    for number in count():
        if operators_account.children_killed >= KILLS:
            break
        values: list[str | bytes] = [f"{number}-{n}" for n in range(400)]
        for partition in range(4):
            project.produce(values[partition::4], partition=partition)
        expected += map(str, values)
        victims = set(chance.sample(sorted(children(process)), k=chance.choice([1, 1, 2])))
        for victim in victims:
            os.kill(victim, signal.SIGKILL)
            operators_account.children_killed += 1
        until(partial(have_replaced, process, ports, victims), "4 workers again", STARTED)
    until(lambda: len(project.lines()) >= len(expected), "all records applied", STARTED)
    operators_account.add_rows(project.lines(), expected)
    last = children(process)
    process.signal(signal.SIGTERM)
    assert process.end() == 0, process.output
    assert all(map(gone, last))


@pytest.mark.long
def test_each_child_answers_on_its_own_port_and_sigterm_drains_all(
    project: Project, lines: None, topic: Callable[..., str]
) -> None:
    project.topic, ports = topic(2), free_ports(2)
    process = start(project, ports)
    sent: list[str] = []

    def both_have_applied() -> bool:
        """While the second one joins, the first one has both partitions."""
        sent.append(f"r{len(sent)}")
        project.produce([sent[-1]], partition=len(sent) % 2)
        return all(map(records, ports))

    until(both_have_applied, "records of each worker at its own port", STARTED)
    until(lambda: sum(map(records, ports)) == len(sent), "all records, each at one port")
    assert Counter(project.lines()) == Counter(sent)
    process.signal(signal.SIGTERM)
    assert process.end() == 0, process.output
    assert process.output.count("drained: ") == 2
    assert [ask(port, "/live")[0] for port in ports] == [0, 0]


@pytest.mark.long
def test_a_child_that_is_killed_starts_again_on_its_port_after_a_wait_that_doubles(
    project: Project, lines: None
) -> None:
    ports = free_ports(1)
    process = start(project, ports)
    for wait in ("0.5", "1.0", "2.0"):
        [victim] = children(process)
        os.kill(victim, signal.SIGKILL)
        process.wait_for(f"worker 1 ended by SIGKILL; it starts again in {wait} s")
        until(partial(have_replaced, process, ports, {victim}), "another worker", STARTED)
    project.produce(["a"])
    until(lambda: project.lines() == ["a"], "the record applied")


@pytest.mark.long
def test_children_end_when_the_parent_is_killed(project: Project, lines: None) -> None:
    process = start(project, free_ports(2))
    left = children(process)
    assert len(left) == 2
    process.signal(signal.SIGKILL)
    process.end()
    until(lambda: all(map(gone, left)), "the children have ended")


@pytest.mark.long
def test_a_target_that_is_wrong_ends_all(project: Project, lines: None) -> None:
    process = project.start("run", f"{project.module(TO_TABLE)}:missing", *project.options(), "--workers", "2")
    assert process.end(STARTED) == 2, process.output
    assert "ended with exit code 2: a restart does not help, so all workers stop" in process.output


@pytest.mark.long
def test_a_child_that_is_not_live_is_killed_and_starts_again(project: Project) -> None:
    module = project.module(HANGING)
    project.produce(["a"])
    process = project.start("run", f"{module}:worker", "--workers", "1")
    process.wait_for("has not reported in time that it is live: killed", seconds=STARTED)
    process.wait_for("worker 1 ended by SIGKILL; it starts again in 0.5 s")


@pytest.mark.long
def test_ctrl_c_of_the_terminal_reaches_the_parent_alone(project: Project, lines: None) -> None:
    process = start(project, free_ports(1))
    [child] = children(process)
    assert os.getpgid(child) != os.getpgid(process.pid)
    process.signal(signal.SIGINT)
    assert process.end() == 0, process.output
