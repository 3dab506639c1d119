"""Properties of a Spark session: its context, its task slots and its Python."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from seekpoint.errors import ConfigError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


def require_this_python(spark: SparkSession) -> None:
    """Raise ConfigError if the session's Python workers run another Python, or one that does not exist.

    Workers of a local session must run this Python. In a cluster Spark plans a data source in a process on the driver's
    machine, with the path of the executors' Python, so that path must also exist there.
    """
    if (context := context_of(spark)) is None:
        return  # Spark Connect: its workers cannot be checked from here
    worker_python, master = str(context.pythonExec), str(context.master)
    executable = shutil.which(worker_python)
    if master.startswith("local") and (executable is None or _environment(executable) != _environment(sys.executable)):
        raise ConfigError(
            f"Spark's Python workers run {executable or worker_python}, and this process runs {sys.executable}: set "
            f"the environment variable PYSPARK_PYTHON={sys.executable} before the session is created"
        )
    if executable is None:
        raise ConfigError(
            f"Spark plans a read on the driver's machine with the executors' Python, and {worker_python} does not "
            f"exist here ({Path.cwd()}). If --archives unpacks that Python for the executors, also unpack the archive "
            "here under the same name (`mkdir environment && tar -xzf env.tar.gz -C environment` for "
            "env.tar.gz#environment). Or run the driver in the cluster (--deploy-mode cluster), where Spark unpacks it"
        )


def context_of(spark: SparkSession) -> SparkContext | None:
    """The session's context; None for Spark Connect."""
    try:
        return spark.sparkContext
    except Exception:  # noqa: BLE001 -- its class is in a module that only Connect has
        return None


def slots_of(spark: SparkSession) -> int:
    """How many tasks the session runs at a time; 1 if that is not known (Spark Connect)."""
    context = context_of(spark)
    return 1 if context is None else int(context.defaultParallelism)


def _environment(python: str) -> tuple[str, str]:
    """The interpreter's folder, unresolved to distinguish venvs, and the resolved executable."""
    return os.path.normpath(Path(python).parent), os.path.realpath(python)
