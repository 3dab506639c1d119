"""``seekpoint dead-letters``: records that were passed and not applied, and what is done about them.

Exit codes: 0 where all that was meant is done (or would be); 1 where some failed again or were refused; 2 where the
command, its configuration or the pipeline is wrong; 3 where the database cannot be reached.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from sqlalchemy import Engine

from seekpoint.admin import (
    Admin,
    Chosen,
    DeadLetterAdmin,
    DeadLetterReplay,
    Discarded,
    Planned,
    ReplayRequest,
    Summary,
    Where,
    group_of,
)
from seekpoint.admin.purges import APPLIED, by_state
from seekpoint.cli.dead_letter_output import (
    NOTHING,
    as_cause,
    as_line,
    as_place,
    choices,
    print_causes,
    print_list,
    print_plan,
    shown,
)
from seekpoint.cli.errors import FAILED, masked
from seekpoint.cli.options import (
    Actor,
    Apply,
    DatabaseOptions,
    Group,
    LedgerOptions,
    Yes,
    ago,
    at_terminal,
    command,
    confirm,
    require_reason,
    since,
)
from seekpoint.cli.output import answer, cut, moment, numbered
from seekpoint.cli.replay_requests import follow, print_request, request_by_worker
from seekpoint.cli.status import known_group
from seekpoint.errors import ConfigError
from seekpoint.ledger.dead_letters import OPEN, DeadLetter
from seekpoint.ledger.tables import LARGEST_BIGINT, LARGEST_INTEGER
from seekpoint.records import Cause, State, notes
from seekpoint.worker.import_by_name import load_pipeline

app = typer.Typer(
    help="Records that were passed and not applied: list, show, replay, discard, export, purge.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,  # locals hold the database's URL
)

_UNLISTED = ("value", "traceback", "replay_traceback")


# -- which ones ---------------------------------------------------------------------------------------------

STATES = ("open", "all", *State)  # what `--state` takes

Ids = Annotated[
    list[int] | None, typer.Argument(metavar="ID...", help="Dead letters, by their ids.", min=1, max=LARGEST_BIGINT)
]
All = Annotated[bool, typer.Option("--all", help="All open ones that meet the conditions below.")]


@dataclass(frozen=True, kw_only=True)
class Filters:
    """Which dead letters a command line means, as options."""

    topic: Annotated[str | None, typer.Option(help="Only of this topic.")] = None
    partition: Annotated[
        int | None, typer.Option(help="Only of this partition of --topic.", min=0, max=LARGEST_INTEGER)
    ] = None
    cause: Annotated[Cause | None, typer.Option("--cause", help="Only those that failed in this way.")] = None
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Dead-lettered since: 2026-08-01T12:00Z, or how long ago: 90s, 30m, 12h, 7d."
        ),
    ] = None
    error: Annotated[str | None, typer.Option("--error", help="Only those whose error has this in it.")] = None
    exception: Annotated[
        str | None, typer.Option(metavar="TYPE", help="Only those of this exception, as --by-cause shows it.")
    ] = None
    line: Annotated[
        str | None,
        typer.Option(metavar="'FILE:N in NAME'", help="Only those from this line, as --by-cause shows it."),
    ] = None

    key: Annotated[str | None, typer.Option(help="Only records of this key, as text in UTF-8.")] = None

    @property
    def is_empty(self) -> bool:
        """Whether none was given."""
        return not any(getattr(self, one.name) not in (None, [], ()) for one in fields(self))

    def where(self) -> Where:
        """As a condition."""
        return Where(
            topic=self.topic,
            partition=self.partition,
            states=_states(getattr(self, "state", None) or ()),
            cause=self.cause,
            error=self.error,
            exception=self.exception,
            error_line=self.line,
            key=None if self.key is None else self.key.encode("utf-8", "surrogateescape"),
            since=None if self.since is None else since(self.since),
        )

    def chosen(self, ids: Sequence[int] | None, everything: bool) -> Chosen:
        """Either ids, or ``--all`` with these conditions; raises ConfigError for anything else."""
        if ids:
            if everything or not self.is_empty:
                raise ConfigError("give either ids, or --all with conditions")
            return list(ids)
        if not everything:
            raise ConfigError("name dead letters by their ids, or say --all (with conditions, if you like)")
        return self.where()


def _state(text: str) -> str:
    if text not in STATES:
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(STATES)}.")
    return text


@dataclass(frozen=True, kw_only=True)
class StateFilters(Filters):
    """Filters for commands that also show closed dead letters."""

    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            parser=_state,
            metavar=f"[{'|'.join(STATES)}]",
            help="Only in this state; repeat it. Default: open, which is dead_lettered and blocked.",
        ),
    ] = None


def _states(given: Sequence[str]) -> tuple[State, ...]:
    if "all" in given:
        return tuple(sorted(State))
    named = {State(one) for one in given if one != "open"}
    return tuple(sorted(named.union(OPEN if "open" in given or not given else ())))


# -- commands ----------------------------------------------------------------------------------------------


@app.command("list")
@command
def list_dead_letters(
    group: Group,
    *,
    ledger: LedgerOptions,
    filters: StateFilters,
    limit: Annotated[int, typer.Option(help="At most so many.", min=1)] = 100,
    by_cause: Annotated[
        bool, typer.Option("--by-cause", help="Count them by exception and line of your code instead; most first.")
    ] = False,
) -> None:
    """List a group's dead letters in the order of topic, partition and offset; by default those that are open."""
    none = f"{group}: no dead letters{'' if filters.is_empty else ' meet these conditions'}"
    if by_cause:
        causes = _dead_letters(ledger, group).by_cause(filters.where())
        if causes and not ledger.as_json:
            print_causes(group, causes)
        else:
            answer([as_cause(one, group) for one in causes], none, as_json=ledger.as_json)
        return
    found = list(_dead_letters(ledger, group).list(filters.where(), limit=limit + 1))
    is_cut, found = len(found) > limit, found[:limit]
    if found and not ledger.as_json:
        print_list(group, found)
    else:
        answer([as_line(one, group, *_UNLISTED) for one in found], none, as_json=ledger.as_json)
    if is_cut:
        typer.echo(f"these are the first {limit}; --limit shows more", err=True)


