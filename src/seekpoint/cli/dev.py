"""``seekpoint dev``: a throwaway Postgres and Kafka until Ctrl-C, and commands that use the running pair."""

from __future__ import annotations

import math
import os
import shlex
import signal
import sys
import threading
import webbrowser
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
import psycopg
import typer
from psycopg.abc import Buffer
from psycopg.adapt import AdaptersMap, Loader
from psycopg.pq import TransactionStatus
from psycopg.types.numeric import FloatLoader
from psycopg.types.string import TextLoader

from seekpoint.cli.options import (
    AsJson,
    KafkaOptions,
    OptionalDatabaseUrl,
    command,
    kafka_settings,
    names_brokers,
    one_off_engine,
)
from seekpoint.cli.output import answer, print_table
from seekpoint.errors import ConfigError, KafkaUnavailable
from seekpoint.records import numbered
from seekpoint.testing.servers.pair import PAIR_FOLDER, Pair, RunningPair, announce_pair, find_pair, start_pair
from seekpoint.testing.servers.process import Folder
from seekpoint.testing.servers.topics import Produced, create_topic, read_objects, read_values
from seekpoint.testing.servers.topics import produce as produce_records

app = typer.Typer(
    help="Start a throwaway Postgres and a throwaway Kafka, print their URLs, and remove both on Ctrl-C. "
    "The commands below use the running pair, or the servers that you name.",
    invoke_without_command=True,
    pretty_exceptions_show_locals=False,  # locals hold the database's URL
)
_START = "start it in another terminal"
TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]


@app.callback()
@command
def dev(
    context: typer.Context,
    *,
    demo: Annotated[
        bool, typer.Option("--demo", help="Also run a load, four workers and the console, and open it in a browser.")
    ] = False,
) -> None:
    if context.invoked_subcommand is not None:
        return
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    with start_pair(own=True) as pair:
        folder = Folder(PAIR_FOLDER)
        try:
            signal.signal(signal.SIGINT, lambda *_: stopped.set())
            running = announce_pair(folder.path, pair.postgres.url, pair.kafka.bootstrap)
            typer.echo(
                f"{pair.describe()}\n\n"
                f"  Postgres  {pair.postgres.url}\n"
                f"  Kafka     {pair.kafka.bootstrap}\n\n"
                f"{_exports(running)}\n\n"
                'In other terminals, `eval "$(seekpoint dev env)"` sets both variables.\n'
                "There, `seekpoint db table shop:orders | seekpoint dev sql -` creates the tables of the pipeline "
                "`orders` in shop.py.\n"
                "Ctrl-C removes both servers, with all their data."
            )
            with _console(pair) if demo else nullcontext():
                _wait(pair, stopped)
        finally:
            folder.close()


@contextmanager
def _console(pair: Pair) -> Iterator[None]:
    """Run the load, the workers and the console of ``--demo`` within the block."""
    from seekpoint.cli.dev_demo import running_demo  # noqa: PLC0415 -- the extra web

    with running_demo(pair) as address:
        typer.echo(f"\n  Console   {address}")
        if not _open_browser(address):
            typer.echo("Open it in a browser.")
        yield


def _open_browser(address: str) -> bool:
    """Open the address in a desktop browser; not in one inside the terminal, which would block."""
    if sys.platform not in {"darwin", "win32"} and not any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY"))):
        return False
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return False
    if type(browser) is webbrowser.GenericBrowser or not getattr(browser, "background", True):
        return False
    return browser.open(address)


def _wait(pair: Pair, stopped: threading.Event) -> None:
    """Wait until Ctrl-C. Raises if a server ends before it."""
    while not stopped.wait(1.0):
        for server in (pair.postgres, pair.kafka):
            if not server.running:
                raise server.failure(f"{server.describe()} has ended unexpectedly: run `seekpoint dev` again")


