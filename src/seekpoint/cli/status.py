"""``seekpoint status``: groups with their positions, lag and workers; once, repeatedly, or as a check."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from time import sleep
from typing import Annotated, Any, Literal, Never, Self

import typer
from rich.console import Console
from typer.core import TyperCommand

from seekpoint import remedies
from seekpoint.admin import Admin, BrokersAway, GroupStatus, PartitionStatus, WorkerStatus
from seekpoint.cli.exit_codes import AWAY, FAILED, USAGE
from seekpoint.cli.masking import masked, plain
from seekpoint.cli.options import KafkaOptions, LedgerOptions, command, duration, require_brokers
from seekpoint.cli.output import ago, answer, headroom, moment, print_table, said_after
from seekpoint.durations import format_duration
from seekpoint.ledger import Position
from seekpoint.ledger.claim import DELAYED, TRANSIENT
from seekpoint.records import Partition, numbered

WATCH = 2  # seconds between two reads
SLOW = 2.0  # seconds after which a line on stderr says that brokers have not answered
# With usual values a row has at most 100 characters; --json has the rest, e.g. each partition's end and epoch.
PARTITIONS = ("partition", "next", "lag", "lag time", "headroom", "dead", "owner", "committed")
WORKERS = ("worker", "host", "pid", "version", "state", "started", "seen")
NUMERIC = ("next", "lag", "lag time", "headroom", "dead", "pid", "version")


class Command(TyperCommand):
    """Accepts ``--watch`` without a value, which Typer does not support."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments, with seconds added after a bare ``--watch``."""
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
            help=f"Show it again every SECONDS ({WATCH} by default), until Ctrl-C.",
            min=0.1,
        ),
    ] = None,
    sort: Annotated[
        Literal["name", "lag", "headroom"],
        typer.Option(help="Order of a group's partitions: by name, or the worst first."),
    ] = "name",
    check: Annotated[bool, typer.Option("--check", help="Print only problems; exit with 1 if there are any.")] = False,
    max_lag: Annotated[
        int | None, typer.Option(min=0, help="With --check: the lag that a partition may have, in records.")
    ] = None,
    max_age: Annotated[
        str | None, typer.Option(metavar="TIME", help="With --check: how old the next record may be: 30s, 5m.")
    ] = None,
    ledger: LedgerOptions,
    brokers: KafkaOptions,
) -> None:
    """Show groups: positions, lag in records and in time, retention headroom, dead letters, workers.

    Lines below the table say who paused the group and why; why a partition stopped, with the choices; which partitions
    wait for a failed record, and until when; and the workers' troubles, rebalances, and reloads for which they wait.
    Without brokers (--kafka, --kafka-config), or if none answers, lag and headroom come from the workers' samples: a
    line shows the samples' age, and after three minutes the columns are empty. --json has more of each partition, e.g.
    the end of its log. Reads only. Exits with 1 if a partition is stopped or past the end of its log, if a topic does
    not exist or was created again, or if no broker answers for a partition; with 3 if no broker answers at all (--check
    then uses the samples).
    """
    if not check and (max_lag is not None or max_age is not None):
        typer.echo("error: --max-lag and --max-age work only with --check: add it", err=True)
        raise typer.Exit(USAGE)
    if check and watch is not None:
        typer.echo("error: --check looks once: omit --watch", err=True)
        raise typer.Exit(USAGE)
    age = None if max_age is None else duration(max_age, "--max-age")
    settings = brokers.settings()
    if settings:
        require_brokers(settings)
    admin = Admin(ledger.engine(), settings, schema=ledger.schema)
    if check:
        _check(admin, groups or [], max_lag, age, as_json=ledger.as_json)
        return
    if watch is not None:
        with suppress(KeyboardInterrupt):
            _watch(lambda: _show(admin, groups or [], sort, as_json=ledger.as_json), watch)
    elif code := _show(admin, groups or [], sort, as_json=ledger.as_json):
        raise typer.Exit(code)


def _watch(show: Callable[[], object], seconds: float) -> Never:
    """Print the groups repeatedly; a terminal is cleared in between."""
    while True:
        show()
        sleep(seconds)
        Console().clear()


