"""``seekpoint dev topic``, ``produce``, ``sql`` and ``env`` on real servers: what is stored, printed and refused."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from seekpoint.testing.servers import topics
from seekpoint.testing.servers.pair import RunningPair, announce_pair
from support.command import seekpoint
from support.log_changes import messages

AWAY = "127.0.0.1:1"


dev = partial(seekpoint, "dev")


@pytest.fixture(autouse=True)
def nothing_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No server is named by the environment, and no ``seekpoint dev`` of another process is found."""
    for name in ("SEEKPOINT_DATABASE_URL", "SEEKPOINT_KAFKA_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def pair(tmp_path: Path, seekpoint_dsn: str, seekpoint_broker: str) -> RunningPair:
    """The shared servers, announced as ``seekpoint dev`` announces its own."""
    folder = tmp_path / "seekpoint-dev-test"
    folder.mkdir()
    return announce_pair(folder, seekpoint_dsn, seekpoint_broker)


@pytest.fixture
def new_name(seekpoint_broker: str) -> Iterator[str]:
    """The name of a topic that the test creates by the command."""
    name = f"dev-{secrets.token_hex(6)}"
    yield name
    admin = AdminClient({"bootstrap.servers": seekpoint_broker, "log_level": 0})
    if name in admin.list_topics(timeout=20).topics:
        admin.delete_topics([name])[name].result(20)


Stored = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]
Read = Callable[..., list[Stored]]


@pytest.fixture
def stored(seekpoint_broker: str) -> Read:
    """``stored(topic, partition=0)``: key, value and headers of the partition's records."""

    def read(topic: str, partition: int = 0) -> list[Stored]:
        stored_messages = messages(seekpoint_broker, topic, partition)
        return [(message.key(), message.value(), message.headers() or []) for message in stored_messages]  # type: ignore[misc]

    return read


# -- topic -----------------------------------------------------------------------------------------------


def test_a_topic_is_created_once(pair: RunningPair, seekpoint_broker: str, new_name: str) -> None:
    created = dev("topic", new_name, "--partitions", "3")
    assert created.stdout == f"{new_name}: 3 partitions at {seekpoint_broker}\n"
    admin = AdminClient({"bootstrap.servers": seekpoint_broker, "log_level": 0})
    assert len(admin.list_topics(new_name, timeout=20).topics[new_name].partitions) == 3

    again = dev("topic", new_name, exits=2)
    assert again.stdout == ""
    assert again.stderr == (
        f"error: topic {new_name!r} exists at {seekpoint_broker} and has 3 partitions: produce to it with "
        f"`seekpoint dev produce {new_name}`, or choose another name [SP1001]\n"
    )


def test_the_report_of_a_topic_as_json(seekpoint_broker: str, new_name: str) -> None:
    created = dev("topic", new_name, "--kafka", f"bootstrap.servers={seekpoint_broker}", "--json")
    assert json.loads(created.stdout) == {"topic": new_name, "partitions": 1, "brokers": seekpoint_broker}


def test_a_name_that_no_topic_can_have(pair: RunningPair) -> None:
    refused = dev("topic", "a b", exits=2)
    assert "error: topic 'a b' cannot be created at " in refused.stderr
    assert "contains one or more characters other than ASCII alphanumerics" in refused.stderr


# -- produce ---------------------------------------------------------------------------------------------


def test_lines_become_values(pair: RunningPair, seekpoint_broker: str, topic: Callable[..., str], stored: Read) -> None:
    name = topic()
    sent = dev("produce", name, stdin='{"id": 1}\n\n{"id": 2}')
    assert sent.stdout == f"{name}: 2 records to {seekpoint_broker}\n  {name}/0: 2 records, the last at offset 1\n"
    more = dev("produce", name, stdin=b"\xff\n")
    assert more.stdout.endswith(f"  {name}/0: 1 record, the last at offset 2\n")
    assert stored(name) == [(None, b'{"id": 1}', []), (None, b'{"id": 2}', []), (None, b"\xff", [])]


def test_keys_choose_the_partition_and_each_is_reported(
    pair: RunningPair, seekpoint_broker: str, tmp_path: Path, topic: Callable[..., str], stored: Read
) -> None:
    name, file = topic(2), tmp_path / "orders.txt"
    file.write_text("".join(f"k{n % 10}:{n}\n" for n in range(100)))
    sent = dev("produce", name, str(file), "--key-separator", ":", "--json")
    report = json.loads(sent.stdout)
    partitions = report.pop("partitions")
    assert report == {"topic": name, "brokers": seekpoint_broker, "records": 100}
    assert set(partitions) == {"0", "1"}
    assert sum(partition["records"] for partition in partitions.values()) == 100
    records: list[Stored] = []
    for number, log in partitions.items():
        assert log["last_offset"] == log["records"] - 1
        records += stored(name, int(number))
    assert sorted(records, key=lambda record: int(record[1] or b"")) == [
        (b"k%d" % (n % 10), b"%d" % n, []) for n in range(100)
    ]


