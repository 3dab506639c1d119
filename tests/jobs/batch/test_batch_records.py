"""What a batch writes is what a worker would have written: rows, tombstones, dead letters; and logs of all kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any
from uuid import UUID

import msgspec
import pytest
from confluent_kafka.admin import AdminClient

from seekpoint import Append, DeadLetterLimits, Json, Pipeline, Text, Upsert
from seekpoint.errors import BatchRefused, ConfigError, RangeLost, TooManyDeadLetters, TopicRecreated
from seekpoint.jobs.reload import LocalStager, Run, Staged, Task, stage_range
from seekpoint.jobs.staging import stage as staging
from seekpoint.jobs.tables.targets import sources
from seekpoint.ledger.dead_letters import DeadLetters, Where
from seekpoint.records import State
from seekpoint.worker.replay.replay import ReplayableDeadLetters
from support.batch_process import PausingStager, batch, offsets, paused
from support.before_cutover import reloaded, widen
from support.log_changes import delete, in_transactions, trim
from support.reload_orders import Order, OrderKey, OrdersGroup, gone, of

TABLES = """
CREATE TABLE {schema}.copy_{n} (id bigint PRIMARY KEY, amount bigint NOT NULL, at bigint, note text DEFAULT 'none',
    topic text, place integer, upto bigint);
CREATE TABLE {schema}.lines_{n} (number bigint GENERATED ALWAYS AS IDENTITY, id bigint, half bigint, upto bigint);
"""


def kinds(orders_group: OrdersGroup, n: int) -> dict[str, Callable[[], list[Any]]]:
    """Sinks by the rule that says which row of a key is the newest; ``n`` names the tables."""
    table, lines = (orders_group.schema, f"copy_{n}"), (orders_group.schema, f"lines_{n}")
    columns = ["id", "amount", "at"]

    def halves(record: Any) -> list[dict[str, Any]]:
        return (
            [] if record.value is None else [{"id": record.value.id, "half": h} for h in range(record.value.amount % 3)]
        )

    return {
        "last": lambda: [Upsert(table, key=["id"], columns=columns)],
        "order": lambda: [
            Upsert(
                table,
                key=["id"],
                columns=columns,
                order_by="at",
                tombstone_key=lambda r: {"id": r.key.id, "at": r.offset * 10 + 10**6},
            )
        ],
        "offset": lambda: [Upsert(table, key=["id"], columns=["id", "amount"], offset_column="upto")],
        "origin": lambda: [Upsert(table, key=["id"], columns=columns, provenance=["topic", "place", "upto"],
                                  offset_column="upto")],
        "several": lambda: [
            Append(lines, columns=["id", "half"], rows=halves, provenance={"offset": "upto"}),
            Upsert(table, key=["id"], row=lambda r: r.value),
        ],
    }  # fmt: skip


def records(random: Random, kind: str, partition: int) -> list[tuple[str, str | None]]:
    """Keys live in one partition; with an order, ``at`` goes up and down, and a tombstone is its key's last record."""
    values: list[tuple[str, str | None]] = []
    dead: set[int] = set()
    for n in range(random.randrange(1, 150)):
        id_ = random.randrange(12) * 2 + partition
        if id_ in dead:
            continue
        if random.random() < 0.15:
            values.append(gone(id_))
            dead |= {id_} if kind == "order" else set()
        else:
            order = random.randrange(1000) * 1000 + n if kind == "order" else n
            values.append(of(id_, random.randrange(100), order))
    return values


@pytest.mark.long("some of its cases take seconds")
@pytest.mark.parametrize("seed", range(15))
def test_a_batch_writes_what_a_worker_writes(orders_group: OrdersGroup, seed: int) -> None:
    """Two groups apply equal records: one by batches now and then, one by a worker."""
    random = Random(seed)
    kind = ["last", "order", "offset", "origin", "several"][seed % 5]
    print(f"seed {seed}, {kind}")
    for n in (0, 1):
        orders_group.execute(TABLES.replace("{n}", str(n)))

    def pipeline(n: int) -> Pipeline:
        return Pipeline(
            f"{orders_group.group}_{n}",
            topics=orders_group.topic,
            value=Json(Order, tombstones=True),
            key=Json(OrderKey),
            sinks=kinds(orders_group, n)[kind](),
        )

    sent = [0, 0]
    for _ in range(random.randrange(1, 4)):
        for partition in (0, 1):
            values = records(random, kind, partition)
            orders_group.produce(orders_group.topic, values, partition=partition)
            sent[partition] += len(values)
            if kind == "order":
                break  # what was deleted stays deleted
        batch(orders_group, pipeline(0), range_records=random.choice([7, 40, 1000])).run()
        if kind == "order":
            break
    worker = orders_group.run_worker(pipeline(1))
    for partition in (0, 1):
        if sent[partition]:
            worker.reached(orders_group.topic, sent[partition], partition)
    worker.stop()
    columns = "id, amount, at, note, topic, place, upto"
    assert orders_group.rows("copy_0", columns) == orders_group.rows("copy_1", columns)
    lines = [
        orders_group.execute(f"SELECT id, half, upto FROM {orders_group.schema}.lines_{n} ORDER BY 1, 2, 3")
        for n in (0, 1)
    ]
    assert lines[0] == lines[1]
    assert sent[0] + sent[1] == sum(offsets_of(orders_group, f"{orders_group.group}_0"))


