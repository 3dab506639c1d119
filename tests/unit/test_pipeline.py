"""Declarations: what they hold, and each contradiction they refuse."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any, get_overloads
from unittest.mock import patch

import pytest
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from seekpoint import Append, Batch, Bytes, Json, Pipeline, StartAt, Text, Upsert, Worker
from seekpoint.admin import Admin
from seekpoint.errors import ConfigError
from seekpoint.jobs.batch.batch import BatchJob
from seekpoint.jobs.reload.reload import Reload
from seekpoint.pipeline.pipeline import _Options
from seekpoint.pipeline.sink import RowRefused, Sink
from seekpoint.pipeline.writers import PipelineWriters
from seekpoint.records import Record
from seekpoint.testing import process, raw
from seekpoint.worker.import_by_name import load_pipeline


def handle(tx: Any, batch: Batch[Any, Any]) -> None:
    """A plain handler."""


async def handle_with_client(tx: Any, batch: Batch[Any, Any], client: str) -> None:
    """An async handler that uses resources."""


async def handle_later(tx: Any, batch: Batch[Any, Any]) -> None:
    """An async handler."""


@asynccontextmanager
async def clients() -> AsyncIterator[str]:
    """Resources of an async handler."""
    yield "client"


def handle_lazily(tx: Any, batch: Batch[Any, Any]) -> Iterator[None]:
    """Would return a generator."""
    yield


async def handle_lazily_later(tx: Any, batch: Batch[Any, Any]) -> AsyncIterator[None]:
    """Would return an asynchronous generator."""
    yield


def handle_swapped(records: Batch[Any, Any], tx: Any) -> None:
    """Would get the transaction as its batch."""


class Base(DeclarativeBase):
    """Of mapped classes."""


class Entry(Base):
    """A mapped class, in a schema."""

    __tablename__ = "entries"
    __table_args__ = {"schema": "billing"}  # noqa: RUF012 -- as SQLAlchemy takes it
    id: Mapped[int] = mapped_column(primary_key=True)


class Poster:
    """A callable object, and one with a method."""

    def __call__(self, tx: Any, batch: Batch[Any, Any]) -> None: ...

    def post(self, tx: Any, batch: Batch[Any, Any], *, currency: str = "EUR") -> None: ...


def declared(**options: Any) -> Pipeline:
    return Pipeline(**{"group": "g", "topics": "orders", "value": Bytes(), "handle": handle, **options})


# -- what it holds ------------------------------------------------------------------------------------------


def test_type_checkers_know_every_parameter() -> None:
    parameters = set(inspect.signature(Pipeline.__init__).parameters)
    declared = [set(inspect.signature(overload).parameters) for overload in get_overloads(Pipeline.__init__)]
    assert len(declared) == 4
    assert set().union(*declared) - {"options"} | set(_Options.__annotations__) == parameters
    assert not set().union(*declared) & set(_Options.__annotations__)


def test_the_least_that_is_needed() -> None:
    pipeline = Pipeline("billing", topics="orders", value=Json(), handle=handle)
    assert (pipeline.group, pipeline.topics, pipeline.tables, pipeline.version) == ("billing", ("orders",), (), 1)
    assert pipeline.start == StartAt.earliest()
    assert repr(pipeline) == "Pipeline('billing', topics=['orders'])"


@pytest.mark.parametrize("topics", [["b", "a"], ("b", "a"), {"b", "a"}, iter(["b", "a", "b"])])
def test_topics_are_names(topics: Any) -> None:
    assert declared(topics=topics).topics == ("a", "b")


def test_each_topic_may_have_a_codec_of_its_own() -> None:
    pipeline = declared(topics={"a": Json(int), "b": Text()}, value=None, key=Text())
    assert pipeline.topics == ("a", "b")
    headers = (("h", b"1"), ("h", None))
    record = raw(b"5", topic="a", partition=3, offset=9, key=b"k", headers=headers, leader_epoch=2)
    writers = PipelineWriters(pipeline)
    assert writers.decode(record) == Record("a", 3, 9, None, "k", 5, headers, 2)
    assert writers.decode(raw(b"5", topic="b")).value == "5"
    assert writers.values([record, raw(b"x", topic="b")]) == [5, "x"]


def test_tables_are_those_of_sinks_and_handler() -> None:
    sinks = [Append("s.b", columns=["x"]), Append(("odd.schema", "T"), columns=["x"])]
    assert declared(sinks=sinks, writes=["a", "s.b"]).tables == ("a", "odd.schema.T", "s.b")


@pytest.mark.parametrize(
    "plain",
    [
        handle,
        Poster(),
        Poster().post,
        functools.partial(Poster().post, currency="USD"),
        lambda tx, batch: None,
        lambda *arguments: None,
        lambda tx, batch, more=None: None,
    ],
)
def test_any_plain_callable_of_two_arguments_is_a_handler(plain: Any) -> None:
    assert declared(handle=plain).handle is plain


@pytest.mark.parametrize("name", ["a", "A-z_0.9", "x" * 249])
def test_names_that_a_broker_accepts(name: str) -> None:
    assert declared(topics=name).topics == (name,)


@pytest.mark.parametrize("name", ["g", "with 'quotes\"", "ü", "a\nb"])
def test_any_name_without_nul_is_a_groups(name: str) -> None:
    assert declared(group=name).group == name


def test_append_is_a_sink() -> None:
    assert isinstance(Append("t"), Sink)


# -- what it refuses ----------------------------------------------------------------------------------------

SINK = Append("t", columns=["x"])
URL = "postgresql+psycopg://localhost/none"
BROKERS = {"bootstrap.servers": "localhost:1"}


def load_by_name(pipeline: Pipeline) -> Pipeline:
    module = ModuleType("declared_here")
    vars(module)["made"] = pipeline
    with patch.dict(sys.modules, {"declared_here": module}):
        return load_pipeline("declared_here:made")


TAKERS: dict[str, Callable[[Pipeline], object]] = {
    "worker": lambda pipeline: Worker(pipeline, engine=URL, kafka=BROKERS),
    "command": load_by_name,
    "reload": lambda pipeline: Reload([pipeline], URL, BROKERS),
    "batch": lambda pipeline: BatchJob(pipeline, URL, BROKERS),
    "replay": lambda pipeline: Admin(URL).dead_letters(pipeline),
    "test kit": lambda pipeline: process(pipeline, URL, []),
}
"""None of them needs a server for that."""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group": ""}, r"a group needs a name that is not blank and has no NUL characters, got ''"),
        ({"group": " \t"}, r"a group needs a name that is not blank and has no NUL characters, got ' \\t'"),
        ({"group": "a\0b"}, r"a group needs a name that is not blank and has no NUL characters, got 'a\\x00b'"),
        ({"group": None}, r"a group needs a name that is not blank and has no NUL characters, got None"),
        ({"topics": []}, r"a pipeline needs at least one topic"),
        ({"topics": {}, "value": None}, r"a pipeline needs at least one topic"),
        ({"topics": ""}, r"'' cannot be a topic: a name has 1 to 249 characters of a-z, A-Z, 0-9, '\.', '_' and '-'"),
        ({"topics": "a b"}, r"'a b' cannot be a topic"),
        ({"topics": None}, r"topics= takes a name, a list of names, \{name: codec\} or a Pattern, got None"),
        ({"topics": "."}, r"'\.' cannot be a topic"),
        ({"topics": ".."}, r"'\.\.' cannot be a topic"),
        ({"topics": "ü"}, r"'ü' cannot be a topic"),
        ({"topics": "orders\n"}, r"'orders\\n' cannot be a topic"),
        ({"topics": "x" * 250}, r"cannot be a topic"),
        ({"topics": ["a", 5]}, r"5 cannot be a topic"),
        ({"topics": {"a": Bytes()}}, r"either in topics=\{name: codec\} or as value=, not both"),
        ({"value": None}, r"value= is missing: e\.g\. value=Json\(Order\), or value=Bytes\(\) to keep the bytes"),
        ({"value": "json"}, r"a codec must be callable or have decode\(record\), got 'json'"),
        ({"value": Json}, r"Json is a class, and a codec must be an instance: Json\(\.\.\.\)"),
        ({"key": 5}, r"a codec must be callable or have decode\(record\), got 5"),
        ({"topics": {"a": Bytes(), "b": 5}, "value": None}, r"a codec must be callable"),
        ({"handle": handle_lazily}, r"the handler is a generator, and would never run; write a function"),
        ({"handle": handle_lazily_later}, r"the handler is a generator"),
        (
            {"handle": handle_later, "resources": "client"},
            r"resources= must be a function .*context manager .*got 'client'",
        ),
        ({"handle": handle_later, "resources": handle_lazily_later}, r"resources= must be a .*asynccontextmanager"),
        ({"handle": handle_later, "resources": handle_later}, r"resources= must be a .*asynccontextmanager"),
        ({"handle": handle_later, "resources": clients()}, r"resources= must be a .*asynccontextmanager"),
        (
            {"handle": handle_later, "resources": clients},
            r"called as handle\(tx, batch, resources\): too many positional",
        ),
        (
            {"resources": clients},
            r"resources= are entered in the event loop of an async handler, but this handler is a plain",
        ),
        ({"handle": "post"}, r"the handler must be a function handle\(tx, batch\), got 'post'"),
        ({"handle": lambda batch: None}, r"the handler is called as handle\(tx, batch\): too many positional"),
        (
            {"handle": lambda tx, batch, more: None},
            r"called as handle\(tx, batch\): missing a required argument: 'more'",
        ),
        ({"sinks": SINK}, r"sinks= takes a sequence: write sinks=\[Append\('t'\)\]"),
        ({"sinks": [Append]}, r'is not a sink; that is the class: write sinks=\[Append\("table"\)\]'),
        ({"sinks": Append}, r'sinks=Append: that is the class; write sinks=\[Append\("table"\)\]'),
        ({"sinks": [lambda tx, batch: None]}, r"is not a sink; a function goes into handle="),
        ({"sinks": ["t"]}, r"'t' is not a sink; seekpoint\.Append is one"),
        ({"sinks": [Append("t", topics=["other"])]}, r"Append\('t'\) takes none of the pipeline's topics; correct its"),
        ({"sinks": [Append("t", topics=[])]}, r"Append\('t'\) takes none of the pipeline's topics"),
        (
            {"handle": lambda batch, tx: None},
            r"called as handle\(tx, batch\), and its first parameter 'batch' is a batch: put the transaction's",
        ),
        ({"handle": handle_swapped}, r"its first parameter 'records' is a batch"),
        ({"writes": [5]}, r"writes=: name it 'table' or 'schema\.table', or give .* a mapped class, got 5"),
        ({"writes": Entry}, r"writes=Entry: that is the class; write writes=\[Entry\]"),
        ({"writes": 5}, r"writes= takes a sequence: write writes=\[5\]"),
        ({"writes": "billing.entries"}, r"writes= takes a sequence: write writes=\['billing\.entries'\]"),
        ({"version": 0}, r"version must be a whole number, 1 or greater, got 0"),
        ({"version": "2"}, r"version must be a whole number, 1 or greater, got '2'"),
        ({"start": "earliest"}, r"start must be a StartAt, e\.g\. StartAt\.earliest\(\), got 'earliest'"),
        ({"on_poison": "pass"}, r"on_poison must be one of 'stop', 'dead_letter', 'skip', got 'pass'"),
    ],
)
def test_a_declaration_that_contradicts_itself_says_what_to_write(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        declared(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"Pipeline\('g', topics=\['orders'\]\) does nothing: give it sinks=\[\.\.\.\] or handle="),
        ({"resources": clients, "sinks": [SINK]}, r"resources= are for an async handler, but the pipeline has none"),
        (
            {"topics": ["a", "b", "c"], "sinks": [Append("t", topics="b")]},
            r"no sink takes records of a, c, which would be read and dropped: add a sink",
        ),
    ],
)
def test_whatever_takes_a_pipeline_refuses_one_that_leaves_records_undone(
    options: dict[str, Any], message: str
) -> None:
    declared_so_far = declared(handle=None, **options)
    for take in TAKERS.values():
        with pytest.raises(ConfigError, match=message):
            take(declared_so_far)


def test_a_handler_is_set_by_a_decorator() -> None:
    pipeline = declared(handle=None)
    assert pipeline.handler(handle) is handle
    assert pipeline.handle is handle
    with pytest.raises(ConfigError, match=r"already has the handler \S+\.handle, and a pipeline has only one"):
        pipeline.handler(handle_later)
    short: Any = len
    with pytest.raises(ConfigError, match=r"the handler is called as handle\(tx, batch\): too many"):
        declared(handle=None).handler(short)
    assert declared(handle=None, resources=clients).handler(handle_with_client) is handle_with_client


@pytest.mark.parametrize("taker", TAKERS)
def test_no_handler_is_set_once_a_pipeline_is_in_use(taker: str) -> None:
    pipeline = declared(handle=None, sinks=[SINK])
    TAKERS[taker](pipeline)
    with pytest.raises(ConfigError, match=r"a worker, a job or a command already uses .*: decorate its handler"):
        pipeline.handler(handle)


def test_tables_are_named_by_what_is_mapped_to_them() -> None:
    mapped, table = declared(writes=[Entry]), declared(writes=[Entry.__table__])
    assert mapped.writes == table.writes == ("billing.entries",)
    for sink in (Append(Entry), Append(Entry.__table__), Append(("billing", "entries"))):
        assert sink.tables == ("billing.entries",)
    assert repr(Upsert(Entry, key=["id"])) == "Upsert('billing.entries')"
    with pytest.raises(ConfigError, match=r"Append\('billing\.entries'\): give row= or rows=, not both"):
        Append(Entry, row=lambda r: r, rows=lambda r: [r])


def test_a_handler_takes_what_no_sink_takes() -> None:
    assert declared(topics=["a", "b"], sinks=[Append("t", topics="b")]).topics == ("a", "b")


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("",), {}, r"name it 'table' or 'schema\.table', or give a tuple of the parts"),
        (("a.b.c",), {}, r"name it 'table' or 'schema\.table'"),
        ((".t",), {}, r"name it 'table' or 'schema\.table'"),
        (((),), {}, r"name it 'table' or 'schema\.table'"),
        (("t",), {"row": lambda r: r, "rows": lambda r: [r]}, r"give row= or rows=, not both"),
        (("t",), {"columns": "id"}, r"columns must be a sequence of names, got 'id'"),
        (("t",), {"columns": []}, r"columns must be a sequence of names, got \[\]"),
        (("t",), {"columns": ["a", "b", "a"]}, r"columns= names a column twice: a, b, a"),
    ],
)
def test_a_sink_that_contradicts_itself_says_what_to_write(
    arguments: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Append(*arguments, **options)


def test_a_refused_row_says_its_line_where_it_is_known() -> None:
    cause = ValueError("too long")
    assert str(RowRefused(3, cause)) == "row 3: too long"
    assert str(RowRefused(None, cause)) == "too long"


@pytest.mark.parametrize(
    ("sink", "holds"),
    [(Upsert("t", key=["id"]), True), (Upsert("t", key=["id"], offset_column="at"), False), (Append("t"), False)],
)
def test_an_upsert_that_cannot_tell_which_row_is_newer_holds_its_keys(sink: Any, holds: bool) -> None:
    options: dict[str, Any] = {"topics": "t", "value": Json(), "sinks": [sink]}
    assert Pipeline("g", **options, on_poison="dead_letter").keep_key_order is holds
    assert not Pipeline("g", **options).keep_key_order
    if holds:  # what a declaration says is refused where it does not hold
        with pytest.raises(ConfigError, match=r"keep_key_order=False: .* in Upsert\(.*order_by= or offset_column="):
            Pipeline("g", **options, on_poison="dead_letter", keep_key_order=False)
    else:
        assert not Pipeline("g", **options, on_poison="dead_letter", keep_key_order=False).keep_key_order


def test_a_sink_that_keeps_the_first_row_of_a_key_holds_its_keys() -> None:
    options: dict[str, Any] = {"topics": "t", "value": Json(), "sinks": [Upsert("t", key=["id"], on_conflict="keep")]}
    assert Pipeline("g", **options, on_poison="dead_letter").keep_key_order
    with pytest.raises(ConfigError, match="first row, which the replay could not: leave keep_key_order= out"):
        Pipeline("g", **options, on_poison="dead_letter", keep_key_order=False)
