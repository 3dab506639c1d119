"""A group's guarantee in words, from its workers' declarations, without their code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from seekpoint.admin.groups import known_group
from seekpoint.ledger.claim import refuse_forgotten
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import STATUS

_RETRY_ORDER = {"key": "other keys of its partition continue", "none": "all others of its partition continue"}
_POISON = {
    "stop": "stops its partition at its offset; the others continue",
    "dead_letter": "is stored completely, as a dead letter, in the transaction that passes its offset",
    "skip": "is skipped; a row of dead_letter records it, without its value",
}


@dataclass(frozen=True, slots=True)
class TopicGuarantee:
    """A topic's ``guarantee``, and the exceptions that ``weakens`` it, as sentences; from the workers' declaration."""

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
    """A group's guarantee. Raises ConfigError for an unknown group, GroupForgotten for one that was forgotten."""
    row = known_group(tx)
    refuse_forgotten(row)
    positions = tx.execute(STATUS["positions"], names=[tx.group]).all()
    declared = row.declared or {}
    topics = sorted({*declared, *(position.topic for position in positions)})
    stops = {
        (position.topic, position.partition): position.stop_kind
        for position in positions
        if position.stop_kind is not None
    }
    return Explanation(
        tx.group, row.version, tuple(_topic(topic, declared.get(topic), row.version, stops) for topic in topics)
    )


def _topic(
    topic: str, declared: Mapping[str, Any] | None, version: int, stops: Mapping[tuple[str, int], str]
) -> TopicGuarantee:
    stopped = [
        f"partition {number} is stopped: {kind}" for (name, number), kind in sorted(stops.items()) if name == topic
    ]
    if declared is None:
        unknown = "no worker of this topic has stored a declaration, so it is not known how records are applied"
        return TopicGuarantee(topic, (), (unknown, *stopped), None)
    weakens = [str(weakness) for weakness in declared.get("weakens", ())]
    if declared.get("version") != version:
        weakens.append(
            f"declared by version {declared.get('version')}, but the group is at {version}: it may be outdated"
        )
    return TopicGuarantee(topic, tuple(_guarantee(declared)), (*weakens, *stopped), dict(declared))


def _guarantee(declared: Mapping[str, Any]) -> Iterator[str]:
    yield "each record is applied exactly once: its rows and its offset are committed in one Postgres transaction"
    for sink in declared.get("sinks", ()):
        tables = ", ".join(sink.get("tables", ()))
        if sink.get("aggregates"):
            key = ", ".join(sink.get("key", ()))
            yield f"{sink['kind']} adds each record to the row of its {key} in {tables}: the order does not matter"
        elif "guarded" not in sink:
            yield f"{sink['kind']} writes a record's rows to {tables}"
        else:
            rule = "an older record never replaces a newer row" if sink["guarded"] else "the record read last wins"
            yield f"{sink['kind']} keeps one row for each {', '.join(sink.get('key', ()))} in {tables}: {rule}"
    if declared.get("handler"):
        written = f", which writes {', '.join(declared['writes'])}," if declared.get("writes") else ""
        yield f"handler {declared['handler']}{written} is called in the same transaction"
    attempts, policy = declared.get("attempts"), str(declared.get("on_poison"))
    yield f"a record that cannot be applied ({attempts} attempts of a handler) {_POISON.get(policy, policy)}"
    if (order := declared.get("retry_order", "partition")) != "partition":
        yield f"while a record waits for its retry, {_RETRY_ORDER.get(order, order)}"
    if declared.get("keep_key_order"):
        yield "later records of a dead letter's key wait as dead letters, too: each key's order is kept"
    if declared.get("delay_seconds"):
        yield f"records are applied {declared['delay_seconds']:g} s after they were produced, not before"
