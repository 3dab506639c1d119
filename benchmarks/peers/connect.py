"""Kafka Connect, one standalone worker, with a JDBC sink connector. Both tables.

``insert`` and ``upsert``: Debezium's JDBC sink; ``-unnest``: with the option that its documentation names for speed.
``changes``: it applies the events of ``payments_changes``, or those of ``payments_changes_plain``.
``aiven-*``: Aiven's, which is published only as source; it runs if BENCH_AIVEN_PLUGIN names a folder with its jars.
The converter's option ``schema.content`` gives JSON without a schema its types, so the plain topic is read.

To warm up, a first connector of the same kind fills a second table in the same worker; the second connector counts.
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from demo.cdc.connect import LOGGING
from peers import jars, kinds
from peers.kinds import Kind
from peers.processes import started
from peers.trial import Measured, PeerError, SkippedError, Trial, play
from peers.watch import Seen, watch
from seekpoint.testing.servers.java import find_java
from seekpoint.testing.servers.process import Child, Folder, free_port

AIVEN = "BENCH_AIVEN_PLUGIN"
HEAP = "2g"
JSON, TEXT = "org.apache.kafka.connect.json.JsonConverter", "org.apache.kafka.connect.storage.StringConverter"
TYPES = {"bigint": "int64", "integer": "int32", "smallint": "int16"}


@dataclass(frozen=True)
class Mode:
    """The connector, and how it writes."""

    upsert: bool = False
    aiven: bool = False
    unnest: bool = False
    changes: bool = False


def run(trial: Trial, *, mode: Mode) -> Measured:
    """Run ``parallelism`` tasks, with batches of ``batch`` records."""
    kinds.fresh(trial.kind, trial.dsn, key=mode.upsert, warm=True)
    folder = Folder("peer-connect")
    try:
        _lay_out_plugin(folder.path / "plugins" / "jdbc", aiven=mode.aiven)
        port = free_port()
        (folder.path / "log4j2.properties").write_text(LOGGING, encoding="ascii")
        (folder.path / "worker.properties").write_text(_worker(trial, folder.path, port), encoding="utf-8")
        libraries = jars.classpath("connect")
        command = [str(find_java()), f"-Xmx{HEAP}", f"-Djava.io.tmpdir={folder.path}"]
        command += [f"-Dlog4j2.configurationFile={folder.path / 'log4j2.properties'}", "-cp", jars.joined(libraries)]
        command += ["org.apache.kafka.connect.cli.ConnectStandalone", str(folder.path / "worker.properties")]
        with started("connect", command) as child:
            _until_ready(child, port)
            seen = _warm_and_measure(trial, child, port, mode)
    finally:
        folder.close()
    kinds.verify(trial.kind, trial.dsn, trial.records)
    return Measured(
        f"Connect {jars.version('connect', 'connect-runtime')}, "
        + ("Aiven's JDBC sink" if mode.aiven else f"Debezium {jars.version('debezium', 'debezium-connector-jdbc')}"),
        seen.seconds,
        seen.records,
        "at least once, idempotent by key" if mode.upsert else "at least once",
        seen.cpu_seconds,
        {
            "tasks.max": trial.parallelism,
            "batch.size": trial.batch,
            "max.poll.records": trial.batch,
            "reWriteBatchedInserts": True,
            "unnest": mode.unnest,
            "heap": HEAP,
            "warmed": "a connector of the same kind before, in the same worker",
            "recommended_by": "Debezium, JDBC connector (batch.size equal to max.poll.records, use.reduction.buffer "
            "for upserts); Kafka, JsonConverter (schema.content); pgJDBC",
        },
    )


def _warm_and_measure(trial: Trial, child: Child, port: int, mode: Mode) -> Seen:
    for table in (f"{trial.kind.name}_warm", trial.kind.name):
        name = trial.group(table)  # a connector's consumer group is named after it: it must be new
        _ask(child, port, "POST", "", {"name": name, "config": sink(trial, table, mode)})
        seen = watch(trial, child, table=table, all_of_it=table != trial.kind.name)
        _ask(child, port, "DELETE", f"/{name}")
    return seen


def sink(trial: Trial, table: str, mode: Mode) -> dict[str, str]:
    """The connector's configuration."""
    database = trial.database
    if mode.unnest and not mode.changes and "numeric" in trial.kind.columns.values():
        raise SkippedError("with unnest, this connector cannot write text into a numeric column")
    common = {
        "topics": trial.kind.name,
        "tasks.max": str(trial.parallelism),
        **_converters(trial.kind, mode),
        "consumer.override.auto.offset.reset": "earliest",
        "consumer.override.max.poll.records": str(trial.batch),
        "consumer.override.fetch.min.bytes": "1000000",
        "consumer.override.fetch.max.wait.ms": "200",
        "consumer.override.max.partition.fetch.bytes": "8000000",
        "connection.url": trial.jdbc,
        "connection.password": database["password"],
        "batch.size": str(trial.batch),
        "insert.mode": "upsert" if mode.upsert else "insert",
    }
    if mode.aiven:
        keyed = {"pk.mode": "record_value", "pk.fields": "id"} if mode.upsert else {"pk.mode": "none"}
        return {
            **common,
            **keyed,
            "connector.class": "io.aiven.connect.jdbc.JdbcSinkConnector",
            "connection.user": database["user"],
            "table.name.format": table,
        }
    keyed = {"primary.key.mode": "none"}
    if mode.changes:
        keyed = {"primary.key.mode": "record_key", "delete.enabled": "true"}
    elif mode.upsert:
        keyed = {"primary.key.mode": "record_value", "primary.key.fields": "id"}
    return {
        **common,
        **keyed,
        "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
        "connection.username": database["user"],
        "collection.name.format": table,
        "schema.evolution": "none",
        "use.reduction.buffer": str(mode.upsert).lower(),
        "dialect.postgres.unnest.insert.enabled": str(mode.unnest).lower(),
    }


