"""How long a partition pauses when the group changes: a worker joins, leaves or is killed; the three protocols.

python benchmarks/rebalance.py [--rounds N] [--rate N] [--protocols eager,cooperative,consumer] [--quick]

Six partitions are under a steady load. A moved partition's *pause* lasts from its revocation (Kafka's callback, the
decision to drain, or the kill) to the new owner's first commit, its *standstill* from the old owner's last commit to
the same commit. For a partition that stays, rows have the longest time between two commits during the change, and in a
quiet second. Heartbeats (librdkafka's default is 3 s, the broker's for group.protocol=consumer 5 s) decide how soon a
member learns of a change, sessions of 6 s (default 45 s) how late a crash is noticed. At the end every record must be
in the table once.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from time import monotonic
from typing import Any

from stage import BenchProcess, Stage, arguments, ms, percentile, say, servers

PARTITIONS = 6
QUIET = 1.0  # seconds without a change before each change, to compare with
PROTOCOLS: dict[str, dict[str, Any]] = {
    "eager": {"partition.assignment.strategy": "range,roundrobin"},
    "cooperative": {"partition.assignment.strategy": "cooperative-sticky"},
    "consumer": {"group.protocol": "consumer"},
}
CHANGES = ("a worker joins", "a worker leaves", "a worker is killed")
TELL = ["Started", "Draining", "Revoked", "Activated", "Committed"]


@dataclass
class ChangeTimes:
    """Seconds of one protocol and one kind of change, over all rounds."""

    pause: list[float] = field(default_factory=list)
    standstill: list[float] = field(default_factory=list)
    staying: list[float] = field(default_factory=list)
    quiet: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)  # from the change to the last partition's first commit
    given_back: list[float] = field(default_factory=list)  # pauses of partitions that were revoked and given back


class Group:
    """The members of one group, and their commits."""

    def __init__(self, stage: Stage, order: dict[str, Any]) -> None:
        self._stage, self._order = stage, order
        self.members: list[BenchProcess] = []

    def start(self) -> BenchProcess:
        """Start one more member; returns when its worker has started, before it has joined."""
        member = self._stage.start(**self._order)
        self.members.append(member)
        member.wait_for("Started")
        return member

    def settled(self, since: float, members: list[BenchProcess]) -> None:
        """Wait until exactly one of these members commits each partition, and each member has some."""
        deadline, wait = monotonic() + 90, threading.Event()
        while monotonic() < deadline:
            now = monotonic()
            recent = [self.committed_by(m, max(since, now - 0.5)) for m in members]
            whole = set().union(*recent)
            if len(whole) == PARTITIONS == sum(map(len, recent)) and all(recent):
                return
            wait.wait(0.05)
        raise AssertionError(f"the group did not settle within 90 s: {[m.reports[-2:] for m in members]}")

    @staticmethod
    def committed_by(member: BenchProcess, since: float) -> set[int]:
        """The partitions that the member committed since then."""
        return {span[0] for t in reversed(member.all("Committed")) if t["at"] >= since for span in t["spans"]}

    def commits(self) -> dict[int, list[tuple[float, int]]]:
        """By partition: when it was committed, and by which member; in order."""
        commits: dict[int, list[tuple[float, int]]] = defaultdict(list)
        for number, member in enumerate(self.members):
            for report in member.all("Committed"):
                for partition, _, _ in report["spans"]:
                    commits[partition].append((report["at"], number))
        return {partition: sorted(times) for partition, times in commits.items()}


def gaps(times: list[float]) -> list[float]:
    """The times between neighbours."""
    return [b - a for a, b in pairwise(times)]


def measure(
    group: Group, change: float, until: float, leaver: BenchProcess | None, times: ChangeTimes, *, killed: bool
) -> None:
    """Add each partition's times to ``times``."""
    firsts = []
    for partition, commits in group.commits().items():
        before = [(time, member) for time, member in commits if time < change]
        window = [(time, member) for time, member in commits if change - QUIET <= time <= until]
        times.quiet.append(max(gaps([*_quiet(before, change), change])))
        owner, successor = before[-1][1], window[-1][1]
        revoked = _revoked(group.members[owner], partition, change, until)
        if owner == successor:
            around = [before[-1][0], *[time for time, _ in window if time >= change]]
            times.staying.append(max(gaps(around)))
            if revoked is not None:
                times.given_back.append(next(time for time, _ in commits if time > revoked) - revoked)
            continue
        if killed:
            revoked = change
        elif group.members[owner] is leaver:
            revoked = min(t["at"] for t in leaver.all("Draining"))
        assert revoked is not None, f"partition {partition} moved, and was never revoked"
        last = max(time for time, member in window if member == owner)
        first = min(time for time, member in window if member == successor and time > last)
        firsts.append(first)
        times.pause.append(first - revoked)
        times.standstill.append(first - last)
    assert firsts, "no partition moved"
    times.whole.append(max(firsts) - change)