def _check(
    admin: Admin, names: Sequence[str], max_lag: int | None, max_age: timedelta | None, *, as_json: bool
) -> None:
    """Print problems, for probes. A warning about the brokers' answers is no failure if the lag is known."""
    groups, doubts = _read(admin, names)
    failures = [failure for group in groups for failure in group.failures(max_lag=max_lag, max_age=max_age)]
    if not groups:
        failures.append(f"the ledger in schema {admin.schema!r} has no group: no worker has claimed anything yet")
    answer({"ok": not failures, "failures": failures}, *failures, as_json=as_json)
    _warn(doubts)
    if failures:
        raise typer.Exit(FAILED)


def _show(admin: Admin, names: Sequence[str], sort: str, *, as_json: bool) -> int:
    """Print the groups once. Returns the exit code: FAILED for a problem, AWAY if only the brokers are away."""
    groups, doubts = _read(admin, names)
    lines = {
        group.name: [Line(group, partition) for partition in sorted(group.partitions, key=_ORDERS[sort])]
        for group in groups
    }
    if as_json:
        answer([line.as_dict() for group in groups for line in lines[group.name]], as_json=True)
    else:
        for group in groups:
            _print_group(group, lines[group.name])
    _warn(doubts)
    if any(line.problems for group_lines in lines.values() for line in group_lines):
        return FAILED
    return min((AWAY if isinstance(doubt, BrokersAway) else FAILED for doubt in doubts), default=0)


def _read(admin: Admin, names: Sequence[str]) -> tuple[list[GroupStatus], list[str]]:
    with said_after(SLOW, "no answer from the brokers yet; if none comes, the last samples are shown"):
        return admin.status(names)


def _by_name(partition: PartitionStatus) -> Any:
    return partition.position.partition


def _by_lag(partition: PartitionStatus) -> Any:
    """Unknown lags first, then the greatest."""
    return -math.inf if partition.lag is None else -partition.lag, partition.position.partition


def _by_headroom(partition: PartitionStatus) -> Any:
    """The least headroom first; unknown ones last."""
    seconds = math.inf if partition.headroom_seconds is None else partition.headroom_seconds
    return seconds, math.inf if partition.headroom is None else partition.headroom, partition.position.partition


_ORDERS = {"name": _by_name, "lag": _by_lag, "headroom": _by_headroom}


def _warn(doubts: Sequence[str]) -> None:
    for doubt in doubts:
        typer.echo(f"warning: {doubt}", err=True)


