"""Options that several commands share, and functions that make engines, settings and jobs from them."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from sqlalchemy import URL, Engine, create_engine, event
from sqlalchemy.pool import NullPool

from seekpoint import remedies
from seekpoint import schema as ledger_schema
from seekpoint.cli.errors import explained
from seekpoint.cli.masking import keep_secret
from seekpoint.errors import ConfigError
from seekpoint.kafka.config import require_properties
from seekpoint.ledger.tables import DEFAULT_SCHEMA
from seekpoint.pipeline.policy import Limits
from seekpoint.postgres.engine import check_connections, postgres_engine, read_url, require_readable
from seekpoint.records import Partition
from seekpoint.worker.import_by_name import load, name_with_topics
from seekpoint.worker.worker import Worker

_DATABASE_URL = typer.Option(envvar="SEEKPOINT_DATABASE_URL", help="postgresql://user:password@host:5432/database")
DatabaseUrl = Annotated[str, _DATABASE_URL]
OptionalDatabaseUrl = Annotated[str | None, _DATABASE_URL]
Schema = Annotated[str, typer.Option(help="Postgres schema of the ledger.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Group = Annotated[str, typer.Argument(help="The group's name, as the pipeline declares it.")]
Apply = Annotated[bool, typer.Option("--apply", "--execute", help="Carry out the plan. Default: only show it.")]
Reason = Annotated[str | None, typer.Option(help="Why, for the record; needed with --apply.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation at a terminal.")]
Actor = Annotated[str | None, typer.Option(help="Who, for the record. Default: the user of the operating system.")]

LAST_PORT = 65_535

_DURATION = re.compile(r"(\d{1,6})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def partition_named(text: str) -> Partition:
    """The partition that ``TOPIC:PARTITION`` names."""
    topic, _, number = text.rpartition(":")
    if not topic or re.fullmatch("[0-9]{1,9}", number) is None:
        raise ConfigError(f"a partition is named TOPIC:PARTITION, as in orders:0, not {text!r}")
    return Partition(topic, int(number))


def host_and_port(address: str) -> tuple[str, int]:
    """Host and port of ``--listen``. Raises ConfigError."""
    host, colon, port = address.rpartition(":")
    if not (colon and host and re.fullmatch("[0-9]{1,5}", port) and int(port) <= LAST_PORT):
        raise ConfigError(f"--listen takes host:port, e.g. 127.0.0.1:8080 or 0.0.0.0:8080, not {address!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def address_of_worker(address: str, number: int) -> str:
    """The address of worker ``number``, from 1: the first has the port of ``--listen``, the others the next ports.

    Raises ConfigError.
    """
    port = host_and_port(address)[1] + number - 1
    if port < number or port > LAST_PORT:
        allowed = f"choose a port from 1 to {LAST_PORT + 1 - number}"
        raise ConfigError(f"--listen {address}: worker {number} of --workers cannot listen on port {port}; {allowed}")
    return f"{address.rpartition(':')[0]}:{port}"


def database(text: str) -> URL:
    """The URL with the driver psycopg. Raises ConfigError for an invalid URL, without quoting it."""
    url = read_url(text)
    if url.get_backend_name() not in {"postgresql", "postgres"}:
        raise ConfigError(f"the ledger lives in Postgres, not in {url.get_backend_name()}: give a URL postgresql://…")
    keep_secret(url)
    return url.set(drivername="postgresql+psycopg")


def one_off_engine(text: str) -> Engine:
    """An engine that keeps no connection open, for commands that read once and end."""
    engine = create_engine(database(text), poolclass=NullPool)
    event.listen(engine, "connect", require_readable, insert=True)
    return check_connections(engine)


def kafka_settings(pairs: Iterable[str] | None, file: Path | None) -> dict[str, str]:
    """librdkafka's configuration, from a properties file and from ``key=value`` pairs, which take precedence."""
    settings = {} if file is None else dict(_properties(file))
    for pair in pairs or ():
        name = pair.partition("=")[0]  # the value is not quoted: it may be a password
        usage = f"--kafka takes key=value, e.g. --kafka bootstrap.servers=localhost:9092, not {name!r}"
        settings.update([key_value(pair, usage)])
    keep_secret(kafka=settings)
    return settings


