"""The test kit, for users' tests: hand-made records, and the real unit of work without a broker.

- ``process``, ``check_exactly_once``, ``assert_frames_merge`` apply records made by ``record``, ``raw``, ``batch``.
- ``ChildProcess`` runs a worker in a separate process, which a test can kill or stop at one of the worker's events.
- ``start_pair``, ``start_postgres``, ``start_kafka``, ``start_spark`` start throwaway servers (extra ``dev``), which
  end with the process that started them, and leave no folder.

``pytest_plugins = ["seekpoint.testing.pytest_plugin"]`` adds real servers as fixtures. There is no fake ledger: the
fence is always real SQL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from seekpoint.testing.chaos import Survived, check_exactly_once
from seekpoint.testing.child_process import (
    ChildProcess,
    NotReached,
    Report,
    Reporter,
    Started,
    obey,
    plain_event,
    receive,
    report,
    start_python,
)
from seekpoint.testing.frames import assert_frames_merge
from seekpoint.testing.kit import Processed, batch, process, raw, record

if TYPE_CHECKING:
    from seekpoint.testing.servers.kafka import KafkaServer, start_kafka
    from seekpoint.testing.servers.pair import Pair, start_pair
    from seekpoint.testing.servers.postgres import PostgresServer, start_postgres
    from seekpoint.testing.servers.spark import start_spark

__all__ = [
    "ChildProcess",
    "KafkaServer",
    "NotReached",
    "Pair",
    "PostgresServer",
    "Processed",
    "Report",
    "Reporter",
    "Started",
    "Survived",
    "assert_frames_merge",
    "batch",
    "check_exactly_once",
    "obey",
    "plain_event",
    "process",
    "raw",
    "receive",
    "record",
    "report",
    "start_kafka",
    "start_pair",
    "start_postgres",
    "start_python",
    "start_spark",
]


def __getattr__(name: str) -> Any:
    """Import a server's module when it is first used."""
    if name in {"KafkaServer", "start_kafka"}:
        from seekpoint.testing.servers import kafka  # noqa: PLC0415 -- an extra

        return getattr(kafka, name)
    if name in {"Pair", "start_pair"}:
        from seekpoint.testing.servers import pair  # noqa: PLC0415 -- an extra

        return getattr(pair, name)
    if name in {"PostgresServer", "start_postgres"}:
        from seekpoint.testing.servers import postgres  # noqa: PLC0415 -- an extra

        return getattr(postgres, name)
    if name == "start_spark":
        from seekpoint.testing.servers import spark  # noqa: PLC0415 -- an extra

        return getattr(spark, name)
    raise AttributeError(f"module 'seekpoint.testing' has no attribute {name!r}")
