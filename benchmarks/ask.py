"""Starts the servers of a run, fills their topics, and runs each question's script in turn."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from sqlalchemy import make_url

import machine
import stage
from questions import Question
from report import Row
from seekpoint.testing.servers.kafka import start_kafka
from seekpoint.testing.servers.postgres import start_postgres
from seekpoint.testing.servers.process import free_port
from support.proxy import Proxy

HERE = Path(__file__).parent
POSTGRES = {**stage.POSTGRES, "max_prepared_transactions": "100"}  # which XA needs
LONGEST = 3600.0  # seconds for one question
MOST_TOLD = 3000  # characters of a failed subject's errors that are shown


class Asker:
    """A broker and a Postgres, each also reachable through a proxy; asks each question in a separate process."""

    def __init__(self, options: argparse.Namespace, questions: Sequence[Question], console: Console) -> None:
        self._options, self._questions, self._console = options, questions, console
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))
            port = free_port()
            self._to_broker = stack.enter_context(Proxy("127.0.0.1", port))
            with self._console.status("starting servers"):
                self._kafka = stack.enter_context(start_kafka(own=True, proxied=(port, self._to_broker.port)))
                self._postgres = stack.enter_context(start_postgres(POSTGRES, own=True))
            self._url = make_url(self._postgres.url)
            host, port = self._url.host or "127.0.0.1", self._url.port or 5432
            self._to_database = stack.enter_context(Proxy(host, port))
            moving = [q for q in self._questions if not q.has_servers]
            for question in {(q.table, q.share): q for q in moving}.values():
                with self._console.status(f"producing {question.table}"):
                    self._fill(question)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def describe(self) -> dict[str, Any]:
        """The servers and their settings."""
        return {"servers": [self._postgres.describe(), self._kafka.describe()], "postgres_settings": POSTGRES}

    def _fill(self, question: Question) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "peers.kinds"], env=self._environment(question), check=False, cwd=HERE
        )
        if done.returncode:
            raise SystemExit(f"{question.table} could not be produced")

    def ask(self, question: Question) -> list[Row]:
        """The question's rows; a row with ``skipped`` if its script failed or cannot run here."""
        for proxy, delay in ((self._to_broker, question.broker_delay), (self._to_database, question.database_delay)):
            proxy.delay(delay or 0.0, "to_server")
        busy, began = machine.busy(0.3), time.monotonic()
        try:
            done = subprocess.run(
                [sys.executable, *self._command(question)],
                capture_output=True,
                text=True,
                check=False,
                env=self._environment(question),
                cwd=HERE,
                timeout=LONGEST,
            )
            rows = self._rows(question, done)
        except subprocess.TimeoutExpired:
            rows = [{"skipped": f"failed: not done after {LONGEST:.0f} s"}]
        more = {"busy_percent": busy, "whole_seconds": round(time.monotonic() - began, 1)}
        return [{**row, **more} for row in rows]

    def _command(self, question: Question) -> list[str]:
        command = ["-m", question.script] if question.is_peer else [str(HERE / question.script)]
        quick = ["--quick"] if question.own_options and self._options.quick else []
        return [*command, *question.arguments, *quick]

    def _environment(self, question: Question) -> dict[str, str]:
        url, brokers = self._url, self._kafka.bootstrap
        if question.database_delay is not None:
            url = url.set(port=self._to_database.port)
        if question.broker_delay is not None:
            brokers = self._kafka.proxied_bootstrap
        records = round(self._options.records * question.share)
        settings: dict[str, Any] = {
            "BENCH_BROKERS": brokers,
            "BENCH_URL": url.render_as_string(hide_password=False),
            "BENCH_DSN": url.set(drivername="postgresql").render_as_string(hide_password=False),
            "BENCH_BROKER_PID": self._kafka.pid,
            "BENCH_POSTGRES_PID": self._postgres.pid,
            "BENCH_FOLDER": self._folder,
            "BENCH_TABLE": question.table,
            "BENCH_RECORDS": records,
            "BENCH_LIMIT": min(question.limit or records, records),
            "BENCH_BATCH": question.batch,
            "BENCH_KEY": int(question.key),
            "BENCH_PARALLELISM": question.parallelism,
            "BENCH_SYNCHRONOUS": int(question.synchronous),
            "BENCH_SERVICE": int(question.in_service),
        }
        if question.has_servers:
            settings = {}
        path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
        return {**os.environ, "PYTHONPATH": path, **{name: str(value) for name, value in settings.items()}}

    def _rows(self, question: Question, done: subprocess.CompletedProcess[str]) -> list[Row]:
        """The JSON lines of the script's output. It has failed without any, or with an exit code other than 0."""
        rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        for row in rows:
            if "peer" in row:
                row["subject"] = row.pop("peer")
        if done.returncode or not rows:
            self._console.print(done.stderr[-MOST_TOLD:], markup=False, highlight=False)
            if rows and "skipped" in rows[-1]:
                return rows[-1:]
            last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
            return [{"subject": question.name, "skipped": f"failed: exit code {done.returncode}: {last[:300]}"}]
        if question.cases:
            rows = [row for row in rows if "mode" in row]  # (a script may print a line about its servers, too)
            return [{**row, "case": row["mode"]} for row in rows]
        return rows[-1:]
