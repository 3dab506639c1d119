"""Imports a pipeline by its name in one of Spark's processes."""

from __future__ import annotations

from collections.abc import Callable
from socket import gethostname
from typing import TypeVar

from seekpoint.errors import ConfigError

P = TypeVar("P")


def import_pipeline(name: str, load: Callable[[str], P]) -> P:
    """Load the pipeline in this executor. Raises ConfigError, which names a missing module and the host."""
    try:
        return load(name)
    except (ConfigError, ModuleNotFoundError) as error:
        raise ConfigError(
            f"on the executor {gethostname()}: {error}. Executors need the modules that {name} imports: add them to "
            "the session (spark.submit.pyFiles), install them in the executors' Python, or remove imports of "
            "modules that only the driver has"
        ) from error