@app.command()
@command
def env() -> None:
    """Print two export lines that point your shell at the running pair: eval "$(seekpoint dev env)"."""
    pair = find_pair()
    if pair is None:
        raise ConfigError(f"`seekpoint dev` is not running: {_START}")
    typer.echo(_exports(pair))


@app.command(no_args_is_help=True)
@command
def topic(
    name: TopicName,
    *,
    partitions: Annotated[int, typer.Option(help="How many partitions it has.", min=1)] = 1,
    brokers: KafkaOptions,
    as_json: AsJson = False,
) -> None:
    """Create a topic on the running pair, or on the brokers that you name.

    Exits with 2 if the topic exists, with 3 if no broker answers.
    """
    with _brokers_named():
        where = create_topic(_settings(brokers), name, partitions)
    answer(
        {"topic": name, "partitions": partitions, "brokers": where},
        f"{name}: {numbered(partitions, 'partition')} at {where}",
        as_json=as_json,
    )


@app.command(no_args_is_help=True)
@command
def produce(
    name: TopicName,
    file: Annotated[str, typer.Argument(help="Lines to read; - is stdin.")] = "-",
    *,
    key_separator: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Each line is a key, this separator, and a value.")
    ] = None,
    json_lines: Annotated[
        bool,
        typer.Option(
            "--json-lines", help='Each line is a JSON object: {"key": …, "value": …, "headers": {"name": "text"}}.'
        ),
    ] = False,
    brokers: KafkaOptions,
    as_json: AsJson = False,
) -> None:
    """Append a record to a topic for each line of a file or stdin: the line is the value, and there is no key.

    Empty lines are skipped. Stops at the first line that cannot be read, and names it; the records of earlier lines are
    stored. Prints how many records each partition received, and the offset of the last one.
    """
    with _brokers_named():
        if json_lines and key_separator is not None:
            raise ConfigError("--json-lines and --key-separator exclude each other: an object has its key in `key`")
        if key_separator == "":
            raise ConfigError("--key-separator takes at least one character, for example --key-separator :")
        settings = _settings(brokers)
        with _opened(file) as stream:
            source = "stdin" if file == "-" else file
            records = read_objects(stream, source) if json_lines else read_values(stream, source, key_separator)
            _print_produced(produce_records(settings, name, records), as_json=as_json)


