"""Plans of reads, carried out in this process: each record that is meant comes once, however tasks are cut."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from sqlalchemy import Engine, event

from jobs.spark.orders import DATABASE
from kafka.test_odd_records import produce_by_hand
from seekpoint import Partition
from seekpoint.errors import ConfigError, Poison, RangeLost, SchemaMismatch, TopicRecreated
from seekpoint.jobs.spark.columns import KAFKA
from seekpoint.jobs.spark.read_plan import Part, ReadPlan, divided, plan_of, read_part
from seekpoint.jobs.spark.source_options import source_options
from seekpoint.kafka.watermarks import Watermarks
from support.archive import ArchivedGroup
from support.log_changes import delete, in_transactions


def read_all(plan: ReadPlan) -> list[tuple[int, int]]:
    """Partition and offset of every record of the plan's tasks, after its way through an option."""
    carried = ReadPlan.from_json(plan.to_json())
    return sorted(
        (partition, offset)
        for task in carried.tasks
        for part in task
        for batch in read_part(carried, part)
        for partition, offset in zip(*(batch.column(name).to_pylist() for name in ("partition", "offset")), strict=True)
    )


@pytest.mark.long
def test_random_ranges_dead_letters_and_tasks(archived_group: ArchivedGroup, spark_environment: None) -> None:
    seed = secrets.randbelow(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    name = archived_group.topic(3)
    logged: dict[int, list[int]] = {}
    for partition in range(3):
        batches = [(draw.randint(1, 9), draw.random() < 0.7) for _ in range(draw.randint(2, 6))]
        in_transactions(archived_group.brokers, name, *batches, partition=partition)
        offset, logged[partition] = 0, []
        for count, is_committed in batches:  # each transaction ends with a record of its own
            logged[partition] += range(offset, offset + count) if is_committed else ()
            offset += count + 1
        archived_group.set_positions(name, {partition: offset})
    dead = {
        partition: set(draw.sample(range(40), draw.randint(0, 12))) & set(offsets)
        for partition, offsets in logged.items()
    }
    for partition, offsets in dead.items():
        for offset in offsets:
            archived_group.execute(
                "INSERT INTO {schema}.dead_letter (consumer_group, topic, topic_id, partition, record_offset, state, "
                "cause, error, attempts, version, header_names, header_values) "
                "VALUES (:group, :topic, :id, :partition, :at, 'dead_lettered', 'row', 'e', 1, 1, '{{}}', '{{}}')",
                group=archived_group.group, topic=name, id=archived_group.id_of(name), partition=partition, at=offset,
            )  # fmt: skip
    ends = {row.partition.number: row.next_offset for row in archived_group.ledger.read()}
    for _ in range(8):
        starts = {partition: draw.randint(0, end) for partition, end in ends.items()}
        stops = {partition: draw.randint(start, ends[partition]) for partition, start in starts.items()}
        kept = draw.choice(["exclude", "include", "only"])
        options = {
            "kafka.bootstrap.servers": archived_group.brokers, "group": archived_group.group, "database": DATABASE.name,
            "ledgerSchema": archived_group.schema, "deadLetters": kept, "startingOffsets": as_json(name, starts),
            "endingOffsets": as_json(name, stops), "maxRecordsPerPartition": str(draw.randint(1, 12)),
        }  # fmt: skip
        if draw.random() < 0.5:
            options["minPartitions"] = str(draw.randint(1, 40))
        plan = plan_of(options)
        meant = [
            (partition, offset)
            for partition, offsets in logged.items()
            for offset in offsets
            if starts[partition] <= offset < stops[partition]
            and (kept == "include" or (offset in dead[partition]) == (kept == "only"))
        ]
        assert read_all(plan) == meant, f"seed {seed}: {options}"
        largest = max((sum(part.range.records_at_most for part in task) for task in plan.tasks), default=0)
        assert largest <= int(options["maxRecordsPerPartition"])
        assert [range_.partition for range_ in plan.bounds] == [Partition(name, number) for number in range(3)]


def as_json(topic: str, offsets: dict[int, int]) -> str:
    listed = ",".join(f'"{number}":{offset}' for number, offset in offsets.items())
    return f'{{"{topic}":{{{listed}}}}}'


def options_of(archived_group: ArchivedGroup) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": archived_group.brokers, "group": archived_group.group, "database": DATABASE.name,
        "ledgerSchema": archived_group.schema,
    }  # fmt: skip


def store_dead_letters(archived_group: ArchivedGroup, topic: str, *offsets: int) -> None:
    for offset in offsets:
        archived_group.execute(
            "INSERT INTO {schema}.dead_letter (consumer_group, topic, topic_id, partition, record_offset, state, "
            "cause, error, attempts, version, header_names, header_values) "
            "VALUES (:group, :topic, :id, 0, :offset, 'dead_lettered', 'row', 'e', 1, 1, '{{}}', '{{}}')",
            group=archived_group.group, topic=topic, id=archived_group.id_of(topic), offset=offset,
        )  # fmt: skip