def offsets_of(orders_group: OrdersGroup, group: str) -> list[int]:
    rows = orders_group.execute("SELECT next_offset FROM {schema}.partition_offset WHERE consumer_group = :g", g=group)
    return [row[0] for row in rows]


def test_a_null_order_is_dead_lettered_by_workers_reloads_and_batches(orders_group: OrdersGroup) -> None:
    """Of the other records the newest counts, of equals the last; a live row without an order is older than any."""
    nulls = 13  # the amount whose order the new code does not know
    sent = [of(1, 1, 5), of(1, 2, 5), of(1, nulls, 9), of(2, 4, 9), of(2, 5, 3), of(2, nulls, 1), of(3, nulls), gone(1)]

    def pipeline(group: str, version: int) -> Pipeline:
        def row(record: Any) -> dict[str, Any]:
            order = record.value
            is_null = version > 1 and order.amount == nulls
            return {"id": order.id, "amount": order.amount, "at": None if is_null else order.at}

        sink = Upsert((orders_group.schema, "orders"), key=["id"], columns=["id", "amount", "at"], row=row,
                      order_by="at",
                      tombstone_key=lambda r: {"id": r.key.id, "at": 0 if version == 1 else None})  # fmt: skip
        return Pipeline(group, topics=orders_group.topic, value=Json(Order, tombstones=True), key=Json(OrderKey),
                        sinks=[sink], version=version, on_poison="dead_letter")  # fmt: skip

    def worked(group: str, version: int) -> None:
        orders_group.apply(pipeline(group, version), len(sent))

    def outcome(group: str) -> tuple[list[Any], list[Any]]:
        dead_letters = "SELECT record_offset FROM {schema}.dead_letter WHERE consumer_group = :g ORDER BY 1"
        stored = orders_group.rows(), [row[0] for row in orders_group.execute(dead_letters, g=group)]
        orders_group.execute("DELETE FROM {schema}.orders")
        orders_group.execute("INSERT INTO {schema}.orders VALUES (1, 7, NULL), (2, 7, NULL)")
        return stored

    orders_group.execute("ALTER TABLE {schema}.orders ALTER at DROP NOT NULL")
    orders_group.produce(orders_group.topic, sent, partition=0)
    worked(orders_group.group, 1)
    reloaded(orders_group.reload([pipeline(orders_group.group, 2)]))
    by_reload = outcome(orders_group.group)
    batch(orders_group, pipeline(f"{orders_group.group}_batch", 2)).run()
    batched = outcome(f"{orders_group.group}_batch")
    worked(f"{orders_group.group}_worker", 2)
    assert by_reload == batched == outcome(f"{orders_group.group}_worker") == ([(1, 2, 5), (2, 4, 9)], [2, 5, 6, 7])


@pytest.mark.parametrize("table", ["100%", "%s of it"])
def test_a_percent_sign_in_a_name_is_no_placeholder(orders_group: OrdersGroup, table: str) -> None:
    """An Upsert's rows and tombstones, in a table whose name and columns have one."""
    orders_group.execute(f'CREATE TABLE {{schema}}."{table}" ("%" bigint PRIMARY KEY, "50%" bigint)')
    sink = Upsert((orders_group.schema, table), key=["%"], columns=["%", "50%"],
                  row=lambda r: (r.value.id, r.value.amount), tombstone_key=lambda r: r.key.id)  # fmt: skip
    pipeline = Pipeline(
        orders_group.group,
        topics=orders_group.topic,
        value=Json(Order, tombstones=True),
        key=Json(OrderKey),
        sinks=[sink],
    )
    orders_group.produce(orders_group.topic, [of(1, 1), of(2, 2), of(1, 3), gone(2)], partition=0)
    batch(orders_group, pipeline).run()
    assert orders_group.execute(f'SELECT * FROM {{schema}}."{table}"') == [(1, 3)]


