"""What a batch writes is what a worker would have written: rows, tombstones, dead letters; and logs of all kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka.admin import AdminClient

from seekpoint import Append, DeadLetterLimits, Json, Pipeline, Text, Upsert
from seekpoint.errors import BatchRefused, RangeLost, TooManyDeadLetters, TopicRecreated
from seekpoint.jobs.reload import LocalStager, Run, Staged, Task, stage_range
from seekpoint.jobs.staging import stage as staging
from seekpoint.jobs.tables.targets import sources
from seekpoint.ledger.dead_letters import DeadLetters, Where
from seekpoint.records import State
from support.batch_process import Pausing, batch, offsets, paused
from support.before_cutover import reloaded, widen
from support.log_changes import delete, in_transactions, trim
from support.reload_orders import Order, OrderKey, Shop, gone, of

TABLES = """
CREATE TABLE {schema}.copy_{n} (id bigint PRIMARY KEY, amount bigint NOT NULL, at bigint, note text DEFAULT 'none',
    topic text, place integer, upto bigint);
CREATE TABLE {schema}.lines_{n} (number bigint GENERATED ALWAYS AS IDENTITY, id bigint, half bigint, upto bigint);
"""


def kinds(shop: Shop, n: int) -> dict[str, Callable[[], list[Any]]]:
    """Sinks by the rule that says which row of a key is the newest; ``n`` names the tables."""
    table, lines = (shop.schema, f"copy_{n}"), (shop.schema, f"lines_{n}")
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
    made: list[tuple[str, str | None]] = []
    dead: set[int] = set()
    for n in range(random.randrange(1, 150)):
        id_ = random.randrange(12) * 2 + partition
        if id_ in dead:
            continue
        if random.random() < 0.15:
            made.append(gone(id_))
            dead |= {id_} if kind == "order" else set()
        else:
            at = random.randrange(1000) * 1000 + n if kind == "order" else n
            made.append(of(id_, random.randrange(100), at))
    return made


@pytest.mark.long("some of its cases take seconds")
@pytest.mark.parametrize("seed", range(15))
def test_a_batch_writes_what_a_worker_writes(shop: Shop, seed: int) -> None:
    """Two groups apply equal records: one by batches now and then, one by a worker."""
    random = Random(seed)
    kind = ["last", "order", "offset", "origin", "several"][seed % 5]
    print(f"seed {seed}, {kind}")
    for n in (0, 1):
        shop.execute(TABLES.replace("{n}", str(n)))

    def pipeline(n: int) -> Pipeline:
        return Pipeline(
            f"{shop.group}_{n}",
            topics=shop.topic,
            value=Json(Order, tombstones=True),
            key=Json(OrderKey),
            sinks=kinds(shop, n)[kind](),
        )

    sent = [0, 0]
    for _ in range(random.randrange(1, 4)):
        for partition in (0, 1):
            made = records(random, kind, partition)
            shop.produce(shop.topic, made, partition=partition)
            sent[partition] += len(made)
            if kind == "order":
                break  # what was deleted stays deleted
        batch(shop, pipeline(0), range_records=random.choice([7, 40, 1000])).run()
        if kind == "order":
            break
    worker = shop.run_worker(pipeline(1))
    for partition in (0, 1):
        if sent[partition]:
            worker.reached(shop.topic, sent[partition], partition)
    worker.stop()
    columns = "id, amount, at, note, topic, place, upto"
    assert shop.rows("copy_0", columns) == shop.rows("copy_1", columns)
    lines = [shop.execute(f"SELECT id, half, upto FROM {shop.schema}.lines_{n} ORDER BY 1, 2, 3") for n in (0, 1)]
    assert lines[0] == lines[1]
    assert sent[0] + sent[1] == sum(offsets_of(shop, f"{shop.group}_0"))


def offsets_of(shop: Shop, group: str) -> list[int]:
    found = shop.execute("SELECT next_offset FROM {schema}.partition_offset WHERE consumer_group = :g", g=group)
    return [row[0] for row in found]


def test_a_null_order_is_dead_lettered_by_workers_reloads_and_batches(shop: Shop) -> None:
    """Of the other records the newest counts, of equals the last; a live row without an order is older than any."""
    nulls = 13  # the amount whose order the new code does not know
    sent = [of(1, 1, 5), of(1, 2, 5), of(1, nulls, 9), of(2, 4, 9), of(2, 5, 3), of(2, nulls, 1), of(3, nulls), gone(1)]

    def pipeline(group: str, version: int) -> Pipeline:
        def row(record: Any) -> dict[str, Any]:
            order = record.value
            is_null = version > 1 and order.amount == nulls
            return {"id": order.id, "amount": order.amount, "at": None if is_null else order.at}

        sink = Upsert((shop.schema, "orders"), key=["id"], columns=["id", "amount", "at"], row=row, order_by="at",
                      tombstone_key=lambda r: {"id": r.key.id, "at": 0 if version == 1 else None})  # fmt: skip
        return Pipeline(group, topics=shop.topic, value=Json(Order, tombstones=True), key=Json(OrderKey), sinks=[sink],
                        version=version, on_poison="dead_letter")  # fmt: skip

    def worked(group: str, version: int) -> None:
        shop.apply(pipeline(group, version), len(sent))

    def told(group: str) -> tuple[list[Any], list[Any]]:
        letters = "SELECT record_offset FROM {schema}.dead_letter WHERE consumer_group = :g ORDER BY 1"
        found = shop.rows(), [row[0] for row in shop.execute(letters, g=group)]
        shop.execute("DELETE FROM {schema}.orders")
        shop.execute("INSERT INTO {schema}.orders VALUES (1, 7, NULL), (2, 7, NULL)")
        return found

    shop.execute("ALTER TABLE {schema}.orders ALTER at DROP NOT NULL")
    shop.produce(shop.topic, sent, partition=0)
    worked(shop.group, 1)
    reloaded(shop.reload([pipeline(shop.group, 2)]))
    by_reload = told(shop.group)
    batch(shop, pipeline(f"{shop.group}_batch", 2)).run()
    batched = told(f"{shop.group}_batch")
    worked(f"{shop.group}_worker", 2)
    assert by_reload == batched == told(f"{shop.group}_worker") == ([(1, 2, 5), (2, 4, 9)], [2, 5, 6, 7])


@pytest.mark.parametrize("table", ["100%", "%s of it"])
def test_a_percent_sign_in_a_name_is_no_placeholder(shop: Shop, table: str) -> None:
    """An Upsert's rows and tombstones, in a table whose name and columns have one."""
    shop.execute(f'CREATE TABLE {{schema}}."{table}" ("%" bigint PRIMARY KEY, "50%" bigint)')
    sink = Upsert((shop.schema, table), key=["%"], columns=["%", "50%"],
                  row=lambda r: (r.value.id, r.value.amount), tombstone_key=lambda r: r.key.id)  # fmt: skip
    pipeline = Pipeline(
        shop.group, topics=shop.topic, value=Json(Order, tombstones=True), key=Json(OrderKey), sinks=[sink]
    )
    shop.produce(shop.topic, [of(1, 1), of(2, 2), of(1, 3), gone(2)], partition=0)
    batch(shop, pipeline).run()
    assert shop.execute(f'SELECT * FROM {{schema}}."{table}"') == [(1, 3)]


