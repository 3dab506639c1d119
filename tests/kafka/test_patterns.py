"""Topics by pattern: found while a worker runs, each written to a table of its own, and stopped alone without one."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from sqlalchemy import Engine, text

from seekpoint import Accumulate, Append, Json, Limits, Pattern, Pipeline, Upsert, events
from seekpoint.admin import Admin
from seekpoint.errors import ConfigError, ReloadRefused, TableMissing, TopicRecreated
from seekpoint.jobs.reload import Reload
from seekpoint.records import Partition
from seekpoint.worker.import_by_name import load
from support.cli_project import Project
from support.command import seekpoint
from support.events import Run
from support.topics import SharedBroker
from support.waiting import until
from support.worker_group import PROTOCOLS

QUICK = Limits(idle_check=0.1, lag_check=0.1)
SOON = {"topic.metadata.refresh.interval.ms": 100}
Workers = Callable[..., Run]


class Shop:
    """Topics of one prefix, and tables in the test's schema."""

    def __init__(self, engine: Engine, schema: str, group: str, topic: Callable[..., str]) -> None:
        self.engine, self.schema, self.group, self._topic = engine, schema, group, topic
        self.prefix = f"shop{secrets.token_hex(4)}"

    def topic(self, name: str, partitions: int = 1) -> str:
        return self._topic(partitions, name=f"{self.prefix}.{name}")

    def table(self, name: str, columns: str = "id bigint PRIMARY KEY, n bigint") -> None:
        with self.engine.begin() as tx:
            tx.execute(text(f"CREATE TABLE {self.schema}.{name} ({columns})"))

    def pipeline(self, *sinks: Any, **options: Any) -> Pipeline:
        pattern = Pattern(rf"{self.prefix}\.(?P<name>[a-z_]+)")
        return Pipeline(self.group, topics=pattern, value=Json(dict), sinks=sinks, **options)

    def append(self) -> Append:
        return Append(f"{self.schema}.{{name}}", columns=["id", "n"])

    def rows(self, name: str) -> list[Any]:
        return self.query(f"SELECT * FROM {self.schema}.{name} ORDER BY 1, 2")

    def execute(self, *statements: str) -> None:
        with self.engine.begin() as tx:
            for statement in statements:
                tx.execute(text(statement.format(schema=self.schema)))

    def query(self, statement: str) -> list[Any]:
        with self.engine.connect() as tx:
            return [tuple(row) for row in tx.execute(text(statement))]


@pytest.fixture
def shop(seekpoint_engine: Engine, seekpoint_schema: str, group: str, topic: Callable[..., str]) -> Shop:
    return Shop(seekpoint_engine, seekpoint_schema, group, topic)


def values(*pairs: tuple[int, int]) -> list[str]:
    return [f'{{"id": {number}, "n": {n}}}' for number, n in pairs]


def wait_for_rows(shop: Shop, name: str, rows: list[tuple[int, int]]) -> None:
    until(lambda: shop.rows(name) == rows, f"{rows} in {name}")


def test_topics_are_found_and_written_to_tables_by_their_match(
    shop: Shop, run_worker: Workers, produce: Callable[..., Any], protocol: Mapping[str, Any]
) -> None:
    orders, other = shop.topic("orders", 2), shop.topic("payments_2")  # not matched as a whole
    for name in ("orders", "refunds", "late_refunds"):
        shop.table(name)
    sink = Upsert(f"{shop.schema}.{{name}}", key=["id"], columns=["id", "n"])
    workers = [run_worker(shop.pipeline(sink), kafka={**protocol, **SOON}, limits=QUICK) for _ in range(2)]
    produce(orders, values((1, 1), (2, 2)), partition=0)
    produce(other, values((1, 1)))
    for run in workers:
        run.placed()
    refunds = shop.topic("refunds", 2)
    produce(refunds, values((1, 1), (1, 2)), partition=0)  # before it is found: read from its beginning
    produce(refunds, values((2, 5)), partition=1)
    for run in workers:
        assert run.seen.wait_for(events.TopicsFound).topics == (refunds,)
    for name in ("orders", "refunds"):
        wait_for_rows(shop, name, [(1, 1), (2, 2)] if name == "orders" else [(1, 2), (2, 5)])
    produce(orders, values((3, 3)), partition=1)
    wait_for_rows(shop, "orders", [(1, 1), (2, 2), (3, 3)])
    declared = shop.query(f"SELECT topic, tables FROM {shop.schema}.group_topic WHERE consumer_group = '{shop.group}'")
    assert sorted(declared) == [(orders, [f"{shop.schema}.orders"]), (refunds, [f"{shop.schema}.refunds"])]
    keys = f"SELECT jsonb_object_keys(declared) FROM {shop.schema}.consumer_group WHERE name = '{shop.group}'"
    until(lambda: {*shop.query(keys)} == {(orders,), (refunds,)}, "the declarations of both topics")
    for run in workers:
        run.stop()
    late = shop.topic("late_refunds")  # while no worker runs
    produce(late, values((7, 7)))
    run_worker(shop.pipeline(sink), kafka={**protocol, **SOON}, limits=QUICK).finish(late, 1)
    assert shop.rows("late_refunds") == [(7, 7)]


