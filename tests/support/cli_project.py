"""``seekpoint`` in a separate process, and a project in which to call it: modules, a database, a topic."""

from __future__ import annotations

import json
import secrets
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from time import monotonic
from typing import Any

from sqlalchemy import Engine, text
from typer.testing import Result

from support.command import seekpoint
from support.forked_process import Forked

HEADER = "from seekpoint import Append, Json, Limits, Pipeline, Text, Worker\n"


TO_TABLE = """\
sink = Append("{schema}.lines", columns=["line"], row=lambda r: (r.value,))
pipe = Pipeline("{group}", topics="{topic}", value=Text(), sinks=[sink])
"""
# A handler that does not return, which makes the worker not live after a second.
HANGING = """\
from threading import Event
pipe = Pipeline("{group}", topics="{topic}", value=Text(), handle=lambda tx, batch: Event().wait())
def worker():
    kafka = {{"bootstrap.servers": "{broker}"}}
    return Worker(pipe, engine="{url}", kafka=kafka, schema="{schema}", limits=Limits(transaction_age=1))
"""


class Process:
    """The command in a separate process; its output is read as it comes."""

    def __init__(self, *arguments: str, env: dict[str, str] | None = None) -> None:
        self._process = Forked("support.cli_process", {"words": arguments}, env=env)
        self._news, self._output = threading.Condition(), {"out": "", "err": ""}
        self._readers = [
            threading.Thread(target=self._read, args=(name, stream), daemon=True)
            for name, stream in (("out", self._process.stdout), ("err", self._process.stderr))
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, name: str, stream: object) -> None:
        for line in stream:  # type: ignore[attr-defined]
            with self._news:
                self._output[name] += line
                self._news.notify_all()
        stream.close()  # type: ignore[attr-defined]

    def wait_for(self, what: str, name: str = "err", seconds: float = 40.0, times: int = 1) -> None:
        deadline = monotonic() + seconds
        with self._news:
            while self._output[name].count(what) < times:
                assert self._process.poll() is None, f"ended before it said {what!r}:\n{self.output}"
                assert self._news.wait(max(0.0, deadline - monotonic())), f"never said {what!r}:\n{self.output}"

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self, seconds: float = 40.0) -> int:
        code = self._process.wait(seconds)
        for reader in self._readers:
            reader.join(10)
        return code

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def output(self) -> str:
        return self._output["out"] + self._output["err"]

    def log(self) -> list[dict[str, Any]]:
        """The JSON objects in the lines of stderr; fails for NaN and Infinity."""

        def refuse(constant: str) -> None:
            raise AssertionError(f"{constant} is no JSON")

        return [json.loads(line, parse_constant=refuse) for line in self._output["err"].splitlines()]

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self.end()


@dataclass
class Project:
    """A folder with a user's modules, a database with the ledger, and a topic, for calls of the command."""

    folder: Path
    url: str
    broker: str
    schema: str
    topic: str
    group: str
    engine: Engine
    fill: Callable[..., object]
    started: list[Process] = field(default_factory=list)

    def produce(self, values: list[str | bytes], **options: Any) -> None:
        self.fill(self.topic, values, **options)

    def start(self, *arguments: str, env: dict[str, str] | None = None) -> Process:
        """Start the command in a process, which ends with the test."""
        self.started.append(Process(*arguments, env=env))
        return self.started[-1]

    def status(self, *more: str, brokers: bool = True, exits: int = 0) -> Result:
        kafka = ["--kafka", f"bootstrap.servers={self.broker}"] if brokers else []
        where = ["--database-url", self.url, "--schema", self.schema, *kafka]
        return seekpoint("status", self.group, *where, *more, exits=exits)

    def sql(self, *statements: str) -> None:
        """Run SQL statements, with the schema's name for {schema}."""
        with self.engine.begin() as tx:
            for statement in statements:
                tx.execute(text(statement.format(schema=f'"{self.schema}"')))

    def lines(self) -> list[str]:
        """The lines that the worker has written."""
        with self.engine.connect() as connection:
            return list(connection.execute(text(f'SELECT line FROM "{self.schema}".lines ORDER BY 1')).scalars())

    def module(self, *lines: str, more: str = "") -> str:
        """Write a module; ``lines`` may use {topic}, {group}, {schema}, {broker} and {url}. Returns its name."""
        name = f"pipes_{secrets.token_hex(6)}"
        body = HEADER + dedent("\n".join(lines)).format(**vars(self)) + more
        (self.folder / f"{name}.py").write_text(body, encoding="utf-8")
        return name

    def options(self, url: str | None = None, broker: str | None = None) -> list[str]:
        return [
            *("--database-url", url or self.url),
            *("--kafka", f"bootstrap.servers={broker or self.broker}"),
            *("--schema", self.schema),
        ]

    def run(self, module: str, name: str = "pipe", *more: str, url: str | None = None, exits: int = 0) -> Result:
        strict = ["--strict"] if name == "pipe" else []  # a Worker takes no options
        return seekpoint("run", f"{module}:{name}", *self.options(url), *strict, *more, exits=exits)
