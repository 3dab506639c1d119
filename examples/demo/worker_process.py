"""The program of one worker process: an ordinary worker that reports its events, and halts where the demo sets a break.

Started by :mod:`demo.worker_pool`. The first order is the configuration.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from demo.flights import pipeline
from seekpoint import Limits, Pipeline, Worker, events
from seekpoint.testing import Reporter, receive


def serve(prepare: Callable[[Mapping[str, Any]], tuple[Pipeline, Sequence[events.Observer]]]) -> None:
    """Run one worker until SIGTERM; ``prepare`` makes its pipeline and its other observers, from the configuration."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    order = receive()
    reporter = Reporter()
    worker_pipeline, observers = prepare(order)
    worker = Worker(
        worker_pipeline,
        engine=order["database"],
        kafka=order["kafka"],
        limits=Limits(**order["limits"]),
        observe=[*observers, reporter],
    )
    reporter.obey()
    worker.run()


if __name__ == "__main__":
    serve(lambda _order: (pipeline, ()))
