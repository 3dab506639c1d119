"""``lost accept`` and ``topics accept``: decisions on what is not in the log any more, each as a plan first."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

from seekpoint import Pipeline, Text, events
from seekpoint.admin import ResetTo
from seekpoint.errors import ClusterChanged, ConfigError, Fenced, OffsetLost
from seekpoint.jobs.batch import BatchJob
from seekpoint.ledger import Stop
from seekpoint.records import Partition
from seekpoint.testing.servers.kafka import KafkaServer
from support.command import seekpoint
from support.events import Run
from support.log_changes import in_transactions, log_folder
from support.lost_log import OFTEN, admin_of, lost_log
from support.trouble import put_stop
from support.worker_group import QUICK, WorkerGroup


def test_a_loss_is_accepted_once(worker_group: WorkerGroup) -> None:
    name = lost_log(worker_group)
    admin, here = admin_of(worker_group), Partition(name, 0)
    plan = admin.plan_accept_lost(worker_group.group, here)
    (accepted,) = plan.acceptances
    assert (accepted.from_offset, accepted.to_offset, accepted.log) == (3, 5, (5, 10))
    assert "2 offsets, 3 to 4, are given up" in plan.consequences[0]
    assert admin.lost() == []
    admin.apply(plan, reason="a test", actor="alice")
    (lost,) = admin.lost([worker_group.group])
    assert (lost.partition, lost.from_offset, lost.to_offset, lost.reason) == (here, 3, 5, "retention")
    assert lost.actor == "alice"
    with pytest.raises(Fenced, match=r"at offset 5 .* but was at 3"):
        admin.apply(plan, reason="a test")
    assert admin.plan_accept_lost(worker_group.group, here).is_done
    assert admin.plan_accept_topic(worker_group.group, name).consequences == (
        f"topic '{name}' was not created again: its id is the stored one",
    )
    worker_group.sql(put_stop("{schema}", "PoisonStop", "5"))
    with pytest.raises(Fenced, match=r"/0 is stopped at 5 for another cause, PoisonStop: seekpoint status "):
        admin.plan_accept_lost(worker_group.group, here)
    with pytest.raises(ConfigError, match="no stored offset"):
        admin.plan_accept_lost(worker_group.group, Partition(name, 7))
    worker_group.sql("UPDATE {schema}.consumer_group SET cluster_id = 'another'")
    with pytest.raises(ClusterChanged, match="holds offsets of Kafka cluster another"):
        admin.plan_accept_lost(worker_group.group, here)


@pytest.mark.repeats("decision")
@pytest.mark.parametrize("decision", ["accept", "reset"])
def test_what_retention_deleted_has_one_reason_whichever_way_it_is_accepted(
    worker_group: WorkerGroup, decision: str
) -> None:
    """I4: the range, what happened to it, and why the operator has decided so."""
    name = lost_log(worker_group)
    admin = admin_of(worker_group)
    if decision == "accept":
        admin.apply(admin.plan_accept_lost(worker_group.group, name), reason="ticket 7", actor="ada")
    else:
        plan = admin.plan_reset(worker_group.group, ResetTo.offset(7))
        admin.apply(plan, reason="ticket 7", actor="ada", accept_loss=True)
    first, *more = admin.lost([worker_group.group])
    assert (first.from_offset, first.to_offset, first.reason, first.operator_reason) == (3, 5, "retention", "ticket 7")
    assert [(lost.from_offset, lost.to_offset, lost.reason) for lost in more] == (
        [] if decision == "accept" else [(5, 7, "operator")]
    )
    assert "ticket 7" in seekpoint("lost", "list", worker_group.group, *worker_group.database_options).stdout


def test_one_command_accepts_the_losses_of_all_partitions(worker_group: WorkerGroup) -> None:
    name, _ = worker_group.log(10, 3)
    run = worker_group.worker(name, limits=OFTEN)
    for number in range(3):
        run.reached(name, 10, number)
    run.stop()
    for number in range(3):
        worker_group.ledger.reset_offset(name, number, 3, log=None, reason="a test")
    gone = [TopicPartition(name, number, 5) for number in range(2)]
    for future in worker_group.admin.delete_records(gone).values():
        future.result(10)
    words = ["lost", "accept", worker_group.group, *worker_group.server_options]
    worker_group.wait(lambda: "2 offsets, 3 to 4" in seekpoint(*words).stdout)
    assert "is for one partition" in seekpoint(*words, "--to-offset", "5", exits=2).stderr
    worker_group.wait(lambda: seekpoint(*words).stdout.count("2 offsets, 3 to 4, are given up") == 2)
    seekpoint(*words, "--apply", "--reason", "a week away")
    assert {partition.number: offset for partition, offset in worker_group.positions().items()} == {0: 5, 1: 5, 2: 3}
    assert f"group '{worker_group.group}' has lost nothing" in seekpoint(*words).stdout
    assert (
        f"topic '{name}' has lost nothing"
        in seekpoint("lost", "accept", worker_group.group, name, *worker_group.server_options).stdout
    )


def test_a_deleted_topic_does_not_keep_the_losses_of_others_from_their_decision(worker_group: WorkerGroup) -> None:
    name = lost_log(worker_group)
    copied = f"jsonb_populate_record(o, jsonb_build_object('topic', '{name}-deleted'))"
    worker_group.sql(
        f"INSERT INTO {{schema}}.partition_offset SELECT ({copied}).* FROM {{schema}}.partition_offset AS o"
    )
    admin, missing = admin_of(worker_group), f"topic '{name}-deleted' does not exist on these brokers"
    plan = admin.plan_accept_lost(worker_group.group)
    assert [accepted.partition for accepted in plan.acceptances] == [Partition(name, 0)]
    assert missing in plan.consequences[-1]
    for refused in (admin.plan_accept_lost, admin.plan_accept_topic):
        with pytest.raises(ConfigError, match=missing):
            refused(worker_group.group, f"{name}-deleted")


def test_an_open_transaction_is_no_end_of_the_log(worker_group: WorkerGroup) -> None:
    """Positions and commits of a consumer that reads uncommitted records are past the last stable offset."""
    name, _ = worker_group.log(3)
    producer = in_transactions(worker_group.broker, name, (5, None))
    run = worker_group.worker(name, kafka={**QUICK, "isolation.level": "read_uncommitted"}, limits=OFTEN)
    run.reached(name, 8)
    run.stop()
    admin, here = admin_of(worker_group), Partition(name, 0)
    assert admin.plan_accept_lost(worker_group.group, here).consequences == (f"{here} has lost nothing",)
    (reset,) = admin.plan_reset(worker_group.group, ResetTo.offset(7)).resets
    assert (reset.target, reset.log, reset.is_past_end) == (7, (0, 8), False)
    (latest,) = admin.plan_reset(worker_group.group, ResetTo.latest()).resets
    assert latest.target == 3
    old = ConsumerGroupTopicPartitions("old-" + worker_group.group, [TopicPartition(name, 0, 6)])
    worker_group.admin.alter_consumer_group_offsets([old])["old-" + worker_group.group].result(20)
    (imported,) = admin.plan_import("new-" + worker_group.group, "old-" + worker_group.group).partitions
    assert (imported.offset, imported.log) == (6, (0, 8))
    producer.abort_transaction(30)


def test_a_running_worker_resumes(worker_group: WorkerGroup) -> None:
    name = lost_log(worker_group)
    run = worker_group.worker(name, limits=OFTEN)
    worker_group.wait(lambda: [position.stop is not None for position in worker_group.ledger.read()] == [True])
    words = ["lost", "accept", worker_group.group, f"{name}:0", *worker_group.server_options]
    assert "dry run; --apply does it" in seekpoint(*words, exits=0).stdout
    assert seekpoint(*words, "--apply", exits=2).stdout == ""
    report = json.loads(seekpoint(*words, "--execute", "--reason", "a test", "--json", exits=0).stdout)
    assert report["applied"]
    run.reached(name, 10)
    assert "nothing to do" in seekpoint(*words, "--apply", "--reason", "a test", exits=0).stdout
    (listed,) = json.loads(
        seekpoint("lost", "list", worker_group.group, *worker_group.database_options, "--json", exits=0).stdout
    )
    assert (listed["from_offset"], listed["to_offset"]) == (3, 5)
    run.stop()


def test_a_topic_that_was_created_again(worker_group: WorkerGroup) -> None:
    name, _ = worker_group.log(10)
    run = worker_group.worker(name, limits=OFTEN)
    run.reached(name, 10)
    run.stop()
    admin = admin_of(worker_group)
    assert admin.plan_accept_topic(worker_group.group, name).is_done
    old = worker_group.topic_id(name)
    worker_group.delete_topic(name)
    worker_group.topic(name=name)
    worker_group.produce(name, 4)
    with pytest.raises(ConfigError, match="topics accept"):
        admin.plan_accept_lost(worker_group.group, Partition(name, 0))
    with pytest.raises(ConfigError, match="offset 5 is outside its log, 0 to 4"):
        admin.plan_accept_topic(worker_group.group, name, offset=5)
    plan = admin.plan_accept_topic(worker_group.group, name, offset=1)
    assert "1 records before it are skipped" in plan.consequences[0]
    admin.apply(admin.plan_accept_topic(worker_group.group, name), reason="a test")
    with pytest.raises(Fenced):
        admin.apply(plan, reason="a test")
    (position,) = worker_group.ledger.read()
    assert (position.next_offset, position.topic_id) == (0, worker_group.topic_id(name))
    (lost,) = admin.lost()
    assert (lost.topic_id, lost.from_offset, lost.to_offset, lost.reason) == (old, 10, None, "recreated")
    words = ["topics", "accept", worker_group.group, name, *worker_group.server_options]
    assert "nothing to do" in seekpoint(*words, "--from-beginning", exits=0).stdout
    seekpoint(*words, exits=2)


def test_a_topic_that_was_created_again_with_fewer_partitions(worker_group: WorkerGroup) -> None:
    """I4: those that it lacks are on record, too, and are no position of another topic for a later command."""
    name, _ = worker_group.log(10, 2)
    run = worker_group.worker(name, limits=OFTEN)
    run.reached(name, 10)
    run.stop()
    old = worker_group.topic_id(name)
    before = {row.partition.number: row.next_offset for row in worker_group.ledger.read()}
    worker_group.delete_topic(name)
    worker_group.topic(1, name=name)
    admin = admin_of(worker_group)
    plan = admin.plan_accept_topic(worker_group.group, name)
    assert f"{name}/1 is not in the new topic, and is read from 0 if it is added" in plan.consequences[1]
    admin.apply(plan, reason="a test")
    assert [(row.next_offset, row.topic_id) for row in worker_group.ledger.read()] == [
        (0, worker_group.topic_id(name))
    ] * 2
    lost = {lost.partition.number: (lost.topic_id, lost.from_offset, lost.reason) for lost in admin.lost()}
    assert lost == {number: (old, offset, "recreated") for number, offset in before.items()}
    assert admin.plan_accept_topic(worker_group.group, name).is_done


def truncated(worker_group: WorkerGroup, kafka: KafkaServer, kept: Path) -> tuple[str, Run]:
    """A worker has applied 100 records; the broker comes back with a log of 80, and the worker has stopped."""
    runs: list[Run] = []

    def apply(name: str) -> None:
        runs.append(worker_group.worker(name, limits=OFTEN))
        runs[0].reached(name, 100)

    return truncated_after(apply, worker_group, kafka, kept), runs[0]


def truncated_after(apply: Callable[[str], None], worker_group: WorkerGroup, kafka: KafkaServer, kept: Path) -> str:
    """The topic: its 100 records were applied, and the broker has come back with a log of 80."""
    name = worker_group.topic()
    log = log_folder(kafka, name)
    worker_group.produce(name, 80)
    kafka.kill()
    shutil.copytree(log, kept)
    kafka.start()
    worker_group.produce(name, 20)  # under a higher leader epoch
    apply(name)
    kafka.kill()
    shutil.rmtree(log)
    shutil.copytree(kept, log)
    kafka.start()
    return name


def stored_stop(worker_group: WorkerGroup, log_end: int | None) -> Stop:
    """The stop in the ledger, as soon as it says where the log ended."""
    stops: list[Stop] = []

    def is_stored() -> bool:
        stops[:] = [position.stop for position in worker_group.ledger.read() if position.stop is not None]
        return [stop.log_end for stop in stops] == [log_end]

    worker_group.wait(is_stored)
    return stops[0]


@pytest.mark.long
@pytest.mark.usefixtures("short_backoff")
def test_i4_a_truncated_log_that_has_grown_again_continues_where_it_ended(
    worker_group_on: Callable[..., WorkerGroup], own_kafka: KafkaServer, tmp_path: Path
) -> None:
    """I4: the records that were written there since are read; also where another worker finds it only then."""
    worker_group = worker_group_on(kafka=own_kafka)
    name, run = truncated(worker_group, own_kafka, tmp_path / "older")
    assert "past the end of the log (80)" in stored_stop(worker_group, 80).message
    worker_group.produce(name, 40)
    run.stop()
    run = worker_group.worker(name, limits=OFTEN)
    run.seen.wait_for(events.PartitionStopped, lambda e: isinstance(e.error, OffsetLost))
    worker_group.wait(lambda: "truncated before it and written again" in stored_stop(worker_group, 80).message)
    admin, here = admin_of(worker_group), Partition(name, 0)
    plan = admin.plan_accept_lost(worker_group.group, here)
    (accepted,) = plan.acceptances
    assert (accepted.from_offset, accepted.to_offset, accepted.truncated_at, accepted.log) == (100, 80, 80, (0, 120))
    assert "ended at 80, and was written again since: applied records from 80 to 99" in plan.consequences[0]
    (skip,) = admin.plan_accept_lost(worker_group.group, here, to_offset=100).consequences[1:2]
    assert skip == f"{here}: records from 80 to 99 are not read"
    with pytest.raises(ConfigError, match="--to-offset 101 is outside 0 to 100"):
        admin.plan_accept_lost(worker_group.group, here, to_offset=101)
    admin.apply(plan, reason="a test")
    run.reached(name, 120)
    run.stop()
    assert worker_group.record_table.written(name) == [(0, n) for n in range(100)] + [(0, n) for n in range(80, 120)]
    assert [(loss.from_offset, loss.to_offset, loss.reason) for loss in admin.lost()] == [(80, 100, "rewritten")]


@pytest.mark.long
@pytest.mark.usefixtures("short_backoff")
def test_i4_a_worker_notices_that_the_log_was_rewritten_after_a_batch(
    worker_group_on: Callable[..., WorkerGroup], own_kafka: KafkaServer, tmp_path: Path
) -> None:
    """I4: a batch stores the leader epoch of the log's end."""
    worker_group = worker_group_on(kafka=own_kafka)

    def pipeline(name: str) -> Pipeline:
        return Pipeline(worker_group.group, topics=name, value=Text(), sinks=[worker_group.record_table.sink])

    def apply(name: str) -> None:
        kafka = {"bootstrap.servers": worker_group.broker}
        done = BatchJob(pipeline(name), worker_group.engine, kafka, schema=worker_group.schema).run(reason="a test")
        assert done.records == 100

    name = truncated_after(apply, worker_group, own_kafka, tmp_path / "older")
    worker_group.produce(name, 40)
    run = worker_group.worker(pipeline(name), limits=OFTEN)
    run.seen.wait_for(events.PartitionStopped, lambda e: isinstance(e.error, OffsetLost))
    run.stop()
    assert "truncated before it and written again" in stored_stop(worker_group, None).message


