"""The code blocks of the pages run, in their order, against real servers.

Every page has a database of its own. Its Python blocks share one namespace, which begins with

- ``url`` and ``engine``: that database (without the ledger's tables, until the page makes them);
- ``brokers``: the ``bootstrap.servers`` of the shared broker, where the page uses it;
- ``make_topic(name, partitions)`` and ``produce(topic, values)``: topics of fixed names, so a page whose topic another
  page has at that moment waits for its end;
- ``wait_until(query, answer)``: until the query answers that, or the page fails.

SQL blocks run on the same database. A Python block that begins with ``# name.py`` is a file. On the pages that are
to be typed in (``TYPED``) the commands run too, in a folder that holds those files, as a shell would run them.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.pool import NullPool
from sybil import Example, Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser

from pages import PAGES, ROOT, blocks, name_of, read
from seekpoint import Ledger

SECONDS = 60.0  # for what takes a few
TYPED = {"README.md", "docs/start.md"}
NOT_RUN = {
    "docs/reference/schema.md": "its rights name a role; tests/migrations/test_reference_page.py runs them",
}
SCRIPTED = {"docs/start.md": {"clicks"}}  # topics that a page's script makes
COMMANDS = {"seekpoint": [sys.executable, "-m", "seekpoint.cli.main"], "python": [sys.executable]}
PREPARED = {"make", "pip", "export"}  # what the suite stands on, and what it sets itself


def _runs(page: Path) -> bool:
    return any(block.language in {"python", "sql"} for block in blocks(read(page)))


class Shell:
    """Runs a page's commands, one after the other; those that end in ``&`` in the background, as ``%1``, ``%2``."""

    def __init__(self, folder: Path, url: str, brokers: str) -> None:
        self._folder = folder
        config = folder / "kafka.properties"
        config.write_text(f"bootstrap.servers={brokers}\n", encoding="utf-8")
        self._brokers = brokers
        self._env = {**os.environ, "SEEKPOINT_DATABASE_URL": url, "SEEKPOINT_KAFKA_CONFIG": str(config)}
        self._jobs: list[subprocess.Popen[bytes]] = []
        self._log = folder / "output"

    def type(self, line: str) -> None:
        """Do what the line says; a command that ends must end with exit code 0."""
        words = shlex.split(line.replace("localhost:9092", self._brokers))
        background = words[-1] == "&"
        if words[0] in PREPARED or words == ["seekpoint", "dev"]:
            return
        if words[0] == "kill":
            self._kill(self._jobs[int(words[-1].removeprefix("%")) - 1], hard="-9" in words)
        elif background or words[:2] == ["seekpoint", "run"]:
            self._jobs.append(self._start([word for word in words if word != "&"]))
        else:
            assert self._start(words).wait(SECONDS) == 0, line

    def _start(self, words: list[str]) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [*COMMANDS[words[0]], *words[1:]],
                cwd=self._folder,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _kill(self, job: subprocess.Popen[bytes], *, hard: bool = False) -> None:
        job.send_signal(signal.SIGKILL if hard else signal.SIGTERM)
        job.wait(SECONDS)
        assert hard or job.returncode == 0, f"{job.args!r} ended with {job.returncode}"

    def drain(self) -> None:
        """Ask every job that is left to stop."""
        for job in self._jobs:
            if job.returncode is None:
                self._kill(job)

    def close(self) -> None:
        """End what is left, whatever it is doing, and show what was printed: it is seen if the test failed."""
        for job in self._jobs:
            if job.returncode is None:
                job.kill()
                job.wait()
        print(self._log.read_text(encoding="utf-8") if self._log.exists() else "(nothing was printed)")


@pytest.fixture
def url(seekpoint_dsn: str) -> Iterator[str]:
    """A database of this page's own."""
    name = f"docs_{uuid4().hex}"
    server = create_engine(seekpoint_dsn, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with server.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name} TEMPLATE template0"))
    yield make_url(seekpoint_dsn).set(database=name).render_as_string(hide_password=False)
    with server.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    """An engine on it."""
    engine = create_engine(url)
    yield engine
    engine.dispose()


