"""A worker's mirror in Kafka: Kafka's own tool shows the ledger's positions; crashes and lost COMMITs; the way back."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)

from seekpoint import Limits, OnPoison, Partition, StartAt, events
from seekpoint.admin import ResetTo
from seekpoint.errors import ClusterChanged, ConfigError, Fenced, KafkaUnavailable
from seekpoint.kafka.commits import Commit, read_commits, write_commits
from seekpoint.kafka.identity import Identity
from support.command import seekpoint
from support.events import Gate
from support.kafka_tools import CommittedOffset, describe
from support.log_changes import in_transactions
from support.lost_log import admin_of
from support.postgres_proxy import MOVES, PostgresProxy
from support.waiting import until
from support.worker_group import PROTOCOLS, WorkerGroup

OFTEN = Limits(idle_check=0.1, lag_check=0.1)


def in_kafka(worker_group: WorkerGroup, group: str | None = None) -> dict[Partition, Commit]:
    """The commits that Kafka has."""
    asked = [ConsumerGroupTopicPartitions(group or worker_group.group)]

    def answered() -> Any:
        try:
            return worker_group.admin.list_consumer_group_offsets(asked)[group or worker_group.group].result(20)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.COORDINATOR_LOAD_IN_PROGRESS:  # a broker that has just started
                raise
            return None

    answer = until(answered, "an answer about the group's commits")
    committed = {
        Partition(topic_partition.topic, topic_partition.partition): topic_partition
        for topic_partition in answer.topic_partitions
        if topic_partition.offset >= 0
    }
    return {p: Commit(commit.offset, commit.leader_epoch, commit.metadata or "") for p, commit in committed.items()}


def offsets(worker_group: WorkerGroup, group: str | None = None) -> dict[Partition, int]:
    return {partition: commit.offset for partition, commit in in_kafka(worker_group, group).items()}


def commit_to_kafka(worker_group: WorkerGroup, offsets: Mapping[Partition, int], group: str | None = None) -> None:
    """What a plain consumer has committed before it ended."""
    group = group or worker_group.group
    commits = [TopicPartition(*partition, offset) for partition, offset in offsets.items()]

    def is_written() -> bool:
        """An error is an attribute of each partition; a coordinator may not know a new topic yet."""
        asked = worker_group.admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, commits)])
        return all(topic_partition.error is None for topic_partition in asked[group].result(20).topic_partitions)

    worker_group.wait(is_written)


def run(worker_group: WorkerGroup, *words: str, exits: int = 0) -> Any:
    return seekpoint(*words, *worker_group.server_options, exits=exits)


@pytest.mark.long
def test_kafkas_own_tool_shows_the_positions_of_running_workers(worker_group: WorkerGroup) -> None:
    """Under both protocols; on a transactional topic, whose log ends in markers, the lag is 0; after a rewind, too."""
    plain, marked = worker_group.topic(), worker_group.topic()
    worker_group.produce(plain, 10)
    in_transactions(worker_group.broker, marked, (10, True), (3, False))
    refusing = threading.Event()
    handle = worker_group.record_table.refusing(lambda record: refusing.is_set() and record.offset == 4)
    groups = {protocol: f"{worker_group.group}-{protocol}" for protocol in ("eager", "848")}
    workers = {}
    for protocol, group in groups.items():
        pipeline = worker_group.record_table.pipeline(group, [plain, marked], handle=handle, on_poison=OnPoison.STOP)
        workers[group] = worker_group.worker(pipeline, kafka=PROTOCOLS[protocol], mirror=True, limits=OFTEN)
    ends = {Partition(plain, 0): 10, Partition(marked, 0): 15}
    for group in groups.values():
        worker_group.wait(lambda group=group: offsets(worker_group, group) == ends)  # type: ignore[misc]
    shown = describe(worker_group.broker, *groups.values())
    assert shown == {
        (group, partition): CommittedOffset(end, end, 0) for group in groups.values() for partition, end in ends.items()
    }

    refusing.set()
    for group, worker in workers.items():
        run(
            worker_group, "offsets", "reset", group, "--topic", plain, "--to-offset", "2", "--apply", "--reason", "test"
        )
        worker.seen.wait_for(events.PartitionStopped)
        worker_group.wait(lambda group=group: offsets(worker_group, group) == {**ends, Partition(plain, 0): 4})  # type: ignore[misc]
        assert all(commit.is_mirror for commit in in_kafka(worker_group, group).values())
    shown = describe(worker_group.broker, *groups.values())
    assert {shown[group, Partition(plain, 0)] for group in groups.values()} == {CommittedOffset(4, 10, 6)}


@pytest.mark.long
def test_a_worker_that_has_drained_leaves_its_last_positions(worker_group: WorkerGroup) -> None:
    name, _ = worker_group.log(10, 2)
    worker = worker_group.worker(name, mirror=True, limits=Limits(idle_check=0.1))  # five seconds between two commits
    worker_group.wait(lambda: offsets(worker_group).keys() == {Partition(name, 0), Partition(name, 1)})
    worker_group.produce(name, 5)
    worker.reached(name, 15)
    worker.reached(name, 10, 1)
    worker.stop()
    assert offsets(worker_group) == worker_group.positions() == {Partition(name, 0): 15, Partition(name, 1): 10}


@pytest.mark.repeats("when")
@pytest.mark.parametrize("when", ["after_commit", "before_commit"])
def test_kafka_is_never_ahead_of_a_commit_that_was_not_answered(
    worker_group: WorkerGroup, proxy: PostgresProxy, when: Any
) -> None:
    name, stored = worker_group.log(10)
    gate = Gate(events.Advanced)
    worker = worker_group.worker(name, observe=[gate], engine=proxy.dsn, mirror=True, limits=OFTEN)
    gate.wait()
    proxy.arm(when, MOVES)
    seen: list[tuple[int, int]] = []

    def watch(event: events.Event) -> None:
        if isinstance(event, events.CommitUnknown):
            seen.append(
                (offsets(worker_group).get(Partition(name, 0), 0), worker_group.positions()[Partition(name, 0)])
            )

    worker.worker.add_observer(watch)
    gate.open()
    worker_group.wait(lambda: offsets(worker_group) == {Partition(name, 0): 10})
    worker.stop()
    assert seen
    assert all(mirrored <= applied for mirrored, applied in seen)
    worker_group.record_table.assert_holds(name, stored)


@pytest.mark.long
def test_a_worker_that_is_killed_anywhere_leaves_nothing_that_was_not_applied(worker_group: WorkerGroup) -> None:
    """The next worker brings Kafka to the ledger's position."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice, name = random.Random(seed), worker_group.topic()
    stored: list[tuple[int, int]] = []
    for _ in range(3):
        stored += worker_group.produce(name, dice.randrange(5, 200))
        step = (dice.choice(["BatchOpened", "Advanced", "Committed"]), 1)
        worker_group.killed_process(name, mirror=True, limits={"lag_check": 0.1}, stop_at=step, partitions=[(name, 0)])
        assert offsets(worker_group).get(Partition(name, 0), 0) <= worker_group.positions().get(Partition(name, 0), 0)
    last = worker_group.worker(name, mirror=True, limits=OFTEN)
    worker_group.wait(lambda: offsets(worker_group) == {Partition(name, 0): len(stored)})
    last.stop()
    worker_group.record_table.assert_holds(name, stored)


