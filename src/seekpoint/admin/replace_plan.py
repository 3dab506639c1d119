"""Plans to replace a group with another one: compares the two, and refuses with every reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from shlex import quote
from typing import Any

from sqlalchemy import Row

from seekpoint.admin.exchange_tables import obstacles, pairs
from seekpoint.admin.groups import known_group
from seekpoint.admin.table_dependants import Path
from seekpoint.errors import ConfigError, Fenced
from seekpoint.ledger import GroupLedger
from seekpoint.ledger.claim import refuse_forgotten
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import FORGET, REPLACE, RESETS
from seekpoint.records import Partition, numbered

MOST = 10  # most dead letters that a refusal names
MOVES = ["reset", "forget", "undo forget"]  # actions after which a position means something else
PAUSES = ["pause", "resume"]


def pauser_of_old(new: str) -> str:
    """``paused_by`` of the old group while it waits to be replaced."""
    return f"replacement by {new}"


def pauser_of_new(old: str) -> str:
    """``paused_by`` of the new group, after it has replaced the old one."""
    return f"replacement of {old}"


@dataclass(frozen=True, slots=True)
class ReplacePlan:
    """A plan to replace the tables and positions of ``group`` with those of the group ``by``.

    ``tables`` are pairs of a live table and its replacement. ``behind`` is how many offsets, including control records,
    ``by`` still has to pass to reach the group's positions. ``differences`` are open dead letters, stops and retries
    that only one of the groups has. ``was_paused``: an operator has paused the group, which stays paused. ``is_done``:
    it was replaced before.
    """

    group: str
    by: str
    version_from: int
    version_to: int
    tables: tuple[tuple[str, str], ...]
    was_paused: bool
    behind: int
    differences: tuple[str, ...]
    is_done: bool
    last_moves: tuple[int | None, int | None]
    consequences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two groups and their positions, read in one transaction."""

    old: Row[Any]
    new: Row[Any]
    old_rows: Mapping[Partition, Row[Any]]
    new_rows: Mapping[Partition, Row[Any]]

    @property
    def is_done(self) -> bool:
        """Whether the new group has replaced the old one."""
        return bool(self.new.paused and self.new.paused_by == pauser_of_new(self.old.name))

    @property
    def waits(self) -> bool:
        """Whether the old group is paused for this replacement."""
        return bool(self.old.paused and self.old.paused_by == pauser_of_old(self.new.name))

    def behind(self, goal: Mapping[Partition, int] | None = None) -> dict[Partition, int]:
        """The offsets that the new group has yet to pass to ``goal`` (None: the old one's positions), by partition."""
        goal = {partition: row.next_offset for partition, row in self.old_rows.items()} if goal is None else goal
        positions = {partition: row.next_offset for partition, row in self.new_rows.items()}
        missing = {
            partition: offset - positions.get(partition, self.old_rows[partition].first_offset)
            for partition, offset in goal.items()
        }
        return {partition: count for partition, count in missing.items() if count > 0 or partition not in positions}


def read_pair(tx: GroupConnection, new: str, *, locked: bool = False) -> Pair:
    """Both groups, and their positions; ``locked`` locks the rows until the transaction ends.

    Raises ConfigError for an unknown group, GroupForgotten for a forgotten one.
    """
    if new == tx.group:
        raise ConfigError(f"group {new!r} cannot replace itself: name the group that runs the newer handler with --by")
    names = {"old_group": tx.group, "new_group": new}
    groups = {row.name: row for row in tx.execute(REPLACE["lock_groups"] if locked else REPLACE["groups"], **names)}
    for name in (tx.group, new):
        if name not in groups:
            known_group(GroupConnection(tx.connection, tx.schema, name))
        refuse_forgotten(groups[name])
    rows: dict[str, dict[Partition, Row[Any]]] = {tx.group: {}, new: {}}
    if locked:
        tx.execute(REPLACE["lock_positions"], **names)
    for row in tx.execute(REPLACE["positions"], **names):
        rows[row.consumer_group][Partition(row.topic, row.partition)] = row
    return Pair(groups[tx.group], groups[new], rows[tx.group], rows[new])


