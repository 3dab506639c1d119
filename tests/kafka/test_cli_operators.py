"""``seekpoint status`` and ``groups``, with workers that run: what is shown, what a probe reports, pauses as plans."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from typing import Any

import pytest

from seekpoint import Limits, events
from seekpoint.admin import Admin, BrokersAway
from seekpoint.errors import ConfigError, Fenced
from support.command import seekpoint
from support.events import Gate
from support.trouble import put_stop
from support.worker_group import WorkerGroup

OFTEN = Limits(idle_check=0.1, lag_check=0.1, sample_positions=1)


def run(worker_group: WorkerGroup, *words: str, exits: int = 0) -> Any:
    return seekpoint(*words, *worker_group.database_options, exits=exits)


def listed(worker_group: WorkerGroup) -> Any:
    return json.loads(run(worker_group, "groups", "list", "--json").stdout)


@pytest.fixture
def sampled_topic(worker_group: WorkerGroup) -> str:
    """The topic of a worker that has applied ten records, has written a sample, and runs."""
    name, _ = worker_group.log(10)
    worker = worker_group.worker(name, limits=OFTEN)
    worker.reached(name, 10)
    worker_group.wait(lambda: [row.lag_records for row in worker_group.sql("SELECT * FROM {schema}.lag")] == [0])
    return name


def test_status_without_brokers_shows_the_lag_of_the_samples(worker_group: WorkerGroup, sampled_topic: str) -> None:
    [line] = json.loads(run(worker_group, "status", "--json").stdout)
    assert (line["group"], line["topic"], line["next"], line["end"]) == (worker_group.group, sampled_topic, 10, 10)
    assert (line["lag"], line["lag_seconds"], line["headroom"]) == (0, 0.0, 10)
    shown = run(worker_group, "status", worker_group.group).stdout
    [worker] = worker_group.sql("SELECT host, pid FROM {schema}.worker")
    assert worker.host in shown
    assert str(worker.pid) in shown
    assert " running " in shown


def test_a_check_is_silent_on_a_healthy_group(worker_group: WorkerGroup, sampled_topic: str) -> None:
    assert sampled_topic
    for more in ([], ["--max-lag", "0"], ["--max-age", "1s"]):
        assert run(worker_group, "status", worker_group.group, "--check", *more).stdout == ""
    assert json.loads(run(worker_group, "status", "--check", "--json").stdout) == {"ok": True, "failures": []}


@pytest.mark.parametrize("fault", ["lag", "age", "stale", "stopped", "unknown"])
def test_a_check_reports_the_fault_that_it_is_for(worker_group: WorkerGroup, sampled_topic: str, fault: str) -> None:
    """Each by the rows that a worker would have written."""
    where = f"{worker_group.group}: {sampled_topic}/0"
    limits: list[str] = []
    match fault:
        case "lag":
            worker_group.sql("UPDATE {schema}.position_sample SET log_end = 17")
            limits, message = ["--max-lag", "6"], f"{where}: a lag of 7 records, over 6"
        case "age":
            worker_group.sql("UPDATE {schema}.position_sample SET log_end = 17",
                      "UPDATE {schema}.partition_offset SET record_time = now() - interval '10 minutes'")  # fmt: skip
            limits, message = ["--max-age", "5m"], " old, over 5 min"
        case "stale":
            worker_group.sql("UPDATE {schema}.position_sample SET at = at - interval '4 minutes'")
            message = f"{where}: the lag is not known: the last sample is from "
        case "stopped":
            worker_group.sql(put_stop("{schema}", "PoisonStop", "10"))
            message = f"{where} stopped at offset 10 (PoisonStop)"
        case _:
            worker_group.sql("DELETE FROM {schema}.position_sample")
            message = f"{where}: the lag is not known: no sample is stored"
    result = run(worker_group, "status", worker_group.group, "--check", *limits, exits=1)
    assert message in result.stdout
    assert len(result.stdout.splitlines()) == 1


def test_a_check_with_brokers_reports_that_all_workers_are_dead(worker_group: WorkerGroup) -> None:
    """The brokers know the lag, so no limit is needed; a paused worker writes no samples."""
    name, _ = worker_group.log(10)
    worker = worker_group.worker(name, limits=OFTEN)
    worker.reached(name, 10)
    worker_group.wait(lambda: [row.lag_records for row in worker_group.sql("SELECT * FROM {schema}.lag")] == [0])
    worker.stop()
    asked = ["status", worker_group.group, "--check", "--kafka", f"bootstrap.servers={worker_group.broker}"]
    assert run(worker_group, *asked).stdout == ""
    worker_group.sql("UPDATE {schema}.position_sample SET at = at - interval '3 minutes'")
    [line] = run(worker_group, *asked, exits=1).stdout.splitlines()
    assert line.startswith(f"{worker_group.group}: {name}/0: no worker has reported for 3 min")
    worker_group.sql("UPDATE {schema}.consumer_group SET paused = true")
    assert run(worker_group, *asked).stdout == ""
    worker_group.sql("DELETE FROM {schema}.position_sample", "UPDATE {schema}.consumer_group SET paused = false")
    assert run(worker_group, *asked).stdout == "", "samples are turned off"


@pytest.mark.pins("batch")
def test_a_worker_in_a_long_transaction_is_shown_with_what_it_does(worker_group: WorkerGroup) -> None:
    """Its thread shows nothing meanwhile; else it would be "gone" after a minute, and alarm, while it works."""
    name, gate = worker_group.topic(), Gate(events.Held)
    worker_group.produce(name, 3)
    worker = worker_group.worker(name, limits=OFTEN, observe=[gate], partitions=[(name, 0)])
    gate.wait()

    def shown() -> str:
        return str(run(worker_group, "status", worker_group.group).stdout)

    sentence = re.compile(r"^worker \w{8}: in a transaction for \d+ s, 3 records$", re.MULTILINE)
    worker_group.wait(lambda: sentence.search(shown()) is not None)
    [line] = json.loads(run(worker_group, "status", worker_group.group, "--json").stdout)
    assert (line["worker"]["state"], line["worker"]["trouble"]) == ("running", None)
    assert re.fullmatch(r"in a transaction for \d+ s, 3 records", line["worker"]["activity"])
    gate.open()
    worker.reached(name, 3)
    worker_group.wait(lambda: "in a transaction" not in shown())


def test_a_check_of_a_group_that_is_not_there(worker_group: WorkerGroup) -> None:
    assert "has no group 'other'" in run(worker_group, "status", "other", "--check", exits=2).stderr
    assert "no worker has claimed anything yet" in run(worker_group, "status", "--check", exits=1).stdout


def test_a_partition_without_an_answer_leaves_those_of_the_others(
    worker_group: WorkerGroup, sampled_topic: str
) -> None:
    """Its leader is away: here, the brokers do not have it."""
    columns = [row.name for row in worker_group.sql(
        "SELECT attname AS name FROM pg_attribute WHERE attrelid = '{schema}.partition_offset'::regclass "
        "AND attnum > 0 AND NOT attisdropped AND attname <> 'partition'"
    )]  # fmt: skip
    names = ", ".join(columns)
    worker_group.sql(f"INSERT INTO {{schema}}.partition_offset ({names}, partition) "
              f"SELECT {names}, 7 FROM {{schema}}.partition_offset")  # fmt: skip
    admin = Admin(
        worker_group.engine, {"bootstrap.servers": worker_group.broker, "log_level": 0}, schema=worker_group.schema
    )
    [group], doubts = admin.status([worker_group.group])
    assert [(partition.position.partition.number, partition.end, partition.lag) for partition in group.partitions] == [
        (0, 10, 0),
        (7, None, None),
    ]
    assert doubts == [f"no broker answers for the log of {sampled_topic}/7; its lag is as of the last sample"]
    assert not any(isinstance(doubt, BrokersAway) for doubt in doubts)
    shown = run(
        worker_group, "status", worker_group.group, "--kafka", f"bootstrap.servers={worker_group.broker}", exits=1
    )
    assert f"warning: {doubts[0]}" in shown.stderr


@pytest.fixture(autouse=True)
def _rare_samples(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sample each: what a test writes into it stays."""
    if "fault" in request.fixturenames:
        monkeypatch.setattr(sys.modules[__name__], "OFTEN", Limits(idle_check=0.1, lag_check=0.1, sample_positions=120))