# -- records that fail ------------------------------------------------------------------------------------------------

POISON = [of(1, 1), of(2, 2_000), of(3, 3), ("not JSON", "{"), of(4, 4)]  # version 2 refuses amounts above 1,000


def failing(shop: Shop, **options: Any) -> Pipeline:
    return shop.pipeline(kind="append", version=2, **options)


def test_under_stop_the_record_is_named_and_nothing_is_written(shop: Shop) -> None:
    shop.produce(shop.topic, POISON, partition=1)
    with pytest.raises(BatchRefused, match=rf"{shop.topic}/1 offset 1: row: ValueError: too much.*'stop'"):
        batch(shop, failing(shop)).run()
    assert shop.rows("entries") == []
    assert offsets(shop) == {f"{shop.topic}/0": 0, f"{shop.topic}/1": 0}
    assert paused(shop) is None
    assert (
        shop.execute("SELECT state, owner IS NULL FROM {schema}.reload_run, {schema}.partition_offset")
        == [("failed", True)] * 2
    )
    batch(shop).runs.sweep()
    assert shop.schemas() == []


@pytest.mark.parametrize(("policy", "state"), [("dead_letter", "dead_lettered"), ("skip", "skipped")])
def test_what_fails_is_dead_lettered_or_skipped_as_the_pipeline_says(shop: Shop, policy: Any, state: str) -> None:
    """I4: in the transaction that passes its offset."""
    shop.produce(shop.topic, POISON, partition=1)
    done = batch(shop, failing(shop, on_poison=policy)).run()
    assert (done.records, done.dead_letters) == (5, 2)
    assert [row[0] for row in shop.rows("entries")] == [1, 3, 4]
    letters = DeadLetters(shop.ledger()).list(Where(states=(State(state),)))
    assert sorted((one.partition, one.offset, one.state.value) for one in letters) == [(1, 1, state), (1, 3, state)]
    found = shop.execute("SELECT value IS NULL, version FROM {schema}.dead_letter")
    assert found == [(policy == "skip", 2)] * 2


