"""``seekpoint run``, ``status`` and ``dev``: what they print, where they exit, and that no password comes out."""

from __future__ import annotations

import gc
import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import psutil
import pytest
from sqlalchemy import Engine, make_url, text
from sqlalchemy.ext.asyncio import create_async_engine
from typer.testing import CliRunner

from seekpoint import Append, Pipeline, Text
from seekpoint.admin import admin
from seekpoint.cli import status as cli_status
from seekpoint.cli.app import app
from seekpoint.errors import ConfigError
from seekpoint.ledger import GroupLedger
from seekpoint.postgres.engine import postgres_engine
from seekpoint.records import Partition
from support.cli_project import TO_TABLE, Project
from support.command import seekpoint
from support.events import Run
from support.waiting import until

COMMAND = [sys.executable, "-m", "seekpoint.cli.main"]
# -- db table --------------------------------------------------------------------------------------------

KEPT = """\
import msgspec
class Order(msgspec.Struct):
    id: int
    note: str | None
pipe = Pipeline("{group}", topics="{topic}", value=Json(Order), sinks=[Upsert("{schema}.kept", key=["id"])])
handled = Pipeline("{group}", topics="{topic}", value=Json(Order), handle=lambda tx, batch: None)
"""


def test_the_command_prints_the_table_and_what_it_lacks(project: Project) -> None:
    module = project.module("from seekpoint import Upsert", *KEPT.splitlines())
    table = f"{project.schema}.kept"
    printed = seekpoint("db", "table", f"{module}:pipe", "--fillfactor", "70").stdout
    assert printed.startswith(f"CREATE TABLE {table} (")
    assert "fillfactor = 70" in printed
    database = ("--database-url", project.url)
    project.sql(seekpoint("db", "table", f"{module}:pipe", *database, exits=1).stdout)
    assert seekpoint("db", "table", f"{module}:pipe", *database).stdout == f"-- {table} takes every row\n"
    project.sql("ALTER TABLE {schema}.kept DROP COLUMN note")
    lacking = json.loads(seekpoint("db", "table", f"{module}:pipe", "--json", *database, exits=1).stdout)
    assert lacking == {"tables": {table: [f"ALTER TABLE {table} ADD COLUMN note TEXT;"]}}
    assert "has no sink that writes a table" in seekpoint("db", "table", f"{module}:handled", exits=2).stderr


def test_commands_take_topics_by_pattern_one_by_one_or_not_at_all(project: Project) -> None:
    sink = 'sink = Upsert("{schema}.{{name}}", key=["id"])'
    pipe = 'pipe = Pipeline("{group}", topics=Pattern("shop[.](?P<name>.+)"), value=Json(Order), sinks=[sink])'
    module = project.module("from seekpoint import Pattern, Upsert", *KEPT.splitlines()[:-2], sink, pipe)
    table = ("db", "table", f"{module}:pipe")
    printed = seekpoint(*table, "--topic", "shop.a", "--topic", "shop.b").stdout
    assert f"CREATE TABLE {project.schema}.a (" in printed
    assert f"CREATE TABLE {project.schema}.b (" in printed
    assert "topic 'a' does not match the pattern as a whole" in seekpoint(*table, "--topic", "a", exits=2).stderr
    assert "has a dot" in seekpoint(*table, "--topic", "shop.a.b", exits=2).stderr
    assert "give --topic for each" in seekpoint(*table, exits=2).stderr
    explained = seekpoint("explain", f"{module}:pipe")
    assert f"{project.group} reads Pattern('shop[.](?P<name>.+)')" in explained.stdout
    assert f"writes {project.schema}.{{name}}" in explained.stdout
    refused = "this command takes topics by name, and only a worker finds them by pattern"
    for command in (["doctor"], ["dead-letters", "replay", "--all"]):
        arguments = [*command, f"{module}:pipe", "--database-url", project.url]
        assert refused in seekpoint(*arguments, exits=2).stderr


# -- explain ---------------------------------------------------------------------------------------------

TENANT = """\
engine = create_engine("{url}").execution_options(schema_translate_map={{"tenant": "{schema}"}})
pipe = Pipeline("{group}", topics="{topic}", value=Text(), sinks=[Append("all", columns=["v"])],
    handle=lambda tx, batch: None, writes=["tenant.other"])
worker = Worker(pipe, engine=engine, kafka={{"bootstrap.servers": "localhost:1"}})
"""


