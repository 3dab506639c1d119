"""``python tests/afternoon/run.py --records 20000 --minutes 1 --kills 2``: all that Spark does, compared row by row."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

if __name__ == "__main__":  # run by path: the packages are in the folder above
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from afternoon import steps
from afternoon.by_hand import jdbc_settings
from afternoon.facts import Facts
from afternoon.setting import setting
from afternoon.steps import Afternoon
from seekpoint.testing.servers.spark import start_cluster, start_spark
from support.quick_java import QUICK_JAVA

STEPS = ("verify", "reload", "export", "checkpoint", "cluster", "stream", "two drivers")
CLUSTER = {"spark.executor.memory": "512m", "spark.cores.max": "2"}


def perform(afternoon: Afternoon, chosen: set[str]) -> None:
    """All steps in their order: the first two and the last one always."""
    afternoon.run(steps.produce(afternoon))
    with afternoon.here.load:
        afternoon.run(steps.side_by_side(afternoon))
        if chosen & {"verify", "reload", "export", "checkpoint"}:
            with start_spark("local[2]", jdbc_settings()) as spark:
                in_session = {
                    "verify": steps.verified(afternoon, spark),
                    "reload": steps.reloaded(afternoon, spark, "local[2]"),
                    "export": steps.exported(afternoon, spark),
                    "checkpoint": steps.queried(afternoon, spark),
                }
                for name in (name for name in in_session if name in chosen):
                    afternoon.run(in_session[name])
        if "cluster" in chosen:
            with start_cluster() as master, start_spark(master, CLUSTER) as spark:
                afternoon.run(steps.reloaded(afternoon, spark, "cluster"))
        if "stream" in chosen:
            afternoon.run(steps.streamed(afternoon))
        if "two drivers" in chosen:
            afternoon.run(steps.two_drivers(afternoon))
        afternoon.run(steps.the_rest(afternoon))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Everything on Spark, once, next to the same by hand.")
    parser.add_argument("--records", type=int, default=1_500_000)
    parser.add_argument("--minutes", type=float, default=10.0, help="of the stream under kills")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    parser.add_argument("--steps", nargs="*", choices=STEPS, default=STEPS)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    os.environ |= {**QUICK_JAVA, **os.environ}
    print(f"spark afternoon: seed {args.seed}, {args.records:,} records, steps {', '.join(args.steps)}", flush=True)
    facts = Facts(args.seed, args.records)
    with tempfile.TemporaryDirectory(prefix="seekpoint-afternoon-") as folder, setting(facts, Path(folder)) as here:
        afternoon = Afternoon(here, args.seed, args.minutes, args.kills)
        perform(afternoon, set(args.steps))
    done, findings = afternoon.done, afternoon.findings
    lines = [took.line for took in done]
    print("", steps.HEAD, *lines, f"{len(findings)} findings; seed {args.seed}", *findings, sep="\n", flush=True)
    if args.json:
        report = {**vars(args), "json": None, "steps": [asdict(took) for took in done], "findings": findings}
        args.json.write_text(json.dumps(report, indent=1), encoding="utf-8")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