def test_a_partition_that_was_taken_meanwhile_is_its_new_owners(worker_group: WorkerGroup) -> None:
    """The first worker is held up between two batches, and comes back when its partition was read on elsewhere."""
    name, _ = worker_group.log(10)
    gate = Gate(events.LagSampled)
    older = worker_group.worker(name, mirror=True, limits=OFTEN, partitions=[(name, 0)])
    older.reached(name, 10)
    older.worker.add_observer(gate)
    gate.wait()
    newer = worker_group.worker(name, mirror=True, limits=OFTEN, partitions=[(name, 0)])
    newer.placed()
    worker_group.produce(name, 10)
    newer.reached(name, 20)
    worker_group.wait(lambda: offsets(worker_group) == {Partition(name, 0): 20})
    gate.open()
    older.ends_with(Fenced, "newest claim wins")
    worker_group.produce(name, 1)
    newer.reached(name, 21)
    worker_group.wait(lambda: offsets(worker_group) == {Partition(name, 0): 21})
    newer.stop()


def test_commits_of_another_consumer_are_named_at_the_assignment(worker_group: WorkerGroup) -> None:
    name, _ = worker_group.log(10, 2)
    commit_to_kafka(worker_group, {Partition(name, 1): 3})
    worker = worker_group.worker(name, mirror=True, limits=OFTEN)
    other = worker.seen.wait_for(events.OtherCommits)
    assert other.commits == {Partition(name, 1): 3}
    worker_group.wait(lambda: offsets(worker_group) == {Partition(name, 0): 10, Partition(name, 1): 10})
    worker.stop()
    later = worker_group.worker(name, limits=OFTEN)
    later.placed(2)
    later.seen.wait_for(events.LagSampled, count=5)
    later.stop()
    assert later.seen.all(events.OtherCommits) == []


