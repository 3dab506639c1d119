"""``seekpoint explain``: explains a pipeline, the guarantee of a running group, or an error code."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markdown import Markdown
from sqlalchemy import Engine

from seekpoint.admin import Admin
from seekpoint.cli.error_codes import error_entry, is_code
from seekpoint.cli.options import AsJson, DatabaseOptions, OptionalDatabaseUrl, Schema, command, one_off_engine
from seekpoint.cli.output import answer
from seekpoint.errors import ConfigError
from seekpoint.ledger.tables import DEFAULT_SCHEMA
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.pipeline.sink import Sink
from seekpoint.pipeline.written_tables import Translation, translated
from seekpoint.postgres.engine import WORKER_CONNECTIONS, schema_translation
from seekpoint.sinks import Accumulate, Append, Upsert
from seekpoint.sinks.arrow import AppendArrow
from seekpoint.sinks.upsert.strategy import SMALL, described
from seekpoint.worker.import_by_name import load
from seekpoint.worker.worker import Worker

APPENDS = {
    "copy": {"copy": "COPY into the table; INSERT for few rows"},
    "insert": {"insert": "always: row security is active for this role, so the server refuses COPY"},
}
SUMS = {
    "unnest": f"fewer than {SMALL} keys in a transaction: one statement, in the order of the keys",
    "temp_table": "more keys: COPY into a temporary table, then one statement from there",
}
ARROW = {"copy": "always: COPY into the table"}
LEARNED = "a worker learns when to use copy or temp_table, and reports changes to observers (WriteStrategyChanged)"
UNSEEN = "no database is named (--database-url or SEEKPOINT_DATABASE_URL): the tables were not checked"


@command
def explain(
    target: Annotated[
        str,
        typer.Argument(
            metavar="GROUP|MODULE:NAME|CODE",
            help="A group in the ledger; a Pipeline, a Worker, or a function; or an error code, such as SP1201.",
        ),
    ],
    *,
    database_url: OptionalDatabaseUrl = None,
    schema: Schema = DEFAULT_SCHEMA,
    as_json: AsJson = False,
) -> None:
    """Explain what a pipeline does with its records, what a running group guarantees, or what an error means.

    GROUP: prints the guarantee that its workers have stored in the ledger, with its exceptions; does not need their
    code. MODULE:NAME: prints topics, sinks, handler and write strategies. With a database, it also checks the tables as
    a worker's start does, in a transaction that is rolled back. CODE: prints an error's cause, what is safe, and what
    to do.
    """
    if is_code(target):
        _explain_error(target, as_json=as_json)
        return
    if ":" not in target:
        _explain_group(target, database_url, schema, as_json=as_json)
        return
    declared = load(target, from_here=True)
    pipeline = declared.pipeline if isinstance(declared, Worker) else declared
    translation = schema_translation(declared.engine) if isinstance(declared, Worker) else {}
    description = describe(pipeline, one_off_engine(database_url) if database_url else None, translation)
    answer(description, *_lines(description), as_json=as_json)
    if not database_url and pipeline.tables:
        typer.echo(UNSEEN, err=True)


def _explain_error(code: str, *, as_json: bool) -> None:
    entry = error_entry(code)
    if as_json:
        answer(asdict(entry), as_json=True)
    else:
        Console().print(Markdown(f"# {entry.code} {entry.error}\n\n{entry.text}"))


def _explain_group(name: str, database_url: str | None, schema: str, *, as_json: bool) -> None:
    if not database_url:
        raise ConfigError(
            f"no database is named for group {name!r}: give --database-url or SEEKPOINT_DATABASE_URL; if you mean a "
            "pipeline, name it MODULE:NAME"
        )
    engine = DatabaseOptions(database_url=database_url, schema=schema).engine()
    explanation = Admin(engine, schema=schema).explain(name)
    lines = [f"{explanation.group}, version {explanation.version}"]
    for topic in explanation.topics:
        lines.append(topic.topic)
        lines += [f"  {sentence}" for sentence in topic.guarantee]
        lines += ["  but:" if topic.guarantee else "  not known:"] if topic.weakens else []
        lines += [f"  - {sentence}" for sentence in topic.weakens]
    answer(asdict(explanation), *lines, as_json=as_json)


def describe(pipeline: Pipeline, engine: Engine | None, translation: Translation | None = None) -> dict[str, Any]:
    """The explanation for JSON; with an engine, the tables are also checked, and named with their schemas.

    ``translation`` is the ``schema_translate_map`` of a worker's engine, which applies to the handler's tables.
    """
    if engine is not None:
        pipeline.require_names("explain with a database")
    handle, translation = pipeline.handle, translation or {}
    sinks = [_sink(pipeline, sink, engine) for sink in pipeline.sinks]
    writes = [translated(name, translation) for name in pipeline.writes]
    if engine is not None:
        with engine.execution_options(schema_translate_map=translation).connect() as look:
            tables = pipeline.sinks_tables(look)
            writes = [*pipeline.handlers_tables(look).values()]
        for sink in sinks:
            sink["tables"] = [tables[name] for name in sink["tables"]]
    return {
        "group": pipeline.group,
        "topics": [*pipeline.topics] if pipeline.pattern is None else [repr(pipeline.pattern)],
        "on_poison": pipeline.on_poison.value,
        "sinks": sinks,
        "handler": None if handle is None else getattr(handle, "__qualname__", repr(handle)),
        "writes": writes,
        "connections": WORKER_CONNECTIONS + 1,
    }


def _sink(pipeline: Pipeline, sink: Sink, engine: Engine | None) -> dict[str, Any]:
    declared: dict[str, Any] = {"sink": repr(sink), "tables": list(sink.tables)}
    if isinstance(sink, Append | AppendArrow):
        append_strategy = "copy" if engine is None else _check(pipeline, sink, engine)
        declared["strategies"] = (
            ARROW if isinstance(sink, AppendArrow) and append_strategy == "copy" else APPENDS[append_strategy]
        )
    if isinstance(sink, Accumulate):
        if engine is not None:
            _check(pipeline, sink, engine)
        declared["key"] = list(sink.key)
        declared["newest"] = _aggregated(sink)
        declared["strategies"] = SUMS
    if isinstance(sink, Upsert):
        direct = engine is None or _check(pipeline, sink, engine).direct
        declared["key"] = list(sink.key)
        declared["newest"] = _newest(sink)
        declared["strategies"] = {strategy.value: when for strategy, when in described(direct=direct).items()}
        declared["learned"] = LEARNED
    return declared


def _aggregated(sink: Accumulate) -> str:
    aggregates = (("the sums of", sink.add), ("the lowest", sink.least), ("the highest", sink.most))
    return "; ".join(f"{label} {', '.join(names)}" for label, names in aggregates if names)


def _newest(sink: Upsert) -> str:
    if sink.keeps_first:
        return "the first of its partition; a stored row stays"
    if sink.order_by is not None:
        return f"the highest {sink.order_by}, also compared with the stored row"
    if sink.offset_column is not None:
        return f"the last of its partition, also compared with the stored row ({sink.offset_column})"
    return "the last of its partition"


def _check(pipeline: Pipeline, sink: Accumulate | Append | AppendArrow | Upsert, engine: Engine) -> Any:
    """Run the checks of a worker's start. Raises ConfigError if a table, column or right is missing."""
    with engine.connect() as look:  # the transaction is rolled back at the end
        return sink.check(look, pipeline.codecs_of(sink), pipeline.key)


def _lines(declared: dict[str, Any]) -> list[str]:
    lines = [f"{declared['group']} reads {', '.join(declared['topics'])}; a poison record: {declared['on_poison']}"]
    for sink in declared["sinks"]:
        lines.append(f"{sink['sink']} writes {', '.join(sink['tables'])}")
        if "key" in sink:
            lines.append(f"  one row for each {', '.join(sink['key'])}: {sink['newest']}")
        lines += [f"  {strategy:<7} {when}" for strategy, when in sink.get("strategies", {}).items()]
        if "learned" in sink:
            lines.append(f"  {sink['learned']}")
    if declared["handler"] is not None:
        written = f", which writes {', '.join(declared['writes'])}" if declared["writes"] else ""
        lines.append(f"handler {declared['handler']}{written}")
    lines.append(f"a worker opens at most {declared['connections']} connections, none of them in your engine's pool")
    return lines
