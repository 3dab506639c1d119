"""``doctor`` asks real brokers: members that are no workers, topics that were created again, another cluster."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs do not re-export them
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from seekpoint import Limits
from seekpoint.admin import Admin, Finding, Level, check_groups
from seekpoint.testing.servers.kafka import start_kafka
from support.kafka_postgres import Scene
from support.log_changes import trim

OFTEN = Limits(idle_check=0.1, lag_check=0.1, sample_positions=1)


def failures(scene: Scene, level: Level = Level.FAILURE) -> dict[str, str]:
    """Messages of failures, by check."""
    return {check: finding.message for check, finding in findings(scene, level).items()}


def findings(scene: Scene, level: Level) -> dict[str, Finding]:
    found = Admin(scene.engine, {"bootstrap.servers": scene.broker}, schema=scene.schema).doctor()
    return {each.check: each for each in found.findings if each.level is level}


@pytest.mark.long
def test_a_consumer_in_the_group_that_is_no_worker(scene: Scene) -> None:
    name, _ = scene.log(10)
    run = scene.worker(name, limits=OFTEN)
    run.reached(name, 10)
    scene.wait(lambda: [row.state for row in scene.sql("SELECT state FROM {schema}.worker")] == ["running"])
    assert failures(scene) == {}
    # Until there is a sample, how near retention is, is a warning; a test's server may not sync.
    scene.wait(lambda: failures(scene, Level.WARNING).keys() <= {"durability"})
    old = Consumer(
        {"bootstrap.servers": scene.broker, "group.id": scene.group, "client.id": "old-code", "log_level": 0}
    )
    try:
        old.subscribe([name])
        scene.wait(lambda: [old.poll(0.1), failures(scene).keys()][1] == {"members"})
        assert "client 'old-code' on " in failures(scene)["members"]
    finally:
        old.close()
    run.stop()


def test_our_own_worker_that_is_starting_is_no_finding(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a member before its row is written: here, the row is deleted, and written again a second later."""
    monkeypatch.setattr(check_groups, "STARTING", 30.0)
    name, _ = scene.log(10)
    run = scene.worker(name, limits=Limits(idle_check=0.1, lag_check=1.0))
    run.reached(name, 10)
    scene.wait(lambda: len(scene.sql("SELECT 1 FROM {schema}.worker")) == 1)
    scene.sql("DELETE FROM {schema}.worker")
    assert failures(scene) == {}
    run.stop()


def test_a_topic_that_was_created_again_and_another_cluster(scene: Scene) -> None:
    name, _ = scene.log(10)
    run = scene.worker(name, limits=OFTEN)
    run.reached(name, 10)
    run.stop()
    scene.delete_topic(name)
    scene.wait(lambda: "does not exist on these brokers" in failures(scene).get("topics", ""))
    scene.topic(name=name)
    assert "was created again" in failures(scene)["topics"]
    scene.sql("UPDATE {schema}.consumer_group SET cluster_id = 'another'")
    assert "offsets are of cluster another" in failures(scene)["cluster"]


def test_records_that_retention_deleted_before_they_were_applied(scene: Scene) -> None:
    name, _ = scene.log(10)
    scene.worker(name, limits=OFTEN).finish(name, 10)
    scene.produce(name, 20)
    trim(scene.admin, name, 25)
    scene.worker(name, limits=OFTEN)
    scene.wait(lambda: failures(scene).keys() >= {"stops", "retention"})
    assert failures(scene)["stops"].startswith(f"{scene.group}: {name}/0 stopped at 10: OffsetLost")
    assert "15 records were deleted by retention" in failures(scene)["retention"]


# Every login may do everything, but for what an ACL denies.
SECURED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


@pytest.mark.long
def test_a_client_without_describe(scene_on: Callable[..., Scene]) -> None:
    """On the group it is a warning; on a topic nothing is known of what was read."""
    with start_kafka(own=True, properties=SECURED) as broker:
        scene = scene_on(kafka=broker)
        name, _ = scene.log(10)
        scene.worker(name).finish(name, 10)
        _deny_describe(scene, ResourceType.GROUP, scene.group)
        scene.wait(lambda: "may not ask for the group's members" in failures(scene, Level.WARNING).get("members", ""))
        assert failures(scene).keys() == set()
        _deny_describe(scene, ResourceType.TOPIC, name)
        scene.wait(lambda: failures(scene).keys() == {"brokers"})
        finding = findings(scene, Level.FAILURE)["brokers"]
        assert name in finding.message
        assert finding.remedies[0].startswith("grant this client DESCRIBE")


def _deny_describe(scene: Scene, kind: ResourceType, name: str) -> None:
    who = ("User:ANONYMOUS", "*", AclOperation.DESCRIBE, AclPermissionType.DENY)
    acl = AclBinding(kind, name, ResourcePatternType.LITERAL, *who)
    scene.admin.create_acls([acl])[acl].result(20)