@dataclass(frozen=True, slots=True)
class Line:
    """One partition of a group."""

    group: GroupStatus
    partition: PartitionStatus

    def as_dict(self) -> dict[str, Any]:
        """The line for JSON."""
        group, partition, stored = self.group, self.partition, self.partition.position
        retry, stop, run = RetryStatus.of(stored), stored.stop, group.reload
        return {
            "group": group.name,
            "topic": stored.partition.topic,
            "partition": stored.partition.number,
            "next": stored.next_offset,
            "end": partition.end,
            "lag": partition.lag,
            "lag_seconds": partition.lag_seconds,
            "headroom": partition.headroom,
            "headroom_seconds": partition.headroom_seconds,
            "sampled_at": partition.sampled_at,
            "is_sampled": partition.is_sampled,
            "epoch": stored.epoch,
            "owner": None if stored.owner is None else str(stored.owner),
            "host": partition.host,
            "pid": partition.pid,
            "worker": None if self.worker is None else _for_json(self.worker),
            "committed_at": stored.committed_at,
            "dead_letters": partition.dead_letters,
            "blocked": partition.blocked,
            "waiting": partition.waiting,
            "oldest_waiting_seconds": partition.oldest_waiting_seconds,
            "retry": None if retry is None else retry.as_dict(),
            "stop": None
            if stop is None
            else asdict(stop)
            | {"code": stop.code, "message": _plain(stop.message), "choices": list(map(_plain, stop.choices))},
            "suspects_left": None if stored.suspect_end is None else stored.suspect_end - stored.next_offset,
            "reload": None
            if run is None
            else {"run": run.run, "state": run.state, "version": run.version, "driver": run.driver},
            "paused": None if group.pause is None else {"by": group.pause.by, "reason": group.pause.reason},
        }

    @property
    def worker(self) -> WorkerStatus | None:
        """The partition's owner; None if there is none, or if its row was deleted."""
        owner = self.partition.position.owner
        return next((worker for worker in self.group.workers if worker.owner == owner), None)

    @property
    def problems(self) -> list[str]:
        """The partition's problems, one message each."""
        stored, problems = self.partition.position, []
        where, retry = stored.partition, RetryStatus.of(stored)
        if stored.stop is not None:
            stop = stored.stop
            choices = "".join(f"\n  - {_plain(choice)}" for choice in stop.choices)
            problems.append(
                f"{where} stopped at offset {stop.offset} on {moment(stop.at)} ({stop.kind}, {stop.code}): "
                f"{_plain(stop.message)}{choices}"
            )
        elif retry is not None and retry.has_stopped:
            problems.append(retry.sentence(self.group.name))
        if self.partition.is_past_end:
            problems.append(
                f"{where}: the stored offset {stored.next_offset} is past the end of the log ({self.partition.end}), "
                f"and nothing is read until you reset it: {remedies.reset_to_offset(self.group.name, where)}"
            )
        return problems

    @property
    def waits(self) -> Iterator[str]:
        """Sentences about retries for which the partition waits, and dead letters that need a decision."""
        partition, stored = self.partition, self.partition.position
        retry = RetryStatus.of(stored)
        if partition.blocked:
            yield (
                f"{plain(stored.partition.topic)}/{stored.partition.number}: {partition.dead_letters:,} records that "
                f"the lag does not count are not applied: {partition.dead_letters - partition.blocked:,} dead letters, "
                f"and {partition.blocked:,} blocked behind their keys"
            )
        if partition.waiting:
            yield (
                f"{plain(stored.partition.topic)}/{stored.partition.number}: {partition.waiting:,} records that the "
                "lag does not count wait for their retries, the oldest for "
                f"{format_duration(partition.oldest_waiting_seconds or 0)} (seekpoint dead-letters list "
                f"{shlex.quote(self.group.name)} --state waiting)"
            )
        if retry is not None and not retry.has_stopped:
            yield retry.sentence(self.group.name)
        if stored.suspect_end is not None:
            yield (
                f"{plain(stored.partition.topic)}/{stored.partition.number}: its owners died without progress; the "
                f"next {stored.suspect_end - stored.next_offset} offsets are applied in small parts, to find a record "
                "that crashes its process"
            )


def _print_group(group: GroupStatus, lines: Sequence[Line]) -> None:
    print_table(group.name, PARTITIONS, map(_row, lines), numeric=NUMERIC)
    for sentence in _ages(lines):
        typer.echo(plain(sentence))
    if group.workers:
        print_table(None, WORKERS, map(_worker, group.workers), numeric=NUMERIC)
    for sentence in filter(None, map(_activity, group.workers)):
        typer.echo(sentence)
    if group.rebalance is not None:
        typer.echo(plain(group.rebalance))
    if (pause := group.pause) is not None:
        typer.echo(plain(f"{group.name} is paused by {pause.by or 'unknown'}: {pause.reason or 'no reason given'}"))
        if pause.abandoned is not None:
            typer.echo(plain(pause.abandoned))
    for line in lines:
        for message in (*line.waits, *line.problems):
            typer.echo(message)
    if group.reload is not None:
        typer.echo(plain(str(group.reload)))


def _row(line: Line) -> Sequence[object]:
    partition, stored = line.partition, line.partition.position
    lag_time = None if partition.lag_seconds is None else format_duration(partition.lag_seconds)
    room = headroom(partition.headroom, partition.headroom_seconds)
    owner = "" if stored.owner is None else stored.owner.hex[:8]
    numbers = (stored.next_offset, partition.lag, lag_time, room, partition.dead_letters)
    return (stored.partition, *numbers, owner, ago(stored.committed_at))


def _ages(lines: Sequence[Line]) -> Iterator[str]:
    """A sentence for each age of the samples used, with the partitions; none for current numbers."""
    by_age: dict[str, list[str]] = {}
    for line in lines:
        partition = line.partition
        if partition.age is not None and (partition.lag, partition.headroom) != (None, None):
            by_age.setdefault(format_duration(partition.age), []).append(str(partition.position.partition))
    for age, partitions in by_age.items():
        which = "all partitions" if len(partitions) == len(lines) else ", ".join(partitions)
        yield f"lag and headroom are as of {age} ago: {which}"


