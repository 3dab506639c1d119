"""Explore every state that the protocol of ledger_model.py can reach within bounds.

    python -m tests.model.explore                  # the protocol as designed, in the default configurations
    python -m tests.model.explore --break NAME     # a broken variant, and the shortest history of its harm
    python -m tests.model.explore --all            # the protocol and every variant
    python -m tests.model.explore --wide           # the protocol within wider bounds: minutes
    python -m tests.model.explore --config pair --failovers 1 --records 1      # bounds of your own

Three properties are checked. *Right*: no reachable state breaks a promise (``violation``). *Spared*: a worker that took
its position from the ledger and still holds the claim is not refused. *Never stuck*, where claims are unbounded: from
every reachable state, if nothing more goes wrong, everything can still be applied.

States visited, without the changes of the commit path: ``lone`` 27,127, ``endless`` 10,611, ``pair`` 40,700. With them,
as ledger_model.py describes them: ``express`` 21,392, ``express-endless`` 23,238, ``express-pair`` 21,655, ``by-batch``
19,067, ``by-batch-recreated`` 1,874, ``read-ahead`` 37,047, ``read-ahead-endless`` 12,457, ``read-ahead-pair`` 6,248;
together: ``all-three`` 32,536, ``all-three-recreated`` 3,900, ``all-three-lone`` (without ``by_batch``) 28,579.
With records that wait: ``waiting`` 57,917, ``waiting-endless`` 70,119.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import pairwise, permutations
from typing import NamedTuple

from .ledger_model import steps
from .state import OUT, READY, STALE, Database, Part, Rules, Slot, State, Tx, Worker, finished, start, violation
from .worker_steps import ADMITS_UNHELD, Step

LONE = Rules()  # one partition, every kind of fault
ENDLESS = Rules(records=2, claims=-1, recreations=0, rewinds=1)  # claims without bound: is it ever stuck?
PAIR = Rules(partitions=2, records=2, claims=-1, failovers=0, cutovers=0, recreations=0)
ONE_EACH = PAIR._replace(records=1)
EXPRESS = LONE._replace(records=2, express=True)
BY_BATCH = ONE_EACH._replace(by_batch=True)
READ_AHEAD = LONE._replace(records=2, read_ahead=True)
WAITING = LONE._replace(records=2, waiting=True)
ALL_THREE = BY_BATCH._replace(express=True, read_ahead=True)
CONFIGS = {
    "lone": LONE,
    "endless": ENDLESS,
    "pair": PAIR,
    "express": EXPRESS,
    "express-endless": ENDLESS._replace(express=True),
    "express-pair": ONE_EACH._replace(express=True),
    "by-batch": BY_BATCH._replace(rewinds=1),
    "by-batch-recreated": BY_BATCH._replace(claims=1, recreations=1),
    "read-ahead": READ_AHEAD._replace(records=3),
    "read-ahead-endless": ENDLESS._replace(read_ahead=True),
    "read-ahead-pair": ONE_EACH._replace(read_ahead=True),
    "all-three": ALL_THREE,
    "all-three-recreated": ALL_THREE._replace(claims=1, recreations=1),
    "all-three-lone": EXPRESS._replace(read_ahead=True),
    "waiting": WAITING,
    "waiting-endless": ENDLESS._replace(waiting=True),
}
WIDER = [
    LONE._replace(claims=3, rewinds=1),
    LONE._replace(claims=-1, rewinds=1),
    PAIR._replace(cutovers=1),
    PAIR._replace(rewinds=1),
    PAIR._replace(recreations=1),
    PAIR._replace(failovers=1, depth=1),
    EXPRESS._replace(records=3),
    ONE_EACH._replace(express=True, rewinds=1),
    ONE_EACH._replace(express=True, recreations=1),
    BY_BATCH._replace(records=2),
    BY_BATCH._replace(rewinds=1, cutovers=1),
    BY_BATCH._replace(recreations=1),
    BY_BATCH._replace(failovers=1, depth=1),
    ALL_THREE._replace(rewinds=1),
]

# A name before a colon is the change that a variant belongs to.
UNSAFE = {  # and the configuration in which the harm is found
    "from is the last commit": PAIR,
    "advance only some": PAIR,
    "refused records are written": PAIR,
    "old code claims": LONE,
    "no token": LONE,
    "counter as token": LONE,
    "no position": LONE,
    "no topic id": LONE,
    "topic id at claim only": LONE,
    "topic id before the last read": LONE,
    "blind retry": LONE,
    "two transactions": LONE,
    "silent cut-over": LONE,
    "a move draws no token": LONE,
    "last processed instead of next": LONE,
    "express: topic id before the last read": EXPRESS,
    "express: COMMIT without the answer": EXPRESS,
    "express: answer compared with the stored topic id": EXPRESS,
    "express: advance without comparing": EXPRESS,
    "express: no token": EXPRESS,
    "express: no position": EXPRESS,
    "express: a move draws no token": EXPRESS,
    "express: savepoint after advance": EXPRESS,
    "express: answer outlives its batch": EXPRESS,
    "express: blind retry": EXPRESS,
    "by batch: unheld records advanced without comparing": BY_BATCH._replace(records=2),
    "by batch: unheld records not advanced": BY_BATCH,
    "by batch: one answer for two transactions": BY_BATCH._replace(recreations=1),
    "read ahead: one answer for two transactions": READ_AHEAD,
    "read ahead: hold after COMMIT compares no position": READ_AHEAD,
    "read ahead: records survive a seek": READ_AHEAD,
    "read ahead: no position": READ_AHEAD,
    "waiting: waiting row not written": WAITING,
    "waiting: retry does not close its row": WAITING,
    "waiting: retry of what no longer waits": WAITING,
    "waiting: retry without the claim": WAITING,
}
ONLY_SLOW = {  # never wrong; and the configuration in which the price shows: a needless refusal, or standing still
    "assumes committed": LONE,
    "cached position": LONE,
    "claim does not wait": LONE,
    "looks without lock": LONE,
    "release of a stranger's claim": ENDLESS,
    "idle worker does not look": ENDLESS,
    "express: every answer to COMMIT counts": EXPRESS,
    "express: failed transaction drops its records": EXPRESS,
    "by batch: unheld records compared at advance": BY_BATCH,
    "by batch: idle worker does not look": BY_BATCH,
    "read ahead: every answer to COMMIT counts": READ_AHEAD,
    "read ahead: failed transaction drops its records": READ_AHEAD,
}


def broken_by(name: str | None, bounds: Rules | None = None) -> Rules:
    """The variant of this name, in its own configuration or within other bounds."""
    if name is None:
        return bounds or LONE
    return (bounds or {**UNSAFE, **ONLY_SLOW}[name])._replace(broken=frozenset([name.rpartition(": ")[2]]))


class Findings(NamedTuple):
    states: int
    finished: int  # states with all applied
    seconds: float
    violation: str | None = None
    needless: int = 0  # transitions that refuse needlessly
    stuck: int | None = None  # states from which all applied cannot be reached; None: not asked (claims are bounded)
    history: tuple[str, ...] = ()  # the shortest one to the first harm found


# -- states that differ only in names are one --------------------------------------------------------------


# These variants act on what a worker believes though its token is stale: then beliefs must be kept apart.
BELIEVERS = ADMITS_UNHELD | {
    "no token",
    "refused records are written",
    "blind retry",
    "advance without comparing",
    "records survive a seek",
    "retry without the claim",
}


def canonical(s: State, rules: Rules) -> State:
    """One state for all that differ only in the names of workers, partitions and tokens, or in what is dead."""
    s = renamed(s, rules)
    if s.orphans:
        s = s._replace(orphans=tuple(tx if tx.sent else only_locks(tx) for tx in s.orphans))
    same = tuple(range(rules.partitions))
    # "advance only some" is the one variant that treats partitions unequally
    if rules.partitions == 1 or "advance only some" in rules.broken:
        return permuted(s, same)
    return min(permuted(s, order) for order in permutations(same) if in_order(s.db, order))


Names = tuple[dict[int, int], ...]  # of each partition: the number of each token that counts


def renamed(s: State, rules: Rules) -> State:
    """Of a token only equality matters, and only with those that rows hold or may come to hold again."""
    if "counter as token" in rules.broken:
        return s
    databases = (s.db, *s.past)
    # In the order of their numbers; a dict keeps each once.
    tokens = tuple(tuple(dict.fromkeys([db.rows[p].token for db in databases])) for p in range(rules.partitions))
    workers = tuple([believing(w, tokens, rules) for w in s.workers])
    if all(names == FIRST_NAMES[: len(names)] for names in tokens):
        return State(s.db, workers, *s[2:])
    all_names = numbered(tokens)
    return State(of_tokens(s.db, all_names), workers, tuple(of_tokens(db, all_names) for db in s.past), *s[3:])


FIRST_NAMES = tuple(range(100))  # more than the databases that a failover may return to


def numbered(tokens: tuple[tuple[int, ...], ...]) -> Names:
    return tuple({token: number for number, token in enumerate(names)} for names in tokens)


def of_tokens(db: Database, all_names: Names) -> Database:
    rows = (row._replace(token=names[row.token]) for names, row in zip(all_names, db.rows, strict=True))
    return db._replace(rows=tuple(rows))


@lru_cache(2**16)  # the same few workers occur in all states
def believing(w: Worker, tokens: tuple[tuple[int, ...], ...], rules: Rules) -> Worker:
    """The worker, with what it believes of each partition as far as it counts."""
    return w._replace(slots=believed(w, numbered(tokens), rules))


def believed(w: Worker, all_names: Names, rules: Rules) -> tuple[Slot, ...]:
    held = {part.partition for part in w.tx.parts} if w.tx else set()
    collapse = rules.broken.isdisjoint(BELIEVERS)
    slots = []
    for p, (slot, names) in enumerate(zip(w.slots, all_names, strict=True)):
        token = names.get(slot.token, STALE)
        if slot.mode == OUT:
            slots.append(Slot())
        elif token == STALE and collapse and p not in held:  # it will be refused, if there is something to write
            at_end = slot.mode == READY and slot.read_position >= rules.records
            partly_asked = 0 < slot.checked < len(slot.buffer)
            buffer = (1,) * min(len(slot.buffer), 1 + partly_asked) if slot.mode == READY else ()
            read_position = rules.records if at_end else len(buffer)
            topic = slot.topic if rules.express and slot.mode == READY else 0
            slots.append(
                Slot(slot.mode, STALE, read_position, buffer, slot.known, slot.sure, topic, min(slot.checked, 1))
            )
        else:
            slots.append(slot if token == slot.token else slot._replace(token=token))
    return tuple(slots)


def only_locks(tx: Tx) -> Tx:
    return Tx(tuple(Part(part.partition, 0, ()) for part in tx.parts if part.held))


def in_order(db: Database, order: tuple[int, ...]) -> bool:
    return all(db.rows[p] <= db.rows[q] for p, q in pairwise(order))


def permuted(s: State, order: tuple[int, ...]) -> State:
    """The partitions in this order, the workers and orphans sorted."""
    if order == tuple(range(len(order))):
        return State(s.db, tuple(sorted(s.workers)), s.past, tuple(sorted(s.orphans)), *s[4:])
    return s._replace(
        db=reordered(s.db, order),
        past=tuple(reordered(db, order) for db in s.past),
        claims=tuple(s.claims[p] for p in order),
        workers=tuple(sorted(turned(w, order) for w in s.workers)),
        orphans=tuple(sorted(reordered_tx(tx, order) for tx in s.orphans)),
    )


def reordered(db: Database, order: tuple[int, ...]) -> Database:
    return Database(tuple(db.rows[p] for p in order), db.version)


def reordered_tx(tx: Tx, order: tuple[int, ...]) -> Tx:
    parts = (part._replace(partition=order.index(part.partition)) for part in tx.parts)
    return tx._replace(parts=tuple(sorted(parts)))


@lru_cache(2**16)
def turned(w: Worker, order: tuple[int, ...]) -> Worker:
    return Worker(tuple(w.slots[p] for p in order), w.version, reordered_tx(w.tx, order) if w.tx else ())


# -- breadth first -----------------------------------------------------------------------------------------


class Graph:
    """The states found so far, in the order of their distance from the start."""

    def __init__(self, rules: Rules, merge: Callable[[State, Rules], State] = canonical) -> None:
        self.rules = rules
        self.merge = merge
        self.states = [merge(start(rules), rules)]
        self.ids = {self.states[0]: 0}
        self.unmerged: dict[State, int] = {}  # a state is reached three times on average, and merging it takes long
        self.parents = [-1]
        self.helpful: list[tuple[int, int]] = []  # the transitions in which nothing goes wrong

    def reach(self, k: int, step: Step) -> State | None:
        """Follow a step from state ``k``; the state it leads to if it was not known."""
        j = self.unmerged.get(step.to)
        if j is None:
            t = self.merge(step.to, self.rules)
            j = self.unmerged[step.to] = self.ids.setdefault(t, len(self.states))
        if not step.fault:
            self.helpful.append((k, j))
        if j < len(self.states):
            return None
        self.states.append(t)
        self.parents.append(k)
        return t

    def stuck(self, goals: list[int]) -> list[int]:
        """The states from which helpful transitions reach none of these."""
        back: list[list[int]] = [[] for _ in self.states]
        for k, j in self.helpful:
            back[j].append(k)
        safe = set(goals)
        todo = list(goals)
        while todo:
            new = [k for k in back[todo.pop()] if k not in safe]
            safe.update(new)
            todo += new
        return [k for k in range(len(self.states)) if k not in safe]

    def history(self, k: int) -> tuple[tuple[str, ...], State]:
        """What happened on the shortest way to state ``k``, with one name for each worker throughout, and its end."""
        chain = []
        while k:
            chain.append(self.states[k])
            k = self.parents[k]
        path: list[str] = []
        s = start(self.rules)
        for target in reversed(chain):
            following = (step for step in steps(s, self.rules) if self.merge(step.to, self.rules) == target)
            step = next(following, None)
            if step is None:
                raise LookupError(
                    f"only merging makes this history possible, so canonical() is wrong: {path}, {target}"
                )
            path.append(step.what)
            s = step.to
        return tuple(path), s


def explore(rules: Rules) -> Findings:
    """Visit every state, nearest first; stop at the first violation."""
    began = time.monotonic()
    graph = Graph(rules)
    goals: list[int] = []
    needless = 0
    history: tuple[str, ...] = ()
    with no_garbage():
        for k, s in enumerate(graph.states):  # it grows meanwhile
            if finished(s):
                goals.append(k)
            for step in steps(s, rules):
                if step.needless:
                    needless += 1
                    history = history or refusal(graph, k)
                t = graph.reach(k, step)
                bad = violation(t) if t else None
                if bad:
                    path, _ = graph.history(len(graph.states) - 1)
                    return Findings(len(graph.states), len(goals), time.monotonic() - began, bad, needless, None, path)
        stuck = graph.stuck(goals) if rules.claims < 0 else None
        if stuck and not history:
            history, _ = graph.history(stuck[0])
    seconds = time.monotonic() - began
    return Findings(
        len(graph.states), len(goals), seconds, None, needless, None if stuck is None else len(stuck), history
    )


def refusal(graph: Graph, k: int) -> tuple[str, ...]:
    path, s = graph.history(k)
    return (*path, next(step.what for step in steps(s, graph.rules) if step.needless))


@contextmanager
def no_garbage() -> Iterator[None]:
    """Millions of tuples and not one cycle: the collector would only cost time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


