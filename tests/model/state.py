"""What the model knows: database, transactions, workers; and what must never be true of them.

All values are tuples of plain, ordered values, so that states can be hashed, compared and sorted.
"""

from __future__ import annotations

from typing import NamedTuple

OUT, READY, DOUBT = "out", "ready", "doubt"  # what a worker knows of one partition
STALE = -1  # the token of a worker that no row holds, nor ever will again


class Rules(NamedTuple):
    """The bounds of one exploration, and the lines of the protocol that are broken in it."""

    partitions: int = 1
    records: int = 3  # per partition
    claims: int = 2  # per partition; negative: without bound
    failovers: int = 1
    depth: int = 2  # how many commits a failover may lose
    cutovers: int = 1
    recreations: int = 1
    rewinds: int = 0
    express: bool = False  # E: a closed batch is held and advanced in one round trip
    by_batch: bool = False  # H: hold locks only some of the active partitions
    read_ahead: bool = False  # G: the next batch is read, and its hold sent, while COMMIT is on its way
    waiting: bool = False  # W: a record that failed is passed, and waits for its retry
    broken: frozenset[str] = frozenset()


Record = tuple[int, int]  # as applied: (incarnation of the topic it was read from, version of the handler)


class Row(NamedTuple):
    """The ledger's row of a partition, and the result rows that belong to it."""

    token: int = 0  # drawn by every claim and every reset; a UUID in the library
    next: int = 0
    topic: int = 1
    applied: tuple[tuple[Record, ...], ...] = ()  # per offset: each time it was applied
    waiting: tuple[int, ...] = ()  # offsets that were passed, and wait for their retries


class Database(NamedTuple):
    rows: tuple[Row, ...]
    version: int = 1  # handler version that the group must run


class Part(NamedTuple):
    """What a transaction does to one partition: it holds the row, writes records from ``start``, advances."""

    partition: int
    start: int
    records: tuple[Record, ...]
    held: bool = True  # broken variants alone write to a partition that is not held
    waits: bool = False  # the first record failed: it waits, and is not applied
    retries: bool = False  # its record was waiting, and the position does not move

    @property
    def end(self) -> int:
        return self.start + len(self.records)


class Tx(NamedTuple):
    """A server transaction that has passed *hold*. It may outlive its client, and then keeps its row locks."""

    parts: tuple[Part, ...]
    closed: bool = False  # nothing more is read into it
    sent: bool = False  # COMMIT is on its way

    def has(self, p: int) -> bool:
        return any(part.partition == p for part in self.parts)


class Slot(NamedTuple):
    """What a worker believes of one partition."""

    mode: str = OUT
    token: int = STALE
    read_position: int = 0  # where the client reads next; the ledger's position never moves it, only claim and seek do
    buffer: tuple[int, ...] = ()  # what was read and waits, up to the read position: incarnation of the topic of each
    known: int = 0  # the last committed position it heard of: used by broken variants alone
    sure: bool = (
        False  # for the checker: the read position is the ledger's position, and nothing has changed either since
    )
    topic: int = 0  # the topic's id that the claim was taken under
    checked: int = 0  # of the buffer, from its start: how many records were read before the topic's id was asked for
    due: int = -1  # a waiting offset that it has found, without a lock

    @property
    def first(self) -> int:
        """Where the reading of the buffer began: what *hold* expects."""
        return self.read_position - len(self.buffer)


class Worker(NamedTuple):
    slots: tuple[Slot, ...]
    version: int = 1  # of its handler: belongs to the process, changes only when it is started again
    tx: Tx | tuple[()] = ()


class State(NamedTuple):
    db: Database
    workers: tuple[Worker, ...]
    past: tuple[Database, ...] = ()  # older commits that a failover may return to
    orphans: tuple[Tx, ...] = ()  # transactions whose client is gone
    topic: int = 1  # incarnation of the topic in Kafka
    claims: tuple[int, ...] = ()
    failovers: int = 0
    cutovers: int = 0
    recreations: int = 0
    rewinds: int = 0


def start(rules: Rules) -> State:
    """Two workers that have nothing yet, and a ledger at 0."""
    n = rules.partitions
    row = Row(applied=((),) * rules.records)
    return State(Database((row,) * n), (Worker((Slot(),) * n),) * 2, claims=(0,) * n)


def violation(s: State) -> str | None:
    """Which promise the database breaks, or None."""
    for p, row in enumerate(s.db.rows):
        for offset, applied in enumerate(row.applied):
            where = f"partition {p} offset {offset}"
            waits = offset in row.waiting
            if len(applied) + waits > 1:
                return f"{where} applied {len(applied)} times" + (", and waits for another retry" if waits else "")
            if offset < row.next and not (applied or waits):
                return f"{where} lost"
            if offset >= row.next and applied:
                return f"{where} applied but position is {row.next}"
            if applied and applied[0][0] != row.topic:
                return f"{where} holds a record of another incarnation of the topic"
            if applied and applied[0][1] != s.db.version:
                return f"{where} was written by handler {applied[0][1]}, the group is at {s.db.version}"
    return None


def finished(s: State) -> bool:
    """Everything that Kafka has is applied."""
    return all(row.next == len(row.applied) and row.topic == s.topic and not row.waiting for row in s.db.rows)


def put(s: State, i: int, w: Worker) -> State:
    # By position: `_replace` takes three times as long, and this is called for almost every step.
    return State(s.db, (*s.workers[:i], w, *s.workers[i + 1 :]), *s[2:])


def place(w: Worker, p: int, slot: Slot) -> Worker:
    return Worker((*w.slots[:p], slot, *w.slots[p + 1 :]), w.version, w.tx)


def with_row(db: Database, p: int, row: Row) -> Database:
    return db._replace(rows=(*db.rows[:p], row, *db.rows[p + 1 :]))


def commit(s: State, db: Database, rules: Rules) -> State:
    """The database's new state; the older ones are kept as long as a failover may return to them."""
    past = (*s.past, s.db)[-rules.depth :] if s.failovers < rules.failovers else ()
    return s._replace(db=db, past=past)


def locked(s: State, p: int) -> bool:
    """At most one transaction has passed *hold* on a partition, because hold takes the row's lock."""
    transactions = (*s.orphans, *(w.tx for w in s.workers if w.tx))
    return any(part.partition == p and part.held for tx in transactions for part in tx.parts)


def draw(s: State, p: int, rules: Rules) -> int:
    """A token that no row of the partition holds, nor held, nor any worker."""
    if "counter as token" in rules.broken:
        return s.db.rows[p].token + 1
    rows = [db.rows[p].token for db in (s.db, *s.past)]
    return max(rows + [w.slots[p].token for w in s.workers]) + 1
