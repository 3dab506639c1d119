"""Everything that one worker may do next; ledger_model.py has the rest of the protocol."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

from .state import DOUBT, OUT, READY, Part, Rules, Slot, State, Tx, Worker, commit, draw, locked, place, put, with_row


class Step(NamedTuple):
    what: str
    to: State
    fault: bool = False  # something went wrong, or another actor interfered: progress must not need it
    needless: bool = False  # a refusal that the protocol promises to spare


# Broken variants that are found in more than one line.
READS_AFTER_THE_QUESTION = frozenset({"topic id before the last read", "answer outlives its batch"})
ADMITS_UNHELD = frozenset(
    {
        "unheld records advanced without comparing",
        "unheld records not advanced",
        "unheld records compared at advance",
    }
)


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
    position = slot.known if "cached position" in rules.broken and slot.mode == READY else row.next
    token = draw(s, p, rules)
    new = Slot(READY, token, position, (), remembered(position, rules), sure=True, topic=row.topic)
    if "records survive a seek" in rules.broken and slot.buffer:
        new = slot._replace(token=token, topic=row.topic)
    t = put(unsure(s, p), i, place(w, p, new))
    t = commit(t, with_row(s.db, p, row._replace(token=token)), rules)
    if rules.claims >= 0:
        t = t._replace(claims=tuple(n + (q == p) for q, n in enumerate(s.claims)))
    alone = all(other.slots[p].mode == OUT for other in s.workers)  # else Kafka has to take it from a worker
    yield Step(f"{'AB'[i]} claims partition {p} at {position}", t, fault=not alone)


def read(s: State, i: int, p: int, rules: Rules) -> Iterator[Step]:
    """Before *hold*, into the open transaction that holds the partition, or for the next transaction."""
    w = s.workers[i]
    slot, tx = w.slots[p], w.tx
    if slot.mode != READY:
        return
    if not tx:
        asked = any(slot.checked for slot in w.slots)  # E1: a closed batch reads nothing more
        if not rules.broken.isdisjoint(READS_AFTER_THE_QUESTION) if asked else not slot.buffer:
            yield from chunk(s, i, p, 1, rules)
            yield from chunk(s, i, p, 2, rules)
        return
    is_open = not (tx.sent or tx.closed)
    if tx.has(p):
        if is_open:
            yield from chunk(s, i, p, 1, rules, into_open=True)
        if rules.read_ahead:
            yield from chunk(s, i, p, 1, rules)
    elif not slot.buffer and (rules.read_ahead or (rules.by_batch and not tx.sent)):
        yield from chunk(s, i, p, 1, rules, into_open=is_open and not rules.broken.isdisjoint(ADMITS_UNHELD))


def chunk(s: State, i: int, p: int, n: int, rules: Rules, *, into_open: bool = False) -> Iterator[Step]:
    """Read ``n`` records: into the open transaction, or to wait for the next one, which closes an open one (H2, G1)."""
    w = s.workers[i]
    slot, tx = w.slots[p], w.tx
    if slot.read_position + n > rules.records:
        return
    what = f"{'AB'[i]} reads {p}:{slot.read_position}..{slot.read_position + n - 1} of incarnation {s.topic}"
    buffer = slot.buffer + (s.topic,) * n
    waits = bool(tx) and not into_open
    careless = "one answer for two transactions" if waits else "topic id before the last read"
    early = careless in rules.broken and any(slot.checked for slot in w.slots)
    w = place(
        w,
        p,
        slot._replace(
            read_position=slot.read_position + n, buffer=buffer, checked=len(buffer) if early else slot.checked
        ),
    )
    if tx and waits:
        w = w._replace(tx=tx._replace(closed=True))
        what += ", for the next transaction"
    elif tx:
        others = (part for part in tx.parts if part.partition != p)
        waits = any(part.waits for part in tx.parts if part.partition == p)
        parts = sorted((*others, written(w, p)._replace(held=tx.has(p), waits=waits)))
        slots = w.slots if early else tuple(slot._replace(checked=0) for slot in w.slots)  # the batch asks again
        w = w._replace(slots=slots, tx=tx._replace(parts=tuple(parts)))
        what += "" if tx.has(p) else ", into a transaction that does not hold it"
    yield Step(what, put(s, i, w))


def written(w: Worker, p: int, *, closed: bool = False) -> Part:
    """What a transaction writes of the buffer: all of it, or the part that the closed batch has."""
    slot = w.slots[p]
    buffer = slot.buffer[: slot.checked] if closed else slot.buffer
    return Part(p, slot.first, tuple((topic, w.version) for topic in buffer))


def ask(s: State, i: int, rules: Rules) -> Iterator[Step]:
    """Close a batch: ask for the topic's id after its last read (E1, H3, G1).

    The answer is as old as the question. It is compared with the id that the claim was taken under (E2).
    """
    w, name = s.workers[i], "AB"[i]
    mine = [p for p, slot in enumerate(w.slots) if slot.mode == READY and len(slot.buffer) > slot.checked]
    if not rules.express or not mine or (w.tx and not w.tx.closed):
        return
    known = s.db.rows if "answer compared with the stored topic id" in rules.broken else w.slots
    if all(known[p].topic == s.topic for p in mine) or "COMMIT without the answer" in rules.broken:
        for p in mine:
            w = place(w, p, w.slots[p]._replace(checked=len(w.slots[p].buffer)))
        yield Step(f"{name} closes its batch and asks for the topic's id: {s.topic}", put(s, i, w))
    elif not w.tx:
        yield Step(f"{name} sees another topic id and stops", put(s, i, Worker((Slot(),) * len(w.slots), w.version)))


def drop(s: State, i: int, p: int, rules: Rules) -> Iterator[Step]:
    """With one partition, stands for: another partition of the batch was refused."""
    w = s.workers[i]
    if (rules.partitions == 1 or rules.by_batch) and w.slots[p].buffer:
        t = place(w, p, w.slots[p]._replace(buffer=(), sure=False, checked=0))
        yield Step(f"{'AB'[i]} drops what it read of {p} and does not seek", put(s, i, t), fault=True)


def glance(s: State, i: int, p: int, rules: Rules) -> Iterator[Step]:
    """An idle worker reads its row, without a lock: was it moved?"""
    w, row = s.workers[i], s.db.rows[p]
    slot = w.slots[p]
    if slot.buffer or (w.tx and (w.tx.has(p) or not rules.by_batch)) or "idle worker does not look" in rules.broken:
        return
    if not owns(s, p, slot, rules) or row.next != slot.read_position:
        yield Step(
            f"{'AB'[i]} is idle on {p} and sees that it was moved",
            put(s, i, place(w, p, slot._replace(mode=DOUBT, read_position=0, sure=False))),
        )


def look(s: State, i: int, p: int, rules: Rules) -> Iterator[Step]:
    """After a refusal or a lost connection: read the row under its lock, then continue from there or let go."""
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
        ahead = slot._replace(mode=READY, buffer=(), known=0, sure=True, checked=0)
        yield Step(f"{name} takes {p} for committed", put(s, i, place(w, p, ahead)))
    elif slot.buffer and row.next == slot.first:
        back = slot._replace(mode=READY, sure=True)
        yield Step(f"{name} looks at {p}: not committed, keeps its records", put(s, i, place(w, p, back)))
    else:
        if slot.first < row.next < slot.read_position:
            rest = remaining(slot, row.next, rules)._replace(mode=READY, sure=True)
            yield Step(f"{name} looks at {p}: committed, keeps what it read ahead", put(s, i, place(w, p, rest)))
        back = Slot(READY, slot.token, row.next, (), remembered(row.next, rules), sure=True, topic=slot.topic)
        yield Step(f"{name} looks at {p}: continues from {row.next}", put(s, i, place(w, p, back)))


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


def find(s: State, i: int, p: int, rules: Rules) -> Iterator[Step]:
    """Find a waiting record that is due, without a lock."""
    w = s.workers[i]
    for offset in s.db.rows[p].waiting if rules.waiting else ():
        if offset != w.slots[p].due:
            t = put(s, i, place(w, p, w.slots[p]._replace(due=offset)))
            yield Step(f"{'AB'[i]} finds that {p}:{offset} waits", t)


def retry(s: State, i: int, p: int, rules: Rules) -> Iterator[Step]:
    """Lock the row; under the claim (W1), and if the record still waits (W2), apply it."""
    w, row = s.workers[i], s.db.rows[p]
    slot, name = w.slots[p], "AB"[i]
    if slot.due < 0 or locked(s, p):
        return
    if not owns(s, p, slot, rules) and "retry without the claim" not in rules.broken:
        doubt = slot._replace(mode=DOUBT, read_position=0, buffer=(), sure=False, checked=0, due=-1)
        yield Step(f"{name} is refused its retry on {p}", put(s, i, place(w, p, doubt)), needless=slot.sure)
    elif slot.due not in row.waiting and "retry of what no longer waits" not in rules.broken:
        yield Step(f"{name} sees that {p}:{slot.due} waits no longer", put(s, i, place(w, p, slot._replace(due=-1))))
    elif slot.due < row.next:
        part = Part(p, slot.due, ((row.topic, w.version),), retries=True)
        t = place(w, p, slot._replace(due=-1))._replace(tx=Tx((part,), closed=True))
        yield Step(f"{name} retries {p}:{slot.due}", put(s, i, t))


def hold(s: State, i: int, rules: Rules) -> Iterator[Step]:
    """Lock the rows of all active partitions; by batch (H1), of some; express (E3), of those of the closed batch."""
    w = s.workers[i]
    placed = tuple(p for p, slot in enumerate(w.slots) if slot.mode == READY)
    choices = {placed}
    if rules.by_batch:
        choices.update(some for n in range(len(placed)) for some in combinations(placed, n))
    if rules.express:
        choices.add(tuple(p for p in placed if w.slots[p].checked))
    for mine in sorted(choices):
        if any(w.slots[p].buffer for p in mine) and not any(locked(s, p) for p in mine):
            yield from hold_these(s, i, mine, rules)


def hold_these(s: State, i: int, placed: tuple[int, ...], rules: Rules) -> Iterator[Step]:
    """Each at the read position its reading began at; write what was read, of a closed batch what it has (E5)."""
    w, name = s.workers[i], "AB"[i]
    refused = [p for p in placed if not holds(s, p, w.slots[p], rules)]
    if not refused or ("refused records are written" in rules.broken and len(refused) < len(placed)):
        closed = any(w.slots[p].checked for p in placed)
        tx = Tx(tuple(written(w, p, closed=closed) for p in placed), closed)
        yield Step(f"{name} holds {list(placed)} and writes", put(s, i, w._replace(tx=tx)))
        if rules.waiting and tx.parts[0].records:
            tx = tx._replace(parts=(tx.parts[0]._replace(waits=True), *tx.parts[1:]))
            yield Step(f"{name} holds {list(placed)}, its first record fails and waits", put(s, i, w._replace(tx=tx)))
        return
    needless = any(w.slots[p].sure for p in refused)
    for p in refused:
        w = place(w, p, w.slots[p]._replace(mode=DOUBT, read_position=0, buffer=(), sure=False, checked=0))
    yield Step(f"{name} is refused {refused} of {list(placed)}", put(s, i, w), needless=needless)
    others = [p for p in placed if p not in refused and w.slots[p].buffer]
    for p in others:
        w = place(w, p, w.slots[p]._replace(buffer=(), sure=False, checked=0))
    if others:
        yield Step(
            f"{name} is refused {refused} of {list(placed)}, drops {others} too and does not seek",
            put(s, i, w),
            fault=True,
        )


def holds(s: State, p: int, slot: Slot, rules: Rules) -> bool:
    begin = slot.known if "from is the last commit" in rules.broken else slot.first
    if "advance without comparing" in rules.broken and slot.checked:
        return True
    here = s.db.rows[p].next == begin or "no position" in rules.broken
    return here and owns(s, p, slot, rules)


def finish(s: State, i: int, rules: Rules) -> Iterator[Step]:
    """The end of the worker's open transaction: topic's id, COMMIT, or a lost connection."""
    w, name = s.workers[i], "AB"[i]
    if not w.tx:
        return
    unchecked = (part for part in w.tx.parts if not part.retries)  # its record is the ledger's, not the log's
    if any(w.slots[part.partition].checked < len(part.records) for part in unchecked):
        known = w.slots if rules.express else s.db.rows
        same = all(known[part.partition].topic == s.topic for part in w.tx.parts)
        if same or not rules.broken.isdisjoint({"no topic id", "topic id at claim only"}):
            t = w
            for part in w.tx.parts:
                t = place(t, part.partition, t.slots[part.partition]._replace(checked=len(part.records)))
            yield Step(f"{name} checks the topic's id", put(s, i, t))
        else:
            yield Step(
                f"{name} sees another topic id and stops", put(s, i, Worker((Slot(),) * len(w.slots), w.version))
            )
    elif not w.tx.sent:
        yield from send(s, i, rules)
    if (rules.express or rules.read_ahead) and not w.tx.sent:
        yield from fail(s, i, rules)
    yield Step(f"{name} loses its connection", orphan(put(s, i, in_doubt(w, rules)), w.tx), fault=True)


def send(s: State, i: int, rules: Rules) -> Iterator[Step]:
    w, name = s.workers[i], "AB"[i]
    assert w.tx
    unheld = [part.partition for part in w.tx.parts if not part.held]
    if "unheld records compared at advance" in rules.broken and unheld:
        if any(locked(s, p) for p in unheld):
            return
        if not all(holds(s, p, w.slots[p], rules) for p in unheld):
            yield Step(f"{name}'s advance is refused", put(s, i, in_doubt(w, rules)))
            return
        w = w._replace(tx=w.tx._replace(parts=tuple(part._replace(held=True) for part in w.tx.parts)))
    yield Step(f"{name} sends COMMIT", put(s, i, w._replace(tx=w.tx and w.tx._replace(sent=True))))


def fail(s: State, i: int, rules: Rules) -> Iterator[Step]:
    """A statement fails: any error ends the transaction (E4), and its batch is kept (E5, G2)."""
    w, name = s.workers[i], "AB"[i]
    assert w.tx
    if "savepoint after advance" in rules.broken:
        parts = tuple(part._replace(start=part.end, records=()) for part in w.tx.parts)
        to = w._replace(tx=w.tx._replace(parts=parts, closed=True))
        yield Step(f"{name}'s rows are rolled back to a savepoint", put(s, i, to), fault=True)
    to = in_doubt(w, rules, READY)
    yield Step(f"{name}'s transaction fails and is rolled back, its batch is kept", put(s, i, to), fault=True)


def unsure(s: State, p: int) -> State:
    """Another worker or an operator changes the row."""
    workers = (place(w, p, w.slots[p]._replace(sure=False)) if w.slots[p].sure else w for w in s.workers)
    return s._replace(workers=tuple(workers))


def remembered(position: int, rules: Rules) -> int:
    """A position kept beside the read position: only broken variants use it, the protocol does without."""
    return 0 if rules.broken.isdisjoint({"from is the last commit", "cached position"}) else position


def in_doubt(w: Worker, rules: Rules, mode: str = DOUBT) -> Worker:
    """The transaction is over, and it is unknown how; or (``READY``) it was rolled back. The records are kept."""
    assert w.tx
    for part in w.tx.parts:
        slot = w.slots[part.partition]
        answer = slot.checked if rules.express else 0  # else each transaction asks
        kept = slot._replace(mode=mode, sure=slot.sure and mode == READY, checked=answer)
        if "failed transaction drops its records" in rules.broken and mode == READY:
            kept = kept._replace(buffer=(), checked=0)
        w = place(w, part.partition, kept)
    return w._replace(tx=())


def orphan(s: State, tx: Tx | tuple[()]) -> State:
    return s._replace(orphans=(*s.orphans, tx)) if tx else s


def die(s: State, i: int, rules: Rules) -> Iterator[Step]:
    w = s.workers[i]
    fresh = Worker((Slot(),) * len(w.slots), s.db.version)
    if w != fresh:
        needed = w.version != s.db.version and all(slot.mode == OUT for slot in w.slots)
        yield Step(f"{'AB'[i]} dies, the newest handler is deployed", orphan(put(s, i, fresh), w.tx), fault=not needed)


def informed(w: Worker, tx: Tx, rules: Rules) -> Worker:
    for part in tx.parts:
        if part.retries:
            continue
        rest = remaining(w.slots[part.partition], part.end, rules)
        w = place(w, part.partition, rest._replace(known=remembered(part.end, rules)))
    return w._replace(tx=())


def remaining(slot: Slot, end: int, rules: Rules) -> Slot:
    """Without the records before ``end``, and without the answer that was about them (E5)."""
    n = end - slot.first
    answer = slot.checked if "answer outlives its batch" in rules.broken else max(0, slot.checked - n)
    return slot._replace(buffer=slot.buffer[n:], checked=answer)