def test_dead_letters_at_both_ends_of_each_task_are_known(
    archived_group: ArchivedGroup, spark_environment: None
) -> None:
    """I4: one that was overlooked would be read as a record that the group has applied."""
    name, dead_letters = archived_group.filled(10), {0, 4, 5, 9}
    store_dead_letters(archived_group, name, *dead_letters)
    in_tasks = {**options_of(archived_group), "maxRecordsPerPartition": "5"}
    assert read_all(plan_of(in_tasks)) == [(0, offset) for offset in range(10) if offset not in dead_letters]
    assert read_all(plan_of({**in_tasks, "deadLetters": "only"})) == [(0, offset) for offset in sorted(dead_letters)]


def test_offsets_of_a_deleted_topic_are_not_read_from_another_one_of_its_name(
    archived_group: ArchivedGroup, spark_environment: None
) -> None:
    """One partition is stopped at the deleted topic, another one was claimed of the topic that was created since."""
    name = archived_group.topic(1)
    archived_group.produce(name, ["old"] * 5)
    archived_group.set_positions(name, {0: 5})
    delete(archived_group.kafka, archived_group.admin, name)
    archived_group.topic(2, name=name)
    for partition in (0, 1):
        archived_group.produce(name, ["new"] * 8, partition=partition)
    archived_group.set_positions(name, {1: 8})
    assert len({row.topic_id for row in archived_group.ledger.read()}) == 2
    applied, of_second = options_of(archived_group), {"assign": f'{{"{name}":[1]}}'}
    for more in ({}, {"endingOffsets": "latest"}, {"startingOffsets": "ledger", "endingOffsets": "latest"}):
        with pytest.raises(TopicRecreated, match=f"{name}/0 stopped"):
            plan_of({**applied, **more})
    assert read_all(plan_of({**applied, **of_second})) == [(1, offset) for offset in range(8)]


def test_a_plan_is_of_one_moment_of_the_ledger(archived_group: ArchivedGroup, spark_environment: None) -> None:
    """A reset between two of its statements would take dead letters away from positions that it does not move back."""
    name = archived_group.filled(10)
    store_dead_letters(archived_group, name, 2, 3)
    seen: list[str] = []

    def reset_once(_: object, __: object, text: str, *___: object) -> None:
        if archived_group.schema in text and "partition_state" in text and not seen:
            seen.append(text)
            archived_group.ledger.reset_offset(
                name, 0, 0, log=(0, 10), reason="a test", topic_id=archived_group.id_of(name)
            )

    event.listen(Engine, "after_cursor_execute", reset_once)
    try:
        plan = plan_of(options_of(archived_group))
    finally:
        event.remove(Engine, "after_cursor_execute", reset_once)
    assert len(seen) == 1
    assert read_all(plan) == [(0, offset) for offset in range(10) if offset not in {2, 3}]
    assert plan_of(options_of(archived_group)).tasks == [], "the reset was committed"


CODEC = """
import msgspec
from seekpoint import Append, Pipeline

class Seen(msgspec.Struct):
    text: str

class Everything:
    type = Seen

    def decode(self, record):
        return Seen(repr(record))

records = Pipeline({group!r}, topics={topic!r}, value=Everything(), sinks=[Append("orders")])
"""


def test_a_codec_sees_the_record_that_a_worker_gives_it(
    archived_group: ArchivedGroup, spark_environment: None, module: Callable[[str], str]
) -> None:
    name = archived_group.topic(config={"message.timestamp.after.max.ms": str(2**62)})
    archived_group.produce(name, [("k", "a")], headers=[("v", b"2"), ("v", None)], timestamp=400_000_000_000_000)
    archived_group.produce(name, ["b", None])
    produce_by_hand(archived_group.brokers, name, b"{}", b"\xff\xfe", 1_785_587_400_123)
    code = f"{module(CODEC.format(group=archived_group.group, topic=name))}:records"
    options = {"kafka.bootstrap.servers": archived_group.brokers, "subscribe": name, "decode": code}
    plan = plan_of({**options, "endingOffsets": as_json(name, {0: 3})})
    (part,) = (part for task in plan.tasks for part in task)
    (batch,) = read_part(plan, part)
    assert batch.schema.names == KAFKA.names
    assert [value["text"] for value in batch.column("value").to_pylist()] == list(
        map(repr, archived_group.logged(name, 0, 3))
    )
    assert list(read_part(replace(plan, bounds=(), tasks=()), part)) == [batch], "as a task of a stream has it"
    with pytest.raises(Poison, match=rf"{name}/0 offset 3 cannot be decoded by {code}: its headers cannot be read"):
        read_all(plan_of(options))


