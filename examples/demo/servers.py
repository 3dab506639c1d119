"""The servers of a demo, and a folder for its logs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from rich.console import Console
from sqlalchemy import Engine, create_engine

from demo.flights import RECORDS, read_flights
from seekpoint.errors import ConfigError
from seekpoint.testing import Pair, start_pair
from seekpoint.testing.servers.process import Folder

DATABASE = "SEEKPOINT_DEMO_DATABASE"  # the variable from which Spark's processes read the database's URL
SMALLEST = 5_000  # records: fewer would leave too little in flight for the faults


@contextmanager
def servers(records: int, console: Console) -> Iterator[tuple[Pair, Engine, Path]]:
    """Start Postgres and Kafka; yields them with an engine and an empty folder. All is removed at the end.

    Raises ConfigError for a missing data set or a number of records that is too small or too large, and ServerFailed
    if a server cannot be started.
    """
    if not SMALLEST <= records <= RECORDS:
        raise ConfigError(f"the demo takes {SMALLEST:,} to {RECORDS:,} records, not {records:,}")
    next(read_flights(1))  # a missing data set is reported before servers are started
    with console.status("starting Postgres and Kafka"):
        pair = start_pair(own=True, progress=console.print)
    with pair, closing(Folder("demo")) as folder:
        console.print(pair.describe(), highlight=False)
        engine = create_engine(pair.postgres.url)
        try:
            yield pair, engine, folder.path
        finally:
            engine.dispose()