@app.command()
@command
def show(
    id: Annotated[int, typer.Argument(metavar="ID")],  # noqa: A002 -- the word on the command line
    *,
    ledger: LedgerOptions,
    full: Annotated[bool, typer.Option("--full", help="The whole value, however long.")] = False,
) -> None:
    """Show one dead letter: the record, why it failed, how often it was tried, and what can be done next."""
    engine = ledger.engine()
    group = group_of(engine, id, schema=ledger.schema)
    dead_letters = DeadLetterAdmin(engine, group, schema=ledger.schema)
    dead_letter = dead_letters.get(id)
    next_steps = list(choices(dead_letter, group, dead_letters.first_of_key(dead_letter)))
    answer(
        as_line(dead_letter, group) | {"choices": next_steps},
        *shown(dead_letter, group, full=full),
        "what can be done",
        *(f"  {line}" for line in next_steps),
        as_json=ledger.as_json,
    )


@app.command()
@command
def replay(
    target: Annotated[
        str,
        typer.Argument(metavar="MODULE:NAME", help="Pipeline, Worker, or a function that returns one; or a group."),
    ],
    ids: Ids = None,
    *,
    ledger: LedgerOptions,
    everything: All = False,
    filters: Filters,
    by_worker: Annotated[
        bool,
        typer.Option("--by-worker", help="Name the group: one of its running workers replays them, between batches."),
    ] = False,
    wait: Annotated[
        str | None, typer.Option(metavar="TIME", help="With --by-worker: wait so long for its end: 30s, 5m.")
    ] = None,
    apply: Apply = False,
    yes: Yes = False,
    reason: Annotated[
        str | None,
        typer.Option(help="Why, for the record; needed with --by-worker --apply.", show_default="replay"),
    ] = None,
    actor: Actor = None,
    while_paused: Annotated[bool, typer.Option("--while-paused", help="Though the group is paused.")] = False,
) -> None:
    """Put dead letters through their pipeline's own codecs, sinks and handler; each is applied once, and closed.

    With --by-worker a running worker of the group does it, so that the pipeline's code is not needed here. At a
    terminal, --apply with --all asks, with their number. Exits with 1 if some failed again or were refused: they stay
    open, with the new error beside the old one; and where --wait is over before the worker has ended it.
    """
    chosen = filters.chosen(ids, everything)
    seconds = None if wait is None else ago(wait, "--wait").total_seconds()
    if by_worker and while_paused:
        raise ConfigError("a worker replays nothing while its group is paused: leave --while-paused out")
    if wait is not None and not by_worker:
        raise ConfigError("--wait is for --by-worker: without it, the command itself replays them")
    is_sure = yes or not everything
    if not by_worker:
        job = _replay_of(target, ids or (), ledger, actor, while_paused=while_paused)
        _replay_here(job, chosen, reason or "replay", apply=apply, is_sure=is_sure, as_json=ledger.as_json)
        return
    admin = Admin(ledger.engine(), schema=ledger.schema)
    made = request_by_worker(
        admin,
        target,
        chosen,
        apply=apply,
        is_sure=is_sure,
        reason=reason,
        actor=actor,
        as_json=ledger.as_json,
    )
    if made is not None:
        request, refused = made
        _show_request(admin, request, seconds, refused=refused, as_json=ledger.as_json)