# -- import ----------------------------------------------------------------------------------------------------------


def imported(worker_group: WorkerGroup, *words: str, exits: int = 0) -> Any:
    return run(
        worker_group,
        "offsets",
        "import",
        worker_group.group,
        "--from-group",
        "old-" + worker_group.group,
        *words,
        exits=exits,
    )


DO = ("--apply", "--reason", "ticket 90", "--actor", "ada")


@pytest.fixture
def consumed_topic(worker_group: WorkerGroup) -> str:
    """A topic of two partitions with ten records each, of which a plain consumer has committed 4 and 7."""
    name, _ = worker_group.log(10, 2)
    commit_to_kafka(worker_group, {Partition(name, 0): 4, Partition(name, 1): 7}, "old-" + worker_group.group)
    return name


def test_a_group_begins_at_the_commits_of_a_plain_consumer(worker_group: WorkerGroup, consumed_topic: str) -> None:
    shown = imported(worker_group).stdout
    assert f"{consumed_topic}/0 begins at 4, Kafka's commit, 6 offsets before the end of its log" in shown
    assert shown.endswith("dry run; --apply does it\n")
    assert worker_group.positions() == {}
    imported(worker_group, *DO)
    assert worker_group.positions() == {Partition(consumed_topic, 0): 4, Partition(consumed_topic, 1): 7}
    done = worker_group.sql("SELECT action, partition, to_offset, actor FROM {schema}.admin_action ORDER BY id")
    assert [tuple(row) for row in done] == [("import", 0, 4, "ada"), ("import", 1, 7, "ada")]
    assert "has stored offsets of topic" in imported(worker_group, *DO, exits=1).stderr
    worker = worker_group.worker(worker_group.pipeline(consumed_topic, version=3, start=StartAt.latest()))
    worker_group.wait_for_position(consumed_topic, 10, 0)
    worker_group.wait_for_position(consumed_topic, 10, 1)
    worker.stop()
    worker_group.record_table.assert_holds(
        consumed_topic, [(0, n) for n in range(4, 10)] + [(1, n) for n in range(7, 10)]
    )