def test_explain_names_the_tables_with_their_schemas(project: Project) -> None:
    """A sink's by the search path, a handler's by the translation of the worker's engine; without a database, too."""
    module = project.module(
        "from seekpoint import Append, Pipeline, Text, Worker",
        "from sqlalchemy import create_engine",
        *TENANT.splitlines(),
    )
    project.sql("CREATE TABLE {schema}.all (v text)", "CREATE TABLE {schema}.other (v text)")
    assert f"<lambda>, which writes {project.schema}.other" in seekpoint("explain", f"{module}:worker").stdout
    url = f"{project.url}?options=-csearch_path%3D{project.schema}"
    lines = seekpoint("explain", f"{module}:worker", "--database-url", url).stdout.splitlines()
    assert f"Append('all') writes {project.schema}.all" in lines
    assert lines[-2].endswith(f"<lambda>, which writes {project.schema}.other")
    assert lines[-1] == "a worker opens at most 4 connections, none of them in your engine's pool"


UPSERTED = """\
def handle(tx, batch): pass
keep = Upsert("{schema}.kept", key=["id"], columns=["id", "at"], order_by="at", row=lambda r: (r.key, r.value))
pipe = Pipeline("{group}", topics="{topic}", value=Text(), sinks=[keep, Append("{schema}.all", columns=["v"])],
    handle=handle, writes=["{schema}.other"])
"""


def test_explain_shows_the_write_strategies_of_a_pipeline(project: Project) -> None:
    module = project.module("from seekpoint import Upsert", *UPSERTED.splitlines())
    output = seekpoint("explain", f"{module}:pipe").stdout
    assert f"{project.group} reads {project.topic}; a poison record: stop" in output
    assert "one row for each id: the highest at, also compared with the stored row" in output
    assert "copy    more rows, while all their keys are new" in output
    assert f"handler handle, which writes {project.schema}.other" in output

    looked = ["explain", f"{module}:pipe", "--json", "--database-url", project.url]
    missing = seekpoint(*looked, exits=1)
    assert "does not exist" in missing.stderr
    project.sql("CREATE TABLE {schema}.kept (id int, at int)")
    unindexed = seekpoint(*looked, exits=2)
    assert "no unique index on exactly" in unindexed.stderr
    assert f"; `seekpoint db table {module}:pipe --database-url …` prints the statement, too." in unindexed.stderr
    project.sql("ALTER TABLE {schema}.kept ADD PRIMARY KEY (id)")
    unmade = seekpoint(*looked, exits=1)
    assert '.all" does not exist; create the table' in unmade.stderr
    project.sql("CREATE TABLE {schema}.all (v text)")
    unwritten = seekpoint(*looked, exits=2)
    assert f"relation '{project.schema}.other' does not exist; create the table" in unwritten.stderr
    project.sql("CREATE TABLE {schema}.other (v text)")
    explained = json.loads(seekpoint(*looked).stdout)
    assert explained["writes"] == [f"{project.schema}.other"]
    assert explained["connections"] == 4
    kept, every = explained["sinks"]
    assert kept["strategies"]["copy"].startswith("more rows, while")
    assert every["strategies"] == {"copy": "COPY into the table; INSERT for few rows"}
    project.sql("ALTER TABLE {schema}.kept RENAME TO base", "CREATE VIEW {schema}.kept AS TABLE {schema}.base")
    kept, _ = json.loads(seekpoint(*looked).stdout)["sinks"]
    assert kept["strategies"]["copy"] == "never: the table has row security, or is a view"


def test_explain_shows_what_is_added_to_which_rows(project: Project) -> None:
    sums = 'Accumulate("{schema}.daily", key=["day"], add=["cents", "orders"], most=["last"], row=lambda r: None)'
    pipe = f'pipe = Pipeline("{{group}}", topics="{{topic}}", value=Text(), sinks=[{sums}])'
    module = project.module("from seekpoint import Accumulate", pipe)
    project.sql("CREATE TABLE {schema}.daily (day date, cents bigint, orders bigint, last time)")
    looked = ["explain", f"{module}:pipe", "--database-url", project.url]
    assert "no unique index on exactly" in seekpoint(*looked, exits=2).stderr
    project.sql("ALTER TABLE {schema}.daily ADD PRIMARY KEY (day)")
    output = seekpoint(*looked).stdout
    assert f"Accumulate('{project.schema}.daily') writes {project.schema}.daily" in output
    assert "one row for each day: the sums of cents, orders; the highest last" in output
    assert "unnest  fewer than 100 keys in a transaction: one statement, in the order of the keys" in output