def test_a_topic_without_a_table_stops_alone_until_it_has_one(
    shop: Shop, run_worker: Workers, produce: Callable[..., Any]
) -> None:
    orders, refunds = shop.topic("orders"), shop.topic("refunds", 2)
    shop.table("orders")
    run = run_worker(shop.pipeline(shop.append()), kafka={**PROTOCOLS["cooperative"], **SOON}, limits=QUICK)
    stop = run.seen.wait_for(events.PartitionStopped, lambda event: event.partition == Partition(refunds, 0)).error
    assert isinstance(stop, TableMissing)
    assert f"topic '{refunds}' matches the pipeline's pattern" in str(stop)
    assert f"Append('{shop.schema}.refunds'): relation \"{shop.schema}.refunds\" does not exist" in str(stop)
    produce(refunds, values((1, 1)), partition=0)
    produce(orders, values((1, 1)))
    run.reached(orders, 1)
    stored = f"SELECT topic, stop_kind FROM {shop.schema}.partition_trouble WHERE stop_kind IS NOT NULL"
    until(lambda: shop.query(stored) == [(refunds, "TableMissing")] * 2, "the stops of both partitions")
    shop.table("refunds", "id bigint")
    shop.table("carts")
    produce(shop.topic("carts"), values((3, 3)))  # found while the other is stopped
    wait_for_rows(shop, "carts", [(3, 3)])
    assert shop.query(f"SELECT id FROM {shop.schema}.refunds") == []
    with shop.engine.begin() as tx:
        tx.execute(text(f"ALTER TABLE {shop.schema}.refunds ADD n bigint"))
    run.reached(refunds, 1)
    assert not run.seen.all(events.Revoked), "a new subscription has interrupted the others"
    run.stop()
    assert shop.rows("refunds") == [(1, 1)]
    assert shop.query(stored) == []


def test_a_topic_that_no_table_can_be_named_for_stops_alone(
    shop: Shop, run_worker: Workers, produce: Callable[..., Any]
) -> None:
    long, orders = shop.topic("a" * 64), shop.topic("orders")
    shop.table("orders")
    run = run_worker(shop.pipeline(shop.append()), kafka=SOON, limits=QUICK)
    stop = run.seen.wait_for(events.PartitionStopped).error
    assert stop.partition == Partition(long, 0)
    assert "of 64 bytes, and Postgres cuts names to 63: name it by a function of the topic" in str(stop)
    produce(orders, values((1, 1)))
    run.finish(orders, 1)
    assert shop.rows("orders") == [(1, 1)]


