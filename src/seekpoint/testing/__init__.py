"""The test kit: records made by hand, and the real unit of work without a broker.

``pytest_plugins = ["seekpoint.testing.pytest_plugin"]`` adds real servers as fixtures. There is no fake ledger: the
fence is always real SQL.
"""

from seekpoint.testing.chaos import Survived, check_exactly_once
from seekpoint.testing.frames import assert_frames_merge
from seekpoint.testing.kit import Processed, batch, process, raw, record

__all__ = ["Processed", "Survived", "assert_frames_merge", "batch", "check_exactly_once", "process", "raw", "record"]
