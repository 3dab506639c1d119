"""Parses and checks the options of ``writeStream.format("seekpoint")``, without asking a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from seekpoint.errors import ConfigError
from seekpoint.jobs.spark.settings import Env
from seekpoint.jobs.spark.source_options import advice_for, database_option
from seekpoint.ledger.tables import DEFAULT_SCHEMA

OPTIONS = ("database", "group", "key", "ledgerSchema", "table")
"""Every option of the sink."""

_SPELLED = {name.lower(): name for name in OPTIONS}
_OF_SPARK = {"checkpointlocation", "queryname"}  # the query's options, which Spark passes to the sink, too


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The table that a stream writes. ``key`` has the columns of an Upsert; if empty, rows are appended."""

    group: str
    table: str
    key: tuple[str, ...]
    database: Env
    schema: str


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Parse the options of a sink. Raises ConfigError, which names the option and what to write instead."""
    checked: dict[str, str] = {}
    for name, value in options.items():
        if name.lower() in _OF_SPARK:
            continue
        if name.lower() not in _SPELLED:
            raise ConfigError(_unknown(name))
        checked[_SPELLED[name.lower()]] = value.strip()
    for name, purpose in (
        ("group", "whose offsets are committed with the rows, as in group=shop-sales"),
        ("table", "that the rows are written to, as in table=public.sales"),
    ):
        if not checked.get(name):
            raise ConfigError(f"writeStream needs the option {name} {purpose}")
    key = tuple(column.strip() for column in checked.get("key", "").split(",")) if checked.get("key") else ()
    return SinkOptions(
        group=checked["group"],
        table=checked["table"],
        key=key,
        database=database_option(checked),
        schema=checked.get("ledgerSchema", DEFAULT_SCHEMA),
    )


def _unknown(name: str) -> str:
    if name.lower() == "path":
        return "writeStream has no path: name the table by the option table, and start() the query without a path"
    if name.lower().startswith("kafka."):
        return f"{name} is an option of readStream, whose brokers the sink uses, too: omit it here"
    return f"writeStream has no option {name}: {advice_for(name, _SPELLED)}"
