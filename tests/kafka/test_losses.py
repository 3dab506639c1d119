"""``lost accept`` and ``topics accept``: decisions on what is not in the log any more, each as a plan first."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

from seekpoint import events
from seekpoint.admin import ResetTo
from seekpoint.errors import ClusterChanged, ConfigError, Fenced, OffsetLost
from seekpoint.ledger import Stop
from seekpoint.records import Partition
from seekpoint.testing.servers.kafka import KafkaServer
from support.command import seekpoint
from support.events import Run
from support.kafka_postgres import QUICK, Scene
from support.log_changes import in_transactions
from support.lost_log import OFTEN, admin_of, lost_log
from support.trouble import put_stop


def options(scene: Scene) -> list[str]:
    return ["--database-url", scene.dsn, "--schema", scene.schema, "--kafka", f"bootstrap.servers={scene.broker}"]


def test_a_loss_is_accepted_once(scene: Scene) -> None:
    name = lost_log(scene)
    admin, here = admin_of(scene), Partition(name, 0)
    plan = admin.plan_accept_lost(scene.group, here)
    (accepted,) = plan.acceptances
    assert (accepted.from_offset, accepted.to_offset, accepted.log) == (3, 5, (5, 10))
    assert "2 offsets, 3 to 4, are given up" in plan.consequences[0]
    assert admin.lost() == []
    admin.apply(plan, reason="a test", actor="alice")
    (lost,) = admin.lost([scene.group])
    assert (lost.partition, lost.from_offset, lost.to_offset, lost.reason) == (here, 3, 5, "retention")
    assert lost.actor == "alice"
    with pytest.raises(Fenced, match=r"at offset 5 .* and was at 3"):
        admin.apply(plan, reason="a test")
    assert admin.plan_accept_lost(scene.group, here).is_done
    assert admin.plan_accept_topic(scene.group, name).consequences == (
        f"topic '{name}' was not created again: its id is the stored one",
    )
    scene.sql(put_stop("{schema}", "PoisonStop", "5"))
    with pytest.raises(Fenced, match=r"/0 is stopped at 5 for another cause, PoisonStop: seekpoint status "):
        admin.plan_accept_lost(scene.group, here)
    with pytest.raises(ConfigError, match="no stored offset"):
        admin.plan_accept_lost(scene.group, Partition(name, 7))
    scene.sql("UPDATE {schema}.consumer_group SET cluster_id = 'another'")
    with pytest.raises(ClusterChanged, match="holds offsets of Kafka cluster another"):
        admin.plan_accept_lost(scene.group, here)


@pytest.mark.parametrize("way", ["accept", "reset"])
def test_what_retention_deleted_has_one_reason_whichever_way_it_is_accepted(scene: Scene, way: str) -> None:
    """I4: the range, what happened to it, and why the operator has decided so."""
    name = lost_log(scene)
    admin = admin_of(scene)
    if way == "accept":
        admin.apply(admin.plan_accept_lost(scene.group, name), reason="ticket 7", actor="ada")
    else:
        plan = admin.plan_reset(scene.group, ResetTo.offset(7))
        admin.apply(plan, reason="ticket 7", actor="ada", accept_loss=True)
    first, *more = admin.lost([scene.group])
    assert (first.from_offset, first.to_offset, first.reason, first.operator_reason) == (3, 5, "retention", "ticket 7")
    assert [(lost.from_offset, lost.to_offset, lost.reason) for lost in more] == (
        [] if way == "accept" else [(5, 7, "operator")]
    )
    assert "ticket 7" in seekpoint("lost", "list", scene.group, *options(scene)[:4]).stdout


def test_one_command_accepts_the_losses_of_all_partitions(scene: Scene) -> None:
    name, _ = scene.log(10, 3)
    run = scene.worker(name, limits=OFTEN)
    for number in range(3):
        run.reached(name, 10, number)
    run.stop()
    for number in range(3):
        scene.ledger.reset_offset(name, number, 3, log=None, reason="a test")
    gone = [TopicPartition(name, number, 5) for number in range(2)]
    for future in scene.admin.delete_records(gone).values():
        future.result(10)
    words = ["lost", "accept", scene.group, *options(scene)]
    scene.wait(lambda: "2 offsets, 3 to 4" in seekpoint(*words).stdout)
    assert "needs the partition" in seekpoint(*words, "--to-offset", "5", exits=2).stderr
    scene.wait(lambda: seekpoint(*words).stdout.count("2 offsets, 3 to 4, are given up") == 2)
    seekpoint(*words, "--apply", "--reason", "a week away")
    assert {at.number: offset for at, offset in scene.positions().items()} == {0: 5, 1: 5, 2: 3}
    assert f"group '{scene.group}' has lost nothing" in seekpoint(*words).stdout
    assert f"topic '{name}' has lost nothing" in seekpoint("lost", "accept", scene.group, name, *options(scene)).stdout


def test_an_open_transaction_is_no_end_of_the_log(scene: Scene) -> None:
    """Positions and commits of a consumer that reads uncommitted records are past the last stable offset."""
    name, _ = scene.log(3)
    producer = in_transactions(scene.broker, name, (5, None))
    run = scene.worker(name, kafka={**QUICK, "isolation.level": "read_uncommitted"}, limits=OFTEN)
    run.reached(name, 8)
    run.stop()
    admin, here = admin_of(scene), Partition(name, 0)
    assert admin.plan_accept_lost(scene.group, here).consequences == (f"{here} has lost nothing",)
    (reset,) = admin.plan_reset(scene.group, ResetTo.offset(7)).resets
    assert (reset.target, reset.log, reset.is_past_end) == (7, (0, 8), False)
    (latest,) = admin.plan_reset(scene.group, ResetTo.latest()).resets
    assert latest.target == 3
    old = ConsumerGroupTopicPartitions("old-" + scene.group, [TopicPartition(name, 0, 6)])
    scene.admin.alter_consumer_group_offsets([old])["old-" + scene.group].result(20)
    (imported,) = admin.plan_import("new-" + scene.group, "old-" + scene.group).partitions
    assert (imported.offset, imported.log) == (6, (0, 8))
    producer.abort_transaction(30)


def test_a_running_worker_resumes(scene: Scene) -> None:
    name = lost_log(scene)
    run = scene.worker(name, limits=OFTEN)
    scene.wait(lambda: [at.stop is not None for at in scene.ledger.read()] == [True])
    given = ["lost", "accept", scene.group, f"{name}:0", *options(scene)]
    assert "dry run; --apply does it" in seekpoint(*given, exits=0).stdout
    assert seekpoint(*given, "--apply", exits=2).stdout == ""
    report = json.loads(seekpoint(*given, "--execute", "--reason", "a test", "--json", exits=0).stdout)
    assert report["applied"]
    run.reached(name, 10)
    assert "nothing to do" in seekpoint(*given, "--apply", "--reason", "a test", exits=0).stdout
    (listed,) = json.loads(seekpoint("lost", "list", scene.group, *options(scene)[:4], "--json", exits=0).stdout)
    assert (listed["from_offset"], listed["to_offset"]) == (3, 5)
    run.stop()


def test_a_topic_that_was_created_again(scene: Scene) -> None:
    name, _ = scene.log(10)
    run = scene.worker(name, limits=OFTEN)
    run.reached(name, 10)
    run.stop()
    admin = admin_of(scene)
    assert admin.plan_accept_topic(scene.group, name).is_done
    old = scene.topic_id(name)
    scene.delete_topic(name)
    scene.topic(name=name)
    scene.produce(name, 4)
    with pytest.raises(ConfigError, match="topics accept"):
        admin.plan_accept_lost(scene.group, Partition(name, 0))
    with pytest.raises(ConfigError, match="offset 5 is not in its log, which is from 0 to 4"):
        admin.plan_accept_topic(scene.group, name, at=5)
    plan = admin.plan_accept_topic(scene.group, name, at=1)
    assert "1 records before it are left out" in plan.consequences[0]
    admin.apply(admin.plan_accept_topic(scene.group, name), reason="a test")
    with pytest.raises(Fenced):
        admin.apply(plan, reason="a test")
    (at,) = scene.ledger.read()
    assert (at.next_offset, at.topic_id) == (0, scene.topic_id(name))
    (lost,) = admin.lost()
    assert (lost.topic_id, lost.from_offset, lost.to_offset, lost.reason) == (old, 10, None, "recreated")
    given = ["topics", "accept", scene.group, name, *options(scene)]
    assert "nothing to do" in seekpoint(*given, "--from-beginning", exits=0).stdout
    seekpoint(*given, exits=2)


def truncated(scene: Scene, kafka: KafkaServer, kept: Path) -> tuple[str, Run]:
    """A worker has applied 100 records; the broker comes back with a log of 80, and the worker has stopped."""
    folder = getattr(getattr(kafka, "_handle", None), "_folder", None)
    if folder is None:
        pytest.skip("the broker's files are out of reach")
    name = scene.topic()
    log = folder.path / "data" / f"{name}-0"
    scene.produce(name, 80)
    kafka.kill()
    shutil.copytree(log, kept)
    kafka.start()
    scene.produce(name, 20)  # under a higher leader epoch
    run = scene.worker(name, limits=OFTEN)
    run.reached(name, 100)
    kafka.kill()
    shutil.rmtree(log)
    shutil.copytree(kept, log)
    kafka.start()
    return name, run


def stored_stop(scene: Scene, log_end: int | None) -> Stop:
    """The stop in the ledger, as soon as it says where the log ended."""
    stops: list[Stop] = []

    def is_stored() -> bool:
        stops[:] = [at.stop for at in scene.ledger.read() if at.stop is not None]
        return [stop.log_end for stop in stops] == [log_end]

    scene.wait(is_stored)
    return stops[0]


@pytest.mark.long
@pytest.mark.usefixtures("short_backoff")
def test_i4_a_truncated_log_that_has_grown_again_continues_where_it_ended(
    scene_on: Callable[..., Scene], own_kafka: KafkaServer, tmp_path: Path
) -> None:
    """I4: the records that were written there since are read; also where another worker finds it only then."""
    scene = scene_on(kafka=own_kafka)
    name, run = truncated(scene, own_kafka, tmp_path / "older")
    assert "past the end of the log (80)" in stored_stop(scene, 80).message
    scene.produce(name, 40)
    run.stop()
    run = scene.worker(name, limits=OFTEN)
    run.seen.wait_for(events.PartitionStopped, lambda e: isinstance(e.error, OffsetLost))
    scene.wait(lambda: "truncated before it and written again" in stored_stop(scene, 80).message)
    admin, here = admin_of(scene), Partition(name, 0)
    plan = admin.plan_accept_lost(scene.group, here)
    (accepted,) = plan.acceptances
    assert (accepted.from_offset, accepted.to_offset, accepted.truncated_at, accepted.log) == (100, 80, 80, (0, 120))
    assert "ended at 80, and was written again since: what was applied from 80 to 99" in plan.consequences[0]
    (skip,) = admin.plan_accept_lost(scene.group, here, to_offset=100).consequences[1:2]
    assert skip == f"{here}: records from 80 to 99 are not read"
    with pytest.raises(ConfigError, match="--to-offset 101 is not from 0 to 100"):
        admin.plan_accept_lost(scene.group, here, to_offset=101)
    admin.apply(plan, reason="a test")
    run.reached(name, 120)
    run.stop()
    assert scene.book.written(name) == [(0, n) for n in range(100)] + [(0, n) for n in range(80, 120)]
    assert [(each.from_offset, each.to_offset, each.reason) for each in admin.lost()] == [(80, 100, "rewritten")]


@pytest.mark.long
@pytest.mark.usefixtures("short_backoff")
def test_i4_a_truncated_log_that_no_worker_has_seen_needs_an_offset(
    scene_on: Callable[..., Scene], own_kafka: KafkaServer, tmp_path: Path
) -> None:
    """I4: a forward reset, too, would pass the new records without a row."""
    scene = scene_on(kafka=own_kafka)
    name, run = truncated(scene, own_kafka, tmp_path / "older")
    stored_stop(scene, 80)
    run.stop()
    scene.sql("UPDATE {schema}.partition_trouble SET stop_log_end = NULL")  # as if none had run then
    scene.produce(name, 40)
    run = scene.worker(name, limits=OFTEN)
    scene.wait(lambda: "truncated before it" in stored_stop(scene, None).message)
    choice = stored_stop(scene, None).choices[0]
    assert f"seekpoint lost accept {scene.group} {name}:0 --to-offset OFFSET" in choice
    admin, here = admin_of(scene), Partition(name, 0)
    for plan in (
        lambda: admin.plan_accept_lost(scene.group, here),
        lambda: admin.plan_reset(scene.group, ResetTo.latest()),
        lambda: admin.plan_reset(scene.group, ResetTo.current()),
    ):
        with pytest.raises(Fenced, match=r"Name that offset: seekpoint lost accept .* --to-offset OFFSET"):
            plan()
    with pytest.raises(ConfigError, match="--to-offset 100 is not from 0 to 99"):
        admin.plan_accept_lost(scene.group, here, to_offset=100)
    given = ["lost", "accept", scene.group, f"{name}:0", *options(scene)]
    seekpoint(*given, exits=1)
    seekpoint(*given, "--to-offset", "80", "--apply", "--reason", "a test", exits=0)
    run.reached(name, 120)
    run.stop()
    assert [(each.from_offset, each.to_offset, each.reason) for each in admin.lost()] == [(80, 100, "rewritten")]
