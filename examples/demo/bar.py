"""A progress bar, with lines about events above it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


@contextmanager
def bar(console: Console, what: str, total: int) -> Iterator[tuple[Callable[[int], None], Callable[[str], None]]]:
    """A progress bar up to ``total``; yields a function that sets it, and one that prints a line above it."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(what, total=total)

        def update(done: int) -> None:
            progress.update(task, completed=done)

        def tell(line: str) -> None:
            progress.console.print(line, highlight=False, markup=False, soft_wrap=True)

        yield update, tell
