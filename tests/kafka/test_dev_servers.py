"""The throwaway servers are real, come back after a crash, and end with the process that started them."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from seekpoint.testing.servers import kafka, postgres, server
from seekpoint.testing.servers.kafka import BROKERS_VARIABLE, KafkaServer, start_kafka
from seekpoint.testing.servers.pair import start_pair
from seekpoint.testing.servers.postgres import DSN_VARIABLE, PostgresServer, start_postgres, url_of
from seekpoint.testing.servers.process import ServerFailed, free_port
from support.log_changes import messages
from support.proxy import Proxy
from support.waiting import until

pytestmark = pytest.mark.long("servers of its own")


def gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def records(bootstrap: str, topic: str) -> list[bytes | None]:
    """All values of partition 0."""
    return [message.value() for message in messages(bootstrap, topic)]


# -- Postgres ---------------------------------------------------------------------------------------------


def test_postgres_is_as_durable_as_in_production(own_postgres: PostgresServer) -> None:
    with psycopg.connect(own_postgres.dsn) as connection:
        shown = connection.execute(
            "SELECT name, setting FROM pg_settings WHERE name IN ('fsync', 'synchronous_commit')"
        )
        assert dict(shown.fetchall()) == {"fsync": "on", "synchronous_commit": "on"}
    assert own_postgres.describe().startswith("PostgreSQL ")


@pytest.mark.repeats("how")
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_postgres_comes_back_with_what_was_committed(own_postgres: PostgresServer, how: str) -> None:
    before = own_postgres.pid
    with psycopg.connect(own_postgres.dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS n")
    with psycopg.connect(own_postgres.dsn) as connection:
        connection.execute("INSERT INTO kept VALUES (8)")
        getattr(own_postgres, how)()
        assert not own_postgres.running
        with pytest.raises(psycopg.OperationalError):
            connection.commit()
    own_postgres.start()
    assert own_postgres.pid != before
    with psycopg.connect(own_postgres.dsn) as connection:
        assert connection.execute("SELECT n FROM kept").fetchall() == [(7,)]


def test_a_frozen_postgres_answers_when_it_is_thawed(own_postgres: PostgresServer) -> None:
    with psycopg.connect(own_postgres.dsn, autocommit=True) as connection:
        answered = threading.Event()

        def ask() -> None:
            connection.execute("SELECT 1")
            answered.set()

        own_postgres.freeze()
        asking = threading.Thread(target=ask)
        asking.start()
        assert not answered.wait(0.5)
        own_postgres.thaw()
        assert answered.wait(30)
        asking.join()


def test_killing_a_frozen_postgres_leaves_nothing(own_postgres: PostgresServer) -> None:
    with psycopg.connect(own_postgres.dsn):
        family = [own_postgres.pid, *(part.pid for part in psutil.Process(own_postgres.pid).children())]
        own_postgres.freeze()
        own_postgres.kill()
    assert all(map(gone, family))
    own_postgres.start()


def test_postgres_takes_settings() -> None:
    with start_postgres({"max_connections": "17", "fsync": "off"}) as server, psycopg.connect(server.dsn) as connection:
        shown = connection.execute("SELECT setting FROM pg_settings WHERE name IN ('fsync', 'max_connections')")
        assert shown.fetchall() == [("off",), ("17",)]


def test_a_postgres_that_cannot_start_shows_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o755)
    for folder in tmp_path.parents:
        if folder.name.startswith("pytest"):
            folder.chmod(0o755)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(
        ServerFailed, match=r'(?s)unrecognized configuration parameter "no_such".*Remedy: .*' + DSN_VARIABLE
    ):
        start_postgres({"no_such": "1"})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs Postgres as another user")
def test_an_ended_server_shows_the_space_left(own_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    own_postgres.kill()
    monkeypatch.setattr(server, "LITTLE", 2**63)  # as if the disk were full
    message = str(own_postgres.failure("it has ended by itself"))
    assert message.startswith("it has ended by itself [SP1001]\nThe last lines of its log:\n")
    assert re.search(r"\n/\S+ has \d+ MB left\.\nRemedy: set TMPDIR to a folder with free space", message)


def test_binaries_out_of_reach_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Path] = []

    def sealed(path: Path) -> bool:
        seen.append(path)
        return path.name != "postgres"

    monkeypatch.setattr("seekpoint.testing.servers.postgres.reachable_by_all", sealed)
    with start_postgres(own=True) as server:
        assert seen[-1].name == "postgres"
        assert Path(psutil.Process(server.pid).exe()).is_relative_to(Path(psutil.Process(server.pid).cwd()).parent)
        assert psutil.Process(server.pid).username() == "nobody"


@pytest.mark.parametrize(
    ("dsn", "url"),
    [
        (
            "postgresql://ann:p%40ss@db:6432/app?sslmode=require",
            "postgresql+psycopg://ann:p%40ss@db:6432/app?sslmode=require",
        ),
        ("postgres://db/app", "postgresql+psycopg://db/app"),
        ("postgresql+psycopg://ann@db/app", "postgresql+psycopg://ann@db/app"),
        ("host=db port=6432 user=ann password='p@ss' dbname=app", "postgresql+psycopg://ann:p%40ss@db:6432/app"),
    ],
)
def test_a_dsn_is_understood_in_both_forms(dsn: str, url: str) -> None:
    assert url_of(dsn).render_as_string(hide_password=False) == url


def test_a_given_postgres_is_never_broken(own_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DSN_VARIABLE, own_postgres.dsn)
    with start_postgres() as postgres:
        assert postgres.url == own_postgres.url
        assert postgres.describe().endswith("(given)")
        for refuse in (postgres.stop, postgres.kill, postgres.freeze):
            with pytest.raises(ServerFailed, match="was not started here"):
                refuse()
    assert own_postgres.running


def test_a_given_postgres_that_does_not_answer_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PostgresServer, "patience", 0.0)
    monkeypatch.setenv(DSN_VARIABLE, f"postgresql://ann:secret@127.0.0.1:{free_port()}/app")
    with pytest.raises(ServerFailed, match=rf"(?s)ann:\*\*\*@127.0.0.1.*unset {DSN_VARIABLE}") as caught:
        start_postgres()
    assert "secret" not in str(caught.value)


# -- Kafka ------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_kafka_comes_back_with_every_acknowledged_record(
    own_kafka: KafkaServer, topic: Callable[..., str], produce: Callable[..., list[tuple[int, int]]]
) -> None:
    name = topic(bootstrap=own_kafka.bootstrap)
    produce(name, ["one"], bootstrap=own_kafka.bootstrap)
    own_kafka.kill()
    assert not own_kafka.running
    own_kafka.start()
    produce(name, ["two"], bootstrap=own_kafka.bootstrap)
    own_kafka.stop()
    own_kafka.start()
    assert records(own_kafka.bootstrap, name) == [b"one", b"two"]


@pytest.mark.long
def test_a_frozen_broker_answers_when_it_is_thawed(own_kafka: KafkaServer) -> None:
    admin = AdminClient({"bootstrap.servers": own_kafka.bootstrap, "log_level": 0})
    admin.list_topics(timeout=10)
    own_kafka.freeze()
    with pytest.raises(KafkaException, match="_T"):  # _TIMED_OUT or _TRANSPORT
        admin.list_topics(timeout=1)
    own_kafka.thaw()
    assert admin.list_topics(timeout=20).brokers


@pytest.mark.long
def test_clients_of_the_second_listener_use_the_proxy(
    topic: Callable[..., str], produce: Callable[..., list[tuple[int, int]]]
) -> None:
    port = free_port()
    with Proxy("127.0.0.1", port) as proxy, start_kafka(proxied=(port, proxy.port)) as broker:
        name = topic(bootstrap=broker.bootstrap)
        produce(name, ["through"], bootstrap=broker.proxied_bootstrap)
        assert records(broker.proxied_bootstrap, name) == [b"through"]
        behind = AdminClient({"bootstrap.servers": broker.proxied_bootstrap, "log_level": 0})
        assert [broker.port for broker in behind.list_topics(timeout=10).brokers.values()] == [proxy.port]
        proxy.refuse()
        proxy.cut()
        with pytest.raises(KafkaException):
            behind.list_topics(timeout=1)
        assert records(broker.bootstrap, name) == [b"through"]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_the_broker_knows_every_codec(
    codec: str, seekpoint_broker: str, topic: Callable[..., str], produce: Callable[..., object]
) -> None:
    name = topic(config={"compression.type": codec})  # the broker compresses what the client did not
    produce(name, ["x" * 1000] * 10)
    assert records(seekpoint_broker, name) == [b"x" * 1000] * 10


@pytest.mark.long
def test_a_broker_that_cannot_start_shows_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ServerFailed, match=r"(?s)could not be formatted.*no.such.directory.*Remedy"):
        start_kafka(properties={"log.dirs": "/proc/no.such.directory"})
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = rf"(?s)does not answer.*already in use.*Remedy: .*{BROKERS_VARIABLE}"
        with pytest.raises(ServerFailed, match=message):  # although its first listener answers for a moment
            start_kafka(proxied=(port, port))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_a_given_broker_is_used_and_never_broken(own_kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BROKERS_VARIABLE, own_kafka.bootstrap)
    with start_kafka() as kafka:
        assert kafka.bootstrap == own_kafka.bootstrap
        assert kafka.describe() == f"Kafka at {own_kafka.bootstrap} (given)"
        with pytest.raises(ServerFailed, match="was not started here"):
            kafka.kill()
    assert own_kafka.running


def test_docker_compose_starts_a_broker_with_the_same_settings_from_the_same_images() -> None:
    compose = (Path(__file__).parents[2] / "docker-compose.yml").read_text()
    settings = dict(re.findall(r'^ +KAFKA_(\w+): "?([^"\n]+?)"?$', compose, re.MULTILINE))
    wanted = {name.upper().replace(".", "_"): value for name, value in kafka.SETTINGS.items()}
    assert wanted.items() <= settings.items()
    assert re.findall(r"image: (\S+)", compose) == [postgres.IMAGE, kafka.IMAGE]


# -- start and end ----------------------------------------------------------------------------------------

OWNER = """
import os, sys, threading
from seekpoint.testing.servers.postgres import start_postgres
from seekpoint.testing.servers.pair import start_pair
{start}
for pid in pids:
    print(pid, os.readlink(f"/proc/{{pid}}/cwd"), flush=True)
