"""What ends a staging, on its way from a task to the driver: as text, and at once in the run's schema."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any
from uuid import UUID

from psycopg import sql as ident
from sqlalchemy import Engine

from seekpoint import errors
from seekpoint.errors import (
    ArchiveDamaged,
    ConfigError,
    RangeLost,
    RangeStuck,
    ReloadOver,
    ReloadRefused,
    SeekpointError,
    TopicRecreated,
)
from seekpoint.jobs.run import statements as sql
from seekpoint.jobs.run.run import Tx, transaction
from seekpoint.jobs.tables.compose import name, rows, run
from seekpoint.jobs.tables.staging_schema import is_there, unlogged
from seekpoint.records import Partition

#: No other attempt would get over these. Whether one ends the run, too, the driver says (``job.ENDS``): a file that is
#: damaged can be brought back.
ENDS = (ArchiveDamaged, ConfigError, RangeLost, RangeStuck, ReloadOver, ReloadRefused, TopicRecreated)


def error_as_text(error: SeekpointError) -> str:
    """The error as text, from which :func:`error_of` makes it again."""
    state = {
        key: [*value] if isinstance(value, tuple) else value
        for key, value in vars(error).items()
        if isinstance(value, str | int | tuple) or value is None
    }
    return json.dumps([type(error).__name__, str(error), state], default=str)


def error_of(text_: str) -> SeekpointError:
    """What :func:`told` told of."""
    kind_, message, state = json.loads(text_)
    kind: Any = getattr(errors, kind_)
    ending: SeekpointError = kind.__new__(kind)
    Exception.__init__(ending, message)
    for key, value in state.items():
        made = Partition(*value) if key == "partition" else tuple(value) if isinstance(value, list) else value
        setattr(ending, key, made)
    return ending


def _path(staging_schema: str) -> tuple[str, str]:
    return staging_schema, "endings"


def make_endings(tx: Tx, staging_schema: str) -> None:
    """The table in which a run's tasks tell what ends it."""
    run(
        tx.connection,
        "CREATE {unlogged} TABLE {table} (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, said text NOT NULL)",
        unlogged=unlogged(staging_schema),
        table=name(*_path(staging_schema)),
    )


def tell_ending(engine: Engine, schema: str, run_id: UUID, error: SeekpointError) -> None:
    """Tell the driver, who looks each second; a run that is gone needs to be told nothing."""
    with transaction(engine, schema) as tx:
        of = tx.execute(sql.GET_RUN, its_run=run_id).one_or_none()
        if of is not None and is_there(tx.connection, _path(of.staging_schema)):
            path = _path(of.staging_schema)
            run(
                tx.connection,
                "INSERT INTO {table} (said) VALUES ({said})",
                table=name(*path),
                said=ident.Literal(error_as_text(error)),
            )


def endings(tx: Tx, staging_schema: str, but: Collection[int] = ()) -> dict[int, SeekpointError]:
    """What tasks have told, but for these; by number."""
    if not is_there(tx.connection, _path(staging_schema)):
        return {}
    found = rows(tx.connection, "SELECT id, said FROM {table} ORDER BY id", table=name(*_path(staging_schema)))
    return {number: error_of(said) for number, said in found if number not in but}