# -- what is wrong with the command ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nonsense", "'nonsense' is not module:name, e.g. billing.ingest:orders"),
        ("billing/shop.py:orders", "'billing/shop.py:orders' names a file: write billing.shop:orders"),
        ("nowhere.ingest:orders", "there is no module 'nowhere', neither in "),
        ("{module}:order", "module '{module}' has no 'order'; it has orders"),
        ("{module}:post", "{module}:post is a function that cannot be called without arguments"),
        ("{module}:number", "{module}:number is of type int; expected a Pipeline, a Worker, or a function"),
        ("{module}:Pipeline", "{module}:Pipeline is the class Pipeline; expected a Pipeline"),
        ("{module}:nothing", "{module}:nothing returned None; expected a Pipeline"),
        ("{module}:later", "{module}:later is an async function; expected a Pipeline"),
    ],
)
def test_a_target_that_is_none(project: Project, target: str, message: str) -> None:
    module = project.module(
        """\
        def post(tx, batch): pass
        def nothing(): return None
        async def later(): return orders
        number = 7
        orders = Pipeline("{group}", topics="{topic}", value=Text(), handle=post)
        """
    )
    result = seekpoint("run", target.format(module=module), *project.options(), exits=2)
    assert result.stdout == ""
    assert f"error: {message.format(module=module)}" in result.stderr


def test_a_module_that_fails_names_the_line(project: Project) -> None:
    broken = project.module("prices = {{}}", "prices['EUR']")
    result = project.run(broken, exits=1)
    assert f"error: {broken}.py:3 in <module>: KeyError: 'EUR'" in result.stderr
    inner = project.run(project.module("import no_such_module_of_mine"), exits=2)
    assert "No module named 'no_such_module_of_mine'" in inner.stderr
    typo = project.run(project.module("def post(tx, batch)"), exits=2)
    assert "SyntaxError: expected ':'" in typo.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--kafka", "bootstrap.servers=x"],
            "no database is named: give --database-url, or set SEEKPOINT_DATABASE_URL",
        ),
        (["--database-url", "postgresql://h/d"], "no brokers are named: give --kafka bootstrap.servers=host:9092"),
        (["--database-url", "mysql://u:hunter2@h/d"], "the ledger lives in Postgres, not in mysql"),
        (["--database-url", "hunter2"], "the database's URL cannot be read"),
        (["--database-url", "postgresql://h/d", "--kafka", "hunter2"], "--kafka takes key=value"),
        (["--database-url", "postgresql://h/d", "--kafka-config", "gone.properties"], "No such file or directory"),
        (
            ["--database-url", "postgresql://h/d", "--kafka-config", "bad.properties"],
            "bad.properties, line 3: expected",
        ),
    ],
)
def test_servers_that_are_not_named(project: Project, options: list[str], message: str) -> None:
    (project.folder / "bad.properties").write_text("# mine\nbootstrap.servers=x\nsasl.password hunter2\n")
    module = project.module('pipe = Pipeline("{group}", topics="{topic}", value=Text(), sinks=[Append("t")])')
    result = seekpoint("run", f"{module}:pipe", *options, exits=2)
    assert result.stdout == ""
    assert message in result.stderr
    assert "hunter2" not in result.output.replace("not 'hunter2'", "")


def test_a_worker_brings_its_own_servers(project: Project) -> None:
    module = project.module(
        TO_TABLE, 'worker = Worker(pipe, engine="{url}", kafka={{"bootstrap.servers": "{broker}"}})'
    )
    result = project.run(module, "worker", exits=2)
    assert f"error: {module}:worker is a Worker and brings its own database and brokers: remove --" in result.stderr
    accepting = seekpoint("run", f"{module}:worker", "--accept-declaration", exits=2)
    assert "remove --accept-declaration" in accepting.stderr


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("no.such.key=1", 'the Kafka configuration was refused: No such configuration property: "no.such.key"'),
        ("session.timeout.ms=soon", "the Kafka configuration was refused: Invalid value for configuration property"),
        (
            "enable.auto.commit=true",
            "remove 'enable.auto.commit': 'true' from the Kafka configuration; it is False because",
        ),
        ("group.id=other", "remove 'group.id': 'other' from the Kafka configuration; the group is the pipeline's"),
    ],
)
def test_a_kafka_key_that_cannot_be(project: Project, lines: None, setting: str, message: str) -> None:
    result = project.run(project.module(TO_TABLE), "pipe", "--kafka", setting, exits=2)
    assert result.stdout == ""
    assert f"error: {message}" in result.stderr


