"""Imports a pipeline by its name in one of Spark's processes."""

from __future__ import annotations

from socket import gethostname

from seekpoint.errors import ConfigError
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.worker.import_by_name import load_pipeline


def import_pipeline(name: str) -> Pipeline:
    """Import the pipeline from this executor's modules. Raises ConfigError, which names a missing one and the host."""
    try:
        return load_pipeline(name)
    except (ConfigError, ModuleNotFoundError) as error:
        raise ConfigError(
            f"on the executor {gethostname()}: {error}. Executors need what {name} imports: add it to the session "
            "(spark.submit.pyFiles), install it in their Python, or import nothing there that only the driver has"
        ) from error
