"""The reference pages have what the code has: names, parameters, fields, levels, defaults, variables, modules."""

from __future__ import annotations

import inspect
import logging
import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import seekpoint
from public_modules import PUBLIC_MODULES
from seekpoint import (
    Assignment,
    Health,
    Ledger,
    Limits,
    Pipeline,
    StartAt,
    Worker,
    admin,
    consumer_config,
    events,
    jobs,
    spark,
    testing,
)
from seekpoint.kafka import config
from seekpoint.metrics import CATALOGUE, Metric
from seekpoint.postgres.engine import _KEEPALIVES
from seekpoint.sinks import Append
from support.docs_pages import ROOT, named, read, section
from support.every_row import for_each
from support.public_kinds import ERRORS, EVENTS

API, EVENTS_PAGE, CONFIGURATION = (named(f"docs/reference/{name}.md") for name in ("api", "events", "configuration"))
JOB_SECTIONS = (
    ("seekpoint.jobs: Reload", "docs/concepts/reload.md"),
    ("seekpoint.jobs: Export", "docs/guides/batch.md"),
    ("seekpoint.jobs: BatchJob", "docs/guides/batch.md"),
)


def reference_of(module: Any) -> str:
    """The reference of the jobs, or of Spark's."""
    if module is spark:
        return section(named("docs/spark/options.md"), "seekpoint.spark")
    return "".join(section(named(page), heading) for heading, page in JOB_SECTIONS)


def ticked(text: str) -> set[str]:
    """Every word in backticks."""
    return {word for code in re.findall(r"`([^`]+)`", text) for word in re.findall(r"\w+", code)}


