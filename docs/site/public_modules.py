"""The modules that users may import: each has a page of the API reference, and its names keep their promises."""

from __future__ import annotations

import inspect
from importlib import import_module
from types import ModuleType

PUBLIC_MODULES = [
    "seekpoint.admin",
    "seekpoint.codecs",
    "seekpoint.codecs.arrow",
    "seekpoint.codecs.registry",
    "seekpoint.errors",
    "seekpoint.events",
    "seekpoint.jobs.batch",
    "seekpoint.jobs.export",
    "seekpoint.jobs.reload",
    "seekpoint.ledger",
    "seekpoint.ledger.dead_letters",
    "seekpoint.metrics",
    "seekpoint.metrics.otel",
    "seekpoint.metrics.prometheus",
    "seekpoint.pipeline.sink",
    "seekpoint.records",
    "seekpoint.schema",
    "seekpoint.sinks.arrow",
    "seekpoint.spark",
    "seekpoint.testing",
    "seekpoint.testing.child_process",
    "seekpoint.testing.servers",
    "seekpoint.tracing",
    "seekpoint.web",
    "seekpoint.worker.assignment",
    "seekpoint.worker.health",
]


def public_names(module: ModuleType) -> list[str]:
    """The names that a module offers: its ``__all__``, or what it defines itself."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return list(listed)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and getattr(value, "__module__", None) == module.__name__
        and (inspect.isclass(value) or inspect.isfunction(value))
    ]


def documented_names() -> dict[str, dict[str, str | None]]:
    """For each public module its names, and for each name the module whose page already has it; None: this one has it.

    The root comes first: what ``seekpoint`` itself offers is documented there.
    """
    homes: dict[int, str] = {}
    modules: dict[str, dict[str, str | None]] = {}
    for module_name in ["seekpoint", *PUBLIC_MODULES]:
        module = import_module(module_name)
        names: dict[str, str | None] = {}
        for name in public_names(module):
            value = getattr(module, name)
            home = homes.setdefault(id(value), module_name) if callable(value) else module_name
            names[name] = None if home == module_name else home
        modules[module_name] = names
    return modules
