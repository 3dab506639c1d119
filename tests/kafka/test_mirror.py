"""A worker's mirror in Kafka: Kafka's own tool shows the ledger's positions; crashes and lost COMMITs; the way back."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping
from dataclasses import replace
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
from seekpoint.admin import Admin, ResetTo
from seekpoint.errors import ClusterChanged, ConfigError, Fenced, KafkaUnavailable
from seekpoint.kafka.commits import Commit, read_commits, write_commits
from seekpoint.kafka.identity import Identity
from support.command import seekpoint
from support.events import Gate
from support.kafka_postgres import PROTOCOLS, Scene
from support.kafka_tools import Shown, describe
from support.log_changes import in_transactions
from support.postgres_proxy import MOVES, PostgresProxy
from support.waiting import until

OFTEN = Limits(idle_check=0.1, lag_check=0.1)


def in_kafka(scene: Scene, group: str | None = None) -> dict[Partition, Commit]:
    """The commits that Kafka has."""
    asked = [ConsumerGroupTopicPartitions(group or scene.group)]

    def answered() -> Any:
        try:
            return scene.admin.list_consumer_group_offsets(asked)[group or scene.group].result(20)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.COORDINATOR_LOAD_IN_PROGRESS:  # a broker that has just started
                raise
            return None

    answer = until(answered, "an answer about the group's commits")
    found = {Partition(at.topic, at.partition): at for at in answer.topic_partitions if at.offset >= 0}
    return {p: Commit(at.offset, at.leader_epoch, at.metadata or "") for p, at in found.items()}


def offsets(scene: Scene, group: str | None = None) -> dict[Partition, int]:
    return {partition: commit.offset for partition, commit in in_kafka(scene, group).items()}


def commit_to_kafka(scene: Scene, offsets: Mapping[Partition, int], group: str | None = None) -> None:
    """What a plain consumer has committed before it ended."""
    group = group or scene.group
    commits = [TopicPartition(*partition, offset) for partition, offset in offsets.items()]

    def is_written() -> bool:
        """An error is an attribute of each partition; a coordinator may not know a new topic yet."""
        asked = scene.admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, commits)])
        return all(at.error is None for at in asked[group].result(20).topic_partitions)

    scene.wait(is_written)


def admin(scene: Scene) -> Admin:
    return Admin(scene.engine, {"bootstrap.servers": scene.broker}, schema=scene.schema)


def run(scene: Scene, *words: str, exits: int = 0) -> Any:
    servers = ["--database-url", scene.dsn, "--schema", scene.schema, "--kafka", f"bootstrap.servers={scene.broker}"]
    return seekpoint(*words, *servers, exits=exits)


@pytest.mark.long
def test_kafkas_own_tool_shows_the_positions_of_running_workers(scene: Scene) -> None:
    """Under both protocols; on a transactional topic, whose log ends in markers, the lag is 0; after a rewind, too."""
    plain, marked = scene.topic(), scene.topic()
    scene.produce(plain, 10)
    in_transactions(scene.broker, marked, (10, True), (3, False))
    refusing = threading.Event()
    handle = scene.book.refusing(lambda record: refusing.is_set() and record.offset == 4)
    groups = {protocol: f"{scene.group}-{protocol}" for protocol in ("eager", "848")}
    workers = {}
    for protocol, group in groups.items():
        pipeline = scene.book.pipeline(group, [plain, marked], handle=handle, on_poison=OnPoison.STOP)
        workers[group] = scene.worker(pipeline, kafka=PROTOCOLS[protocol], mirror=True, limits=OFTEN)
    ends = {Partition(plain, 0): 10, Partition(marked, 0): 15}
    for group in groups.values():
        scene.wait(lambda group=group: offsets(scene, group) == ends)  # type: ignore[misc]
    shown = describe(scene.broker, *groups.values())
    assert shown == {(group, at): Shown(end, end, 0) for group in groups.values() for at, end in ends.items()}

    refusing.set()
    for group, worker in workers.items():
        run(scene, "offsets", "reset", group, "--topic", plain, "--to-offset", "2", "--apply", "--reason", "test")
        worker.seen.wait_for(events.PartitionStopped)
        scene.wait(lambda group=group: offsets(scene, group) == {**ends, Partition(plain, 0): 4})  # type: ignore[misc]
        assert all(commit.is_mirror for commit in in_kafka(scene, group).values())
    shown = describe(scene.broker, *groups.values())
    assert {shown[group, Partition(plain, 0)] for group in groups.values()} == {Shown(4, 10, 6)}


@pytest.mark.long
def test_a_worker_that_has_drained_leaves_its_last_positions(scene: Scene) -> None:
    name, _ = scene.log(10, 2)
    worker = scene.worker(name, mirror=True, limits=Limits(idle_check=0.1))  # five seconds between two commits
    scene.wait(lambda: offsets(scene).keys() == {Partition(name, 0), Partition(name, 1)})
    scene.produce(name, 5)
    worker.reached(name, 15)
    worker.reached(name, 10, 1)
    worker.stop()
    assert offsets(scene) == scene.positions() == {Partition(name, 0): 15, Partition(name, 1): 10}


@pytest.mark.repeats("when")
@pytest.mark.parametrize("when", ["after_commit", "before_commit"])
def test_kafka_is_never_ahead_of_a_commit_that_was_not_answered(scene: Scene, proxy: PostgresProxy, when: Any) -> None:
    name, stored = scene.log(10)
    gate = Gate(events.Advanced)
    worker = scene.worker(name, observe=[gate], engine=proxy.dsn, mirror=True, limits=OFTEN)
    gate.wait()
    proxy.arm(when, MOVES)
    seen: list[tuple[int, int]] = []

    def watch(event: events.Event) -> None:
        if isinstance(event, events.CommitUnknown):
            seen.append((offsets(scene).get(Partition(name, 0), 0), scene.positions()[Partition(name, 0)]))

    worker.worker.add_observer(watch)
    gate.open()
    scene.wait(lambda: offsets(scene) == {Partition(name, 0): 10})
    worker.stop()
    assert seen
    assert all(mirrored <= applied for mirrored, applied in seen)
    scene.book.assert_holds(name, stored)


@pytest.mark.long
def test_a_worker_that_is_killed_anywhere_leaves_nothing_that_was_not_applied(scene: Scene) -> None:
    """The next worker brings Kafka to the ledger's position."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice, name = random.Random(seed), scene.topic()
    stored: list[tuple[int, int]] = []
    for _ in range(3):
        stored += scene.produce(name, dice.randrange(5, 200))
        step = (dice.choice(["BatchOpened", "Advanced", "Committed"]), 1)
        scene.killed_process(name, mirror=True, limits={"lag_check": 0.1}, stop_at=step, partitions=[(name, 0)])
        assert offsets(scene).get(Partition(name, 0), 0) <= scene.positions().get(Partition(name, 0), 0)
    last = scene.worker(name, mirror=True, limits=OFTEN)
    scene.wait(lambda: offsets(scene) == {Partition(name, 0): len(stored)})
    last.stop()
    scene.book.assert_holds(name, stored)


