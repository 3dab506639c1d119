"""How long a partition stands still when the group changes: a worker joins, leaves or is killed; the three protocols.

python benchmarks/rebalance.py [--rounds N] [--rate N] [--protocols eager,cooperative,consumer] [--quick]

Six partitions under a steady load. Of each partition that moves: the *pause*, from its revocation (Kafka's callback;
where the owner leaves, its decision to drain; where it is killed, the kill) to the new owner's first commit; and the
*standstill*, from the old owner's last commit of it to that one. Of each that stays with its owner: the longest time
between two of its commits meanwhile, beside the same figure of a quiet second. Heartbeats are those given
(librdkafka's default is 3 s, a broker's for group.protocol=consumer 5 s), sessions 6 s (default 45 s): they decide
how soon a member learns of a change, and how late a crash is noticed. Every record is in the table once, at the end.
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
QUIET = 1.0  # seconds of plain running before each change: what is usual
PROTOCOLS: dict[str, dict[str, Any]] = {
    "eager": {"partition.assignment.strategy": "range,roundrobin"},
    "cooperative": {"partition.assignment.strategy": "cooperative-sticky"},
    "consumer": {"group.protocol": "consumer"},
}
CHANGES = ("a worker joins", "a worker leaves", "a worker is killed")
TELL = ["Started", "Draining", "Revoked", "Activated", "Committed"]


@dataclass
class Found:
    """Seconds, of one protocol and one kind of change, over all rounds."""

    pause: list[float] = field(default_factory=list)
    standstill: list[float] = field(default_factory=list)
    staying: list[float] = field(default_factory=list)
    quiet: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)  # from the change to the last partition's first commit
    given_back: list[float] = field(default_factory=list)  # of those that were revoked, and stay after all


class Group:
    """The members of one group, and what they committed."""

    def __init__(self, stage: Stage, order: dict[str, Any]) -> None:
        self._stage, self._order = stage, order
        self.members: list[BenchProcess] = []

    def start(self) -> BenchProcess:
        """One more member; returns when its worker has started (it has not joined yet)."""
        member = self._stage.start(**self._order)
        self.members.append(member)
        member.wait_for("Started")
        return member

    def settled(self, since: float, members: list[BenchProcess]) -> None:
        """Until all partitions were committed for a while, by these members alone, each its share."""
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
        found: dict[int, list[tuple[float, int]]] = defaultdict(list)
        for number, member in enumerate(self.members):
            for told in member.all("Committed"):
                for partition, _, _ in told["spans"]:
                    found[partition].append((told["at"], number))
        return {partition: sorted(times) for partition, times in found.items()}


def gaps(times: list[float]) -> list[float]:
    """Between neighbours."""
    return [b - a for a, b in pairwise(times)]


def measure(
    group: Group, change: float, until: float, leaver: BenchProcess | None, found: Found, *, killed: bool
) -> None:
    """What the change cost each partition."""
    firsts = []
    for partition, commits in group.commits().items():
        before = [(at, who) for at, who in commits if at < change]
        window = [(at, who) for at, who in commits if change - QUIET <= at <= until]
        found.quiet.append(max(gaps([*_quiet(before, change), change])))
        owner, successor = before[-1][1], window[-1][1]
        revoked = _revoked(group.members[owner], partition, change, until)
        if owner == successor:
            around = [before[-1][0], *[at for at, _ in window if at >= change]]
            found.staying.append(max(gaps(around)))
            if revoked is not None:
                found.given_back.append(next(at for at, _ in commits if at > revoked) - revoked)
            continue
        if killed:
            revoked = change
        elif group.members[owner] is leaver:
            revoked = min(t["at"] for t in leaver.all("Draining"))
        assert revoked is not None, f"partition {partition} moved, and was never revoked"
        last = max(at for at, who in window if who == owner)
        first = min(at for at, who in window if who == successor and at > last)
        firsts.append(first)
        found.pause.append(first - revoked)
        found.standstill.append(first - last)
    assert firsts, "no partition moved"
    found.whole.append(max(firsts) - change)


def _quiet(before: list[tuple[float, int]], change: float) -> list[float]:
    """The commits of the quiet time, with the one in front of it: on busy cores there may be no two in a second."""
    times = [at for at, _ in before]
    return [at for at, following in pairwise([*times, change]) if following > change - QUIET]


def _revoked(member: BenchProcess, partition: int, since: float, until: float) -> float | None:
    """When Kafka took this partition from the member: the last time in the window."""
    times = [t["at"] for t in member.all("Revoked") if partition in t["partitions"] and since <= t["at"] <= until]
    return max(times, default=None)


def play(group: Group, found: dict[str, Found], rounds: int) -> None:
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
            pause.wait(QUIET * 1.2)  # of the next change's quiet time; and what began before is seen to its end
            measure(group, joined, settled, None, found[CHANGES[0]], killed=False)
            at = other.stop() if change == CHANGES[1] else other.kill_now()
            group.settled(at, [stays])
            settled = monotonic()
            pause.wait(QUIET * 1.2)
            measure(group, at, settled, other, found[change], killed=change == CHANGES[2])
    stays.stop()


def run(stage: Stage, protocol: str, options: Any) -> None:
    """One protocol, and a row for each kind of change."""
    stage.fresh_table()
    topic = stage.topic(f"rebalance-{protocol}", PARTITIONS)
    classic = {"session.timeout.ms": 6000, "heartbeat.interval.ms": options.heartbeat_ms}
    kafka = {**PROTOCOLS[protocol], **({} if protocol == "consumer" else classic)}
    order = {"group": f"{protocol}-{stage.name}", "topic": topic, "sink": "append", "kafka": kafka, "tell": TELL}
    found = {change: Found() for change in CHANGES}
    feed = {"topic": topic, "partitions": PARTITIONS, "feed": 0, "rate": options.rate, "producer": {"linger.ms": 0}}
    with stage.start(**feed) as feeder:
        group = Group(stage, order)
        try:
            play(group, found, options.rounds)
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
    for change, seconds in found.items():
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
    parser.add_argument("--rounds", type=int, help="of a join, a leave, a join and a kill (5; quick: 1)")
    parser.add_argument("--rate", type=int, default=3_000, help="records per second")
    parser.add_argument("--heartbeat-ms", type=int, default=500, help="of classic members, and of the broker's own")
    parser.add_argument("--protocols", default=",".join(PROTOCOLS))
    options = parser.parse_args()
    options.rounds = options.rounds or (1 if options.quick else 5)
    properties = {"group.consumer.heartbeat.interval.ms": str(options.heartbeat_ms)}
    with servers(properties=properties) as stage:
        for protocol in options.protocols.split(","):
            run(stage, protocol, options)


if __name__ == "__main__":
    main()
