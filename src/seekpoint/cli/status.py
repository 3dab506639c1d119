"""``seekpoint status``: where a group stands, partition by partition."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from sqlalchemy import Engine, select

from seekpoint import schema as ledger_schema
from seekpoint.cli.explain import FAILED, explained
from seekpoint.cli.options import (
    AsJson,
    DatabaseUrl,
    Kafka,
    KafkaConfig,
    Schema,
    kafka_settings,
    one_off_engine,
    without,
)
from seekpoint.errors import ConfigError
from seekpoint.kafka.identity import Identity
from seekpoint.kafka.watermarks import Watermarks
from seekpoint.ledger import Ledger, Position
from seekpoint.records import Partition
from seekpoint.tables import DEFAULT_SCHEMA, consumer_group, in_schema

KAFKA_TIMEOUT = 10.0  # seconds


@dataclass(frozen=True, slots=True)
class Line:
    """One partition. ``end`` is behind the last record that can be read; it and ``lag`` need the brokers."""

    topic: str
    partition: int
    next: int
    end: int | None
    lag: int | None
    epoch: int
    owner: str | None
    committed_at: datetime | None

    def as_dict(self) -> dict[str, Any]:
        """The line for machines."""
        at = self.committed_at
        return {name: getattr(self, name) for name in self.__slots__} | {
            "committed_at": None if at is None else at.isoformat()
        }


def status(
    group: Annotated[str, typer.Argument(help="The group's name, as the pipeline declares it.")],
    *,
    database_url: DatabaseUrl,
    kafka: Kafka = None,
    kafka_config: KafkaConfig = None,
    schema: Schema = DEFAULT_SCHEMA,
    as_json: AsJson = False,
) -> None:
    """Show where a group stands: next offset, end of the log, lag, epoch and owner of each partition.

    Without brokers (--kafka, --kafka-config) end and lag are empty. Reads only; workers are not disturbed.
    """
    with explained():
        engine = one_off_engine(database_url)
        settings = kafka_settings(kafka, kafka_config)
        if settings and (problem := without(settings)) is not None:
            raise ConfigError(problem)
        positions = _positions(engine, group, schema)
        ends, doubts = _ends(positions, settings) if settings else ({}, [])
        lines = [_line(at, ends.get(at.partition)) for at in positions]
        if as_json:
            typer.echo(json.dumps([line.as_dict() for line in lines], indent=2))
        else:
            # A width beyond any terminal keeps lines whole where the output is no terminal.
            console = Console(soft_wrap=True)
            console.print(_table(group, lines))
        for doubt in doubts:
            typer.echo(f"warning: {doubt}", err=True)


def _positions(engine: Engine, group: str, schema: str) -> list[Position]:
    with engine.connect() as connection:
        ledger_schema.check(connection, schema)
        names = connection.scalars(select(consumer_group.c.name).execution_options(**in_schema(schema))).all()
    if group not in names:
        known = f"it knows {', '.join(sorted(names))}" if names else "no worker has claimed anything yet"
        typer.echo(f"error: the ledger in schema {schema!r} has no group {group!r}; {known}", err=True)
        raise typer.Exit(FAILED)
    return Ledger(engine, group, schema=schema).read()


def _ends(positions: Sequence[Position], settings: Mapping[str, Any]) -> tuple[dict[Partition, int], list[str]]:
    """Where the logs end, of topics that are still the ones that were read; and what is strange about the others."""
    identity = Identity(settings, KAFKA_TIMEOUT)
    identity.cluster_id()  # brokers that are away are told first, and in one sentence
    ids = identity.ask({at.partition.topic for at in positions}).result()
    doubts = {}
    for at in positions:
        topic, now = at.partition.topic, ids[at.partition.topic]
        if now is None:
            doubts[topic] = f"topic {topic!r} does not exist on these brokers"
        elif now != at.topic_id:
            doubts[topic] = f"topic {topic!r} is not the one that was read: it was created anew, or lives elsewhere"
    watermarks = Watermarks(identity, committed=settings.get("isolation.level") != "read_uncommitted")
    same = [at.partition for at in positions if at.partition.topic not in doubts]
    return {partition: edge.offset for partition, edge in watermarks.ends(same).items()}, list(doubts.values())


def _line(at: Position, end: int | None) -> Line:
    return Line(
        topic=at.partition.topic,
        partition=at.partition.number,
        next=at.next_offset,
        end=end,
        lag=None if end is None else max(0, end - at.next_offset),
        epoch=at.epoch,
        owner=None if at.owner is None else str(at.owner),
        committed_at=at.committed_at,
    )


def _table(group: str, lines: Sequence[Line]) -> Table:
    table = Table(title=group, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for name in ("topic", "partition", "next", "end", "lag", "epoch", "owner", "committed at"):
        table.add_column(name, justify="right" if name in {"partition", "next", "end", "lag", "epoch"} else "left")
    for line in lines:
        numbers = (line.partition, line.next, line.end, line.lag, line.epoch)
        shown = ["" if number is None else str(number) for number in numbers]
        at = "" if line.committed_at is None else line.committed_at.isoformat(" ", "seconds")
        table.add_row(line.topic, *shown, (line.owner or "")[:8], at)
    return table