def plan_replace(ledger: GroupLedger, new: str) -> ReplacePlan:
    """A plan to replace the group.

    Raises the errors of :func:`read_pair`, and Fenced with every reason why the group cannot be replaced.
    """
    with ledger.begin() as tx:
        pair = read_pair(tx, new)
        tables = {} if pair.is_done else require_replaceable(tx, pair)
        behind = sum(pair.behind().values())
        return ReplacePlan(
            group=ledger.group,
            by=new,
            version_from=pair.old.version,
            version_to=pair.new.version,
            tables=tuple((".".join(live), ".".join(successor)) for live, successor in tables.items()),
            was_paused=pair.old.paused and not pair.waits,
            behind=behind,
            differences=() if pair.is_done else tuple(differences(tx, pair)),
            is_done=pair.is_done,
            last_moves=last_moves(tx, pair),
            consequences=() if pair.is_done else tuple(_consequences(pair, tables, behind)),
        )


def _consequences(pair: Pair, tables: Mapping[Path, Path], behind: int) -> Iterator[str]:
    old, new = pair.old.name, pair.new.name
    yield (
        f"{new} still has {numbered(behind, 'offset')} to pass to reach the positions of {old}; {old} continues "
        "meanwhile"
    )
    if pair.waits:
        yield f"{old} is already paused for this by an earlier run of the command, which this run completes"
    elif pair.old.paused:
        yield f"{old} is paused by {pair.old.paused_by or 'unknown'}, and stays paused"
    else:
        yield f"then {old} is paused, until {new} has passed its positions"
    for live, successor in tables.items():
        yield f"{'.'.join(successor)} becomes {'.'.join(live)}, and vice versa"
    yield (
        f"positions, dead letters and lost ranges are exchanged with their tables; {old} is then at handler version "
        f"{pair.new.version}, so that workers of version {pair.old.version} end"
    )
    yield f"{new} is paused: forget it, and drop its tables, once {old} runs well"


def last_moves(tx: GroupConnection, pair: Pair) -> tuple[int | None, int | None]:
    """The id of each group's last reset, forget or undo: after a later action its positions mean something else."""
    old, new = (
        _of(tx, row.name).execute(RESETS["last_action"], actions=MOVES).scalar_one() for row in (pair.old, pair.new)
    )
    return old, new


def _of(tx: GroupConnection, group: str) -> GroupConnection:
    return GroupConnection(tx.connection, tx.schema, group)


# -- why it is refused -----------------------------------------------------------------------------------------------


def require_replaceable(tx: GroupConnection, pair: Pair) -> dict[Path, Path]:
    """Each live table with its successor. Raises Fenced, with every reason, if the group cannot be replaced."""
    declared = {group: {name for row in rows for name in row.tables or ()} for group, rows in _declared(tx).items()}
    tables = pairs(tx.connection, declared.get(pair.old.name, set()), declared.get(pair.new.name, set()))
    reasons = [*_of_groups(tx, pair), *_of_positions(pair)]
    if isinstance(tables, list):
        raise _refused(pair, [*reasons, *tables])
    reasons += [*_of_writers(pair, declared), *obstacles(tx.connection, tables)]
    if reasons:
        raise _refused(pair, reasons)
    return tables


def _refused(pair: Pair, reasons: list[str]) -> Fenced:
    return Fenced(f"{pair.new.name} cannot replace {pair.old.name}: {'; '.join(reasons)}")


def _declared(tx: GroupConnection) -> dict[str, list[Row[Any]]]:
    rows: dict[str, list[Row[Any]]] = {}
    for row in tx.execute(REPLACE["tables"]):
        rows.setdefault(row.consumer_group, []).append(row)
    return rows


def _of_groups(tx: GroupConnection, pair: Pair) -> Iterator[str]:
    old, new = pair.old, pair.new
    if old.cluster_id != new.cluster_id:
        yield f"{old.name} holds offsets of Kafka cluster {old.cluster_id}, {new.name} of {new.cluster_id}"
    if new.version <= old.version:  # workers of the old handler would write into the new tables
        yield (
            f"{new.name} runs handler version {new.version}, but {old.name} is at {old.version}: give its pipeline a "
            f"version above {old.version}, so that workers of the older handler end"
        )
    begun = _of(tx, new.name).execute(FORGET["last_begin"]).scalar_one()
    if resets := [row for row in _of(tx, new.name).execute(RESETS["last_resets"]) if row.id > begun]:
        partition = Partition(resets[0].topic, resets[0].partition)
        yield (
            f"{new.name} was reset ({partition}), so its tables may lack records or have them twice: begin again "
            "under a new group name, with empty tables"
        )
    for row in tx.execute(REPLACE["open_work"], old_group=old.name, new_group=new.name):
        yield f"{row.consumer_group} has an open {row.kind}, {row.id}: let it end, or abort it"


