"""The ledger's protocol as steps: everything that two workers, the server and everybody else may do next.

``steps`` is the protocol; explore.py walks through all of it. What is modelled and what is not, what it taught, and how
to run it: docs/internals/model.md. A string looked up in ``rules.broken`` breaks the line that contains it.

Three changes of the commit path are modelled too, and records that wait; a field of ``Rules`` switches each on. Their
rules (E1, ..) are on that page. The library has them, except for the *hold* of ``read_ahead`` that is sent in one
flight with COMMIT.

express     A batch is closed before BEGIN, and the topic's id is asked for then; the answer is taken to be as old as
            the question. One statement holds and advances the batch's partitions. A failed transaction keeps it.
by_batch    *Hold* locks any of the active partitions. What is read of another one waits for the next transaction.
read_ahead  Records for the next transaction are read while one ends. Its *hold* is sent in one flight with COMMIT: on
            a lost connection it may lock the rows without its client; after an answer of ROLLBACK it is refused.

waiting     A record that failed is passed as a row, and its owner applies it in a transaction of its own (W1: under the
            claim; W2: if it still waits), which closes the row and moves no position (W3).

Not modelled of them: rows that are not committed, and so whether a fenced worker is stopped before it writes; the
order of locks within *hold*; ``batch_bytes``; time, and so how soon an idle check comes; advances to the end of a
partition; a *hold* of a lost connection that waits for a lock before it passes; two transactions open at once.
"""

from __future__ import annotations

from collections.abc import Iterator

from .state import DOUBT, OUT, READY, Part, Row, Rules, State, Tx, commit, draw, locked, put, with_row
from .worker_steps import (
    Step,
    ask,
    claim,
    die,
    drop,
    find,
    finish,
    glance,
    hold,
    in_doubt,
    informed,
    look,
    orphan,
    read,
    release,
    retry,
    unsure,
    written,
)

# -- the server's steps ------------------------------------------------------------------------------------


def write(row: Row, part: Part, rules: Rules, *, advances: bool) -> Row:
    if part.waits:  # W: the row of the one that waits is written with the position that passes it
        row = row._replace(waiting=tuple(sorted({*row.waiting, part.start})))
        if "waiting row not written" in rules.broken:
            row = row._replace(waiting=row.waiting[1:])
        part = part._replace(start=part.start + 1, records=part.records[1:])
    if part.retries:
        advances = False
        if "retry does not close its row" not in rules.broken:
            row = row._replace(waiting=tuple(o for o in row.waiting if o != part.start))
    applied = tuple(
        (*marks, part.records[o - part.start]) if part.start <= o < part.end else marks
        for o, marks in enumerate(row.applied)
    )
    return row._replace(applied=applied, next=part.end if advances else row.next)


def applied(s: State, tx: Tx, rules: Rules) -> State:
    """COMMIT takes effect."""
    db = s.db
    for n, part in enumerate(tx.parts):
        row = db.rows[part.partition]
        advances = "two transactions" not in rules.broken
        if "advance only some" in rules.broken:
            advances = n == 0  # the others' positions follow in a transaction of their own
        if "refused records are written" in rules.broken:
            advances = row.next == part.start
        if "unheld records not advanced" in rules.broken:
            advances = part.held
        moved = write(row, part, rules, advances=advances)
        if "last processed instead of next" in rules.broken and part.records:
            moved = moved._replace(next=moved.next - 1)
        db = with_row(db, part.partition, moved)
    return commit(s, db, rules)


def serve(s: State, rules: Rules) -> Iterator[Step]:
    for i, w in enumerate(s.workers):
        if w.tx and w.tx.sent:
            done = applied(s, w.tx, rules)
            yield Step(f"{'AB'[i]}'s COMMIT takes effect", put(done, i, informed(w, w.tx, rules)))
            yield Step(
                f"{'AB'[i]}'s COMMIT takes effect, the answer is lost", put(done, i, in_doubt(w, rules)), fault=True
            )
            yield from answered_rollback(s, i, rules)
            if rules.read_ahead:
                both = orphan(put(done, i, in_doubt(w, rules)), w.tx._replace(sent=False))
                yield Step(
                    f"{'AB'[i]}'s COMMIT and the hold after it take effect, the answers are lost", both, fault=True
                )
    for n, tx in enumerate(s.orphans):
        rest = s._replace(orphans=s.orphans[:n] + s.orphans[n + 1 :])
        yield Step("an abandoned transaction is rolled back", rest)
        if tx.sent:
            yield Step("an abandoned COMMIT takes effect", applied(rest, tx, rules))
            if rules.read_ahead:
                both = orphan(applied(rest, tx, rules), tx._replace(sent=False))
                yield Step("an abandoned COMMIT and the hold after it take effect", both)


