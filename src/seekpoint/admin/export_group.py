"""A group's dead letters and lost ranges as JSON lines in a file: a copy of what is deleted."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from seekpoint.admin.losses import lost_ranges
from seekpoint.errors import ConfigError
from seekpoint.ledger.dead_letters import dead_letter_of
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import FORGET
from seekpoint.worker.replay.dead_letter_admin import portable, portable_value

AT_ONCE = 20  # dead letters in memory, with their values


@dataclass(frozen=True, slots=True)
class Exported:
    """How many are in the file."""

    dead_letters: int
    lost_ranges: int
    run_dead_letters: int = 0

    def __str__(self) -> str:
        runs = f", {self.run_dead_letters} dead letters of reprocesses" if self.run_dead_letters else ""
        return f"{self.dead_letters} dead letters and {self.lost_ranges} lost ranges{runs}"


def export_group(tx: GroupConnection, file: Path) -> Exported:
    """Write every dead letter, as ``dead-letters export`` does, and every lost range; a file is there when complete.

    Those of reprocesses, too, each as an object ``reprocess_dead_letter``.
    Only its owner may read it: it has the records' values. Raises ConfigError where it cannot be written.
    """
    part = file.with_name(f"{file.name}.part")
    try:
        if file.exists():
            raise FileExistsError(errno.EEXIST, "it is there already")
        opened = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(opened, "w", encoding="ascii") as out:
            dead_letters = sum(_write(out, line) for line in _dead_letters(tx))
            run_dead_letters = sum(_write(out, line) for line in _of_runs(tx))
            lost_ranges = sum(_write(out, line) for line in _losses(tx))
            out.flush()
            os.fsync(out.fileno())
        part.replace(file)
        _sync_folder(file.absolute().parent)
    except OSError as failed:
        raise ConfigError(f"{file} cannot be written: {failed.strerror}") from None
    return Exported(dead_letters, lost_ranges, run_dead_letters)


def _write(out: Any, line: Mapping[str, Any]) -> int:
    out.write(json.dumps(line, default=str) + "\n")
    return 1


def _dead_letters(tx: GroupConnection) -> Iterator[dict[str, Any]]:
    """One after the other, as the server sends them."""
    with tx.stream(FORGET["every_dead_letter"], AT_ONCE) as rows:
        for row in rows:
            yield portable(dead_letter_of(row), tx.group)


def _of_runs(tx: GroupConnection) -> Iterator[dict[str, Any]]:
    with tx.stream(FORGET["every_run_dead_letter"], AT_ONCE) as rows:
        for row in rows:
            found = {name: portable_value(value) for name, value in row._asdict().items()}
            for name in ("header_names", "header_values"):
                found[name] = [portable_value(each) for each in found[name]]
            yield {"reprocess_dead_letter": found}


def _losses(tx: GroupConnection) -> Iterator[dict[str, Any]]:
    for lost in lost_ranges(tx, [tx.group]):
        found = asdict(lost)
        topic, number = found.pop("partition")
        yield {"lost_range": {"topic": topic, "partition": number} | found}


def _sync_folder(folder: Path) -> None:
    """The file's name survives a crash of the machine, as its bytes do."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
