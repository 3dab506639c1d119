"""What the question for a topic's id costs, against the topic's partitions: by librdkafka's call, and by the client.

python benchmarks/topic_ids.py [--partitions 6,1000] [--rounds N] [--quick]

Every transaction asks once, between its last read and COMMIT. Needs only Kafka. Each row is one way of asking for a
topic with so many partitions, one question after the other in one process; the ways alternate, round by round.
``cpu_us`` is the processor time of the whole process, the client's threads included. ``cost`` is the ratio of the
medians of the call to those of the Python client, in the same rounds.
"""

from __future__ import annotations

import statistics
import sys
from time import perf_counter, process_time
from typing import Any

from seekpoint.kafka import librdkafka
from seekpoint.kafka.identity import Identity
from stage import Stage, arguments, median_ms, say, servers

BLOCK = 20  # questions before the other way asks


def identities(stage: Stage) -> dict[str, Identity]:
    """One for each way that this build has."""
    config, known = {"bootstrap.servers": stage.brokers}, librdkafka.KNOWN
    found = {"librdkafka": Identity(config, 10.0)} if librdkafka.is_known() else {}
    librdkafka.KNOWN = frozenset()
    found["client"] = Identity(config, 10.0)
    librdkafka.KNOWN = known
    return found


def run(stage: Stage, partitions: int, rounds: int) -> None:
    """All ways, for a topic of its own."""
    topic = stage.topic(f"ids-{partitions}", partitions)
    ways = identities(stage)
    ids = {way: identity.ask({topic}).result()[topic] for way, identity in ways.items()}
    assert len(set(ids.values())) == 1, f"different ids: {ids}"
    assert None not in ids.values()
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    cpu: dict[str, list[float]] = {way: [] for way in ways}
    for n in range(rounds):
        for way, identity in list(ways.items())[:: -1 if n % 2 else 1]:
            used = process_time()
            for _ in range(BLOCK):
                began = perf_counter()
                identity.ask({topic}).result()
                seconds[way].append(perf_counter() - began)
            cpu[way].append((process_time() - used) / BLOCK)
    slow = statistics.median(seconds["client"]), statistics.median(cpu["client"])
    for way in ways:
        say(
            "topic ids",
            f"{partitions:,} partitions, {way}",
            partitions=partitions,
            questions=len(seconds[way]),
            question_p50_ms=median_ms(seconds[way]),
            cpu_us=round(statistics.median(cpu[way]) * 1e6, 1),
            cost=round(statistics.median(seconds[way]) / slow[0], 3),
            cpu_cost=round(statistics.median(cpu[way]) / slow[1], 3),
        )


def main() -> int:
    """Each number of partitions in turn; returns the exit code."""
    parser = arguments(__doc__)
    parser.add_argument("--partitions", default="6,1000", help="of a topic (6,1000)")
    parser.add_argument("--rounds", type=int, help=f"of {BLOCK} questions each way (50; quick: 5)")
    options: Any = parser.parse_args()
    with servers() as stage:
        for partitions in options.partitions.split(","):
            run(stage, int(partitions), options.rounds or (5 if options.quick else 50))
    return 0


if __name__ == "__main__":
    sys.exit(main())
