"""Chosen peers on the same topic and table, round by round, on a broker and a Postgres of their own.

python benchmarks/peers [PEER | PEER:MODE | SCRIPT.py].. [--records N] [--rounds N] [--table flights|payments]

PEER is one of those that ``--list`` names, with all its modes; SCRIPT.py is one of the other benchmarks, for ratios
within the run. Without any: floor.py, append.py (they know flights alone), and the peers' main modes. One JSON row a
run goes to standard output, the table of medians to standard error.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from peers.kinds import KINDS
from seekpoint.dev.servers import Pair, start_pair

BENCHMARKS = Path(__file__).resolve().parent.parent
PEERS = ("kafka_python", "quix", "pathway", "flink", "connect", "spark")
MAIN = (
    *("floor.py", "append.py"),
    *(f"kafka_python:{mode}" for mode in ("sync", "async", "sync-crc32c", "async-crc32c", "2-sync", "2-sync-crc32c")),
    *("quix:insert", "quix:upsert", "pathway:append", "pathway:snapshot"),
    *("flink:append", "flink:upsert", "flink:xa", "connect:insert", "connect:upsert", "connect:aiven-insert"),
    *("spark:append", "spark:upsert", "spark:kafka-append"),
)
# As benchmarks/run.py, and what XA needs.
POSTGRES = {"shared_buffers": "1GB", "max_wal_size": "8GB", "max_prepared_transactions": "100"}


def main() -> int:
    """Run them; 1 where a peer failed, 0 where all ran or could not be run here."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subjects", nargs="*")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--table", choices=KINDS, default="flights")
    parser.add_argument("--batch", type=int, default=10_000, help="rows a transaction, where a peer can be told")
    parser.add_argument("--parallelism", type=int, default=1, help="slots, tasks or threads, where a peer has them")
    parser.add_argument("--list", action="store_true", help="name the peers and their modes, and end")
    parser.add_argument("--output", type=Path, help="a file for the whole report as JSON")
    options = parser.parse_args()
    if options.list:
        print("\n".join(f"{peer}:{mode}" for peer in PEERS for mode in _modes(peer)))
        return 0
    subjects = _chosen(parser, options.subjects, options.table)
    console = Console(stderr=True, width=None if sys.stderr.isatty() else 180)
    with start_pair(own=True, settings=POSTGRES) as pair:
        environment = _environment(pair, options)
        rows = []
        for n in range(options.rounds):
            for subject in subjects:
                rows.append({"round": n + 1, **_run(subject, environment, console)})
                print(json.dumps(rows[-1]), flush=True)
        report = {"servers": pair.describe(), "rounds": options.rounds, "rows": rows, "summary": summary(rows)}
    if options.output:
        options.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    _show(report, console)
    return int(any(str(row.get("skipped", "")).startswith("failed") for row in rows))


def _modes(peer: str) -> list[str]:
    return list(importlib.import_module(f"peers.{peer}").MODES)


def _chosen(parser: argparse.ArgumentParser, asked: list[str], table: str) -> list[str]:
    chosen = []
    for one in asked or MAIN:
        peer, _, mode = one.partition(":")
        if one.endswith(".py"):
            if not (BENCHMARKS / one).is_file():
                parser.error(f"there is no benchmarks/{one}")
            if table == "flights":
                chosen.append(one)
            elif asked:
                parser.error(f"{one} knows flights alone")
        elif peer not in PEERS or (mode and mode not in _modes(peer)):
            parser.error(f"no peer {one}: --list names them")
        else:
            chosen += [one] if mode else [f"{peer}:{mode}" for mode in _modes(peer)]
    return chosen


def _environment(pair: Pair, options: argparse.Namespace) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(BENCHMARKS),
        "BENCH_BROKERS": pair.kafka.bootstrap,
        "BENCH_DSN": pair.postgres.dsn,
        "BENCH_URL": str(pair.postgres.url),
        "BENCH_TABLE": options.table,
        "BENCH_RECORDS": str(options.records),
        "BENCH_BATCH": str(options.batch),
        "BENCH_PARALLELISM": str(options.parallelism),
    }


def _run(subject: str, environment: dict[str, str], console: Console) -> dict[str, Any]:
    if subject.endswith(".py"):
        command = [str(BENCHMARKS / subject)]
        subprocess.run([sys.executable, "-m", "peers.kinds"], env=environment, check=True)  # these do not fill it
    else:
        peer, mode = subject.split(":")
        command = ["-m", f"peers.{peer}", mode]
    began = time.monotonic()
    with console.status(subject):
        done = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, check=False, env=environment, cwd=BENCHMARKS
        )
    took = round(time.monotonic() - began, 1)
    try:
        row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        row = {"peer": subject, "mode": "", "skipped": f"failed: it ended with {done.returncode} and no row"}
    if str(row.get("skipped", "")).startswith("failed"):
        console.print(f"{subject}:\n{done.stderr}", markup=False, highlight=False)
    if "subject" in row:
        row = {"peer": row.pop("subject"), **row}
    return {**row, "whole_seconds": took}


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The median of the rounds for each peer and mode, and its ratio to each script of ours, round by round."""
    runs: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    for row in rows:
        runs.setdefault((row["peer"], row["mode"]), {})[row["round"]] = row
    bases = {name: found for (name, _), found in runs.items() if name not in PEERS}
    found = []
    for (peer, mode), by_round in runs.items():
        good = {n: row for n, row in by_round.items() if "records_per_second" in row}
        line: dict[str, Any] = {"peer": peer, "mode": mode, "runs": len(good)}
        if good:
            last = list(good.values())[-1]
            line["records_per_second"] = round(statistics.median(r["records_per_second"] for r in good.values()))
            line |= {key: last[key] for key in ("version", "guarantee") if key in last}
            line["ratios"] = {base: ratio for base, of in bases.items() if (ratio := _ratio(good, of)) is not None}
        else:
            line["skipped"] = next(row["skipped"] for row in by_round.values())
        found.append(line)
    return found


def _ratio(good: dict[int, dict[str, Any]], of: dict[int, dict[str, Any]]) -> float | None:
    both = [
        row["records_per_second"] / of[n]["records_per_second"]
        for n, row in good.items()
        if "records_per_second" in of.get(n, {})
    ]
    return round(statistics.median(both), 3) if both else None


def _show(report: dict[str, Any], console: Console) -> None:
    bases = sorted({base for line in report["summary"] for base in line.get("ratios", {})})
    shown = Table(title=f"{report['servers']}; medians of {report['rounds']} rounds")
    for name in ("peer", "mode", "version"):
        shown.add_column(name)
    for name in ("records/s", *(f"of {base}" for base in bases)):
        shown.add_column(name, justify="right")
    shown.add_column("guarantee, or why it was skipped")
    for line in report["summary"]:
        rate = f"{line['records_per_second']:,}" if "records_per_second" in line else "-"
        ratios = [f"{line.get('ratios', {}).get(base, '-')}" for base in bases]
        remark = line.get("skipped") or line.get("guarantee", "")
        shown.add_row(line["peer"], line["mode"], line.get("version", ""), rate, *ratios, remark)
    console.print(shown)