def test_a_partition_that_was_taken_meanwhile_is_its_new_owners(scene: Scene) -> None:
    """The first worker is held up between two batches, and comes back when its partition was read on elsewhere."""
    name, _ = scene.log(10)
    gate = Gate(events.LagSampled)
    older = scene.worker(name, mirror=True, limits=OFTEN, partitions=[(name, 0)])
    older.reached(name, 10)
    older.worker.add_observer(gate)
    gate.wait()
    newer = scene.worker(name, mirror=True, limits=OFTEN, partitions=[(name, 0)])
    newer.placed()
    scene.produce(name, 10)
    newer.reached(name, 20)
    scene.wait(lambda: offsets(scene) == {Partition(name, 0): 20})
    gate.open()
    older.seen.wait_for(events.WorkerStopped)
    with pytest.raises(Fenced, match="newest claim wins"):
        older.stop()
    scene.produce(name, 1)
    newer.reached(name, 21)
    scene.wait(lambda: offsets(scene) == {Partition(name, 0): 21})
    newer.stop()


def test_commits_of_another_consumer_are_named_at_the_assignment(scene: Scene) -> None:
    name, _ = scene.log(10, 2)
    commit_to_kafka(scene, {Partition(name, 1): 3})
    worker = scene.worker(name, mirror=True, limits=OFTEN)
    found = worker.seen.wait_for(events.OtherCommits)
    assert found.commits == {Partition(name, 1): 3}
    scene.wait(lambda: offsets(scene) == {Partition(name, 0): 10, Partition(name, 1): 10})
    worker.stop()
    later = scene.worker(name, limits=OFTEN)
    later.placed(2)
    later.seen.wait_for(events.LagSampled, count=5)
    later.stop()
    assert later.seen.all(events.OtherCommits) == []


