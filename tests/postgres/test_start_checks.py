"""What a worker asks of its tables before it joins the group: what cannot work is refused at the start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict

import msgspec
import pytest
from sqlalchemy import QueuePool, create_engine, text

from seekpoint import Append, Json, Limits, Pipeline, Upsert, events
from seekpoint.errors import ConfigError
from seekpoint.sinks.arrow import AppendArrow
from support.events import Run
from support.fixtures import NewEngine
from support.sink_tables import SinkTables

NOISY = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'a trigger ran'; END $$;
CREATE TRIGGER t BEFORE INSERT OR UPDATE OR DELETE ON t EXECUTE FUNCTION refuse();
"""


class Order(msgspec.Struct):
    id: int
    v: str


class OrderKeys(TypedDict):
    id: int


@pytest.fixture
def start(group: str, topic: Callable[..., str], run_worker: Callable[..., Run]) -> Callable[..., Run]:
    """``start(sink, value=…)`` starts a worker with this sink."""
    name = topic()

    def begin(sink: Any, value: Any = None, **options: Any) -> Run:
        return run_worker(Pipeline(group, topics=name, value=value or Json(), sinks=[sink]), **options)

    return begin


KINDS: list[tuple[Any, dict[str, Any]]] = [(Append, {}), (AppendArrow, {}), (Upsert, {"key": ["id"]})]
EITHER = pytest.mark.parametrize(("kind", "more"), KINDS, ids=["append", "arrow", "upsert"])


@EITHER
def test_a_table_that_is_missing(
    sink_tables: SinkTables, start: Callable[..., Run], kind: Any, more: dict[str, Any]
) -> None:
    sink = kind((sink_tables.schema, "none"), columns=["id", "v"], **more)
    with pytest.raises(ConfigError, match=r"\.none'\): relation .* does not exist; create the table \(`seekpoint db"):
        start(sink)
    sink_tables.create("id int PRIMARY KEY, v text", "none")
    start(sink).placed()


@EITHER
def test_a_table_that_is_missing_twice(
    sink_tables: SinkTables, new_engine: NewEngine, kind: Any, more: dict[str, Any]
) -> None:
    """Of two topics of a pattern, e.g.: what the session remembers of a missing table is no older definition."""
    engine = new_engine(sink_tables.engine.url, poolclass=QueuePool)
    for _ in range(3):
        with engine.connect() as tx, pytest.raises(ConfigError, match=r"relation .* does not exist"):
            kind((sink_tables.schema, "none"), columns=["id", "v"], **more).check(tx)


@EITHER
@pytest.mark.parametrize("named", [True, False], ids=["named", "of the codec's type"])
def test_a_column_that_is_missing(
    sink_tables: SinkTables, start: Callable[..., Run], kind: Any, more: dict[str, Any], named: bool
) -> None:
    columns = {"columns": ["id", "v"]} if named else {}
    sink = kind(sink_tables.create("id int PRIMARY KEY"), **columns, **more)
    value = Json() if named else Json(Order)
    with pytest.raises(
        ConfigError, match=r"column \"v\" .*does not exist; add the column to the table \(.*, or leave it out"
    ):
        start(sink, value)
    sink_tables.sql("ALTER TABLE t ADD v text")
    sink_tables.sql(NOISY)  # a look writes nothing, so no trigger runs
    start(sink, value).placed()


@pytest.mark.parametrize("kind", [int, dict[str, int], list[int], OrderKeys])
def test_a_type_that_names_no_columns(sink_tables: SinkTables, start: Callable[..., Run], kind: Any) -> None:
    """Such records would otherwise stop every partition, one after the other."""
    with pytest.raises(ConfigError, match=r"rows of type \w+ do not name their columns; give columns=\[\.\.\.\], or"):
        start(Append(sink_tables.create("id int")), Json(kind))


