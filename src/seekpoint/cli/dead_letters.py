"""``seekpoint dead-letters``: records that were passed and not applied, and what is done about them.

Exit codes: 0 where all that was meant is done (or would be); 1 where some failed again or were refused, and where
the database cannot be reached; 2 where the command, its configuration or the pipeline is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from sqlalchemy import Engine

from seekpoint.admin import Chosen, DeadLetterAdmin, DeadLetterReplay, Discarded, Planned, Replayed, Summary, group_of
from seekpoint.cli.dead_letter_options import Actor, All, Apply, Filters, Ids, StateFilters
from seekpoint.cli.dead_letter_tables import as_line, as_place, choices, cut, listed, plain, planned, print_whole, shown
from seekpoint.cli.errors import FAILED, explained, masked
from seekpoint.cli.option_groups import DatabaseOptions, LedgerOptions, grouped
from seekpoint.cli.run import Target
from seekpoint.cli.status import known_group
from seekpoint.errors import ConfigError
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.records import notes
from seekpoint.worker.target import load_pipeline

app = typer.Typer(
    help="Records that were passed and not applied: list, show, replay, discard, export.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,  # locals hold the database's URL
)

Group = Annotated[str, typer.Argument(help="The group's name, as the pipeline declares it.")]
NOTHING = "no open dead letters meet these conditions: there is nothing to do"
_UNLISTED = ("value", "traceback", "replay_traceback")


@app.command("list")
@grouped
def list_dead_letters(
    group: Group,
    *,
    ledger: LedgerOptions,
    filters: StateFilters,
    limit: Annotated[int, typer.Option(help="At most so many.", min=1)] = 100,
) -> None:
    """List a group's dead letters in the order of topic, partition and offset; by default those that are open."""
    with explained():
        engine = ledger.engine()
        known_group(engine, group, ledger.schema)
        dead_letters = DeadLetterAdmin(engine, group, schema=ledger.schema)
        where = filters.where()
        found = list(dead_letters.list(where, limit=limit + 1))
        is_cut, found = len(found) > limit, found[:limit]
        if ledger.as_json:
            typer.echo(json.dumps([as_line(one, group, *_UNLISTED) for one in found], indent=2))
        elif found:
            print_whole(listed(group, found))
        else:
            typer.echo(f"{group}: no dead letters{'' if filters.is_empty else ' meet these conditions'}")
        if is_cut:
            typer.echo(f"these are the first {limit}; --limit shows more", err=True)


@app.command()
@grouped
def show(
    id: Annotated[int, typer.Argument(metavar="ID")],  # noqa: A002 -- the word on the command line
    *,
    ledger: LedgerOptions,
    full: Annotated[bool, typer.Option("--full", help="The whole value, however long.")] = False,
) -> None:
    """Show one dead letter: the record, why it failed, how often it was tried, and what can be done next."""
    with explained():
        engine = ledger.engine()
        group = group_of(engine, id, schema=ledger.schema)
        dead_letters = DeadLetterAdmin(engine, group, schema=ledger.schema)
        dead_letter = dead_letters.get(id)
        first = dead_letters.first_of_key(dead_letter)
        if ledger.as_json:
            typer.echo(
                json.dumps(as_line(dead_letter, group) | {"choices": [*choices(dead_letter, group, first)]}, indent=2)
            )
            return
        for line in shown(dead_letter, group, full=full):
            typer.echo(line)
        typer.echo("what can be done")
        for line in choices(dead_letter, group, first):
            typer.echo(f"  {line}")


@app.command()
@grouped
def replay(
    target: Target,
    ids: Ids = None,
    *,
    ledger: LedgerOptions,
    everything: All = False,
    filters: Filters,
    apply: Apply = False,
    reason: Annotated[str, typer.Option(help="Why, for the record.")] = "replay",
    actor: Actor = None,
    while_paused: Annotated[bool, typer.Option("--while-paused", help="Though the group is paused.")] = False,
) -> None:
    """Put dead letters through their pipeline's own codecs, sinks and handler; each is applied once, and closed.

    Exits with 1 if some failed again or were refused: they stay open, with the new error beside the old one.
    """
    with explained():
        pipeline = _pipeline(target)
        engine = ledger.engine()
        redrive = DeadLetterReplay(pipeline, engine, schema=ledger.schema, actor=actor, while_paused=while_paused)
        chosen = filters.chosen(ids, everything)
        for one in ids or ():
            _refuse_anothers(engine, ledger.schema, one, pipeline)
        if not apply:
            _tell_plan(redrive.plan(chosen), as_json=ledger.as_json)
            return
        with _bar("replaying") as (bar, task):

            def progress(_: Replayed, done: int, total: int) -> None:
                bar.update(task, completed=done, total=total)

            try:
                summary = redrive.replay_all(chosen, reason=reason, progress=progress)
            except KeyboardInterrupt as aborted:
                raise KeyboardInterrupt(*notes(aborted)) from None
        _tell_summary(summary, as_json=ledger.as_json)


