"""Every write strategy of a sink leaves the table that a plain model leaves: row by row, by the server alone.

``make properties EXAMPLES=20000`` is the long form: ``SEEKPOINT_EXAMPLES`` says how many examples each test draws.
"""

from __future__ import annotations

import ipaddress
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, StrEnum
from functools import partial
from itertools import product
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg import sql
from psycopg.types.json import Json, Jsonb
from psycopg.types.range import Range
from sqlalchemy import Engine, create_engine, text

import seekpoint
from seekpoint.codecs.json import JsonFloat
from seekpoint.pipeline.sink import RowRefused
from seekpoint.records import AnyRecord
from seekpoint.sinks import Upsert
from seekpoint.sinks.copy import driver_of
from seekpoint.sinks.json_text import json_text
from seekpoint.sinks.upsert.strategy import WriteStrategy
from seekpoint.testing import record
from support.databases import create_extension
from support.sink_tables import Forced, Rows, SinkTables, by_append, by_arrow, by_small_append, write, writer_of

EXAMPLES = int(os.environ.get("SEEKPOINT_EXAMPLES", "0"))
SHARDS = 4 if EXAMPLES else 1  # of a test, side by side


# -- types, and values that some would take for equal and others would not --------------------------------------------

ZONES = [
    ZoneInfo("Europe/Berlin"),
    ZoneInfo("America/New_York"),
    ZoneInfo("Australia/Lord_Howe"),  # half an hour
    ZoneInfo("UTC"),
    UTC,
    timezone(timedelta(hours=1)),
    timezone(timedelta(hours=2)),
]
CLOCKS = [
    datetime(2026, 3, 29, 2, 30),  # never shown in Berlin
    datetime(2026, 3, 29, 3, 30),
    datetime(2026, 10, 25, 2, 30),  # shown twice in Berlin
    datetime(2026, 10, 25, 3, 30),
    datetime(2026, 10, 25, 0, 30),
    datetime(2026, 11, 1, 1, 30),  # twice in New York
    datetime(2026, 4, 5, 1, 45),  # twice on Lord Howe
    datetime(2026, 10, 25, 0, 30, 0, 400000),
]
NAIVE = [*CLOCKS, *(clock.replace(fold=1) for clock in CLOCKS)]
AWARE = [clock.replace(tzinfo=zone, fold=fold) for clock, zone, fold in product(CLOCKS, ZONES, (0, 1))]
ONE = uuid.UUID("0190d5b0-0000-7000-8000-00000000000a")
TEXTS = ["a", "A", "a ", "ä", "Ä", "a\u0308", "b", "B", "", " ", "1", "1.0"]


class Options(NamedTuple):
    """Of a sink."""

    round: bool
    timezone: str | None


OPTIONS = [Options(*options) for options in product((True, False), (None, "UTC"))]


class Values(NamedTuple):
    """Of a type: ``all``, and those among them that a sink takes, by its options."""

    all: Sequence[Any]
    taken: Mapping[Options, Sequence[Any]]


class Mood(Enum):
    """Its values are labels."""

    LOW = "low"
    HIGH = "high"


class Level(Enum):
    """Its names are labels, and its values integers."""

    low = 1
    high = 2


class Letter(StrEnum):
    SMALL = "a"
    LARGE = "A"


def number(text: str) -> Any:
    """The number as the codec decodes it without a type."""
    return seekpoint.Json()(text.encode())


LONG = "12345678901234567890.12345678"  # with one digit more, a float of the same value


JSON = [
    *("5", "null", "true", "text", "", "[1,2]", 5, 5.0, Decimal("5.00"), True, [1, 2], [1.0, "2"], ["{}"], {"a": [1]}),
    *({"a": [1.0]}, Json(None), Jsonb("5"), float("nan"), b"5", date(2026, 1, 1), {"at": date(2026, 1, 1)}),
]

