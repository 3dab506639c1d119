"""The tables to which a topic's records are written, as declared and as stored: one set per group and topic.

Otherwise two pipelines with one group name would divide a topic between their tables. A claim compares the tables with
the stored ones, under the lock of the group's row; see :mod:`seekpoint.ledger.claim`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from seekpoint.errors import ConfigError, DeclarationDiffers, HandlerOutdated
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import GROUPS

Tables = tuple[str, ...]
TablesArgument = Sequence[str] | Mapping[str, Sequence[str]]
"""Tables of the whole group, or those of each topic."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """The tables to which a process writes: ``everywhere`` for records of any topic, ``by_topic`` for those of one.

    ``accepts``: replace a different stored set of the same version. ``seen`` is how often each topic's set had been
    replaced when this process first read it: a later replacement makes the process outdated.
    """

    everywhere: Tables = ()
    by_topic: Mapping[str, Tables] = field(default_factory=dict)
    accepts: bool = False
    seen: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, tables: TablesArgument, *, accepts: bool = False) -> Declaration:
        """The declaration for the parameter ``tables=``. Raises ConfigError for a str."""
        if isinstance(tables, str):
            raise ConfigError(f"tables= takes several table names: write tables=[{tables!r}]")
        if isinstance(tables, Mapping):
            return cls(by_topic={topic: tuple(names) for topic, names in tables.items()}, accepts=accepts)
        return cls(everywhere=tuple(tables), accepts=accepts)

    @property
    def tables(self) -> Tables:
        """All tables, by the names given."""
        return tuple(sorted({*self.everywhere, *(name for names in self.by_topic.values() for name in names)}))

    def of_topic(self, topic: str) -> Tables:
        """The tables to which the topic's records are written; empty if not known."""
        return self.by_topic.get(topic, self.everywhere)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One topic's declared and stored tables. ``stored`` is None if this version has stored no set."""

    topic: str
    declared: Tables
    stored: Tables | None
    replaced: int  # how often the set was replaced at the same version

    @property
    def is_new(self) -> bool:
        return self.stored is None

    @property
    def differs(self) -> bool:
        return self.stored is not None and set(self.stored) != set(self.declared)


def compare(tx: GroupConnection, declaration: Declaration, version: int, topics: Collection[str]) -> list[Comparison]:
    """The declared and the stored tables of each topic; nothing for topics without declared tables."""
    named = {topic: names for topic in sorted(topics) if (names := declaration.of_topic(topic))}
    if not named:
        return []
    qualified = _qualified(tx, {name for names in named.values() for name in names})
    rows = {row.topic: row for row in tx.execute(GROUPS["tables_of_topics"], topics=sorted(topics))}
    compared = []
    for topic, names in named.items():
        row = rows.get(topic)
        is_stored = row is not None and row.tables is not None and row.version >= version
        declaration.seen.setdefault(topic, 0 if row is None else row.replaced)
        compared.append(
            Comparison(
                topic,
                tuple(sorted({qualified[name] for name in names})),
                tuple(row.tables) if is_stored and row is not None else None,
                0 if row is None else row.replaced,
            )
        )
    return compared


def require(group: str, declaration: Declaration, version: int, compared: Iterable[Comparison]) -> None:
    """Raise DeclarationDiffers or HandlerOutdated for the first topic whose stored tables differ (I2)."""
    for comparison in compared:
        if comparison.differs:
            raise _refusal(group, declaration, version, comparison)


def store(
    tx: GroupConnection, declaration: Declaration, version: int, compared: Iterable[Comparison]
) -> list[Comparison]:
    """Store new sets, and replace different ones if the process accepts that; under the lock of the group's row.

    Returns the replaced sets. Raises the errors of :func:`require`.
    """
    replaced = []
    for comparison in compared:
        if comparison.differs:
            if not declaration.accepts or comparison.replaced > declaration.seen[comparison.topic]:
                raise _refusal(tx.group, declaration, version, comparison)
            replaced.append(comparison)
        if comparison.differs or comparison.is_new:
            tx.execute(
                GROUPS["store_tables"],
                topic=comparison.topic,
                version=version,
                tables=list(comparison.declared),
                replacements=int(comparison.differs),
            )
    return replaced


def _refusal(
    group: str, declaration: Declaration, version: int, comparison: Comparison
) -> DeclarationDiffers | HandlerOutdated:
    stored, declared = comparison.stored or (), comparison.declared
    if comparison.replaced > declaration.seen[comparison.topic]:
        return HandlerOutdated(
            f"group {group!r} writes records of topic {comparison.topic!r} to {', '.join(stored)}, because a worker "
            "with accept_declaration has started since; this process is older, and writes them to "
            f"{', '.join(declared)}: deploy the newer pipeline"
        )
    return DeclarationDiffers(group, version, comparison.topic, stored=stored, declared=declared)


def _qualified(tx: GroupConnection, names: Collection[str]) -> dict[str, str]:
    """Each name with its Postgres schema, which this session's search_path determines.

    A table that does not exist gets the schema in which this session would create it.
    """
    return {row.name: row.qualified for row in tx.execute(GROUPS["qualified"], names=sorted(names))}
