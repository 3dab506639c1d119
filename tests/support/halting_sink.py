"""The sink ``seekpoint`` under another name, one of whose processes halts: Spark imports this module in each of them.

Spark makes a sink's writer in one process, runs its tasks in others, and commits in yet another one.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from pyspark_seekpoint import DefaultSource
from seekpoint.jobs.batch import steps
from seekpoint.jobs.frames import stream_writer, under_claims
from support import job_process
from support.job_process import HaltedDriver

PLACE, HALTED = "SEEKPOINT_TEST_HALTS_AT", "SEEKPOINT_TEST_HALTED"
"""Environment variables: the place, as for ``SinkProcess``; and the file that is created there."""


class HaltingSink(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return "seekpoint_halting"


def _halt(*_: object) -> None:
    """Create the file, and wait forever: Spark reads what these processes print."""
    Path(os.environ[HALTED]).touch()
    threading.Event().wait()


def _halt_at(place: str) -> None:
    HaltedDriver.halts_at = place
    vars(job_process)["halt"] = _halt
    for module in (stream_writer, under_claims):
        vars(module)["Driver"] = HaltedDriver
    functions = {"called": (stream_writer, "take_plan"), "written": (stream_writer.StreamWriter, "commit"),
                 "applied": (steps, "totals")}  # fmt: skip
    if place in functions:
        setattr(*functions[place], _halt)


if PLACE in os.environ:  # not in the tests' process
    _halt_at(os.environ[PLACE])
