"""``seekpoint dead-letters``: shows, edits, replays, discards, exports and purges dead letters.

Exit codes: 0 if all chosen dead letters are done (or would be); 1 if any failed again or was refused; 2 if the command,
its configuration or the pipeline is wrong; 3 if the database cannot be reached.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated

import typer

from seekpoint.admin import (
    Admin,
    Chosen,
    Discarded,
    GroupDeadLetters,
    Planned,
    ReplayableDeadLetters,
    ReplayRequest,
    Summary,
    Where,
)
from seekpoint.admin.purges import APPLIED, by_state
from seekpoint.cli.dead_letter_output import (
    NOTHING,
    as_cause,
    as_line,
    as_place,
    choices,
    print_causes,
    print_edited,
    print_list,
    print_plan,
    shown,
)
from seekpoint.cli.exit_codes import FAILED
from seekpoint.cli.masking import masked
from seekpoint.cli.options import (
    Actor,
    Apply,
    DatabaseOptions,
    Group,
    LedgerOptions,
    Reason,
    Yes,
    at_terminal,
    command,
    confirm,
    duration,
    require_reason,
    since,
)
from seekpoint.cli.output import answer, cut, moment
from seekpoint.cli.progress_bar import Shown
from seekpoint.cli.replay_requests import follow, print_request, request_by_worker
from seekpoint.errors import ConfigError
from seekpoint.ledger.dead_letters import OPEN
from seekpoint.ledger.tables import LARGEST_BIGINT, LARGEST_INTEGER
from seekpoint.records import Cause, State, notes, numbered
from seekpoint.storage import complete_file
from seekpoint.worker.import_by_name import load_pipeline

app = typer.Typer(
    help="Records that the position has passed without applying them: list, show, edit, replay, discard, export, "
    "purge.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,  # locals hold the database's URL
)

_UNLISTED = ("value", "edited_value", "traceback", "replay_traceback")


# -- which ones ---------------------------------------------------------------------------------------------

STATES = ("open", "all", *State)  # the values of `--state`

Ids = Annotated[
    list[int] | None, typer.Argument(metavar="ID...", help="Dead letters, by their ids.", min=1, max=LARGEST_BIGINT)
]
All = Annotated[bool, typer.Option("--all", help="All open dead letters that meet the conditions below.")]


@dataclass(frozen=True, kw_only=True)
class Filters:
    """Options that select dead letters."""

    topic: Annotated[str | None, typer.Option(help="Only this topic.")] = None
    partition: Annotated[
        int | None, typer.Option(help="Only this partition of --topic.", min=0, max=LARGEST_INTEGER)
    ] = None
    cause: Annotated[Cause | None, typer.Option("--cause", help="Only those with this cause.")] = None
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Only those dead-lettered since: 2026-08-01T12:00Z, or how long ago: 90s, 30m, 12h, 7d.",
        ),
    ] = None
    error: Annotated[str | None, typer.Option("--error", help="Only those whose error contains this text.")] = None
    exception: Annotated[
        str | None, typer.Option(metavar="TYPE", help="Only those with this exception type, as listed by --by-cause.")
    ] = None
    line: Annotated[
        str | None,
        typer.Option(
            metavar="'FILE:N in NAME'",
            help="Only those that failed at this line of your code, as listed by --by-cause.",
        ),
    ] = None

    key: Annotated[str | None, typer.Option(help="Only those with this key, as UTF-8 text.")] = None

    @property
    def is_empty(self) -> bool:
        """Whether no filter was given."""
        return not any(getattr(self, field.name) not in (None, [], ()) for field in fields(self))

    def where(self) -> Where:
        """The filters as a condition."""
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
        """The ids, or the condition of ``--all``; raises ConfigError for neither ids nor ``--all``, or both."""
        if ids:
            if everything or not self.is_empty:
                raise ConfigError("give either ids, or --all with conditions")
            return list(ids)
        if not everything:
            raise ConfigError("give ids of dead letters, or --all (with optional conditions)")
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
            help="Only those in this state (repeatable). Default: open, which is dead_lettered and blocked.",
        ),
    ] = None


def _states(names: Sequence[str]) -> tuple[State, ...]:
    if "all" in names:
        return tuple(sorted(State))
    states = {State(name) for name in names if name != "open"}
    return tuple(sorted(states.union(OPEN if "open" in names or not names else ())))


# -- commands ----------------------------------------------------------------------------------------------


@app.command("list")
@command
def list_dead_letters(
    group: Group,
    *,
    ledger: LedgerOptions,
    filters: StateFilters,
    limit: Annotated[int, typer.Option(help="Show at most this many.", min=1)] = 100,
    by_cause: Annotated[
        bool,
        typer.Option(
            "--by-cause", help="Count dead letters by exception and line of your code; the highest count first."
        ),
    ] = False,
) -> None:
    """List a group's dead letters by topic, partition and offset; by default the open ones."""
    none = f"{group}: no dead letters{'' if filters.is_empty else ' meet these conditions'}"
    if by_cause:
        causes = _dead_letters(ledger, group).by_cause(filters.where())
        if causes and not ledger.as_json:
            print_causes(group, causes)
        else:
            answer([as_cause(cause, group) for cause in causes], none, as_json=ledger.as_json)
        return
    dead_letters = list(_dead_letters(ledger, group).list(filters.where(), limit=limit + 1))
    is_cut, dead_letters = len(dead_letters) > limit, dead_letters[:limit]
    if dead_letters and not ledger.as_json:
        print_list(group, dead_letters)
    else:
        answer([as_line(dead_letter, group, *_UNLISTED) for dead_letter in dead_letters], none, as_json=ledger.as_json)
    if is_cut:
        typer.echo(f"these are the first {limit}; --limit shows more", err=True)


