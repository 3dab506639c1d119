"""The guarantee of what runs, in words: from what a group's workers have declared, without their code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from seekpoint.admin.groups import known_group
from seekpoint.ledger.claim import refuse_forgotten
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import STATUS

_POISON = {
    "stop": "stops its partition in front of it; the others continue",
    "dead_letter": "is stored as a dead letter, whole, in the transaction that passes its offset",
    "skip": "is passed; a row of dead_letter says so, without its value",
}


@dataclass(frozen=True, slots=True)
class TopicGuarantee:
    """What holds for a topic's records, and what weakens it, in sentences; ``declared`` is what its workers stored."""

    topic: str
    guarantee: tuple[str, ...]
    weakens: tuple[str, ...]
    declared: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """A group's guarantee, topic by topic."""

    group: str
    version: int
    topics: tuple[TopicGuarantee, ...]


def explain(tx: GroupConnection) -> Explanation:
    """Raises ConfigError for a group that the ledger does not know, GroupForgotten for one that was forgotten."""
    row = known_group(tx)
    refuse_forgotten(row)
    positions = tx.execute(STATUS["positions"], names=[tx.group]).all()
    declared = row.declared or {}
    topics = sorted({*declared, *(at.topic for at in positions)})
    stops = {(at.topic, at.partition): at.stop_kind for at in positions if at.stop_kind is not None}
    return Explanation(
        tx.group, row.version, tuple(_topic(topic, declared.get(topic), row.version, stops) for topic in topics)
    )


def _topic(
    topic: str, found: Mapping[str, Any] | None, version: int, stops: Mapping[tuple[str, int], str]
) -> TopicGuarantee:
    stopped = [f"partition {number} is stopped: {kind}" for (at, number), kind in sorted(stops.items()) if at == topic]
    if found is None:
        unknown = "no worker that reads it has stored its declaration: what it does with the records is not known"
        return TopicGuarantee(topic, (), (unknown, *stopped), None)
    weakens = [str(each) for each in found.get("weakens", ())]
    if found.get("version") != version:
        weakens.append(f"declared by version {found.get('version')}, and the group is at {version}: it may be outdated")
    return TopicGuarantee(topic, tuple(_guarantee(found)), (*weakens, *stopped), dict(found))


def _guarantee(found: Mapping[str, Any]) -> Iterator[str]:
    yield "each record is applied exactly once: its rows and its offset are committed in one Postgres transaction"
    for sink in found.get("sinks", ()):
        tables = ", ".join(sink.get("tables", ()))
        if "guarded" not in sink:
            yield f"{sink['kind']} writes a record's rows to {tables}"
        else:
            kept = "an older record never replaces a newer row" if sink["guarded"] else "the record read last wins"
            yield f"{sink['kind']} keeps one row for each {', '.join(sink.get('key', ()))} in {tables}: {kept}"
    if found.get("handler"):
        written = f", which writes {', '.join(found['writes'])}" if found.get("writes") else ""
        yield f"handler {found['handler']}{written}, is called in the same transaction"
    attempts, policy = found.get("attempts"), str(found.get("on_poison"))
    yield f"a record that cannot be applied ({attempts} attempts of a handler) {_POISON.get(policy, policy)}"
    if found.get("keep_key_order"):
        yield "later records of a dead letter's key wait as dead letters, too: each key's order is kept"
    if found.get("delay_seconds"):
        yield f"records are applied {found['delay_seconds']:g} s after they were produced, not before"
