"""``seekpoint status``: groups with their positions, lag and workers; once, again and again, or as a check."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from time import sleep
from typing import Annotated, Any, Literal, Never, Self

import typer
from rich.console import Console
from sqlalchemy import Engine
from typer.core import TyperCommand

from seekpoint import remedies
from seekpoint.admin import Admin, BrokersAway, GroupStatus, PartitionStatus, WorkerStatus
from seekpoint.admin import groups as admin_groups
from seekpoint.cli.errors import AWAY, FAILED, USAGE, masked, plain
from seekpoint.cli.options import KafkaOptions, LedgerOptions, ago, command, require_brokers
from seekpoint.cli.output import answer, print_table, said_after
from seekpoint.cli.progress_bar import ago_of, lasting
from seekpoint.ledger import Position
from seekpoint.ledger.claim import DELAYED, TRANSIENT
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.records import Partition

WATCH = 2  # seconds between two looks
SLOW = 2.0  # seconds after which a person at the terminal wonders
COLUMNS = ("topic", "partition", "next", "end", "lag", "dead", "epoch", "owner", "committed", "lag time", "headroom")
NUMERIC = ("partition", "next", "end", "lag", "lag time", "headroom", "dead", "epoch", "pid", "version")


class StatusCommand(TyperCommand):
    """``--watch`` may be without its value, for which Typer has no option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The words, with the seconds after a bare ``--watch``."""
        return super().parse_args(ctx, list(_with_seconds(args)))


def _with_seconds(words: Sequence[str]) -> Iterator[str]:
    for n, word in enumerate(words):
        yield word
        if word == "--watch" and "--" not in words[:n] and not re.fullmatch(r"[\d.]+", (*words, "")[n + 1]):
            yield str(WATCH)


@command
def status(
    groups: Annotated[
        list[str] | None, typer.Argument(metavar="[GROUP]...", help="Names of groups. Default: all.")
    ] = None,
    *,
    watch: Annotated[
        float | None,
        typer.Option(
            "--watch",
            metavar="[SECONDS]",
            help=f"Show it again every so many seconds ({WATCH} without a number), until Ctrl-C.",
            min=0.1,
        ),
    ] = None,
    sort: Annotated[
        Literal["name", "lag", "headroom"],
        typer.Option(help="Of the partitions of a group: the worst first, or by name."),
    ] = "name",
    check: Annotated[
        bool, typer.Option("--check", help="Print what is wrong alone; exit with 1 if anything is.")
    ] = False,
    max_lag: Annotated[
        int | None, typer.Option(min=0, help="With --check: the greatest lag of a partition, in records.")
    ] = None,
    max_age: Annotated[
        str | None, typer.Option(metavar="TIME", help="With --check: how old a next record may be: 30s, 5m.")
    ] = None,
    ledger: LedgerOptions,
    brokers: KafkaOptions,
) -> None:
    """Show groups: positions, ends of logs, lag in records and in time, retention headroom, dead letters, workers.

    Below, who paused the group and why; what each stopped partition stopped for, with the choices; which partitions
    wait for a record that failed, and until when; workers' troubles, and what they wait for (a rebalance, a reload).
    Without brokers (--kafka, --kafka-config), or where none answers, end, lag and headroom are of the workers' samples,
    "as of" says how old these are, and they are empty after three minutes. Reads only. Exits with 1
    where a partition is stopped, or past the end of its log, and where a topic is gone, was created again or has no
    broker's answer; with 3 where none answers at all (--check: by the samples).
    """
    if not check and (max_lag is not None or max_age is not None):
        typer.echo("error: --max-lag and --max-age are limits of --check", err=True)
        raise typer.Exit(USAGE)
    if check and watch is not None:
        typer.echo("error: --check looks once: leave --watch out", err=True)
        raise typer.Exit(USAGE)
    age = None if max_age is None else ago(max_age, "--max-age")
    engine, settings = ledger.engine(), brokers.settings()
    if settings:
        require_brokers(settings)
    for name in groups or ():
        known_group(engine, name, ledger.schema)
    admin = Admin(engine, settings, schema=ledger.schema)
    if check:
        _check(admin, groups or [], max_lag, age, as_json=ledger.as_json)
        return
    if watch is not None:
        with suppress(KeyboardInterrupt):
            _watch(lambda: _show(admin, groups or [], sort, as_json=ledger.as_json), watch)
    elif code := _show(admin, groups or [], sort, as_json=ledger.as_json):
        raise typer.Exit(code)


def _watch(show: Callable[[], object], seconds: float) -> Never:
    """Show it again and again; a terminal is cleared in between."""
    while True:
        show()
        sleep(seconds)
        Console().clear()


def _check(
    admin: Admin, names: Sequence[str], max_lag: int | None, max_age: timedelta | None, *, as_json: bool
) -> None:
    """Print what is wrong, for probes; doubts about the brokers' answers are no failure where lag is known."""
    found, doubts = _read(admin, names)
    failures = [each for group in found for each in group.failures(max_lag=max_lag, max_age=max_age)]
    if not found:
        failures.append(f"the ledger in schema {admin.schema!r} has no group: no worker has claimed anything yet")
    answer({"ok": not failures, "failures": failures}, *failures, as_json=as_json)
    _warn(doubts)
    if failures:
        raise typer.Exit(FAILED)


