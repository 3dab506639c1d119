"""The program of one worker process: an ordinary worker, whose handler has bugs. Started by the pool of this demo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from demo.poison.handling import BuggyHandler, Outages, make_pipeline, make_table
from demo.worker_process import serve
from seekpoint import Pipeline
from seekpoint.events import Observer


def _prepare(order: Mapping[str, Any]) -> tuple[Pipeline, Sequence[Observer]]:
    outages = Outages(Path(order["outages"]))
    return make_pipeline(order["name"], BuggyHandler(make_table(order["name"]), outages)), [outages]


if __name__ == "__main__":
    serve(_prepare)
