"""Sessions that psycopg cannot read from are refused in one sentence, and not by what its first value does."""

from __future__ import annotations

import pytest
from sqlalchemy import make_url

from seekpoint import Json, Ledger, Pipeline, Worker, schema
from seekpoint.errors import ConfigError
from seekpoint.sinks import Append
from support.fixtures import NewEngine

REFUSED = pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"client_encoding": "SQL_ASCII"}, "its client_encoding is SQL_ASCII, .*: set client_encoding=utf8"),
        ({"client_encoding": "GBK"}, "its client_encoding is GBK, .*: set client_encoding=utf8"),
        ({"options": "-cDateStyle=SQL,DMY"}, "its DateStyle is 'SQL, DMY', .*: set DateStyle to ISO"),
        ({"options": "-cDateStyle=German"}, "its DateStyle is 'German, DMY', .*: set DateStyle to ISO"),
        ({"options": "-carray_nulls=off"}, "its array_nulls is off, .*: set array_nulls to on"),
    ],
    ids=["ascii", "gbk", "sql", "german", "nulls"],
)


@REFUSED
def test_refused(  # noqa: PLR0917 -- fixtures
    seekpoint_dsn: str,
    seekpoint_schema: str,
    group: str,
    new_engine: NewEngine,
    query: dict[str, str],
    said: str,
) -> None:
    url = make_url(seekpoint_dsn).update_query_dict(query)
    own = new_engine(url)
    pipeline = Pipeline(group, topics="t", value=Json(), sinks=[Append("t", columns=["id"])])
    kafka = {"bootstrap.servers": "127.0.0.1:1"}
    with pytest.raises(ConfigError, match=said):
        schema.upgrade(own, schema=seekpoint_schema)
    for engine in (url, own):
        with pytest.raises(ConfigError, match=said):
            Ledger(engine, group, schema=seekpoint_schema).read()
        with pytest.raises(ConfigError, match=said):
            Worker(pipeline, engine=engine, kafka=kafka, schema=seekpoint_schema).run()


def test_iso_dates_of_any_order(seekpoint_dsn: str, seekpoint_schema: str, group: str, new_engine: NewEngine) -> None:
    url = make_url(seekpoint_dsn).update_query_dict({"options": "-cDateStyle=ISO,DMY"})
    engine = new_engine(url)
    schema.upgrade(engine, schema=seekpoint_schema)
    assert Ledger(engine, group, schema=seekpoint_schema).read() == []
    schema.downgrade(engine, schema=seekpoint_schema)
