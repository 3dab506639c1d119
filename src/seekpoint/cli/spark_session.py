"""A Spark session for one command; its tasks get names of environment variables instead of passwords."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import URL

from seekpoint.cli.options import Job, SparkOptions, StagingOptions, key_value
from seekpoint.errors import ConfigError
from seekpoint.testing.servers.process import ServerFailed
from seekpoint.testing.servers.spark import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from seekpoint.spark import Env

DATABASE = "SEEKPOINT_DATABASE_URL"
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
}
_THREADS = r"(?:[1-9]\d*|\*)"
_MASTER = re.compile(
    rf"local(?:\[{_THREADS}(?:\s*,\s*[1-9]\d*)?\])?|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]|spark://\S+|yarn|k8s://\S+"
)
_LOCAL = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}


@contextmanager
def spark_session(master: str, conf: Sequence[str] | None) -> Iterator[SparkSession]:
    """A session for this command. Raises ConfigError without Java, ModuleNotFoundError without the extra."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 -- 0.2 s, and an extra

    from seekpoint.jobs.spark.settings import REDACTED  # noqa: PLC0415 -- with the session

    defaults = _SETTINGS | {"spark.redaction.regex": REDACTED}
    settings = defaults | (_LOCAL if master.startswith("local") else {}) | dict(map(_pair, conf or ()))
    with tempfile.TemporaryDirectory(prefix="seekpoint-spark-") as folder:
        os.environ["JAVA_HOME"] = str(_java_home(Path(folder)))
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        if master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings.setdefault("spark.sql.warehouse.dir", folder)
        session = SparkSession.builder.master(master).appName("seekpoint").config(map=dict(settings)).getOrCreate()
        try:
            yield session
        finally:
            session.stop()


def stager(stack: ExitStack, of: Job, tasks: StagingOptions, say: Callable[[str], None]) -> dict[str, Any]:
    """The argument ``stager`` for a job whose log Spark's tasks read; empty if no master is named."""
    if (started := _started(stack, of, tasks, say)) is None:
        if tasks.copy_sessions is not None:
            raise ConfigError("--copy-sessions limits Spark's tasks: give --spark, too")
        return {}
    from seekpoint.spark import SparkStager  # noqa: PLC0415 -- pyspark, an extra

    return {
        "stager": SparkStager(
            started.session,
            started.kafka,
            database=started.database,
            schema=of.schema,
            copy_sessions=tasks.copy_sessions,
            **tasks.sizes(),
        )
    }


def writer(stack: ExitStack, of: Job, tasks: SparkOptions, say: Callable[[str], None]) -> dict[str, Any]:
    """The argument ``writer`` for an export that Spark's tasks write; empty if no master is named."""
    if (started := _started(stack, of, tasks, say)) is None:
        return {}
    from seekpoint.spark import SparkWriter  # noqa: PLC0415 -- pyspark, an extra

    return {"writer": SparkWriter(started.session, started.kafka)}


class Started(NamedTuple):
    """A session, and the brokers and database of its tasks."""

    session: SparkSession
    kafka: dict[str, Any]
    database: Env


def _started(stack: ExitStack, of: Job, tasks: SparkOptions, say: Callable[[str], None]) -> Started | None:
    if tasks.spark is None:
        if tasks.spark_conf:
            raise ConfigError("--spark-conf is for a Spark session: give --spark, too")
        return None
    require_master(tasks.spark)
    kafka, database = for_tasks(of.engine.url, of.kafka)  # before the session: its Java inherits what is set here
    say(f"starting Spark on {tasks.spark}")
    return Started(stack.enter_context(spark_session(tasks.spark, tasks.spark_conf)), kafka, database)


def require_master(master: str) -> None:
    """Raise ConfigError for a master that Spark would refuse, before Java starts. Asks no server."""
    if _MASTER.fullmatch(master) is None:
        raise ConfigError(
            f"{master!r} is not a Spark master: use local, local[4], local[*], local[4,2] (attempts), "
            "local-cluster[2,1,1024], spark://host:7077, yarn or k8s://https://host:6443"
        )


def for_tasks(url: URL, kafka: Mapping[str, Any]) -> tuple[dict[str, Any], Env]:
    """Brokers and database for a job's plan, with names of environment variables instead of passwords.

    Sets these variables, which tasks on this machine inherit. On a cluster, set them for the executors; a task without
    a variable fails, and names it.
    """
    from seekpoint.jobs.spark.settings import SECRET, Env  # noqa: PLC0415 -- only for Spark

    os.environ[DATABASE] = url.render_as_string(hide_password=False)
    carried = dict(kafka)
    for key, value in kafka.items():
        if SECRET.search(key):
            name = f"{DATABASE.split('_', 1)[0]}_{re.sub(r'[^A-Z0-9]', '_', key.upper())}"
            os.environ[name] = str(value)
            carried[key] = Env(name)
    return carried, Env(DATABASE)


def _pair(text: str) -> tuple[str, str]:
    return key_value(text, f"--spark-conf takes key=value, e.g. --spark-conf spark.executor.memory=4g, not {text!r}")


def _java_home(folder: Path) -> Path:
    try:
        return java_home(folder)
    except ServerFailed:
        raise ConfigError(_NO_JAVA) from None


_NO_JAVA = (
    "Spark needs Java 17 or newer, and there is none: install it and set JAVA_HOME. If you gave --spark, omit it: "
    "this process then reads the log itself"
)