def test_generators_and_other_drivers_are_refused(project: Project) -> None:
    handler = project.module(
        """\
        async def post(tx, batch): yield
        pipe = Pipeline("{group}", topics="{topic}", value=Text(), handle=post)
        """
    )
    result = project.run(handler, exits=2)
    assert "the handler is a generator, and would never run; write a function handle(tx, batch)" in result.stderr
    engine = project.module(
        TO_TABLE,
        "def worker():",
        '    return Worker(pipe, engine="postgresql+asyncpg://me:hunter2@h/d", kafka={{"bootstrap.servers": "x"}})',
    )
    result = seekpoint("run", f"{engine}:worker", exits=2)
    assert "is not on psycopg 3: write postgresql+psycopg://user:password@host/database" in result.stderr
    assert "hunter2" not in result.output


def test_an_async_engine_is_refused(project: Project) -> None:
    engine = project.module(
        "from sqlalchemy.ext.asyncio import create_async_engine",
        TO_TABLE,
        'def worker(): return Worker(pipe, engine=create_async_engine("{url}"), kafka={{"bootstrap.servers": "x"}})',
    )
    result = seekpoint("run", f"{engine}:worker", exits=2)
    assert "engine must be a URL or a sync SQLAlchemy Engine on postgresql+psycopg, got AsyncEngine" in result.stderr
    inner = create_async_engine("postgresql+psycopg://me@nowhere/shop").sync_engine
    with pytest.raises(ConfigError, match="driver is asynchronous: pass its URL"):
        postgres_engine(inner)


# -- what is wrong with the servers ----------------------------------------------------------------------


def test_an_unknown_topic(project: Project, lines: None) -> None:
    module = project.module(TO_TABLE.replace("{topic}", "no-such-topic"))
    result = project.run(module, exits=2)
    assert (
        f"error: topic 'no-such-topic' does not exist on the brokers {project.broker}: create it, or correct topics="
        in result.stderr
    )


@pytest.mark.long
def test_brokers_that_do_not_answer(project: Project, lines: None) -> None:
    module = project.module(
        TO_TABLE,
        "def worker():",
        '    return Worker(pipe, engine="{url}", kafka={{"bootstrap.servers": "127.0.0.1:1"}}, schema="{schema}",',
        "                  limits=Limits(start_wait=3.0, kafka_timeout=2.0))",
    )
    result = seekpoint("run", f"{module}:worker", exits=3)
    assert (
        "error: Kafka: no broker answered at 127.0.0.1:1 within 2 s: 127.0.0.1:1/bootstrap: Connect to" in result.stderr
    )
    assert "Connection refused" in result.stderr
    assert "KafkaError{" not in result.stderr
    assert "check that the brokers run, and check bootstrap.servers and the security settings" in result.stderr


def test_a_database_that_cannot_be_reached(project: Project, lines: None) -> None:
    url, module = make_url(project.url), project.module(TO_TABLE)
    role = f"role_{uuid4().hex}"
    for changed, code, message in (
        ({"database": "no_such_database"}, 1, 'database "no_such_database" does not exist; create the database'),
        ({"username": role, "password": "hunter2"}, 1, f'failed for user "{role}"; check the user and password'),
        ({"port": 1}, 3, "refused Is the server running on that host and accepting TCP/IP connections?; check"),
    ):
        away = url.set(**changed).render_as_string(hide_password=False)
        result = project.run(module, "pipe", "--start-wait", "0.1", url=away, exits=code)
        assert result.stdout == ""
        assert "error: Postgres: " in result.stderr
        assert message in result.stderr
        assert "hunter2" not in result.output


def test_a_missing_schema(project: Project) -> None:
    module = project.module(TO_TABLE)
    result = seekpoint("run", f"{module}:pipe", *project.options(), "--schema", "elsewhere", exits=1)
    assert "error: schema 'elsewhere' has no ledger tables, and this library needs revision" in result.stderr
    assert "run `seekpoint db upgrade --schema elsewhere`" in result.stderr


