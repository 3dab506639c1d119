"""The error tree as it is drawn, what errors say, and that none of them says a password."""

from __future__ import annotations

import logging
import re
import threading
import traceback
from functools import partial
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, make_url
from sqlalchemy.exc import DBAPIError, InternalError

from seekpoint import Pipeline, Text, Worker, errors, events
from seekpoint.errors import (
    ConfigError,
    Fenced,
    GroupPaused,
    KafkaUnavailable,
    PartitionStopped,
    Poison,
    SeekpointError,
)
from seekpoint.kafka.config import consumer_config, make_consumer
from seekpoint.kafka.identity import Identity
from seekpoint.ledger import GroupLedger
from seekpoint.pipeline.policy import Limits
from seekpoint.postgres.sqlstates import connection_lost, is_transient, sqlstate
from seekpoint.records import Cause, Failure, Partition
from seekpoint.testing import record
from support.public_kinds import ERRORS

DRAWN = re.compile(r"^    ([│ ]*(?:├── |└── )?)(\w+)(?: {2,}\S.*)?$", re.MULTILINE)


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    path: list[str] = []
    drawn: dict[str, str | None] = {}
    for indent, name in DRAWN.findall(errors.__doc__ or ""):
        depth = len(indent) // 4
        path[depth:] = [name]
        drawn[name] = path[depth - 1] if depth else None
    real = {kind.__name__: None if (base := kind.__bases__[0]) is Exception else base.__name__ for kind in ERRORS}
    assert drawn == real


def test_a_stop_names_partition_offset_and_choices() -> None:
    stop = errors.OffsetLost(Partition("orders", 3), 41, "it cannot be applied", choices=["mend it", "skip it"])
    assert (
        str(stop) == "orders/3 stopped at offset 41: it cannot be applied [SP1201]\nChoices:\n  - mend it\n  - skip it"
    )
    assert (stop.partition, stop.offset, stop.choices) == (("orders", 3), 41, ("mend it", "skip it"))
    assert str(PartitionStopped(Partition("a", 0), 1, "why")) == "a/0 stopped at offset 1: why [SP1200]"


def test_fenced_keeps_the_databases_sentence() -> None:
    fenced = Fenced("the claim is another's")
    assert (fenced.reason, str(fenced)) == ("the claim is another's", "the claim is another's [SP1101]")


def test_a_pause_says_who_and_why() -> None:
    message = str(GroupPaused("g", "migration", "ann"))
    assert message.startswith("group 'g' is paused by ann: migration; resume it: seekpoint groups resume g --apply")
    assert "paused by unknown: no reason given" in str(GroupPaused("g", None, None))


def test_poison_names_its_records_and_is_no_error_of_ours() -> None:
    first, two = record(1), record(2, offset=1)
    poison = Poison("negative amount", first, two)
    assert (poison.reason, poison.records, str(poison)) == ("negative amount", (first, two), "negative amount")
    assert not isinstance(poison, SeekpointError)


# -- passwords ----------------------------------------------------------------------------------------------

CANARY = "c4n4ry-Sup3rSecret"
PORT = 1  # no server listens; the same for all of pytest-xdist's workers, which compare the tests' names
URLS = [
    f"postgresql+psycopg://ann:{CANARY}@127.0.0.1:{PORT}/shop",
    f"postgresql://ann:{CANARY}@127.0.0.1:{PORT}/shop",
    f"postgresql+psycopg://127.0.0.1:{PORT}/shop?user=ann&password={CANARY}&sslpassword={CANARY}",
]
REFUSED_URLS = [
    f"mysql://ann:{CANARY}@127.0.0.1/shop",
    f"postgresql+asyncpg://ann:{CANARY}@127.0.0.1/shop",
    f"postgresql+psycopg2://127.0.0.1/shop?password={CANARY}",
    f"postgresql//ann:{CANARY}@127.0.0.1/shop",
    f"postgresql://ann:{CANARY}@127.0.0.1:port/shop",
    f"postgresql://ann:{CANARY}/@127.0.0.1:5432:5433/shop",
    f"{CANARY}",
]
KAFKA = {
    "bootstrap.servers": f"127.0.0.1:{PORT}",
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "ann",
    "sasl.password": CANARY,
    "ssl.key.password": CANARY,
}
PIPELINE = Pipeline("g", topics="orders", value=Text(), handle=lambda tx, batch: None)


