"""The options of Spark's source: names and meanings of Spark's Kafka source; wrong ones are refused."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime

import pytest

from seekpoint.errors import ConfigError
from seekpoint.jobs.spark.settings import Env, portable, resolved
from seekpoint.jobs.spark.source_options import Bound, ledger_options, source_options, table_of
from seekpoint.records import Partition
from support.every_row import for_each

BROKERS = {"kafka.bootstrap.servers": "broker:9092"}
ORDERS = {**BROKERS, "subscribe": "orders"}
GROUP = {**BROKERS, "group": "shop"}
FIRST, SECOND = Partition("orders", 0), Partition("orders", 1)


def test_without_a_group_the_defaults_are_those_of_sparks_kafka_source() -> None:
    options = source_options(ORDERS)
    assert (options.topics, options.assigned, options.group) == (("orders",), None, None)
    assert (options.start.kind, options.end.kind) == ("earliest", "latest")
    assert (options.headers, options.dead_letters, options.late_starts_at_end) == (False, "include", False)
    assert (options.min_partitions, options.max_records, options.decode) == (None, None, None)


def test_with_a_group_the_defaults_are_what_it_has_applied() -> None:
    options = source_options(GROUP)
    assert (options.topics, options.assigned, options.group) == (None, None, "shop")
    assert (options.start.kind, options.end.kind, options.dead_letters) == ("applied", "ledger", "exclude")
    assert (options.database, options.schema) == (Env("SEEKPOINT_DATABASE_URL"), "seekpoint")


def test_names_of_options_may_be_in_any_case() -> None:
    options = source_options({"KAFKA.bootstrap.servers": "b:1", "SUBSCRIBE": "a, b", "MinPartitions": "7"})
    assert (options.topics, options.min_partitions) == (("a", "b"), 7)


BOUNDS = [
    ({"startingOffsets": "earliest"}, "start", Bound("startingOffsets", "earliest")),
    ({"endingOffsets": "latest"}, "end", Bound("endingOffsets", "latest")),
    (
        {"startingOffsets": '{"orders":{"0":5,"1":-2}}'},
        "start",
        Bound("startingOffsets", "offsets", by_partition={FIRST: 5, SECOND: -2}),
    ),
    ({"endingOffsets": '{"orders":{"0":-1}}'}, "end", Bound("endingOffsets", "offsets", by_partition={FIRST: -1})),
    ({"startingTimestamp": "1000"}, "start", Bound("startingTimestamp", "time", time=1000)),
    ({"endingTimestamp": "1000"}, "end", Bound("endingTimestamp", "time", time=1000)),
    (
        {"startingOffsetsByTimestamp": '{"orders":{"0":1000}}'},
        "start",
        Bound("startingOffsetsByTimestamp", "times", by_partition={FIRST: 1000}),
    ),
    ({"group": "shop", "startingOffsets": "ledger"}, "start", Bound("startingOffsets", "ledger")),
    (
        {"group": "shop", "endingOffsets": "ledger@2026-11-01T00:00Z"},
        "end",
        Bound("endingOffsets", "ledger", moment=datetime(2026, 11, 1, tzinfo=UTC)),
    ),
]


@for_each(BOUNDS, lambda row: row[0])
def test_bounds(row: tuple[dict[str, str], str, Bound]) -> None:
    options, side, bound = row
    assert getattr(source_options({**ORDERS, **options}), side) == bound


REFUSED = [
    ({**BROKERS}, "no topics are given: give subscribe=orders, assign={"),
    ({"subscribe": "orders"}, "kafka.bootstrap.servers is missing"),
    ({**ORDERS, "assign": '{"orders":[0]}'}, "give subscribe or assign, not both"),
    ({**BROKERS, "subscribe": "orders,"}, "has an empty name"),
    ({**BROKERS, "assign": '{"orders":["0"]}'}, "assign: 'orders' has [\"0\"]: list its partitions, [0, 1], or leave"),
    ({**BROKERS, "assign": '{"orders":[0],"payments":[]}'}, "assign: 'payments' has []: list its partitions"),
    ({**BROKERS, "assign": '{"orders":[0],"orders":[1]}'}, "assign: 'orders' is named twice"),
    ({**BROKERS, "assign": '{"orders":[0,1,0]}'}, "assign: a partition of 'orders' is named twice"),
    ({**BROKERS, "assign": '{"orders":{"0":1}}'}, "assign: 'orders' has"),
    ({**BROKERS, "assign": "orders"}, "assign: it is not JSON"),
    ({**BROKERS, "assign": "{}"}, 'assign names no partition: write {"orders":[0,1]}'),
    ({**BROKERS, "subscribePattern": "o.*"}, "subscribePattern has no counterpart here"),
    ({**ORDERS, "startingOffset": "earliest"}, "there is no option startingOffset: did you mean startingOffsets?"),
    ({**ORDERS, "kafka.group.id": "g"}, "kafka.group.id cannot be set here: omit it (no group is joined"),
    ({**ORDERS, "kafka.enable.auto.commit": "false"}, "kafka.enable.auto.commit cannot be set here"),
    ({**ORDERS, "kafka.auto.offset.reset": "earliest"}, "kafka.auto.offset.reset cannot be set here"),
    ({**ORDERS, "kafka.sasl.jaas.config": "x"}, "kafka.sasl.jaas.config is for the Java client"),
    ({**ORDERS, "kafka.sasl.password": "hunter2"}, "kafka.sasl.password would be in the plan"),
    ({**ORDERS, "kafka.ssl.key.pem": "hunter2"}, "kafka.ssl.key.pem would be in the plan"),
    ({**ORDERS, "kafka.client.id": "https://u:hunter2@h"}, "kafka.client.id would be in the plan"),
    (
        {**ORDERS, "kafka.sasl.oauthbearer.token.endpoint.url": "https://h/?client_secret=hunter2"},
        "kafka.sasl.oauthbearer.token.endpoint.url would be in the plan",
    ),
    ({**ORDERS, "kafka.sasl.kerberos.kinit.cmd": "echo hunter2 | kinit"}, "kinit.cmd would be in the plan"),
    ({**ORDERS, "plan": "{}"}, "there is no option plan"),
    ({**GROUP, "database": "postgresql://u:hunter2@h/db"}, "database must be the name of an environment variable"),
    ({**ORDERS, "database": "URL"}, "database needs a group of the ledger: give group, too"),
    ({**ORDERS, "deadLetters": "exclude"}, "deadLetters needs a group of the ledger"),
    ({**ORDERS, "startingOffsets": "ledger"}, "startingOffsets=ledger needs a group of the ledger"),
    ({**GROUP, "deadLetters": "no"}, "deadLetters must be one of exclude, include, mark, only, got 'no'"),
    ({**ORDERS, "failOnDataLoss": "false"}, "failOnDataLoss=false would silently skip"),
    ({**ORDERS, "startingOffsets": "latest"}, "a batch does not begin at the end of a log"),
    ({**ORDERS, "endingOffsets": "earliest"}, "a batch does not end at the start of a log"),
    (
        {**ORDERS, "startingOffsets": '{"orders":{"0":-1}}'},
        "startingOffsets has -1 for orders/0: a batch does not begin",
    ),
    ({**ORDERS, "endingOffsets": '{"orders":{"0":-2}}'}, "endingOffsets has -2 for orders/0: a batch does not end"),
    ({**ORDERS, "startingOffsets": "first"}, "startingOffsets takes earliest, ledger, ledger@2026-11-01T00:00Z, or"),
    ({**GROUP, "startingOffsets": "ledger@"}, "startingOffsets takes earliest, ledger"),
    ({**GROUP, "startingOffsets": "ledger@2026-11-01"}, "say in which zone, e.g. ledger@2026-11-01T00:00Z"),
    ({**GROUP, "endingOffsets": "ledger@9000-01-01T00:00Z"}, "is in the future: write ledger for the present position"),
    ({**GROUP, "endingOffsets": "ledger@noon"}, "write a time with its zone"),
    ({**ORDERS, "startingTimestamp": "2026-11-01"}, "startingTimestamp must be milliseconds since 1970"),
    ({**ORDERS, "startingTimestamp": "9" * 23}, "startingTimestamp must be milliseconds since 1970"),
    (
        {**ORDERS, "startingOffsetsByTimestamp": '{"orders":{"0":' + "9" * 23 + "}}"},
        "startingOffsetsByTimestamp must be milliseconds since 1970",
    ),
    ({**ORDERS, "startingOffsets": '{"orders":{"0":' + "9" * 5000 + "}}"}, "startingOffsets: it is not JSON"),
    ({**ORDERS, "startingOffsetsByTimestampStrategy": "latest"}, "needs a time to begin at: give startingTimestamp"),
    ({**ORDERS, "endingOffsetsByTimestamp": '{"orders":{"0":-1}}'}, "endingOffsetsByTimestamp has -1 for orders/0"),
    (
        {**ORDERS, "startingOffsets": "earliest", "startingTimestamp": "1"},
        "startingTimestamp and startingOffsets both say where to begin: leave one out (Spark's Kafka source takes",
    ),
    ({**ORDERS, "minPartitions": "0"}, "minPartitions must be a number of at least 1, got '0'"),
    ({**ORDERS, "minPartitions": "9" * 4301}, "minPartitions must be a number of at least 1"),
    ({**ORDERS, "maxRecordsPerPartition": "many"}, "maxRecordsPerPartition must be a number of at least 1"),
    ({**ORDERS, "includeHeaders": "yes"}, "includeHeaders must be one of false, true, got 'yes'"),
    ({**ORDERS, "option.subscribe": "orders", "provider": "seekpoint"}, "write CREATE TEMPORARY VIEW"),
]


@for_each(REFUSED, lambda row: row[0])
def test_what_cannot_be_meant_is_refused_with_the_remedy(row: tuple[dict[str, str], str]) -> None:
    options, reason = row
    with pytest.raises(ConfigError) as refused:
        source_options(options)
    assert reason in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_a_variables_name_stands_for_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {**ORDERS, "kafka.sasl.password": "env:KAFKA_PASSWORD", "kafka.bootstrap.servers": "env:BROKERS"}
    kafka = source_options(options).kafka
    monkeypatch.setenv("KAFKA_PASSWORD", "hunter2")
    monkeypatch.setenv("BROKERS", "b:1")
    assert "hunter2" not in str(kafka)
    assert resolved(kafka) == {"bootstrap.servers": "b:1", "sasl.password": "hunter2"}
    assert portable(kafka) == kafka, "foreach_batch passes on what the stream has stored"


def test_a_table_takes_no_other_options() -> None:
    assert table_of({"TABLE": "ledger"}) == "ledger"
    assert ledger_options({"table": "ledger", "database": "URL", "ledgerSchema": "s"}) == (Env("URL"), "s")
    with pytest.raises(ConfigError, match="table=ledger takes only database and ledgerSchema: leave subscribe out"):
        ledger_options({"table": "ledger", "subscribe": "orders"})


def test_the_module_that_spark_looks_for_imports_nothing_that_could_be_missing() -> None:
    """An import error in any module ``pyspark_*`` hides every such source, with a warning in Spark's log alone."""
    code = """
import sys
sys.modules["seekpoint"] = None
import pyspark_seekpoint
from pyspark.sql.datasource import DataSource
assert issubclass(pyspark_seekpoint.DefaultSource, DataSource)
assert pyspark_seekpoint.DefaultSource.name() == "seekpoint"
import pkgutil
assert "pyspark_seekpoint" in {module.name for module in pkgutil.iter_modules()}
print(*sorted({"sqlalchemy", "psycopg", "confluent_kafka", "msgspec"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
