"""The declaration of DataFrames: what contradicts itself is refused where it is written, with the remedy."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from packaging.requirements import Requirement
from typer.testing import CliRunner

from seekpoint import Accumulate, Append, Bytes, Json, StartAt, Text, Upsert, Worker
from seekpoint.admin import Admin
from seekpoint.cli.app import app
from seekpoint.errors import ConfigError
from seekpoint.jobs.batch import BatchJob
from seekpoint.jobs.reload import Reload
from seekpoint.sinks.arrow import AppendArrow
from seekpoint.spark import Frame, SparkPipeline
from support.docs_pages import ROOT
from support.every_row import for_each


class Order(msgspec.Struct):
    id: int
    amount: int


class Placed(msgspec.Struct):
    id: int
    offset: int


def rows(records: Any) -> Any:
    return records


def declare(**options: Any) -> SparkPipeline:
    arguments: dict[str, Any] = {
        "topics": "orders",
        "value": Json(Order),
        "frames": {"orders": Frame(rows, Append("orders"))},
    } | options
    return SparkPipeline("sales", **arguments)


def test_it_declares_what_the_ledger_needs_to_know() -> None:
    sink = Upsert("newest", key=["id"])
    frames = {"orders": Frame(rows, Append("orders")), "newest": Frame(rows, sink)}
    declared = declare(topics=["orders", "refunds"], frames=frames, version=3, start=StartAt.latest(), on_poison="skip")
    assert (declared.group, declared.is_raw, [*declared.frames]) == ("sales", False, ["orders", "newest"])
    pipeline = declared.pipeline
    assert (pipeline.topics, pipeline.tables, pipeline.version) == (("orders", "refunds"), ("newest", "orders"), 3)
    assert (pipeline.sinks[1], pipeline.on_poison.value) == (sink, "skip")
    assert declare(value=None).is_raw


async def _later(records: Any) -> Any:
    return records


later: Any = _later


def two(records: Any, customers: Any) -> Any:
    return records.join(customers)


SALES = declare()

REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "no frames": (lambda: declare(frames={}), "frames= maps names to frames"),
    "a list of frames": (lambda: declare(frames=[Frame(rows, Append("t"))]), "frames= maps names to frames"),
    "a sink in the place of a frame": (lambda: declare(frames={"a": Append("t")}), r"frames\['a'\] is not a Frame"),
    "no function": (lambda: Frame(None, Append("t")), "takes the records' DataFrame"),  # type: ignore[arg-type]
    "an async function": (lambda: Frame(later, Append("t")), "write a plain function that returns a DataFrame"),
    "no parameter": (lambda: Frame(lambda: None, Append("t")), "its first parameter takes the records' DataFrame"),  # type: ignore[arg-type,return-value]
    "any parameters": (lambda: Frame(lambda r, *more: r, Append("t")), "write a parameter for each, not more"),
    "an input that is not declared": (
        lambda: declare(frames={"a": Frame(two, Append("t"))}),
        "the frame two takes 'customers', which is not an input",
    ),
    "an input that no frame takes": (
        lambda: declare(inputs={"customers": "public.customers"}),
        "no frame takes the input",
    ),
    "a class for a sink": (lambda: Frame(rows, Append), "takes no frames; Append, Upsert and Accumulate do"),
    "a sink of columns": (lambda: Frame(rows, AppendArrow("t")), "takes no frames; Append, Upsert and Accumulate do"),
    "a sink that makes rows": (lambda: Frame(rows, Append("t", row=rows)), "remove them"),
    "a sink of some topics": (
        lambda: Frame(rows, Append("t", topics="orders")),
        "filter the frame by its column topic",
    ),
    "a sink with tombstones": (
        lambda: Frame(rows, Upsert("t", key=["id"], tombstone_key=rows)),
        "a frame deletes no rows",
    ),
    "a sink that subtracts": (
        lambda: Frame(rows, Accumulate("t", key=["id"], add=["n"], subtract=rows)),
        "have the frame make negative amounts instead",
    ),
    "codecs by topic": (lambda: declare(topics={"orders": Json(Order)}), "all topics have one codec"),
    "values without columns": (
        lambda: declare(value=Json()),
        "decode the values in the frames' functions, e.g. with from_json",
    ),
    "text": (lambda: declare(value=Text()), "whose columns are not known"),
    "bytes": (lambda: declare(value=Bytes()), "whose columns are not known"),
    "a field that is named as one of Kafka's": (lambda: declare(value=Json(Placed)), "Placed has a field 'offset'"),
    "tombstones": (lambda: declare(value=Json(Order, tombstones=True)), "a frame deletes no rows"),
}


@for_each(REFUSED)
def test_what_cannot_work_is_refused_at_the_declaration(name: str) -> None:
    make, message = REFUSED[name]
    with pytest.raises(ConfigError, match=message):
        make()


COMMANDS: dict[str, list[str]] = {
    "run": ["run", "TARGET"],
    "explain": ["explain", "TARGET"],
    "reload run": ["reload", "run", "TARGET"],
    "verify": ["verify", "TARGET"],
    "batch": ["batch", "TARGET"],
    "replay": ["dead-letters", "replay", "TARGET", "--all"],
    "db table": ["db", "table", "TARGET"],
    "export": ["export", "TARGET", "--to", "/nowhere"],
    "offsets reset": ["offsets", "reset", "sales", "--all-topics", "--to-earliest", "--rebuild", "TARGET"],
}


@for_each(COMMANDS)
def test_a_command_that_does_not_take_it_says_which_one_does(name: str) -> None:
    """Before any server is asked: no server is at these addresses."""
    target = f"{__name__}:SALES"
    words = [target if word == "TARGET" else word for word in COMMANDS[name]]
    if name != "db table":
        words += ["--database-url", "postgresql://u@127.0.0.1:1/db"]
    if name in {"run", "reload run", "verify", "batch", "export", "offsets reset"}:
        words += ["--kafka", "bootstrap.servers=127.0.0.1:1"]
    done = CliRunner().invoke(app, words)
    message = " ".join((done.output + str(done.exception)).split())
    assert done.exit_code != 0, message
    assert f"{target} is a SparkPipeline, which only `seekpoint spark run {target}` applies" in message


def test_a_class_that_does_not_take_it_says_so() -> None:
    url, kafka = "postgresql://u@127.0.0.1:1/db", {"bootstrap.servers": "127.0.0.1:1"}
    sales: Any = SALES
    calls: list[Callable[[], object]] = [
        lambda: Worker(sales, engine=url, kafka=kafka),
        lambda: Admin(url).dead_letters(sales),
        lambda: Reload([sales], url, kafka),
        lambda: Reload(sales, url, kafka),
        lambda: BatchJob(sales, url, kafka),
    ]
    for call in calls:
        with pytest.raises(ConfigError, match=r"SparkPipeline.'sales'. is a SparkPipeline, which only .* applies"):
            call()


def test_it_loads_neither_driver_nor_client_nor_spark() -> None:
    code = """
import sys, msgspec
from seekpoint import Accumulate, Append, Json
from seekpoint.pipeline.frames import Frame, SparkPipeline

class Order(msgspec.Struct):
    id: int

SparkPipeline("sales", topics="orders", value=Json(Order), frames={"orders": Frame(lambda r: r, Append("orders"))})
print(*[name for name in ("psycopg", "confluent_kafka", "pyspark", "pyarrow") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []


@pytest.mark.parametrize("name", ["spark", "spark-connect"])
def test_the_extra_allows_no_pandas_that_pyspark_cannot_import(name: str) -> None:
    """``import pyspark.pandas`` fails with pandas 3."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extra = {requirement.name: requirement for requirement in map(Requirement, project["optional-dependencies"][name])}
    assert extra["pandas"].specifier.contains("2.3.3")
    assert not extra["pandas"].specifier.contains("3.0.0")