def _replay_of(
    target: str, ids: Sequence[int], ledger: LedgerOptions, actor: str | None, *, while_paused: bool
) -> DeadLetterReplay:
    """Raises ConfigError for the dead letter of another group than the pipeline's."""
    if ":" not in target:
        raise ConfigError(f"{target!r} is not MODULE:NAME; for a group's name add --by-worker: its workers replay")
    pipeline = load_pipeline(target, from_here=True)  # of a Worker its pipeline: the database is an option here
    engine = ledger.engine()
    for one in ids:
        if (group := group_of(engine, one, schema=ledger.schema)) != pipeline.group:
            raise ConfigError(
                f"dead letter {one} is of group {group!r}, and {pipeline} is not its pipeline: name the one of "
                f"{group!r}"
            )
    return DeadLetterReplay(pipeline, engine, schema=ledger.schema, actor=actor, while_paused=while_paused)


def _replay_here(
    job: DeadLetterReplay, chosen: Chosen, reason: str, *, apply: bool, is_sure: bool, as_json: bool
) -> None:
    if not apply:
        _print_plan(job.plan(chosen), as_json=as_json)
        return
    if not is_sure and at_terminal():
        count = sum(one.refusal is None for one in job.plan(chosen))
        confirm(f"replay {numbered(count, 'dead letter')} of {job.pipeline.group}?")
    with _bar("replaying") as (bar, task):
        try:
            summary = job.replay_all(
                chosen,
                reason=reason,
                progress=lambda _, done, total: bar.update(task, completed=done, total=total),
            )
        except KeyboardInterrupt as aborted:
            raise KeyboardInterrupt(*notes(aborted)) from None
    _print_summary(summary, as_json=as_json)


@app.command("replay-request", no_args_is_help=True)
@command
def replay_request(
    group: Group,
    id: Annotated[int, typer.Argument(metavar="ID", min=1, max=LARGEST_BIGINT)],  # noqa: A002 -- the column's name
    *,
    ledger: LedgerOptions,
    wait: Annotated[str | None, typer.Option(metavar="TIME", help="Wait so long for its end: 30s, 5m.")] = None,
) -> None:
    """Show how a request of `replay --by-worker` is: its state, and how many were replayed, failed again, refused.

    With --wait, exits with 1 where it fails, or some of its dead letters do, or it has not ended by then.
    """
    seconds = None if wait is None else ago(wait, "--wait").total_seconds()
    admin = Admin(ledger.engine(), schema=ledger.schema)
    _show_request(admin, admin.replay_request(group, id), seconds, as_json=ledger.as_json)


def _show_request(
    admin: Admin, request: ReplayRequest, seconds: float | None, *, refused: Sequence[Planned] = (), as_json: bool
) -> None:
    """Print how it is; with ``seconds``, when it has ended, or they are over. ``refused`` are no part of it."""
    if seconds is not None:
        typer.echo(f"waiting for request {request.id}", err=True)  # Ctrl-C ends the wait, and not the request
        with _bar("replaying") as (bar, task):
            request = follow(admin, request, seconds, lambda done, total: bar.update(task, completed=done, total=total))
    print_request(request, refused, is_awaited=seconds is not None, as_json=as_json)