def test_each_kind_of_sink_takes_a_function_and_all_write_in_one_transaction(
    shop: Shop, run_worker: Workers, produce: Callable[..., Any]
) -> None:
    topics = [shop.topic(name) for name in ("orders", "refunds")]
    for name in ("orders", "refunds"):
        shop.table(name)
        shop.table(f"{name}_sum")
    shop.table("everything", "topic text, n bigint")
    pipeline = shop.pipeline(
        Append(lambda topic: f"{shop.schema}.{topic.rpartition('.')[2]}", columns=["id", "n"]),
        Accumulate(
            lambda topic: (shop.schema, f"{topic.rpartition('.')[2]}_sum"),
            key=["id"],
            add=["n"],
            row=lambda record: {"id": 1, "n": record.value["n"]},
        ),
        Append(f"{shop.schema}.everything", columns=["topic", "n"], row=lambda r: (r.topic, r.value["n"])),
    )
    run = run_worker(pipeline, kafka=SOON, limits=QUICK)
    for topic in topics:
        produce(topic, values((1, 10), (2, 20)))
    for topic in topics:
        run.reached(topic, 2)
    run.stop()
    for topic, name in zip(topics, ("orders", "refunds"), strict=True):
        assert shop.rows(name) == [(1, 10), (2, 20)]
        assert shop.rows(f"{name}_sum") == [(1, 30)]
        assert (topic, 10) in shop.rows("everything")
    assert len(shop.rows("everything")) == 4
    sums = (
        f"SELECT k FROM {shop.schema}.consumer_group, jsonb_each(declared) d (k, v) WHERE v::text LIKE '%aggregates%'"
    )
    assert sorted(shop.query(sums)) == [(topic,) for topic in sorted(topics)]


@pytest.mark.long
def test_jobs_and_replays_take_topics_of_a_pattern_by_name(
    shop: Shop, run_worker: Workers, produce: Callable[..., Any], seekpoint_broker: str
) -> None:
    orders, refunds = shop.topic("orders"), shop.topic("refunds")
    for name in ("orders", "refunds"):
        shop.table(name)
        with shop.engine.begin() as tx:
            tx.execute(text(f"ALTER TABLE {shop.schema}.{name} ADD CHECK (n < 10)"))
    sink = Upsert(f"{shop.schema}.{{name}}", key=["id"], columns=["id", "n"], row=lambda r: r.value)
    pipeline = shop.pipeline(sink, on_poison="dead_letter")
    run = run_worker(pipeline, kafka=SOON, limits=QUICK)
    produce(orders, values((1, 1), (2, 20)))
    produce(refunds, values((3, 3)))
    run.reached(orders, 2)
    run.finish(refunds, 1)
    assert (shop.rows("orders"), shop.rows("refunds")) == ([(1, 1)], [(3, 3)])
    with shop.engine.begin() as tx:
        tx.execute(text(f"ALTER TABLE {shop.schema}.orders DROP CONSTRAINT orders_n_check"))
        tx.execute(text(f"DELETE FROM {shop.schema}.refunds"))
    dead_letters = Admin(shop.engine, schema=shop.schema).dead_letters(pipeline.with_topics(orders))
    assert dead_letters.replay_all().is_complete
    assert shop.rows("orders") == [(1, 1), (2, 20)]
    named = shop.pipeline(sink, on_poison="dead_letter", version=2).with_topics(orders, refunds)
    reload = Reload([named], shop.engine, {"bootstrap.servers": seekpoint_broker}, schema=shop.schema, max_deletes=1)
    reload.run(reload.open())
    assert (shop.rows("orders"), shop.rows("refunds")) == ([(1, 1), (2, 20)], [(3, 3)])
    later = run_worker(shop.pipeline(sink, version=2), kafka=SOON, limits=QUICK)
    produce(refunds, values((4, 4)))
    later.finish(refunds, 2)
    assert shop.rows("refunds") == [(3, 3), (4, 4)]


def reload_of(shop: Shop, pipeline: Pipeline, brokers: str) -> Reload:
    return Reload([pipeline], shop.engine, {"bootstrap.servers": brokers}, schema=shop.schema, max_deletes=1)


