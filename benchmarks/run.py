"""Every subject on the same topic and table, round by round; medians, ratios, and ``bench-report.json``.

python benchmarks/run.py [--records N] [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from seekpoint.dev.servers import start_pair

HERE = Path(__file__).parent
SUBJECTS = ("floor.py", "loop.py", "append.py")
POSTGRES = {"shared_buffers": "1GB", "max_wal_size": "8GB"}


def main() -> int:
    """Run them all; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    console = Console()
    with start_pair(own=True, settings=POSTGRES) as pair:
        setting = {
            "BENCH_BROKERS": pair.kafka.bootstrap,
            "BENCH_DSN": pair.postgres.dsn,
            "BENCH_URL": str(pair.postgres.url),
            "BENCH_RECORDS": str(options.records),
        }
        os.environ.update(setting)
        _fill(options.records, console)
        rows = [_run(subject, n, console) for n in range(options.rounds) for subject in SUBJECTS]
        report = {"servers": pair.describe(), "rounds": options.rounds, "rows": rows, "summary": _summary(rows)}
    Path("bench-report.json").write_text(json.dumps(report, indent=2) + "\n")
    _show(report, console)
    return 0


def _fill(records: int, console: Console) -> None:
    from seekpoint.dev.demo.flights import PARTITIONS, TOPIC, Feed  # noqa: PLC0415 -- after the environment is set
    from seekpoint.dev.demo.wire import create_topic  # noqa: PLC0415
    from setting import BROKERS, flights  # noqa: PLC0415

    with console.status(f"producing {records:,} flights"):
        create_topic(BROKERS, TOPIC, PARTITIONS)
        Feed(BROKERS, flights(records)).send()


def _run(subject: str, n: int, console: Console) -> dict[str, Any]:
    with console.status(f"round {n + 1}: {subject}"):
        done = subprocess.run([sys.executable, str(HERE / subject)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{subject} failed:\n{done.stderr}")
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    console.print(f"round {n + 1}: {row['subject']:<10} {row['records_per_second']:>9,} records/s")
    return row


def _summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Medians of the rounds, and ratios to the floor and to the plain loop, each within its own round."""
    rates: dict[str, list[float]] = {}
    for row in rows:
        rates.setdefault(row["subject"], []).append(row["records_per_second"])
    return [
        {
            "subject": subject,
            "records_per_second": round(statistics.median(found)),
            "of_floor": _ratio(found, rates["floor"]),
            "of_loop": _ratio(found, rates["loop"]),
        }
        for subject, found in rates.items()
    ]


def _ratio(found: list[float], to: list[float]) -> float:
    return round(statistics.median(a / b for a, b in zip(found, to, strict=True)), 2)


def _show(report: dict[str, Any], console: Console) -> None:
    shown = Table(title=f"{report['servers']}; medians of {report['rounds']} rounds")
    for name in ("subject", "records/s", "of the floor", "of the loop"):
        shown.add_column(name, justify="left" if name == "subject" else "right")
    for row in report["summary"]:
        rate = f"{row['records_per_second']:,}"
        shown.add_row(row["subject"], rate, f"{row['of_floor']:.2f}", f"{row['of_loop']:.2f}")
    console.print(shown)


if __name__ == "__main__":
    sys.exit(main())
