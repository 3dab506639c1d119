"""``python tests/chaos/reload/reloads.py --rounds 20 --seed 7``: reloads under load and kills."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

if __name__ == "__main__":  # run by path: the packages are in the folder above
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from chaos.reload.reload_chaos import STAGERS
from chaos.reload.report import run
from seekpoint.testing.servers.pair import start_pair


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Reload a live table again and again, while its processes are killed.")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--stagers", default=",".join(STAGERS), help="who reads the log, in turns")
    parser.add_argument("--report", type=Path, default=Path("reloads-report.json"))
    args = parser.parse_args()
    with start_pair(own=True) as pair:
        print(f"reload chaos: seed {args.seed}, {args.rounds} rounds, {pair.describe()}", flush=True)
        account = run(
            pair.postgres,
            pair.kafka.bootstrap,
            rounds=args.rounds,
            seed=args.seed,
            stagers=args.stagers.split(","),
            show=lambda line: print(line, flush=True),
        )
    account.write(args.report)
    print(*account.lines(), sep="\n")
    sys.exit(0 if account.passed else 1)


if __name__ == "__main__":
    main()
