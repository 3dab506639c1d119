"""``python tests/failures/table.py``: every kind of failure on a real Postgres, and what became of it, as a table.

It uses the checks of ``tests/postgres/test_failure_matrix.py``; ``SEEKPOINT_TEST_DSN`` names a server to use.
"""

from __future__ import annotations

import logging
import secrets
import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from sqlalchemy import create_engine, text
from sqlalchemy.schema import DropSchema

if __name__ == "__main__":  # run by path: the package is the folder around this file
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from failures.judge import Outcome, judge, prepare
from failures.kinds import EVERY, HANDLERS, KINDS, ROWS, SINKS
from seekpoint import schema
from seekpoint.pipeline.policy import OnPoison
from seekpoint.testing.servers.postgres import start_postgres
from support.sink_tables import SinkTables

_STRATEGIES = {
    EVERY: "all",
    HANDLERS: "handlers",
    ROWS: "sinks with `row=`",
    SINKS: "sinks",
    (*ROWS, *HANDLERS): "all with code",
}
HEAD = (
    "failure",
    "write strategies",
    "cause",
    "SQLSTATE",
    *(f"`{p.value}`" for p in OnPoison),
    "the good ones beside it",
    "offset",
)


def outcomes(sink_tables: SinkTables) -> Iterator[Outcome]:
    """Run them all."""
    prepare(sink_tables)
    for kind in KINDS:
        for strategy in kind.strategies:
            for policy in OnPoison:
                yield judge(sink_tables, kind, strategy, policy, f"t_{secrets.token_hex(5)}")


def lines(outcomes: Iterable[Outcome]) -> Iterator[str]:
    """A line for each kind; where the ways of writing differ, one for each result."""
    yield f"| {' | '.join(HEAD)} |"
    yield "|---" * len(HEAD) + "|"
    for name, group in groupby(outcomes, attrgetter("kind")):
        ends: dict[tuple[str, ...], list[str]] = {}
        for strategy, by_policy in groupby(group, attrgetter("strategy")):
            seen = list(by_policy)
            same = ["; ".join(dict.fromkeys(getattr(o, field) for o in seen)) for field in ("good", "offset")]
            ends.setdefault((seen[0].cause, seen[0].sqlstate, *(o.record for o in seen), *same), []).append(strategy)
        for end, strategies in ends.items():
            yield f"| {name} | {_STRATEGIES.get(tuple(strategies), ', '.join(strategies))} | {' | '.join(end)} |"


def main() -> None:
    """Print the table; fails as the test does."""
    logging.disable()  # every event of every case
    with start_postgres() as server:
        name, engine = f"seekpoint_{secrets.token_hex(6)}", create_engine(server.url)
        try:
            schema.upgrade(engine, schema=name)
            for line in lines(list(outcomes(SinkTables(engine, name)))):
                print(line)
        finally:
            with engine.begin() as tx:
                tx.execute(text("SET LOCAL lock_timeout = '10s'"))
                tx.execute(DropSchema(name, cascade=True, if_exists=True))
            engine.dispose()


if __name__ == "__main__":
    main()
