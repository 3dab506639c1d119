"""Options that choose dead letters, and what they become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated

import typer

from seekpoint.admin import Chosen, Where
from seekpoint.cli.options import since
from seekpoint.errors import ConfigError
from seekpoint.ledger.dead_letters import OPEN
from seekpoint.ledger.tables import LARGEST_BIGINT, LARGEST_INTEGER
from seekpoint.records import Cause, State

STATES = ("open", "all", *State)  # what `--state` takes

Ids = Annotated[
    list[int] | None, typer.Argument(metavar="ID...", help="Dead letters, by their ids.", min=1, max=LARGEST_BIGINT)
]
All = Annotated[bool, typer.Option("--all", help="All open ones that meet the conditions below.")]
Apply = Annotated[bool, typer.Option("--apply", help="Do it. Without it, show what would be done.")]


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
