"""The test kit: records made by hand, and the real unit of work without a broker.

``pytest_plugins = ["seekpoint.testing.pytest_plugin"]`` adds real servers as fixtures. There is no fake ledger: the
fence is always real SQL.
"""

from seekpoint.testing.kit import Processed, batch, process, raw, record

__all__ = ["Processed", "batch", "process", "raw", "record"]
