"""The ledger's statements, as text in the ``.sql`` files of this folder.

Each statement of a file begins with ``-- name: ...``; the comment after it says what the statement decides. Parameters
are the driver's ``%(name)s``. The files name the schema ``seekpoint``, which is replaced by the installed one, quoted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from psycopg.sql import Identifier

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"^ *--.*\n", re.MULTILINE)


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    """One statement of a file; ``text`` has no comments."""

    name: str
    text: str

    def in_schema(self, schema: str) -> str:
        """The statement for the driver, on the ledger in ``schema``."""
        return _in_schema(self, schema)


@cache
def _in_schema(query: Query, schema: str) -> str:
    quoted = Identifier(schema).as_string().replace("%", "%%")
    return re.sub(r"\bseekpoint\.", lambda _: f"{quoted}.", query.text)


def load(file: str) -> Mapping[str, Query]:
    """The statements of a file in this folder, by name."""
    _, *parts = _NAME.split((files(__name__) / file).read_text(encoding="utf-8"))
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return {name: Query(name, _COMMENT.sub("", body).strip().removesuffix(";")) for name, body in pairs}


def arrays(rows: Sequence[Sequence[Any]], *names: str) -> dict[str, list[Any]]:
    """The rows as one array for each column, as parameters of these names."""
    if not rows:
        return {name: [] for name in names}
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


def asking_for(partitions: Sequence[tuple[str, int]]) -> dict[str, list[Any]]:
    """The partitions as a statement's parameters; the caller sorts them in lock order if it locks their rows."""
    return arrays(partitions, "asked_topic", "asked_partition")


BATCH = load("batch.sql")
DEAD_LETTERS = load("dead_letters.sql")
EXPORT_MANIFEST = load("export_manifest.sql")
FORGET = load("forget.sql")
GROUPS = load("groups.sql")
PURGE = load("purge.sql")
RELOAD_RUN = load("reload_run.sql")
REPLACE = load("replace.sql")
REPLAY = load("replay.sql")
REPLAY_REQUEST = load("replay_request.sql")
RESETS = load("resets.sql")
SPARK = load("spark.sql")
STATUS = load("status.sql")
WAIT = load("wait.sql")
WORKER = load("worker.sql")