def test_a_missing_table(project: Project) -> None:
    project.produce(["one"])
    again = 'again = Pipeline("{group}-2", topics="{topic}", value=Text(), sinks=[sink])'
    module = project.module(*TO_TABLE.splitlines(), again)
    result = project.run(module, exits=1)
    assert (
        f"error: Append('{project.schema}.lines'): relation \"{project.schema}.lines\" does not exist; "
        f"create the table (`seekpoint db table {module}:pipe` prints the statement), or correct its name in the "
        "pipeline" in result.stderr
    )
    several = seekpoint("run", f"{module}:pipe", f"{module}:again", *project.options(), exits=1)
    assert "(`seekpoint db table MODULE:NAME` prints the statement)" in several.stderr
    reloaded = seekpoint("reload", "run", f"{module}:pipe", *project.options(), exits=2)
    assert f"does not exist: create the table (`seekpoint db table {module}:pipe` prints" in reloaded.stderr


@pytest.fixture
def writer_url(seekpoint_engine: Engine, project: Project) -> Iterator[str]:
    """The URL of a role that may use the ledger and nothing else."""
    role = f"writer_{uuid4().hex}"
    ledger = [
        f'"{project.schema}".{name}'
        for name in ("consumer_group", "partition_offset", "group_topic", "admin_action", "lost_range")
    ]
    with seekpoint_engine.begin() as tx:
        tx.execute(text(f"CREATE ROLE {role} LOGIN PASSWORD 'hunter2'"))
        tx.execute(text(f'GRANT USAGE ON SCHEMA "{project.schema}" TO {role}'))
        tx.execute(text(f'GRANT SELECT ON "{project.schema}".alembic_version TO {role}'))
        tx.execute(text(f"GRANT SELECT, INSERT, UPDATE ON {', '.join(ledger)} TO {role}"))
    yield make_url(project.url).set(username=role, password="hunter2").render_as_string(hide_password=False)
    with seekpoint_engine.begin() as tx:
        tx.execute(text(f"DROP OWNED BY {role}"))
        tx.execute(text(f"DROP ROLE {role}"))


def test_no_right_on_the_table(project: Project, lines: None, writer_url: str) -> None:
    project.produce(["one"])
    result = project.run(project.module(TO_TABLE), url=writer_url, exits=1)
    assert ".lines'): permission denied for table lines; grant the right to the role of the database's URL" in (
        result.stderr
    )
    assert "hunter2" not in result.output


# -- what is wrong with a record -------------------------------------------------------------------------


def test_a_record_that_cannot_be_decoded_ends_a_strict_worker(project: Project, lines: None) -> None:
    project.produce(["one", "two", b"\xff", "four"])
    result = project.run(project.module(TO_TABLE), exits=1)
    assert f"error: {project.topic}/0 stopped at offset 2: it cannot be decoded: UnicodeDecodeError" in result.stderr
    assert "Choices:\n  - fix the codec, row= or handler, and start the worker again\n  - skip it: " in result.stderr
    assert project.lines() == ["one", "two"], "what came before it is committed"


@pytest.mark.pins("batch")
def test_too_many_dead_letters_end_the_command_with_the_limit(project: Project, lines: None) -> None:
    project.produce([b"\xff"] * 30)
    limited = TO_TABLE.replace(
        "sinks=", 'on_poison="dead_letter", dead_letter_limits=DeadLetterLimits(consecutive=5), sinks='
    )
    result = project.run(project.module("from seekpoint import DeadLetterLimits", limited), exits=1)
    assert "error: more than 5 records in a row failed" in result.stderr
    assert "raise DeadLetterLimits(consecutive=...)" in result.stderr
    [position] = GroupLedger(project.engine, project.group, schema=project.schema).read()
    assert (position.next_offset, project.lines()) == (0, [])


FAILING = """\
def post(tx, batch):
    return 1 / 0
from seekpoint import Retry
retry = Retry(attempts=2, wait_initial=0.01)
pipe = Pipeline("{group}", topics="{topic}", value=Text(), handle=post, retry=retry)
"""


def test_a_handler_that_raises_names_its_line(project: Project) -> None:
    project.produce(["one"])
    module = project.module(FAILING)
    result = project.run(module, exits=1)
    assert f"error: {project.topic}/0 stopped at offset 0: the handler failed on it: ZeroDivisionError" in result.stderr
    assert f"division by zero (at {module}.py:3 in post) (tried 2 times)" in result.stderr


@pytest.mark.parametrize(("own", "shown"), [("", "(100000, 50, 100)"), ("import gc; gc.set_threshold(900)", "(900, ")])
def test_garbage_is_collected_rarely_unless_the_module_says_how_often(project: Project, own: str, shown: str) -> None:
    project.produce(["one"])
    before = gc.get_threshold()
    try:
        result = project.run(
            project.module(FAILING.replace("1 / 0", "dict()[__import__('gc').get_threshold()]"), more=own), exits=1
        )
    finally:
        left = gc.get_threshold()
        gc.set_threshold(*before)
    assert f"KeyError: {shown}" in result.stderr
    assert own or left == before, "as it was, when the command has ended"


