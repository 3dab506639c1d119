"""``seekpoint dev --demo``: a load, workers and the console on the pair of throwaway servers."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from decimal import Decimal
from math import sin
from time import monotonic
from typing import Any

import msgspec
from confluent_kafka import Producer
from sqlalchemy import create_engine, text

from seekpoint import Append, Json, Limits, Pipeline, Upsert, Worker
from seekpoint.admin import Admin
from seekpoint.schema import upgrade
from seekpoint.testing.servers.pair import Pair
from seekpoint.testing.servers.topics import create_topic
from seekpoint.web.serving import serving

TABLES = """
    CREATE TABLE orders (id bigint PRIMARY KEY, customer text, amount numeric);
    CREATE TABLE shipments (id bigint, customer text, amount numeric);
    CREATE TABLE payments (id bigint, cents integer CHECK (cents >= 0))
"""
RATE = 400  # most records a second
LATER = timedelta(seconds=20)  # seconds from an order to its shipment, so that lag rises and falls visibly


class Order(msgspec.Struct):
    """A value of the topic of orders."""

    id: int
    customer: str
    amount: Decimal


class Payment(msgspec.Struct):
    """A value of the topic of payments, of which the table's CHECK refuses one in 250."""

    id: int
    cents: int


@contextmanager
def running_demo(pair: Pair, port: int = 8484) -> Iterator[str]:
    """Run the load, four workers and the console within the block; yields the console's address.

    If the port is taken, the console gets another one.
    """
    url, kafka = pair.postgres.url, {"bootstrap.servers": pair.kafka.bootstrap}
    engine = create_engine(url)
    upgrade(engine)
    with engine.begin() as tx:
        tx.execute(text(TABLES))
    for topic, partitions in (("orders", 4), ("payments", 2)):
        create_topic(kafka, topic, partitions)
    limits = Limits(lag_check=2.0, sample_positions=5.0)
    orders = Pipeline("orders", topics="orders", value=Json(Order), sinks=[Upsert("orders", key=["id"])])
    shipping = Pipeline("shipping", topics="orders", value=Json(Order), sinks=[Append("shipments")], delay=LATER)
    payments = Pipeline(
        "payments", topics="payments", value=Json(Payment), sinks=[Append("payments")], on_poison="dead_letter"
    )
    with ExitStack() as running:
        for pipeline in (orders, orders, shipping, payments):
            running.enter_context(Worker(pipeline, engine=url, kafka=kafka, limits=limits).running())
        running.enter_context(_load(pair.kafka.bootstrap))
        console = serving(Admin(url, kafka), "127.0.0.1", _free(port), allow_actions=True, payloads="full")
        yield running.enter_context(console)


def _free(port: int) -> int:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return 0
    return port


@contextmanager
def _load(bootstrap: str) -> Iterator[None]:
    """Produce on a thread, in waves, until the block ends."""
    stopping = threading.Event()
    thread = threading.Thread(target=_produce, args=(bootstrap, stopping), name="seekpoint-demo-load")
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def _produce(bootstrap: str, stopping: threading.Event) -> None:
    producer, drawn = Producer({"bootstrap.servers": bootstrap}), random.Random(7)  # noqa: S311
    encode = msgspec.json.Encoder(decimal_format="number").encode
    began, number = monotonic(), 0
    while not stopping.wait(0.1):
        for _ in range(int(RATE / 20 * (1 + sin((monotonic() - began) / 10)))):
            number += 1
            value: Any = Order(
                number % 50_000, f"customer {drawn.randrange(500)}", Decimal(drawn.randrange(10_000)).scaleb(-2)
            )
            producer.produce("orders", encode(value), str(value.id).encode())
            if number % 4 == 0:
                cents = drawn.randrange(10_000) if number % 1_000 else -1
                producer.produce("payments", encode(Payment(number, cents)), str(number).encode())
        producer.poll(0)
    producer.flush(10)
