"""Describes the machine and its load for a report, without names that identify it."""

from __future__ import annotations

import os
import platform
import statistics
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import confluent_kafka
import psutil
import psycopg

PACKAGES = ("seekpoint", "confluent-kafka", "psycopg", "sqlalchemy", "msgspec", "pyarrow")


def describe() -> dict[str, Any]:
    """Processors, memory, operating system; no name, no path."""
    return {
        "processor": _processor(),
        "cores": psutil.cpu_count() or 1,
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "system": f"{platform.system()}, {platform.machine()}",
    }


def _processor() -> str:
    """The model's name, if the system reports it."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def versions() -> dict[str, str]:
    """The versions of Python and of Seekpoint's dependencies."""
    versions_by_package = {"python": platform.python_version(), "librdkafka": confluent_kafka.libversion()[0]}
    for package in PACKAGES:
        try:
            versions_by_package[package] = version(package)
        except PackageNotFoundError:
            continue
    return {**versions_by_package, "psycopg_implementation": psycopg.pq.__impl__}


def busy(seconds: float) -> float:
    """How busy the processors are that this process may use, in percent: the load of all processes."""
    percents = psutil.cpu_percent(seconds, percpu=True)
    return round(statistics.mean(percents[core] for core in os.sched_getaffinity(0)), 1)


def today() -> str:
    """The day, in UTC."""
    return datetime.now(UTC).date().isoformat()
