"""``lost accept`` and ``topics accept``: decisions on what is not in the log any more, each as a plan first."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

from seekpoint.admin import ResetTo
from seekpoint.errors import ConfigError, Fenced
from seekpoint.records import Partition
from support.command import seekpoint
from support.kafka_postgres import QUICK, Scene
from support.log_changes import in_transactions
from support.lost_log import OFTEN, admin_of, lost_log


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
    scene.sql(
        "UPDATE {schema}.partition_offset SET stop_kind = 'PoisonStop', stop_offset = 5, stop_message = 'x', "
        "stop_choices = '{{wait}}', stopped_at = now()"
    )
    with pytest.raises(Fenced, match=r"/0 is stopped at 5 for another cause, PoisonStop: seekpoint status "):
        admin.plan_accept_lost(scene.group, here)
    with pytest.raises(ConfigError, match="no stored offset"):
        admin.plan_accept_lost(scene.group, Partition(name, 7))


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
