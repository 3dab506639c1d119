"""Records a connection's statements, and counts its round trips, from libpq's trace of all messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import Any

import psycopg
from sqlalchemy import Engine, event

from seekpoint.postgres import round_trip

ANSWERS = ("ReadyForQuery", "CopyInResponse", "CopyOutResponse")  # what a client waits for before it continues


@contextmanager
def overheard(engine: Engine) -> Iterator[set[str]]:
    """The texts of all statements that the engine runs during the block."""
    texts: set[str] = set()

    def note(_connection: Any, _cursor: Any, text: str, *_: Any) -> None:
        texts.add("\n".join(line.rstrip() for line in text.strip().splitlines()) + ";\n")

    def rows_of(driver: Any, *questions: tuple[str, Any], is_prepared: bool = False) -> Any:
        for text, _ in questions:
            note(None, None, text)
        return run(driver, *questions, is_prepared=is_prepared)

    event.listen(engine, "before_cursor_execute", note)
    run, round_trip.rows_of = round_trip.rows_of, rows_of
    try:
        yield texts
    finally:
        event.remove(engine, "before_cursor_execute", note)
        round_trip.rows_of = run


@dataclass
class RoundTrips:
    """``count`` round trips; it is set at the end of the block."""

    count: int = 0


@contextmanager
def trips(driver: psycopg.Connection[Any]) -> Iterator[RoundTrips]:
    """Count the round trips of this connection during the block."""
    trips = RoundTrips()
    with TemporaryFile() as file:
        driver.pgconn.trace(file.fileno())
        try:
            yield trips
        finally:
            driver.pgconn.untrace()
            file.seek(0)
            messages = [line.decode(errors="replace").rstrip("\n").split("\t") for line in file]
            trips.count = sum(len(message) > 3 and message[1] == "B" and message[3] in ANSWERS for message in messages)