def test_a_mistake_of_the_program_names_its_line(project: Project) -> None:
    module = project.module("def worker():", "    return 1 / 0")
    shown = CliRunner().invoke(app, ["--traceback", "run", f"{module}:worker", *project.options()])
    assert shown.exit_code == 1
    assert "Traceback (most recent call last)" in shown.stderr
    assert f"error: {module}.py:3 in worker: ZeroDivisionError" in shown.stderr


# -- as a process ----------------------------------------------------------------------------------------


SLOW = """\
    import pathlib, sys, threading

    def post(tx, batch):
        print("in hand", flush=True)
        while not pathlib.Path("go").exists():
            threading.Event().wait(0.02)
        for record in batch:
            tx.exec_driver_sql('INSERT INTO "{schema}".lines VALUES (%s)', (record.value,))

    pipe = Pipeline("{group}", topics="{topic}", value=Text(), handle=post)
"""


@pytest.mark.pins("batch")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains(project: Project, lines: None, how: signal.Signals) -> None:
    project.produce(["one", "two"])
    config = project.folder / "kafka.properties"
    config.write_text(f"# mine\n\nbootstrap.servers = {project.broker}\nclient.id=me\n")
    env = {"SEEKPOINT_DATABASE_URL": project.url, "SEEKPOINT_KAFKA_CONFIG": str(config)}
    process = project.start("run", f"{project.module(SLOW)}:pipe", "--schema", project.schema, env=env)
    process.wait_for("in hand", "out")
    process.signal(how)
    (project.folder / "go").touch()
    assert process.end() == 0, process.output
    assert project.lines() == ["one", "two"], "the open batch was finished"
    [position] = GroupLedger(project.engine, project.group, schema=project.schema).read()
    assert (position.next_offset, position.owner) == (2, None), "the claim was given back"
    assert f"INFO    seekpoint.events {project.group}: Activated: " in process.output
    assert f"INFO    seekpoint.cli {project.group}: drained: 2 records in 1 transaction" in process.output
    assert str(make_url(project.url).password) not in process.output


ALARM = """
import os
threading.Timer(3.0, os.kill, (os.getpid(), signal.SIGINT)).start()  # the wait has no limit
"""


@pytest.mark.long
def test_ctrl_c_ends_the_wait_for_the_first_answer(project: Project, lines: None) -> None:
    module = project.module("import signal, threading", TO_TABLE, more=ALARM)
    process = project.start("run", f"{module}:pipe", *project.options(broker="127.0.0.1:1"))
    assert process.end() == 130, process.output
    assert "aborted: before the worker had started" in process.output
    assert f"INFO    seekpoint.events {project.group}: WorkerStopped: aborted" in process.output
    assert "ERROR" not in process.output
    assert "open batch" not in process.output


def test_a_second_signal_aborts(project: Project, lines: None) -> None:
    project.produce(["one"])
    process = project.start("run", f"{project.module(SLOW)}:pipe", *project.options())
    process.wait_for("in hand", "out")
    process.signal(signal.SIGINT)
    process.signal(signal.SIGTERM)
    assert process.end() == 130, process.output
    assert "aborted: second SIG" in process.output
    assert "WorkerStopped: aborted" in process.output
    assert "Traceback" not in process.output
    assert project.lines() == []


def test_a_stopped_partition_is_logged_and_stops_alone(
    project: Project, lines: None, topic: Callable[..., str]
) -> None:
    project.topic = topic(2)
    project.produce([b"\xff"], partition=0)
    project.produce(["fine"], partition=1)
    process = project.start("run", f"{project.module(TO_TABLE)}:pipe", *project.options())
    stopped = f"PartitionStopped: {project.topic}/0 stopped at offset 0: it cannot be decoded:"
    process.wait_for(f"ERROR   seekpoint.events {project.group}: {stopped}")
    process.wait_for("Choices:\n  - fix the codec")
    process.signal(signal.SIGTERM)
    assert process.end() == 1, process.output
    assert "stopping after the open batch; Ctrl-C again aborts" in process.output
    assert f"error: 1 partition stopped: {project.topic}/0\n" in process.output


