"""An export in a separate process that tests kill: ``Exporter`` in the test, ``main`` in the process.

It halts at the chosen place, and reports that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sqlalchemy import create_engine

from seekpoint.jobs.export import Archive, Export, Written, delta, files, manifest
from seekpoint.kafka.ranges import Piece
from support.archive import ArchivedGroup
from support.job_process import JobProcess, halt

PLACES = ("planned", "in a file", "a file", "its row", "second file")


class Exporter(JobProcess):
    """A process with an export that halts at one of ``PLACES`` (or at ``table``: after the Delta table's commit)."""

    def __init__(self, archived_group: ArchivedGroup, step: str, **options: Any) -> None:
        group = options.pop("group", archived_group.group)
        super().__init__(
            "support.export_process",
            archived_group,
            group=group,
            root=archived_group.archive.root,
            step=step,
            options=options,
        )


def stand_in_a_file() -> None:
    written = files.write

    def cut(storage: Any, file: str, range_: Any, pieces: Iterable[Piece]) -> Written:
        def some() -> Iterator[Piece]:
            yield from pieces
            halt()

        return written(storage, file, range_, some())

    setattr(files, "ROWS", 5)  # noqa: B010 -- a constant
    setattr(files, "write", cut)  # noqa: B010 -- of another module


def stand_before(of: type, name: str, nth: int = 0) -> None:
    numbers, original = iter(range(99)), getattr(of, name)

    def halting(*args: Any, **named: Any) -> Any:
        if next(numbers) == nth:
            halt()
        return original(*args, **named)

    setattr(of, name, halting)


def stand_behind(of: type, name: str) -> None:
    original = getattr(of, name)

    def halting(*args: Any, **named: Any) -> None:
        original(*args, **named)
        halt()

    setattr(of, name, halting)


PLACED: dict[str, Callable[[], None]] = {
    "planned": lambda: stand_before(files.LocalWriter, "write"),
    "in a file": stand_in_a_file,
    "a file": lambda: stand_before(Export, "_commit"),
    "its row": lambda: stand_behind(manifest.Tx, "add"),
    "second file": lambda: stand_before(Export, "_commit", 1),
    "table": lambda: stand_behind(delta.DeltaLog, "add"),
}


def main(what: dict[str, Any]) -> None:
    """Export, up to where it halts."""
    PLACED[what["step"]]()
    engine = create_engine(what["url"])
    archive = Archive(what["root"], engine, schema=what["schema"])
    Export(engine, {"bootstrap.servers": what["brokers"]}, archive, what["group"], **what["options"]).run()
