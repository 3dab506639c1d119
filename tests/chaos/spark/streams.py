"""``python tests/chaos/spark/streams.py --rounds 10 --seed 7``: a stream of DataFrames under kills."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

if __name__ == "__main__":  # run by path: the packages are in the folder above
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from chaos.spark.stream_chaos import run
from seekpoint.testing.servers.pair import start_pair
from support.quick_java import QUICK_JAVA


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Kill drivers, executors and tasks of a stream of DataFrames.")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, required=True)
    args = parser.parse_args()
    os.environ |= {**QUICK_JAVA, **os.environ}
    with start_pair(own=True) as pair:
        print(f"stream chaos: seed {args.seed}, {args.rounds} rounds, {pair.describe()}", flush=True)
        findings = run(
            pair.postgres,
            pair.kafka.bootstrap,
            rounds=args.rounds,
            seed=args.seed,
            show=lambda line: print(line, flush=True),
        )
    print(*(f"FAILED: {finding}" for finding in findings), sep="\n")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
