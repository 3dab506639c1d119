"""The ledger's protocol as steps: everything that two workers, the server and everybody else may do next.

``steps`` is the protocol; explore.py walks through all of it. What is modelled and what is not, what it taught, and how
to run it: docs/internals/model.md. A string looked up in ``rules.broken`` breaks the line that contains it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .state import (
    DOUBT,
    OUT,
    READY,
    Part,
    Row,
    Rules,
    Slot,
    State,
    Tx,
    Worker,
    commit,
    draw,
    locked,
    place,
    put,
    with_row,
)


class Step(NamedTuple):
    what: str
    to: State
    fault: bool = False  # something went wrong, or another actor interfered: progress must not need it
    needless: bool = False  # a refusal that the protocol promises to spare


# -- one worker's steps ------------------------------------------------------------------------------------


def owns(s: State, p: int, slot: Slot, rules: Rules) -> bool:
    return s.db.rows[p].token == slot.token or "no token" in rules.broken


def claim(s: State, i: int, p: int, rules: Rules) -> Iterator[Step]:
    """Assigned, perhaps again: wait for the row's lock, draw a token, learn the position."""
    w, row = s.workers[i], s.db.rows[p]
    slot = w.slots[p]
    if s.claims[p] == rules.claims:
        return
    if locked(s, p) and "claim does not wait" not in rules.broken:
        return
    if w.version != s.db.version and "old code claims" not in rules.broken:
        return
    if row.topic != s.topic and "no topic id" not in rules.broken:
        return
    at = slot.known if "cached position" in rules.broken and slot.mode == READY else row.next
    token = draw(s, p, rules)
    t = put(unsure(s, p), i, place(w, p, Slot(READY, token, at, (), remembered(at, rules), sure=True)))
    t = commit(t, with_row(s.db, p, row._replace(token=token)), rules)
    if rules.claims >= 0:
        t = t._replace(claims=tuple(n + (q == p) for q, n in enumerate(s.claims)))
    alone = all(other.slots[p].mode == OUT for other in s.workers)  # else Kafka has to revoke it from the other worker
    yield Step(f"{'AB'[i]} claims partition {p} at {at}", t, fault=not alone)


def read(s: State, i: int, p: int, rules: Rules) -> Iterator[Step]:
    """Before *hold*, or into the open transaction that holds the partition."""
    w = s.workers[i]
    slot = w.slots[p]
    if slot.mode != READY or (w.tx.sent if w.tx else slot.buffer):
        return
    for n in (1,) if w.tx else (1, 2):
        if slot.cursor + n <= rules.records:
            grown = slot._replace(cursor=slot.cursor + n, buffer=slot.buffer + (s.topic,) * n)
            t = place(w, p, grown)
            if w.tx:
                late = w.tx.checked and "topic id before the last read" in rules.broken
                parts = tuple(written(t, part.partition) if part.partition == p else part for part in w.tx.parts)
                t = t._replace(tx=Tx(parts, checked=late))
            yield Step(
                f"{'AB'[i]} reads {p}:{slot.cursor}..{slot.cursor + n - 1} of incarnation {s.topic}", put(s, i, t)
            )


def written(w: Worker, p: int) -> Part:
    return Part(p, w.slots[p].first, tuple((topic, w.version) for topic in w.slots[p].buffer))


def drop(s: State, i: int, p: int, rules: Rules) -> Iterator[Step]:
    """With one partition, stands for: another partition of the batch was refused."""
    w = s.workers[i]
    if rules.partitions == 1 and w.slots[p].buffer:
        t = place(w, p, w.slots[p]._replace(buffer=(), sure=False))
        yield Step(f"{'AB'[i]} drops what it read of {p} and does not seek", put(s, i, t), fault=True)


def glance(s: State, i: int, p: int, rules: Rules) -> Iterator[Step]:
    """An idle worker reads its row, without a lock: was it moved?"""
    w, row = s.workers[i], s.db.rows[p]
    slot = w.slots[p]
    if slot.buffer or "idle worker does not look" in rules.broken:
        return
    if not owns(s, p, slot, rules) or row.next != slot.cursor:
        yield Step(
            f"{'AB'[i]} is idle on {p} and sees that it was moved",
            put(s, i, place(w, p, slot._replace(mode=DOUBT, cursor=0, sure=False))),
        )


