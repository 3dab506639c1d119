"""Which write strategy is cheapest for an upsert, by rows per transaction and share of new keys: ready rows, no Kafka.

python benchmarks/write_strategies.py [--rows N] [--rounds N]

Every round runs all strategies of a case one after the other, on the same keys and a fresh table; one JSON row per case
and strategy, with the median of the rounds and the ratio to ``temp_table`` within the same round.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any

from sqlalchemy import Engine, create_engine, text

from seekpoint.sinks import Append, Upsert
from seekpoint.sinks.upsert.strategy import WriteStrategies, WriteStrategy
from stage import servers

TABLE = "bench_upsert"
COLUMNS = ("id", "customer", "amount", "at", "kind", "note")
STORED = 200_000
STRATEGIES = ("append", "adaptive", "copy", "temp_table", "unnest")


class Forced(WriteStrategies):
    """Always takes one strategy."""

    def __init__(self, strategy: WriteStrategy) -> None:
        super().__init__()
        self._strategy = strategy

    def gathers(self, rows: int) -> bool:  # noqa: ARG002 -- as WriteStrategies has it
        return self._strategy is WriteStrategy.UNNEST

    def choose(self, rows: int, *, deduped: bool, direct: bool) -> WriteStrategy:  # noqa: ARG002 -- as WriteStrategies has it
        return self._strategy


def main() -> None:
    """Run the cases and print a row for each of their strategies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with servers(kafka=False) as server:
        engine = create_engine(server.url)
        for new, size, strategies in cases():
            rates: dict[str, list[float]] = {strategy: [] for strategy in strategies}
            for n in range(options.rounds):
                keys = list(some_keys(new, min(options.rows, size * 300), seed=n))
                for strategy in strategies:
                    stored = 0 if new == 1 else STORED
                    rates[strategy].append(measure(engine, strategy, keys, size, stored=stored))
            for strategy, rate in rates.items():
                ratio = statistics.median(a / b for a, b in zip(rate, rates["temp_table"], strict=True))
                row = {"subject": "upsert", "new": new, "rows_per_transaction": size, "mode": strategy}
                figures = {"rows_per_second": round(statistics.median(rate)), "of_temp_table": round(ratio, 2)}
                print(json.dumps(row | figures))
        with engine.begin() as tx:
            tx.execute(text(f"DROP TABLE IF EXISTS {TABLE}"))
        engine.dispose()


def cases() -> Iterator[tuple[float, int, Sequence[str]]]:
    """The share of new keys, the rows of a transaction, and the strategies that can be used."""
    for size in (1, 10, 50, 100, 500, 10_000):
        yield 1.0, size, [strategy for strategy in STRATEGIES if strategy != "unnest" or size < 10_000]
        yield 0.2, size, ["adaptive", "temp_table", *(["unnest"] if size < 10_000 else [])]


def some_keys(new: float, count: int, *, seed: int) -> Iterator[int]:
    """Shuffled keys; no new key comes twice."""
    chance = random.Random(seed)
    unused = list(range(STORED + 1, STORED + count + 1))
    chance.shuffle(unused)
    for n in range(count):
        yield unused[n] if chance.random() < new else chance.randrange(STORED) + 1


def measure(engine: Engine, strategy: str, keys: Sequence[int], size: int, *, stored: int) -> float:
    """Rows per second."""
    with engine.begin() as tx:
        tx.execute(text(f"DROP TABLE IF EXISTS {TABLE}"))
        tx.execute(
            text(
                f"CREATE TABLE {TABLE} (id bigint PRIMARY KEY, customer int, amount numeric, at timestamptz, "
                "kind text, note text) WITH (autovacuum_enabled = false)"
            )
        )
        tx.execute(text(f"INSERT INTO {TABLE} SELECT n, 1, 1, now(), 'sale', 'x' FROM generate_series(1, {stored}) n"))
    sink: Any = Append(TABLE, columns=COLUMNS) if strategy == "append" else Upsert(TABLE, key=["id"], columns=COLUMNS)
    writer = sink.writer()
    if strategy not in {"append", "adaptive"}:
        writer.strategies = Forced(WriteStrategy(strategy))
    rows = [(key, key % 977, "12.50", "2026-01-01T00:00:00Z", "sale", f"note {key}") for key in keys]
    with engine.connect() as connection:
        with connection.begin(), writer.open(connection) as opened:
            opened.write([(0, 0, "0", "2026-01-01T00:00:00Z", "sale", "the temporary table is made here")])
        began = perf_counter()
        for start in range(0, len(rows), size):
            with connection.begin(), writer.open(connection) as opened:
                opened.write(rows[start : start + size])
        return len(rows) / (perf_counter() - began)


if __name__ == "__main__":
    main()