@app.command()
@command
def show(
    id: Annotated[int, typer.Argument(metavar="ID")],  # noqa: A002 -- the word on the command line
    *,
    ledger: LedgerOptions,
    full: Annotated[bool, typer.Option("--full", help="Show the whole value, however long.")] = False,
) -> None:
    """Show one dead letter: the record, why it failed, how often it was tried, and the possible next steps."""
    admin = Admin(ledger.engine(), schema=ledger.schema)
    group = admin.group_of_dead_letter(id)
    dead_letters = admin.dead_letters(group)
    dead_letter = dead_letters.get(id)
    next_steps = list(choices(dead_letter, group, dead_letters.first_of_key(dead_letter)))
    answer(
        as_line(dead_letter, group) | {"choices": next_steps},
        *shown(dead_letter, group, full=full),
        "what can be done",
        *(f"  {line}" for line in next_steps),
        as_json=ledger.as_json,
    )


@app.command(no_args_is_help=True)
@command
def edit(
    id: Annotated[int, typer.Argument(metavar="ID", min=1, max=LARGEST_BIGINT)],  # noqa: A002 -- the column's name
    *,
    ledger: LedgerOptions,
    value_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The value that a replay applies: the bytes of this file.")
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Undo the edit: a replay applies the log's value.")] = False,
    reason: Reason = None,
    actor: Actor = None,
    apply: Apply = False,
) -> None:
    """Give an open dead letter's record another value, for its replay; the log's value is kept, too.

    Applies nothing yet. Exits with 1 if the dead letter is no longer open.
    """
    if undo == (value_file is not None):
        raise ConfigError("give --value-file FILE with the new value, or --undo")
    require_reason(apply, reason)
    value = None if value_file is None else _bytes_of(value_file)
    admin = Admin(ledger.engine(), schema=ledger.schema)
    dead_letters = admin.dead_letters(admin.group_of_dead_letter(id), actor=actor)
    if not apply:
        edited = dead_letters.plan_edit(id, value)
    elif value is None:
        edited = dead_letters.undo_edit(id, reason=reason or "")
    else:
        edited = dead_letters.edit(id, value, reason=reason or "")
    print_edited(edited, undo=undo, apply=apply, as_json=ledger.as_json)
    if edited.refusal is not None:
        raise typer.Exit(FAILED)


def _bytes_of(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"--value-file {file}: {error.strerror}") from error


