"""Writes a group's dead letters and lost ranges to a file, as JSON lines, before they are deleted."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from seekpoint.admin.losses import lost_ranges
from seekpoint.errors import ConfigError
from seekpoint.ledger.dead_letters import dead_letter_of
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import FORGET
from seekpoint.records import numbered
from seekpoint.storage import complete_file
from seekpoint.worker.replay.group_dead_letters import portable, portable_value

AT_ONCE = 20  # dead letters in memory, with their values


@dataclass(frozen=True, slots=True)
class Exported:
    """The numbers of dead letters and lost ranges in the file."""

    dead_letters: int
    lost_ranges: int
    run_dead_letters: int = 0

    def __str__(self) -> str:
        runs = f", {numbered(self.run_dead_letters, 'dead letter')} of reprocesses" if self.run_dead_letters else ""
        return f"{numbered(self.dead_letters, 'dead letter')} and {numbered(self.lost_ranges, 'lost range')}{runs}"


def export_group(tx: GroupConnection, file: Path) -> Exported:
    """Write all dead letters, as ``dead-letters export`` does, and all lost ranges to a file, which appears once
    complete.

    Dead letters of reprocesses are written as ``reprocess_dead_letter`` objects. The file has the records' values, so
    only its owner may read it. Raises ConfigError if it exists, or cannot be written.
    """
    if file.exists():
        raise ConfigError(f"{file} cannot be written: it already exists")
    with complete_file(file, mode=0o600) as out:
        dead_letters = sum(_write(out, line) for line in _dead_letters(tx))
        run_dead_letters = sum(_write(out, line) for line in _of_runs(tx))
        lost_ranges = sum(_write(out, line) for line in _losses(tx))
    return Exported(dead_letters, lost_ranges, run_dead_letters)


def _write(out: Any, line: Mapping[str, Any]) -> int:
    out.write(json.dumps(line, default=str) + "\n")
    return 1


def _dead_letters(tx: GroupConnection) -> Iterator[dict[str, Any]]:
    """Stream the dead letters, so that only a few are in memory."""
    with tx.stream(FORGET["every_dead_letter"], AT_ONCE) as rows:
        for row in rows:
            yield portable(dead_letter_of(row), tx.group)


def _of_runs(tx: GroupConnection) -> Iterator[dict[str, Any]]:
    with tx.stream(FORGET["every_run_dead_letter"], AT_ONCE) as rows:
        for row in rows:
            columns = {name: portable_value(value) for name, value in row._asdict().items()}
            for name in ("header_names", "header_values"):
                columns[name] = [portable_value(header) for header in columns[name]]
            yield {"reprocess_dead_letter": columns}


def _losses(tx: GroupConnection) -> Iterator[dict[str, Any]]:
    for lost in lost_ranges(tx, [tx.group]):
        fields = asdict(lost)
        topic, number = fields.pop("partition")
        yield {"lost_range": {"topic": topic, "partition": number} | fields}
