"""The options of ``writeStream.format("seekpoint")``: what is missing or misspelled is refused in words."""

from __future__ import annotations

import pytest

from seekpoint.errors import ConfigError
from seekpoint.jobs.spark.settings import Env
from seekpoint.jobs.spark.sink_options import SinkOptions, sink_options
from support.every_row import for_each

NEEDED = {"group": "sales", "table": "public.sales"}


def test_options_have_their_names_in_any_case() -> None:
    assert sink_options(NEEDED) == SinkOptions("sales", "public.sales", (), Env("SEEKPOINT_DATABASE_URL"), "seekpoint")
    options = {name.lower(): value for name, value in NEEDED.items()} | {
        "KEY": "day, shop", "DATABASE": "SALES_URL", "ledgerschema": "ledger",
        "queryName": "sales", "checkpointLocation": "/checkpoints/sales",
    }  # fmt: skip
    assert sink_options(options) == SinkOptions("sales", "public.sales", ("day", "shop"), Env("SALES_URL"), "ledger")


REFUSED = {
    "no group": ({"group": ""}, "writeStream needs the option group whose offsets are committed with the rows"),
    "no table": ({"table": ""}, "writeStream needs the option table that the rows are written to"),
    "a misspelled name": ({"tabel": "sales"}, "has no option tabel: did you mean table?"),
    "another name": ({"batchsize": "3"}, "has no option batchsize: omit it; the options are database"),
    "a path": ({"path": "/sales"}, "writeStream has no path: name the table"),
    "brokers": ({"kafka.bootstrap.servers": "b:1"}, "is an option of readStream"),
    "a URL": ({"database": "postgresql://u:hunter2@db/sales"}, "database must be the name of an environment variable"),
}


@for_each(REFUSED)
def test_it_is_refused(name: str) -> None:
    options, reason = REFUSED[name]
    with pytest.raises(ConfigError) as refused:
        sink_options({**NEEDED, **options})
    assert reason in str(refused.value)
    assert "hunter2" not in str(refused.value)