@app.command()
@command
def replay(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:NAME", help="Pipeline, Worker, or a function that returns one; with --by-worker, a group."
        ),
    ],
    ids: Ids = None,
    *,
    ledger: LedgerOptions,
    everything: All = False,
    filters: Filters,
    by_worker: Annotated[
        bool,
        typer.Option("--by-worker", help="A running worker of the group that you name replays them, between batches."),
    ] = False,
    wait: Annotated[
        str | None, typer.Option(metavar="TIME", help="With --by-worker: wait at most this long for the end: 30s, 5m.")
    ] = None,
    apply: Apply = False,
    yes: Yes = False,
    reason: Annotated[
        str | None,
        typer.Option(help="Why, for the record; needed with --by-worker --apply.", show_default="replay"),
    ] = None,
    actor: Actor = None,
    while_paused: Annotated[bool, typer.Option("--while-paused", help="Replay even if the group is paused.")] = False,
) -> None:
    """Apply dead letters with their pipeline's codecs, sinks and handler; each is applied once, and closed.

    With --by-worker a running worker of the group replays them, so that the pipeline's code is not needed here. At a
    terminal, --apply with --all shows their number and asks for confirmation. Exits with 1 if any failed again or was
    refused (it stays open, with the new error and the old one), or if --wait ends before the worker has finished.
    """
    chosen = filters.chosen(ids, everything)
    seconds = None if wait is None else duration(wait, "--wait").total_seconds()
    if by_worker and while_paused:
        raise ConfigError("a worker replays nothing while its group is paused: omit --while-paused")
    if wait is not None and not by_worker:
        raise ConfigError("--wait works only with --by-worker: otherwise the command itself replays the dead letters")
    is_sure = yes or not everything
    if not by_worker:
        job = _replay_of(target, ids or (), ledger, actor, while_paused=while_paused)
        _replay_here(job, chosen, reason or "replay", apply=apply, is_sure=is_sure, as_json=ledger.as_json)
        return
    admin = Admin(ledger.engine(), schema=ledger.schema)
    requested = request_by_worker(
        admin,
        target,
        chosen,
        apply=apply,
        is_sure=is_sure,
        reason=reason,
        actor=actor,
        as_json=ledger.as_json,
    )
    if requested is not None:
        request, refused = requested
        _show_request(admin, request, seconds, refused=refused, as_json=ledger.as_json)


def _replay_of(
    target: str, ids: Sequence[int], ledger: LedgerOptions, actor: str | None, *, while_paused: bool
) -> ReplayableDeadLetters:
    """A replay with this pipeline. Raises ConfigError if a dead letter belongs to another group."""
    if ":" not in target:
        raise ConfigError(
            f"{target!r} is not MODULE:NAME; if it is a group, add --by-worker: one of its workers replays"
        )
    # Only a Worker's pipeline: the database is an option of the command.
    pipeline = load_pipeline(target, from_here=True)
    admin = Admin(ledger.engine(), schema=ledger.schema)
    for dead_letter_id in ids:
        if (group := admin.group_of_dead_letter(dead_letter_id)) != pipeline.group:
            raise ConfigError(
                f"dead letter {dead_letter_id} belongs to group {group!r}, but you named {pipeline}: name the pipeline "
                f"of {group!r}"
            )
    return admin.dead_letters(pipeline, actor=actor, while_paused=while_paused)


def _replay_here(
    job: ReplayableDeadLetters, chosen: Chosen, reason: str, *, apply: bool, is_sure: bool, as_json: bool
) -> None:
    if not apply:
        _print_plan(job.plan(chosen), as_json=as_json)
        return
    if not is_sure and at_terminal():
        count = sum(entry.refusal is None for entry in job.plan(chosen))
        confirm(f"replay {numbered(count, 'dead letter')} of {job.pipeline.group}?")
    with _progress() as progress:
        try:
            summary = job.replay_all(
                chosen, reason=reason, progress=lambda _, done, total: progress("replaying", done, total)
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
    wait: Annotated[
        str | None, typer.Option(metavar="TIME", help="Wait at most this long for its end: 30s, 5m.")
    ] = None,
) -> None:
    """Show a request of `replay --by-worker`: its state, and how many were replayed, failed again or were refused.

    With --wait, exits with 1 unless all dead letters were replayed in that time.
    """
    seconds = None if wait is None else duration(wait, "--wait").total_seconds()
    admin = Admin(ledger.engine(), schema=ledger.schema)
    _show_request(admin, admin.replay_request(group, id), seconds, as_json=ledger.as_json)


