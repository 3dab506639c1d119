"""``seekpoint status`` and ``groups``, with workers that run: what is shown, what a probe reports, pauses as plans."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

import pytest

from seekpoint import Limits, events
from seekpoint.admin import Admin, BrokersAway
from seekpoint.errors import ConfigError, Fenced
from support.command import seekpoint
from support.kafka_postgres import Scene
from support.trouble import put_stop

OFTEN = Limits(idle_check=0.1, lag_check=0.1, sample_positions=1)


def where(scene: Scene) -> list[str]:
    return ["--database-url", scene.dsn, "--schema", scene.schema]


def run(scene: Scene, *words: str, exits: int = 0) -> Any:
    return seekpoint(*words, *where(scene), exits=exits)


def listed(scene: Scene) -> Any:
    return json.loads(run(scene, "groups", "list", "--json").stdout)


@pytest.fixture
def sampled(scene: Scene) -> str:
    """The topic of a worker that has applied ten records, has written a sample, and runs."""
    name, _ = scene.log(10)
    worker = scene.worker(name, limits=OFTEN)
    worker.reached(name, 10)
    scene.wait(lambda: [row.lag_records for row in scene.sql("SELECT * FROM {schema}.lag")] == [0])
    return name


def test_status_without_brokers_shows_the_lag_of_the_samples(scene: Scene, sampled: str) -> None:
    [line] = json.loads(run(scene, "status", "--json").stdout)
    assert (line["group"], line["topic"], line["next"], line["end"]) == (scene.group, sampled, 10, 10)
    assert (line["lag"], line["lag_seconds"], line["headroom"]) == (0, 0.0, 10)
    shown = run(scene, "status", scene.group).stdout
    [worker] = scene.sql("SELECT host, pid FROM {schema}.worker")
    assert worker.host in shown
    assert str(worker.pid) in shown
    assert " running " in shown


def test_a_check_is_silent_on_a_healthy_group(scene: Scene, sampled: str) -> None:
    assert sampled
    for more in ([], ["--max-lag", "0"], ["--max-age", "1s"]):
        assert run(scene, "status", scene.group, "--check", *more).stdout == ""
    assert json.loads(run(scene, "status", "--check", "--json").stdout) == {"ok": True, "failures": []}


@pytest.mark.parametrize("fault", ["lag", "age", "stale", "stopped", "unknown"])
def test_a_check_reports_the_fault_that_it_is_for(scene: Scene, sampled: str, fault: str) -> None:
    """Each by the rows that a worker would have written."""
    at = f"{scene.group}: {sampled}/0"
    limits: list[str] = []
    match fault:
        case "lag":
            scene.sql("UPDATE {schema}.position_sample SET log_end = 17")
            limits, said = ["--max-lag", "6"], f"{at}: a lag of 7 records, over 6"
        case "age":
            scene.sql("UPDATE {schema}.position_sample SET log_end = 17",
                      "UPDATE {schema}.partition_offset SET record_time = now() - interval '10 minutes'")  # fmt: skip
            limits, said = ["--max-age", "5m"], " s old, over 300 s"
        case "stale":
            scene.sql("UPDATE {schema}.position_sample SET at = at - interval '4 minutes'")
            said = f"{at}: the lag is not known: the last sample is of "
        case "stopped":
            scene.sql(put_stop("{schema}", "PoisonStop", "10"))
            said = f"{at} stopped at offset 10 (PoisonStop)"
        case _:
            scene.sql("DELETE FROM {schema}.position_sample")
            said = f"{at}: the lag is not known: no sample is stored"
    result = run(scene, "status", scene.group, "--check", *limits, exits=1)
    assert said in result.stdout
    assert len(result.stdout.splitlines()) == 1


def test_a_check_with_brokers_reports_that_all_workers_are_dead(scene: Scene) -> None:
    """The brokers know the lag, so no limit is needed; a paused worker writes no samples."""
    name, _ = scene.log(10)
    worker = scene.worker(name, limits=OFTEN)
    worker.reached(name, 10)
    scene.wait(lambda: [row.lag_records for row in scene.sql("SELECT * FROM {schema}.lag")] == [0])
    worker.stop()
    asked = ["status", scene.group, "--check", "--kafka", f"bootstrap.servers={scene.broker}"]
    assert run(scene, *asked).stdout == ""
    scene.sql("UPDATE {schema}.position_sample SET at = at - interval '3 minutes'")
    [line] = run(scene, *asked, exits=1).stdout.splitlines()
    assert line.startswith(f"{scene.group}: {name}/0: no worker has reported for 18")
    scene.sql("UPDATE {schema}.consumer_group SET paused = true")
    assert run(scene, *asked).stdout == ""
    scene.sql("DELETE FROM {schema}.position_sample", "UPDATE {schema}.consumer_group SET paused = false")
    assert run(scene, *asked).stdout == "", "samples are turned off"


def test_a_check_of_a_group_that_is_not_there(scene: Scene) -> None:
    assert "has no group 'other'" in run(scene, "status", "other", "--check", exits=2).stderr
    assert "no worker has claimed anything yet" in run(scene, "status", "--check", exits=1).stdout


def test_a_partition_without_an_answer_leaves_those_of_the_others(scene: Scene, sampled: str) -> None:
    """Its leader is away: here, the brokers do not have it."""
    columns = [row.name for row in scene.sql(
        "SELECT attname AS name FROM pg_attribute WHERE attrelid = '{schema}.partition_offset'::regclass "
        "AND attnum > 0 AND NOT attisdropped AND attname <> 'partition'"
    )]  # fmt: skip
    names = ", ".join(columns)
    scene.sql(f"INSERT INTO {{schema}}.partition_offset ({names}, partition) "
              f"SELECT {names}, 7 FROM {{schema}}.partition_offset")  # fmt: skip
    admin = Admin(scene.engine, {"bootstrap.servers": scene.broker, "log_level": 0}, schema=scene.schema)
    [group], doubts = admin.status([scene.group])
    assert [(at.position.partition.number, at.end, at.lag) for at in group.partitions] == [(0, 10, 0), (7, None, None)]
    assert doubts == [f"no broker answers for the log of {sampled}/7; its lag is as of the last sample"]
    assert not any(isinstance(each, BrokersAway) for each in doubts)
    shown = run(scene, "status", scene.group, "--kafka", f"bootstrap.servers={scene.broker}", exits=1)
    assert f"warning: {doubts[0]}" in shown.stderr


@pytest.fixture(autouse=True)
def _rare_samples(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sample each: what a test writes into it stays."""
    if "fault" in request.fixturenames:
        monkeypatch.setattr(sys.modules[__name__], "OFTEN", Limits(idle_check=0.1, lag_check=0.1, sample_positions=120))