def test_too_many_dead_letters_stop_a_batch_as_they_stop_a_worker(shop: Shop) -> None:
    shop.produce(shop.topic, [of(n, 2_000 if 20 <= n < 31 else 1) for n in range(60)], partition=0)
    limits = DeadLetterLimits(consecutive=10)
    one = failing(shop, on_poison="dead_letter", dead_letter_limits=limits)
    with pytest.raises(TooManyDeadLetters, match=rf"11 records in a row failed, from {shop.topic}/0 offset 20 on"):
        batch(shop, one).run()
    share = DeadLetterLimits(consecutive=None, ratio=0.1, window=50)
    with pytest.raises(TooManyDeadLetters, match=r"11 of 60 records failed, the limit is 10%"):
        batch(shop, failing(shop, on_poison="dead_letter", dead_letter_limits=share)).run()
    assert shop.rows("entries") == []
    assert paused(shop) is None
    wide = DeadLetterLimits(consecutive=11)
    assert batch(shop, failing(shop, on_poison="dead_letter", dead_letter_limits=wide)).run().dead_letters == 11


def test_keys_that_are_held_are_for_workers(shop: Shop) -> None:
    """An open dead letter blocks the later records of its key: a batch of such records is refused."""
    options: dict[str, Any] = {"version": 2, "on_poison": "dead_letter"}  # an Upsert that does not know what is newer
    shop.produce(shop.topic, [of(1, 1), of(2, 2_000)], partition=0)
    shop.work(2, **options)
    shop.produce(shop.topic, [of(2, 5)], partition=0)
    held = (
        rf"group '{shop.group}' has 1 open dead letters, and records of their keys are blocked behind them, which only "
        r"workers do: replay or discard them first \(`seekpoint dead-letters`\)"
    )
    with pytest.raises(BatchRefused, match=held):
        batch(shop, pipeline=options).run()
    assert paused(shop) is None
    shop.execute("UPDATE {schema}.dead_letter SET state = 'discarded'")
    assert batch(shop, pipeline=options).run().records == 1
    assert shop.rows() == [(1, 2, 0), (2, 10, 0)]
    shop.produce(shop.topic, [of(1, 2_000)], partition=0)
    with pytest.raises(BatchRefused) as refused:
        batch(shop, pipeline=options).run()
    (reason,) = refused.value.reasons
    assert reason.startswith(f"{shop.topic}/0 offset 3: row: ValueError: too much")
    assert reason.endswith(
        "; and later records of its key would have to be blocked behind it, which a batch does not do. "
        "on_poison='dead_letter' is set already; give offset_column= or order_by= to the Upsert, whose rows then need "
        "no order of keys, or let a worker apply these records; and start another run"
    )


def test_what_only_the_live_table_refuses(shop: Shop) -> None:
    """A unique index is not on what is staged: nothing is written, and a worker finds the record."""
    shop.execute("CREATE UNIQUE INDEX ON {schema}.entries (id)")
    shop.produce(shop.topic, [of(1), of(2), of(1)], partition=0)
    with pytest.raises(BatchRefused, match=r"duplicate key.*worker finds out"):
        batch(shop, pipeline={"kind": "append", "on_poison": "dead_letter"}).run()
    assert shop.rows("entries") == []
    assert paused(shop) is None
    shop.work(3, kind="append", on_poison="dead_letter")
    assert [row[0] for row in shop.rows("entries")] == [1, 2]