TYPES: Mapping[str, Sequence[Any]] = {
    "bool": [True, False, "t", "no"],
    "smallint": [0, 1, 2, "1", "01", True],
    "bigint": [0, 1, 2, 10, -1, "1", " 1", 2**62, *Level, Decimal("1.5")],
    "numeric": [0, 1, 2, Decimal(1), Decimal("1.0"), Decimal("1.00"), Decimal("-0"), Decimal("0.0"), Decimal("1E+1"),
                10, Decimal("NaN"), 1.0, 0.1, Decimal("0.1"), "1", "1.000", 1e16,
                number(f"{LONG}1"), number(f"{LONG}2"), number("1.00000000000000000"), Level.low],
    "numeric(6,2)": [1, Decimal("1.001"), Decimal("1.004"), Decimal("1.005"), Decimal("1.01"), "1.0", 1.005,
                     number("1.0000000000000000000"), number("1.0000000000000000001"), Level.low],
    "float8": [0.0, -0.0, float("nan"), float("inf"), 1, 1.0, 0.1, Decimal("0.10"), "-0", 1e16, 1e-7],
    "real": [0.0, -0.0, 0.1, 0.10000000149011612, Decimal("0.1"), float("nan"), 16777216, 16777217],
    "text": [*TEXTS, 1, 1.0, Decimal("1.0"), 1e16, date(2026, 1, 1), AWARE[0], time(12), timedelta(1), ONE, *Letter,
             *Level, number("1.00000000000000000"), True, b"a", ["a"], ("a", 1)],
    "varchar(3)": ["ab", "ab ", "ab    ", "abc", "abc  ", "ABC", "abcd", *Letter, False, (1,)],
    "char(3)": ["ab", "ab ", "ab    ", "abc", "AB", "", "abcd"],
    "bpchar": ["ab", "ab ", "AB", ""],
    "short": ["ab", "ab ", "abc", "abcd", "abcdef"],
    "bytea": [b"a", memoryview(b"a"), bytearray(b"a"), b"", b"b", "\\x61", "a"],
    "date": [date(2026, 3, 29), date(2026, 3, 30), "2026-03-29", "29.03.2026"],
    "timestamptz": [*AWARE, *NAIVE, "2026-10-25 00:30:00+00", date(2026, 3, 29)],
    "timestamptz(0)": AWARE,
    "moment": AWARE[::3],
    "timestamp": [*NAIVE, *AWARE[::5], "2026-10-25 00:30", "2026-10-25T02:30:00+02:00", date(2026, 3, 29)],
    "time": [time(2, 30), time(2, 30, fold=1), "02:30", time(2, 30, 0, 1)],
    "timetz": [time(2, 30, tzinfo=UTC), time(3, 30, tzinfo=timezone(timedelta(hours=1))), "02:30+00"],
    "uuid": [ONE, str(ONE), str(ONE).upper(), ONE.hex, f"{{{ONE}}}", uuid.UUID(int=1), str(uuid.UUID(int=1))],
    "inet": ["10.0.0.1", "10.0.0.1/32", "10.0.0.1/24", ipaddress.ip_address("10.0.0.1"), "::1"],
    "interval": [timedelta(1), "1 day", "24:00", timedelta(hours=24, seconds=1), "1 mon", "30 days", timedelta(0)],
    "interval hour": [timedelta(hours=10), "10", "10:30", "10 hours"],
    "mood": ["low", "high", "Low", "mid", *Mood, *Level, True, ("low",)],  # in no order of the alphabet
    "int[]": [[1], [1, 2], (1, 2), [], "{1}", [None], [Level.low, None]],
    "numeric[]": [[Decimal(1)], [Decimal("1.0")], [1], "{1.00}"],
    "int4range": ["[1,3)", "[1,2]", Range(1, 3), "empty", "[2,2)", (1, 3)],
    "pair": ["(1,1.0)", "(1,1)", "(1,)", (1, Decimal("1.00"))],
    "money": ["1", "1.00", Decimal(1), 1, 1.005, Level.low],
    "bit(3)": ["101", "100", "10"],
    '"char"': ["a", "ab", "A"],
    "name": ["a", "A", "a "],
    "json": JSON,
    "jsonb": JSON,
    "document": JSON,
    "jsonb[]": [["5", 5, None], [[1], {"a": 1}], [True, "null"], [], "{5}"],
}  # fmt: skip
OPTIONAL: Mapping[str, Sequence[Any]] = {"citext": TEXTS, "blind": TEXTS}  # an extension, a nondeterministic collation
NO_ORDER = frozenset({"pair", "json"})
NO_KEY = frozenset({"json"})


