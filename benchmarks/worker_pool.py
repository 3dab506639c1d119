"""Workers as subjects: one in this process, or several, each in its own process with a share of the partitions.

As under ``seekpoint run``, Python's garbage collector runs rarely, unless BENCH_SERVICE is set.
"""

from __future__ import annotations

import json
import multiprocessing
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from time import monotonic
from typing import Any, NamedTuple

from peers import kinds
from seekpoint import Limits, Pipeline, Worker, events
from seekpoint.cli.run import rare_collections
from setting import BATCH, BROKERS, IS_SERVICE, IS_SYNCHRONOUS, LIMIT, PARALLELISM, URL, cpu, upgrade
from subject import KIND, check, row

PATIENCE = 600.0  # seconds that members wait for each other

Make = Callable[[str], Pipeline]
"""Makes the pipeline for a group; a function of a module, because other processes import it by its name."""


class Run(NamedTuple):
    """A worker's figures from its first record to its last commit, by the machine's monotonic clock."""

    began: float
    ended: float
    cpu_seconds: float
    records: int
    transactions: int


def work(
    make: Make,
    records: int,
    *,
    group: str | None = None,
    partitions: Sequence[int] | None = None,
    ready: Callable[[], object] = lambda: None,
    observers: Sequence[events.Observer] = (),
    limits: Limits | None = None,
    mirror: bool = False,
    around: Callable[[Worker], AbstractContextManager[object]] = nullcontext,
) -> Run:
    """Run one worker until it has committed this many records; ``ready`` is called when it is about to start.

    It runs within ``around``, and with batches of BENCH_BATCH records unless ``limits`` are given.
    """
    began, ended, used = [0.0, 0.0], 0.0, 0.0
    done = transactions = 0

    def observe(event: events.Event) -> None:
        nonlocal done, transactions, ended, used
        match event:
            case events.ChunkRead() if not began[0]:
                began[:] = monotonic(), cpu()
            case events.Committed():
                done += event.records
                transactions += 1
                if done >= records and not ended:
                    ended, used = monotonic(), cpu() - began[1]
                    worker.stop()

    worker = Worker(
        make(group or f"bench-{secrets.token_hex(4)}"),
        engine=URL,
        kafka={"bootstrap.servers": BROKERS},
        limits=limits or Limits(batch_records=BATCH),
        partitions=None if partitions is None else [(KIND.name, number) for number in partitions],
        observe=[observe, *observers],
        mirror=mirror,
        synchronous_commit=IS_SYNCHRONOUS,
    )
    with around(worker), rare_collections(unless=IS_SERVICE):
        ready()
        worker.run()
    return Run(began[0], ended, used, done, transactions)


def measure(
    subject: str,
    mode: str,
    make: Make,
    *,
    stored: int = 0,
    added: int | None = None,
    verify: Callable[[], None] | None = None,
    **more: Any,
) -> None:
    """Move the records with BENCH_PARALLELISM workers; check the table, print the row.

    The table had ``stored`` rows before, and has ``added`` more afterwards, by default one for each record. ``verify``
    checks another table instead.
    """
    upgrade()
    runs = [work(make, LIMIT)] if PARALLELISM == 1 else _work_together(make)
    done = sum(run.records for run in runs)
    if verify is None:
        check(subject, done if added is None else added, stored=stored)
    else:
        verify()
    seconds = max(run.ended for run in runs) - min(run.began for run in runs)
    line = row(
        subject,
        f"{mode}, {'one worker' if PARALLELISM == 1 else f'{PARALLELISM} workers'}",
        done,
        seconds,
        sum(run.cpu_seconds for run in runs),
        transactions=sum(run.transactions for run in runs),
        workers=PARALLELISM,
        **more,
    )
    print(json.dumps(line), flush=True)


def _work_together(make: Make) -> list[Run]:
    """Run workers on fixed shares of the partitions, so that no rebalance is measured."""
    spawn = multiprocessing.get_context("spawn")
    ends, group = kinds.ends(KIND, BROKERS), f"bench-{secrets.token_hex(4)}"
    start = spawn.Barrier(PARALLELISM)
    with _members(ends, group, make, start) as receivers:
        return [pipe.recv() for pipe in receivers]


@contextmanager
def _members(ends: dict[int, int], group: str, make: Make, start: Barrier) -> Iterator[list[Connection]]:
    spawn = multiprocessing.get_context("spawn")
    shares = [{n: end for n, end in ends.items() if n % PARALLELISM == member} for member in range(PARALLELISM)]
    pipes = [spawn.Pipe(duplex=False) for _ in shares]
    members = [
        spawn.Process(target=_member, args=(make, group, share, start, tell), daemon=True)
        for share, (_, tell) in zip(shares, pipes, strict=True)
    ]
    for member in members:
        member.start()
    for _, tell in pipes:
        tell.close()  # so that the end of a member is the end of its pipe
    yield [receiver for receiver, _ in pipes]
    for member in members:
        member.join(PATIENCE)


def _member(make: Make, group: str, share: dict[int, int], start: Barrier, tell: Connection) -> None:
    tell.send(work(make, sum(share.values()), group=group, partitions=list(share), ready=lambda: start.wait(PATIENCE)))