def test_a_batch_needs_no_keys_of_records_for_compacted(orders_group: OrdersGroup) -> None:
    """As a worker: a reload alone needs to know which records compaction may have removed."""
    orders_group.produce(orders_group.topic, [of(1, 1), (None, of(2, 2)[1]), of(1, 3), of(3), gone(3)], partition=0)
    done = batch(orders_group, pipeline={"sink": {"compacted": True}}).run()
    assert (done.records, done.dead_letters) == (5, 0)
    assert orders_group.rows() == [(1, 3, 0), (2, 2, 0)]


# -- records that fail ------------------------------------------------------------------------------------------------

POISON = [of(1, 1), of(2, 2_000), of(3, 3), ("not JSON", "{"), of(4, 4)]  # version 2 refuses amounts above 1,000


def failing(orders_group: OrdersGroup, **options: Any) -> Pipeline:
    return orders_group.pipeline(kind="append", version=2, **options)


def test_under_stop_the_record_is_named_and_nothing_is_written(orders_group: OrdersGroup) -> None:
    orders_group.produce(orders_group.topic, POISON, partition=1)
    with pytest.raises(BatchRefused, match=rf"{orders_group.topic}/1 offset 1: row: ValueError: too much.*'stop'"):
        batch(orders_group, failing(orders_group)).run()
    assert orders_group.rows("entries") == []
    assert offsets(orders_group) == {f"{orders_group.topic}/0": 0, f"{orders_group.topic}/1": 0}
    assert paused(orders_group) is None
    assert (
        orders_group.execute("SELECT state, owner IS NULL FROM {schema}.reload_run, {schema}.partition_offset")
        == [("failed", True)] * 2
    )
    batch(orders_group).runs.sweep()
    assert orders_group.schemas() == []


@pytest.mark.parametrize(("policy", "state"), [("dead_letter", "dead_lettered"), ("skip", "skipped")])
def test_what_fails_is_dead_lettered_or_skipped_as_the_pipeline_says(
    orders_group: OrdersGroup, policy: Any, state: str
) -> None:
    """I4: in the transaction that passes its offset."""
    orders_group.produce(orders_group.topic, POISON, partition=1)
    done = batch(orders_group, failing(orders_group, on_poison=policy)).run()
    assert (done.records, done.dead_letters) == (5, 2)
    assert [row[0] for row in orders_group.rows("entries")] == [1, 3, 4]
    dead_letters = DeadLetters(orders_group.ledger()).list(Where(states=(State(state),)))
    assert sorted(
        (dead_letter.partition, dead_letter.offset, dead_letter.state.value) for dead_letter in dead_letters
    ) == [
        (1, 1, state),
        (1, 3, state),
    ]
    rows = orders_group.execute("SELECT value IS NULL, version FROM {schema}.dead_letter")
    assert rows == [(policy == "skip", 2)] * 2


def test_too_large_a_share_of_dead_letters_stops_a_batch(orders_group: OrdersGroup) -> None:
    """Of the whole batch: how many records in a row failed is for workers, which have written those before."""
    orders_group.produce(orders_group.topic, [of(n, 2_000 if 20 <= n < 31 else 1) for n in range(60)], partition=0)
    share = DeadLetterLimits(ratio=0.1, window=50)
    with pytest.raises(TooManyDeadLetters, match=r"11 of 60 records failed, the limit is 10%: nothing of the batch"):
        batch(orders_group, failing(orders_group, on_poison="dead_letter", dead_letter_limits=share)).run()
    assert orders_group.rows("entries") == []
    assert paused(orders_group) is None
    in_a_row = failing(orders_group, on_poison="dead_letter", dead_letter_limits=DeadLetterLimits(consecutive=10))
    assert batch(orders_group, in_a_row).run().dead_letters == 11