def test_objects_have_a_key_a_value_and_headers(pair: RunningPair, topic: Callable[..., str], stored: Read) -> None:
    name = topic()
    lines = ['{"key": "a", "value": {"price": 1.10}, "headers": {"h": "1", "n": null}}', '{"key": "a", "value": null}']
    dev("produce", name, "-", "--json-lines", stdin="\n".join(lines))
    assert stored(name) == [(b"a", b'{"price": 1.10}', [("h", b"1"), ("n", None)]), (b"a", None, [])]


def test_a_bad_line_is_named_and_earlier_are_stored(pair: RunningPair, topic: Callable[..., str], stored: Read) -> None:
    name, lines = topic(), ['{"value": 1}', '{"value": 2}', '{"vlaue": 3}', '{"value": 4}']
    refused = dev("produce", name, "--json-lines", stdin="\n".join(lines), exits=2)
    assert refused.stdout == ""
    assert "error: stdin, line 3: Object contains unknown field `vlaue`; expected {" in refused.stderr
    assert refused.stderr.endswith("\n2 records of earlier lines were stored\n")
    dev("produce", name, stdin="after")
    assert [value for _, value, _ in stored(name)] == [b"1", b"2", b"after"]


def test_a_record_that_is_too_large_is_named(pair: RunningPair, topic: Callable[..., str]) -> None:
    refused = dev("produce", topic(), stdin=f"small\n{'x' * 1_100_000}\n", exits=2)
    assert "error: the record of line 2 was refused: " in refused.stderr
    assert "Message size too large" in refused.stderr
    assert refused.stderr.endswith("\n1 record of an earlier line was stored\n")


def test_a_record_that_the_broker_refuses_is_named(pair: RunningPair, topic: Callable[..., str]) -> None:
    name = topic(config={"max.message.bytes": "1000"})
    refused = dev("produce", name, stdin=f"{'x' * 5000}\n", exits=2)
    assert "error: the record of line 1 was refused: Broker: Message size too large [SP1001]\n" in refused.stderr


def test_a_topic_that_does_not_exist(pair: RunningPair, seekpoint_broker: str, new_name: str) -> None:
    refused = dev("produce", new_name, stdin="x", exits=2)
    assert refused.stderr == (
        f"error: topic {new_name!r} does not exist at {seekpoint_broker}: "
        f"create it with `seekpoint dev topic {new_name}` [SP1001]\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such-file"], "no-such-file cannot be read: No such file or directory"),
        (["--key-separator", ""], "--key-separator takes at least one character, for example --key-separator :"),
        (["--key-separator", ":", "--json-lines"], "--json-lines and --key-separator exclude each other"),
    ],
)
def test_wrong_usage(pair: RunningPair, arguments: list[str], message: str) -> None:
    refused = dev("produce", "orders", *arguments, exits=2)
    assert f"error: {message}" in refused.stderr


# -- which servers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["topic", "orders"], ["produce", "orders"]])
def test_brokers_that_are_away(monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    monkeypatch.setattr(topics, "TIMEOUT", 1.0)
    refused = dev(*command, "--kafka", f"bootstrap.servers={AWAY}", stdin="x", exits=3)
    assert f"error: Kafka: no broker answered at {AWAY} within 1 s: " in refused.stderr
    assert "; check that `seekpoint dev` is still running (each start has other ports: " in refused.stderr


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["topic", "orders"], "no brokers are named and `seekpoint dev` is not running: start it in another terminal"),
        (
            ["produce", "orders"],
            "no brokers are named and `seekpoint dev` is not running: start it in another terminal",
        ),
        (["sql", "SELECT 1"], "no database is named and `seekpoint dev` is not running: start it in another terminal"),
        (["env"], "`seekpoint dev` is not running: start it in another terminal"),
    ],
)
def test_without_a_pair_the_commands_say_how_to_get_one(command: list[str], message: str) -> None:
    refused = dev(*command, stdin="x", exits=2)
    assert refused.stderr.startswith(f"error: {message}")