def _show_request(
    admin: Admin, request: ReplayRequest, seconds: float | None, *, refused: Sequence[Planned] = (), as_json: bool
) -> None:
    """Print the request, after waiting at most ``seconds`` for its end. ``refused`` are not in the request."""
    if seconds is not None:
        typer.echo(f"waiting for request {request.id}", err=True)  # Ctrl-C ends the wait, not the request
        with _progress() as progress:
            request = follow(admin, request, seconds, lambda done, total: progress("replaying", done, total))
    print_request(request, refused, is_awaited=seconds is not None, as_json=as_json)


@app.command()
@command
def discard(
    ids: Ids = None,
    *,
    ledger: LedgerOptions,
    reason: Annotated[str | None, typer.Option(help="Why the records are given up; needed with --apply.")] = None,
    everything: All = False,
    group: Annotated[str | None, typer.Option(help="The group; needed with --all.")] = None,
    filters: Filters,
    apply: Apply = False,
    yes: Yes = False,
    actor: Actor = None,
) -> None:
    """Close dead letters without applying their records: the rows stay, with who discarded them and why.

    At a terminal, --apply with --all shows their number and asks for confirmation. Exits with 1 if any was refused
    because it was no longer open.
    """
    admin = Admin(ledger.engine(), schema=ledger.schema)
    chosen = filters.chosen(ids, everything)
    if everything and group is None:
        raise ConfigError("--all needs --group: name the group whose dead letters are discarded")
    require_reason(apply, reason)
    if apply and everything and not yes and group is not None and at_terminal():
        count = len(admin.dead_letters(group).plan_discard(chosen))
        confirm(f"discard {numbered(count, 'dead letter')} of {group}?")
    outcomes: list[Discarded] = []
    numbers = itertools.count(1)
    with _progress() as progress:
        for name, selection in _by_group(admin, group, chosen).items():
            dead_letters = admin.dead_letters(name, actor=actor)
            if apply:
                outcomes += dead_letters.discard(
                    selection, reason=reason or "", progress=lambda _: progress("discarding", next(numbers), 0)
                )
            else:
                outcomes += dead_letters.plan_discard(selection)
    _print_discarded(outcomes, apply=apply, as_json=ledger.as_json)


@app.command()
@command
def export(
    group: Group,
    *,
    ledger: DatabaseOptions,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file, not to stdout.")
    ] = None,
    filters: StateFilters,
) -> None:
    """Write dead letters as JSON lines, without loss: one object each; bytes as base64, and as text if they are UTF-8.

    By default the open ones. The file appears once it is complete.
    """
    dead_letters = _dead_letters(ledger, group)
    lines = (
        json.dumps(as_line(dead_letters.get(dead_letter.id), group))
        for dead_letter in dead_letters.list(filters.where())
    )
    if output is None:
        for line in lines:
            typer.echo(line)
        return
    count = 0
    with _progress() as progress, complete_file(output) as file:
        for count, line in enumerate(lines, 1):
            file.write(f"{line}\n")
            progress("exporting", count, 0)
    typer.echo(f"{numbered(count, 'dead letter')} in {output}", err=True)


@app.command(no_args_is_help=True)
@command
def purge(
    group: Group,
    *,
    ledger: LedgerOptions,
    older_than: Annotated[str, typer.Option(metavar="AGE", help="Only those closed longer ago than this: 12h, 30d.")],
    state: Annotated[
        list[State] | None,
        typer.Option("--state", help="Only those in this state (repeatable). Default: replayed."),
    ] = None,
    apply: Apply = False,
    reason: Reason = None,
    actor: Actor = None,
) -> None:
    """Delete dead letters that were replayed and closed long ago; never open ones.

    Dead letters in other closed states stay, unless --state names the state: the row of a discarded or skipped record
    shows that it was not applied, and a superseded dead letter's record may not have been read again yet. Without
    --apply, only count by state.
    """
    require_reason(apply, reason)
    admin = Admin(ledger.engine(), schema=ledger.schema)
    plan = admin.plan_purge(group, duration(older_than, "--older-than"), state or APPLIED)
    deleted = admin.apply(plan, reason=reason or "", actor=actor) if apply and not plan.is_done else None
    consequences = [f"  - {consequence}" for consequence in plan.consequences]
    if deleted is not None:
        states = f": {by_state(deleted)}" if deleted else ""
        lines = [f"{group}: deleted {numbered(sum(deleted.values()), 'dead letter')}{states}"]
    elif plan.is_done:
        lines = [f"{group}: no dead letter was closed before {moment(plan.before)}; nothing to do", *consequences]
    else:
        lines = [f"would purge {group}:", *consequences, "dry run; --apply does it"]
    answer(asdict(plan) | {"applied": deleted is not None, "deleted": deleted}, *lines, as_json=ledger.as_json)


