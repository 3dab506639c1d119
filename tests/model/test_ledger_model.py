"""No interleaving within the bounds breaks a promise of the protocol, and every broken variant of it is detected."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from . import ledger_model
from .explore import CONFIGS, ENDLESS, LONE, ONLY_SLOW, PAIR, UNSAFE, Graph, broken_by, canonical, explore, main
from .ledger_model import ACTS, steps
from .state import READY, Rules, State, finished, violation
from .worker_steps import drop

HARM = {  # in the words of the violation that the shortest history ends in
    "from is the last commit": "lost",
    "advance only some": "applied but position is",
    "refused records are written": "applied 2 times",
    "old code claims": "was written by handler 1",
    "no token": "another incarnation",
    "counter as token": "another incarnation",
    "no position": "lost",
    "no topic id": "another incarnation",
    "topic id at claim only": "another incarnation",
    "topic id before the last read": "another incarnation",
    "blind retry": "applied 2 times",
    "two transactions": "applied but position is",
    "silent cut-over": "was written by handler 1",
    "a move draws no token": "another incarnation",
    "last processed instead of next": "applied but position is",
    "express: topic id before the last read": "another incarnation",
    "express: COMMIT without the answer": "another incarnation",
    "express: answer compared with the stored topic id": "another incarnation",
    "express: advance without comparing": "lost",
    "express: no token": "another incarnation",
    "express: no position": "lost",
    "express: a move draws no token": "another incarnation",
    "express: savepoint after advance": "lost",
    "express: answer outlives its batch": "another incarnation",
    "express: blind retry": "applied 2 times",
    "by batch: unheld records advanced without comparing": "lost",
    "by batch: unheld records not advanced": "applied but position is",
    "by batch: one answer for two transactions": "another incarnation",
    "read ahead: one answer for two transactions": "another incarnation",
    "read ahead: hold after COMMIT compares no position": "lost",
    "read ahead: records survive a seek": "another incarnation",
    "read ahead: no position": "lost",
    "waiting: waiting row not written": "lost",
    "waiting: retry does not close its row": "applied 1 times, and waits for another retry",
    "waiting: retry of what no longer waits": "applied 2 times",
    "waiting: retry without the claim": "was written by handler 1",
}
# A step that the history must contain, so that the harm comes from the broken rule and from nothing else.
CAUSE = {
    "express: topic id before the last read": "A reads 0:1..1 of incarnation 2",
    "express: COMMIT without the answer": "A closes its batch and asks for the topic's id: 2",
    "express: answer compared with the stored topic id": "failover to an older state: positions [0]",
    "express: savepoint after advance": "A's rows are rolled back to a savepoint",
    "by batch: unheld records advanced without comparing": "into a transaction that does not hold it",
    "by batch: unheld records not advanced": "into a transaction that does not hold it",
    "by batch: one answer for two transactions": "of incarnation 2, for the next transaction",
    "read ahead: one answer for two transactions": "of incarnation 2, for the next transaction",
    "read ahead: hold after COMMIT compares no position": "A's COMMIT is answered ROLLBACK, the hold after it passes",
    "express: every answer to COMMIT counts": "A's COMMIT is answered ROLLBACK, taken for COMMIT",
    "read ahead: every answer to COMMIT counts": "A's COMMIT is answered ROLLBACK, taken for COMMIT",
}
STATES = {  # as docs/internals/model.md has them
    "lone": 27_127,
    "endless": 10_611,
    "pair": 40_700,
    "express": 21_392,
    "express-endless": 23_238,
    "express-pair": 21_655,
    "by-batch": 19_067,
    "by-batch-recreated": 1_874,
    "read-ahead": 37_047,
    "read-ahead-endless": 12_457,
    "read-ahead-pair": 6_248,
    "all-three": 32_536,
    "all-three-recreated": 3_900,
    "all-three-lone": 28_579,
    "waiting": 57_917,
    "waiting-endless": 70_119,
}
CALM = Rules(cutovers=0, recreations=0)  # no fault but a crash, a lost connection, failover
SMALL = {
    "lone": CALM._replace(records=2),
    "pair": CALM._replace(partitions=2, records=1, claims=1, failovers=0, rewinds=1),
}
SMALL_CHANGED = {
    "waiting": CALM._replace(records=2, failovers=0, waiting=True),
    "express": CALM._replace(records=2, failovers=0, recreations=1, express=True),
    "by batch": SMALL["pair"]._replace(by_batch=True),
    "read ahead": SMALL["lone"]._replace(read_ahead=True),
    "all three": SMALL["pair"]._replace(rewinds=0, express=True, by_batch=True, read_ahead=True),
}


@pytest.mark.long("some of its cases take seconds")
@pytest.mark.parametrize("config", CONFIGS)
def test_as_designed_nothing_is_lost_twice_refused_needlessly_or_stuck(config: str) -> None:
    result = explore(CONFIGS[config])
    print(f"{config}: {result.states} states, {result.seconds:.1f} s")
    assert result.violation is None, result.history
    assert result.states == STATES[config]
    assert result.finished > 20
    assert result.needless == 0, result.history
    assert result.stuck == (0 if CONFIGS[config].claims < 0 else None), result.history


@pytest.mark.long("some of its cases take seconds")
@pytest.mark.parametrize("name", UNSAFE)
def test_an_unsafe_variant_does_harm(name: str) -> None:
    result = explore(broken_by(name))
    print(f"{name}: {result.states} states, {result.seconds:.1f} s: {result.violation}")
    assert result.violation is not None
    assert HARM[name] in result.violation, result.history
    assert any(step.endswith(CAUSE.get(name, "")) for step in result.history), result.history
    assert result.history[0] == "A claims partition 0 at 0"
    assert result.history[-1].startswith(("A's COMMIT takes effect", "B's COMMIT takes effect"))


@pytest.mark.long("some of its cases take seconds")
@pytest.mark.parametrize("name", ONLY_SLOW)
def test_a_slow_variant_does_no_harm_but_has_a_price(name: str) -> None:
    """The rows stay right because hold compares the position: watch refusals and progress to catch these."""
    result = explore(broken_by(name))
    print(f"{name}: {result.states} states, {result.seconds:.1f} s: {result.needless} refusals, stuck: {result.stuck}")
    assert result.violation is None, result.history
    assert result.finished > 100
    assert result.needless or result.stuck, "as designed both are 0"
    assert any(step.endswith(CAUSE.get(name, "")) for step in result.history), result.history


@pytest.mark.repeats("name")
@pytest.mark.parametrize("name", ["no token", "counter as token"])
def test_a_reload_needs_the_token_even_where_no_topic_is_recreated(name: str) -> None:
    result = explore(LONE._replace(recreations=0, broken=frozenset([name])))
    assert result.violation is not None
    assert "was written by handler 1, the group is at 2" in result.violation
    assert "a reload cuts over" in result.history
    assert ("counter" in name) == any("failover" in step for step in result.history)


def test_from_must_survive_a_batch_dropped_because_its_other_partition_was_refused() -> None:
    result = explore(PAIR._replace(broken=frozenset(["from is the last commit"])))
    assert "A is refused [0] of [0, 1], drops [1] too and does not seek" in result.history
    assert result.violation == "partition 1 offset 0 lost"


@pytest.mark.long
def test_a_last_chunk_that_was_dropped_is_found_by_the_idle_look_alone() -> None:
    result = explore(ENDLESS._replace(broken=frozenset(["idle worker does not look"])))
    assert result.stuck
    assert result.history[-1] == "A drops what it read of 0 and does not seek"


def test_a_rewind_on_a_quiet_topic_is_obeyed_by_the_idle_look_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ledger_model.ACTS, READY, tuple(act for act in ACTS[READY] if act is not drop))
    rules = ENDLESS._replace(failovers=0, cutovers=0)
    assert explore(rules).stuck == 0
    result = explore(rules._replace(broken=frozenset(["idle worker does not look"])))
    assert result.stuck
    assert result.history[-1] == "an operator rewinds 0"


@pytest.mark.long
def test_a_late_lock_of_records_that_are_not_held_lets_two_workers_wait_for_each_other() -> None:
    result = explore(broken_by("by batch: unheld records compared at advance"))
    assert result.needless == 0
    assert result.stuck
    waiting = [step for step in result.history if step.endswith("into a transaction that does not hold it")]
    assert [(step[0], step[8]) for step in waiting] == [("A", "0"), ("B", "1")]
    assert {"A holds [1] and writes", "B holds [0] and writes"} < set(result.history)


def walked(rules: Rules, merge: Callable[[State, Rules], State]) -> tuple[set[State], set[State]]:
    """All states, and those that are stuck."""
    graph = Graph(rules, merge)
    for k, s in enumerate(graph.states):  # it grows meanwhile
        for step in steps(s, rules):
            graph.reach(k, step)
    goals = [k for k, s in enumerate(graph.states) if finished(s)]
    return set(graph.states), {graph.states[k] for k in graph.stuck(goals)}


@pytest.mark.long("some of its cases take seconds")
@pytest.mark.parametrize(
    ("bounds", "name"),
    [(small, name) for small in SMALL for name in (None, *ONLY_SLOW) if ": " not in str(name)]
    + [(small, None) for small in SMALL_CHANGED],
)
def test_what_is_merged_is_the_same(bounds: str, name: str | None) -> None:
    """Unmerged, nothing is reached that the merged walk misses, and the same states are stuck.

    (Claims are bounded here, or the unmerged walk would not end: so there are stuck states.)
    """
    rules = broken_by(name, {**SMALL, **SMALL_CHANGED}[bounds])
    raw, raw_stuck = walked(rules, lambda s, _: s)
    merged, merged_stuck = walked(rules, canonical)
    image = {canonical(s, rules) for s in raw}
    assert all(violation(s) is None for s in raw)
    assert len(raw) > 2 * len(merged)
    assert image <= merged
    assert {canonical(s, rules) for s in raw_stuck} == merged_stuck & image
    assert all(canonical(s, rules) == s for s in merged)


def test_the_command_prints_the_shortest_history(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--break", "no position", "--records", "2"]) == 0
    output = capsys.readouterr().out
    assert "no position (partitions 1, records 2, claims 2" in output
    assert "partition 0 offset 0 lost" in output
    assert " 3. A drops what it read of 0 and does not seek\n" in output