def _waiter(engine: Engine) -> Callable[[str, object], None]:
    def wait_until(query: str, answer: object) -> None:
        deadline, pause, found = monotonic() + SECONDS, threading.Event(), None
        while monotonic() < deadline:
            with engine.connect() as connection:
                found = connection.execute(text(query)).scalar_one_or_none()
            if found == answer:
                return
            pause.wait(0.05)
        raise AssertionError(f"{query} answers {found!r}, not {answer!r}, after {SECONDS} s")

    return wait_until


@pytest.fixture
def kafka(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """The broker, and what pages do with it. A topic that a page's own script makes goes away like the others."""
    brokers, topic = request.getfixturevalue("seekpoint_broker"), request.getfixturevalue("topic")
    yield {
        "brokers": brokers,
        "make_topic": lambda name, partitions: _when_free(lambda: topic(partitions, name=name)),
        "produce": request.getfixturevalue("produce"),
    }
    admin = AdminClient({"bootstrap.servers": brokers, "log_level": 0})
    scripted = SCRIPTED.get(name_of(request.node.callspec.params["page"]), set())
    if made := scripted & set(admin.list_topics(timeout=20).topics):
        for future in admin.delete_topics(sorted(made)).values():
            future.result(20)


def _when_free(make: Callable[[], str]) -> str:
    """Make a topic; while another page has one of that name, wait until it is gone."""
    deadline, pause = monotonic() + 2 * SECONDS, threading.Event()
    while True:
        try:
            return make()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS or monotonic() > deadline:
                raise
        pause.wait(0.1)


class Reader:
    """Does what a page's blocks say, one after the other."""

    def __init__(self, page: Path, engine: Engine, folder: Path, shell: Shell | None) -> None:
        self._page, self._engine, self._folder, self._shell = page, engine, folder, shell
        self._python = PythonEvaluator()

    def read(self, given: dict[str, Any]) -> None:
        """The whole page, its namespace beginning with ``given``."""
        parsers = [CodeBlockParser("python", self._run_python)]
        if name_of(self._page) not in NOT_RUN:
            parsers.append(CodeBlockParser("sql", self._run_sql))
        if self._shell is not None:
            parsers.append(CodeBlockParser("console", self._run_console))
        document = Sybil(parsers=parsers, path=str(ROOT)).parse(self._page)
        document.namespace.update(given)
        try:
            for example in document.examples():
                example.evaluate()
        finally:
            for made in document.namespace.values():
                if isinstance(made, Ledger):
                    made.engine.dispose()

    def _run_python(self, example: Example) -> None:
        header = re.match(r"# (\w+\.py)\n", example.parsed)
        if header:
            (self._folder / header[1]).write_text(example.parsed, encoding="utf-8")
        if not (header and self._shell):
            self._python(example)

    def _run_sql(self, example: Example) -> None:
        with self._engine.begin() as tx:
            driver: Any = tx.connection.driver_connection  # SQLAlchemy would read % as the start of a parameter
            driver.execute(example.parsed)

    def _run_console(self, example: Example) -> None:
        assert self._shell is not None
        for line in example.parsed.splitlines():
            if line.startswith("$ "):
                self._shell.type(line[2:])


@pytest.mark.parametrize("page", [page for page in PAGES if _runs(page)], ids=name_of)
def test_the_blocks_of_a_page_run(
    page: Path, url: str, engine: Engine, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    given: dict[str, Any] = {"url": url, "engine": engine, "wait_until": _waiter(engine), "__name__": "page"}
    typed = name_of(page) in TYPED
    if typed or re.search(r"\b(brokers|make_topic|produce)\b", read(page)):
        given |= request.getfixturevalue("kafka")
    shell = Shell(tmp_path, url, given["brokers"]) if typed else None
    try:
        Reader(page, engine, tmp_path, shell).read(given)
        if shell is not None:
            shell.drain()
    finally:
        if shell is not None:
            shell.close()


def test_the_readme_shows_the_promise_the_picture_and_the_shortest_pipeline_whole() -> None:
    """Picture, two commands, then table, file and commands with nothing left out; the boundary beside the promise."""
    text = read(ROOT / "README.md")
    shown = blocks(text)
    assert [block.language for block in shown[:5]] == ["text", "console", "sql", "python", "console"]
    assert re.findall(r"^\$ make (\w+)", shown[1].text, re.MULTILINE) == ["demo", "test"]
    assert shown[2].line < 45
    assert "boundary is *this database*" in text[: text.index("\n## ")]
