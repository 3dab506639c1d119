"""The tables and the pipeline of DataFrames: each flight as a row, and sums of each airline and month."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import BigInteger, Column, DateTime, Integer, SmallInteger, Table, Text

from demo.flights import GROUP, TABLE, TOPIC, Flight, table
from seekpoint.codecs import Json
from seekpoint.sinks import Accumulate, Append
from seekpoint.spark import Frame, SparkPipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

airlines = Table(
    "airlines",
    table.metadata,
    Column("carrier", Text, primary_key=True),
    Column("name", Text, nullable=False),
)
sums = Table(
    "airline_months",
    table.metadata,
    Column("airline", Text, primary_key=True),
    Column("month", SmallInteger, primary_key=True),
    Column("flights", BigInteger, nullable=False),
    Column("miles", BigInteger, nullable=False),
    Column("minutes_late", BigInteger, nullable=False),
    Column("cancelled", BigInteger, nullable=False),
    Column("first_departure", DateTime(timezone=True)),
    Column("longest_delay", Integer),
)


def every_flight(flights: DataFrame) -> DataFrame:
    """Each flight as a row."""
    return flights.select("partition", "offset", *Flight.__struct_fields__)


def by_airline_and_month(flights: DataFrame, airlines: DataFrame) -> DataFrame:
    """Sums of each airline, by its name, and month."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 -- as Spark's users write it; an extra

    late = F.greatest(F.col("arr_delay"), F.lit(0))
    rows = flights.join(airlines, "carrier").groupBy(F.col("name").alias("airline"), "month")
    return rows.agg(
        F.count("*").alias("flights"),
        F.sum("distance").alias("miles"),
        F.sum(F.coalesce(late, F.lit(0))).alias("minutes_late"),
        F.count_if(F.col("arr_delay").isNull()).alias("cancelled"),
        F.min("time_hour").alias("first_departure"),
        F.max("arr_delay").alias("longest_delay"),
    )


pipeline = SparkPipeline(
    GROUP,
    topics=TOPIC,
    value=Json(Flight),
    inputs={"airlines": airlines.name},
    frames={
        "flights": Frame(every_flight, Append(TABLE)),
        "sums": Frame(
            by_airline_and_month,
            Accumulate(
                sums.name,
                key=["airline", "month"],
                add=["flights", "miles", "minutes_late", "cancelled"],
                least=["first_departure"],
                most=["longest_delay"],
            ),
        ),
    },
)
NAME = f"{__name__}:pipeline"  # how executors import it
