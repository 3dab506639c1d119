"""What the request for a topic's id costs, by the number of its partitions.

python benchmarks/topic_ids.py [--partitions 6,1000] [--rounds N] [--quick]

Needs only Kafka. Each row is a topic with this many partitions, one request after the other in one process.
``cpu_us`` is the processor time of the whole process, the client's threads included. ``cost`` is the ratio of the
medians to those of the first number of partitions, in the same rounds.
"""

from __future__ import annotations

import statistics
import sys
from time import perf_counter, process_time
from typing import Any

from seekpoint.kafka.identity import Identity
from stage import Stage, arguments, median_ms, say, servers

BLOCK = 20  # requests before the next topic


def run(stage: Stage, partitions: list[int], rounds: int) -> None:
    """A topic for each number of partitions; they alternate, round by round."""
    topics = [stage.topic(f"ids-{number}", number) for number in partitions]
    identity = Identity({"bootstrap.servers": stage.brokers}, 10.0)
    assert None not in identity.ask(topics).result().values()
    seconds: list[list[float]] = [[] for _ in topics]
    cpu: list[list[float]] = [[] for _ in topics]
    for _ in range(rounds):
        for number, topic in enumerate(topics):
            used = process_time()
            for _ in range(BLOCK):
                began = perf_counter()
                identity.ask({topic}).result()
                seconds[number].append(perf_counter() - began)
            cpu[number].append((process_time() - used) / BLOCK)
    for number, count in enumerate(partitions):
        say(
            "topic ids",
            f"{count:,} partitions",
            partitions=count,
            questions=len(seconds[number]),
            question_p50_ms=median_ms(seconds[number]),
            cpu_us=round(statistics.median(cpu[number]) * 1e6, 1),
            cost=round(statistics.median(seconds[number]) / statistics.median(seconds[0]), 3),
            cpu_cost=round(statistics.median(cpu[number]) / statistics.median(cpu[0]), 3),
        )


def main() -> int:
    """Measure all topics; returns the exit code."""
    parser = arguments(__doc__)
    parser.add_argument("--partitions", default="6,1000", help="numbers of partitions (6,1000)")
    parser.add_argument("--rounds", type=int, help=f"rounds of {BLOCK} requests for each topic (50; quick: 5)")
    options: Any = parser.parse_args()
    with servers() as stage:
        run(
            stage,
            [int(number) for number in options.partitions.split(",")],
            options.rounds or (5 if options.quick else 50),
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
