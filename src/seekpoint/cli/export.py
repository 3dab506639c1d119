"""``seekpoint export``: archives the records that a group has applied, in files that outlive retention."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from typing import Annotated, Any, Literal

import typer

from seekpoint.cli import spark_session
from seekpoint.cli.errors import terminable
from seekpoint.cli.options import Actor, AsJson, MaxRecords, ServerOptions, SparkOptions, command
from seekpoint.cli.output import answer
from seekpoint.cli.progress_bar import Shown
from seekpoint.errors import ConfigError
from seekpoint.jobs.export import Archive, Export, Exported
from seekpoint.jobs.export.export import RANGE
from seekpoint.records import numbered
from seekpoint.worker.import_by_name import load_pipeline


@command
def export(
    context: typer.Context,
    target: Annotated[
        str | None, typer.Argument(metavar="[MODULE:NAME]", help="A Pipeline or a Worker, for its group.")
    ] = None,
    *,
    to: Annotated[
        str, typer.Option(metavar="URL", help="The archive: a folder, or a URL such as s3://bucket/archive.")
    ],
    group: Annotated[str | None, typer.Option(help="The group, if no pipeline is named.")] = None,
    topic: Annotated[list[str] | None, typer.Option(help="Only this topic (repeatable).")] = None,
    format: Annotated[  # noqa: A002
        Literal["parquet", "delta"], typer.Option(help="Only files, or also a Delta table for each topic.")
    ] = "parquet",
    range_records: Annotated[int, typer.Option(help="At most this many offsets per file.", min=1)] = RANGE,
    max_records: MaxRecords = None,
    skip_lost: Annotated[
        bool, typer.Option("--skip-lost", help="Skip records that retention deleted; the archive then has a gap.")
    ] = False,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Then remove files that killed exports left more than a day ago.")
    ] = False,
    tasks: SparkOptions,
    on: ServerOptions,
    actor: Actor = None,
    as_json: AsJson = False,
) -> None:
    """Archive the records that a group has applied and that the archive lacks.

    Records are raw, as in the log, up to the stored offsets. Exports may be repeated, and may run concurrently; after
    an interruption, the next one continues after the last committed range.
    """
    if (target is None) == (group is None):
        raise ConfigError("name either a pipeline, MODULE:NAME, or its group with --group")
    with (
        on.job(context, *([] if target is None else [target])) as of,
        terminable(),
        Shown(terminal_only=as_json) as progress,
        ExitStack() as stack,
    ):
        name = group or load_pipeline(of.names[0], from_here=True).group
        archive = Archive(to, of.engine, schema=of.schema)
        arguments: dict[str, Any] = {"range_records": range_records, "max_records": max_records, "actor": actor}
        arguments["skip_lost"] = skip_lost
        arguments |= spark_session.writer(stack, of, tasks, progress.say)
        servers = of.engine, of.kafka
        result = Export(
            *servers, archive, name, topic, schema=of.schema, format=format, progress=progress, **arguments
        ).run()
        swept = list(archive.sweep()) if sweep else []
    _print(result, archive, name, swept, as_json=as_json)


def _print(result: Exported, archive: Archive, group: str, swept: list[str], *, as_json: bool) -> None:
    offsets = {str(partition): offset for partition, offset in result.offsets.items()}
    added = f"{result.records:,} records in {numbered(result.files, 'file')}, {result.bytes:,} bytes"
    answer(
        {**asdict(result), "archive": archive.root, "group": group, "offsets": offsets, "swept": swept},
        f"{group}: {added}, added to {archive.root}",
        *(f"{partition} is archived up to offset {offset}" for partition, offset in offsets.items()),
        *([f"removed {numbered(len(swept), 'file')} that no export had committed"] if swept else []),
        as_json=as_json,
    )