def test_limits_of_a_check_need_the_check(worker_group: WorkerGroup) -> None:
    assert "--check" in run(worker_group, "status", "--max-lag", "5", exits=2).stderr
    assert "5 minutes" in run(worker_group, "status", "--check", "--max-age", "5 minutes", exits=2).stderr


def test_partitions_are_sorted_by_what_is_worst(worker_group: WorkerGroup) -> None:
    name = worker_group.topic(3)
    worker = worker_group.worker(name, limits=OFTEN)
    worker.placed(3)
    worker.stop()
    values = ", ".join(f"('{worker_group.group}', '{name}', {n}, '{worker_group.topic_id(name)}', 0, {start}, {end})"
                       for n, start, end in ((0, -5, 1), (1, -9, 7), (2, -1, 3)))  # fmt: skip
    worker_group.sql("DELETE FROM {schema}.position_sample",
              "INSERT INTO {schema}.position_sample (consumer_group, topic, partition, topic_id, next_offset, "
              f"log_start, log_end) VALUES {values}")  # fmt: skip
    for by, order in (("name", [0, 1, 2]), ("lag", [1, 2, 0]), ("headroom", [2, 0, 1])):
        lines = json.loads(run(worker_group, "status", "--sort", by, "--json").stdout)
        assert [line["partition"] for line in lines] == order, by


