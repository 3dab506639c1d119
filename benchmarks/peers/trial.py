"""Shared by the peers: the servers' addresses, the records to move, and the one JSON row."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from psycopg.conninfo import conninfo_to_dict

from peers import kinds
from peers.kinds import KINDS, Kind
from seekpoint.testing.servers.process import ServerFailed
from setting import BATCH, BROKERS, DSN, PARALLELISM, RECORDS, TABLE


class SkippedError(Exception):
    """This peer cannot be run here; the message says why."""


class PeerError(Exception):
    """The peer failed; the message ends with its last lines."""


@dataclass(frozen=True)
class Trial:
    """The task of a peer, from the environment: BENCH_TABLE, BENCH_RECORDS, BENCH_BATCH, BENCH_PARALLELISM."""

    kind: Kind
    records: int = RECORDS
    batch: int = 10_000
    parallelism: int = 1
    brokers: str = BROKERS
    dsn: str = DSN

    @property
    def database(self) -> dict[str, str]:
        """host, port, dbname, user and password, for drivers that are not libpq."""
        parts = {k: str(v) for k, v in conninfo_to_dict(self.dsn).items() if v is not None}
        return {"port": "5432", "password": "", **parts}

    @property
    def jdbc(self) -> str:
        """The URL for pgJDBC, whose documentation recommends reWriteBatchedInserts for batches.

        stringtype=unspecified lets the database read numerics and times, which are text in the records.
        """
        database = self.database
        return (
            f"jdbc:postgresql://{database['host']}:{database['port']}/{database['dbname']}"
            "?reWriteBatchedInserts=true&stringtype=unspecified"
        )

    def group(self, peer: str) -> str:
        """A consumer group that was not used before."""
        return f"{peer}-{secrets.token_hex(4)}"


@dataclass(frozen=True)
class Measured:
    """``records`` were moved in ``seconds``; at a watched table, without the first rows that it saw."""

    version: str
    seconds: float
    records: int
    guarantee: str
    cpu_seconds: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


Run = Callable[[Trial], Measured]


def play(peer: str, modes: Mapping[str, Run]) -> None:
    """``python -m peers.NAME MODE``: run it, print its row; exit with 1 if it failed, 0 if it cannot be run here."""
    parser = argparse.ArgumentParser(prog=f"python -m peers.{peer}")
    parser.add_argument("mode", choices=modes)
    mode = parser.parse_args().mode
    trial = Trial(KINDS[TABLE], batch=BATCH, parallelism=PARALLELISM)
    row: dict[str, Any] = {
        "peer": peer,
        "mode": mode,
        "table": trial.kind.name,
        "parallelism": trial.parallelism,
        "records": trial.records,
    }
    try:
        kinds.fill(trial.kind, trial.brokers, trial.records)
        kinds.expect(trial.kind, trial.dsn, trial.records)
        row |= _filled(modes[mode](trial))
    except SkippedError as reason:
        row["skipped"] = str(reason)
    except (PeerError, AssertionError, ServerFailed) as error:
        row["skipped"] = f"failed: {str(error).splitlines()[0]}"
        print(error, file=sys.stderr)
    print(json.dumps(row), flush=True)
    sys.exit(str(row.get("skipped", "")).startswith("failed"))


def _filled(measured: Measured) -> dict[str, Any]:
    row: dict[str, Any] = {
        "version": measured.version,
        "seconds": round(measured.seconds, 3),
        "records_per_second": round(measured.records / measured.seconds),
        "guarantee": measured.guarantee,
    }
    if measured.cpu_seconds is not None:
        row["cpu_seconds"] = round(measured.cpu_seconds, 2)
    return row | {"settings": dict(measured.settings)}
