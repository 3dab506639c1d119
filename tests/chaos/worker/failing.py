"""Records that fail, in the stream: parked with their offsets, whoever is killed by them."""

from __future__ import annotations

import random
import signal
from time import monotonic

from chaos.worker.arena import PARTITIONS
from chaos.worker.field import Field, Strike
from chaos.worker.log import Said, Stuck
from chaos.worker.schedule import Fault

MOST_DEATHS = 12


def poison(field: Field, fault: Fault) -> Strike:
    """Some records that ``row=`` calls poison, and some that the database refuses, among the others."""
    chance, log = random.Random(fault.amount), field.arena.log
    mark, at = log.mark(), monotonic()
    thrown = [
        (chance.randrange(PARTITIONS), chance.choice((b"poison", b"refused"))) for _ in range(fault.amount % 40 + 5)
    ]
    for partition, value in thrown:
        field.load.throw(partition, value)
        field.lull(chance.randrange(50), seconds=1.0)
    log.until(lambda: _parked(log.since(mark)) >= len(thrown), f"{len(thrown)} records to be parked")
    return Strike(at, frozenset(partition for partition, _ in thrown), mark)


def _parked(said: list[Said]) -> int:
    return len({(s["partition"], s["offset"]) for s in said if s.name == "DeadLettered"})


def killer(field: Field, fault: Fault) -> Strike:
    """A record that kills whoever tries it: the dead are replaced until it is parked."""
    log, partition = field.arena.log, fault.amount % PARTITIONS
    mark, at, deaths = log.mark(), monotonic(), 0
    field.load.throw(partition, b"killer")
    while not any(s.name == "DeadLettered" and s["failure"].startswith("crashed") for s in log.since(mark)):
        for member in field.crew.members:
            member.wanted_end = True
            if not member.alive:
                deaths += 1
                if (code := member.ended()) != -signal.SIGKILL:
                    raise Stuck(f"{member.name} should have been killed by a record, but ended with code {code}")
        if deaths > MOST_DEATHS:
            raise Stuck(f"a record has killed {deaths} workers, and is not parked")
        field.crew.fill()
        field.lull(200, seconds=0.3)
    for member in field.crew.members:
        member.wanted_end = False
    return Strike(at, frozenset([partition]), mark, over=monotonic())
