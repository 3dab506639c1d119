"""The table, and the three versions of the code that fills it: each computes the price of a flight differently."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from sqlalchemy import BigInteger, Column, MetaData, Table

from demo import flights
from demo.flights import Flight
from seekpoint import Pipeline, Record, Retry
from seekpoint.codecs import Json
from seekpoint.sinks import Append

GROUP = TOPIC = TABLE = "flights"


class Priced(Flight, frozen=True, gc=False):
    """A row of the table: the flight, what it costs, and the offset that it came from."""

    cents: int
    topic_offset: int


# The columns of the other demos, and a key, by which a merge compares.
table = Table(
    TABLE,
    MetaData(),
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    *(Column(column.name, column.type) for column in flights.table.c if column.name != "id"),
    Column("cents", BigInteger, nullable=False),
    Column("topic_offset", BigInteger, nullable=False),
)


@dataclass(frozen=True, slots=True)
class Version:
    """One way to compute what a flight costs; ``sql`` computes the same from a row, for the reader."""

    cents: Callable[[Flight], int]
    sql: str


def _late(flight: Flight) -> int:
    return 100 * max(flight.arr_delay or 0, 0)


def _cancelled(flight: Flight) -> int:
    return 50_000 if flight.arr_delay is None else 0


def _kilometers(flight: Flight) -> int:
    return flight.distance * 1609 // 1000


_LATE = "100 * greatest(coalesce(arr_delay, 0), 0)"
_CANCELLED = "CASE WHEN arr_delay IS NULL THEN 50000 ELSE 0 END"
_KILOMETERS = "distance * 1609 / 1000"

VERSIONS = {
    1: Version(lambda f: 11 * f.distance + _late(f), f"11 * distance + {_LATE}"),
    # Flights that never arrived cost something, too: 3 % of all rows change.
    2: Version(
        lambda f: 11 * f.distance + _late(f) + _cancelled(f),
        f"11 * distance + {_LATE} + {_CANCELLED}",
    ),
    # Distances become kilometers: all rows change.
    3: Version(
        lambda f: 11 * _kilometers(f) + _late(f) + _cancelled(f),
        f"11 * ({_KILOMETERS}) + {_LATE} + {_CANCELLED}",
    ),
}
_COLUMNS = Priced.__struct_fields__[:-1]


def make_pipeline(version: int) -> Pipeline:
    """The pipeline as it is deployed in this version."""
    cents = VERSIONS[version].cents

    def row(record: Record[Flight, bytes | None]) -> tuple[object, ...]:
        return (*msgspec.structs.astuple(record.value), cents(record.value))

    return Pipeline(
        GROUP,
        topics=TOPIC,
        value=Json(Flight),
        sinks=[Append(TABLE, columns=_COLUMNS, row=row, provenance={"offset": "topic_offset"})],
        version=version,
        # A high crash limit, because the demo kills workers, and no record must be suspected.
        retry=Retry(crashes=1_000),
    )


def name_of(version: int) -> str:
    """The name by which tasks import the pipeline."""
    return f"{__name__}:v{version}"


v1, v2, v3 = (make_pipeline(version) for version in VERSIONS)