def _converters(kind: Kind, mode: Mode) -> dict[str, str]:
    """The converters of key and value, with a schema for JSON that has none."""
    if mode.changes:
        schemas = {} if kind.name == "payments_changes" else {"key": kinds.KEY_SCHEMA, "value": kinds.VALUE_SCHEMA}
        content = {f"{part}.converter.schema.content": schema.decode() for part, schema in schemas.items()}
        return {"key.converter": JSON, "value.converter": JSON, **content}
    fields: list[dict[str, Any]] = []
    for column, type_ in kind.columns.items():
        field: dict[str, Any] = {"field": column, "type": TYPES.get(type_, "string"), "optional": column != "id"}
        if type_.startswith("timestamp") and not mode.aiven:
            field["name"] = "io.debezium.time.ZonedTimestamp"  # its own name for times that are text
        fields.append(field)
    schema = {"type": "struct", "optional": False, "fields": fields}
    return {"key.converter": TEXT, "value.converter": JSON, "value.converter.schema.content": json.dumps(schema)}


def _worker(trial: Trial, folder: Path, port: int) -> str:
    settings = {
        "bootstrap.servers": trial.brokers,
        "key.converter": TEXT,
        "value.converter": JSON,
        "offset.storage.file.filename": str(folder / "offsets"),
        "offset.flush.interval.ms": "5000",
        "plugin.path": str(folder / "plugins"),
        "plugin.discovery": "service_load",
        "listeners": f"http://127.0.0.1:{port}",
        "connector.client.config.override.policy": "All",
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def _lay_out_plugin(folder: Path, *, aiven: bool) -> None:
    """Make the plugin's folder: Connect loads each plugin from a separate one."""
    if aiven:
        path = os.environ.get(AIVEN)
        if path is None:
            raise SkippedError(f"Aiven's JDBC sink is published as source alone: set {AIVEN} to a folder with its jars")
        files = sorted(Path(path).glob("*.jar"))
    else:
        files = jars.classpath("debezium")
    folder.mkdir(parents=True)
    for jar in files:
        (folder / jar.name).symlink_to(jar)


def _until_ready(child: Child, port: int) -> None:
    deadline = time.monotonic() + 90
    while child.running and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/connectors", timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise PeerError(f"the worker does not answer\n{child.log_tail()}")


def _ask(child: Child, port: int, method: str, path: str, body: dict[str, Any] | None = None) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/connectors{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        urllib.request.urlopen(request, timeout=60).close()
    except urllib.error.HTTPError as error:
        raise PeerError(f"{method} {path}: {error.read().decode()}\n{child.log_tail()}") from error


_MODES = {
    "insert": Mode(),
    "upsert": Mode(upsert=True),
    "insert-unnest": Mode(unnest=True),
    "upsert-unnest": Mode(upsert=True, unnest=True),
    "changes": Mode(upsert=True, changes=True),
    "changes-unnest": Mode(upsert=True, changes=True, unnest=True),
    "aiven-insert": Mode(aiven=True),
    "aiven-upsert": Mode(upsert=True, aiven=True),
}
MODES = {name: partial(run, mode=mode) for name, mode in _MODES.items()}

if __name__ == "__main__":
    play("connect", MODES)