@pytest.mark.long
@pytest.mark.usefixtures("short_backoff")
def test_i4_a_truncated_log_that_no_worker_has_seen_needs_an_offset(
    worker_group_on: Callable[..., WorkerGroup], own_kafka: KafkaServer, tmp_path: Path
) -> None:
    """I4: a forward reset, too, would pass the new records without a row."""
    worker_group = worker_group_on(kafka=own_kafka)
    name, run = truncated(worker_group, own_kafka, tmp_path / "older")
    stored_stop(worker_group, 80)
    run.stop()
    worker_group.sql("UPDATE {schema}.partition_trouble SET stop_log_end = NULL")  # as if none had run then
    worker_group.produce(name, 40)
    run = worker_group.worker(name, limits=OFTEN)
    worker_group.wait(lambda: "truncated before it" in stored_stop(worker_group, None).message)
    choice = stored_stop(worker_group, None).choices[0]
    assert f"seekpoint lost accept {worker_group.group} {name}:0 --to-offset OFFSET" in choice
    admin, here = admin_of(worker_group), Partition(name, 0)
    for plan in (
        lambda: admin.plan_accept_lost(worker_group.group, here),
        lambda: admin.plan_reset(worker_group.group, ResetTo.latest()),
        lambda: admin.plan_reset(worker_group.group, ResetTo.current()),
    ):
        with pytest.raises(Fenced, match=r"Name that offset: seekpoint lost accept .* --to-offset OFFSET"):
            plan()
    with pytest.raises(ConfigError, match="--to-offset 100 is outside 0 to 99"):
        admin.plan_accept_lost(worker_group.group, here, to_offset=100)
    words = ["lost", "accept", worker_group.group, f"{name}:0", *worker_group.server_options]
    seekpoint(*words, exits=1)
    seekpoint(*words, "--to-offset", "80", "--apply", "--reason", "a test", exits=0)
    run.reached(name, 120)
    run.stop()
    assert [(loss.from_offset, loss.to_offset, loss.reason) for loss in admin.lost()] == [(80, 100, "rewritten")]
