"""Faults in records: they are dead-lettered with their offsets, even if they crash their process."""

from __future__ import annotations

import random
import signal
from time import monotonic

from chaos.worker.environment import PARTITIONS
from chaos.worker.event_log import WorkerEvent
from chaos.worker.fault_context import FaultContext, Injected
from chaos.worker.pipelines import CRASHING, POISON, REFUSED
from chaos.worker.schedule import Fault
from seekpoint.testing.child_process import NotReached

MOST_CRASHES = 12


def poison(context: FaultContext, fault: Fault) -> Injected:
    """Produce some records for which ``row=`` raises Poison, and some that the database refuses."""
    chance, log = random.Random(fault.amount), context.log
    mark, started = log.mark(), monotonic()
    thrown = [(chance.randrange(PARTITIONS), chance.choice((POISON, REFUSED))) for _ in range(fault.amount % 40 + 5)]
    for partition, value in thrown:
        context.load.throw(partition, value)
        context.lull(chance.randrange(50), seconds=1.0)
    log.until(lambda: _dead_lettered(log.since(mark)) >= len(thrown), f"{len(thrown)} records to be dead-lettered")
    return Injected(started, frozenset(partition for partition, _ in thrown), mark)


def _dead_lettered(events: list[WorkerEvent]) -> int:
    return len({(s["partition"], s["offset"]) for s in events if s.name == "DeadLettered"})


def crashing_record(context: FaultContext, fault: Fault) -> Injected:
    """Produce a record that crashes each worker that tries it; replace the workers until it is dead-lettered."""
    log, partition = context.log, fault.amount % PARTITIONS
    mark, started, crashes = log.mark(), monotonic(), 0
    context.load.throw(partition, CRASHING)
    while not any(s.name == "DeadLettered" and s["failure"].startswith("crashed") for s in log.since(mark)):
        for worker in context.pool.workers:
            worker.expected_to_end = True
            if not worker.is_alive:
                crashes += 1
                if (code := worker.ended()) != -signal.SIGKILL:
                    raise NotReached(f"{worker.name} should have been killed by a record, but ended with code {code}")
        if crashes > MOST_CRASHES:
            raise NotReached(f"a record has crashed {crashes} workers, and is not dead-lettered")
        context.pool.fill()
        context.lull(200, seconds=0.3)
    for worker in context.pool.workers:
        worker.expected_to_end = False
    return Injected(started, frozenset([partition]), mark, over=monotonic())
