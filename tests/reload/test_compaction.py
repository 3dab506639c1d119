"""Topics that keep the newest record of each key: enough for an Upsert, and not for a table of every record."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from seekpoint.errors import KafkaAway, ReloadRefused
from seekpoint.kafka.policies import _answer
from seekpoint.reload import compaction
from shop import Shop, doubled, of

FIRST = [of(n % 10, n, n) for n in range(30)]


@pytest.fixture
def settled(shop: Shop, topic: Callable[..., str]) -> Callable[[str, str], Shop]:
    """``settled(kind, policy)``: the records are in the table, from a topic with this policy."""

    def settle(kind: str, policy: str) -> Shop:
        made = replace(shop, topic=topic(2, config={"cleanup.policy": policy}))
        made.produce(made.topic, FIRST, partition=0)
        worker = made.worker(kind=kind)
        worker.reached(made.topic, len(FIRST))
        worker.stop()
        return made

    return settle


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_table_of_every_record_is_not_rebuilt_from_a_compacted_topic(
    settled: Callable[..., Shop], policy: str
) -> None:
    shop = settled("append", policy)
    reload = shop.reload(pipeline={"kind": "append"})
    for opened in (reload.open, lambda: reload.open(strategy="swap"), reload.verify):
        with pytest.raises(ReloadRefused, match=rf"topic '{shop.topic}' is compacted .*entries.* write that table by"):
            opened()
    assert reload.runs.list() == []


def test_a_table_of_the_newest_is_rebuilt_from_a_compacted_topic(settled: Callable[..., Shop]) -> None:
    shop = settled("upsert", "compact")
    reload = shop.reload()
    reload.run(reload.open())
    assert shop.rows() == doubled(FIRST)


def test_a_table_of_every_record_is_rebuilt_from_any_other(
    settled: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless nobody may ask: then it is not known, and told so."""
    shop = settled("append", "delete")
    reload = shop.reload(pipeline={"kind": "append"})
    with monkeypatch.context() as patch:
        patch.setattr(compaction, "compacted", lambda _, topics: dict.fromkeys(topics))
        with pytest.raises(ReloadRefused, match=r"whether it is compacted may not be asked.* allow .*DescribeConfigs"):
            reload.open()
    reload.run(reload.open())
    assert shop.rows("entries", "topic_offset, id, amount") == [(n, n % 10, 2 * n) for n in range(30)]


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
    with pytest.raises(KafkaAway, match="no answer about the configuration of topic 'orders'"):
        _answer("orders", asked)