def test_keys_that_are_held_are_for_workers(orders_group: OrdersGroup) -> None:
    """An open dead letter blocks the later records of its key: a batch of such records is refused."""
    options: dict[str, Any] = {"version": 2, "on_poison": "dead_letter"}  # an Upsert that does not know what is newer
    orders_group.produce(orders_group.topic, [of(1, 1), of(2, 2_000)], partition=0)
    orders_group.work(2, **options)
    orders_group.produce(orders_group.topic, [of(2, 5)], partition=0)
    held = (
        rf"group '{orders_group.group}' has 1 open dead letters, and only workers can block later records of "
        r"their keys: replay or discard them first \(`seekpoint dead-letters`\)"
    )
    with pytest.raises(BatchRefused, match=held):
        batch(orders_group, pipeline=options).run()
    assert paused(orders_group) is None
    orders_group.execute("UPDATE {schema}.dead_letter SET state = 'discarded'")
    assert batch(orders_group, pipeline=options).run().records == 1
    assert orders_group.rows() == [(1, 2, 0), (2, 10, 0)]
    orders_group.produce(orders_group.topic, [of(1, 2_000)], partition=0)
    with pytest.raises(BatchRefused) as refused:
        batch(orders_group, pipeline=options).run()
    (reason,) = refused.value.reasons
    assert reason.startswith(f"{orders_group.topic}/0 offset 3: row: ValueError: too much")
    assert reason.endswith(
        "; and later records of its key would have to be blocked behind it, which a batch does not do. "
        "on_poison='dead_letter' is set already; give offset_column= or order_by= to the Upsert, so that rows need no "
        "order of records, or let a worker apply these records; and start another run"
    )


def test_what_only_the_live_table_refuses(orders_group: OrdersGroup) -> None:
    """A unique index is not on what is staged: nothing is written, and a worker finds the record."""
    orders_group.execute("CREATE UNIQUE INDEX ON {schema}.entries (id)")
    orders_group.produce(orders_group.topic, [of(1), of(2), of(1)], partition=0)
    with pytest.raises(BatchRefused, match=r"duplicate key.*Only a worker can find"):
        batch(orders_group, pipeline={"kind": "append", "on_poison": "dead_letter"}).run()
    assert orders_group.rows("entries") == []
    assert paused(orders_group) is None
    orders_group.work(3, kind="append", on_poison="dead_letter")
    assert [row[0] for row in orders_group.rows("entries")] == [1, 2]


class RepeatingStager(LocalStager):
    """Stages everything twice, and some of it in other pieces, as retries and speculation do."""

    calls = 0

    def stage(self, run: Run, tasks: Sequence[Task]) -> Iterator[Staged]:
        self.calls += 1
        staged = list(super().stage(run, tasks))
        for task in tasks if self.calls == 1 else ():
            middle = (task.range.start + task.range.end) // 2
            list(super().stage(run, [task, replace(task, range=replace(task.range, end=middle))]))
        yield from staged


@pytest.mark.repeats("kind")
@pytest.mark.parametrize("kind", ["upsert", "append"])
def test_attempts_that_are_repeated_count_once(orders_group: OrdersGroup, kind: str) -> None:
    records = [of(n, n, n) for n in range(90)]
    orders_group.produce(orders_group.topic, records, partition=0)
    pipeline_sources = sources([orders_group.pipeline(kind=kind)])
    stager = RepeatingStager(
        orders_group.engine, orders_group.schema, {"bootstrap.servers": orders_group.brokers}, pipeline_sources
    )
    done = batch(orders_group, pipeline={"kind": kind}, stager=stager, range_records=20).run()
    assert done.records == 90
    table = {"upsert": "orders", "append": "entries"}[kind]
    assert done.rows == {f"{orders_group.schema}.{table}": 90}
    assert orders_group.rows(table) == [(n, n, n) for n in range(90)]


def test_a_dead_letter_that_blocks_its_key_and_came_meanwhile_keeps_the_batch_out(orders_group: OrdersGroup) -> None:
    """A dead letter that is opened again after the batch's check: records of its key are blocked, for workers."""
    options: dict[str, Any] = {"on_poison": "dead_letter", "keep_key_order": True}
    orders_group.produce(orders_group.topic, [(of(1)[0], "{"), *(of(n, n, n) for n in range(5, 10))], partition=0)
    orders_group.work(6, **options)
    (dead_letter,) = orders_group.new_replay(**options).list()
    orders_group.new_replay(**options).discard(dead_letter.id, reason="a test")
    orders_group.produce(orders_group.topic, [of(n, n, n) for n in range(10, 20)], partition=0)

    def parked_again(_: Run) -> None:
        orders_group.execute("UPDATE {schema}.dead_letter SET state = 'dead_lettered'")

    with pytest.raises(BatchRefused, match="has 1 open dead letters, and only workers can block later"):
        batch(orders_group, pipeline=options, stager=PausingStager(orders_group, parked_again, **options)).run()
    assert offsets(orders_group)[f"{orders_group.topic}/0"] == 6
    assert paused(orders_group) is None