def _of_positions(pair: Pair) -> Iterator[str]:
    old, new = pair.old.name, pair.new.name
    topics, others = ({partition.topic for partition in rows} for rows in (pair.old_rows, pair.new_rows))
    for topic in sorted(topics - others):
        yield f"{new} has no stored offset for topic {topic!r}, which {old} reads: start its worker, with that topic"
    for topic in sorted(others - topics):
        yield f"{old} has no stored offset for topic {topic!r}, which {new} reads"
    if not topics:
        yield f"{old} has no stored offset: there is nothing to replace"
    for partition, row in pair.new_rows.items():
        live = pair.old_rows.get(partition)
        if live is None:
            if partition.topic in topics:
                yield (
                    f"{old} has no stored offset for {partition} yet, and {new} has one: let a worker of {old} claim it"
                )
        elif live.topic_id != row.topic_id:
            yield f"{partition}: the offsets of {old} belong to topic id {live.topic_id}, of {new} to {row.topic_id}"
        elif live.first_offset < row.first_offset:
            yield (
                f"{partition}: {new} began at offset {row.first_offset}, but {old} at {live.first_offset}: rows of the "
                "records in between would be lost. Start the new group from the first record; if retention has removed "
                "it, the table cannot be built again"
            )


def _of_writers(pair: Pair, declared: Mapping[str, set[str]]) -> Iterator[str]:
    tables = declared[pair.old.name] | declared[pair.new.name]
    for group, names in sorted(declared.items()):
        if group not in {pair.old.name, pair.new.name} and (shared := sorted(names & tables)):
            yield f"group {group!r} writes {', '.join(shared)}, too, and the exchange would move its rows"


# -- open dead letters and retries ------------------------------------------------------------------------------------


def differences(tx: GroupConnection, pair: Pair) -> Iterator[str]:
    """The open dead letters, stops and retries that only one of the groups has, as sentences.

    Dead letters count only if both groups have passed their records: otherwise the other group may still get them.
    """
    names = {pair.old.name: pair.new, pair.new.name: pair.old}
    dead_letters: dict[str, list[Row[Any]]] = {pair.old.name: [], pair.new.name: []}
    for row in tx.execute(REPLACE["dead_letters_of_one"], old_group=pair.old.name, new_group=pair.new.name):
        positions = [side.get(Partition(row.topic, row.partition)) for side in (pair.old_rows, pair.new_rows)]
        if all(position is not None and row.record_offset < position.next_offset for position in positions):
            dead_letters[row.consumer_group].append(row)
    for group, of_group in dead_letters.items():
        if of_group:
            named = ", ".join(
                f"{row.topic}/{row.partition}/{row.record_offset} (id {row.id})" for row in of_group[:MOST]
            )
            suffix = f" and {len(of_group) - MOST:,} more" if len(of_group) > MOST else ""
            yield f"{group} has open dead letters that {names[group].name} does not have: {named}{suffix}"
    for row in chain(pair.old_rows.values(), pair.new_rows.values()):
        counterpart = (pair.new_rows if row.consumer_group == pair.old.name else pair.old_rows).get(
            Partition(row.topic, row.partition)
        )
        trouble = _trouble(row)
        if trouble and (counterpart is None or _trouble(counterpart) != trouble):
            yield f"{row.consumer_group} {trouble}, and {names[row.consumer_group].name} does not"


def _trouble(row: Row[Any]) -> str:
    """The trouble at a position: a stop, or a record that is being retried."""
    partition = Partition(row.topic, row.partition)
    if row.stop_kind is not None:
        return f"is stopped at {partition}/{row.stop_offset} ({row.stop_kind})"
    if row.attempts and row.attempt_offset is not None and row.attempt_offset >= row.next_offset:
        return f"tries {partition}/{row.attempt_offset} again"
    return ""


def accept_by(plan: ReplacePlan) -> str:
    """The remedies for differences: close the dead letters, or accept the differences."""
    return (
        f"replay or discard them (seekpoint dead-letters list {quote(plan.group)}), or accept the differences: "
        "--accept-differences (replace_group(plan, accept_differences=True)); dead letters go with their tables"
    )