@app.command(no_args_is_help=True)
@command
def sql(
    statements: Annotated[
        str, typer.Argument(metavar="SQL", help="One or more statements, with ; between them; - is stdin.")
    ],
    *,
    database_url: OptionalDatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Run SQL in one transaction in the running pair's Postgres, or in the database that you name; print the rows.

    For a look at a table where psql is not installed.
    """
    pair = None if database_url else find_pair()
    url = database_url or (pair and pair.database_url)
    if not url:
        raise ConfigError(
            "no database is named and `seekpoint dev` is not running: "
            f"{_START}, or give --database-url or SEEKPOINT_DATABASE_URL"
        )
    if statements == "-":
        statements = sys.stdin.read()
    with one_off_engine(url).begin() as tx:
        driver: Any = tx.connection.driver_connection  # not through SQLAlchemy, in which : and % mean parameters
        _register_loaders(driver.adapters, as_json=as_json)
        try:
            cursor = driver.execute(statements)
        except psycopg.ProgrammingError:
            if driver.info.transaction_status != TransactionStatus.ACTIVE:
                raise
            tx.invalidate()  # the server is still in the COPY, so a ROLLBACK would fail
            raise ConfigError("`seekpoint dev sql` does not run COPY from or to the client: use psql") from None
        while True:
            _print_rows(cursor, as_json=as_json)
            if not cursor.nextset():
                break


# -- which servers ---------------------------------------------------------------------------------------


def _exports(pair: RunningPair) -> str:
    return (
        f"export SEEKPOINT_DATABASE_URL={shlex.quote(pair.database_url)}\n"
        f"export SEEKPOINT_KAFKA_CONFIG={shlex.quote(pair.kafka_config)}"
    )


def _settings(brokers: KafkaOptions) -> dict[str, str]:
    """The brokers from the command or the environment; otherwise those of the running pair. Raises ConfigError."""
    settings = brokers.settings()
    if names_brokers(settings):
        return settings
    if brokers.kafka_config is None and (pair := find_pair()) is not None:
        return kafka_settings(brokers.kafka, Path(pair.kafka_config))
    raise ConfigError(
        f"no brokers are named and `seekpoint dev` is not running: {_START}, or give "
        "--kafka bootstrap.servers=host:9092, or a properties file with --kafka-config or SEEKPOINT_KAFKA_CONFIG"
    )


@contextmanager
def _brokers_named() -> Iterator[None]:
    """If no broker answers, add to the error that ``seekpoint dev`` may have ended."""
    try:
        yield
    except KafkaUnavailable as error:
        remedy = (
            'check that `seekpoint dev` is still running (each start has other ports: eval "$(seekpoint dev env)"), '
            "or check the brokers that you named"
        )
        error.args = (f"{error.text}; {remedy}",)
        raise


# -- input and output ------------------------------------------------------------------------------------


@contextmanager
def _opened(file: str) -> Iterator[BinaryIO]:
    if file == "-":
        if sys.stdin.isatty():
            typer.echo("one record per line; Ctrl-D ends the input", err=True)
        yield sys.stdin.buffer
        return
    try:
        stream = Path(file).open("rb")  # noqa: SIM115 -- no `with`: errors of the caller are not errors of the file
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    with stream:
        yield stream


def _print_produced(produced: Produced, *, as_json: bool) -> None:
    partitions = {
        n: {"records": count, "last_offset": produced.last_offsets[n]} for n, count in produced.counts.items()
    }
    answer(
        {
            "topic": produced.topic,
            "brokers": produced.bootstrap,
            "records": produced.records,
            "partitions": dict(sorted(partitions.items())),
        },
        f"{produced.topic}: {numbered(produced.records, 'record')} to {produced.bootstrap}",
        *(
            f"  {produced.topic}/{n}: {numbered(partition['records'], 'record')}, the last at offset "
            f"{partition['last_offset']}"
            for n, partition in sorted(partitions.items())
        ),
        as_json=as_json,
    )


def _register_loaders(adapters: AdaptersMap, *, as_json: bool) -> None:
    for name in ("date", "interval", "time", "timestamp", "timestamptz"):
        adapters.register_loader(name, TextLoader)  # loaded as text: Python has no 'infinity' and no year before 1
    for name in ("json", "jsonb"):  # loaded with all stored digits, some of which a float would lose
        adapters.register_loader(name, _RawJsonLoader if as_json else TextLoader)
    if as_json:
        for name in ("float4", "float8"):
            adapters.register_loader(name, _JsonFloatLoader)


class _JsonFloatLoader(FloatLoader):
    """Loads floats; NaN and Infinity, which JSON does not have, become text."""

    def load(self, data: Buffer) -> Any:
        value = super().load(data)
        return value if math.isfinite(value) else bytes(data).decode()


class _RawJsonLoader(Loader):
    """Loads JSON unparsed, to be embedded in JSON output."""

    def load(self, data: Buffer) -> Any:
        return msgspec.Raw(bytes(data))


def _print_rows(cursor: psycopg.Cursor[tuple[Any, ...]], *, as_json: bool) -> None:
    if cursor.description is None:
        if not as_json:
            typer.echo(cursor.statusmessage)
        return
    names, rows = [column.name for column in cursor.description], cursor.fetchall()
    if as_json:
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise ConfigError(f"--json needs distinct column names, and {twice[0]!r} appears twice: rename one with AS")
        named_rows = [dict(zip(names, row, strict=True)) for row in rows]
        typer.echo(msgspec.json.format(msgspec.json.encode(named_rows, enc_hook=str), indent=2))
        return
    numeric = {
        name for n, name in enumerate(names) if all(isinstance(row[n], int | float | Decimal | None) for row in rows)
    }
    print_table(None, names, rows, numeric=numeric)