@pytest.mark.long
def test_one_topic_is_reloaded_alone(
    shop: Shop, run_worker: Workers, produce: Callable[..., Any], seekpoint_broker: str
) -> None:
    orders, refunds = shop.topic("orders"), shop.topic("refunds")
    for name in ("orders", "refunds", "others"):
        shop.table(name)
    sink = Upsert(f"{shop.schema}.{{name}}", key=["id"], columns=["id", "n"])
    run = run_worker(shop.pipeline(sink), kafka=SOON, limits=QUICK)
    produce(orders, values((1, 1)))
    produce(refunds, values((2, 2)))
    run.reached(orders, 1)
    run.reached(refunds, 1)
    shop.execute("UPDATE {schema}.orders SET n = 9", "UPDATE {schema}.refunds SET n = 9")
    produce(orders, values((3, 3)))
    run.reached(orders, 2)
    alone = shop.pipeline(sink).with_topics(orders)
    declared = f"SELECT declared FROM {shop.schema}.consumer_group"
    keys = f"SELECT jsonb_object_keys(declared) FROM {shop.schema}.consumer_group"
    until(lambda: {*shop.query(keys)} == {(orders,), (refunds,)}, "the declarations of both topics")  # after the rows
    before = shop.query(declared)
    assert [table.table for table in reload_of(shop, alone, seekpoint_broker).verify().tables] == [
        f"{shop.schema}.orders"
    ]
    reload = reload_of(shop, alone, seekpoint_broker)
    reload.run(reload.open())
    assert (shop.rows("orders"), shop.rows("refunds")) == ([(1, 1), (3, 3)], [(2, 9)])
    assert shop.query(declared) == before, "what the group's other topics declare is kept"
    produce(refunds, values((4, 4)))
    run.reached(refunds, 2)  # a cut-over fences workers: they claim again, also the topics that it did not rebuild
    assert shop.rows("refunds") == [(2, 9), (4, 4)]
    raised = shop.pipeline(sink, version=2).with_topics(orders)
    with pytest.raises(ReloadRefused, match=f"a reload of {orders} alone cannot raise it to 2: reload all topics, or"):
        reload_of(shop, raised, seekpoint_broker).open()
    assert reload_of(shop, raised, seekpoint_broker).verify().is_empty, "a verify raises no version"


@pytest.mark.long
def test_a_topic_that_shares_a_table_is_not_reloaded_alone(
    shop: Shop, run_worker: Workers, produce: Callable[..., Any], seekpoint_broker: str
) -> None:
    """Also if it is found while the run is open, or if its tables were others before."""
    orders, refunds = shop.topic("orders"), shop.topic("refunds")
    for name in ("orders", "refunds"):
        shop.table(name)
    names = {orders: "orders", refunds: "refunds"}
    sink = Upsert(lambda topic: (shop.schema, names.get(topic, "orders")), key=["id"], columns=["id", "n"])
    run = run_worker(shop.pipeline(sink), kafka=SOON, limits=QUICK)
    produce(orders, values((1, 1)))
    run.reached(orders, 1)
    reload = reload_of(shop, shop.pipeline(sink).with_topics(orders), seekpoint_broker)
    driver = reload.open()
    reload.stage(driver)
    late = shop.topic("late")
    produce(late, values((7, 7)))
    run.reached(late, 1)
    message = f"has applied records of {late}, which this pipeline does not read, so their rows would be lost"
    with pytest.raises(ReloadRefused, match=message):
        reload.run(driver)
    assert shop.rows("orders") == [(1, 1), (7, 7)]
    with pytest.raises(ReloadRefused, match=message):
        reload.open()
    alone = reload_of(shop, shop.pipeline(sink).with_topics(refunds), seekpoint_broker)
    produce(refunds, values((2, 2)))
    run.reached(refunds, 1)
    assert alone.verify().is_empty
    shop.execute(f"UPDATE {{schema}}.group_topic SET replaced = 1 WHERE topic = '{orders}'")
    with pytest.raises(ReloadRefused, match=f"has applied records of {orders}"):
        alone.open()


BY_PATTERN = """\
from seekpoint import Pattern, Upsert
sink = Upsert(lambda topic: ("{schema}", topic.rpartition(".")[2]), key=["id"], columns=["id", "n"])
pipe = Pipeline("{group}", topics=Pattern(r"{topic}\\.(orders|refunds)"), value=Json(dict), sinks=[sink])
"""