def _properties(file: Path) -> Mapping[str, str]:
    """The file's lines ``key=value``, without blank lines and comments (``#`` or ``!``)."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        restarted = (
            '; if `seekpoint dev` was restarted: eval "$(seekpoint dev env)"' if "seekpoint-dev-" in str(file) else ""
        )
        raise ConfigError(f"the Kafka configuration {file} cannot be read: {why}{restarted}") from None
    settings: dict[str, str] = {}
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line[0] in "#!":
            continue
        # The line is not quoted: it may hold a password.
        settings.update([key_value(line, f"{file}, line {number}: expected key=value, or # before a comment")])
    return settings


def names_brokers(settings: Mapping[str, Any]) -> bool:
    """Whether this configuration of librdkafka says where the brokers are."""
    return bool(settings.get("bootstrap.servers") or settings.get("metadata.broker.list"))


def require_brokers(settings: Mapping[str, Any]) -> None:
    """Raise ConfigError if no brokers are named, or librdkafka does not know a property."""
    if not names_brokers(settings):
        raise ConfigError(
            "no brokers are named: give --kafka bootstrap.servers=host:9092, or a properties file with --kafka-config "
            "or SEEKPOINT_KAFKA_CONFIG"
        )
    require_properties(settings)


def require_reason(apply: bool, reason: str | None) -> None:
    """Raise ConfigError for ``--apply`` without a reason."""
    if apply and not (reason or "").strip():
        raise ConfigError("--apply needs --reason: say why; the ledger stores it in admin_action")


def at_terminal() -> bool:
    """Whether there is a terminal, so that the command can ask."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str) -> None:
    """Ask at the terminal; do nothing in a script. If the answer is no, end the command with 1."""
    if at_terminal():
        typer.confirm(question, abort=True, err=True)


def duration(text: str, option: str) -> timedelta:
    """The length of time ``90s``, ``30m``, ``12h`` or ``7d``. Raises ConfigError for another text."""
    if match := _DURATION.fullmatch(text.strip()):
        return timedelta(**{_UNITS[match[2]]: int(match[1])})
    raise ConfigError(f"{option} takes a length of time such as 90s, 30m, 12h, 7d; not {text!r}")


def since(text: str) -> datetime:
    """The time of ``2026-08-01T12:00Z``, or of ``12h`` ago. Raises ConfigError for another text or a missing zone."""
    if _DURATION.fullmatch(text.strip()):
        try:
            return datetime.now(UTC) - duration(text, "--since")
        except OverflowError:
            raise ConfigError(f"--since {text}: that is before the year 1; omit it to mean all") from None
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ConfigError(
            f"--since takes a time such as 2026-08-01T12:00Z, or how long ago: 90s, 30m, 12h, 7d; not {text!r}"
        ) from None
    if time.tzinfo is None:
        raise ConfigError(f"--since {text}: say in which zone, e.g. {text}Z or {text}+02:00")
    return time


# -- jobs --------------------------------------------------------------------------------------------------

Targets = Annotated[
    list[str],
    typer.Argument(
        metavar="MODULE:NAME...",
        help="Pipelines, Workers, or functions that return one; name all that write the tables.",
    ),
]
Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", help="Only this topic of the pipeline, whose tables no other topic writes (repeatable)."),
]
ArchiveRoot = Annotated[
    str | None,
    typer.Option(
        "--archive", metavar="URL", help="Read records that the log no longer has from this export: a folder or URL."
    ),
]


def key_value(text: str, usage: str) -> tuple[str, str]:
    """Key and value of ``key=value``, stripped of blanks. Raises ConfigError with the usage for another text."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(usage)
    return key.strip(), value.strip()


@dataclass(frozen=True, slots=True)
class Job:
    """Pipelines by name, and their servers. ``kafka`` may hold passwords."""

    names: tuple[str, ...]
    engine: Engine
    kafka: dict[str, Any]
    schema: str
    limits: Limits | None


def job_of_workers(names: tuple[str, ...], workers: dict[str, Worker]) -> Job:
    (first, worker), *others = workers.items()
    for target, other in others:
        if (other.engine.url, other.schema, other.kafka) != (worker.engine.url, worker.schema, worker.kafka):
            raise ConfigError(
                f"{first} and {target} are Workers with different databases, schemas or brokers, but a job has one of "
                "each: name their pipelines instead, and the servers with options"
            )
    keep_secret(worker.engine.url, dict(worker.kafka))
    return Job(names, worker.engine, dict(worker.kafka), worker.schema, worker.limits)


def refuse_extras(context: typer.Context, target: str) -> None:
    """Raise ConfigError for an option that a Worker sets itself, such as its database."""
    required = {parameter.name for parameter in context.command.params if parameter.required}
    if "database_url" in required:  # a command that requires the ledger also needs its schema
        required.add("schema")
    names = ("database_url", "kafka", "kafka_config", "schema", "start_wait", "tracing")
    for name in (*names, "accept_declaration", "accept_forgotten", "mirror"):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE" and name not in required:
            option = next(parameter.opts[0] for parameter in context.command.params if parameter.name == name)
            raise ConfigError(f"{target} is a Worker and brings its own database and brokers: remove {option}")


# -- options as dataclasses ------------------------------------------------------------------------------

Command = TypeVar("Command", bound=Callable[..., Any])


def command(function: Command) -> Command:
    """Adapt a function for Typer: explain its errors, and turn the fields of its dataclasses into options."""
    hints = get_type_hints(function, include_extras=True)
    groups = {name: kind for name, kind in hints.items() if inspect.isclass(kind) and is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(function).parameters.items():
        parameters += _options_of(groups[name]) if name in groups else [parameter.replace(annotation=hints[name])]

    @functools.wraps(function)
    def run(**arguments: Any) -> Any:
        option_groups = {
            name: kind(**{option.name: arguments.pop(option.name) for option in fields(kind)})
            for name, kind in groups.items()
        }
        with explained(), _naming_pipeline(arguments.get("target"), *(arguments.get("targets") or ())):
            return function(**arguments, **option_groups)

    typed: Any = run
    typed.__signature__ = inspect.Signature(parameters)
    typed.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return typed  # type: ignore[no-any-return]


@contextmanager
def _naming_pipeline(*targets: str | None) -> Iterator[None]:
    """Put the command line's only pipeline into the remedies of a ConfigError."""
    names = [target for target in targets if target]
    try:
        yield
    except ConfigError as error:
        if len(names) == 1:
            error.args = (remedies.for_pipeline(error.text, names[0]),)
        raise