@EITHER
def test_a_right_that_is_missing(
    sink_tables: SinkTables, start: Callable[..., Run], kind: Any, more: dict[str, Any]
) -> None:
    sink = kind(sink_tables.create("id int PRIMARY KEY, v text"), columns=["id", "v"], **more)
    role, schema = f"{sink_tables.schema}_poor", sink_tables.schema
    sink_tables.sql(f"CREATE ROLE {role}; GRANT USAGE ON SCHEMA {schema} TO {role}")
    sink_tables.sql(f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {role}; REVOKE UPDATE, INSERT ON t FROM {role}")
    poor = create_engine(sink_tables.engine.url, connect_args={"options": f"-crole={role}"})
    try:
        with pytest.raises(ConfigError, match=r"permission denied for table t; grant the right to the role"):
            start(sink, engine=poor)
    finally:
        poor.dispose()
        sink_tables.sql(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_an_index_that_is_missing(sink_tables: SinkTables, start: Callable[..., Run]) -> None:
    with pytest.raises(ConfigError, match=r"no unique index on exactly.*`seekpoint db table MODULE:NAME"):
        start(Upsert(sink_tables.create("id int, v text"), key=["id"], columns=["id", "v"]))


@EITHER
def test_a_lock_does_not_keep_a_worker_from_starting(
    sink_tables: SinkTables,
    start: Callable[..., Run],
    produce: Callable[..., Any],
    kind: Any,
    more: dict[str, Any],
) -> None:
    """As an index build holds it: the batches wait for it, as they would later."""
    sink = kind(sink_tables.create("id int PRIMARY KEY, v text"), columns=["id", "v"], **more)
    with sink_tables.engine.begin() as other:
        other.execute(text(f'LOCK TABLE "{sink_tables.schema}".t IN SHARE MODE'))
        run = start(sink, limits=Limits(claim_wait=0.1))
        assert run.seen.all(events.DatabaseTrouble)
    name = run.worker.pipeline.topics[0]
    produce(name, [b'{"id": 1, "v": "x"}'])
    run.reached(name, 1)
    assert sink_tables.rows("id", "v") == [(1, "x")]


@pytest.fixture
def start_handler(group: str, topic: Callable[..., str], run_worker: Callable[..., Run]) -> Callable[..., Run]:
    """``start_handler(*writes)`` starts a worker whose handler says that it writes these tables."""
    name = topic()

    def begin(*writes: str, **options: Any) -> Run:
        pipeline = Pipeline(group, topics=name, value=Json(), handle=lambda tx, batch: None, writes=writes)
        return run_worker(pipeline, **options)

    return begin


def test_a_table_of_a_handler_that_is_missing(sink_tables: SinkTables, start_handler: Callable[..., Run]) -> None:
    written, missing = f"{sink_tables.schema}.Written", f"{sink_tables.schema}.missing"
    sink_tables.create("v text", "Written")  # a name is taken as it is written, and not in lower case
    with pytest.raises(
        ConfigError, match=r"writes='.*\.missing': relation .* does not exist; create the table, or cor"
    ):
        start_handler(written, missing)
    sink_tables.create("v text", "missing")
    start_handler(written, missing).placed()


def test_the_search_path_finds_a_table(
    sink_tables: SinkTables, start_handler: Callable[..., Run], new_engine: NewEngine
) -> None:
    sink_tables.create("v text", "written")
    with pytest.raises(ConfigError, match=r"writes='written': relation 'written' does not exist; .*search_path"):
        start_handler("written")
    engine = new_engine(sink_tables.engine.url, connect_args={"options": f"-csearch_path={sink_tables.schema}"})
    start_handler("written", engine=engine).stop()


def test_a_table_of_a_handler_has_the_engines_translation(
    sink_tables: SinkTables, start_handler: Callable[..., Run]
) -> None:
    sink_tables.create("v text", "written")
    tenant = sink_tables.engine.execution_options(schema_translate_map={None: sink_tables.schema, "other": "no_such"})
    start_handler("written", engine=tenant).placed()
    with pytest.raises(ConfigError, match=r"writes='other\.written': relation 'no_such\.written' does not exist"):
        start_handler("other.written", engine=tenant)


def test_the_start_says_which_tables_are_written(
    sink_tables: SinkTables, group: str, topic: Callable[..., str], run_worker: Callable[..., Run]
) -> None:
    """With their schemas: the handler's by the engine's translation, the sink's by its own name."""
    sink_tables.create("v text", "written")
    sink = Append(sink_tables.create("v text"), columns=["v"])
    pipeline = Pipeline(
        group, topics=topic(), value=Json(), sinks=[sink], handle=lambda tx, batch: None, writes=["own.written"]
    )
    run = run_worker(
        pipeline, engine=sink_tables.engine.execution_options(schema_translate_map={"own": sink_tables.schema})
    )
    started = run.seen.wait_for(events.Started)
    assert started.tables == (f"{sink_tables.schema}.t", f"{sink_tables.schema}.written")
    assert str(started).endswith(f", writes {sink_tables.schema}.t, {sink_tables.schema}.written")