def test_limits_of_a_check_need_the_check(scene: Scene) -> None:
    assert "--check" in run(scene, "status", "--max-lag", "5", exits=2).stderr
    assert "5 minutes" in run(scene, "status", "--check", "--max-age", "5 minutes", exits=2).stderr


def test_partitions_are_sorted_by_what_is_worst(scene: Scene) -> None:
    name = scene.topic(3)
    worker = scene.worker(name, limits=OFTEN)
    worker.placed(3)
    worker.stop()
    values = ", ".join(f"('{scene.group}', '{name}', {n}, '{scene.topic_id(name)}', 0, {start}, {end})"
                       for n, start, end in ((0, -5, 1), (1, -9, 7), (2, -1, 3)))  # fmt: skip
    scene.sql("DELETE FROM {schema}.position_sample",
              "INSERT INTO {schema}.position_sample (consumer_group, topic, partition, topic_id, next_offset, "
              f"log_start, log_end) VALUES {values}")  # fmt: skip
    for by, order in (("name", [0, 1, 2]), ("lag", [1, 2, 0]), ("headroom", [2, 0, 1])):
        lines = json.loads(run(scene, "status", "--sort", by, "--json").stdout)
        assert [line["partition"] for line in lines] == order, by


@pytest.mark.long
def test_watch_shows_it_again_until_it_is_interrupted(scene: Scene, sampled: str) -> None:
    command = [sys.executable, "-m", "seekpoint.cli.main", "status", scene.group, *where(scene), "--watch", "0.2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        shown = 0
        while shown < 3:
            shown += sampled in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")


def test_groups_are_listed(scene: Scene, sampled: str) -> None:
    assert sampled
    [group] = listed(scene)
    assert (group["name"], group["partitions"], group["owned"], group["workers"]) == (scene.group, 1, 1, 1)
    assert (group["lag"], group["pause"], group["stopped"]) == (0, None, 0)
    assert scene.group in run(scene, "groups", "list").stdout


def test_a_pause_is_a_plan_first(scene: Scene) -> None:
    """Workers run: they wait, and continue at the stored offset; each record is applied once."""
    name, stored = scene.log(5)
    worker = scene.worker(name, limits=OFTEN)
    worker.reached(name, 5)
    planned = run(scene, "groups", "pause", scene.group).stdout
    assert planned.startswith(f"would pause {scene.group}:\n  - open batches are waited for")
    assert "the owners of 1 partitions are fenced" in planned
    assert listed(scene)[0]["pause"] is None
    assert "--reason" in run(scene, "groups", "pause", scene.group, "--apply", exits=2).stderr

    done = run(scene, "groups", "pause", scene.group, "--execute", "--reason", "maintenance", "--actor", "ada")
    assert done.stdout == f"{scene.group} is paused\n"
    assert listed(scene)[0]["pause"] == {"by": "ada", "reason": "maintenance", "abandoned": None}
    worker.seen.wait_for(events.Paused)
    stored += scene.produce(name, ["more"])
    again = run(scene, "groups", "pause", scene.group, "--apply", "--reason", "twice").stdout
    assert again == f"{scene.group} is paused by ada: maintenance; nothing to do\n"
    assert scene.positions() == {(name, 0): 5}

    run(scene, "groups", "resume", scene.group, "--apply", "--reason", "done", "--actor", "ada")
    worker.reached(name, 6)
    worker.stop()
    scene.book.assert_holds(name, stored)
    actions = scene.sql("SELECT action, actor, reason FROM {schema}.admin_action ORDER BY id")
    assert [tuple(row) for row in actions] == [("pause", "ada", "maintenance"), ("resume", "ada", "done")]


def test_of_two_operators_who_apply_the_same_plan_one_wins(scene: Scene, sampled: str) -> None:
    assert sampled
    admin = Admin(scene.engine, schema=scene.schema)
    plan = admin.plan_pause(scene.group)
    admin.apply(plan, reason="first", actor="ada")
    with pytest.raises(Fenced, match="is paused by ada since the plan was made: nothing was done"):
        admin.apply(plan, reason="second", actor="bob")
    (group,) = admin.status([scene.group])[0]
    assert group.pause is not None
    assert (group.pause.by, group.pause.reason) == ("ada", "first")
    admin.apply(admin.plan_resume(scene.group), reason="done")


def test_a_group_that_is_not_known(scene: Scene, sampled: str) -> None:
    assert sampled
    for words in (["groups", "pause", "nobody"], ["groups", "resume", "nobody"], ["status", "nobody"]):
        assert "has no group 'nobody'; it knows" in run(scene, *words, exits=2).stderr
    admin = Admin(scene.engine, schema=scene.schema)
    with pytest.raises(ConfigError, match="has no group 'nobody'"):
        admin.status(["nobody"])
    with pytest.raises(ConfigError, match="has no group 'nobody'"):
        admin.plan_pause("nobody")