class Again(LocalStager):
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
def test_attempts_that_are_repeated_count_once(shop: Shop, kind: str) -> None:
    records = [of(n, n, n) for n in range(90)]
    shop.produce(shop.topic, records, partition=0)
    made = sources([shop.pipeline(kind=kind)])
    stager = Again(shop.engine, shop.schema, {"bootstrap.servers": shop.brokers}, made)
    done = batch(shop, pipeline={"kind": kind}, stager=stager, range_records=20).run()
    assert done.records == 90
    table = {"upsert": "orders", "append": "entries"}[kind]
    assert done.rows == {f"{shop.schema}.{table}": 90}
    assert shop.rows(table) == [(n, n, n) for n in range(90)]


def test_a_dead_letter_that_blocks_its_key_and_came_meanwhile_keeps_the_batch_out(shop: Shop) -> None:
    """A dead letter that is opened again after the batch's check: records of its key are blocked, for workers."""
    options: dict[str, Any] = {"on_poison": "dead_letter", "keep_key_order": True}
    shop.produce(shop.topic, [(of(1)[0], "{"), *(of(n, n, n) for n in range(5, 10))], partition=0)
    shop.work(6, **options)
    (letter,) = shop.redrive(**options).list()
    shop.redrive(**options).discard(letter.id, reason="a test")
    shop.produce(shop.topic, [of(n, n, n) for n in range(10, 20)], partition=0)

    def parked_again(_: Run) -> None:
        shop.execute("UPDATE {schema}.dead_letter SET state = 'dead_lettered'")

    with pytest.raises(BatchRefused, match="has 1 open dead letters, and records of their keys are blocked"):
        batch(shop, pipeline=options, stager=Pausing(shop, parked_again, **options)).run()
    assert offsets(shop)[f"{shop.topic}/0"] == 6
    assert paused(shop) is None


