"""What a report says of the machine and of what ran on it: never whose it is."""

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
    """The model's name, where the system reports it."""
    told = Path("/proc/cpuinfo")
    lines = told.read_text(encoding="utf-8").splitlines() if told.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def versions() -> dict[str, str]:
    """Of Python and of what Seekpoint depends on."""
    found = {"python": platform.python_version(), "librdkafka": confluent_kafka.libversion()[0]}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return {**found, "psycopg_implementation": psycopg.pq.__impl__}


def busy(seconds: float) -> float:
    """Percent of the processors that this process may use that are in use now, by all processes."""
    each = psutil.cpu_percent(seconds, percpu=True)
    return round(statistics.mean(each[core] for core in os.sched_getaffinity(0)), 1)


def today() -> str:
    """The day, in UTC."""
    return datetime.now(UTC).date().isoformat()