# -- inside -----------------------------------------------------------------------------------------------


def _dead_letters(ledger: DatabaseOptions, group: str) -> GroupDeadLetters:
    return Admin(ledger.engine(), schema=ledger.schema).dead_letters(group)


def _by_group(admin: Admin, group: str | None, chosen: Chosen) -> dict[str, Chosen]:
    """The chosen dead letters by group, because ids may belong to several groups."""
    if group is not None or not isinstance(chosen, list):
        assert group is not None
        return {group: chosen}
    ids: dict[str, list[int]] = {}
    for dead_letter_id in chosen:
        ids.setdefault(admin.group_of_dead_letter(dead_letter_id), []).append(dead_letter_id)
    return {**ids}


def _progress() -> Shown:
    return Shown(unit="dead letters", terminal_only=True)


def _print_plan(plan: Sequence[Planned], *, as_json: bool) -> None:
    refused = sum(entry.refusal is not None for entry in plan)
    if plan and not as_json:
        print_plan(plan)
    count = f"dry run: {len(plan) - refused} would be replayed, {refused} refused; --apply does it"
    report = [as_place(entry.dead_letter, after=entry.after, refusal=_masked(entry.refusal)) for entry in plan]
    answer({"applied": False, "planned": report}, count if plan else NOTHING, as_json=as_json)
    if refused:
        raise typer.Exit(FAILED)


def _print_summary(summary: Summary, *, as_json: bool) -> None:
    failed = [
        (outcome.dead_letter, _masked(outcome.failure.error if outcome.failure else None)) for outcome in summary.failed
    ]
    refused = [(outcome.dead_letter, _masked(outcome.refusal)) for outcome in summary.refused]
    answer(
        {
            "applied": True,
            "replayed": summary.replayed,
            "failed": [as_place(dead_letter, error=error) for dead_letter, error in failed],
            "refused": [as_place(dead_letter, refusal=refusal) for dead_letter, refusal in refused],
        },
        *(f"failed again: {dead_letter.id_and_place}: {error}" for dead_letter, error in failed),
        *(f"refused: {refusal}" for _, refusal in refused),
        f"{summary.replayed} replayed, {len(failed)} failed again, {len(refused)} refused"
        if summary.replayed or failed or refused
        else NOTHING,
        as_json=as_json,
    )
    if not summary.is_complete:
        raise typer.Exit(FAILED)


def _print_discarded(outcomes: Sequence[Discarded], *, apply: bool, as_json: bool) -> None:
    refused = sum(outcome.refusal is not None for outcome in outcomes)
    report = [as_place(outcome.dead_letter, refusal=_masked(outcome.refusal)) for outcome in outcomes]
    states = Counter(outcome.dead_letter.state.value for outcome in outcomes if outcome.refusal is None)
    by_states = f" ({by_state(states)})" if states and not apply else ""
    count = f"{len(outcomes) - refused:,} {'' if apply else 'would be '}discarded{by_states}, {refused:,} refused"
    last = (count if apply else f"dry run: {count}; --apply does it") if outcomes else NOTHING
    lines = (_discarded(outcome, apply=apply) for outcome in outcomes)
    answer({"applied": apply, "discarded": report}, *lines, last, as_json=as_json)
    if refused:
        raise typer.Exit(FAILED)


def _discarded(outcome: Discarded, *, apply: bool) -> str:
    if outcome.refusal is not None:
        return f"refused: {masked(outcome.refusal)}"
    if apply:
        return f"discarded: {outcome.dead_letter.id_and_place}"
    return f"would be discarded: {outcome.dead_letter.id_and_place}: {cut(outcome.dead_letter.error)}"


def _masked(text: str | None) -> str | None:
    return None if text is None else masked(text)