def _show(admin: Admin, names: Sequence[str], sort: str, *, as_json: bool) -> int:
    """Print the groups once. Returns the exit code: a group's problem counts more than brokers that are away."""
    found, doubts = _read(admin, names)
    lines = {group.name: [Line(group, at) for at in sorted(group.partitions, key=_ORDERS[sort])] for group in found}
    if as_json:
        answer([line.as_dict() for group in found for line in lines[group.name]], as_json=True)
    else:
        for group in found:
            _print_group(group, lines[group.name])
    _warn(doubts)
    if any(line.problems for each in lines.values() for line in each):
        return FAILED
    return min((AWAY if isinstance(each, BrokersAway) else FAILED for each in doubts), default=0)


def _read(admin: Admin, names: Sequence[str]) -> tuple[list[GroupStatus], list[str]]:
    with said_after(SLOW, "no answer of the brokers yet; where none comes, the ledger is shown with the last samples"):
        return admin.status(names)


def _by_name(at: PartitionStatus) -> Any:
    return at.position.partition


def _by_lag(at: PartitionStatus) -> Any:
    """The greatest first; before it, what is not known."""
    return -math.inf if at.lag is None else -at.lag, at.position.partition


def _by_headroom(at: PartitionStatus) -> Any:
    """The least first; last, what is not known."""
    seconds = math.inf if at.headroom_seconds is None else at.headroom_seconds
    return seconds, math.inf if at.headroom is None else at.headroom, at.position.partition


_ORDERS = {"name": _by_name, "lag": _by_lag, "headroom": _by_headroom}


def _warn(doubts: Sequence[str]) -> None:
    for doubt in doubts:
        typer.echo(f"warning: {doubt}", err=True)


@dataclass(frozen=True, slots=True)
class Line:
    """One partition of a group."""

    group: GroupStatus
    at: PartitionStatus

    def as_dict(self) -> dict[str, Any]:
        """The line for machines."""
        group, at, stored = self.group, self.at, self.at.position
        retry, stop, run = RetryStatus.of(stored), stored.stop, group.reload
        return {
            "group": group.name,
            "topic": stored.partition.topic,
            "partition": stored.partition.number,
            "next": stored.next_offset,
            "end": at.end,
            "lag": at.lag,
            "lag_seconds": at.lag_seconds,
            "headroom": at.headroom,
            "headroom_seconds": at.headroom_seconds,
            "sampled_at": at.sampled_at,
            "is_sampled": at.is_sampled,
            "epoch": stored.epoch,
            "owner": None if stored.owner is None else str(stored.owner),
            "host": at.host,
            "pid": at.pid,
            "worker": None if self.worker is None else {"state": self.worker.state, "trouble": self.worker.trouble},
            "committed_at": stored.committed_at,
            "dead_letters": at.dead_letters,
            "blocked": at.blocked,
            "retry": None if retry is None else retry.as_dict(),
            "stop": None
            if stop is None
            else asdict(stop) | {"message": _plain(stop.message), "choices": list(map(_plain, stop.choices))},
            "suspects_left": None if stored.suspect_end is None else stored.suspect_end - stored.next_offset,
            "reload": None
            if run is None
            else {"run": run.run, "state": run.state, "version": run.version, "driver": run.driver},
            "paused": None if group.pause is None else {"by": group.pause.by, "reason": group.pause.reason},
        }

    @property
    def worker(self) -> WorkerStatus | None:
        """The one that owns the partition; None where none does, or its row is gone."""
        owner = self.at.position.owner
        return next((worker for worker in self.group.workers if worker.owner == owner), None)

    @property
    def problems(self) -> list[str]:
        """What is not as it should be: for people, one message each."""
        stored, found = self.at.position, []
        where, retry = stored.partition, RetryStatus.of(stored)
        if stored.stop is not None:
            at = stored.stop
            choices = "".join(f"\n  - {_plain(choice)}" for choice in at.choices)
            since = f"{at.at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
            found.append(f"{where} stopped at offset {at.offset} on {since} ({at.kind}): {_plain(at.message)}{choices}")
        elif retry is not None and retry.has_stopped:
            found.append(retry.sentence(self.group.name))
        if self.at.is_past_end:
            found.append(
                f"{where}: the stored offset {stored.next_offset} is past the end of the log ({self.at.end}): nothing "
                f"will be read before that is decided: {remedies.reset_to_offset(self.group.name, where)}"
            )
        return found

    @property
    def waits(self) -> Iterator[str]:
        """What it waits for by itself, and records that it has passed and that wait for a decision."""
        stored, retry = self.at.position, RetryStatus.of(self.at.position)
        if self.at.blocked:
            yield (
                f"{plain(stored.partition.topic)}/{stored.partition.number}: {self.at.dead_letters:,} records that the "
                f"lag does not count are not applied: {self.at.dead_letters - self.at.blocked:,} dead letters, and "
                f"{self.at.blocked:,} blocked behind their keys"
            )
        if retry is not None and not retry.has_stopped:
            yield retry.sentence(self.group.name)
        if stored.suspect_end is not None:
            yield (
                f"{plain(stored.partition.topic)}/{stored.partition.number}: its owners died without progress; "
                f"{stored.suspect_end - stored.next_offset} offsets are left that are applied in small parts, to find "
                "a record that crashes its process"
            )


