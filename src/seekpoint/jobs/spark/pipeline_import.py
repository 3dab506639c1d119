"""Imports a pipeline by its name in one of Spark's processes."""

from __future__ import annotations

from socket import gethostname

from seekpoint.errors import ConfigError
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.worker.import_by_name import load_pipeline


def import_pipeline(name: str) -> Pipeline:
    """Import the pipeline in this executor. Raises ConfigError, which names a missing module and the host."""
    try:
        return load_pipeline(name)
    except (ConfigError, ModuleNotFoundError) as error:
        raise ConfigError(
            f"on the executor {gethostname()}: {error}. Executors need the modules that {name} imports: add them to "
            "the session (spark.submit.pyFiles), install them in the executors' Python, or remove imports of "
            "modules that only the driver has"
        ) from error
