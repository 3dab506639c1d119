"""``seekpoint status``: the positions of a group, partition by partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Self

import typer
from sqlalchemy import Engine, select

from seekpoint.cli.errors import FAILED, masked, plain
from seekpoint.cli.options import KafkaOptions, LedgerOptions, command, require_brokers
from seekpoint.cli.output import answer, moment, print_table
from seekpoint.errors import KafkaUnavailable, StandbyRequired
from seekpoint.kafka.identity import Identity
from seekpoint.kafka.watermarks import Watermarks
from seekpoint.ledger import Ledger, Position, Stop
from seekpoint.ledger.claim import DELAYED, TRANSIENT
from seekpoint.ledger.dead_letters import DeadLetters
from seekpoint.ledger.tables import consumer_group, in_schema
from seekpoint.records import Partition

KAFKA_TIMEOUT = 10.0  # seconds


@dataclass(frozen=True, slots=True)
class Line:
    """One partition. ``end`` is after the last record that can be read; it and ``lag`` need the brokers.

    ``lag`` is None, too, where ``next`` is past ``end``: it is not known. ``retry`` is the record
    that it waits in front of, ``stop`` why it is stopped; ``suspects_left`` counts the offsets that may hold a record
    which crashes its process; ``reload`` is one of the group that workers of a newer version wait for.
    """

    topic: str
    partition: int
    next: int
    end: int | None
    lag: int | None
    epoch: int
    owner: str | None
    committed_at: datetime | None
    dead_letters: int
    retry: RetryStatus | None
    stop: Stop | None
    suspects_left: int | None
    reload: StandbyRequired | None

    def as_dict(self) -> dict[str, Any]:
        """The line for machines."""
        retry, stop, run = self.retry, self.stop, self.reload
        return {name: getattr(self, name) for name in self.__slots__} | {
            "retry": None if retry is None else retry.as_dict(),
            "stop": None
            if stop is None
            else asdict(stop) | {"message": _plain(stop.message), "choices": list(map(_plain, stop.choices))},
            "reload": None
            if run is None
            else {"run": run.run, "state": run.state, "version": run.version, "driver": run.driver},
        }

    @property
    def problems(self) -> list[str]:
        """What is not as it should be: for people, one message each."""
        where, found = Partition(self.topic, self.partition), []
        if self.stop is not None:
            at = self.stop
            choices = "".join(f"\n  - {_plain(choice)}" for choice in at.choices)
            since = f"{at.at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
            found.append(f"{where} stopped at offset {at.offset} on {since} ({at.kind}): {_plain(at.message)}{choices}")
        elif self.retry is not None and self.retry.has_stopped:
            found.append(self.retry.sentence())
        if self.end is not None and self.next > self.end:
            found.append(
                f"{where}: the stored offset {self.next} is past the end of the log ({self.end}): nothing will be read "
                "before that is decided, with Ledger.reset_offset()"
            )
        return found


@command
def status(
    group: Annotated[str, typer.Argument(help="The group's name, as the pipeline declares it.")],
    *,
    ledger: LedgerOptions,
    brokers: KafkaOptions,
) -> None:
    """Show the positions of a group: next offset, end of log, lag, open dead letters, epoch, owner of each partition.

    Below, who paused the group and why; what each stopped partition stopped for, with the choices; a line for each
    partition that waits in front of a record that failed: why, and when it is tried again; and for a reload that
    workers of a newer handler version wait for. Without brokers (--kafka, --kafka-config), or where none answers,
    end and lag are empty. Reads only; workers are not disturbed. Exits with 1 where a partition is stopped, or is past
    the end of its log, where no broker answers, and where a topic is gone or was created again.
    """
    engine, settings = ledger.engine(), brokers.settings()
    if settings:
        require_brokers(settings)
    known_group(engine, group, ledger.schema)
    stored = Ledger(engine, group, schema=ledger.schema)
    positions, dead, runs = stored.read(), DeadLetters(stored).count_open(), stored.open_reloads()
    try:
        ends, doubts = _ends(positions, settings) if settings else ({}, [])
    except KafkaUnavailable as error:  # the ledger is shown all the same
        ends, doubts = {}, [f"{error}; end and lag are not known"]
    pause = _pause(engine, group, ledger.schema)
    run = runs[0] if runs else None  # two of one group cannot be open: they write the same tables
    lines = [_line(at, ends.get(at.partition), dead.get(at.partition, 0), run) for at in positions]
    if ledger.as_json:
        answer([line.as_dict() | {"paused": pause} for line in lines], as_json=True)
    else:
        _print_table(group, lines)
        if pause is not None:
            paused = f"{group} is paused by {pause['by'] or 'unknown'}: {pause['reason'] or 'no reason given'}"
            typer.echo(plain(paused))
        _print_problems(lines)
        if run is not None:
            typer.echo(plain(str(run)))
    for doubt in doubts:
        typer.echo(f"warning: {doubt}", err=True)
    if doubts or any(line.problems for line in lines):
        raise typer.Exit(FAILED)


def _print_problems(lines: Sequence[Line]) -> None:
    """What partitions wait for, and what is wrong with them."""
    for line in lines:
        if line.retry is not None and not line.retry.has_stopped:
            typer.echo(line.retry.sentence())
        if line.suspects_left is not None:
            typer.echo(
                f"{plain(line.topic)}/{line.partition}: its owners died without progress; {line.suspects_left} offsets "
                "are left that are applied in small parts, to find a record that crashes its process"
            )
        for problem in line.problems:
            typer.echo(problem)


def _pause(engine: Engine, group: str, schema: str) -> dict[str, str | None] | None:
    """By whom the group is paused, and why: an abandoned batch is found by it."""
    at = consumer_group.c
    asked = select(at.paused_by, at.paused_reason).where(at.name == group, at.paused)
    with engine.connect() as connection:
        row = connection.execute(asked.execution_options(**in_schema(schema))).one_or_none()
    return None if row is None else {"by": row.paused_by, "reason": row.paused_reason}


def known_group(engine: Engine, group: str, schema: str) -> None:
    """Pass if the ledger knows the group; else say which ones it knows, and exit."""
    with engine.connect() as connection:
        names = connection.scalars(select(consumer_group.c.name).execution_options(**in_schema(schema))).all()
    if group not in names:
        known = f"it knows {', '.join(sorted(names))}" if names else "no worker has claimed anything yet"
        typer.echo(f"error: the ledger in schema {schema!r} has no group {group!r}; {known}", err=True)
        raise typer.Exit(FAILED)


def _ends(positions: Sequence[Position], settings: Mapping[str, Any]) -> tuple[dict[Partition, int], list[str]]:
    """Where the logs end, of topics that are still the ones that were read; and what is strange about the others."""
    identity = Identity(settings, KAFKA_TIMEOUT)
    identity.cluster_id()  # brokers that do not answer are reported first
    ids = identity.ask({at.partition.topic for at in positions}).result()
    doubts = {}
    for at in positions:
        topic, now = at.partition.topic, ids[at.partition.topic]
        if now is None:
            doubts[topic] = f"topic {topic!r} does not exist on these brokers"
        elif now != at.topic_id:
            doubts[topic] = f"topic {topic!r} is not the one that was read: it was created again, or lives elsewhere"
    watermarks = Watermarks(identity, committed=settings.get("isolation.level") != "read_uncommitted")
    same = [at.partition for at in positions if at.partition.topic not in doubts]
    return {partition: edge.offset for partition, edge in watermarks.ends(same).items()}, list(doubts.values())


def _line(at: Position, end: int | None, dead: int, run: StandbyRequired | None) -> Line:
    return Line(
        topic=at.partition.topic,
        partition=at.partition.number,
        next=at.next_offset,
        end=end,
        lag=None if end is None or at.next_offset > end else end - at.next_offset,
        epoch=at.epoch,
        owner=None if at.owner is None else str(at.owner),
        committed_at=at.committed_at,
        dead_letters=dead,
        retry=RetryStatus.of(at),
        stop=at.stop,
        suspects_left=None if at.suspect_end is None else at.suspect_end - at.next_offset,
        reload=run,
    )


def _print_table(group: str, lines: Sequence[Line]) -> None:
    numeric = ("partition", "next", "end", "lag", "dead letters", "epoch")
    rows = (
        (
            *(line.topic, line.partition, line.next, line.end, line.lag, line.dead_letters, line.epoch),
            (line.owner or "")[:8],
            moment(line.committed_at),
        )
        for line in lines
    )
    print_table(group, ("topic", *numeric, "owner", "committed at"), rows, numeric=numeric)


def _plain(text: str) -> str:
    return plain(masked(text))


NEVER_CAME_BACK = "the process that tried it never came back"


@dataclass(frozen=True, slots=True)
class RetryStatus:
    """An attempt that is on record. ``error`` is None where its process died in it; ``then`` follows the last one.

    ``retry_at`` is None for a partition that has stopped, and while the record is being tried (``running``).
    """

    partition: Partition
    offset: int
    attempts: int
    allowed: int | None
    crashes: int
    running: bool
    error: str | None
    retry_at: datetime | None
    then: str | None

    @classmethod
    def of(cls, at: Position) -> Self | None:
        """What the row says; None for a partition that waits only for records."""
        if at.attempt_offset is None or at.attempts < 1 or at.attempt_offset < at.next_offset:
            return None
        return cls(
            at.partition,
            at.attempt_offset,
            at.attempts,
            at.attempts_allowed,
            at.attempt_crashes,
            at.attempt_running,
            None if at.attempt_error is None else plain(masked(at.attempt_error)),
            None if at.attempt_running else at.retry_at,
            at.attempt_policy,
        )

    @property
    def has_stopped(self) -> bool:
        """Whether it waits for an operator."""
        return not self.running and self.retry_at is None and self.error is not None

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "partition"} | {
            "stopped": self.has_stopped
        }

    def sentence(self, now: datetime | None = None) -> str:
        """For people."""
        head = f"{self.partition} waits in front of offset {self.offset}"
        if self.running:
            died = f"; {self.crashes} before it ended with the process" if self.crashes else ""
            before = "" if self.error is None else f"; before: {self.error}"
            return f"{head}: try {self._count()} has begun, alone in its transaction{died}{before}{self._after()}"
        if self.then == DELAYED:
            return f"{head}: {self.error}; {self._next(now or datetime.now(UTC), 'due')}"
        error = self.error or NEVER_CAME_BACK
        if self.has_stopped:
            move = f"Ledger.reset_offset({self.partition.topic!r}, {self.partition.number}, to={self.offset + 1}"
            return (
                f"{self.partition} has stopped in front of offset {self.offset}: {error}; {self._tried()}. Fix the "
                f"codec, row= or handler and start the worker again; or skip it: {move}, log=None, lost='poison', "
                "reason=...)"
            )
        return f"{head}: {error}; {self._tried()}, {self._next(now or datetime.now(UTC))}{self._after()}"

    def _count(self) -> str:
        return str(self.attempts) if self.allowed is None else f"{self.attempts} of {self.allowed}"

    def _tried(self) -> str:
        died = f", {self.crashes} of which ended with the process" if self.crashes else ""
        times = "time" if self._count() == "1" else "times"
        return f"tried {self._count()} {times}{died}"

    def _next(self, now: datetime, what: str = "next try") -> str:
        if self.retry_at is None:
            return "next try by the worker that takes over"
        at = self.retry_at.astimezone(UTC)
        day = "%Y-%m-%d " if abs(at - now) > timedelta(hours=12) else ""
        due = " (due; no worker has come to it)" if at < now - timedelta(seconds=5) else ""
        return f"{what} {at:{day}%H:%M:%S} UTC{due}"

    def _after(self) -> str:
        return "" if self.then is None else f", then {'stop' if self.then == TRANSIENT else self.then}"