def _print_partitions(group: GroupStatus, lines: Sequence[Line]) -> None:
    rows: list[Sequence[object]] = [_row(line) for line in lines]
    as_of: tuple[str, ...] = ()
    if any(line.at.age is not None for line in lines):  # else all of it is of now
        as_of, rows = ("as of",), [(*row, _as_of(line)) for row, line in zip(rows, lines, strict=True)]
    print_table(group.name, (*COLUMNS, *as_of), rows, numeric=NUMERIC)


def _print_group(group: GroupStatus, lines: Sequence[Line]) -> None:
    _print_partitions(group, lines)
    if group.workers:
        heads = ("worker", "host", "pid", "client", "version", "library", "state", "started", "seen")
        print_table(None, heads, map(_worker, group.workers), numeric=NUMERIC)
    for worker in group.workers:
        if worker.state == "trouble" and worker.trouble is not None:
            typer.echo(_plain(f"worker {worker.owner.hex[:8]} is in trouble: {worker.trouble}"))
    if group.rebalance is not None:
        typer.echo(plain(group.rebalance))
    if (pause := group.pause) is not None:
        typer.echo(plain(f"{group.name} is paused by {pause.by or 'unknown'}: {pause.reason or 'no reason given'}"))
        if pause.abandoned is not None:
            typer.echo(plain(pause.abandoned))
    for line in lines:
        for said in (*line.waits, *line.problems):
            typer.echo(said)
    if group.reload is not None:
        typer.echo(plain(str(group.reload)))


def _row(line: Line) -> Sequence[object]:
    at, stored = line.at, line.at.position
    lag_time = None if at.lag_seconds is None else lasting(at.lag_seconds)
    room = None if at.headroom_seconds is None else f" ({lasting(at.headroom_seconds)})"
    headroom = None if at.headroom is None else f"{at.headroom}{room or ''}"
    counts = (at.end, at.lag, at.dead_letters, stored.epoch)
    owner = "" if stored.owner is None else stored.owner.hex[:8]
    first = (stored.partition.topic, stored.partition.number, stored.next_offset)
    return (*first, *counts, owner, ago_of(stored.committed_at), lag_time, headroom)


def _as_of(line: Line) -> str:
    if line.at.lag is None and line.at.headroom is None:
        return ""
    return "now" if line.at.age is None else f"{lasting(line.at.age.total_seconds())} ago"


def _worker(at: WorkerStatus) -> Sequence[object]:
    who = (at.owner.hex[:8], at.host, at.pid, at.client_id, at.version, at.library)
    return (*who, at.state, ago_of(at.started_at), ago_of(at.seen_at))


def known_group(engine: Engine, group: str, schema: str) -> None:
    """Raise ConfigError, which names the groups that the ledger knows, where it does not know this one."""
    with engine.connect() as connection:
        admin_groups.known_group(GroupConnection(connection, schema, group))


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

    def sentence(self, group: str, now: datetime | None = None) -> str:
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
            return (
                f"{self.partition} has stopped in front of offset {self.offset}: {error}; {self._tried()}. Fix the "
                "codec, row= or handler and start the worker again; or skip it: "
                f"{remedies.skip_record(group, self.partition, self.offset)}"
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
