"""A worker under Prometheus, and the exporter: dead workers, brokers and databases that are away, few rights."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import TopicPartition
from sqlalchemy import text

from seekpoint import Limits
from seekpoint.ledger.roles import Role
from seekpoint.metrics import LedgerGauges, Samples, Tally, catalogue
from seekpoint.metrics.prometheus import serving
from support.command import seekpoint
from support.ledger_roles import LedgerRoles
from support.trouble import put_stop
from support.worker_group import WorkerGroup

OFTEN = Limits(idle_check=0.1, lag_check=0.1, sample_positions=1)
SILENT_RELOAD = (
    "INSERT INTO {schema}.reload_run (id, groups, tables, strategy, pipelines, version_from, version_to, state, "
    "driver_epoch, driver, staging_schema, actor, reason, changed_at) "
    "VALUES (gen_random_uuid(), '{g}', '{t}', 'swap', '{m:p}', '{1}', '{2}', 'opened', 1, 'd', 's', 'a', 'r', "
    "now() - interval '1 hour')"
)
AWAY = "postgresql+psycopg://nobody@127.0.0.1:1/none?connect_timeout=2"


def read(source: Any) -> Samples:
    samples = Samples()
    source.add_to(samples)
    return samples


def gauges(worker_group: WorkerGroup, *, brokers: str | None = None) -> LedgerGauges:
    kafka = None if brokers is None else {"bootstrap.servers": brokers, "log_level": 0}
    return LedgerGauges(worker_group.engine, schema=worker_group.schema, kafka=kafka)


@pytest.fixture
def sampled_topic(worker_group: WorkerGroup) -> str:
    """The topic of a worker that has applied ten records, has written a sample, and has ended."""
    name, _ = worker_group.log(10)
    worker = worker_group.worker(name, limits=OFTEN)
    worker.reached(name, 10)
    worker_group.wait(lambda: [row.lag_records for row in worker_group.sql("SELECT * FROM {schema}.lag")] == [0])
    worker.stop()
    return name


def test_worker_and_ledger_have_the_same_numbers(worker_group: WorkerGroup) -> None:
    name = worker_group.topic(2)
    run = worker_group.worker(name, limits=OFTEN)
    tally = Tally(run.worker)
    for number in range(2):
        worker_group.produce(name, 20, partition=number)
        run.reached(name, 20, number)
    worker_group.wait(lambda: [row.lag_records for row in worker_group.sql("SELECT * FROM {schema}.lag")] == [0, 0])
    worker_group.wait(lambda: list(read(tally).of(catalogue.LAG).values()) == [0, 0])
    mine, its = read(tally), read(gauges(worker_group))
    for metric in (catalogue.NEXT_OFFSET, catalogue.LAG):
        assert mine.of(metric) == its.of(metric), metric.name
    assert mine.of(catalogue.RECORDS) == {(worker_group.group,): 40}
    assert its.of(catalogue.OWNED) == {(worker_group.group, name, str(n)): 1 for n in range(2)}
    assert its.of(catalogue.WORKERS) == {(worker_group.group,): 1}
    assert its.of(catalogue.HEADROOM) == {(worker_group.group, name, str(n)): 20 for n in range(2)}
    for key, time in its.of(catalogue.LAST_COMMIT).items():
        assert mine.of(catalogue.LAST_COMMIT)[key] == pytest.approx(time, abs=2)
    assert its.of(catalogue.LEDGER_UP) == {(): 1}
    assert not its.of(catalogue.KAFKA_UP), "no brokers were named"


def test_with_all_workers_dead_a_small_lag_does_not_look_healthy(worker_group: WorkerGroup, sampled_topic: str) -> None:
    worker_group.sql("UPDATE {schema}.position_sample SET at = at - interval '4 minutes'")
    worker_group.produce(sampled_topic, 7)
    frozen, asked = read(gauges(worker_group)), read(gauges(worker_group, brokers=worker_group.broker))
    labels = (worker_group.group, sampled_topic, "0")
    assert (frozen.of(catalogue.LAG), frozen.of(catalogue.HEADROOM)) == ({}, {})
    assert frozen.of(catalogue.SAMPLE_AGE)[labels] > 239
    assert frozen.of(catalogue.OWNED)[labels] == 0
    assert asked.of(catalogue.LAG) == {labels: 7}, "the brokers know the end"
    assert asked.of(catalogue.HEADROOM) == {labels: 10}
    assert asked.of(catalogue.KAFKA_UP) == {(): 1}


def test_a_killed_worker_has_no_partition(worker_group: WorkerGroup) -> None:
    """It has released nothing: its row says when it was seen last."""
    name, _ = worker_group.log(10)
    process = worker_group.worker_process(name)
    labels = (worker_group.group, name, "0")
    worker_group.wait_for_position(name, 10)
    worker_group.wait(lambda: read(gauges(worker_group)).of(catalogue.OWNED) == {labels: 1})
    process.kill()
    worker_group.sql("UPDATE {schema}.worker SET seen_at = seen_at - interval '1 minute'")
    assert [row.owner is None for row in worker_group.sql("SELECT owner FROM {schema}.lag")] == [False]
    assert read(gauges(worker_group)).of(catalogue.OWNED) == {labels: 0}


def test_with_brokers_lag_and_headroom_in_time_outlive_the_workers(
    worker_group: WorkerGroup, sampled_topic: str
) -> None:
    """Retention has deleted nine of ten records in the two hours since a sample, and the next one came lately."""
    labels = (worker_group.group, sampled_topic, "0")
    worker_group.sql(
        "DELETE FROM {schema}.position_sample WHERE at <> (SELECT max(at) FROM {schema}.position_sample)",
        "UPDATE {schema}.position_sample SET at = now() - interval '2 hours'",
    )
    assert read(gauges(worker_group, brokers=worker_group.broker)).of(catalogue.LAG_SECONDS) == {labels: 0}, (
        "nothing waits"
    )
    worker_group.produce(sampled_topic, 10)
    worker_group.admin.delete_records([TopicPartition(sampled_topic, 0, 9)])[TopicPartition(sampled_topic, 0)].result(
        20
    )
    samples = read(gauges(worker_group, brokers=worker_group.broker))
    assert samples.of(catalogue.SAMPLE_AGE)[labels] > 7199
    assert (samples.of(catalogue.LAG), samples.of(catalogue.HEADROOM)) == ({labels: 10}, {labels: 1})
    assert samples.of(catalogue.LAG_SECONDS)[labels] == pytest.approx(7200, abs=60), "it came after the sample"
    assert samples.of(catalogue.HEADROOM_SECONDS)[labels] == pytest.approx(7200 / 9, abs=10)
    without = read(gauges(worker_group))
    assert (without.of(catalogue.LAG_SECONDS), without.of(catalogue.HEADROOM_SECONDS)) == ({}, {})


def test_with_brokers_lag_in_time_is_interpolated_up_to_now(worker_group: WorkerGroup, sampled_topic: str) -> None:
    """Of the 20 records since the sample of an hour ago, the position has passed half."""
    labels = (worker_group.group, sampled_topic, "0")
    worker_group.produce(sampled_topic, 10)
    worker_group.sql(
        "DELETE FROM {schema}.position_sample WHERE at <> (SELECT max(at) FROM {schema}.position_sample)",
        "UPDATE {schema}.position_sample SET at = now() - interval '1 hour', log_end = 0, next_offset = 0",
    )
    samples = read(gauges(worker_group, brokers=worker_group.broker))
    assert samples.of(catalogue.LAG_SECONDS)[labels] == pytest.approx(1800, abs=30)
    worker_group.admin.delete_records([TopicPartition(sampled_topic, 0, 12)])[TopicPartition(sampled_topic, 0)].result(
        20
    )
    lost = read(gauges(worker_group, brokers=worker_group.broker))
    assert (lost.of(catalogue.HEADROOM)[labels], lost.of(catalogue.HEADROOM_SECONDS)[labels]) == (-2, 0)


def test_a_topic_that_was_created_again_has_no_lag(worker_group: WorkerGroup, sampled_topic: str) -> None:
    worker_group.sql(f"UPDATE {{schema}}.partition_offset SET topic_id = '{uuid4()}'")
    assert read(gauges(worker_group, brokers=worker_group.broker)).of(catalogue.LAG) == {}
    assert sampled_topic


@pytest.mark.long
def test_brokers_that_are_away_leave_the_samples(
    worker_group: WorkerGroup, sampled_topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    source = gauges(worker_group, brokers="127.0.0.1:1")
    for _ in range(2):
        samples = read(source)
        assert samples.of(catalogue.LAG) == {(worker_group.group, sampled_topic, "0"): 0}
        assert (samples.of(catalogue.KAFKA_UP), samples.of(catalogue.LEDGER_UP)) == ({(): 0}, {(): 1})
    assert [r.name for r in caplog.records if "the brokers do not answer" in r.getMessage()] == ["seekpoint.metrics"]


@pytest.mark.long
def test_brokers_are_asked_before_a_group_has_positions(worker_group: WorkerGroup) -> None:
    for brokers, up in ((worker_group.broker, 1), ("127.0.0.1:1", 0)):
        assert read(gauges(worker_group, brokers=brokers)).of(catalogue.KAFKA_UP) == {(): up}


def test_stops_dead_letters_pauses_and_silent_drivers_are_seen(worker_group: WorkerGroup, sampled_topic: str) -> None:
    worker_group.sql(
        put_stop("{schema}", "PoisonStop", "10"),
        "UPDATE {schema}.consumer_group SET paused = true",
        SILENT_RELOAD,
    )
    samples, labels = read(gauges(worker_group)), (worker_group.group, sampled_topic, "0")
    assert samples.of(catalogue.STOPPED) == {(*labels, "PoisonStop"): 1}
    assert samples.of(catalogue.LAG) == {labels: 0}, "a stopped partition keeps its lag"
    assert samples.of(catalogue.PAUSED) == {(worker_group.group,): 1}
    assert samples.of(catalogue.DEAD_LETTERS_OPEN) == {labels: 0}
    ((key, silent),) = samples.of(catalogue.RELOAD_SILENT).items()
    assert key[1] == "opened"
    assert 3600 <= silent < 3700


@pytest.fixture
def reader_url(worker_group: WorkerGroup) -> Iterator[str]:
    """The URL of a login that has the reader's role and no other, as the exporter has it."""
    roles = LedgerRoles(worker_group.engine.url, worker_group.schema, owner=worker_group.engine.url.username)
    roles.script()
    yield roles.login(Role.READER).render_as_string(hide_password=False)
    roles.drop()


