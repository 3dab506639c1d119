"""Topics that keep the newest record of each key: enough for an Upsert, and not for a table of every record."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from seekpoint import Upsert
from seekpoint.errors import ConfigError, KafkaUnavailable, ReloadRefused
from seekpoint.jobs.reload import Reload
from seekpoint.jobs.reload.catch_up import CatchUp
from seekpoint.jobs.reload.compare import prepare
from seekpoint.jobs.staging import compaction
from seekpoint.kafka.topic_config import _answer
from support.before_cutover import diffed, reloaded, settled, staged, started
from support.reload_orders import OrdersGroup, doubled, gone, of

FIRST = [of(n % 10, n, n) for n in range(30)]


@pytest.fixture
def new_applied_group(orders_group: OrdersGroup, topic: Callable[..., str]) -> Callable[[str, str], OrdersGroup]:
    """``new_applied_group(kind, policy)``: the records are in the table, from a topic with this policy."""

    def settle(kind: str, policy: str) -> OrdersGroup:
        compacted = replace(orders_group, topic=topic(2, config={"cleanup.policy": policy}))
        settled(compacted, FIRST, kind=kind)
        return compacted

    return settle


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_table_of_every_record_is_not_rebuilt_from_a_compacted_topic(
    new_applied_group: Callable[..., OrdersGroup], policy: str
) -> None:
    orders_group = new_applied_group("append", policy)
    reload = orders_group.reload(pipeline={"kind": "append"})
    for opened in (reload.open, lambda: reload.open(strategy="swap"), reload.verify):
        with pytest.raises(
            ReloadRefused, match=rf"topic '{orders_group.topic}' is compacted .*entries.* may need every record"
        ):
            opened()
    assert reload.runs.list() == []


def test_a_table_of_the_newest_is_rebuilt_from_a_compacted_topic(new_applied_group: Callable[..., OrdersGroup]) -> None:
    """Where it is said that the record's key is the row's; else its older records may be other rows."""
    orders_group = new_applied_group("upsert", "compact")
    message = rf"topic '{orders_group.topic}' is compacted .*orders.* may need every record .*compacted=True"
    for opened in (orders_group.reload().open, orders_group.reload().verify):
        with pytest.raises(ReloadRefused, match=message):
            opened()
    reload = of_compacted(orders_group)
    reload.run(reload.open())
    assert orders_group.rows() == doubled(FIRST)
    assert of_compacted(orders_group).verify().is_empty


def of_compacted(orders_group: OrdersGroup, **options: Any) -> Reload:
    return orders_group.reload(pipeline={"sink": {"compacted": True}}, **options)


def test_tombstones_belong_to_their_keys(orders_group: OrdersGroup, topic: Callable[..., str]) -> None:
    records = [*FIRST, gone(3), gone(99), of(4, 7)]
    orders_group = filled(orders_group, topic, records)
    reload = of_compacted(orders_group)
    reload.run(reload.open())
    assert orders_group.rows() == doubled(records)


def filled(orders_group: OrdersGroup, topic: Callable[..., str], records: list[Any]) -> OrdersGroup:
    """A compacted topic with these records, which are in the table."""
    compacted = replace(orders_group, topic=topic(2, config={"cleanup.policy": "compact"}))
    settled(compacted, records)
    return compacted


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (('{"id": 70}', '{"id": 7, "amount": 1}'), "have different keys .* and one row"),
        (('{"id": 7}', '{"id": 70, "amount": 1}'), "have one key, and different rows"),
    ],
)
def test_a_key_that_is_not_one_rows_is_refused(
    orders_group: OrdersGroup, topic: Callable[..., str], second: tuple[str, str], message: str
) -> None:
    """Two offsets are named, also where the records are staged by different tasks."""
    orders_group = filled(orders_group, topic, [*FIRST, second])
    before = orders_group.rows()
    reload, driver = started(of_compacted(orders_group, range_records=11))
    with pytest.raises(
        ReloadRefused,
        match=rf"records at {orders_group.topic}/0 offset 7 and at {orders_group.topic}/0 offset 30 {message}",
    ):
        reload.run(driver)
    assert orders_group.rows() == before
    assert reload.runs.get(driver.run.id).state == "failed"


def test_a_record_without_a_row_is_refused(orders_group: OrdersGroup, topic: Callable[..., str]) -> None:
    """What it has replaced may have had one, which the live table has still."""

    def row(record: Any) -> dict[str, Any] | None:
        order = record.value
        return None if order.amount == 9 else {"id": order.id, "amount": order.amount, "at": order.at}

    orders_group = filled(orders_group, topic, [*FIRST, of(3, 9)])
    pipeline = orders_group.pipeline(version=2, sink={"compacted": True})
    pipeline.sinks[0].row_of = row  # type: ignore[attr-defined]
    with pytest.raises(ReloadRefused, match=rf"{orders_group.topic}/0 offset 9 makes no row"):
        reloaded(orders_group.reload([pipeline]))


def test_open_dead_letters_and_other_strategies_are_refused(
    orders_group: OrdersGroup, topic: Callable[..., str]
) -> None:
    orders_group = replace(orders_group, topic=topic(2, config={"cleanup.policy": "compact"}))
    orders_group.produce(
        orders_group.topic, [of(1, 1), of(1, 6_000)], partition=0
    )  # the table refuses the newest of the key
    orders_group.work(2, on_poison="dead_letter")
    options: dict[str, Any] = {"pipeline": {"sink": {"compacted": True}, "on_poison": "dead_letter"}}
    with pytest.raises(ReloadRefused, match=r"has 1 open dead letters of it"):
        orders_group.reload(**options).open()
    with pytest.raises(ReloadRefused, match=r"has 1 open dead letters of it"):
        orders_group.reload(**options).verify()
    with pytest.raises(ReloadRefused, match=r"strategy 'swap' compares nothing"):
        orders_group.reload(**options).open(strategy="swap")
    assert orders_group.rows() == doubled([of(1, 1)], by=1)


@pytest.mark.repeats("is_late")
@pytest.mark.parametrize("is_late", [False, True])
def test_rows_whose_records_are_gone_are_not_deleted(
    orders_group: OrdersGroup, topic: Callable[..., str], is_late: bool
) -> None:
    """As after a compaction: the table has rows of records that the log has no more. Verify names them."""
    orders_group = filled(orders_group, topic, FIRST)

    def lost() -> None:
        orders_group.execute("INSERT INTO {schema}.orders (id, amount, at) VALUES (100, 1, 0), (101, 1, 0)")

    reload, driver = started(of_compacted(orders_group))
    if not is_late:
        lost()
        with pytest.raises(
            ReloadRefused, match=r"2 live rows are not in the rebuilt table, and its topic is compacted"
        ):
            reload.run(driver)
    else:
        with diffed(reload, driver=driver) as (_, _, rounds):
            lost()
            with pytest.raises(ReloadRefused, match=r"2 live rows are not in the rebuilt table"):
                reload.cut_over(driver, rounds)
    assert len(orders_group.rows()) == 12
    assert [row for row in orders_group.rows() if row[0] < 100] == doubled(FIRST, by=1)
    assert of_compacted(orders_group).verify().tables[0].extra == 2


def test_a_run_that_is_killed_before_the_refusal_is_refused_when_it_is_resumed(
    orders_group: OrdersGroup, topic: Callable[..., str]
) -> None:
    """The comparison is committed, and the process ends before it reads the result."""
    orders_group = filled(orders_group, topic, FIRST)
    orders_group.execute("INSERT INTO {schema}.orders (id, amount, at) VALUES (100, 1, 0), (101, 1, 0)")
    reload, driver = staged(of_compacted(orders_group))
    with CatchUp(driver, reload.sources, reload.kafka) as rounds:
        reload.catch_up(driver, rounds)
        prepare(driver, rounds)
    again = of_compacted(orders_group)
    with pytest.raises(ReloadRefused, match=r"2 live rows are not in the rebuilt table, and its topic is compacted"):
        again.run(again.take_over(driver.run.id))
    assert len(orders_group.rows()) == 12


def test_a_tombstone_since_the_comparison_deletes_its_row(orders_group: OrdersGroup, topic: Callable[..., str]) -> None:
    orders_group = filled(orders_group, topic, FIRST)
    reload = of_compacted(orders_group)
    with diffed(reload) as (_, driver, rounds):
        settled(orders_group, [gone(3)])
        orders_group.execute(
            "INSERT INTO {schema}.orders (id, amount, at) VALUES (3, 1, 0)"
        )  # by another writer, too late
        reload.cut_over(driver, rounds)
    assert orders_group.rows() == doubled([*FIRST, gone(3)])


def test_what_compacted_takes_is_refused_in_the_declaration() -> None:
    wrongs: list[dict[str, Any]] = [{}, {"rows": lambda _: []}, {"row": lambda _: None, "order_by": "at"}]
    for wrong in wrongs:
        with pytest.raises(ConfigError, match="compacted=True states that each record's key is one row's key"):
            Upsert("orders", key=["id"], compacted=True, **wrong)


def test_a_table_of_every_record_is_rebuilt_from_any_other(
    new_applied_group: Callable[..., OrdersGroup], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused only without the right to ask whether the topic is compacted; the message says so."""
    orders_group = new_applied_group("append", "delete")
    reload = orders_group.reload(pipeline={"kind": "append"})
    with monkeypatch.context() as patch:
        patch.setattr(compaction, "compacted", lambda _, topics: dict.fromkeys(topics))
        with pytest.raises(ReloadRefused, match=r"may not read whether it is compacted.* allow .*DescribeConfigs"):
            reload.open()
    reload.run(reload.open())
    assert orders_group.rows("entries", "topic_offset, id, amount") == [(n, n % 10, 2 * n) for n in range(30)]


@pytest.mark.parametrize(
    ("code", "known"), [(KafkaError.TOPIC_AUTHORIZATION_FAILED, None), (KafkaError.UNKNOWN_TOPIC_OR_PART, False)]
)
def test_what_the_brokers_refuse_is_known(code: int, known: bool | None) -> None:
    asked: Future[Any] = Future()
    asked.set_exception(KafkaException(KafkaError(code)))
    assert _answer("orders", asked) is known


def test_brokers_that_do_not_answer_are_away() -> None:
    asked: Future[Any] = Future()
    asked.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
    with pytest.raises(KafkaUnavailable, match="no answer about the configuration of topic 'orders'"):
        _answer("orders", asked)