def _options_of(kind: type) -> list[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(
            option.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if option.default is MISSING else option.default,
            annotation=hints[option.name],
        )
        for option in fields(kind)
    ]


@dataclass(frozen=True, kw_only=True)
class DatabaseOptions:
    """The ledger, for commands that need only the database."""

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
    """The ledger, and whether to print JSON."""

    as_json: AsJson = False


@dataclass(frozen=True, kw_only=True)
class KafkaOptions:
    """The brokers."""

    kafka: Annotated[
        list[str] | None,
        typer.Option(
            "--kafka", metavar="KEY=VALUE", help="librdkafka setting (repeatable). Takes precedence over the file."
        ),
    ] = None
    kafka_config: Annotated[
        Path | None,
        typer.Option(
            envvar="SEEKPOINT_KAFKA_CONFIG", metavar="FILE", help="A properties file with librdkafka's configuration."
        ),
    ] = None

    def settings(self) -> dict[str, str]:
        """librdkafka's configuration. Raises ConfigError if it cannot be read."""
        return kafka_settings(self.kafka, self.kafka_config)


@dataclass(frozen=True, kw_only=True)
class ServerOptions(KafkaOptions):
    """Database and brokers, for commands whose target may be a Worker that has both."""

    database_url: OptionalDatabaseUrl = None
    schema: Schema = DEFAULT_SCHEMA

    @contextmanager
    def job(self, context: typer.Context, *targets: str, topics: Sequence[str] = ()) -> Iterator[Job]:
        """The command line's job, with these pipelines or none; closes its connections at the end.

        ``topics`` restrict the job's only pipeline. A Worker brings its own servers. Raises ConfigError if no servers
        are named, or if two Workers have different ones.
        """
        if topics and len(targets) > 1:
            raise ConfigError("--topic names topics of one pipeline: give one MODULE:NAME")
        targets = tuple(name_with_topics(target, topics) for target in targets)
        loaded = {target: load(target.partition("@")[0], from_here=True) for target in targets}
        if workers := {target: runnable for target, runnable in loaded.items() if isinstance(runnable, Worker)}:
            refuse_extras(context, next(iter(workers)))
            job = job_of_workers(targets, workers)
        else:
            url, settings = self.named()
            job = Job(targets, postgres_engine(url), settings, self.schema, None)
        try:
            yield job
        finally:
            job.engine.dispose()

    def named(self) -> tuple[URL, dict[str, str]]:
        """The database's URL and librdkafka's configuration. Raises ConfigError if one is not named."""
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
        typer.Option(
            metavar="MASTER",
            help="Use Spark's tasks on this master: local[4], spark://host:7077. Default: this process.",
        ),
    ] = None
    spark_conf: Annotated[
        list[str] | None, typer.Option("--spark-conf", metavar="KEY=VALUE", help="Spark setting (repeatable).")
    ] = None


MaxRecords = Annotated[
    int | None,
    typer.Option(help="Read at most this many offsets; run the command again for the next ones. Default: all.", min=1),
]


@dataclass(frozen=True, kw_only=True)
class StagingOptions(SparkOptions):
    """How the log is divided among readers, and how many of Spark's tasks write at a time."""

    range_records: Annotated[
        int | None,
        typer.Option(
            help="At most this many offsets per task; fewer if Spark would have idle slots. Default: 300,000.", min=1
        ),
    ] = None
    copy_sessions: Annotated[
        int | None,
        typer.Option(help="At most this many Spark tasks, each with one database session. Needs --spark.", min=1),
    ] = None

    def sizes(self) -> dict[str, Any]:
        """The argument ``range_records`` for a job, if it was given."""
        return {} if self.range_records is None else {"range_records": self.range_records}


@dataclass(frozen=True, kw_only=True)
class ReadOptions(StagingOptions):
    """The readers of the log for a reload: this process, other processes, or Spark's tasks."""

    processes: Annotated[
        int, typer.Option(help="Read the log in this many processes on this machine. Default: in this one.", min=0)
    ] = 0
