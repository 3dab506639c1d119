"""Support for tests of the commands for jobs: a group, a module of its pipelines, and calls of the command."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import Result

from support.command import seekpoint
from support.ledger_worker import waits_for_lock
from support.reload_orders import OrdersGroup, gone, of
from support.waiting import until

MODULE = """\
from seekpoint import Worker
from support.reload_orders import pipeline

old = pipeline("{group}", "{topic}", "{schema}")
fixed = pipeline("{group}", "{topic}", "{schema}", version=2)
lenient = pipeline("{group}", "{topic}", "{schema}", version=2, on_poison="dead_letter", sink={{"order_by": "at"}})
entries = pipeline("{group}", "{topic}", "{schema}", kind="append")
others = pipeline("others of {group}", "{topic}", "{schema}")
worker = Worker(fixed, engine={url!r}, kafka={{"bootstrap.servers": "{brokers}"}}, schema="{schema}")
elsewhere = Worker(others, engine={url!r}, kafka={{"bootstrap.servers": "localhost:9"}}, schema="{schema}")
"""
# What the commands find in the topic: keys that come again, and one that is deleted.
FIRST = [of(n % 40, n, n) for n in range(120)] + [gone(3)]
COMMAND = [sys.executable, "-m", "seekpoint.cli.main"]


@dataclass(frozen=True)
class Terminal:
    """A folder with a module of pipelines: ``old``, ``fixed`` (version 2), ``entries``, ``worker`` and others."""

    orders_group: OrdersGroup
    folder: Path
    module: str

    @classmethod
    def of(cls, orders_group: OrdersGroup, folder: Path) -> Terminal:
        terminal = cls(orders_group, folder, f"pipes_{secrets.token_hex(6)}")
        body = MODULE.format(
            group=orders_group.group,
            topic=orders_group.topic,
            schema=orders_group.schema,
            brokers=orders_group.brokers,
            url=orders_group.url,
        )
        (folder / f"{terminal.module}.py").write_text(body, encoding="utf-8")
        return terminal

    def run(self, *words: str, exits: int = 0) -> Result:
        """Call the command; fails unless its exit code is ``exits``."""
        return seekpoint(*words, exits=exits, width=80)

    def job(self, *words: str, name: str = "fixed", exits: int = 0) -> Result:
        """Call a command that takes a pipeline and both servers; ``words`` ends with the command's own options."""
        command, options = _split(words)
        return self.run(*command, f"{self.module}:{name}", *options, *self.orders_group.server_options, exits=exits)

    def look(self, *words: str, exits: int = 0) -> Any:
        """Call a command that takes only the database; returns its JSON."""
        return json.loads(self.run(*words, *self.orders_group.database_options, "--json", exits=exits).stdout)

    def process(self, *words: str, name: str = "fixed", **env: str) -> subprocess.Popen[str]:
        """Start the command in a separate process."""
        command, options = _split(words)
        return subprocess.Popen(
            [*COMMAND, *command, f"{self.module}:{name}", *self.orders_group.server_options, *options],
            cwd=self.folder,
            env={**os.environ, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def wait_for_lock(orders_group: OrdersGroup, column: str, like: str) -> None:
    """Wait until a session whose ``column`` is LIKE ``like`` waits for a lock."""
    until(lambda: waits_for_lock(orders_group.engine, like, column), "a session that waits for a lock", 60)


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    index = next((n for n, word in enumerate(words) if word.startswith("-")), len(words))
    return list(words[:index]), list(words[index:])