def test_a_record_that_fails_in_one_attempt_alone_is_no_row_and_dead_letter_at_once(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two committed attempts at a range the one without the failure counts: the dead letter belongs to the other."""
    shop.produce(shop.topic, [of(n, n, n) for n in range(40)], partition=0)
    fails = [True]

    def row(record: Any) -> dict[str, Any]:
        if fails[0] and record.value.id == 7:
            raise ValueError("not today")
        order = record.value
        return {"id": order.id, "amount": order.amount, "at": order.at, "topic_offset": record.offset}

    sink = Append((shop.schema, "entries"), columns=["id", "amount", "at", "topic_offset"], row=row)
    made = Pipeline(shop.group, topics=shop.topic, value=Json(Order), sinks=[sink], on_poison="dead_letter")

    class Twice:
        def stage(self, run: Run, tasks: Sequence[Task]) -> Iterator[Staged]:
            for task in tasks:
                for number, fails[0] in (("f", True), ("0", False)):
                    monkeypatch.setattr(staging, "uuid4", lambda number=number: UUID(number * 32))
                    staged = stage_range(
                        shop.engine, shop.schema, {"bootstrap.servers": shop.brokers}, run.id, pipeline=made,
                        range_=task.range,
                    )  # fmt: skip
                yield staged

    with pytest.raises(BatchRefused, match="1 records failed in some attempt at their range, and 0 in those"):
        batch(shop, made, stager=Twice()).run()
    assert shop.rows("entries") == []
    assert shop.execute("SELECT count(*) FROM {schema}.dead_letter") == [(0,)]
    assert paused(shop) is None


# -- logs -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def admin(shop: Shop) -> AdminClient:
    return AdminClient({"bootstrap.servers": shop.brokers, "log_level": 0})


@pytest.fixture
def kafka(shop: Shop) -> Mapping[str, Any]:
    return {"bootstrap.servers": shop.brokers}


def test_what_retention_has_taken_is_an_error_and_never_a_gap(shop: Shop, admin: AdminClient) -> None:
    shop.produce(shop.topic, [of(n) for n in range(20)], partition=0)
    batch(shop).run()
    shop.produce(shop.topic, [of(n) for n in range(20, 40)], partition=0)
    trim(admin, shop.topic, 30)
    with pytest.raises(RangeLost, match=r"offset 20: retention has passed it.*to=30") as lost:
        batch(shop).run()
    assert lost.value.offset == 20
    assert paused(shop) is None
    shop.ledger().reset_offset(shop.topic, 0, 30, log=None, reason="retention", lost="retention")
    assert batch(shop).run().records == 10
    assert len(shop.rows()) == 30
    assert len(shop.execute("SELECT 1 FROM {schema}.lost_range")) == 1


def test_retention_that_passes_while_it_is_read(shop: Shop, admin: AdminClient) -> None:
    shop.produce(shop.topic, [of(n) for n in range(40)], partition=0)

    def cut(what: str, done: int, total: int) -> None:
        if done == 10:
            trim(admin, shop.topic, 35)

    with pytest.raises(RangeLost, match="the first offset left is 35"):
        batch(shop, progress=cut, range_records=10).run()
    assert shop.rows() == []
    assert paused(shop) is None
    assert batch(shop).runs.list()[0].state == "failed"


@pytest.mark.parametrize("meanwhile", [False, True])
def test_a_topic_that_was_recreated(
    shop: Shop, admin: AdminClient, kafka: Mapping[str, Any], request: pytest.FixtureRequest, meanwhile: bool
) -> None:
    shop.produce(shop.topic, [of(n) for n in range(10)], partition=0)

    def anew(*_: object) -> None:
        delete(kafka, admin, shop.topic)
        request.getfixturevalue("topic")(2, name=shop.topic)
        shop.produce(shop.topic, [of(n) for n in range(50)], partition=0)

    if meanwhile:
        todo = [anew]

        def once(*_: object) -> None:
            if todo:
                todo.pop()()

        with pytest.raises((TopicRecreated, BatchRefused), match="created again"):
            batch(shop, progress=once).run()
        assert shop.rows() == []
    else:
        batch(shop).run()
        anew()
        with pytest.raises(TopicRecreated, match="Choices"):
            batch(shop).run()
        assert len(shop.rows()) == 10
    assert paused(shop) is None


@pytest.mark.long
def test_an_open_transaction_ends_what_is_read(shop: Shop) -> None:
    """At the last stable offset: the rest is for the next batch."""
    one = Pipeline(
        shop.group,
        topics=shop.topic,
        value=Text(),
        sinks=[Append((shop.schema, "entries"), columns=["id", "amount", "at", "topic_offset"],
                      row=lambda r: (int(r.value), 1, 1, r.offset))],
    )  # fmt: skip
    end = in_transactions(shop.brokers, shop.topic, (10, True), (5, False), (3, True), (4, None))
    assert batch(shop, one).run().records == 13
    assert len(shop.rows("entries")) == 13
    stood = offsets(shop)[f"{shop.topic}/0"]
    assert stood == 13 + 5 + 3
    assert batch(shop, one).run().is_empty
    end.abort_transaction(30)
    in_transactions(shop.brokers, shop.topic, (2, True))
    assert batch(shop, one).run().records == 2
    assert len(shop.rows("entries")) == 15


def test_a_partition_that_was_added_is_read_from_its_beginning(shop: Shop) -> None:
    shop.produce(shop.topic, [of(n) for n in range(10)], partition=0)
    batch(shop).run()
    widen(shop, 3)
    shop.produce(shop.topic, [of(100 + n) for n in range(5)], partition=2)
    assert batch(shop).run().records == 5
    assert offsets(shop)[f"{shop.topic}/2"] == 5
    assert shop.execute("SELECT count(*) FROM {schema}.orders") == [(15,)]


def test_rows_that_are_there_are_guarded_as_a_worker_guards_them(shop: Shop) -> None:
    """A newer row stays, and a tombstone that is older than it does nothing."""
    options = {"sink": {"order_by": "at", "tombstone_key": lambda r: {"id": r.key.id, "at": 50}}}
    shop.produce(shop.topic, [of(1, 1, 100), of(2, 2, 10)], partition=0)
    batch(shop, pipeline=dict(options, sink=dict(options["sink"]))).run()
    shop.produce(shop.topic, [of(1, 9, 99), gone(1), gone(2), of(3, 3, 3)], partition=1)
    batch(shop, pipeline=dict(options, sink=dict(options["sink"]))).run()
    assert shop.rows() == [(1, 1, 100), (3, 3, 3)]
