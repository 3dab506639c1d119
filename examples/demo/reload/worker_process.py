"""The program of one worker process: an ordinary worker with one version of the code."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from demo.reload.handling import make_pipeline
from demo.worker_process import serve
from seekpoint import Pipeline
from seekpoint.errors import HandlerOutdated
from seekpoint.events import Observer

OUTDATED = 4  # exit code: a newer version has taken the group over


def _prepare(order: Mapping[str, Any]) -> tuple[Pipeline, Sequence[Observer]]:
    return make_pipeline(order["version"]), []


if __name__ == "__main__":
    try:
        serve(_prepare)
    except HandlerOutdated:
        sys.exit(OUTDATED)