@app.command()
@command
def discard(
    ids: Ids = None,
    *,
    ledger: LedgerOptions,
    reason: Annotated[str | None, typer.Option(help="Why the records are given up; needed with --apply.")] = None,
    everything: All = False,
    group: Annotated[str | None, typer.Option(help="With --all: of this group.")] = None,
    filters: Filters,
    apply: Apply = False,
    yes: Yes = False,
    actor: Actor = None,
) -> None:
    """Close dead letters without applying their records: the rows stay, with who gave them up and why.

    At a terminal, --apply with --all asks, with their number. Exits with 1 if some were refused, because they were not
    open any more.
    """
    engine = ledger.engine()
    chosen = filters.chosen(ids, everything)
    if everything and group is None:
        raise ConfigError("--all needs --group: the group whose dead letters are meant")
    require_reason(apply, reason)
    if apply and everything and not yes and group is not None and at_terminal():
        count = len(DeadLetterAdmin(engine, group, schema=ledger.schema).plan_discard(chosen))
        confirm(f"discard {numbered(count, 'dead letter')} of {group}?")
    done: list[Discarded] = []
    with _bar("discarding") as (bar, task):
        for name, mine in _by_group(engine, ledger.schema, group, chosen).items():
            known_group(engine, name, ledger.schema)
            dead_letters = DeadLetterAdmin(engine, name, schema=ledger.schema, actor=actor)
            if apply:
                done += dead_letters.discard(mine, reason=reason or "", progress=lambda _: bar.advance(task))
            else:
                done += dead_letters.plan_discard(mine)
    _print_discarded(done, apply=apply, as_json=ledger.as_json)


@app.command()
@command
def export(
    group: Group,
    *,
    ledger: DatabaseOptions,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Not to stdout.")] = None,
    filters: StateFilters,
) -> None:
    """Write dead letters as JSON lines, without loss: one object each, bytes as base64 and, where they are, text.

    By default those that are open. A file is there when it is complete.
    """
    dead_letters = _dead_letters(ledger, group)
    lines = (json.dumps(as_line(dead_letters.get(one.id), group)) for one in dead_letters.list(filters.where()))
    if output is None:
        for line in lines:
            typer.echo(line)
        return
    count = 0
    part = output.with_name(f"{output.name}.part")
    try:
        with _bar("exporting") as (bar, task), part.open("w", encoding="ascii") as file:
            for count, line in enumerate(lines, 1):  # noqa: B007 -- the last one is reported
                file.write(f"{line}\n")
                bar.advance(task)
        part.replace(output)
    except OSError as failed:
        raise ConfigError(f"{output} cannot be written: {failed.strerror}") from None
    typer.echo(f"{numbered(count, 'dead letter')} in {output}", err=True)


@app.command(no_args_is_help=True)
@command
def purge(
    group: Group,
    *,
    ledger: LedgerOptions,
    older_than: Annotated[str, typer.Option(metavar="AGE", help="Closed longer ago: 12h, 30d.")],
    state: Annotated[
        list[State] | None,
        typer.Option("--state", help="In this state; repeat it. Default: replayed."),
    ] = None,
    apply: Apply = False,
    reason: Annotated[str | None, typer.Option(help="Why, for the record; needed with --apply.")] = None,
    actor: Actor = None,
) -> None:
    """Delete dead letters that were closed long ago, whose records were replayed; never open ones.

    Others stay, unless --state names them: the rows of discarded or skipped ones record that they were not applied, and
    the record of a superseded one may not have been read again yet.
    Without --apply they are counted by state, and nothing is done.
    """
    require_reason(apply, reason)
    admin = Admin(ledger.engine(), schema=ledger.schema)
    plan = admin.plan_purge(group, ago(older_than, "--older-than"), state or APPLIED)
    deleted = admin.apply(plan, reason=reason or "", actor=actor) if apply and not plan.is_done else None
    notes = [f"  - {each}" for each in plan.consequences]
    if deleted is not None:
        said = f": {by_state(deleted)}" if deleted else ""
        lines = [f"{group}: deleted {numbered(sum(deleted.values()), 'dead letter')}{said}"]
    elif plan.is_done:
        lines = [f"{group}: none was closed before {moment(plan.before)}; nothing to do", *notes]
    else:
        lines = [f"would purge {group}:", *notes, "dry run; --apply does it"]
    answer(asdict(plan) | {"applied": deleted is not None, "deleted": deleted}, *lines, as_json=ledger.as_json)