def test_a_record_that_fails_in_one_attempt_alone_is_no_row_and_dead_letter_at_once(
    orders_group: OrdersGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two committed attempts at a range the one without the failure counts: the dead letter belongs to the other."""
    orders_group.produce(orders_group.topic, [of(n, n, n) for n in range(40)], partition=0)
    fails = [True]

    def row(record: Any) -> dict[str, Any]:
        if fails[0] and record.value.id == 7:
            raise ValueError("not today")
        order = record.value
        return {"id": order.id, "amount": order.amount, "at": order.at, "topic_offset": record.offset}

    sink = Append((orders_group.schema, "entries"), columns=["id", "amount", "at", "topic_offset"], row=row)
    pipeline = Pipeline(
        orders_group.group, topics=orders_group.topic, value=Json(Order), sinks=[sink], on_poison="dead_letter"
    )

    class DuplicatingStager:
        def stage(self, run: Run, tasks: Sequence[Task]) -> Iterator[Staged]:
            for task in tasks:
                for number, fails[0] in (("f", True), ("0", False)):
                    monkeypatch.setattr(staging, "uuid4", lambda number=number: UUID(number * 32))
                    staged = stage_range(
                        orders_group.engine, orders_group.schema, {"bootstrap.servers": orders_group.brokers}, run.id,
                        pipeline=pipeline, range_=task.range,
                    )  # fmt: skip
                yield staged

    with pytest.raises(BatchRefused, match="1 records failed in any attempt at their range, and 0 in the chosen"):
        batch(orders_group, pipeline, stager=DuplicatingStager()).run()
    assert orders_group.rows("entries") == []
    assert orders_group.execute("SELECT count(*) FROM {schema}.dead_letter") == [(0,)]
    assert paused(orders_group) is None


# -- logs -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def admin(orders_group: OrdersGroup) -> AdminClient:
    return AdminClient({"bootstrap.servers": orders_group.brokers, "log_level": 0})


@pytest.fixture
def kafka(orders_group: OrdersGroup) -> Mapping[str, Any]:
    return {"bootstrap.servers": orders_group.brokers}


def test_what_retention_has_taken_is_an_error_and_never_a_gap(orders_group: OrdersGroup, admin: AdminClient) -> None:
    orders_group.produce(orders_group.topic, [of(n) for n in range(20)], partition=0)
    batch(orders_group).run()
    orders_group.produce(orders_group.topic, [of(n) for n in range(20, 40)], partition=0)
    trim(admin, orders_group.topic, 30)
    with pytest.raises(RangeLost, match=r"offset 20: retention has passed it: .* 30\. seekpoint lost accept") as lost:
        batch(orders_group).run()
    assert lost.value.offset == 20
    assert paused(orders_group) is None
    orders_group.ledger().reset_offset(orders_group.topic, 0, 30, log=None, reason="retention", lost="retention")
    assert batch(orders_group).run().records == 10
    assert len(orders_group.rows()) == 30
    assert len(orders_group.execute("SELECT 1 FROM {schema}.lost_range")) == 1


def test_retention_that_passes_while_it_is_read(orders_group: OrdersGroup, admin: AdminClient) -> None:
    orders_group.produce(orders_group.topic, [of(n) for n in range(40)], partition=0)

    def cut(what: str, done: int, total: int) -> None:
        if done == 10:
            trim(admin, orders_group.topic, 35)

    with pytest.raises(RangeLost, match="the first offset left is 35"):
        batch(orders_group, progress=cut, range_records=10).run()
    assert orders_group.rows() == []
    assert paused(orders_group) is None
    assert batch(orders_group).runs.list()[0].state == "failed"


@pytest.mark.parametrize("meanwhile", [False, True])
def test_a_topic_that_was_recreated(
    orders_group: OrdersGroup,
    admin: AdminClient,
    kafka: Mapping[str, Any],
    request: pytest.FixtureRequest,
    meanwhile: bool,
) -> None:
    orders_group.produce(orders_group.topic, [of(n) for n in range(10)], partition=0)

    def anew(*_: object) -> None:
        delete(kafka, admin, orders_group.topic)
        request.getfixturevalue("topic")(2, name=orders_group.topic)
        orders_group.produce(orders_group.topic, [of(n) for n in range(50)], partition=0)

    if meanwhile:
        todo = [anew]

        def once(*_: object) -> None:
            if todo:
                todo.pop()()

        with pytest.raises((TopicRecreated, BatchRefused), match="created again"):
            batch(orders_group, progress=once).run()
        assert orders_group.rows() == []
    else:
        batch(orders_group).run()
        anew()
        with pytest.raises(TopicRecreated, match="Choices"):
            batch(orders_group).run()
        assert len(orders_group.rows()) == 10
    assert paused(orders_group) is None


@pytest.mark.long
def test_an_open_transaction_ends_what_is_read(orders_group: OrdersGroup) -> None:
    """At the last stable offset: the rest is for the next batch."""
    pipeline = Pipeline(
        orders_group.group,
        topics=orders_group.topic,
        value=Text(),
        sinks=[Append((orders_group.schema, "entries"), columns=["id", "amount", "at", "topic_offset"],
                      row=lambda r: (int(r.value), 1, 1, r.offset))],
    )  # fmt: skip
    end = in_transactions(orders_group.brokers, orders_group.topic, (10, True), (5, False), (3, True), (4, None))
    assert batch(orders_group, pipeline).run().records == 13
    assert len(orders_group.rows("entries")) == 13
    stood = offsets(orders_group)[f"{orders_group.topic}/0"]
    assert stood == 13 + 5 + 3
    assert batch(orders_group, pipeline).run().is_empty
    end.abort_transaction(30)
    in_transactions(orders_group.brokers, orders_group.topic, (2, True))
    assert batch(orders_group, pipeline).run().records == 2
    assert len(orders_group.rows("entries")) == 15


def test_a_partition_that_was_added_is_read_from_its_beginning(orders_group: OrdersGroup) -> None:
    orders_group.produce(orders_group.topic, [of(n) for n in range(10)], partition=0)
    batch(orders_group).run()
    widen(orders_group, 3)
    orders_group.produce(orders_group.topic, [of(100 + n) for n in range(5)], partition=2)
    assert batch(orders_group).run().records == 5
    assert offsets(orders_group)[f"{orders_group.topic}/2"] == 5
    assert orders_group.execute("SELECT count(*) FROM {schema}.orders") == [(15,)]


def test_rows_that_are_there_are_guarded_as_a_worker_guards_them(orders_group: OrdersGroup) -> None:
    """A newer row stays, and a tombstone that is older than it does nothing."""
    options = {"sink": {"order_by": "at", "tombstone_key": lambda r: {"id": r.key.id, "at": 50}}}
    orders_group.produce(orders_group.topic, [of(1, 1, 100), of(2, 2, 10)], partition=0)
    batch(orders_group, pipeline=dict(options, sink=dict(options["sink"]))).run()
    orders_group.produce(orders_group.topic, [of(1, 9, 99), gone(1), gone(2), of(3, 3, 3)], partition=1)
    batch(orders_group, pipeline=dict(options, sink=dict(options["sink"]))).run()
    assert orders_group.rows() == [(1, 1, 100), (3, 3, 3)]


class Measured(msgspec.Struct):
    id: int
    amount: float


@pytest.mark.parametrize("job", ["batch", "reprocess", "reload", "replay"])
def test_a_field_that_its_column_cannot_hold_is_refused_before_anything_is_written(
    orders_group: OrdersGroup, job: str
) -> None:
    """As by a worker's start: the digits that a float loses cannot be seen in its values."""
    orders_group.execute("CREATE TABLE {schema}.measured (id bigint PRIMARY KEY, amount numeric)")
    orders_group.put([of(1, 2, 3)])
    orders_group.work(1)
    sink = Upsert((orders_group.schema, "measured"), key=["id"])
    measured = Pipeline(orders_group.group, topics=orders_group.topic, value=Json(Measured), sinks=[sink])
    dead_letters = ReplayableDeadLetters(measured, orders_group.engine, schema=orders_group.schema)
    again: Mapping[str, Any] = {"reason": "a test", "accept_repeats": True}
    jobs: Mapping[str, Callable[[], object]] = {
        "batch": batch(orders_group, measured).run,
        "reprocess": lambda: batch(orders_group, measured).reprocess((orders_group.topic, 0), 0, 1, **again),
        "reload": lambda: orders_group.reload([measured]).open(),
        "replay": dead_letters.replay_all,
    }
    with pytest.raises(ConfigError, match=r"column .amount. \(numeric\): a float keeps about 15 digits"):
        jobs[job]()
    assert orders_group.rows("measured", "id, amount, 0") == []
    assert paused(orders_group) is None