def test_a_record_that_fails_is_logged_with_its_line_attempt_and_policy(project: Project) -> None:
    project.produce(["one"])
    module = project.module(FAILING.replace("retry=retry)", 'retry=retry, on_poison="skip")'))
    process = project.start("run", f"{module}:pipe", *project.options())
    failed = f"{project.topic}/0 at offset 0: %sZeroDivisionError: division by zero (at {module}.py:3 in post)"
    begun = "a batch failed and is run again in parts, to find the failing records"
    process.wait_for(f"Bisecting: {begun}: ZeroDivisionError: division by zero")
    process.wait_for(
        f"RetryScheduled: {failed % ''}; attempt 1 of 2 failed, the next attempt is in 0.0 s; after the last: skip"
    )
    process.wait_for(f"DeadLettered: {failed % 'skipped, '}")
    process.signal(signal.SIGTERM)
    assert process.end() == 0, process.output


@pytest.mark.long
def test_dev_lends_a_pair_until_ctrl_c(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    process = project.start("dev", env={"TMPDIR": str(project.folder)})
    monkeypatch.setattr(tempfile, "tempdir", str(project.folder))
    process.wait_for("Ctrl-C removes both", "out", seconds=90)
    assert "`seekpoint db table shop:orders | seekpoint dev sql -` creates the tables" in process.output
    exports = dict(
        line.removeprefix("export ").split("=", 1) for line in process.output.splitlines() if "export " in line
    )
    assert set(exports) == {"SEEKPOINT_DATABASE_URL", "SEEKPOINT_KAFKA_CONFIG"}
    announced = seekpoint("dev", "env").stdout
    assert announced == "".join(f"export {name}={value}\n" for name, value in exports.items())
    seekpoint("db", "upgrade", env=exports)
    unknown = seekpoint("status", "unknown", env=exports, exits=2)
    assert "has no group 'unknown'; no worker has claimed anything yet" in unknown.stderr
    config = Path(exports["SEEKPOINT_KAFKA_CONFIG"])
    assert config.read_text().startswith("bootstrap.servers=127.0.0.1:")
    process.signal(signal.SIGINT)
    assert process.end() == 0, process.output
    assert not config.parent.exists()
    seekpoint("dev", "env", exits=2)
    gone = seekpoint("db", "check", env=exports, exits=3)
    assert "refused" in gone.stderr


@pytest.mark.long
def test_dev_shows_a_demo_until_ctrl_c(project: Project) -> None:
    """As a user starts it, but for the display; its port is taken, so that the console has another one."""
    with closing(taken(8484)):
        process = project.start(
            "dev", "--demo", env={"TMPDIR": str(project.folder), "DISPLAY": "", "WAYLAND_DISPLAY": ""}
        )
        process.wait_for("  Console   http://", "out", seconds=120)
    process.wait_for("Open it in a browser.", "out")
    (address,) = re.findall(r"  Console   (\S+)", process.output)
    assert not address.endswith(":8484/")

    def applied() -> bool:
        try:
            with urllib.request.urlopen(f"{address}api/group?group=orders", timeout=10) as answer:
                group = json.load(answer)["data"]["group"]
        except urllib.error.HTTPError as error:
            if error.code != 422:  # no worker of the group has started yet
                raise
            return False
        return (
            sum(partition["position"]["next_offset"] for partition in group["partitions"]) > 100
            and len(group["workers"]) == 2
        )

    until(applied, "the console shows records that were applied", timeout=60)
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) > 2
    process.signal(signal.SIGINT)
    assert process.end() == 0, process.output
    _, left = psutil.wait_procs(children, timeout=20)
    assert left == []
    with pytest.raises(urllib.error.URLError, match="refused"):
        urllib.request.urlopen(address, timeout=10)


def taken(port: int) -> socket.socket:
    """A socket at the port: of this test, or, where it is another program's, at a free one."""
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError:
        return socket.create_server(("127.0.0.1", 0))


def test_without_the_extra_the_command_says_what_to_install() -> None:
    code = "import sys; sys.modules['typer'] = None; from seekpoint.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: the command needs Typer and Rich: pip install '/path/to/seekpoint[cli]' (a checkout or wheel)\n"
    )


@pytest.mark.long
def test_without_another_extra_only_its_commands_are_missing() -> None:
    code = "import sys; sys.modules['psutil'] = None; from seekpoint.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "dev"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install '/path/to/seekpoint[dev]'" in done.stderr
    assert "Traceback" not in done.stderr


# -- status ----------------------------------------------------------------------------------------------


