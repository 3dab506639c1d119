"""``explain GROUP``: the guarantee of what runs, in words, from what its workers have stored."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, text
from typer.testing import CliRunner

from seekpoint import Accumulate, Append, Batch, Json, OnPoison, Pipeline, Upsert
from seekpoint.admin import Admin
from seekpoint.cli.app import app
from seekpoint.errors import ConfigError
from seekpoint.ledger.status import StatusTables, WorkerProcess
from seekpoint.pipeline.declared import declared
from support.ledger_worker import LedgerWorker
from support.trouble import put_stop

NewLedgerWorker = Callable[..., LedgerWorker]
PROCESS = WorkerProcess("host-1", 4711, "orders-1", "0.1.0")


def post(tx: Connection, batch: Batch[Any, Any]) -> None:
    """A handler that is never called."""


def admin_of(worker: LedgerWorker) -> Admin:
    return Admin(worker.ledger.engine, schema=worker.ledger.schema)


def declare(worker: LedgerWorker, pipeline: Pipeline, **settings: bool) -> None:
    StatusTables(worker.ledger, PROCESS).declare(declared(pipeline, **settings))


def test_what_holds_and_what_weakens_it(new_worker: NewLedgerWorker) -> None:
    worker = new_worker(positions={0: 5})
    topic = worker.topic_partition(0).topic
    sinks: list[Any] = [
        Append("items", columns=["id"]),
        Upsert("totals", key=["id"], columns=["id"], offset_column="o"),
    ]
    declare(
        worker,
        Pipeline(worker.ledger.group, topics=topic, value=Json(), sinks=sinks, on_poison=OnPoison.SKIP),
        synchronous_commit=False,
    )  # fmt: skip
    (explained,) = admin_of(worker).explain(worker.ledger.group).topics
    assert explained.topic == topic
    assert "committed in one Postgres transaction" in explained.guarantee[0]
    assert "Append writes a record's rows to items" in explained.guarantee
    assert (
        "Upsert keeps one row for each id in totals: an older record never replaces a newer row" in explained.guarantee
    )
    assert [line.split(":")[0] for line in explained.weakens] == [
        "a record that cannot be applied is skipped, and its value is not kept",
        "a crash of Postgres takes back the last commits, rows and offsets together",
        "records that are read again after a backward reset are written twice",
    ]


def test_sums_are_explained_with_what_they_refuse(new_worker: NewLedgerWorker) -> None:
    worker = new_worker(positions={0: 5})
    sinks = [Accumulate("daily_sales", key=["day", "shop"], add=["cents"])]
    declare(worker, Pipeline(worker.ledger.group, topics=worker.topic_partition(0).topic, value=Json(), sinks=sinks))
    (explained,) = admin_of(worker).explain(worker.ledger.group).topics
    added = "Accumulate adds each record to the row of its day, shop in daily_sales: the order does not matter"
    assert added in explained.guarantee
    assert "a backward reset is refused, because sums would count records twice: daily_sales" in explained.weakens


@pytest.mark.parametrize("policy", list(OnPoison))
def test_each_policy_is_said_in_words(new_worker: NewLedgerWorker, policy: OnPoison) -> None:
    worker = new_worker(positions={0: 5})
    pipeline = Pipeline(
        worker.ledger.group, topics=worker.topic_partition(0).topic, value=Json(), handle=post, on_poison=policy
    )
    declare(worker, pipeline)
    (explained,) = admin_of(worker).explain(worker.ledger.group).topics
    assert any(".post is called" in line for line in explained.guarantee)
    (line,) = [promise for promise in explained.guarantee if promise.startswith("a record that cannot be applied")]
    assert not line.endswith(policy.value)
    assert any("outside its transaction may happen more than once" in line for line in explained.weakens)


def test_a_group_without_a_declaration_and_one_that_is_unknown(new_worker: NewLedgerWorker) -> None:
    worker = new_worker(positions={0: 5})
    (explained,) = admin_of(worker).explain(worker.ledger.group).topics
    assert (explained.guarantee, explained.declared) == ((), None)
    assert "is not known" in explained.weakens[0]
    with pytest.raises(ConfigError, match="has no group 'none'"):
        admin_of(worker).explain("none")


def test_a_declaration_of_an_earlier_version_and_a_stop(new_worker: NewLedgerWorker) -> None:
    worker = new_worker(positions={0: 5})
    declare(worker, Pipeline(worker.ledger.group, topics=worker.topic_partition(0).topic, value=Json(), handle=post))
    with worker.ledger.engine.begin() as tx:
        tx.execute(text(f'UPDATE "{worker.ledger.schema}".consumer_group SET version = 2'))
        tx.execute(text(put_stop(f'"{worker.ledger.schema}"', "OffsetLost", "5")))
    (explained,) = admin_of(worker).explain(worker.ledger.group).topics
    assert explained.weakens[-2:] == (
        "declared by version 1, but the group is at 2: it may be outdated",
        "partition 0 is stopped: OffsetLost",
    )


def test_the_command(new_worker: NewLedgerWorker, seekpoint_dsn: str) -> None:
    worker = new_worker(positions={0: 5})
    declare(worker, Pipeline(worker.ledger.group, topics=worker.topic_partition(0).topic, value=Json(), handle=post))
    words = ["explain", worker.ledger.group, "--database-url", seekpoint_dsn, "--schema", worker.ledger.schema]
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, done.stdout.splitlines()[0]) == (0, f"{worker.ledger.group}, version 1")
    assert "  but:\n  - effects of the handler outside" in done.stdout
    report = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert report["topics"][0]["declared"]["handler"].endswith(".post")
    assert CliRunner().invoke(app, [*words[:1], "none", *words[2:]]).exit_code == 2
    unnamed = CliRunner().invoke(app, ["explain", "shop"], env={"SEEKPOINT_DATABASE_URL": None})
    assert "give --database-url" in unnamed.stderr