# -- import ----------------------------------------------------------------------------------------------------------


def imported(scene: Scene, *words: str, exits: int = 0) -> Any:
    return run(scene, "offsets", "import", scene.group, "--from-group", "old-" + scene.group, *words, exits=exits)


DO = ("--apply", "--reason", "ticket 90", "--actor", "ada")


@pytest.fixture
def old(scene: Scene) -> str:
    """A topic of two partitions with ten records each, of which a plain consumer has committed 4 and 7."""
    name, _ = scene.log(10, 2)
    commit_to_kafka(scene, {Partition(name, 0): 4, Partition(name, 1): 7}, "old-" + scene.group)
    return name


def test_a_group_begins_at_the_commits_of_a_plain_consumer(scene: Scene, old: str) -> None:
    shown = imported(scene).stdout
    assert f"{old}/0 begins at 4, Kafka's commit, 6 offsets before the end of its log" in shown
    assert shown.endswith("dry run; --apply does it\n")
    assert scene.positions() == {}
    imported(scene, *DO)
    assert scene.positions() == {Partition(old, 0): 4, Partition(old, 1): 7}
    done = scene.sql("SELECT action, partition, to_offset, actor FROM {schema}.admin_action ORDER BY id")
    assert [tuple(row) for row in done] == [("import", 0, 4, "ada"), ("import", 1, 7, "ada")]
    assert "has stored offsets of topic" in imported(scene, *DO, exits=1).stderr
    worker = scene.worker(scene.pipeline(old, version=3, start=StartAt.latest()))
    scene.wait_for_position(old, 10, 0)
    scene.wait_for_position(old, 10, 1)
    worker.stop()
    scene.book.assert_holds(old, [(0, n) for n in range(4, 10)] + [(1, n) for n in range(7, 10)])


def test_commits_that_cannot_be_positions_are_refused(scene: Scene, old: str) -> None:
    group = "old-" + scene.group
    assert (
        "has no commit in Kafka: check the name"
        in run(scene, "offsets", "import", scene.group, "--from-group", f"no-{scene.group}", exits=2).stderr
    )
    assert "does not exist on the brokers" in imported(scene, "--topic", "none", exits=2).stderr
    other = scene.topic(2)
    scene.produce(other, 5)
    commit_to_kafka(scene, {Partition(other, 0): 2}, group)
    assert f"has no commit in Kafka for {other}/1" in imported(scene, "--topic", other, exits=1).stderr
    assert (
        f"{other}/1 begins at 0, without a commit" in imported(scene, "--topic", other, "--missing", "earliest").stdout
    )
    third = scene.topic(3)
    commit_to_kafka(scene, {Partition(third, 1): 0}, group)
    said = imported(scene, "--topic", third, exits=1).stderr
    assert f"for {third}/0, {third}/2: say where" in said, "each partition without a commit is named"
    commit_to_kafka(scene, {Partition(other, 0): 6, Partition(other, 1): 0}, group)
    assert "past the end of the log" in imported(scene, "--topic", other, exits=1).stderr
    mirrored = Commit.mirror(2, None, 7).at(Partition(other, 0))
    asked = [ConsumerGroupTopicPartitions(group, [mirrored])]
    scene.admin.alter_consumer_group_offsets(asked)[group].result(20)
    assert "was mirrored from a ledger" in imported(scene, "--topic", other, exits=1).stderr
    assert scene.positions() == {}
    forgotten = """'{"by": "ada", "reason": "test", "at": "2026-11-22T14:00:00Z"}'"""
    scene.sql(f"INSERT INTO {{schema}}.consumer_group (name, forgotten) VALUES ('{scene.group}', {forgotten})")
    assert "was forgotten by ada" in imported(scene, "--topic", old, exits=1).stderr