def _worker(worker: WorkerStatus) -> Sequence[object]:
    identity = (worker.owner.hex[:8], worker.host, worker.pid, worker.version)
    return (*identity, worker.state, ago(worker.started_at), ago(worker.seen_at))


def _activity(worker: WorkerStatus) -> str | None:
    """A sentence about the worker's trouble, the error that ended it, or its long transaction.

    A pause is shown once for the whole group.
    """
    who = f"worker {worker.owner.hex[:8]}"
    if worker.state == "trouble" and worker.trouble is not None:
        return _plain(f"{who} is in trouble: {worker.trouble}")
    if worker.state == "ended" and worker.trouble is not None:
        return _plain(f"{who} ended: {worker.trouble}")
    if worker.state == "running" and worker.activity is not None:
        return _plain(f"{who}: {worker.activity}")
    return None


def _for_json(worker: WorkerStatus) -> dict[str, Any]:
    shown = ("state", "trouble", "activity", "client_id", "version", "library", "started_at", "seen_at")
    return {name: getattr(worker, name) for name in shown}


def _plain(text: str) -> str:
    return plain(masked(text))


NEVER_CAME_BACK = "the process that tried it crashed"


@dataclass(frozen=True, slots=True)
class RetryStatus:
    """A stored attempt. ``error`` is None if its process crashed; ``then`` is the policy after the last attempt.

    ``retry_at`` is None for a partition that has stopped, and during an attempt (``running``).
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
    def of(cls, position: Position) -> Self | None:
        """The attempt of a position; None for a partition that waits only for records."""
        if position.attempt_offset is None or position.attempts < 1 or position.attempt_offset < position.next_offset:
            return None
        return cls(
            position.partition,
            position.attempt_offset,
            position.attempts,
            position.attempts_allowed,
            position.attempt_crashes,
            position.attempt_running,
            None if position.attempt_error is None else plain(masked(position.attempt_error)),
            None if position.attempt_running else position.retry_at,
            position.attempt_policy,
        )

    @property
    def has_stopped(self) -> bool:
        """Whether the partition waits for an operator."""
        return not self.running and self.retry_at is None and self.error is not None

    def as_dict(self) -> dict[str, Any]:
        """The attempt for JSON."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "partition"} | {
            "stopped": self.has_stopped
        }

    def sentence(self, group: str) -> str:
        """The attempt as a sentence."""
        head = f"{self.partition} waits before offset {self.offset}"
        if self.running:
            died = f"; {numbered(self.crashes, 'earlier attempt')} ended with the process" if self.crashes else ""
            before = "" if self.error is None else f"; last error: {self.error}"
            return f"{head}: attempt {self._count()} is running, alone in its transaction{died}{before}{self._after()}"
        if self.then == DELAYED:
            return f"{head}: {self.error}; {self._next('due')}"
        error = self.error or NEVER_CAME_BACK
        if self.has_stopped:
            return (
                f"{self.partition} has stopped before offset {self.offset}: {error}; {self._tried()}. Fix the "
                "codec, row= or handler and start the worker again; or skip it: "
                f"{remedies.skip_record(group, self.partition)}"
            )
        return f"{head}: {error}; {self._tried()}, {self._next()}{self._after()}"

    def _count(self) -> str:
        return str(self.attempts) if self.allowed is None else f"{self.attempts} of {self.allowed}"

    def _tried(self) -> str:
        died = f", {self.crashes} of which ended with the process" if self.crashes else ""
        times = "time" if self._count() == "1" else "times"
        return f"tried {self._count()} {times}{died}"

    def _next(self, label: str = "next try") -> str:
        if self.retry_at is None:
            return "next try by the worker that takes over"
        time, now = self.retry_at.astimezone(UTC), datetime.now(UTC)
        day = "%Y-%m-%d " if abs(time - now) > timedelta(hours=12) else ""
        due = " (due; no worker has tried it yet)" if time < now - timedelta(seconds=5) else ""
        return f"{label} {time:{day}%H:%M:%S} UTC{due}"

    def _after(self) -> str:
        return "" if self.then is None else f", then {'stop' if self.then == TRANSIENT else self.then}"