def test_what_was_accepted_as_lost_is_left_out_at_the_beginning_too(
    archived_group: ArchivedGroup, spark_environment: None
) -> None:
    name = archived_group.filled(8)
    archived_group.trim(name, 2)
    with pytest.raises(RangeLost, match="the first offset left is 2"):
        plan_of(options_of(archived_group))
    archived_group.execute(
        "INSERT INTO {schema}.lost_range (consumer_group, topic, topic_id, partition, from_offset, to_offset, reason, "
        "decision, actor) VALUES (:group, :topic, :id, 0, 0, 2, 'retention', 'operator', 'ada')",
        group=archived_group.group, topic=name, id=archived_group.id_of(name),
    )  # fmt: skip
    assert read_all(plan_of(options_of(archived_group))) == [(0, offset) for offset in range(2, 8)]


def test_records_of_before_a_group_has_begun_are_not_among_the_applied(
    archived_group: ArchivedGroup, spark_environment: None
) -> None:
    name = archived_group.topic()
    archived_group.produce(name, map(str, range(10)))
    archived_group.set_positions(name, {0: 8}, first=5)
    from_start = {**options_of(archived_group), "startingOffsets": "earliest"}
    for start in ("earliest", as_json(name, {0: 4})):
        with pytest.raises(ConfigError, match=rf"began {name}/0 at 5, but the read begins at .*deadLetters=include"):
            plan_of({**options_of(archived_group), "startingOffsets": start})
    assert read_all(plan_of({**from_start, "deadLetters": "include"})) == [(0, offset) for offset in range(8)]
    assert read_all(plan_of(options_of(archived_group))) == [(0, offset) for offset in (5, 6, 7)]
    archived_group.trim(name, 6)
    assert read_all(plan_of({**from_start, "endingOffsets": "latest"})) == [(0, offset) for offset in range(6, 10)]


def test_tasks_are_as_small_and_as_many_as_was_asked_for(
    archived_group: ArchivedGroup, spark_environment: None
) -> None:
    name = archived_group.topic()
    archived_group.produce(name, [None] * 1_500)
    options = {"kafka.bootstrap.servers": archived_group.brokers, "subscribe": name}
    for more in ({"maxRecordsPerPartition": "1"}, {"minPartitions": "1500"}):
        tasks = plan_of({**options, **more}).tasks
        assert [part.range.records_at_most for task in tasks for part in task] == [1] * 1_500 == [1] * len(tasks)
    assert len(plan_of(options).tasks) == 1


def test_a_schema_without_a_ledger_is_named(archived_group: ArchivedGroup, spark_environment: None) -> None:
    with pytest.raises(SchemaMismatch, match="nowhere"):
        plan_of({**options_of(archived_group), "ledgerSchema": "nowhere"})


def test_tasks_without_number_are_refused(archived_group: ArchivedGroup) -> None:
    name = archived_group.topic()
    asked = source_options(
        {"kafka.bootstrap.servers": archived_group.brokers, "subscribe": name, "maxRecordsPerPartition": "1"}
    )
    with pytest.raises(ConfigError, match="1000000 offsets in tasks of 1 are more than 100000 tasks: give a larg"):
        divided([Part(archived_group.range(name, 0, 1_000_000), ())], asked)


def test_records_that_arrive_while_a_time_is_resolved_are_after_it(
    archived_group: ArchivedGroup, spark_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = archived_group.filled(3)
    ask = Watermarks.at_times

    def at_times(self: Watermarks, times: Mapping[Partition, int]) -> dict[Partition, int | None]:
        offsets = ask(self, times)
        archived_group.produce(name, ["later"])
        return offsets

    monkeypatch.setattr(Watermarks, "at_times", at_times)
    options = {"kafka.bootstrap.servers": archived_group.brokers, "subscribe": name, "endingTimestamp": "9000000000000"}
    assert [range_.end for range_ in plan_of(options).bounds] == [3]


NUMBERS = """
from seekpoint import Append, Json, Pipeline

numbers = Pipeline({group!r}, topics={topic!r}, value=Json(int), sinks=[Append("orders", row=lambda r: (r.value,))])
"""


def test_a_value_that_its_column_cannot_hold_is_named(
    archived_group: ArchivedGroup, spark_environment: None, module: Callable[[str], str]
) -> None:
    name = archived_group.topic()
    archived_group.produce(name, ["1", "12345678901234567890"])
    code = f"{module(NUMBERS.format(group=archived_group.group, topic=name))}:numbers"
    plan = plan_of({"kafka.bootstrap.servers": archived_group.brokers, "subscribe": name, "decode": code})
    with pytest.raises(Poison, match=rf"{name}/0 offset 1 cannot be decoded by {code}: column 'value': .*too large"):
        read_all(plan)