# -- inside -----------------------------------------------------------------------------------------------


def _dead_letters(ledger: DatabaseOptions, group: str) -> DeadLetterAdmin:
    engine = ledger.engine()
    known_group(engine, group, ledger.schema)
    return DeadLetterAdmin(engine, group, schema=ledger.schema)


def _by_group(engine: Engine, schema: str, group: str | None, chosen: Chosen) -> dict[str, Chosen]:
    """What is meant, group by group: ids may be of several."""
    if group is not None or not isinstance(chosen, list):
        assert group is not None
        return {group: chosen}
    found: dict[str, list[int]] = {}
    for one in chosen:
        found.setdefault(group_of(engine, one, schema=schema), []).append(one)
    return {**found}


@contextmanager
def _bar(what: str) -> Iterator[tuple[Progress, TaskID]]:
    """A progress bar on stderr, where that is a terminal; removed at the end."""
    console = Console(stderr=True)
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield bar, bar.add_task(what, total=None)


def _print_plan(plan: Sequence[Planned], *, as_json: bool) -> None:
    refused = sum(one.refusal is not None for one in plan)
    if plan and not as_json:
        print_plan(plan)
    count = f"dry run: {len(plan) - refused} would be replayed, {refused} refused; --apply does it"
    report = [as_place(one.dead_letter, after=one.after, refusal=_masked(one.refusal)) for one in plan]
    answer({"applied": False, "planned": report}, count if plan else NOTHING, as_json=as_json)
    if refused:
        raise typer.Exit(FAILED)


def _print_summary(summary: Summary, *, as_json: bool) -> None:
    failed = [(one.dead_letter, _masked(one.failure.error if one.failure else None)) for one in summary.failed]
    refused = [(one.dead_letter, _masked(one.refusal)) for one in summary.refused]
    answer(
        {
            "applied": True,
            "replayed": summary.replayed,
            "failed": [as_place(one, error=error) for one, error in failed],
            "refused": [as_place(one, refusal=why) for one, why in refused],
        },
        *(f"failed again: {_place(one)}: {error}" for one, error in failed),
        *(f"refused: {why}" for _, why in refused),
        f"{summary.replayed} replayed, {len(failed)} failed again, {len(refused)} refused",
        as_json=as_json,
    )
    if not summary.is_complete:
        raise typer.Exit(FAILED)


def _print_discarded(done: Sequence[Discarded], *, apply: bool, as_json: bool) -> None:
    refused = sum(one.refusal is not None for one in done)
    report = [as_place(one.dead_letter, refusal=_masked(one.refusal)) for one in done]
    states = Counter(one.dead_letter.state.value for one in done if one.refusal is None)
    by_states = f" ({by_state(states)})" if states and not apply else ""
    count = f"{len(done) - refused:,} {'' if apply else 'would be '}discarded{by_states}, {refused:,} refused"
    last = (count if apply else f"dry run: {count}; --apply does it") if done else NOTHING
    lines = (_discarded(one, apply=apply) for one in done)
    answer({"applied": apply, "discarded": report}, *lines, last, as_json=as_json)
    if refused:
        raise typer.Exit(FAILED)


def _discarded(one: Discarded, *, apply: bool) -> str:
    if one.refusal is not None:
        return f"refused: {masked(one.refusal)}"
    if apply:
        return f"discarded: {_place(one.dead_letter)}"
    return f"would be discarded: {_place(one.dead_letter)}: {cut(one.dead_letter.error)}"


def _place(dead_letter: DeadLetter) -> str:
    return f"{dead_letter.id} ({dead_letter.at} offset {dead_letter.offset})"


def _masked(text: str | None) -> str | None:
    return None if text is None else masked(text)
