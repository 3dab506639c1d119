"""How a function becomes a command, and options that several commands take: dataclasses whose fields are options."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from sqlalchemy import URL, Engine

from seekpoint import schema as ledger_schema
from seekpoint.cli.errors import explained
from seekpoint.cli.job_options import Job, job_of_workers, refuse_extras
from seekpoint.cli.options import (
    AsJson,
    DatabaseUrl,
    OptionalDatabaseUrl,
    Schema,
    database,
    kafka_settings,
    one_off_engine,
    require_brokers,
)
from seekpoint.errors import ConfigError
from seekpoint.ledger.tables import DEFAULT_SCHEMA
from seekpoint.postgres.engine import postgres_engine
from seekpoint.worker.import_by_name import load
from seekpoint.worker.worker import Worker

Command = TypeVar("Command", bound=Callable[..., Any])


def command(function: Command) -> Command:
    """The function as Typer needs it: errors are explained, and a dataclass's fields become options."""
    hints = get_type_hints(function, include_extras=True)
    groups = {name: kind for name, kind in hints.items() if inspect.isclass(kind) and is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(function).parameters.items():
        parameters += _options_of(groups[name]) if name in groups else [parameter.replace(annotation=hints[name])]

    @functools.wraps(function)
    def run(**given: Any) -> Any:
        made = {name: kind(**{one.name: given.pop(one.name) for one in fields(kind)}) for name, kind in groups.items()}
        with explained():
            return function(**given, **made)

    typed: Any = run
    typed.__signature__ = inspect.Signature(parameters)
    typed.__annotations__ = {one.name: one.annotation for one in parameters}
    return typed  # type: ignore[no-any-return]


def _options_of(kind: type) -> list[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if one.default is MISSING else one.default,
            annotation=hints[one.name],
        )
        for one in fields(kind)
    ]


@dataclass(frozen=True, kw_only=True)
class DatabaseOptions:
    """Which ledger, for commands that need the database alone."""

    database_url: DatabaseUrl
    schema: Schema = DEFAULT_SCHEMA

    def engine(self) -> Engine:
        """An engine on a ledger at this library's revision. Raises SchemaMismatch."""
        engine = one_off_engine(self.database_url)
        with engine.connect() as connection:
            ledger_schema.check(connection, self.schema)
        return engine


@dataclass(frozen=True, kw_only=True)
class LedgerOptions(DatabaseOptions):
    """Which ledger, and how the answer is printed."""

    as_json: AsJson = False


@dataclass(frozen=True, kw_only=True)
class KafkaOptions:
    """Which brokers."""

    kafka: Annotated[
        list[str] | None,
        typer.Option(
            "--kafka", metavar="KEY=VALUE", help="A key of librdkafka's configuration; repeat it. Wins over the file."
        ),
    ] = None
    kafka_config: Annotated[
        Path | None,
        typer.Option(
            envvar="SEEKPOINT_KAFKA_CONFIG", metavar="FILE", help="A properties file with librdkafka's configuration."
        ),
    ] = None

    def settings(self) -> dict[str, str]:
        """librdkafka's configuration. Raises ConfigError where it cannot be read."""
        return kafka_settings(self.kafka, self.kafka_config)


@dataclass(frozen=True, kw_only=True)
class ServerOptions(KafkaOptions):
    """Which database and brokers, for commands whose target may be a Worker that brings both."""

    database_url: OptionalDatabaseUrl = None
    schema: Schema = DEFAULT_SCHEMA

    @contextmanager
    def job(self, context: typer.Context, *targets: str) -> Iterator[Job]:
        """The job that a command line names, of these pipelines or of none; its connections are closed at the end.

        A Worker brings its own database and brokers. Raises ConfigError where none are named, and where two Workers
        disagree.
        """
        made = {target: load(target, from_here=True) for target in targets}
        if workers := {target: one for target, one in made.items() if isinstance(one, Worker)}:
            refuse_extras(context, next(iter(workers)))
            found = job_of_workers(targets, workers)
        else:
            url, settings = self.named()
            found = Job(targets, postgres_engine(url), settings, self.schema, None)
        try:
            yield found
        finally:
            found.engine.dispose()

    def named(self) -> tuple[URL, dict[str, str]]:
        """The database's URL and librdkafka's configuration. Raises ConfigError where one is not named."""
        if not self.database_url:
            raise ConfigError("no database is named: give --database-url, or set SEEKPOINT_DATABASE_URL")
        url, settings = database(self.database_url), self.settings()
        require_brokers(settings)
        return url, settings


@dataclass(frozen=True, kw_only=True)
class SparkOptions:
    """Whether Spark's tasks read or write, and how they are set up."""

    spark: Annotated[
        str | None,
        typer.Option(metavar="MASTER", help="Use Spark's tasks: local[4], spark://host:7077. Default: this process."),
    ] = None
    spark_conf: Annotated[
        list[str] | None, typer.Option("--spark-conf", metavar="KEY=VALUE", help="A setting of Spark's; repeat it.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class ReadOptions(SparkOptions):
    """Who reads the log for a reload: this process, others beside it, or Spark's tasks."""

    processes: Annotated[
        int, typer.Option(help="Read the log in so many processes of this machine. Default: in this one.", min=0)
    ] = 0
    frame: Annotated[
        list[str] | None,
        typer.Option(
            "--frame",
            metavar="TABLE=MODULE:FUNCTION",
            help="Compute what a handler writes to this table by Spark, from a DataFrame; repeat it. Needs --spark.",
        ),
    ] = None