def test_a_group_begins_where_the_checkpoint_of_a_query_is(
    worker_group: WorkerGroup, consumed_topic: str, tmp_path: Path
) -> None:
    """The checkpoint is as Spark writes it: ``tests/jobs/spark/test_checkpoint.py`` has one that it wrote."""
    for name, line in (("offsets", json.dumps({consumed_topic: {"0": 3}})), ("commits", "")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0").write_text(f"v1\n{{}}\n{line}")
    words = ["offsets", "import", worker_group.group, "--from-checkpoint", str(tmp_path)]
    assert f"has no commit there for {consumed_topic}/1: say where" in run(worker_group, *words, exits=1).stderr
    shown = run(worker_group, *words, "--missing", "latest").stdout
    assert f"{consumed_topic}/0 begins at 3, the checkpoint's offset, 7 offsets before the end of its log" in shown
    assert "the offsets are the end of batch 0, the last one committed; stop the query first" in shown
    run(worker_group, *words, "--missing", "latest", *DO)
    assert worker_group.positions() == {Partition(consumed_topic, 0): 3, Partition(consumed_topic, 1): 10}
    stderr = run(worker_group, *words, "--from-group", "old", exits=2).stderr
    assert "give either --from-group OLD or --from-checkpoint DIR" in stderr


def test_offsets_of_partitions_that_a_topic_does_not_have_are_of_another_topic(
    worker_group: WorkerGroup, consumed_topic: str, tmp_path: Path
) -> None:
    for name, line in (("offsets", json.dumps({consumed_topic: {"0": 3, "1": 4, "2": 9}})), ("commits", "")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0").write_text(f"v1\n{{}}\n{line}")
    words = ["offsets", "import", worker_group.group, "--from-checkpoint", str(tmp_path)]
    for more in ([], ["--topic", consumed_topic]):
        stderr = run(worker_group, *words, *more, exits=1).stderr
        assert (
            f"has committed 9 for {consumed_topic}/2, but topic '{consumed_topic}' has 2 partitions on these brokers"
            in stderr
        )


def test_commits_that_cannot_be_positions_are_refused(worker_group: WorkerGroup, consumed_topic: str) -> None:
    group = "old-" + worker_group.group
    assert (
        "has no commit in Kafka: check the name"
        in run(
            worker_group, "offsets", "import", worker_group.group, "--from-group", f"no-{worker_group.group}", exits=2
        ).stderr
    )
    assert "does not exist on the brokers" in imported(worker_group, "--topic", "none", exits=2).stderr
    other = worker_group.topic(2)
    worker_group.produce(other, 5)
    commit_to_kafka(worker_group, {Partition(other, 0): 2}, group)
    assert f"has no commit in Kafka for {other}/1" in imported(worker_group, "--topic", other, exits=1).stderr
    assert (
        f"{other}/1 begins at 0, without a commit"
        in imported(worker_group, "--topic", other, "--missing", "earliest").stdout
    )
    third = worker_group.topic(3)
    commit_to_kafka(worker_group, {Partition(third, 1): 0}, group)
    stderr = imported(worker_group, "--topic", third, exits=1).stderr
    assert f"for {third}/0, {third}/2: say where" in stderr, "each partition without a commit is named"
    commit_to_kafka(worker_group, {Partition(other, 0): 6, Partition(other, 1): 0}, group)
    assert "past the end of the log" in imported(worker_group, "--topic", other, exits=1).stderr
    mirrored = Commit.mirror(2, None, 7).of(Partition(other, 0))
    asked = [ConsumerGroupTopicPartitions(group, [mirrored])]
    worker_group.admin.alter_consumer_group_offsets(asked)[group].result(20)
    assert "was mirrored from a ledger" in imported(worker_group, "--topic", other, exits=1).stderr
    assert worker_group.positions() == {}
    forgotten = """'{"by": "ada", "reason": "test", "at": "2026-11-22T14:00:00Z"}'"""
    worker_group.sql(
        f"INSERT INTO {{schema}}.consumer_group (name, forgotten) VALUES ('{worker_group.group}', {forgotten})"
    )
    assert "was forgotten by ada" in imported(worker_group, "--topic", consumed_topic, exits=1).stderr


def test_a_member_of_the_old_group_is_refused_before_and_after_its_commits_are_read(
    worker_group: WorkerGroup, consumed_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that joins while they are read: it may read on, and commit, what the plan takes for its end."""
    group, read = "old-" + worker_group.group, read_commits
    plan = admin_of(worker_group).plan_import(worker_group.group, group)
    consumer = Consumer(
        {"bootstrap.servers": worker_group.broker, "group.id": group, "client.id": "old", "log_level": 0}
    )

    def joins(*asked: Any) -> Any:
        answer = read(*asked)
        consumer.subscribe([consumed_topic])
        worker_group.wait(lambda: consumer.poll(0.1) is not None)
        return answer

    monkeypatch.setattr("seekpoint.admin.import_offsets.read_commits", joins)
    try:
        with pytest.raises(Fenced, match=r"has 1 member in Kafka \(old on "):
            admin_of(worker_group).apply(plan, reason="test")
        assert worker_group.positions() == {}
        monkeypatch.setattr(
            "seekpoint.admin.import_offsets.read_commits", lambda *_: pytest.fail("asked a group that has members")
        )
        with pytest.raises(Fenced, match="has 1 member in Kafka"):
            admin_of(worker_group).apply(plan, reason="test")
    finally:
        consumer.close()
    monkeypatch.setattr("seekpoint.admin.import_offsets.read_commits", read)
    commit_to_kafka(worker_group, {Partition(consumed_topic, 0): 5}, group)
    with pytest.raises(Fenced, match=f"has committed 5 for {consumed_topic}/0, but the plan has 4"):
        admin_of(worker_group).apply(plan, reason="test")
    assert worker_group.positions() == {}


def test_a_member_that_joins_during_the_last_questions_is_refused(
    worker_group: WorkerGroup, consumed_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members are asked for after all else: what is left until COMMIT is one message to Postgres."""
    group, known = "old-" + worker_group.group, Identity.known
    plan = admin_of(worker_group).plan_import(worker_group.group, group)
    consumer = Consumer(
        {"bootstrap.servers": worker_group.broker, "group.id": group, "client.id": "old", "log_level": 0}
    )

    def joins(identity: Identity, topics: Any) -> Any:
        if not consumer.assignment():
            consumer.subscribe([consumed_topic])
            worker_group.wait(lambda: consumer.poll(0.1) is not None)
        return known(identity, topics)

    monkeypatch.setattr(Identity, "known", joins)
    try:
        with pytest.raises(Fenced, match=r"has 1 member in Kafka \(old on "):
            admin_of(worker_group).apply(plan, reason="test")
    finally:
        consumer.close()
    assert worker_group.positions() == {}


def test_commits_that_an_open_transaction_replaces_are_not_read(worker_group: WorkerGroup, consumed_topic: str) -> None:
    """The plain consumer has written its output, and waits or has crashed: the transaction's end decides on the offset.

    Also of a partition that has no commit yet, and where the transaction begins after the plan was made.
    """
    group = "old-" + worker_group.group
    new, _ = worker_group.log(10)
    asked = admin_of(worker_group)
    plan = asked.plan_import(worker_group.group, group, [consumed_topic])
    producer = Producer(
        {"bootstrap.servers": worker_group.broker, "transactional.id": f"{consumed_topic}-out", "log_level": 0}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    consumer = Consumer({"bootstrap.servers": worker_group.broker, "group.id": group, "log_level": 0})
    applied = [TopicPartition(consumed_topic, 0, 6), TopicPartition(new, 0, 7)]
    producer.send_offsets_to_transaction(applied, consumer.consumer_group_metadata(), 30)
    consumer.close()
    for refused in (
        lambda: asked.plan_import(worker_group.group, group, [consumed_topic]),
        lambda: asked.plan_import(worker_group.group, group, [new], missing="earliest"),
        lambda: asked.apply(plan, reason="test"),
    ):
        with pytest.raises(
            KafkaUnavailable, match=rf"({consumed_topic}|{new})/0 are part of an open transaction: try again"
        ):
            refused()
    assert worker_group.positions() == {}
    producer.commit_transaction(30)

    def planned(topic: str) -> list[int]:
        return [
            partition.offset
            for partition in asked.plan_import(worker_group.group, group, [topic], missing="earliest").partitions
        ]

    worker_group.wait(lambda: offsets(worker_group, group).keys() >= {Partition(new, 0)})
    assert (planned(consumed_topic), planned(new)) == ([6, 7], [7])


def test_a_reset_to_commits_in_an_open_transaction_is_refused(worker_group: WorkerGroup) -> None:
    name, _ = worker_group.log(10)
    worker = worker_group.worker(name, limits=OFTEN)
    worker.reached(name, 10)
    worker.stop()
    group = "old-" + worker_group.group
    commit_to_kafka(worker_group, {Partition(name, 0): 4}, group)
    producer = Producer({"bootstrap.servers": worker_group.broker, "transactional.id": f"{name}-out", "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    consumer = Consumer({"bootstrap.servers": worker_group.broker, "group.id": group, "log_level": 0})
    producer.send_offsets_to_transaction([TopicPartition(name, 0, 7)], consumer.consumer_group_metadata(), 30)
    consumer.close()
    with pytest.raises(KafkaUnavailable, match=rf"{name}/0 are part of an open transaction"):
        admin_of(worker_group).plan_reset(worker_group.group, ResetTo.kafka(group))
    producer.abort_transaction(30)


def test_an_import_of_other_logs_than_those_of_its_plan_is_refused(
    worker_group: WorkerGroup, consumed_topic: str
) -> None:
    """I4: the commits are those of the plan, and they are positions of another cluster, or of another topic."""
    group = "old-" + worker_group.group
    plan = admin_of(worker_group).plan_import(worker_group.group, group)
    with pytest.raises(ClusterChanged, match="the plan to another"):
        admin_of(worker_group).apply(replace(plan, cluster_id="another"), reason="test")
    worker_group.delete_topic(consumed_topic)
    worker_group.topic(2, name=consumed_topic)
    commit_to_kafka(worker_group, {Partition(consumed_topic, 0): 4, Partition(consumed_topic, 1): 7}, group)
    with pytest.raises(Fenced, match="was created again"):
        admin_of(worker_group).apply(plan, reason="test")
    ids = tuple(replace(partition, topic_id=worker_group.topic_id(consumed_topic)) for partition in plan.partitions)
    worker_group.add_partitions(consumed_topic, 3)
    with pytest.raises(Fenced, match="more partitions than in the plan"):
        admin_of(worker_group).apply(replace(plan, partitions=ids), reason="test")
    assert worker_group.positions() == {}


def test_a_start_at_committed_offsets_refuses_a_mirrors(worker_group: WorkerGroup) -> None:
    name, _ = worker_group.log(10)
    asked = [ConsumerGroupTopicPartitions(worker_group.group, [Commit.mirror(4, None, 1).of(Partition(name, 0))])]
    worker_group.admin.alter_consumer_group_offsets(asked)[worker_group.group].result(20)
    worker = worker_group.worker(worker_group.pipeline(name, start=StartAt.committed()))
    worker.ends_with(ConfigError, "has mirrored the commit")
    assert worker_group.positions() == {}


# -- mirror of a stopped group ----------------------------------------------------------------------------------------


def test_a_stopped_groups_positions_are_written_where_a_plain_consumer_continues(worker_group: WorkerGroup) -> None:
    name, _ = worker_group.log(10)
    worker = worker_group.worker(name, limits=OFTEN)
    worker.reached(name, 10)
    assert "has 1 member in Kafka" in run(worker_group, "offsets", "mirror", worker_group.group, *DO, exits=1).stderr
    with pytest.raises(Fenced, match="has members in Kafka"):  # the call itself raises nothing
        write_commits(
            Identity({"bootstrap.servers": worker_group.broker}, 10),
            worker_group.group,
            {Partition(name, 0): Commit(1)},
        )
    worker.stop()
    assert (
        f"{name}/0: Kafka has no commit, and gets 10"
        in run(worker_group, "offsets", "mirror", worker_group.group).stdout
    )
    assert offsets(worker_group) == {}
    run(worker_group, "offsets", "mirror", worker_group.group, *DO)
    assert in_kafka(worker_group)[Partition(name, 0)].is_mirror
    assert "nothing to do" in run(worker_group, "offsets", "mirror", worker_group.group, *DO).stdout
    [row] = worker_group.sql("SELECT action, from_offset, to_offset, actor FROM {schema}.admin_action")
    assert tuple(row) == ("mirror", None, 10, "ada")
    worker_group.produce(name, ["next"])
    plain = Consumer(
        {"bootstrap.servers": worker_group.broker, "group.id": worker_group.group, "auto.offset.reset": "error"}
    )
    try:
        plain.subscribe([name])
        got: Any = until(lambda: plain.poll(0.1), "the record after the positions")
        assert (got.error(), got.offset()) == (None, 10)
    finally:
        plain.close()


def test_a_plan_of_a_mirror_holds_for_what_ledger_and_kafka_had(worker_group: WorkerGroup) -> None:
    name, _ = worker_group.log(10)
    worker = worker_group.worker(name, limits=OFTEN)
    worker.reached(name, 10)
    worker.stop()
    plan = admin_of(worker_group).plan_mirror(worker_group.group)
    commit_to_kafka(worker_group, {Partition(name, 0): 9})
    with pytest.raises(Fenced, match=f"Kafka has 9 for {name}/0, but the plan has no offset"):
        admin_of(worker_group).apply(plan, reason="test")
    plan = admin_of(worker_group).plan_mirror(worker_group.group)
    worker_group.ledger.reset_offset(name, 0, 3, reason="test", log=None)
    with pytest.raises(Fenced, match=f"{name}/0 is at offset 3, but the plan has 10"):
        admin_of(worker_group).apply(plan, reason="test")
    assert offsets(worker_group) == {Partition(name, 0): 9}