@pytest.fixture(params=range(SHARDS))
def typed_tables(seekpoint_engine: Engine, seekpoint_schema: str) -> Iterator[SinkTables]:
    """A schema with types of its own; tables are made as examples need them."""
    engine = create_engine(seekpoint_engine.url, connect_args={"options": "-c synchronous_commit=off"})
    sink_tables = SinkTables(engine, seekpoint_schema)
    sink_tables.sql(
        "CREATE TYPE mood AS ENUM ('low', 'mid', 'high', 'Low'); CREATE TYPE pair AS (a int, b numeric);"
        "CREATE DOMAIN short AS varchar(3); CREATE DOMAIN moment AS timestamptz;"
        "CREATE DOMAIN document AS jsonb"
    )
    yield sink_tables
    engine.dispose()


@pytest.fixture
def types(typed_tables: SinkTables) -> Mapping[str, Values]:
    """Those that this server has."""
    types = dict(TYPES)
    collation = "CREATE COLLATION blind (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
    for kind, create in (
        ("citext", partial(create_extension, typed_tables.engine, "citext")),
        ("blind", partial(typed_tables.sql, collation)),
    ):
        try:
            create()
        except Exception as error:  # noqa: BLE001 -- SQLAlchemy's, of whatever the server lacks
            print(f"{kind} is left out: {error.__cause__ or error}")
        else:
            types[kind] = OPTIONAL[kind]
    return {kind: Values(values, _taken(typed_tables, kind, values)) for kind, values in types.items()}


def meant(value: Any, kind: str, options: Options) -> Any:
    """What the model gives the driver for a column of this type. Raises ValueError for a value that a sink refuses."""
    if value is None:
        return None
    if kind.endswith("[]"):
        return [meant(item, kind[:-2], options) for item in value] if isinstance(value, list | tuple) else value
    if isinstance(value, Enum):
        value = value.name if kind == "mood" and isinstance(value, Level) else value.value
    if kind in {"json", "jsonb", "document"}:
        return value if isinstance(value, Json | Jsonb) else Json(value, dumps=json_text)
    if isinstance(value, JsonFloat):
        value = Decimal(value.text)
    if kind in RULES:
        value = RULES[kind](value, options)
    return str(value) if isinstance(value, uuid.UUID) else value


def meant_row(row: Sequence[Any], kinds: Sequence[str], options: Options) -> list[Any]:
    """The row's values as the model gives them to the driver."""
    return [meant(value, kind, options) for value, kind in zip(row, kinds, strict=True)]


def _text(value: Any, _: Options) -> Any:
    if isinstance(value, bool | bytes | list | tuple):
        raise ValueError("its text is another value")
    return value


def _of_one_byte(value: Any, _: Options) -> Any:
    if len(value) > 1:
        raise ValueError("a byte would be lost")
    return value


def _of_two_digits(value: Any, options: Options) -> Any:
    if not options.round and round(Decimal(str(value)), 2) != Decimal(str(value)):
        raise ValueError("a digit would be lost")
    return value


def _local(value: Any, options: Options) -> Any:
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    if not isinstance(moment, datetime) or (offset := moment.utcoffset()) is None:
        return value
    if options.timezone is None:
        raise ValueError("the offset would be lost")
    return moment.replace(tzinfo=None) - offset


def _money(value: Any, options: Options) -> Any:
    if not options.round and not isinstance(value, int):
        raise ValueError("a digit would be lost")
    return value


RULES: Mapping[str, Callable[[Any, Options], Any]] = {
    **dict.fromkeys(("text", "varchar(3)", "mood", "int4range"), _text),
    '"char"': _of_one_byte,
    "numeric(6,2)": _of_two_digits,
    "timestamp": _local,
    "money": _money,
}