def rows(text: str) -> dict[str, list[str]]:
    """The rows of the text's tables, by the words in backticks in their first cell."""
    defaults = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `"):
            for name in re.findall(r"`(\w[\w.=-]*)`", cells[0]):
                defaults[name] = cells[1:]
    return defaults


@for_each(EVENTS, lambda kind: kind.__name__)
def test_every_event_is_in_the_reference_with_level_and_fields(kind: type[events.Event]) -> None:
    level, names, meaning = rows(EVENTS_PAGE)[kind.__name__]
    assert level == logging.getLevelName(kind.level)
    assert [f.name for f in fields(kind) if f.name != "at"] == re.findall(r"`(\w+)`", names)
    assert meaning


def test_the_reference_has_no_event_that_does_not_exist() -> None:
    assert {name for name in rows(EVENTS_PAGE) if name[0].isupper()} == {kind.__name__ for kind in EVENTS}


@for_each(seekpoint.__all__)
def test_every_public_name_is_in_the_reference(name: str) -> None:
    assert name in ticked(API) or f"## {name}\n" in API


def test_the_public_modules_are_in_the_reference() -> None:
    shown = re.search(r"^The public names are .*? below it\.", API, re.MULTILINE | re.DOTALL)
    assert shown is not None
    assert re.findall(r"`(\.[\w.]+)`", shown[0]) == [module.removeprefix("seekpoint") for module in PUBLIC_MODULES]


@for_each([Pipeline, Append, Worker, Ledger, Assignment], lambda documented: documented.__name__)
def test_every_parameter_is_in_the_reference(documented: Any) -> None:
    text = section(API, documented.__name__)
    signature = re.search(rf"`{documented.__name__}\((.*?)\)`", text, re.DOTALL)
    assert signature is not None
    shown = re.sub(r"StartAt\.earliest\(\)|Bytes\(\)|\(\)", "", signature[1])
    names = [part.split("=")[0].strip() for part in shown.split(",")]
    assert [name for name in names if name != "*"] == list(inspect.signature(documented).parameters)
    if documented is not Ledger:
        assert set(inspect.signature(documented).parameters) <= ticked(text)


@for_each([Worker, Ledger, Assignment], lambda documented: documented.__name__)
def test_every_public_method_is_in_the_reference(documented: type) -> None:
    public = {
        name for name, value in vars(documented).items() if not name.startswith("_") and not inspect.isclass(value)
    }
    assert public <= ticked(section(API, documented.__name__))


@for_each(["claim", "positions_of", "wait_until_applied"])
def test_the_ledgers_methods_are_shown_with_their_parameters(name: str) -> None:
    shown = re.search(rf"`{name}\(([^`]*)\)`", section(API, "Ledger"))
    assert shown is not None
    names = re.findall(r"(\w+)(?:=[^,]+)?(?:,|$)", shown[1])
    assert names == list(inspect.signature(getattr(Ledger, name)).parameters)[1:]


@for_each(ERRORS, lambda kind: kind.__name__)
def test_every_error_is_in_the_reference(kind: type[Exception]) -> None:
    assert kind.__name__ in rows(re.sub(r"`Poison\([^`]*\)`", "`Poison`", section(API, "Errors")))


def test_every_start_is_in_the_reference() -> None:
    starts = {name for name, value in vars(StartAt).items() if isinstance(value, classmethod)}
    assert starts <= ticked(section(API, "StartAt"))


def test_every_field_of_health_is_in_the_reference() -> None:
    assert set(rows(section(API, "Health"))) == {field.name for field in fields(Health)}


def test_every_name_of_the_test_kit_is_in_the_reference() -> None:
    assert set(testing.__all__) <= ticked(section(API, "seekpoint.testing"))
    assert is_dataclass(testing.Processed)


@for_each([jobs, spark], lambda module: module.__name__)
def test_every_name_of_a_job_is_in_the_reference(module: Any) -> None:
    shown = reference_of(module)
    assert {name for name in module.__all__ if not re.search(rf"`{name}\b", shown)} == set()


JOB_CLASSES = [jobs.Reload, jobs.Export, jobs.Archive, jobs.BatchJob]
OTHERS = {
    "Env",
    "REDACTED",
    "ForeachBatch",
    "FramesDone",
    "FramesReloaded",
    "FramesVerified",
    "PlannedTable",
    "ReloadPlan",
}  # settings, and what the functions return
SPARK_NAMES: list[Any] = [getattr(spark, name) for name in spark.__all__ if name not in OTHERS]


@for_each([*JOB_CLASSES, *SPARK_NAMES], lambda documented: f"{documented.__module__}.{documented.__name__}")
def test_every_parameter_of_a_job_is_in_the_reference(documented: Any) -> None:
    shown = reference_of(spark if documented in SPARK_NAMES else jobs)
    signature = re.search(rf"`{documented.__name__}\(((?:[^()]|\([^()]*\))*)\)`", shown)
    assert signature is not None
    names = [part.split("=")[0].strip() for part in re.sub(r"\([^()]*\)", "", signature[1]).split(",")]
    assert [name for name in names if name != "*"] == list(inspect.signature(documented).parameters)


@for_each([*JOB_CLASSES, admin.Runs], lambda documented: documented.__name__)
def test_every_method_of_a_job_is_in_the_reference(documented: type) -> None:
    inner = {"storage", "ledger"} if documented is jobs.Archive else set()
    public = {
        name for name, value in vars(documented).items() if not name.startswith("_") and not inspect.isclass(value)
    }
    assert public - inner <= ticked(reference_of(jobs))


@for_each([admin.Admin, admin.GroupDeadLetters, admin.ReplayableDeadLetters], lambda documented: documented.__name__)
def test_every_method_of_the_administration_is_in_the_reference(documented: type) -> None:
    public = {name for name in vars(documented) if not name.startswith("_")}
    assert public <= ticked(section(API, "seekpoint.admin"))


def test_the_ledger_has_ten_methods() -> None:
    """Those that a loop of a user's own calls; what operators do is `Admin`'s."""
    assert len([name for name in vars(Ledger) if not name.startswith("_")]) == 10


def test_every_limit_is_in_the_reference_with_its_default() -> None:
    shown = rows(section(CONFIGURATION, "Limits"))
    assert {name: None if cells[0] == "None" else float(cells[0]) for name, cells in shown.items()} == {
        field.name: getattr(Limits(), field.name) for field in fields(Limits)
    }
    assert {field.name for field in fields(Limits)} <= ticked(section(API, "Limits"))


def test_the_keys_we_own_and_our_defaults_are_in_the_reference() -> None:
    shown = rows(section(CONFIGURATION, "Kafka"))
    settings = consumer_config({"bootstrap.servers": "localhost:9092"}, group="g")
    for key, (value, why) in config.OWNED.items():
        assert shown[key] == [f"`{value}`", why]
        assert settings[key] == value
    for key, value in config.DEFAULTS.items():
        assert shown[key][0] == f"`{value}`"


def test_the_connection_parameters_are_in_the_reference() -> None:
    shown = rows(section(CONFIGURATION, "Database"))
    assert {name: int(cells[0].split("`")[1]) for name, cells in shown.items()} == _KEEPALIVES


def test_every_environment_variable_is_in_the_reference() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    read = set(re.findall(r"[\"'`](SEEKPOINT_[A-Z_]+)\b", text))
    assert read == set(rows(section(CONFIGURATION, "Environment")))


def test_every_module_has_its_sentence() -> None:
    package = ROOT / "src" / "seekpoint"
    modules = {path.stem for path in package.iterdir() if _is_module(path)}
    shown = rows(section(named("docs/internals/architecture.md"), "The packages"))
    assert set(shown) == modules


def _is_module(path: Path) -> bool:
    if path.is_dir():
        return any(path.glob("*.py"))
    return path.suffix == ".py" and path.stem != "__init__"


def test_the_architecture_page_names_modules_that_there_are() -> None:
    modules = {
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
        for path in (ROOT / "src").rglob("*.py")
    }
    page = read(ROOT / "docs" / "internals" / "architecture.md")
    names = {name for name in re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)`", page) if not name.endswith(".toml")}
    assert len(names) > 20
    assert sorted(name for name in names if not any(f".{module}".endswith(f".{name}") for module in modules)) == []


@for_each(CATALOGUE, lambda metric: metric.name)
def test_every_metric_is_in_the_reference(metric: Metric) -> None:
    kind, labels, sources, combine, meaning = rows(read(ROOT / "docs" / "reference" / "metrics.md"))[metric.name][:5]
    assert (kind, re.findall(r"`(\w+)`", labels)) == (metric.kind.value, list(metric.labels))
    assert (sources, combine, meaning) == (", ".join(metric.sources), metric.combine, metric.help)
