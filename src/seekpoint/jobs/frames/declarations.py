"""Imports a SparkPipeline by name; finds the name under which executors import a pipeline object."""

from __future__ import annotations

import sys

from seekpoint.errors import ConfigError
from seekpoint.pipeline.frames import SparkPipeline
from seekpoint.worker.import_by_name import imported


def load_spark_pipeline(target: str, *, from_here: bool = False) -> SparkPipeline:
    """Import the SparkPipeline that ``module:name`` names. Raises ConfigError if there is none."""
    pipeline = imported(target, from_here=from_here)
    if not isinstance(pipeline, SparkPipeline):
        raise ConfigError(f"{target} is of type {type(pipeline).__name__}; expected a SparkPipeline")
    return pipeline


def name_of(pipeline: SparkPipeline) -> str:
    """The pipeline's name as ``module:name``. Raises ConfigError if no module that executors can import defines it.

    The module of a frame's function is preferred, because other modules may import far more.
    """
    own = [getattr(frame.function, "__module__", "") for frame in pipeline.frames.values()]
    others = [module for module in list(sys.modules) if module != "__main__"]  # executors have another __main__
    for module_name in [*(module for module in own if module in others), *others]:
        module = sys.modules[module_name]
        for name, value in list(vars(module).items()) if hasattr(module, "__dict__") else ():
            if value is pipeline:
                return f"{module_name}:{name}"
    raise ConfigError(
        f"Spark's executors import {pipeline!r} to decode its records, but no module that they can import has it: move "
        "it to a module (shop.py), and pass 'shop:sales' or import it from there; or leave value= out, and decode in "
        "the frames"
    )
