"""Refusals of a table that frames write name no command that refuses a SparkPipeline."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from seekpoint import remedies
from seekpoint.errors import ConfigError
from seekpoint.jobs.frames.table_checks import checked_tables


@pytest.mark.parametrize(
    ("message", "without"),
    [
        (f"t: {remedies.create_table()}, or correct its name", "t: create the table, or correct its name"),
        (
            f"add the column to the table ({remedies.change_table()}), or leave it out",
            "add the column to the table, or leave it out",
        ),
        (
            f"create it: CREATE UNIQUE INDEX; {remedies.change_table()}, too. A partial",
            "create it: CREATE UNIQUE INDEX. A partial",
        ),
    ],
)
def test_db_table_is_not_named(message: str, without: str) -> None:
    def check_tables(_: Any) -> None:
        raise ConfigError(message)

    source: Any = SimpleNamespace(pipeline=SimpleNamespace(check_tables=check_tables))
    connection: Any = None
    with pytest.raises(ConfigError) as refused:
        checked_tables(connection, source, [])
    assert refused.value.text == without
