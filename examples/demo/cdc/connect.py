"""Kafka Connect with Debezium's Postgres connector, as one process that can be killed and started again.

The jars are named in ``debezium.jars`` with their SHA-256, fetched once into the folder of the broker's jars.
"""

from __future__ import annotations

import os
import urllib.request
from pathlib import Path
from time import monotonic, sleep

from sqlalchemy import make_url

from demo.cdc.tables import TOPIC
from demo.worker_pool import DemoFailed
from seekpoint.testing.servers.jars import locked_jars
from seekpoint.testing.servers.java import find_java
from seekpoint.testing.servers.process import Child, Folder, free_port

JARS = Path(__file__).with_name("debezium.jars")
PATIENCE = 120.0  # seconds until Connect answers
LOGGING = """\
rootLogger.level=WARN
rootLogger.appenderRef.0.ref=O
appender.0.type=Console
appender.0.name=O
appender.0.layout.type=PatternLayout
appender.0.layout.pattern=%d %p %c %m%n
"""


class Connect:
    """One standalone worker of Kafka Connect. Close it, or use ``with``."""

    def __init__(self, database: str, bootstrap: str) -> None:
        self._folder, self._port = Folder("connect"), free_port()
        self._write("worker.properties", self._worker(bootstrap))
        self._write("debezium.properties", _connector(database))
        logging = self._folder.path / "log4j2.properties"
        logging.write_text(LOGGING, encoding="ascii")
        command = [str(find_java()), "-Xmx768m", f"-Dlog4j2.configurationFile={logging}"]
        jars = os.pathsep.join(map(str, locked_jars(JARS)))
        command += ["-cp", jars, "org.apache.kafka.connect.cli.ConnectStandalone"]
        self._child = Child([*command, "worker.properties", "debezium.properties"], self._folder)

    def start(self) -> None:
        """Start it, and wait until its connector runs."""
        self._child.start()
        deadline = monotonic() + PATIENCE
        while monotonic() < deadline and self._child.running:
            if b'"state":"RUNNING","worker_id"' in self._status():
                return
            sleep(0.2)
        raise DemoFailed(f"Kafka Connect did not run its connector\n{self._child.log_tail()}")

    def kill(self) -> None:
        """SIGKILL: it forgets which changes it has sent since it stored its offset, and sends them again."""
        self._child.kill()

    def close(self) -> None:
        """Kill it, and remove its folder."""
        self._child.close()

    def _status(self) -> bytes:
        url = f"http://127.0.0.1:{self._port}/connectors/shop/status"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                status: bytes = answer.read()
                return status.partition(b'"tasks":')[2]
        except OSError:
            return b""

    def _worker(self, bootstrap: str) -> dict[str, str]:
        return {
            "bootstrap.servers": bootstrap,
            "key.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "offset.storage.file.filename": str(self._folder.path / "offsets"),
            "offset.flush.interval.ms": "5000",
            "plugin.discovery": "service_load",
            "listeners": f"http://127.0.0.1:{self._port}",
        }

    def _write(self, name: str, settings: dict[str, str]) -> None:
        lines = "".join(f"{setting}={value}\n" for setting, value in settings.items())
        (self._folder.path / name).write_text(lines, encoding="utf-8")


def _connector(database: str) -> dict[str, str]:
    url = make_url(database)
    return {
        "name": "shop",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": "1",
        "database.hostname": url.host or "",
        "database.port": str(url.port),
        "database.user": url.username or "",
        "database.password": url.password or "",
        "database.dbname": url.database or "",
        "plugin.name": "pgoutput",
        "publication.autocreate.mode": "filtered",
        "topic.prefix": TOPIC.partition(".")[0],
        "table.include.list": TOPIC.partition(".")[2],
    }
