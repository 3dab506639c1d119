"""What a group has applied, of the topics that a job reads."""

from __future__ import annotations

from collections.abc import Collection

from seekpoint.errors import ConfigError
from seekpoint.ledger import Ledger
from seekpoint.ledger.positions import Position


def applied(ledger: Ledger, topics: str | Collection[str] | None = None) -> list[Position]:
    """The positions of the ledger's group in these topics (by default all), as of one moment.

    Raises ConfigError for a group or a topic that the ledger does not have.
    """
    found = ledger.read()
    if not found:
        raise ConfigError(
            f"the ledger in schema {ledger.schema!r} has no offsets of group {ledger.group!r}: correct the name or the "
            "schema (Ledger(engine, group, schema=...)), or start a worker once"
        )
    known = {at.partition.topic for at in found}
    wanted = known if topics is None else {topics} if isinstance(topics, str) else set(topics)
    if strange := sorted(wanted - known):
        raise ConfigError(
            f"group {ledger.group!r} has no offsets of {', '.join(strange)}; it reads {', '.join(sorted(known))}"
        )
    return [at for at in found if at.partition.topic in wanted]