def test_the_exporter_runs_with_the_rights_of_a_reader(
    worker_group: WorkerGroup, sampled_topic: str, reader_url: str
) -> None:
    """With brokers, and an open reload: what it asks beside the views, too."""
    worker_group.sql(SILENT_RELOAD)
    where = [
        "--database-url",
        reader_url,
        "--schema",
        worker_group.schema,
        "--kafka",
        f"bootstrap.servers={worker_group.broker}",
    ]
    samples = json.loads(seekpoint("exporter", "--once", "--json", *where).stdout)
    labels = {"group": worker_group.group, "topic": sampled_topic, "partition": "0"}
    assert {"name": "lag_records", "labels": labels, "value": 0} in samples
    assert {sample["name"]: sample["value"] for sample in samples}.items() >= {"ledger_up": 1, "kafka_up": 1}.items()
    assert [sample["labels"]["state"] for sample in samples if sample["name"] == catalogue.RELOAD_SILENT.name] == [
        "opened"
    ]


def test_a_database_that_is_away_is_a_metric(caplog: pytest.LogCaptureFixture) -> None:
    source = LedgerGauges(AWAY)
    for _ in range(2):
        samples = read(source)
        assert samples.of(catalogue.LEDGER_UP) == {(): 0}
        assert not any(samples.of(metric) for metric in catalogue.CATALOGUE if metric is not catalogue.LEDGER_UP)
    assert source.error is not None
    assert len([line for line in caplog.records if "the ledger cannot be read" in line.getMessage()]) == 1