# -- command line ------------------------------------------------------------------------------------------


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.model.explore", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--break", dest="broken", choices=[*UNSAFE, *ONLY_SLOW], metavar="NAME", help="a variant")
    parser.add_argument("--all", action="store_true", help="the protocol and every variant")
    parser.add_argument("--wide", action="store_true", help="the protocol within wider bounds")
    parser.add_argument("--config", choices=CONFIGS, help="start from these bounds")
    for bound in Rules._fields[:-1]:
        parser.add_argument(f"--{bound}", type=int)
    return parser.parse_args(argv)


def chosen(args: argparse.Namespace) -> list[tuple[str, Rules]]:
    own = {bound: getattr(args, bound) for bound in Rules._fields[:-1] if getattr(args, bound) is not None}
    bounds = CONFIGS[args.config] if args.config else None
    if args.broken:
        rules = [broken_by(args.broken, bounds)]
    elif bounds or own:
        rules = [bounds or LONE]
    else:
        rules = WIDER if args.wide else [*CONFIGS.values()]
    variants = [(name, broken_by(name)) for name in (*UNSAFE, *ONLY_SLOW)] if args.all else []
    return [(args.broken or "as designed", rule._replace(**own)) for rule in rules] + variants


def main(argv: Sequence[str] | None = None) -> int:
    surprises = 0
    for name, rules in chosen(arguments(argv)):
        result = explore(rules)
        surprises += (name in UNSAFE) != bool(result.violation)
        bounds = ", ".join(f"{k} {v}" for k, v in zip(rules._fields[:-1], rules, strict=False))
        print(f"{name} ({bounds}): {result.violation or 'no violation'}")
        print(f"    {result.states} states, {result.finished} with all applied, {result.seconds:.1f} s;", end=" ")
        print(f"needless refusals: {result.needless}; stuck: {'not asked' if result.stuck is None else result.stuck}")
        for number, step in enumerate(result.history, 1):
            print(f"    {number:2}. {step}", flush=True)
    return 1 if surprises else 0


if __name__ == "__main__":
    sys.exit(main())