def test_a_pair_whose_process_has_ended_is_not_found(pair: RunningPair, tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    file = tmp_path / "seekpoint-dev-test" / "pair.json"
    file.write_text(file.read_text().replace(str(os.getpid()), ended.stdout.decode().strip()))
    assert "`seekpoint dev` is not running" in dev("env", exits=2).stderr


def test_of_two_pairs_none_is_guessed(pair: RunningPair, tmp_path: Path, seekpoint_broker: str) -> None:
    other = tmp_path / "seekpoint-dev-other"
    other.mkdir()
    announce_pair(other, pair.database_url, AWAY)
    refused = dev("env", exits=2)
    assert f"error: `seekpoint dev` runs 2 times (processes {os.getpid()}, {os.getpid()}): " in refused.stderr
    dev("topic", "a b", "--kafka", f"bootstrap.servers={seekpoint_broker}", exits=2)


def test_env_names_the_pair_to_a_shell(pair: RunningPair) -> None:
    script = f'{dev("env").stdout}\necho "$SEEKPOINT_DATABASE_URL $SEEKPOINT_KAFKA_CONFIG"'
    printed = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
    assert printed.split() == [pair.database_url, pair.kafka_config]


# -- sql -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("seekpoint_engine")
def test_sql_prints_what_each_statement_answers(pair: RunningPair, seekpoint_schema: str) -> None:
    name = f'"{seekpoint_schema}".things'
    done = dev(
        "sql",
        f"CREATE TABLE {name} (id int, note text); INSERT INTO {name} VALUES (1, '50 %s'), (10, NULL);"
        f"SELECT * FROM {name} ORDER BY id; SELECT count(*) FROM {name}",
    )
    assert [line.rstrip() for line in done.stdout.splitlines()] == [
        "CREATE TABLE",
        "INSERT 0 2",
        "id  note",
        " 1  50 %s",
        "10",
        "count",
        "    2",
    ]
    result = dev("sql", f"SELECT id, note, id / 4.0 AS part FROM {name} ORDER BY id", "--json")
    assert json.loads(result.stdout)[0] == {"id": 1, "note": "50 %s", "part": "0.25000000000000000000"}


PIPE = """\
import msgspec
from seekpoint import Json, Pipeline, Upsert
class Order(msgspec.Struct):
    id: int
pipe = Pipeline("shop", topics="orders", value=Json(Order), sinks=[Upsert("{schema}.kept", key=["id"])])
"""


@pytest.mark.usefixtures("seekpoint_engine")
def test_sql_from_stdin_creates_the_tables_of_a_pipeline(
    pair: RunningPair, seekpoint_schema: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"pipes_{secrets.token_hex(6)}"
    (tmp_path / f"{module}.py").write_text(PIPE.format(schema=seekpoint_schema))
    monkeypatch.syspath_prepend(str(tmp_path))
    table = ["db", "table", f"{module}:pipe"]
    assert dev("sql", "-", stdin=seekpoint(*table).stdout).stdout == "CREATE TABLE\n"
    complete = seekpoint(*table, env={"SEEKPOINT_DATABASE_URL": pair.database_url}).stdout
    assert complete == f"-- {seekpoint_schema}.kept takes every row\n"
    assert dev("sql", "-", stdin=complete).stdout == "\n"
    assert dev("sql", "-", "--json", stdin=complete).stdout == ""


@pytest.mark.usefixtures("seekpoint_engine")
def test_a_statement_that_fails_undoes_those_before_it(pair: RunningPair, seekpoint_schema: str) -> None:
    failed = dev("sql", f'CREATE TABLE "{seekpoint_schema}".half (id int); SELECT * FROM no_such_table', exits=1)
    assert 'error: Postgres: relation "no_such_table" does not exist' in failed.stderr
    left = dev("sql", f"SELECT to_regclass('{seekpoint_schema}.half') AS half", "--json")
    assert json.loads(left.stdout) == [{"half": None}]


def test_a_statement_that_no_transaction_may_run_names_psql(pair: RunningPair) -> None:
    failed = dev("sql", "CREATE DATABASE shop", exits=1)
    assert failed.stderr == (
        "error: Postgres: CREATE DATABASE cannot run inside a transaction block; run this statement outside a "
        "transaction, e.g. with psql\n"
    )


def test_sql_prints_values_that_python_and_json_do_not_have(pair: RunningPair) -> None:
    columns = (
        "'infinity'::timestamptz AS a, '0044-03-15 BC'::date AS b, 'NaN'::float8 AS c, ARRAY['-Infinity'::float4] AS d"
    )
    rows = json.loads(dev("sql", f"SELECT {columns}, 0.5::float8 AS e", "--json").stdout)
    assert rows == [{"a": "infinity", "b": "0044-03-15 BC", "c": "NaN", "d": ["-Infinity"], "e": 0.5}]
    assert "0044-03-15 BC" in dev("sql", f"SELECT {columns}").stdout


def test_sql_prints_json_with_the_digits_that_are_stored(pair: RunningPair) -> None:
    statement = """SELECT '{"lat": 48.20, "long": 0.123456789012345678901}'::jsonb AS a"""
    stored = '{"lat": 48.20, "long": 0.123456789012345678901}'
    assert stored in dev("sql", statement).stdout
    assert "0.123456789012345678901" in dev("sql", statement, "--json").stdout
    assert json.loads(dev("sql", statement, "--json").stdout) == [{"a": json.loads(stored)}]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["COPY (SELECT 1) TO STDOUT"], "`seekpoint dev sql` does not run COPY from or to the client: use psql"),
        (["SELECT 1 AS a, 2 AS a", "--json"], "--json needs distinct column names, and 'a' appears twice"),
    ],
)
def test_sql_refuses_what_it_cannot_print(pair: RunningPair, command: list[str], message: str) -> None:
    refused = dev("sql", *command, exits=2)
    assert refused.stderr.startswith(f"error: {message}")
    assert len(refused.output.splitlines()) == 1