def test_a_member_of_the_old_group_is_refused_before_and_after_its_commits_are_read(
    scene: Scene, old: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that joins while they are read: it may read on, and commit, what the plan takes for its end."""
    group, read = "old-" + scene.group, read_commits
    plan = admin(scene).plan_import(scene.group, group)
    consumer = Consumer({"bootstrap.servers": scene.broker, "group.id": group, "client.id": "old", "log_level": 0})

    def joins(*asked: Any) -> Any:
        answer = read(*asked)
        consumer.subscribe([old])
        scene.wait(lambda: consumer.poll(0.1) is not None)
        return answer

    monkeypatch.setattr("seekpoint.admin.import_offsets.read_commits", joins)
    try:
        with pytest.raises(Fenced, match=r"has 1 member in Kafka \(old on "):
            admin(scene).apply(plan, reason="test")
        assert scene.positions() == {}
        monkeypatch.setattr(
            "seekpoint.admin.import_offsets.read_commits", lambda *_: pytest.fail("asked a group that has members")
        )
        with pytest.raises(Fenced, match="has 1 member in Kafka"):
            admin(scene).apply(plan, reason="test")
    finally:
        consumer.close()
    monkeypatch.setattr("seekpoint.admin.import_offsets.read_commits", read)
    commit_to_kafka(scene, {Partition(old, 0): 5}, group)
    with pytest.raises(Fenced, match=f"has committed 5 for {old}/0, in the plan 4"):
        admin(scene).apply(plan, reason="test")
    assert scene.positions() == {}


def test_a_member_that_joins_during_the_last_questions_is_refused(
    scene: Scene, old: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members are asked for after all else: what is left until COMMIT is one message to Postgres."""
    group, known = "old-" + scene.group, Identity.known
    plan = admin(scene).plan_import(scene.group, group)
    consumer = Consumer({"bootstrap.servers": scene.broker, "group.id": group, "client.id": "old", "log_level": 0})

    def joins(identity: Identity, topics: Any) -> Any:
        if not consumer.assignment():
            consumer.subscribe([old])
            scene.wait(lambda: consumer.poll(0.1) is not None)
        return known(identity, topics)

    monkeypatch.setattr(Identity, "known", joins)
    try:
        with pytest.raises(Fenced, match=r"has 1 member in Kafka \(old on "):
            admin(scene).apply(plan, reason="test")
    finally:
        consumer.close()
    assert scene.positions() == {}


def test_commits_that_an_open_transaction_replaces_are_not_read(scene: Scene, old: str) -> None:
    """The plain consumer has written its output, and waits or has crashed: the transaction's end decides on the offset.

    Also of a partition that has no commit yet, and where the transaction begins after the plan was made.
    """
    group = "old-" + scene.group
    new, _ = scene.log(10)
    asked = admin(scene)
    plan = asked.plan_import(scene.group, group, [old])
    producer = Producer({"bootstrap.servers": scene.broker, "transactional.id": f"{old}-out", "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    consumer = Consumer({"bootstrap.servers": scene.broker, "group.id": group, "log_level": 0})
    applied = [TopicPartition(old, 0, 6), TopicPartition(new, 0, 7)]
    producer.send_offsets_to_transaction(applied, consumer.consumer_group_metadata(), 30)
    consumer.close()
    for refused in (
        lambda: asked.plan_import(scene.group, group, [old]),
        lambda: asked.plan_import(scene.group, group, [new], missing="earliest"),
        lambda: asked.apply(plan, reason="test"),
    ):
        with pytest.raises(KafkaUnavailable, match=rf"({old}|{new})/0 are part of an open transaction: try again"):
            refused()
    assert scene.positions() == {}
    producer.commit_transaction(30)

    def planned(topic: str) -> list[int]:
        return [at.offset for at in asked.plan_import(scene.group, group, [topic], missing="earliest").partitions]

    scene.wait(lambda: offsets(scene, group).keys() >= {Partition(new, 0)})
    assert (planned(old), planned(new)) == ([6, 7], [7])


def test_a_reset_to_commits_in_an_open_transaction_is_refused(scene: Scene) -> None:
    name, _ = scene.log(10)
    worker = scene.worker(name, limits=OFTEN)
    worker.reached(name, 10)
    worker.stop()
    group = "old-" + scene.group
    commit_to_kafka(scene, {Partition(name, 0): 4}, group)
    producer = Producer({"bootstrap.servers": scene.broker, "transactional.id": f"{name}-out", "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    consumer = Consumer({"bootstrap.servers": scene.broker, "group.id": group, "log_level": 0})
    producer.send_offsets_to_transaction([TopicPartition(name, 0, 7)], consumer.consumer_group_metadata(), 30)
    consumer.close()
    with pytest.raises(KafkaUnavailable, match=rf"{name}/0 are part of an open transaction"):
        admin(scene).plan_reset(scene.group, ResetTo.kafka(group))
    producer.abort_transaction(30)


def test_an_import_of_other_logs_than_those_of_its_plan_is_refused(scene: Scene, old: str) -> None:
    """I4: the commits are those of the plan, and they are positions of another cluster, or of another topic."""
    group = "old-" + scene.group
    plan = admin(scene).plan_import(scene.group, group)
    with pytest.raises(ClusterChanged, match="the plan to another"):
        admin(scene).apply(replace(plan, cluster_id="another"), reason="test")
    scene.delete_topic(old)
    scene.topic(2, name=old)
    commit_to_kafka(scene, {Partition(old, 0): 4, Partition(old, 1): 7}, group)
    with pytest.raises(Fenced, match="was created again"):
        admin(scene).apply(plan, reason="test")
    ids = tuple(replace(each, topic_id=scene.topic_id(old)) for each in plan.partitions)
    scene.add_partitions(old, 3)
    with pytest.raises(Fenced, match="more partitions than in the plan"):
        admin(scene).apply(replace(plan, partitions=ids), reason="test")
    assert scene.positions() == {}


def test_a_start_at_committed_offsets_refuses_a_mirrors(scene: Scene) -> None:
    name, _ = scene.log(10)
    asked = [ConsumerGroupTopicPartitions(scene.group, [Commit.mirror(4, None, 1).at(Partition(name, 0))])]
    scene.admin.alter_consumer_group_offsets(asked)[scene.group].result(20)
    worker = scene.worker(scene.pipeline(name, start=StartAt.committed()))
    worker.seen.wait_for(events.WorkerStopped)
    with pytest.raises(ConfigError, match="has mirrored the commit"):
        worker.stop()
    assert scene.positions() == {}


# -- mirror of a stopped group ----------------------------------------------------------------------------------------


def test_a_stopped_groups_positions_are_written_where_a_plain_consumer_continues(scene: Scene) -> None:
    name, _ = scene.log(10)
    worker = scene.worker(name, limits=OFTEN)
    worker.reached(name, 10)
    assert "has 1 member in Kafka" in run(scene, "offsets", "mirror", scene.group, *DO, exits=1).stderr
    with pytest.raises(Fenced, match="has members in Kafka"):  # the call itself raises nothing
        write_commits(Identity({"bootstrap.servers": scene.broker}, 10), scene.group, {Partition(name, 0): Commit(1)})
    worker.stop()
    assert f"{name}/0: Kafka has no commit, and gets 10" in run(scene, "offsets", "mirror", scene.group).stdout
    assert offsets(scene) == {}
    run(scene, "offsets", "mirror", scene.group, *DO)
    assert in_kafka(scene)[Partition(name, 0)].is_mirror
    assert "nothing to do" in run(scene, "offsets", "mirror", scene.group, *DO).stdout
    [row] = scene.sql("SELECT action, from_offset, to_offset, actor FROM {schema}.admin_action")
    assert tuple(row) == ("mirror", None, 10, "ada")
    scene.produce(name, ["next"])
    plain = Consumer({"bootstrap.servers": scene.broker, "group.id": scene.group, "auto.offset.reset": "error"})
    try:
        plain.subscribe([name])
        got: Any = until(lambda: plain.poll(0.1), "the record after the positions")
        assert (got.error(), got.offset()) == (None, 10)
    finally:
        plain.close()


def test_a_plan_of_a_mirror_holds_for_what_ledger_and_kafka_had(scene: Scene) -> None:
    name, _ = scene.log(10)
    worker = scene.worker(name, limits=OFTEN)
    worker.reached(name, 10)
    worker.stop()
    plan = admin(scene).plan_mirror(scene.group)
    commit_to_kafka(scene, {Partition(name, 0): 9})
    with pytest.raises(Fenced, match=f"Kafka has 9 for {name}/0, in the plan None"):
        admin(scene).apply(plan, reason="test")
    plan = admin(scene).plan_mirror(scene.group)
    scene.ledger.reset_offset(name, 0, 3, reason="test", log=None)
    with pytest.raises(Fenced, match=f"{name}/0 is at offset 3, in the plan at 10"):
        admin(scene).apply(plan, reason="test")
    assert offsets(scene) == {Partition(name, 0): 9}
