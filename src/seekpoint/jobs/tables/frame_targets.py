"""Which DataFrames replace a handler up to the snapshot offsets: all tables of a group have one, or none has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from sqlalchemy import Connection

from seekpoint.errors import ConfigError
from seekpoint.jobs.run import Driver
from seekpoint.jobs.tables.targets import Path, PipelineSource, Target, resolve

Frame = Callable[[Any], Any]  # of a DataFrame of records to one of rows


@runtime_checkable
class FrameStager(Protocol):
    """A stager that can also compute ``frames=``."""

    def compute(self, driver: Driver, given: Sequence[PipelineSource], frames: Mapping[str, Frame]) -> None:
        """Fill the copies of a handler's tables with what ``frames`` make of the records before the stop offsets.

        In one transaction of the driver with the groups' positions; a group that is rebuilt in part already is left
        out. Raises ConfigError, ReloadRefused, ReloadOver, and what reading raises.
        """


def resolve_frames(
    connection: Connection, given: Sequence[PipelineSource], found: Sequence[Target], frames: Mapping[str, Frame]
) -> list[tuple[int, Target, Frame]]:
    """Each frame with its table and the number of the source whose records it is made of.

    Raises ConfigError for frames of other tables, and where some tables of a group with frames have none: the handler
    continues from where the frames end, with all of its tables.
    """
    paths: dict[Path, Frame] = {}
    for named, frame in frames.items():
        if (path := resolve(connection, named)) is None:
            raise ConfigError(f"frames={{{named!r}: ...}}: there is no such table")
        paths[path] = frame
    writers = {n: _written(connection, n, source, found) for n, source in enumerate(given) if source.has_handler}
    made: list[tuple[int, Target, Frame]] = []
    reasons: list[str] = []
    for n, written in writers.items():
        covered = [target for target in written if target.path in paths]
        if covered and (missing := [target.name for target in written if target.path not in paths]):
            reasons.append(
                f"group {given[n].group!r} writes {', '.join(missing)}, too: give frames= for all of its tables, or "
                "for none"
            )
        made += [(n, target, paths[target.path]) for target in covered]
    taken = [target.path for _, target, _ in made]
    if strange := sorted(".".join(path) for path in paths if path not in taken):
        reasons.append(f"frames= names {', '.join(strange)}, which no handler of these pipelines writes")
    if twice := sorted({".".join(path) for path in taken if taken.count(path) > 1}):
        reasons.append(f"{', '.join(twice)}: written by the handlers of several groups, so no frame has all of it")
    if reasons:
        raise ConfigError("; ".join(reasons))
    return made


def _written(connection: Connection, n: int, source: PipelineSource, found: Sequence[Target]) -> list[Target]:
    named = {resolve(connection, each) for each in source.pipeline.writes}
    return [
        target
        for target in found
        if target.path in named or target.handled_as in named or any(feed.source == n for feed in target.feeds)
    ]