def look(s: State, i: int, p: int, rules: Rules) -> Iterator[Step]:
    """After a refusal or a lost connection: read the row under its lock, then resync or give the partition up."""
    w, row = s.workers[i], s.db.rows[p]
    slot, name = w.slots[p], "AB"[i]
    if locked(s, p) and "looks without lock" not in rules.broken:
        return
    if "blind retry" in rules.broken and slot.buffer and not locked(s, p):
        again = place(w, p, slot._replace(mode=READY))
        yield Step(
            f"{name} writes {p}:{slot.first}.. again, blindly", put(s, i, again._replace(tx=Tx((written(w, p),))))
        )
    elif not owns(s, p, slot, rules):
        yield Step(f"{name} looks at {p}: no longer the owner", put(s, i, place(w, p, Slot())))
    elif slot.buffer and "assumes committed" in rules.broken:
        ahead = Slot(READY, slot.token, slot.cursor, (), sure=True)
        yield Step(f"{name} takes {p} for committed", put(s, i, place(w, p, ahead)))
    elif slot.buffer and row.next == slot.first:
        back = slot._replace(mode=READY, sure=True)
        yield Step(f"{name} looks at {p}: not committed, keeps its records", put(s, i, place(w, p, back)))
    else:
        back = Slot(READY, slot.token, row.next, (), remembered(row.next, rules), sure=True)
        yield Step(f"{name} looks at {p}: goes on from {row.next}", put(s, i, place(w, p, back)))


def release(s: State, i: int, p: int, rules: Rules) -> Iterator[Step]:
    """Revoked. (The real release clears only the owner's name: this one is harsher, it takes the token away.)"""
    w, row = s.workers[i], s.db.rows[p]
    slot = w.slots[p]
    if locked(s, p):
        return
    t = put(s, i, place(w, p, Slot()))
    if owns(s, p, slot, rules) or "release of a stranger's claim" in rules.broken:
        t = commit(t, with_row(s.db, p, row._replace(token=draw(s, p, rules))), rules)
        yield Step(f"{'AB'[i]} releases {p}", t, fault=True)


def hold(s: State, i: int, rules: Rules) -> Iterator[Step]:
    """Lock the rows of all active partitions, each at the cursor its reading began at; write what was read."""
    w, name = s.workers[i], "AB"[i]
    placed = [p for p, slot in enumerate(w.slots) if slot.mode == READY]
    if not any(w.slots[p].buffer for p in placed) or any(locked(s, p) for p in placed):
        return
    refused = [p for p in placed if not holds(s, p, w.slots[p], rules)]
    if not refused or ("refused records are written" in rules.broken and len(refused) < len(placed)):
        tx = Tx(tuple(written(w, p) for p in placed))
        yield Step(f"{name} holds {placed} and writes", put(s, i, w._replace(tx=tx)))
        return
    needless = any(w.slots[p].sure for p in refused)
    for p in refused:
        slot = w.slots[p]
        w = place(w, p, Slot(DOUBT, slot.token, 0, (), slot.known))
    yield Step(f"{name} is refused {refused} of {placed}", put(s, i, w), needless=needless)
    others = [p for p in placed if p not in refused and w.slots[p].buffer]
    for p in others:
        w = place(w, p, w.slots[p]._replace(buffer=(), sure=False))
    if others:
        yield Step(
            f"{name} is refused {refused} of {placed}, drops {others} too and does not seek", put(s, i, w), fault=True
        )


def holds(s: State, p: int, slot: Slot, rules: Rules) -> bool:
    begin = slot.known if "from is the last commit" in rules.broken else slot.first
    here = s.db.rows[p].next == begin or "no position" in rules.broken
    return here and owns(s, p, slot, rules)


def finish(s: State, i: int, rules: Rules) -> Iterator[Step]:
    """The end of the worker's open transaction: topic's id, COMMIT, or a lost connection."""
    w, name = s.workers[i], "AB"[i]
    if not w.tx:
        return
    if not w.tx.checked:
        same = all(s.db.rows[part.partition].topic == s.topic for part in w.tx.parts)
        if same or not rules.broken.isdisjoint({"no topic id", "topic id at claim only"}):
            yield Step(f"{name} checks the topic's id", put(s, i, w._replace(tx=w.tx._replace(checked=True))))
        else:
            yield Step(
                f"{name} sees another topic id and stops", put(s, i, Worker((Slot(),) * len(w.slots), w.version))
            )
    elif not w.tx.sent:
        yield Step(f"{name} sends COMMIT", put(s, i, w._replace(tx=w.tx._replace(sent=True))))
    yield Step(f"{name} loses its connection", orphan(put(s, i, in_doubt(w)), w.tx), fault=True)