def _quiet(before: list[tuple[float, int]], change: float) -> list[float]:
    """The commits of the quiet time and the last one before, because a second on busy cores may have fewer than two."""
    times = [time for time, _ in before]
    return [time for time, following in pairwise([*times, change]) if following > change - QUIET]


def _revoked(member: BenchProcess, partition: int, since: float, until: float) -> float | None:
    """When Kafka took this partition from the member: the last time in the window."""
    times = [t["at"] for t in member.all("Revoked") if partition in t["partitions"] and since <= t["at"] <= until]
    return max(times, default=None)


def play(group: Group, times_by_change: dict[str, ChangeTimes], rounds: int) -> None:
    """Rounds of: join, leave, join, kill; the first member stays."""
    stays = group.start()
    group.settled(0, [stays])
    pause = threading.Event()
    pause.wait(QUIET * 1.2)
    for _ in range(rounds):
        for change in CHANGES[1:]:
            before = monotonic()
            other = group.start()
            joined = max(before, other.all("Started")[0]["at"])
            group.settled(joined, [stays, other])
            settled = monotonic()
            pause.wait(QUIET * 1.2)  # the next change's quiet time; what has begun can end
            measure(group, joined, settled, None, times_by_change[CHANGES[0]], killed=False)
            left_at = other.stop() if change == CHANGES[1] else other.kill_now()
            group.settled(left_at, [stays])
            settled = monotonic()
            pause.wait(QUIET * 1.2)
            measure(group, left_at, settled, other, times_by_change[change], killed=change == CHANGES[2])
    stays.stop()


def run(stage: Stage, protocol: str, options: Any) -> None:
    """Measure one protocol; prints a row for each kind of change."""
    stage.fresh_table()
    topic = stage.topic(f"rebalance-{protocol}", PARTITIONS)
    classic = {"session.timeout.ms": 6000, "heartbeat.interval.ms": options.heartbeat_ms}
    kafka = {**PROTOCOLS[protocol], **({} if protocol == "consumer" else classic)}
    order = {"group": f"{protocol}-{stage.name}", "topic": topic, "sink": "append", "kafka": kafka, "tell": TELL}
    times_by_change = {change: ChangeTimes() for change in CHANGES}
    feed = {"topic": topic, "partitions": PARTITIONS, "feed": 0, "rate": options.rate, "producer": {"linger.ms": 0}}
    with stage.start(**feed) as feeder:
        group = Group(stage, order)
        try:
            play(group, times_by_change, options.rounds)
            feeder.stop()
            sent = feeder.all("Fed")[0]["records"]
            with group.start() as last:  # what is left when the load has ended
                stage.wait_for_rows(sent)
                last.stop()
        finally:
            for member in group.members:
                member.__exit__(None, None, None)
    rows = stage.rows()
    assert rows == (sent, sent), f"{protocol}: {rows[0]} rows, {rows[1]} different, of {sent} records"
    for change, seconds in times_by_change.items():
        say(
            "rebalance",
            f"{protocol}, {change}",
            changes=len(seconds.whole),
            moved=len(seconds.pause),
            **ms("pause", seconds.pause),
            **ms("standstill", seconds.standstill),
            **ms("staying_longest_gap", seconds.staying),
            **ms("given_back_pause", seconds.given_back),
            **ms("quiet_longest_gap", seconds.quiet),
            **ms("whole", seconds.whole),
            heartbeat_ms=options.heartbeat_ms,
            session_timeout_ms=6000,
            rate_per_second=options.rate,
            records=sent,
            quiet_p90_ms=round(percentile(seconds.quiet, 0.9) * 1000, 1),
        )


def main() -> None:
    """Each protocol in turn."""
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, help="rounds of join, leave, join and kill (5; quick: 1)")
    parser.add_argument("--rate", type=int, default=3_000, help="records per second")
    parser.add_argument("--heartbeat-ms", type=int, default=500, help="heartbeats of classic members and the broker")
    parser.add_argument("--protocols", default=",".join(PROTOCOLS))
    options = parser.parse_args()
    options.rounds = options.rounds or (1 if options.quick else 5)
    properties = {"group.consumer.heartbeat.interval.ms": str(options.heartbeat_ms)}
    with servers(properties=properties) as stage:
        for protocol in options.protocols.split(","):
            run(stage, protocol, options)


if __name__ == "__main__":
    main()