print(flush=True)
{end}
"""
POSTGRES = (
    "postgres = start_postgres(own=True); pids = [postgres.pid]; data = os.readlink(f'/proc/{postgres.pid}/cwd')\n"
)
PAIR = "pair = start_pair(own=True); pids = [pair.postgres.pid, pair.kafka.pid]\n"
FORK = "if os.fork() == 0: threading.Event().wait(30); os._exit(0)"


def owner(start: str, end: str) -> tuple[subprocess.Popen[str], list[int], list[Path]]:
    """Another process that starts servers, with their process ids and their folders."""
    command = [sys.executable, "-c", OWNER.format(start=start, end=end)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    with process.stdout:
        lines = [line.split() for line in iter(process.stdout.readline, "\n")]
    folders = [Path(folder) for _, folder in lines]
    # Postgres works in its data folder, one below its temporary folder.
    return (
        process,
        [int(pid) for pid, _ in lines],
        [folder.parent if folder.name == "data" else folder for folder in folders],
    )


@pytest.mark.long("some of its cases take seconds")
@pytest.mark.skipif(sys.platform != "linux", reason="folders are found through /proc")
@pytest.mark.parametrize(
    "start", [PAIR, POSTGRES + "postgres.freeze()", POSTGRES + FORK], ids=["runs", "frozen", "forked"]
)
def test_servers_and_folders_go_when_their_owner_is_killed(start: str) -> None:
    process, pids, folders = owner(start, end="threading.Event().wait()")
    assert all(folder.exists() for folder in folders)
    assert not any(map(gone, pids))
    backends = [part.pid for part in psutil.Process(pids[0]).children()]
    process.kill()
    process.wait()
    # Within half a minute: a server that merely lost its folder ends after a minute, too.
    until(lambda: all(map(gone, pids + backends)), "the end of every process")
    until(lambda: not any(folder.exists() for folder in folders), "the folders removed")


@pytest.mark.long("some of its cases take seconds")
@pytest.mark.skipif(sys.platform != "linux", reason="folders are found through /proc")
@pytest.mark.parametrize(
    ("start", "end", "code"),
    [
        (PAIR, "raise KeyboardInterrupt", -signal.SIGINT),
        (POSTGRES, "sys.exit(3)", 3),
        (POSTGRES, "postgres.close(); postgres.close()", 0),
        (POSTGRES, "postgres.kill(); postgres.close()", 0),
        # A child that ends in the usual way runs what its parent registered for the end.
        (POSTGRES, "if os.fork() == 0: sys.exit()\nos.wait()\nsys.exit(0 if os.path.exists(data) else 5)", 0),
    ],
)
def test_nothing_is_left_after_an_orderly_end(start: str, end: str, code: int) -> None:
    process, pids, folders = owner(start, end)
    assert process.wait(30) == code
    assert all(map(gone, pids))
    assert not any(folder.exists() for folder in folders)


def test_ctrl_c_in_the_terminal_does_not_reach_the_servers(own_postgres: PostgresServer) -> None:
    assert os.getpgid(own_postgres.pid) != os.getpgrp()


def test_ports_lie_outside_the_range_of_outgoing_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as outgoing:
        assert free_port() < outgoing.getsockname()[1]


@pytest.mark.long
def test_a_pair_of_which_one_fails_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seekpoint.testing.servers.pair.start_postgres", _refuse)
    started: list[KafkaServer] = []
    real = start_kafka

    def watched(**options: Any) -> KafkaServer:
        started.append(real(**options))
        return started[-1]

    monkeypatch.setattr("seekpoint.testing.servers.pair.start_kafka", watched)
    with pytest.raises(ServerFailed, match="no Postgres today"):
        start_pair(own=True)
    assert [server.running for server in started] == [False]


def _refuse(*args: object, **options: object) -> PostgresServer:
    raise ServerFailed("no Postgres today")