@pytest.mark.long
def test_watch_shows_it_again_until_it_is_interrupted(worker_group: WorkerGroup, sampled_topic: str) -> None:
    command = [
        sys.executable,
        "-m",
        "seekpoint.cli.main",
        "status",
        worker_group.group,
        *worker_group.database_options,
        "--watch",
        "0.2",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        shown = 0
        while shown < 3:
            shown += sampled_topic in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")


def test_groups_are_listed(worker_group: WorkerGroup, sampled_topic: str) -> None:
    assert sampled_topic
    [group] = listed(worker_group)
    assert (group["name"], group["partitions"], group["owned"], group["workers"]) == (worker_group.group, 1, 1, 1)
    assert (group["lag"], group["pause"], group["stopped"]) == (0, None, 0)
    assert worker_group.group in run(worker_group, "groups", "list").stdout


def test_a_pause_is_a_plan_first(worker_group: WorkerGroup) -> None:
    """Workers run: they wait, and continue at the stored offset; each record is applied once."""
    name, stored = worker_group.log(5)
    worker = worker_group.worker(name, limits=OFTEN)
    worker.reached(name, 5)
    planned = run(worker_group, "groups", "pause", worker_group.group).stdout
    assert planned.startswith(f"would pause {worker_group.group}:\n  - the pause waits for open batches, at most ")
    assert "the owners of 1 partitions are fenced" in planned
    assert listed(worker_group)[0]["pause"] is None
    assert "--reason" in run(worker_group, "groups", "pause", worker_group.group, "--apply", exits=2).stderr

    done = run(
        worker_group, "groups", "pause", worker_group.group, "--execute", "--reason", "maintenance", "--actor", "ada"
    )
    assert done.stdout == f"{worker_group.group} is paused\n"
    assert listed(worker_group)[0]["pause"] == {"by": "ada", "reason": "maintenance", "abandoned": None}
    worker.seen.wait_for(events.Paused)
    stored += worker_group.produce(name, ["more"])
    again = run(worker_group, "groups", "pause", worker_group.group, "--apply", "--reason", "twice").stdout
    assert again == f"{worker_group.group} is paused by ada: maintenance; nothing to do\n"
    assert worker_group.positions() == {(name, 0): 5}

    run(worker_group, "groups", "resume", worker_group.group, "--apply", "--reason", "done", "--actor", "ada")
    worker.reached(name, 6)
    worker.stop()
    worker_group.record_table.assert_holds(name, stored)
    actions = worker_group.sql("SELECT action, actor, reason FROM {schema}.admin_action ORDER BY id")
    assert [tuple(row) for row in actions] == [("pause", "ada", "maintenance"), ("resume", "ada", "done")]


def test_of_two_operators_who_apply_the_same_plan_one_wins(worker_group: WorkerGroup, sampled_topic: str) -> None:
    assert sampled_topic
    admin = Admin(worker_group.engine, schema=worker_group.schema)
    plan = admin.plan_pause(worker_group.group)
    admin.apply(plan, reason="first", actor="ada")
    with pytest.raises(Fenced, match="and is paused by ada now: nothing was done"):
        admin.apply(plan, reason="second", actor="bob")
    (group,) = admin.status([worker_group.group])[0]
    assert group.pause is not None
    assert (group.pause.by, group.pause.reason) == ("ada", "first")
    admin.apply(admin.plan_resume(worker_group.group), reason="done")


def test_a_group_that_is_not_known(worker_group: WorkerGroup, sampled_topic: str) -> None:
    assert sampled_topic
    for words in (["groups", "pause", "unknown"], ["groups", "resume", "unknown"], ["status", "unknown"]):
        assert "has no group 'unknown'; its groups are" in run(worker_group, *words, exits=2).stderr
    admin = Admin(worker_group.engine, schema=worker_group.schema)
    with pytest.raises(ConfigError, match="has no group 'unknown'"):
        admin.status(["unknown"])
    with pytest.raises(ConfigError, match="has no group 'unknown'"):
        admin.plan_pause("unknown")
