"""The modules that users may import: each has a page of the API reference, and its names keep their promises."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

PUBLIC_MODULES = [
    "seekpoint.admin",
    "seekpoint.codecs",
    "seekpoint.errors",
    "seekpoint.events",
    "seekpoint.jobs",
    "seekpoint.metrics",
    "seekpoint.schema",
    "seekpoint.sinks",
    "seekpoint.spark",
    "seekpoint.testing",
    "seekpoint.web",
]


def public_names(module: ModuleType) -> list[str]:
    """The names that a module offers: its ``__all__``."""
    return list(module.__all__)


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