@pytest.mark.long
def test_a_command_reloads_one_topic_and_resumes_it(  # noqa: PLR0917 -- fixtures
    project: Project,
    shop: Shop,
    topic: Callable[..., str],
    run_worker: Workers,
    produce: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    orders, refunds = (topic(name=f"{project.topic}.{name}") for name in ("orders", "refunds"))
    for name in ("orders", "refunds"):
        shop.table(name)
    target = f"{project.module(BY_PATTERN)}:pipe"
    monkeypatch.syspath_prepend(str(project.folder))
    run = run_worker(load(target), kafka=SOON, limits=QUICK)
    for name in (orders, refunds):
        produce(name, values((1, 1)))
        run.reached(name, 1)
    shop.execute("UPDATE {schema}.orders SET n = 9", "UPDATE {schema}.refunds SET n = 9")
    verify = seekpoint("verify", target, "--topic", orders, *project.options(), exits=1)
    assert f"compared at {project.group} {orders}/0 at 1\n" in verify.stdout
    stderr = seekpoint("reload", "run", target, "--topic", project.topic, *project.options(), exits=2).stderr
    assert f"topic '{project.topic}' does not match the pattern as a whole" in " ".join(stderr.split())
    stderr = seekpoint("reload", "run", target, target, "--topic", orders, *project.options(), exits=2).stderr
    assert "--topic names topics of one pipeline" in stderr
    kafka = {"bootstrap.servers": project.broker}
    left_open = Reload([f"{target}@{orders}"], shop.engine, kafka, schema=shop.schema).open()
    seekpoint("reload", "resume", str(left_open.run.id), "--max-deletes", "1", *project.options())
    assert (shop.rows("orders"), shop.rows("refunds")) == ([(1, 1)], [(1, 9)])
    seekpoint("reload", "run", target, "--topic", refunds, "--max-deletes", "1", *project.options())
    assert shop.rows("refunds") == [(1, 1)]


@pytest.mark.long
def test_a_topic_is_deleted_and_created_again(
    shop: Shop,
    run_worker: Workers,
    produce: Callable[..., Any],
    shared_broker: SharedBroker,
    protocol: Mapping[str, Any],
) -> None:
    for name in ("orders", "refunds", "carts"):
        shop.table(name)
    orders, refunds = shop.topic("orders"), shop.topic("refunds")
    run = run_worker(shop.pipeline(shop.append()), kafka={**protocol, **SOON}, limits=QUICK)
    run.placed(2)
    shared_broker.admin.delete_topics([refunds])[refunds].result()
    run.seen.wait_for(events.Revoked, lambda event: Partition(refunds, 0) in event.partitions)
    carts = shop.topic("carts")
    produce(carts, values((1, 1)))
    run.reached(carts, 1)
    produce(orders, values((2, 2)))
    run.reached(orders, 1)
    shop.topic("refunds")
    stop = run.seen.wait_for(events.PartitionStopped).error
    assert isinstance(stop, TopicRecreated)
    run.stop()
    assert (shop.rows("carts"), shop.rows("orders")) == ([(1, 1)], [(2, 2)])


@pytest.mark.long
def test_other_tables_for_a_topic_that_is_found_are_refused(
    shop: Shop, run_worker: Workers, produce: Callable[..., Any]
) -> None:
    orders = shop.topic("orders", 2)
    for name in ("orders", "refunds", "other_refunds"):
        shop.table(name)
    run = run_worker(shop.pipeline(shop.append()), kafka=SOON, limits=QUICK)
    run.placed(2)
    other = Append(
        lambda topic: f"{shop.schema}.{'orders' if topic == orders else 'other_refunds'}", columns=["id", "n"]
    )
    second = run_worker(shop.pipeline(other), kafka=SOON, limits=QUICK)
    second.placed()
    refunds = shop.topic("refunds", 4)  # both workers get some, whichever partitions of orders they have
    produce(refunds, values((1, 1)), partition=0)
    produce(refunds, values((2, 2)), partition=1)
    refusals = until(
        lambda: [event for r in (run, second) for event in r.seen.all(events.DeclarationRefused)], "a refusal"
    )
    assert refusals[0].topic == refunds
    until(lambda: len(shop.rows("refunds") + shop.rows("other_refunds")) == 2, "both records")
    assert [] in (shop.rows("refunds"), shop.rows("other_refunds"))


def test_a_pattern_that_matches_nothing_is_refused_at_the_start(shop: Shop, run_worker: Workers) -> None:
    shop.topic("orders_2")
    with pytest.raises(ConfigError, match=r"no topic's name matches Pattern\(.*\) as a whole: create one"):
        run_worker(shop.pipeline(shop.append()))
