"""The program of one worker process of ``make demo-cdc``."""

from __future__ import annotations

from demo.cdc.tables import pipeline
from demo.worker_process import serve

if __name__ == "__main__":
    serve(lambda _order: (pipeline, ()))
