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
from sqlalchemy import Connection
from sqlalchemy.exc import ProgrammingError

from seekpoint import Batch, Bytes, Limits, Pipeline
from seekpoint.admin import Admin, Finding, Level, check_groups
from seekpoint.kafka.identity import Identity
from seekpoint.kafka.members import members
from seekpoint.testing.servers.kafka import start_kafka
from support.log_changes import trim
from support.worker_group import PROTOCOLS, WorkerGroup

OFTEN = Limits(idle_check=0.1, lag_check=0.1, sample_positions=1)


def failures(worker_group: WorkerGroup, level: Level = Level.FAILURE) -> dict[str, str]:
    """Messages of failures, by check."""
    return {check: finding.message for check, finding in findings(worker_group, level).items()}


def findings(worker_group: WorkerGroup, level: Level) -> dict[str, Finding]:
    diagnosis = Admin(
        worker_group.engine, {"bootstrap.servers": worker_group.broker}, schema=worker_group.schema
    ).doctor()
    return {finding.check: finding for finding in diagnosis.findings if finding.level is level}


@pytest.mark.long
@pytest.mark.pins("protocol")  # the brokers let no consumer of another one in
def test_a_consumer_in_the_group_that_is_no_worker(worker_group: WorkerGroup) -> None:
    name, _ = worker_group.log(10)
    run = worker_group.worker(name, limits=OFTEN)
    run.reached(name, 10)
    worker_group.wait(
        lambda: [row.state for row in worker_group.sql("SELECT state FROM {schema}.worker")] == ["running"]
    )
    assert failures(worker_group) == {}
    # Until there is a sample, unknown headroom is a warning; a test's server may not sync.
    worker_group.wait(lambda: failures(worker_group, Level.WARNING).keys() <= {"durability"})
    old = Consumer(
        {
            "bootstrap.servers": worker_group.broker,
            "group.id": worker_group.group,
            "client.id": "old-code",
            "log_level": 0,
        }
    )
    try:
        old.subscribe([name])
        worker_group.wait(lambda: [old.poll(0.1), failures(worker_group).keys()][1] == {"members"})
        assert "client 'old-code' on " in failures(worker_group)["members"]
    finally:
        old.close()
    run.stop()


def test_our_own_worker_that_is_starting_is_no_finding(
    worker_group: WorkerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a member before its row is written: here, the row is deleted, and written again a second later."""
    monkeypatch.setattr(check_groups, "STARTING", 30.0)
    name, _ = worker_group.log(10)
    run = worker_group.worker(name, limits=Limits(idle_check=0.1, lag_check=1.0))
    run.reached(name, 10)
    worker_group.wait(lambda: len(worker_group.sql("SELECT 1 FROM {schema}.worker")) == 1)
    worker_group.sql("DELETE FROM {schema}.worker")
    assert failures(worker_group) == {}
    run.stop()


def test_a_topic_that_was_created_again_and_another_cluster(worker_group: WorkerGroup) -> None:
    name, _ = worker_group.log(10)
    run = worker_group.worker(name, limits=OFTEN)
    run.reached(name, 10)
    run.stop()
    worker_group.delete_topic(name)
    worker_group.wait(lambda: "does not exist on these brokers" in failures(worker_group).get("topics", ""))
    worker_group.topic(name=name)
    assert "was created again" in failures(worker_group)["topics"]
    worker_group.sql("UPDATE {schema}.consumer_group SET cluster_id = 'another'")
    assert "offsets belong to cluster another" in failures(worker_group)["cluster"]


def test_a_group_with_lag_whose_only_worker_was_ended_by_an_error(worker_group: WorkerGroup) -> None:
    name, _ = worker_group.log(10)

    def post(tx: Connection, _: Batch[bytes, bytes | None]) -> None:
        tx.exec_driver_sql("SELECT FROM nowhere")

    run = worker_group.worker(Pipeline(worker_group.group, topics=name, value=Bytes(), handle=post), limits=OFTEN)
    run.ends_with(ProgrammingError)
    finding = findings(worker_group, Level.WARNING)["workers"]
    assert finding.message.startswith(f"{worker_group.group}: no worker runs, and 10 records are not applied; the last")
    assert ' ago: UndefinedTable: relation "nowhere" does not exist' in finding.message
    assert finding.remedies == ("correct what the error names, and start a worker",)
    worker_group.worker(name, limits=OFTEN).finish(name, 10)
    assert findings(worker_group, Level.OK)["workers"].message == "no group has records to apply and no worker"


def test_records_that_retention_deleted_before_they_were_applied(worker_group: WorkerGroup) -> None:
    name, _ = worker_group.log(10)
    worker_group.worker(name, limits=OFTEN).finish(name, 10)
    worker_group.produce(name, 20)
    trim(worker_group.admin, name, 25)
    worker_group.worker(name, limits=OFTEN)
    worker_group.wait(lambda: failures(worker_group).keys() >= {"stops", "retention"})
    assert failures(worker_group)["stops"].startswith(f"{worker_group.group}: {name}/0 stopped at 10: OffsetLost")
    assert "retention deleted 15 records that had not" in failures(worker_group)["retention"]


# Every login may do everything, but for what an ACL denies.
SECURED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


@pytest.mark.long
def test_a_client_without_describe(worker_group_on: Callable[..., WorkerGroup]) -> None:
    """On the group it is a warning; on a topic nothing is known of what was read."""
    with start_kafka(own=True, properties=SECURED) as broker:
        worker_group = worker_group_on(kafka=broker)
        name, _ = worker_group.log(10)
        worker_group.worker(name).finish(name, 10)
        _deny_describe(worker_group, ResourceType.GROUP, worker_group.group)
        worker_group.wait(
            lambda: "may not ask for the group's members" in failures(worker_group, Level.WARNING).get("members", "")
        )
        assert failures(worker_group).keys() == set()
        _deny_describe(worker_group, ResourceType.TOPIC, name)
        worker_group.wait(lambda: failures(worker_group).keys() == {"brokers"})
        finding = findings(worker_group, Level.FAILURE)["brokers"]
        assert name in finding.message
        assert finding.remedies[0].startswith("grant this client DESCRIBE")


@pytest.mark.long("a broker with access rules")
def test_members_whose_topics_this_client_may_not_describe(worker_group_on: Callable[..., WorkerGroup]) -> None:
    """Under KIP-848 a description names its members' topics, and is refused without a right to one of them."""
    with start_kafka(own=True, properties=SECURED) as broker:
        worker_group = worker_group_on(kafka=broker)
        name, _ = worker_group.log(10)
        brokers = {"bootstrap.servers": worker_group.broker}
        member = Consumer({**PROTOCOLS["848"], **brokers, "group.id": worker_group.group})
        member.subscribe([name])
        identity = Identity(brokers, 20.0)
        try:
            worker_group.wait(
                lambda: (
                    [member.poll(0.1), len(members(identity, [worker_group.group])[worker_group.group] or [])][1] == 1
                )
            )
            _deny_describe(worker_group, ResourceType.TOPIC, name)
            worker_group.wait(lambda: members(identity, [worker_group.group]) == {worker_group.group: None})
        finally:
            member.close()


def _deny_describe(worker_group: WorkerGroup, kind: ResourceType, name: str) -> None:
    who = ("User:ANONYMOUS", "*", AclOperation.DESCRIBE, AclPermissionType.DENY)
    acl = AclBinding(kind, name, ResourcePatternType.LITERAL, *who)
    worker_group.admin.create_acls([acl])[acl].result(20)