@app.command()
@grouped
def discard(
    ids: Ids = None,
    *,
    ledger: LedgerOptions,
    reason: Annotated[str, typer.Option(help="Why the records are given up.")],
    everything: All = False,
    group: Annotated[str | None, typer.Option(help="With --all: of this group.")] = None,
    filters: Filters,
    apply: Apply = False,
    actor: Actor = None,
) -> None:
    """Close dead letters without applying their records: the rows stay, with who gave them up and why.

    Exits with 1 if some were refused, because they were not open any more.
    """
    with explained():
        engine = ledger.engine()
        chosen = filters.chosen(ids, everything)
        if everything and group is None:
            raise ConfigError("--all needs --group: the group whose dead letters are meant")
        if not reason.strip():
            raise ConfigError("a record is given up for a reason: say which with --reason")
        done: list[Discarded] = []
        with _bar("discarding") as (bar, task):
            for name, mine in _by_group(engine, ledger.schema, group, chosen).items():
                known_group(engine, name, ledger.schema)
                dead_letters = DeadLetterAdmin(engine, name, schema=ledger.schema, actor=actor)
                if apply:
                    done += dead_letters.discard(mine, reason=reason, progress=lambda _: bar.advance(task))
                else:
                    done += dead_letters.plan_discard(mine)
        _tell_discarded(done, apply=apply, as_json=ledger.as_json)


@app.command()
@grouped
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
    with explained():
        engine = ledger.engine()
        known_group(engine, group, ledger.schema)
        dead_letters = DeadLetterAdmin(engine, group, schema=ledger.schema)
        where = filters.where()
        lines = (json.dumps(as_line(dead_letters.get(one.id), group)) for one in dead_letters.list(where))
        if output is None:
            for line in lines:
                typer.echo(line)
            return
        count = 0
        part = output.with_name(f"{output.name}.part")
        try:
            with _bar("exporting") as (bar, task), part.open("w", encoding="ascii") as file:
                for count, line in enumerate(lines, 1):  # noqa: B007 -- the last one is told
                    file.write(f"{line}\n")
                    bar.advance(task)
            part.replace(output)
        except OSError as failed:
            raise ConfigError(f"{output} cannot be written: {failed.strerror}") from None
        typer.echo(f"{count} dead letter{'' if count == 1 else 's'} in {output}", err=True)


# -- inside -----------------------------------------------------------------------------------------------


def _pipeline(target: str) -> Pipeline:
    """What applies the records; of a Worker its pipeline: the database is named on the command line."""
    return load_pipeline(target, from_here=True)


def _refuse_anothers(engine: Engine, schema: str, id: int, pipeline: Pipeline) -> None:  # noqa: A002
    """Raise ConfigError for a letter of another group, which says that the pipeline is the wrong one."""
    group = group_of(engine, id, schema=schema)
    if group != pipeline.group:
        raise ConfigError(
            f"dead letter {id} is of group {group!r}, and {pipeline} is not its pipeline: name the one of {group!r}"
        )


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
    """A progress bar on stderr, where that is a terminal; gone when it is done."""
    console = Console(stderr=True)
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield bar, bar.add_task(what, total=None)


def _tell_plan(plan: Sequence[Planned], *, as_json: bool) -> None:
    refused = sum(one.refusal is not None for one in plan)
    if as_json:
        lines = [as_place(one.dead_letter, after=one.after, refusal=_masked(one.refusal)) for one in plan]
        typer.echo(json.dumps({"applied": False, "planned": lines}, indent=2))
    else:
        if not plan:
            typer.echo(NOTHING)
            return
        print_whole(planned("dry run", plan))
        typer.echo(f"dry run: {len(plan) - refused} would be replayed, {refused} refused; --apply does it")
    if refused:
        raise typer.Exit(FAILED)


def _tell_summary(summary: Summary, *, as_json: bool) -> None:
    if as_json:
        failed = [as_place(one.dead_letter, error=_masked(_error(one))) for one in summary.failed]
        refused = [as_place(one.dead_letter, refusal=_masked(one.refusal)) for one in summary.refused]
        report = {"applied": True, "replayed": summary.replayed, "failed": failed, "refused": refused}
        typer.echo(json.dumps(report, indent=2))
    else:
        for one in summary.failed:
            where = f"{one.dead_letter.id} ({one.dead_letter.at} offset {one.dead_letter.offset})"
            typer.echo(f"failed again: {where}: {plain(masked(_error(one) or ''))}")
        for one in summary.refused:
            typer.echo(f"refused: {plain(masked(one.refusal or ''))}")
        typer.echo(f"{summary.replayed} replayed, {len(summary.failed)} failed again, {len(summary.refused)} refused")
    if not summary.is_complete:
        raise typer.Exit(FAILED)


def _tell_discarded(done: Sequence[Discarded], *, apply: bool, as_json: bool) -> None:
    refused = sum(one.refusal is not None for one in done)
    if as_json:
        lines = [as_place(one.dead_letter, refusal=_masked(one.refusal)) for one in done]
        typer.echo(json.dumps({"applied": apply, "discarded": lines}, indent=2))
    else:
        for one in done:
            where = f"{one.dead_letter.id} ({one.dead_letter.at} offset {one.dead_letter.offset})"
            would = (
                f"discarded: {where}" if apply else f"would be discarded: {where}: {plain(cut(one.dead_letter.error))}"
            )
            typer.echo(would if one.refusal is None else f"refused: {plain(masked(one.refusal))}")
        if not done:
            typer.echo(NOTHING)
            return
        count = f"{len(done) - refused} {'' if apply else 'would be '}discarded, {refused} refused"
        typer.echo(count if apply else f"dry run: {count}; --apply does it")
    if refused:
        raise typer.Exit(FAILED)


def _error(one: Replayed) -> str | None:
    return None if one.failure is None else one.failure.error


def _masked(text: str | None) -> str | None:
    return None if text is None else masked(text)