def _taken(sink_tables: SinkTables, kind: str, values: Sequence[Any]) -> Mapping[Options, Sequence[Any]]:
    """Those that a sink takes for a column of this type, by its options."""
    sink_tables.sql(f"DROP TABLE IF EXISTS given; CREATE TABLE given (v {body(kind)})")
    path = sink_tables.schema, "given"
    taken: dict[Options, Sequence[Any]] = {}
    for options in OPTIONS if kind in RULES else OPTIONS[:1]:
        taken[options] = [value for value in values if by_model(sink_tables, path, [kind], options, [(value,)])]
    return {options: taken.get(options, taken[OPTIONS[0]]) for options in OPTIONS}


def body(kind: str) -> str:
    """The column's declaration."""
    return {"blind": "text COLLATE blind", "citext": "public.citext"}.get(kind, kind)


def few(examples: int) -> settings:
    """Settings of a test that takes a second, or with SEEKPOINT_EXAMPLES as long as that says."""
    return settings(max_examples=-(-EXAMPLES // SHARDS) or examples, database=None)


# -- Upsert -----------------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """One record: which of the values it has in each column; ``gone``: it is a tombstone."""

    key: tuple[Any, ...]
    value: Any
    order: Any
    gone: bool


class Case(NamedTuple):
    """A table's columns, and transactions of records."""

    keys: tuple[str, ...]
    value: str
    order: str | None  # the type of order_by's column; "offset": an offset_column instead
    options: Options
    batches: list[list[Step]]


@st.composite
def cases(draw: st.DrawFn, types: Mapping[str, Values]) -> Case:
    keys = draw(st.lists(st.sampled_from(sorted(types.keys() - NO_KEY)), min_size=1, max_size=2))
    value = draw(st.sampled_from(sorted(types)))
    options = draw(st.sampled_from(OPTIONS))
    order = draw(st.none() | st.just("offset") | st.sampled_from(sorted(types.keys() - NO_ORDER)))
    # Values that are refused only as keys: other columns of a row that is not the newest may be looked at or not.
    # Few values, so that keys come again; another spelling of the same one is as likely as the same.
    pools = [draw(st.lists(st.sampled_from(range(len(types[key].all))), min_size=1, max_size=4)) for key in keys]
    columns = [
        st.sampled_from([types[key].all[index] for index in pool]) for key, pool in zip(keys, pools, strict=True)
    ]
    orders = st.none() if order in {None, "offset"} else st.sampled_from(types[str(order)].taken[options])
    step = st.builds(
        Step,
        st.tuples(*columns),
        st.none() | st.sampled_from(types[value].taken[options]),
        orders,
        st.sampled_from([False] * 4 + [True]),
    )
    batches = draw(st.lists(st.lists(step, min_size=1, max_size=6), min_size=1, max_size=4))
    return Case(tuple(keys), value, order, options, batches)


def _table(strategy: WriteStrategy) -> str:
    return f"t_{strategy.value}"


class Table:
    """One combination of types, in as many tables as there are strategies, and the model's."""

    def __init__(self, sink_tables: SinkTables, case: Case) -> None:
        self.sink_tables, self.case = sink_tables, case
        self.keys = [f"k{n}" for n in range(len(case.keys))]
        self.columns = [*self.keys, "v", *(["o"] if case.order else [])]
        kinds = [
            *case.keys,
            case.value,
            *([] if case.order is None else ["bigint" if case.order == "offset" else case.order]),
        ]
        self.body = ", ".join(f"{name} {body(kind)}" for name, kind in zip(self.columns, kinds, strict=True))
        self.kinds = [*kinds, "bool", "int"]

    def sink(self, strategy: WriteStrategy) -> Upsert:
        """A sink of its own table."""
        options: dict[str, Any] = {**self.case.options._asdict(), **({"order_by": "o"} if self.case.order else {})}
        columns = self.columns
        if self.case.order == "offset":
            del options["order_by"]
            options, columns = {**options, "offset_column": "o"}, self.columns[:-1]
        sink = Upsert(
            (self.sink_tables.schema, _table(strategy)),
            key=self.keys,
            columns=columns,
            tombstone_key=lambda r: r.key,
            **options,
        )
        writer_of(sink).strategies = Forced(strategy)
        return sink

    def create(self) -> None:
        """Make the strategies' tables, and the model's: rows as they come, each key's newest, and the result."""
        key, all_ = ", ".join(self.keys), ", ".join(self.columns)
        same = " AND ".join(f"{{0}}.{key} = r.{key}" for key in self.keys)
        values = ", ".join(f"r.{column}" for column in self.columns)
        everything = ", ".join(f"{column} = excluded.{column}" for column in self.columns)
        newer = "({0}.o IS NULL OR {1}.o >= {0}.o)" if self.case.order else "true"
        tables = [_table(strategy) for strategy in WriteStrategy]
        self.sink_tables.sql(f"""
            DROP TABLE IF EXISTS given, newest, model, {", ".join(tables)};
            {" ".join(f"CREATE TABLE {table} ({self.body}, PRIMARY KEY ({key}));" for table in tables)}
            CREATE TABLE given ({self.body}, gone bool, line int);
            CREATE TABLE newest ({self.body}, gone bool, PRIMARY KEY ({key}));
            CREATE TABLE model ({self.body}, PRIMARY KEY ({key}));
            CREATE OR REPLACE PROCEDURE apply() LANGUAGE plpgsql
            SET search_path = "{self.sink_tables.schema}", public AS $$ -- public: citext's operators
            DECLARE r record;
            BEGIN
                FOR r IN SELECT * FROM given ORDER BY line LOOP
                    INSERT INTO newest AS stored ({all_}, gone) VALUES ({values}, r.gone)
                    ON CONFLICT ({key}) DO UPDATE SET {everything}, gone = excluded.gone
                    WHERE {newer.format("stored", "excluded")};
                END LOOP;
                FOR r IN SELECT * FROM newest LOOP
                    IF r.gone THEN
                        DELETE FROM model WHERE {same.format("model")} AND {newer.format("model", "r")};
                    ELSE
                        INSERT INTO model AS stored ({all_}) VALUES ({values})
                        ON CONFLICT ({key}) DO UPDATE SET {everything} WHERE {newer.format("stored", "excluded")};
                    END IF;
                END LOOP;
                TRUNCATE given, newest;
            END $$
        """)

    def apply_to_model(self, rows: Sequence[tuple[Any, ...]]) -> bool:
        """One transaction; False if the server refuses a row."""
        into = sql.SQL("COPY {}.given FROM STDIN").format(sql.Identifier(self.sink_tables.schema))
        with self.sink_tables.engine.connect() as connection:
            driver = driver_of(connection)
            try:
                with driver.cursor() as cursor, cursor.copy(into) as copy:
                    for row in rows:
                        copy.write_row(meant_row(row, self.kinds, self.case.options))
                driver.execute(sql.SQL("CALL {}.apply()").format(sql.Identifier(self.sink_tables.schema)))
            except (psycopg.DataError, psycopg.IntegrityError, TypeError, ValueError):
                return False
            driver.commit()
            return True


def images(sink_tables: SinkTables, name: str) -> list[Any]:
    """Every row as the server stores it."""
    with sink_tables.engine.connect() as connection:
        image = "encode(record_send(t), 'hex') AS image, CAST(t AS text)"
        of = text(f'SELECT {image} FROM "{sink_tables.schema}".{name} t ORDER BY 1')
        return [tuple(row) for row in connection.execute(of)]


def refusal(sink_tables: SinkTables, sink: Upsert, records: Sequence[AnyRecord]) -> Exception | None:
    """What the server says of a row that it refuses; None if it takes all, in one transaction."""
    try:
        write(sink_tables, sink, [row for record in records for row in writer_of(sink).rows(record)])
    except RowRefused as refused:
        return refused.cause
    return None


def strategies_agree(sink_tables: SinkTables, case: Case) -> None:
    table = Table(sink_tables, case)
    table.create()
    sinks = {strategy: table.sink(strategy) for strategy in WriteStrategy}
    offset = 0
    for batch in case.batches:
        records, rows = [], []
        for line, step in enumerate(batch):
            order = offset if case.order == "offset" else step.order
            record_key = (*step.key, order) if case.order and case.order != "offset" else step.key
            fields = dict(zip(table.columns, (*step.key, step.value, order), strict=False))
            records.append(record(None if step.gone else fields, key=record_key, offset=offset))
            known = (*step.key, None if step.gone else step.value, *([order] if case.order else []))
            rows.append((*known, step.gone, line))
            offset += 1
        expected = table.apply_to_model(rows)
        for strategy, sink in sinks.items():
            refused = refusal(sink_tables, sink, records)
            assert (refused is None) == expected, f"{strategy}: {refused or 'takes what the model refuses'}"
        model = images(sink_tables, "model")
        for strategy in sinks:
            assert images(sink_tables, _table(strategy)) == model, f"by {strategy}"


def test_every_strategy_of_an_upsert_leaves_the_table_of_the_model(
    typed_tables: SinkTables, types: Mapping[str, Values]
) -> None:
    @few(20)
    @given(cases(types))
    def check(case: Case) -> None:
        strategies_agree(typed_tables, case)

    check()


# -- Append -----------------------------------------------------------------------------------------------------------


@st.composite
def appended(draw: st.DrawFn, types: Mapping[str, Values]) -> tuple[list[str], Options, list[Any]]:
    """Types of columns, a sink's options, and rows; one of them may be refused."""
    options = draw(st.sampled_from(OPTIONS))
    kinds = draw(st.lists(st.sampled_from(sorted(types)), min_size=1, max_size=3))
    taken = [st.sampled_from([None, *types[kind].taken[options]]) for kind in kinds]
    rows = draw(st.lists(st.tuples(*taken), min_size=1, max_size=5))
    last = draw(st.tuples(*(st.sampled_from(types[kind].all) for kind in kinds)))
    return kinds, options, [*rows, *draw(st.sampled_from([[], [last]]))]


def by_model(
    sink_tables: SinkTables, path: tuple[str, str], kinds: Sequence[str], options: Options, rows: Rows
) -> bool:
    """Row by row; False if one is refused."""
    into = sql.SQL("COPY {} FROM STDIN").format(sql.Identifier(*path))
    with sink_tables.engine.connect() as connection:
        driver = driver_of(connection)
        try:
            for row in rows:
                with driver.cursor() as cursor, cursor.copy(into) as copy:
                    copy.write_row(meant_row(row, kinds, options))
        except (psycopg.DataError, psycopg.IntegrityError, TypeError, ValueError):
            return False
        driver.commit()
        return True


STRATEGIES = (by_append, by_small_append, by_arrow)


def test_every_strategy_of_an_append_stores_what_the_model_stores(
    typed_tables: SinkTables, types: Mapping[str, Values]
) -> None:
    @few(20)
    @given(appended(types))
    def check(case: tuple[list[str], Options, list[Any]]) -> None:
        kinds, options, rows = case
        columns = [f"c{n}" for n in range(len(kinds))]
        declared = ", ".join(f"{name} {body(kind)}" for name, kind in zip(columns, kinds, strict=True))
        tables = [strategy.__name__ for strategy in (by_model, *STRATEGIES)]
        typed_tables.sql(
            f"DROP TABLE IF EXISTS {', '.join(tables)};" + "".join(f"CREATE TABLE {t} ({declared});" for t in tables)
        )
        taken = by_model(typed_tables, (typed_tables.schema, "by_model"), kinds, options, rows)
        for strategy in STRATEGIES:
            with nullcontext() if taken else pytest.raises((RowRefused, psycopg.DataError)):
                strategy(typed_tables, (typed_tables.schema, strategy.__name__), columns, rows, **options._asdict())
            assert images(typed_tables, strategy.__name__) == images(typed_tables, "by_model"), strategy.__name__

    check()