def unsure(s: State, p: int) -> State:
    """Another actor claims the partition, or changes its position."""
    workers = (place(w, p, w.slots[p]._replace(sure=False)) if w.slots[p].sure else w for w in s.workers)
    return s._replace(workers=tuple(workers))


def remembered(at: int, rules: Rules) -> int:
    """A position kept beside the cursor: only broken variants use it, the protocol does without."""
    return 0 if rules.broken.isdisjoint({"from is the last commit", "cached position"}) else at


def in_doubt(w: Worker) -> Worker:
    assert w.tx
    for part in w.tx.parts:
        w = place(w, part.partition, w.slots[part.partition]._replace(mode=DOUBT, sure=False))
    return w._replace(tx=())


def orphan(s: State, tx: Tx | tuple[()]) -> State:
    return s._replace(orphans=(*s.orphans, tx)) if tx else s


def die(s: State, i: int, rules: Rules) -> Iterator[Step]:
    w = s.workers[i]
    fresh = Worker((Slot(),) * len(w.slots), s.db.version)
    if w != fresh:
        needed = w.version != s.db.version and all(slot.mode == OUT for slot in w.slots)
        yield Step(f"{'AB'[i]} dies, the newest handler is deployed", orphan(put(s, i, fresh), w.tx), fault=not needed)


# -- the server's steps ------------------------------------------------------------------------------------


def write(row: Row, part: Part, *, advances: bool) -> Row:
    end = part.start + len(part.records)
    applied = tuple(
        (*marks, part.records[o - part.start]) if part.start <= o < end else marks
        for o, marks in enumerate(row.applied)
    )
    return row._replace(applied=applied, next=end if advances else row.next)


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
        moved = write(row, part, advances=advances)
        if "last processed instead of next" in rules.broken and part.records:
            moved = moved._replace(next=moved.next - 1)
        db = with_row(db, part.partition, moved)
    return commit(s, db, rules)


def serve(s: State, rules: Rules) -> Iterator[Step]:
    for i, w in enumerate(s.workers):
        if w.tx and w.tx.sent:
            done = applied(s, w.tx, rules)
            yield Step(f"{'AB'[i]}'s COMMIT takes effect", put(done, i, informed(w, w.tx, rules)))
            yield Step(f"{'AB'[i]}'s COMMIT takes effect, the answer is lost", put(done, i, in_doubt(w)), fault=True)
    for n, tx in enumerate(s.orphans):
        rest = s._replace(orphans=s.orphans[:n] + s.orphans[n + 1 :])
        yield Step("an abandoned transaction is rolled back", rest)
        if tx.sent:
            yield Step("an abandoned COMMIT takes effect", applied(rest, tx, rules))


def informed(w: Worker, tx: Tx, rules: Rules) -> Worker:
    for part in tx.parts:
        slot = w.slots[part.partition]
        w = place(w, part.partition, slot._replace(buffer=(), known=remembered(slot.cursor, rules)))
    return w._replace(tx=())


def fail_over(s: State, rules: Rules) -> Iterator[Step]:
    """To an older commit: results and ledger go back together, open transactions are gone."""
    for db in s.past if s.failovers < rules.failovers else ():
        workers = tuple(in_doubt(w) if w.tx else w for w in s.workers)
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
        marks = tuple(((row.topic, db.version),) if o < row.next else () for o in range(rules.records))
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


ACTS = {OUT: (claim,), READY: (claim, read, drop, glance, release), DOUBT: (look,)}


def steps(s: State, rules: Rules) -> Iterator[Step]:
    for i, w in enumerate(s.workers):
        for p, slot in enumerate(w.slots):
            for act in (read,) if w.tx else ACTS[slot.mode]:
                yield from act(s, i, p, rules)
        yield from finish(s, i, rules) if w.tx else hold(s, i, rules)
        yield from die(s, i, rules)
    for anybody in (serve, fail_over, cut_over, move, recreate):
        yield from anybody(s, rules)