def everything(error: BaseException) -> str:
    """The error as a log would have it, with all that it stems from."""
    return "".join([*traceback.format_exception(error), repr(error), str(error), *map(repr, error.args)])


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("parsed", [False, True])
def test_no_password_in_what_is_shown(url: str, parsed: bool) -> None:
    engine = make_url(url) if parsed else url
    worker = Worker(PIPELINE, engine=engine, kafka=KAFKA)
    ledger = GroupLedger(engine, "g")
    assert f":{PORT}/shop" in repr(worker)
    for shown in (worker, ledger, worker.running(), worker.health(), PIPELINE):
        assert CANARY not in repr(shown) + str(shown)


@pytest.mark.parametrize("url", REFUSED_URLS)
def test_no_password_in_a_url_that_is_refused(url: str) -> None:
    for make in (lambda: Worker(PIPELINE, engine=url, kafka=KAFKA), lambda: GroupLedger(url, "g")):
        with pytest.raises(ConfigError, match=r"postgresql(\+psycopg)?://user:password@host") as caught:
            make()
        assert CANARY not in everything(caught.value)


def test_no_password_in_an_engine_that_is_refused() -> None:
    engine = create_engine(URLS[2], isolation_level="AUTOCOMMIT", execution_options={"isolation_level": "AUTOCOMMIT"})
    with pytest.raises(ConfigError, match="AUTOCOMMIT") as caught:
        GroupLedger(engine, "g")
    assert CANARY not in everything(caught.value)


@pytest.mark.parametrize(
    "config",
    [
        {"group.id": "other"},
        {"enable.auto.commit": True},
        {"on_commit": print},
        {"sasl.pasword": CANARY},
        {"sasl.mechanism": "NONE-SUCH"},
        {"session.timeout.ms": "soon"},
        {"security.protocol": "SASL_SSL", "ssl.key.location": "/none", "ssl.certificate.location": "/none"},
    ],
)
def test_no_password_in_a_kafka_configuration_that_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        make_consumer(consumer_config({**KAFKA, **config}, group="g")).close()
    assert CANARY not in everything(caught.value)


@pytest.mark.parametrize("url", URLS)
def test_no_password_when_the_database_is_away(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    worker = Worker(PIPELINE, engine=url, kafka=KAFKA, limits=Limits(start_wait=0.01))
    with pytest.raises(DBAPIError) as caught, worker.running():
        raise AssertionError("it cannot have started")
    assert "127.0.0.1" in str(caught.value)
    assert "Stopped" in caplog.text
    assert CANARY not in everything(caught.value) + caplog.text + repr(worker.health())


def test_no_password_when_the_brokers_are_away(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    reported = threading.Event()
    consumer = make_consumer(consumer_config(KAFKA, group="g"), error_cb=lambda error: reported.set())
    try:
        with pytest.raises(KafkaUnavailable) as caught:
            Identity(consumer_config(KAFKA, group="g"), 0.5).cluster_id()
        for _ in range(50):
            consumer.poll(0.1)
            if reported.is_set():
                break
        assert reported.is_set()
    finally:
        consumer.close()
    assert f"127.0.0.1:{PORT}" in str(caught.value)
    assert CANARY not in everything(caught.value) + caplog.text


def test_an_async_on_error_is_refused() -> None:
    """It would be accepted, and never ring."""

    async def page(error: BaseException) -> None:
        """Never awaited."""

    class Pager:
        async def __call__(self, error: BaseException) -> None:
            """Never awaited."""

    worker = Worker(PIPELINE, engine=URLS[2], kafka=KAFKA)
    for on_error in (page, Pager(), partial(page)):
        with pytest.raises(ConfigError, match="is an async function, and the worker's thread would never await it"):
            worker.running(on_error=on_error)


class PropertyError(Exception):
    @property
    def orig(self) -> str:
        raise ValueError("no cause yet")

    @property
    def sqlstate(self) -> str:
        raise ValueError("no code yet")


def test_an_exception_whose_properties_raise_is_one_records_error() -> None:
    error = PropertyError("the service is away")
    assert Failure.of(error, Cause.HANDLER).error == "PropertyError: the service is away"
    assert sqlstate(error) is None
    assert not is_transient(error)
    assert "the service is away" in str(events.DatabaseTrouble(error=error).as_fields())


@pytest.mark.parametrize("has_ended", [True, False])
def test_an_answer_after_which_the_server_ends_the_session_may_be_asked_for_again(has_ended: bool) -> None:
    """psycopg reports two results, without an SQLSTATE, and SQLAlchemy that the session is gone."""
    reported = psycopg.InternalError("received 2 results from command 'COMMIT'")
    error = InternalError("COMMIT", {}, reported, connection_invalidated=has_ended)
    assert is_transient(error) is connection_lost(error) is has_ended