@pytest.fixture
def applied_project(
    project: Project, lines: None, run_worker: Callable[..., Run], produce: Callable[..., object]
) -> Project:
    """A group that has applied three records and left; a fourth has come since."""
    project.produce(["one", "two", "three"])
    sink = Append((project.schema, "lines"), columns=["line"], row=lambda r: (r.value,))
    worker = run_worker(Pipeline(project.group, topics=project.topic, value=Text(), sinks=[sink]))
    worker.finish(project.topic, 3)
    project.produce(["four"])
    return project


def test_status(applied_project: Project) -> None:
    alone = applied_project.status("--json", brokers=False)
    [line] = json.loads(alone.stdout)
    assert line.pop("committed_at").startswith("20")
    sample = {
        "end",
        "lag",
        "lag_seconds",
        "headroom",
        "headroom_seconds",
        "sampled_at",
        "is_sampled",
    }  # of the worker's, if it wrote one
    assert {name: value for name, value in line.items() if name not in sample} == {
        "group": applied_project.group,
        "topic": applied_project.topic,
        "partition": 0,
        "next": 3,
        "epoch": 1,
        "owner": None,
        "host": None,
        "pid": None,
        "worker": None,
        "dead_letters": 0,
        "blocked": 0,
        "waiting": 0,
        "oldest_waiting_seconds": None,
        "retry": None,
        "stop": None,
        "suspects_left": None,
        "reload": None,
        "paused": None,
    }
    [line] = json.loads(applied_project.status("--json").stdout)
    assert (line["next"], line["end"], line["lag"]) == (3, 4, 1)
    shown = applied_project.status()
    assert shown.stdout.splitlines()[1].split() == " ".join(cli_status.PARTITIONS).split()
    assert shown.stdout.splitlines()[2].split()[:3] == [f"{applied_project.topic}/0", "3", "1"]
    assert str(make_url(applied_project.url).password) not in shown.output


def test_status_of_what_is_not_there(applied_project: Project) -> None:
    where = ["--database-url", applied_project.url, "--schema", applied_project.schema]
    unknown = seekpoint("status", "unknown", *where, exits=2)
    assert unknown.stdout == ""
    refused = f"error: the ledger in schema '{applied_project.schema}' has no group 'unknown'; "
    assert f"{refused}its groups are {applied_project.group}" in unknown.stderr
    nowhere = seekpoint(
        "status", applied_project.group, "--database-url", applied_project.url, "--schema", "elsewhere", exits=1
    )
    assert "run `seekpoint db upgrade --schema elsewhere`" in nowhere.stderr
    wrong_key = seekpoint("status", applied_project.group, *where, "--kafka", "sasl.mechanism=PLAIN", exits=2)
    assert "no brokers are named" in wrong_key.stderr


def test_status_shows_a_stored_offset_past_the_end_of_the_log(applied_project: Project) -> None:
    """That is no lag of 0: nothing of what is produced next would be read."""
    ledger = GroupLedger(applied_project.engine, applied_project.group, schema=applied_project.schema)
    ledger.reset_offset(applied_project.topic, 0, 50, log=None, reason="a slip")
    asked = applied_project.status("--json", exits=1)
    [line] = json.loads(asked.stdout)
    assert (line["next"], line["end"], line["lag"]) == (50, 4, None)
    shown = applied_project.status(exits=1)
    assert f"{applied_project.topic}/0: the stored offset 50 is past the end of the log (4)" in shown.stdout


def test_status_shows_the_ledger_when_no_broker_answers(
    applied_project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "KAFKA_TIMEOUT", 0.5)
    monkeypatch.setattr(cli_status, "SLOW", 0.05)
    result = applied_project.status("--kafka", "bootstrap.servers=127.0.0.1:1", "--json", brokers=False, exits=3)
    [line] = json.loads(result.stdout)
    assert line["next"] == 3
    assert "warning: " in result.stderr
    assert "; lag is as of the last sample" in result.stderr
    assert "no answer from the brokers yet; if none comes, the last samples are shown" in result.stderr


def test_status_does_not_compare_with_another_topic_of_that_name(applied_project: Project) -> None:
    ledger = GroupLedger(applied_project.engine, applied_project.group, schema=applied_project.schema)
    ledger.reset_offset(applied_project.topic, 0, 3, log=None, reason="test", topic_id=uuid4())
    result = applied_project.status("--json", exits=1)
    [line] = json.loads(result.stdout)
    assert (line["next"], line["end"], line["lag"]) == (3, None, None)
    assert f"warning: topic '{applied_project.topic}' is not the stored one" in result.stderr
    assert Partition(applied_project.topic, 0) == ledger.read()[0].partition