def test_a_locked_ledger_ends_a_scrape_soon(worker_group: WorkerGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two scrapes, one waits for the server and the other for the first one, both for a limited time."""
    monkeypatch.setattr("seekpoint.metrics.ledger.TIMEOUT", 1.0)
    source = gauges(worker_group)
    with worker_group.engine.connect() as other, ThreadPoolExecutor(2) as scrapes:
        other.execute(text(f'LOCK TABLE "{worker_group.schema}".partition_offset IN ACCESS EXCLUSIVE MODE'))
        readings = [reading.result(30) for reading in [scrapes.submit(read, source) for _ in range(2)]]
    assert [reading.of(catalogue.LEDGER_UP) for reading in readings] == [{(): 0}] * 2
    assert "timeout" in str(source.error)
    assert read(source).of(catalogue.LEDGER_UP) == {(): 1}, "the next one finds it again"
    assert source.error is None


def test_without_the_extra_the_exporter_names_it(worker_group: WorkerGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [module for module in sys.modules if module.split(".")[0] == "prometheus_client"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "seekpoint.metrics.prometheus")
    stderr = seekpoint("exporter", *worker_group.database_options, "--once", exits=2).stderr
    assert "seekpoint[prometheus]" in stderr


def test_a_worker_is_scraped_by_http(worker_group: WorkerGroup) -> None:
    name = worker_group.topic()
    run = worker_group.worker(name, limits=OFTEN)
    with serving("127.0.0.1", 0, Tally(run.worker)) as port:
        worker_group.produce(name, 10)
        run.reached(name, 10)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            shown = answer.read().decode()
    assert f'seekpoint_records_total{{group="{worker_group.group}"}} 10.0' in shown
    assert f'seekpoint_live{{group="{worker_group.group}"}} 1.0' in shown


def test_the_exporter_answers_until_sigterm(worker_group: WorkerGroup, sampled_topic: str) -> None:
    words = [
        "exporter",
        *worker_group.server_options,
        "--listen",
        "127.0.0.1:0",
    ]
    command = [sys.executable, "-m", "seekpoint.cli.main", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        url = process.stderr.readline().strip()
        with urllib.request.urlopen(url, timeout=30) as answer:
            shown = answer.read().decode()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert f'seekpoint_lag_records{{group="{worker_group.group}",partition="0",topic="{sampled_topic}"}} 0.0' in shown
    assert "seekpoint_kafka_up 1.0" in shown


def test_the_exporter_prints_its_metrics_once(worker_group: WorkerGroup, sampled_topic: str) -> None:
    shown = seekpoint("exporter", "--once", *worker_group.database_options).stdout
    assert f'seekpoint_next_offset{{group="{worker_group.group}",partition="0",topic="{sampled_topic}"}} 10.0' in shown
    combined = json.loads(
        seekpoint("exporter", "--once", "--json", "--no-per-partition", *worker_group.database_options).stdout
    )
    labels = {"group": worker_group.group, "topic": "", "partition": ""}
    assert {"name": "next_offset", "labels": labels, "value": 10} in combined
    assert {"name": "ledger_up", "labels": {}, "value": 1} in combined


def test_what_is_wrong_is_said_in_a_sentence(worker_group: WorkerGroup) -> None:
    assert (
        "takes host:port" in seekpoint("exporter", *worker_group.database_options, "--listen", "9807", exits=2).stderr
    )
    assert "--once" in seekpoint("exporter", *worker_group.database_options, "--json", exits=2).stderr
    away = seekpoint("exporter", "--database-url", AWAY.replace("+psycopg", ""), "--once", exits=3)
    assert "seekpoint_ledger_up 0.0" in away.stdout
    with serving("127.0.0.1", 0) as port:
        taken = seekpoint("exporter", *worker_group.database_options, "--listen", f"127.0.0.1:{port}", exits=2).stderr
    assert "in use" in taken


def test_no_metric_has_what_only_the_ledger_knows_of_keys_and_errors() -> None:
    labels = {name for metric in catalogue.CATALOGUE for name in metric.labels}
    assert labels == {
        "group", "topic", "partition", "cause", "outcome", "state", "server", "version", "library", "run", "table",
    }  # fmt: skip
