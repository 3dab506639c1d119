"""``seekpoint offsets``: resets as plans, with workers that run and without; each target; two operators."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition

from seekpoint import Limits, OnPoison, Partition
from seekpoint.admin import ResetPlan, ResetTo
from seekpoint.admin import admin as seekpoint_admin
from seekpoint.errors import ClusterChanged, ConfigError, Fenced
from seekpoint.kafka.commits import Commit
from support.command import seekpoint
from support.every_row import check_each, for_each
from support.lost_log import admin_of
from support.trouble import put_stop
from support.worker_group import WorkerGroup

OFTEN = Limits(idle_check=0.1, lag_check=0.1, sample_positions=1)


def run(worker_group: WorkerGroup, *words: str, exits: int = 0, brokers: bool = True) -> Any:
    servers = worker_group.server_options if brokers and words[1] == "reset" else worker_group.database_options
    return seekpoint(*words, *servers, exits=exits)


def reset(worker_group: WorkerGroup, *words: str, exits: int = 0, brokers: bool = True) -> Any:
    """Plan with these words."""
    return run(worker_group, "offsets", "reset", worker_group.group, *words, exits=exits, brokers=brokers)


def applied(worker_group: WorkerGroup, *words: str, exits: int = 0, brokers: bool = True) -> Any:
    return reset(
        worker_group, *words, "--apply", "--reason", "ticket 88", "--actor", "ada", exits=exits, brokers=brokers
    )


def losses(worker_group: WorkerGroup) -> list[tuple[Any, ...]]:
    rows = worker_group.sql(
        "SELECT partition, from_offset, to_offset, reason, actor FROM {schema}.lost_range ORDER BY id"
    )
    return [tuple(row) for row in rows]


@pytest.fixture(params=["running", "stopped"])
def applied_topic(request: pytest.FixtureRequest, worker_group: WorkerGroup) -> str:
    """A topic of two partitions whose ten records each are applied, by a worker that runs or has stopped."""
    name, _ = worker_group.log(10, 2)
    worker = worker_group.worker(name, limits=OFTEN)
    worker_group.wait_for_position(name, 10, 0)
    worker_group.wait_for_position(name, 10, 1)
    worker_group.wait(
        lambda: len(worker_group.sql("SELECT 1 FROM {schema}.consumer_group WHERE declared IS NOT NULL")) > 0
    )
    if request.param == "stopped":
        worker.stop()
    return name


@pytest.fixture
def stopped_topic(worker_group: WorkerGroup) -> str:
    """A topic whose ten records are applied; no worker runs."""
    name, _ = worker_group.log(10)
    worker = worker_group.worker(name, limits=OFTEN)
    worker.reached(name, 10)
    worker_group.wait(
        lambda: len(worker_group.sql("SELECT 1 FROM {schema}.position_sample WHERE next_offset = 10")) > 0
    )
    worker.stop()
    return name


@pytest.fixture
def lagging_topic(worker_group: WorkerGroup, stopped_topic: str) -> str:
    """The topic, with five records after the position; no worker runs."""
    worker_group.produce(stopped_topic, 5)
    return stopped_topic


def test_a_backward_reset_is_a_plan_first_and_is_read_again(worker_group: WorkerGroup, applied_topic: str) -> None:
    shown = reset(worker_group, "--topic", f"{applied_topic}:1", "--to-offset", "4").stdout
    assert f"{applied_topic}/1 10 → 4: 6 offsets are read again" in shown
    assert "will have two rows of each record that is read again" in shown
    assert shown.endswith("dry run; --apply does it\n")
    assert worker_group.positions() == {(applied_topic, 0): 10, (applied_topic, 1): 10}
    assert "--reason" in reset(worker_group, "--topic", applied_topic, "--to-offset", "4", "--apply", exits=2).stderr

    done = applied(worker_group, "--topic", f"{applied_topic}:1", "--to-offset", "4").stdout
    assert done == f"{applied_topic}/1 is reset from 10 to 4\n"
    [row] = worker_group.sql(
        "SELECT action, partition, from_offset, to_offset, actor, reason FROM {schema}.admin_action"
    )
    assert tuple(row) == ("reset", 1, 10, 4, "ada", "ticket 88")
    assert losses(worker_group) == []
    worker = worker_group.worker(applied_topic, limits=OFTEN)
    worker_group.wait_for_position(applied_topic, 10, 1)
    worker.stop()
    written = worker_group.record_table.written(applied_topic)
    assert written.count((1, 4)) == written.count((1, 9)) == 2
    assert written.count((1, 3)) == written.count((0, 9)) == 1


def test_a_forward_reset_writes_a_lost_range(worker_group: WorkerGroup, lagging_topic: str) -> None:
    assert (
        f"{lagging_topic}/0 10 → 15: 5 offsets are not read"
        in reset(worker_group, "--all-topics", "--to-latest").stdout
    )
    applied(worker_group, "--all-topics", "--to-latest")
    assert worker_group.positions() == {(lagging_topic, 0): 15}
    assert losses(worker_group) == [(0, 10, 15, "operator", "ada")]
    assert "nothing to do" in applied(worker_group, "--all-topics", "--to-latest").stdout


def test_a_running_worker_obeys_within_a_second(worker_group: WorkerGroup) -> None:
    """Rewound while records arrive: none is lost, and those that it read since are read again."""
    name, _ = worker_group.log(10)
    worker = worker_group.worker(name, limits=OFTEN)
    worker.reached(name, 10)
    began = datetime.now(UTC)
    applied(worker_group, "--topic", name, "--shift-by", "-10", "--wait-until-applied", "30s")
    assert worker_group.record_table.written(name).count((0, 9)) == 2
    [done] = worker_group.sql("SELECT at FROM {schema}.admin_action")
    [moved] = worker_group.sql("SELECT committed_at FROM {schema}.partition_offset")
    assert began < done.at
    assert (moved.committed_at - done.at).total_seconds() < 10  # a second, on a loaded machine; no rebalance comes
    worker_group.produce(name, ["more"])
    worker.reached(name, 11)
    worker.stop()
    assert sorted(worker_group.record_table.written(name)) == sorted([(0, n) for n in range(10)] * 2 + [(0, 10)])


TARGETS: list[tuple[list[str], int]] = [
    (["--to-offset", "3"], 3),
    (["--to-offset", "12"], 12),
    (["--to-earliest"], 0),
    (["--to-latest"], 15),
    (["--to-current"], 10),
    (["--shift-by", "-4"], 6),
    (["--shift-by", "-40"], 0),
    (["--shift-by", "2"], 12),
    (["--to-datetime", "2020-01-01T00:00Z"], 0),
    (["--to-datetime", "2999-01-01T00:00+02:00"], 15),
    (["--by-duration", "PT1H"], 0),
    (["--by-duration", "1d"], 0),
]


@for_each(TARGETS, name=lambda target: " ".join(target[0]))
def test_each_target_is_an_absolute_offset(
    target: tuple[list[str], int], worker_group: WorkerGroup, lagging_topic: str
) -> None:
    words, to = target
    worker_group.sql("UPDATE {schema}.partition_offset SET next_offset = 10", "DELETE FROM {schema}.lost_range")
    plan = json.loads(reset(worker_group, "--all-topics", *words, "--json").stdout)
    [part] = plan["resets"]
    assert (part["topic"], part["position"], part["target"]) == (lagging_topic, 10, to)
    assert part["direction"] == ("forward" if to > 10 else "backward")
    done = json.loads(applied(worker_group, "--all-topics", *words, "--json").stdout)
    assert done["applied"]
    assert worker_group.positions() == {(lagging_topic, 0): to}
    assert losses(worker_group) == ([(0, 10, to, "operator", "ada")] if to > 10 else [])


def test_a_plan_says_what_was_typed_and_what_is_read_again(worker_group: WorkerGroup, lagging_topic: str) -> None:
    """Of the position itself nothing is read again but what workers apply until the plan is carried out."""
    typed = reset(worker_group, "--all-topics", "--by-duration", "90m").stdout
    assert f"would reset {worker_group.group} --by-duration 90m (20" in " ".join(typed.split())
    shown = reset(worker_group, "--all-topics", "--to-current").stdout
    assert f"{lagging_topic}/0 → 10: records that workers apply until the reset are read again" in shown
    assert "back to here" in shown
    assert "0 offsets" not in shown


@pytest.mark.long
def test_a_running_worker_obeys_each_target(worker_group: WorkerGroup, tmp_path: Path) -> None:
    """Each option, in turn, on a group whose worker runs: what is read again is in the table once for each time."""
    name, _ = worker_group.log(10)
    worker = worker_group.worker(name, limits=OFTEN)
    worker.reached(name, 10)
    worker_group.wait(
        lambda: len(worker_group.sql("SELECT 1 FROM {schema}.position_sample WHERE next_offset = 10")) > 0
    )
    moment = datetime.now(UTC).isoformat()
    worker_group.sql(
        "INSERT INTO {schema}.consumer_group (name) VALUES ('other')",
        "INSERT INTO {schema}.partition_offset (consumer_group, topic, partition, topic_id, first_offset, next_offset, "
        "token, epoch) SELECT 'other', topic, partition, topic_id, 0, 8, token, 1 FROM {schema}.partition_offset",
    )
    commits = [ConsumerGroupTopicPartitions("plain", [TopicPartition(name, 0, 5)])]
    worker_group.admin.alter_consumer_group_offsets(commits)["plain"].result(20)
    (tmp_path / "offsets").write_text(f"{name},0,4\n")
    targets: list[tuple[list[str], int]] = [
        (["--to-offset", "3"], 3), (["--to-earliest"], 0), (["--to-latest"], 10), (["--to-current"], 10),
        (["--shift-by", "-4"], 6), (["--to-datetime", "2020-01-01T00:00Z"], 0), (["--by-duration", "PT1H"], 0),
        (["--to-processed", moment], 10), (["--to-group", "other"], 8), (["--to-kafka", "plain"], 5),
        (["--from-file", str(tmp_path / "offsets")], 4),
    ]  # fmt: skip
    for words, to in targets:
        plan = json.loads(reset(worker_group, "--all-topics", *words, "--json").stdout)
        assert [part["target"] for part in plan["resets"]] == [to], words
        applied(worker_group, "--all-topics", *words)
        worker_group.wait_for_position(name, 10)
    worker.stop()
    assert len(worker_group.sql("SELECT 1 FROM {schema}.admin_action")) == sum(to < 10 for _, to in targets) + 1
    assert Counter(worker_group.record_table.written(name)) == Counter(expected_rows(worker_group))
    assert losses(worker_group) == []


def test_to_where_the_group_was_at_a_time(worker_group: WorkerGroup, stopped_topic: str) -> None:
    worker_group.sql("UPDATE {schema}.position_sample SET at = at - interval '2 hours', next_offset = 7")
    an_hour_ago = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    applied(worker_group, "--all-topics", "--to-processed", an_hour_ago)
    assert worker_group.positions() == {(stopped_topic, 0): 7}
    stderr = reset(worker_group, "--all-topics", "--to-processed", "2020-01-01T00:00Z", exits=2).stderr
    assert f"there is no sample before 2020-01-01 00:00:00+00:00 for {stopped_topic}/0" in stderr


def test_to_the_positions_of_another_group_and_to_kafkas_commits(worker_group: WorkerGroup, stopped_topic: str) -> None:
    worker_group.sql(
        "INSERT INTO {schema}.consumer_group (name) VALUES ('other')",
        "INSERT INTO {schema}.partition_offset (consumer_group, topic, partition, topic_id, first_offset, next_offset, "
        "token, epoch) SELECT 'other', topic, partition, topic_id, 0, 8, token, 1 FROM {schema}.partition_offset",
    )
    applied(worker_group, "--all-topics", "--to-group", "other")
    assert worker_group.positions() == {(stopped_topic, 0): 8}
    commits = [ConsumerGroupTopicPartitions("plain", [TopicPartition(stopped_topic, 0, 5)])]
    worker_group.admin.alter_consumer_group_offsets(commits)["plain"].result(20)
    applied(worker_group, "--all-topics", "--to-kafka", "plain")
    assert worker_group.positions() == {(stopped_topic, 0): 5}
    assert "no commit in Kafka" in reset(worker_group, "--all-topics", "--to-kafka", "none", exits=2).stderr
    alive = "alive-" + worker_group.group
    consumer = Consumer(
        {"bootstrap.servers": worker_group.broker, "group.id": alive, "client.id": "old", "log_level": 0}
    )
    try:  # it may commit before the plan is applied
        consumer.subscribe([stopped_topic])
        worker_group.wait(lambda: consumer.poll(0.1) is not None or len(consumer.assignment()) > 0)
        stderr = reset(worker_group, "--all-topics", "--to-kafka", alive, exits=1).stderr
        assert f"group '{alive}' has 1 member in Kafka (old on " in stderr
    finally:
        consumer.close()


def test_a_mirrors_commit_is_no_target(worker_group: WorkerGroup, stopped_topic: str) -> None:
    """It may be older than the position, or of rows that a failover lost; if it is the position, nothing moves."""
    for offset, exits in ((7, 1), (12, 1), (10, 0)):
        mirrored = Commit.mirror(offset, None, 1).of(Partition(stopped_topic, 0))
        commits = [ConsumerGroupTopicPartitions(worker_group.group, [mirrored])]
        worker_group.admin.alter_consumer_group_offsets(commits)[worker_group.group].result(20)
        result = reset(worker_group, "--all-topics", "--to-kafka", worker_group.group, exits=exits)
        assert ("was mirrored from a ledger" in result.stderr) == bool(exits)


def test_offsets_are_exported_and_read_from_files(
    worker_group: WorkerGroup, stopped_topic: str, tmp_path: Path
) -> None:
    text = run(worker_group, "offsets", "export", worker_group.group).stdout
    assert text == f"{stopped_topic},0,10\n"
    lines = json.loads(
        run(worker_group, "offsets", "export", worker_group.group, "--topic", stopped_topic, "--json").stdout
    )
    assert lines == [{"topic": stopped_topic, "partition": 0, "offset": 10}]
    spark = run(worker_group, "offsets", "export", worker_group.group, "--format", "spark").stdout
    assert spark == f'{{"{stopped_topic}":{{"0":10}}}}\n'
    both = run(worker_group, "offsets", "export", worker_group.group, "--format", "spark", "--json", exits=2)
    assert "--format spark already prints JSON" in both.stderr
    contents = [
        f"{worker_group.group},{stopped_topic},0,4\n",
        f"\n{stopped_topic}, 0, 4\n",
        json.dumps([{**lines[0], "offset": 4}]),
    ]
    for n, content in enumerate([*contents, spark.replace(":10}", ":4}")]):
        (tmp_path / "offsets").write_text(text)
        applied(
            worker_group,
            "--all-topics",
            "--from-file",
            str(tmp_path / "offsets"),
            *(["--out", str(tmp_path / "p")] if n else []),
        )
        (tmp_path / "offsets").write_text(content)
        applied(worker_group, "--all-topics", "--from-file", str(tmp_path / "offsets"))
        assert worker_group.positions() == {(stopped_topic, 0): 4}


BAD_FILES = [
    ("t,0\n", "line 1: expected topic,partition,offset"),
    ("t,0,-4\n", "line 1: expected topic,partition,offset"),
    (f"t,0,{'9' * 4301}\n", "line 1: expected topic,partition,offset"),
    ("t,0,1\nt,0,2\n", "line 2: t/0 is named twice"),
    ("another,t,0,1\n", "line 1: this line is of group 'another'"),
    ("unknown,0,1\n", "unknown/0 is not among the partitions to reset"),
    ("[{}]", "missing required field"),
    ('[{"topic": "t", "partition": 0, "offset": -1}]', "entry 1: partitions and offsets are 0 or greater"),
    ('{"t": {"0": -2}}', "t/0 has -2, which means an end of the log in Spark"),
    ('{"unknown": {"0": 1}}', "unknown/0 is not among the partitions to reset"),
]


@for_each(BAD_FILES)
def test_a_bad_file_is_refused_with_its_line(
    file: tuple[str, str], worker_group: WorkerGroup, stopped_topic: str, tmp_path: Path
) -> None:
    content, message = file
    assert stopped_topic
    (tmp_path / "offsets").write_text(content)
    assert message in reset(worker_group, "--all-topics", "--from-file", str(tmp_path / "offsets"), exits=2).stderr


def test_after_the_failed_record(worker_group: WorkerGroup) -> None:
    """The partition waits before a record that its handler refuses, and passes exactly that one."""
    name, _ = worker_group.log(["0", "bad", "2"])
    pipeline = worker_group.pipeline(
        name,
        sinks=(),
        handle=worker_group.record_table.refusing(lambda record: record.value == "bad"),
        on_poison=OnPoison.STOP,
    )
    worker = worker_group.worker(pipeline, limits=OFTEN)
    stops = "SELECT stop_kind FROM {schema}.partition_state"
    worker_group.wait(lambda: [row.stop_kind for row in worker_group.sql(stops)] == ["PoisonStop"])
    output = reset(worker_group, "--all-topics", "--after-failed").stdout
    assert f"{name}/0 1 → 2: the failed record is skipped, and recorded as a lost range with reason operator" in output
    plan = admin_of(worker_group).plan_reset(worker_group.group, ResetTo.after_failed())
    admin_of(worker_group).apply(plan, reason="ticket 89", actor="ada")
    worker.reached(name, 3)
    worker.stop()
    assert losses(worker_group) == [(0, 1, 2, "operator", "ada")]
    assert worker_group.record_table.written(name) == [(0, 0), (0, 2)]
    assert "nothing to do" in reset(worker_group, "--all-topics", "--after-failed").stdout
    assert "no failed record" in reset(worker_group, "--topic", name, "--after-failed", exits=2).stderr
    with pytest.raises(Fenced, match="was reset since the plan was made"):
        admin_of(worker_group).apply(plan, reason="again")


def test_a_plan_that_passes_a_failed_record_holds_for_that_one_alone(
    worker_group: WorkerGroup, stopped_topic: str
) -> None:
    worker_group.sql("UPDATE {schema}.partition_offset SET next_offset = 4", put_stop("{schema}", "PoisonStop", "4"))
    plan = admin_of(worker_group).plan_reset(worker_group.group, ResetTo.after_failed())
    worker_group.sql("UPDATE {schema}.partition_offset SET next_offset = 5")
    with pytest.raises(Fenced, match="/0 is at offset 5, but the plan has 4: nothing was done"):
        admin_of(worker_group).apply(plan, reason="r")
    assert worker_group.positions() == {(stopped_topic, 0): 5}


# -- what is compared --------------------------------------------------------------------------------------------


def test_of_two_operators_who_apply_the_same_plan_one_wins(
    worker_group: WorkerGroup, applied_topic: str, tmp_path: Path
) -> None:
    reset(worker_group, "--topic", f"{applied_topic}:0", "--to-offset", "2", "--out", str(tmp_path / "plan"))
    from_file = ["--plan", str(tmp_path / "plan")]
    with ThreadPoolExecutor(2) as pool:
        plan = ResetPlan.from_json((tmp_path / "plan").read_bytes())
        both = [pool.submit(admin_of(worker_group).apply, plan, reason="r", actor=actor) for actor in ("ada", "bob")]
        errors = [future.exception(60) for future in both]
    assert sorted(map(type, errors), key=str) == sorted([type(None), Fenced], key=str)
    assert len(worker_group.sql("SELECT 1 FROM {schema}.admin_action")) == 1
    stderr = applied(worker_group, *from_file, exits=1).stderr
    assert f"{applied_topic}/0 was reset since the plan was made" in stderr


def test_a_plan_holds_while_the_position_moves_on_and_not_past_its_target(
    worker_group: WorkerGroup, lagging_topic: str
) -> None:
    it = admin_of(worker_group)
    forward, rewind = (it.plan_reset(worker_group.group, ResetTo.offset(to)) for to in (13, 6))
    worker_group.sql("UPDATE {schema}.partition_offset SET next_offset = 14")
    with pytest.raises(Fenced, match=r"/0 is at offset 14, past the forward target 13: nothing was done"):
        it.apply(forward, reason="r")
    worker_group.sql("UPDATE {schema}.partition_offset SET next_offset = 5")
    with pytest.raises(Fenced, match=r"/0 is at offset 5, before the backward target 6: nothing was done"):
        it.apply(rewind, reason="r")
    worker_group.sql("UPDATE {schema}.partition_offset SET next_offset = 12")
    done = it.apply(forward, reason="r", actor="ada").done[0]
    assert (done.from_offset, done.to_offset) == (12, 13)
    assert losses(worker_group) == [(0, 12, 13, "operator", "ada")]
    assert lagging_topic


def test_another_topic_and_another_cluster_are_refused(worker_group: WorkerGroup, stopped_topic: str) -> None:
    it = admin_of(worker_group)
    plan = it.plan_reset(worker_group.group, ResetTo.earliest())
    worker_group.sql("UPDATE {schema}.partition_offset SET topic_id = gen_random_uuid()")
    with pytest.raises(Fenced, match=f"{stopped_topic}/0 belongs to topic id .*, the plan to .*: nothing was done"):
        it.apply(plan, reason="r")
    with pytest.raises(Fenced, match="is not the topic that was read"):
        it.plan_reset(worker_group.group, ResetTo.offset(1))
    worker_group.sql("UPDATE {schema}.consumer_group SET cluster_id = 'another'")
    with pytest.raises(Fenced, match="belongs to cluster another, the plan to"):
        it.apply(plan, reason="r")
    with pytest.raises(ClusterChanged, match="the brokers belong to cluster"):
        it.plan_reset(worker_group.group, ResetTo.offset(1))
    assert worker_group.positions() == {(stopped_topic, 0): 10}


@pytest.fixture
def two_partition_topic(worker_group: WorkerGroup) -> str:
    """A topic of two partitions whose ten records each are applied; no worker runs."""
    name, _ = worker_group.log(10, 2)
    worker = worker_group.worker(name, limits=OFTEN)
    worker_group.wait_for_position(name, 10, 0)
    worker_group.wait_for_position(name, 10, 1)
    worker.stop()
    return name


def test_a_plan_is_one_transaction_or_one_for_each_partition(
    worker_group: WorkerGroup, two_partition_topic: str
) -> None:
    it = admin_of(worker_group)
    plan = it.plan_reset(worker_group.group, ResetTo.offset(6))
    worker_group.sql("UPDATE {schema}.partition_offset SET next_offset = 3 WHERE partition = 0")
    with pytest.raises(Fenced):
        it.apply(plan, reason="r")
    assert worker_group.positions() == {(two_partition_topic, 0): 3, (two_partition_topic, 1): 10}
    result = it.apply(plan, reason="r", each=True)
    assert [done.partition for done in result.done] == [Partition(two_partition_topic, 1)]
    assert [refusal.split(" is at")[0] for refusal in result.refused] == [f"{two_partition_topic}/0"]
    assert worker_group.positions() == {(two_partition_topic, 0): 3, (two_partition_topic, 1): 6}


def test_a_locked_partition_is_named_and_no_lock_is_kept(worker_group: WorkerGroup, stopped_topic: str) -> None:
    plan = admin_of(worker_group).plan_reset(worker_group.group, ResetTo.offset(6))
    with worker_group.engine.begin() as tx:
        tx.exec_driver_sql(f'UPDATE "{worker_group.schema}".partition_offset SET epoch = epoch')
        with pytest.raises(Fenced, match=f"^{stopped_topic}/0 is locked by .* since 20.* UTC; not all locks"):
            admin_of(worker_group).apply(plan, reason="r", wait=0.5)
        with ThreadPoolExecutor(1) as pool:
            late = pool.submit(admin_of(worker_group).apply, plan, reason="r", wait=60)
            worker_group.wait(lambda: len(worker_group.sql("SELECT 1 FROM pg_locks WHERE NOT granted")) > 0)
            tx.commit()
            assert len(late.result(60).done) == 1
    assert worker_group.positions() == {(stopped_topic, 0): 6}


def test_locks_are_released_while_one_is_not_to_be_had(worker_group: WorkerGroup, two_partition_topic: str) -> None:
    plan = admin_of(worker_group).plan_reset(worker_group.group, ResetTo.offset(6))
    with worker_group.engine.begin() as tx, ThreadPoolExecutor(1) as pool:
        tx.exec_driver_sql(f'UPDATE "{worker_group.schema}".partition_offset SET epoch = epoch WHERE partition = 1')
        late = pool.submit(admin_of(worker_group).apply, plan, reason="r", wait=60)
        worker_group.wait(lambda: len(worker_group.sql("SELECT 1 FROM pg_locks WHERE NOT granted")) > 0)
        worker_group.sql(
            "SET LOCAL lock_timeout = '10s'", "UPDATE {schema}.partition_offset SET epoch = epoch WHERE partition = 0"
        )
        assert not late.done()
        tx.commit()
        assert len(late.result(60).done) == 2
    assert worker_group.positions() == {(two_partition_topic, 0): 6, (two_partition_topic, 1): 6}


def test_a_wait_for_workers_that_do_not_run_ends(worker_group: WorkerGroup, stopped_topic: str) -> None:
    stderr = applied(worker_group, "--all-topics", "--to-offset", "3", "--wait-until-applied", "1s", exits=1).stderr
    assert "not applied within" in stderr
    assert worker_group.positions() == {(stopped_topic, 0): 3}


def test_retention_has_removed_what_is_wanted(worker_group: WorkerGroup, stopped_topic: str) -> None:
    partition = TopicPartition(stopped_topic, 0, 8)
    worker_group.admin.delete_records([partition])[partition].result(20)
    output = reset(worker_group, "--all-topics", "--to-offset", "3").stdout
    assert f"{stopped_topic}/0: the log begins at 8: up to 5 offsets are gone" in output
    assert "--accept-loss" in applied(worker_group, "--all-topics", "--to-offset", "3", exits=2).stderr
    applied(worker_group, "--all-topics", "--to-offset", "3", "--accept-loss")
    assert worker_group.positions() == {(stopped_topic, 0): 8}
    assert losses(worker_group) == []  # they were applied
    [row] = worker_group.sql("SELECT reason FROM {schema}.admin_action")
    assert row.reason == "ticket 88 (retention has removed [3, 8): not read again)"


WRONG_USAGE = [
    (["--all-topics", "--to-offset", "99"], "99 is past the end of the log"),
    (["--all-topics", "--to-datetime", "2026-01-01T00:00"], "say in which zone"),
    (["--all-topics", "--to-datetime", "noon"], "takes a time with its zone"),
    (["--all-topics", "--by-duration", "P9999999999D"], "no record can be that old"),
    (["--all-topics", "--by-duration", f"P{'9' * 4301}D"], "no record can be that old"),
    (["--topic", f"{{topic}}:{'9' * 4301}", "--to-earliest"], "--topic takes a topic"),
    (["--all-topics", "--to-offset", "3", "--out", "/no/such/folder/plan"], "cannot be written"),
    (["--all-topics", "--by-duration", "long"], "--by-duration takes a length of time"),
    (["--topic", "nowhere", "--to-earliest"], "has no stored offset for topic 'nowhere'; its topics are"),
    (["--topic", "{topic}:7", "--to-earliest"], "/7; the topic's partitions are 0"),
    (["--topic", "a:b", "--to-earliest"], "--topic takes a topic"),
    (["--to-earliest"], "say which partitions"),
    (["--all-topics"], "give one target"),
    (["--all-topics", "--to-earliest", "--to-latest"], "one target, not --to-earliest and --to-latest"),
    (["--all-topics", "--to-group", "unknown"], "has no group 'unknown'; its groups are"),
    (["--plan", "/nowhere"], "cannot be read"),
    (["--plan", "/nowhere", "--all-topics"], "omit --topic and --all-topics"),
]


def test_wrong_usage_exits_with_2(worker_group: WorkerGroup, stopped_topic: str) -> None:
    def check(case: tuple[list[str], str]) -> None:
        words, message = case
        assert message in reset(worker_group, *(word.format(topic=stopped_topic) for word in words), exits=2).stderr
        assert worker_group.positions() == {(stopped_topic, 0): 10}

    check_each(WRONG_USAGE, check)


@pytest.mark.long
def test_without_brokers_what_needs_none_is_planned(
    worker_group: WorkerGroup, stopped_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seekpoint_admin, "KAFKA_TIMEOUT", 1.0)
    output = reset(worker_group, "--all-topics", "--to-offset", "3", brokers=False).stdout
    assert "no brokers are named: the offsets were not compared with the logs" in output
    assert (
        "name them with --kafka" in reset(worker_group, "--all-topics", "--to-earliest", brokers=False, exits=2).stderr
    )
    nowhere = ["--kafka", "bootstrap.servers=127.0.0.1:1"]
    assert (
        "were not compared" in reset(worker_group, "--all-topics", "--to-offset", "3", *nowhere, brokers=False).stdout
    )
    reset(worker_group, "--all-topics", "--to-earliest", *nowhere, brokers=False, exits=3)
    seekpoint("offsets", "history", "g", "--database-url", "postgresql://u@127.0.0.1:1/none", exits=3)
    assert worker_group.positions() == {(stopped_topic, 0): 10}


def test_history_names_who_did_what(worker_group: WorkerGroup, stopped_topic: str) -> None:
    applied(worker_group, "--all-topics", "--to-offset", "3")
    run(worker_group, "groups", "pause", worker_group.group, "--apply", "--reason", "maintenance", "--actor", "bob")
    shown = json.loads(run(worker_group, "offsets", "history", worker_group.group, "--json").stdout)
    assert [(action["action"], action["actor"], action["to_offset"]) for action in shown] == [
        ("pause", "bob", None),
        ("reset", "ada", 3),
    ]
    bobs = json.loads(run(worker_group, "offsets", "history", worker_group.group, "--by", "bob", "--json").stdout)
    assert [action["action"] for action in bobs] == ["pause"]
    assert (
        "ticket 88"
        in run(worker_group, "offsets", "history", worker_group.group, "--topic", stopped_topic, "--limit", "1").stdout
    )
    assert "has no group 'unknown'" in run(worker_group, "offsets", "history", "unknown", exits=2).stderr


def test_plans_that_are_none(worker_group: WorkerGroup, stopped_topic: str) -> None:
    plan = admin_of(worker_group).plan_reset(worker_group.group, ResetTo.offset(3))
    assert ResetPlan.from_json(plan.to_json()) == plan
    for text in (b"", b"{}", b"\xff", plan.to_json().replace(b'"format": 1', b'"format": 9')):
        with pytest.raises(ConfigError):
            ResetPlan.from_json(text)
    assert stopped_topic


def expected_rows(worker_group: WorkerGroup) -> list[tuple[int, int]]:
    """What is read from 0 on, from each reset's target to the position of the next reset, and to the position now."""
    rows, began = [], dict.fromkeys((position.number for position in worker_group.positions()), 0)
    for row in worker_group.sql("SELECT partition, from_offset, to_offset FROM {schema}.admin_action ORDER BY id"):
        rows += [(row.partition, n) for n in range(began[row.partition], row.from_offset)]
        began[row.partition] = row.to_offset
    return rows + [
        (p.number, n) for p, position in worker_group.positions().items() for n in range(began[p.number], position)
    ]