def answered_rollback(s: State, i: int, rules: Rules) -> Iterator[Step]:
    """COMMIT of a failed transaction is answered without an error: only its tag is another (E6)."""
    w, name = s.workers[i], "AB"[i]
    if not w.tx or not (rules.express or rules.read_ahead):
        return
    next_batch = informed(w, w.tx, rules)
    if "every answer to COMMIT counts" in rules.broken:
        yield Step(f"{name}'s COMMIT is answered ROLLBACK, taken for COMMIT", put(s, i, next_batch), fault=True)
    if "hold after COMMIT compares no position" in rules.broken:
        held = next_batch._replace(tx=Tx(tuple(written(next_batch, part.partition) for part in w.tx.parts)))
        yield Step(f"{name}'s COMMIT is answered ROLLBACK, the hold after it passes", put(s, i, held), fault=True)
    to = in_doubt(w, rules, READY)
    yield Step(f"{name}'s COMMIT is answered ROLLBACK, its batch is kept", put(s, i, to), fault=True)


def fail_over(s: State, rules: Rules) -> Iterator[Step]:
    """To an older commit: results and ledger go back together, open transactions are gone."""
    for db in s.past if s.failovers < rules.failovers else ():
        workers = tuple(in_doubt(w, rules) if w.tx else w for w in s.workers)
        for p in range(rules.partitions):
            workers = unsure(s._replace(workers=workers), p).workers
        t = s._replace(db=db, workers=workers, past=(), orphans=(), failovers=s.failovers + 1)
        yield Step(f"failover to an older state: positions {[row.next for row in db.rows]}", t, fault=True)


# -- everybody else's --------------------------------------------------------------------------------------


def cut_over(s: State, rules: Rules) -> Iterator[Step]:
    """A reload replaces the rows of all partitions by those of the next handler version, and draws tokens."""
    if s.cutovers == rules.cutovers or not any(row.next for row in s.db.rows):
        return
    if any(locked(s, p) for p in range(rules.partitions)):
        return
    db = s.db._replace(version=s.db.version + 1)
    for p, row in enumerate(db.rows):
        passed = {*range(row.next)} - {*row.waiting}
        marks = tuple(((row.topic, db.version),) if o in passed else () for o in range(rules.records))
        token = row.token if "silent cut-over" in rules.broken else draw(s, p, rules)
        db = with_row(db, p, row._replace(applied=marks, token=token))
        s = unsure(s, p)
    yield Step("a reload cuts over", commit(s, db, rules)._replace(cutovers=s.cutovers + 1), fault=True)


def move(s: State, rules: Rules) -> Iterator[Step]:
    """An operator rewinds a partition to 0 and removes its rows, or restarts it so on a recreated topic."""
    for p, row in enumerate(s.db.rows):
        rewind = row.topic == s.topic
        if locked(s, p) or (rewind and (s.rewinds == rules.rewinds or not row.next)):
            continue
        token = row.token if "a move draws no token" in rules.broken else draw(s, p, rules)
        t = commit(unsure(s, p), with_row(s.db, p, Row(token, 0, s.topic, ((),) * rules.records)), rules)
        what = f"an operator rewinds {p}" if rewind else f"an operator restarts {p} on the recreated topic"
        yield Step(what, t._replace(rewinds=s.rewinds + rewind), fault=rewind)


def recreate(s: State, rules: Rules) -> Iterator[Step]:
    if s.recreations < rules.recreations:
        t = s._replace(topic=s.topic + 1, recreations=s.recreations + 1)
        yield Step("the topic is deleted and recreated with as many records", t, fault=True)


ACTS = {OUT: (claim,), READY: (claim, read, drop, glance, release, find, retry), DOUBT: (look,)}
BUSY = (read, glance)  # H4: a partition that the open transaction does not hold is checked too


def steps(s: State, rules: Rules) -> Iterator[Step]:
    for i, w in enumerate(s.workers):
        for p, slot in enumerate(w.slots):
            for act in (BUSY if slot.mode == READY else ()) if w.tx else ACTS[slot.mode]:
                yield from act(s, i, p, rules)
        yield from ask(s, i, rules)
        yield from finish(s, i, rules) if w.tx else hold(s, i, rules)
        yield from die(s, i, rules)
    for anybody in (serve, fail_over, cut_over, move, recreate):
        yield from anybody(s, rules)
